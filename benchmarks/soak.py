"""Do hours of calls, at random, leave every answer right and the memory flat?

    python benchmarks/soak.py --seconds 7200

Some fifty functions, methods and modules (`soaked.py`) are called in one process: with and without gradients, under
autocast, from several threads, in forked children; tables are small, so that choices leave; they are cleared, the mode
is set to others, modules and globals change, choices are stored and read back. Each call is compared with the function
as written: result, aliasing, what was written, gradients, random numbers, errors. Ends with 1 where anything differs.

Memory is what the process holds once malloc has given back what is free (``rss_mb``), and the objects that Python holds
(``python_blocks``); how much either grows is fitted to the second half. Python never unloads a shared library, and each
kernel that Inductor compiles for a CPU is one (``libraries``): that part grows with the builds, and only on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import CONSOLE, banner, options, write

SECONDS, SMALL_SECONDS = 7200.0, 20.0
EVERY_S = 10.0
"""How often memory is looked at."""
POOL = 12
"""How many different calls each function is given at a time."""
THREADS, CALLS_A_THREAD, CALLS_A_CHILD, CHILD_S = 3, 60, 40, 120
CHANCES = {"clear": 0.002, "mode": 0.002, "threads": 0.0005, "fork": 0.0005, "pool": 0.002, "collect": 0.0005}
"""Of each event, before each call."""
MODES = (*[("tune", "nearest")] * 4, ("off", "nearest"), ("frozen", "plain"), ("sealed", "nearest"))
NOTES = 40


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak, print, write. Returns the exit code: 1 where anything differed or ended badly."""
    chosen = options(__doc__, arguments, devices=("cpu",), more=own_options)
    seconds = chosen.seconds or (SMALL_SECONDS if chosen.small else SECONDS)
    # Read when the library and Inductor are first imported; workers that compile would not survive a fork.
    small = {"MAXSIZE": "16", "MAX_BUILDS": "3", "BUDGET_MS": "5"}  # so that tables are full soon, and choices leave
    os.environ |= {f"SHAPEDISPATCH_{name}": value for name, value in small.items()}
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    where = banner("cpu")
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(chosen.seed, Path(folder))
        for found in soak.run(seconds):
            CONSOLE.print(told(found), highlight=False)
            write(__file__, {"seed": chosen.seed, "asked_seconds": seconds, **found}, where, chosen)
    return int(bool(soak.tally.differences))


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--seconds", type=float, help=f"how long (default: {SECONDS:g}, small {SMALL_SECONDS:g})")
    parser.add_argument("--seed", type=int, default=1)


def told(found: Mapping[str, Any]) -> str:
    """The state of a run in a line."""
    slope = found["slope_mb_per_hour"]
    memory = f"{found['rss_mb'][-1][1]:.1f} MB" + (f", {slope:+.2f} MB an hour" if slope is not None else "")
    memory += f", {found['python_blocks'][-1][1]:,} blocks, {found['libraries'][-1][1]} libraries"
    return f"{found['seconds']:.0f} s, {found['calls']:,} calls, {found['differences']} differences, {memory}"


# ------------------------------------------------------------------------------------------------------------- one call


@dataclass
class Tally:
    """What was called, and what differed."""

    calls: Counter[str] = field(default_factory=Counter)
    raised: int = 0
    events: Counter[str] = field(default_factory=Counter)
    differences: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def differs(self, name: str, note: str) -> None:
        """Note a difference."""
        self.differences[name] += 1
        if len(self.notes) < NOTES:
            self.notes.append(f"{name}: {note}")


@dataclass(frozen=True)
class Spec:
    """A call and what surrounds it, from two numbers."""

    number: int
    grad: bool
    inference: bool
    autocast: bool

    @classmethod
    def drawn(cls, rng: random.Random) -> Spec:
        """One at random."""
        roll = rng.random()
        return cls(rng.getrandbits(32), roll < 0.6, roll > 0.9, rng.random() < 0.15)

    @contextlib.contextmanager
    def state(self) -> Iterator[None]:
        """The state around the call."""
        import torch

        with (
            torch.inference_mode(self.inference),
            torch.set_grad_enabled(self.grad and not self.inference),
            torch.autocast("cpu", torch.bfloat16, enabled=self.autocast),
        ):
            yield


@dataclass
class Seen:
    """All that one call leaves behind."""

    error: str | None
    result: Any
    arguments: Any
    state: Any
    aliases: Any
    gradients: Any
    random: Any


def seen(fn: Callable[..., Any], subject: Any, spec: Spec, copied: bool) -> Seen:
    """Run the call, and look at everything that it leaves; with modules copied for the plain function."""
    import torch

    from tests import fuzzing

    args, kwargs = subject.make(random.Random(spec.number))
    if copied:
        args = tuple(copy.deepcopy(value) if isinstance(value, torch.nn.Module) else value for value in args)
    modules = [value for value in args if isinstance(value, torch.nn.Module)]
    if subject.alone:
        torch.manual_seed(spec.number)
    error, result = None, None
    with spec.state():
        try:
            result = fn(*args, **kwargs)
        except Exception as raised:  # noqa: BLE001 - what is raised is compared
            error = f"{type(raised).__name__}: {raised}"
    drawn = torch.get_rng_state() if subject.alone else None
    given, out = list(fuzzing.tensors_in((args, kwargs))), list(fuzzing.tensors_in(result))
    aliases = [
        (i, j, a.data_ptr() - b.data_ptr(), a is b)
        for i, a in enumerate(out)
        for j, b in enumerate(given)
        if a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    ]
    leaves = [*given, *(p for module in modules for p in module.parameters())]
    # Without their strides, which a variant may have others of (docs/guarantees.md).
    gradients = [without_strides(one) for one in fuzzing._gradients(out, leaves)]
    state = [dict(module.state_dict()) for module in modules]
    plain_args = [value for value in args if not isinstance(value, torch.nn.Module)]
    return Seen(error, result, [plain_args, kwargs], state, aliases, gradients, drawn)


def without_strides(gradient: Any) -> Any:
    """A copy in the usual layout."""
    import torch

    return gradient.clone(memory_format=torch.contiguous_format) if isinstance(gradient, torch.Tensor) else gradient


def difference(plain: Seen, other: Seen, rtol: float) -> str | None:
    """The first one, or None; numbers within rounding, or within ``rtol`` where that is more."""
    from tests.fuzzing import unlike

    for name in ("error", "aliases"):
        if getattr(plain, name) != getattr(other, name):
            return f"{name}: {getattr(plain, name)} and {getattr(other, name)}"
    for name in ("result", "arguments", "state", "gradients", "random"):
        found = unlike(getattr(plain, name), getattr(other, name), rtol, name)
        if found:
            return found
    return None


# ------------------------------------------------------------------------------------------------------------- the soak


class Soak:
    """The run: its functions, their calls, what happens between them."""

    def __init__(self, seed: int, folder: Path) -> None:
        from soaked import subjects

        self.rng = random.Random(seed)
        self.subjects = subjects(folder)
        self.pools = {one.name: [Spec.drawn(self.rng) for _ in range(POOL)] for one in self.subjects}
        self.tally = Tally()
        self.mode: Any = None
        self.memory: list[tuple[float, float]] = []
        self.blocks: list[tuple[float, int]] = []
        self.libraries: list[tuple[float, int]] = []

    def run(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Until the time is over; gives what was found, now and then and at the end."""
        started = last = time.monotonic()
        while (now := time.monotonic()) - started < seconds:
            for _ in range(50):
                self.step()
            if now - last > EVERY_S:
                last = now
                self.look(now - started)
                if len(self.memory) % 6 == 0:
                    yield self.found(now - started)
        self.set_mode("tune", "nearest")
        self.look(seconds)
        yield self.found(seconds)

    def step(self) -> None:
        """One call, after whatever happens before it."""
        for event, chance in CHANCES.items():
            if self.rng.random() < chance:
                self.tally.events[event] += 1
                getattr(self, f"on_{event}")()
        subject = self.rng.choice(self.subjects)
        if subject.change is not None and self.rng.random() < 0.1:
            subject.change(self.rng)
        self.call(subject, self.rng.choice(self.pools[subject.name]))

    def call(self, subject: Any, spec: Spec, where: str = "") -> None:
        """One call both ways."""
        plain = seen(subject.plain, subject, spec, copied=True)
        other = seen(subject.dispatched, subject, spec, copied=False)
        found = difference(plain, other, 4e-2 if spec.autocast else 0.0)
        self.tally.calls[subject.name] += 1
        self.tally.raised += plain.error is not None
        if found:
            self.tally.differs(subject.name, f"{spec}{where}, mode {self.mode}: {found}"[:600])

    # -- what happens between calls

    def on_clear(self) -> None:
        """A table is emptied."""
        self.rng.choice(self.subjects).dispatched.cache_clear()

    def on_mode(self) -> None:
        """The mode of the process changes."""
        self.set_mode(*self.rng.choice(MODES))

    def set_mode(self, mode: str, on_miss: str) -> None:
        """Set and note it."""
        import shapedispatch

        self.mode = mode
        shapedispatch.set_mode(mode, on_miss=on_miss)

    def on_pool(self) -> None:
        """A function is given other calls; one that compiles keeps its own longer."""
        subject = self.rng.choice(self.subjects)
        if not subject.compiled or self.rng.random() < 0.3:
            self.pools[subject.name] = [Spec.drawn(self.rng) for _ in range(POOL)]

    def on_collect(self) -> None:
        """The garbage collector runs."""
        gc.collect()

    def on_threads(self) -> None:
        """Several threads call at once, while this one clears tables and sets modes."""
        shared = [one for one in self.subjects if not one.alone and not one.compiled]
        seeds = [self.rng.getrandbits(32) for _ in range(THREADS)]
        threads = [threading.Thread(target=self.of_a_thread, args=(shared, seed)) for seed in seeds]
        for thread in threads:
            thread.start()
        while alive := [thread for thread in threads if thread.is_alive()]:
            self.rng.choice((self.on_clear, self.on_mode, self.on_collect))()
            alive[0].join(0.2)
        self.set_mode("tune", "nearest")

    def of_a_thread(self, shared: Sequence[Any], seed: int) -> None:
        """What each of them does."""
        rng = random.Random(seed)
        try:
            for _ in range(CALLS_A_THREAD):
                subject = rng.choice(shared)
                self.call(subject, rng.choice(self.pools[subject.name]), " in a thread")
        except Exception:  # noqa: BLE001 - whatever ends a thread is a finding
            self.tally.differs("thread", traceback.format_exc()[-500:])

    def on_fork(self) -> None:
        """A child makes some calls and ends; one that does not end is a finding."""
        child = os.fork()
        if child == 0:
            os._exit(self.as_a_child())
        deadline = time.monotonic() + CHILD_S
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return self.tally.differs("fork", "the child did not end")
            time.sleep(0.01)
        if status:
            self.tally.differs("fork", f"the child ended with status {status}: see above")
        return None

    def as_a_child(self) -> int:
        """Some calls in the child; what differs is printed, and counted by the exit code."""
        try:
            before = self.tally.differences.total()
            for _ in range(CALLS_A_CHILD):
                subject = self.rng.choice(self.subjects)
                self.call(subject, self.rng.choice(self.pools[subject.name]), " in a forked child")
            if self.tally.differences.total() == before:
                return 0
            print(self.tally.notes[-1], file=sys.stderr, flush=True)
        except BaseException:  # noqa: BLE001 - the child must end here, whatever happens
            traceback.print_exc()
        return 3

    # -- what is found

    def slope(self, points: Sequence[tuple[float, float]]) -> float | None:
        """Of all but the first half, in which caches fill up."""
        return slope([point for point in points if point[0] > points[-1][0] / 2])

    def look(self, seconds: float) -> None:
        """Note how much memory the process holds, without what is freed already."""
        gc.collect()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
            trim(0)
        at, pages = round(seconds, 1), int(Path("/proc/self/statm").read_text().split()[1])
        self.memory.append((at, round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 2)))
        self.blocks.append((at, sys.getallocatedblocks()))
        files = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
        self.libraries.append((at, len(files)))

    def found(self, seconds: float) -> dict[str, Any]:
        """All of it, for the result."""
        info = [one.dispatched.cache_info() for one in self.subjects]
        sums = {name: sum(getattr(one, name) for one in info) for name in ("hits", "misses", "evictions", "builds")}
        return {
            "seconds": round(seconds, 1),
            "functions": len(self.subjects),
            "calls": self.tally.calls.total(),
            "raised_by_both": self.tally.raised,
            "differences": self.tally.differences.total(),
            "differences_by_function": dict(self.tally.differences),
            "notes": self.tally.notes,
            "events": dict(self.tally.events),
            "since_each_was_cleared": sums,
            "slope_mb_per_hour": self.slope(self.memory),
            "slope_blocks_per_hour": self.slope(self.blocks),
            "rss_mb": self.memory,
            "python_blocks": self.blocks,
            "libraries": self.libraries,
            "calls_by_function": dict(self.tally.calls),
        }


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """By how much the second number grows for 3,600 of the first, by least squares; None of fewer than three points."""
    if len(points) < 3:
        return None
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return round(3600 * sum((x - mean_x) * (y - mean_y) for x, y in points) / spread, 3) if spread else None


if __name__ == "__main__":
    sys.exit(main())
