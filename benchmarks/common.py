"""What the benchmark scripts share: options, environment, interleaved measuring, tables, JSON."""

from __future__ import annotations

import argparse
import datetime
import functools
import gc
import importlib.util
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the library of this checkout, whether it is installed or not
RESULTS = ROOT / "benchmarks" / "results"
CONSOLE = Console(width=None if sys.stdout.isatty() else 132)
Call = tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]  # a function, and the arguments to call it with in turn
Rounds = Sequence[Sequence[tuple[Any, ...]]]
FLUSH_BYTES = 256 * 2**20
SLEEP_CYCLES = 2_000_000  # about a millisecond: the host is ahead of the GPU when the timed part begins


PLACES = {
    str(ROOT): "<checkout>",
    sys.prefix: "<python>",
    sys.base_prefix: "<python>",
    tempfile.gettempdir(): "<tmp>",
    str(Path.home()): "~",
}
"""This machine's folders, and what a result calls them."""


@dataclass(frozen=True)
class Measured:
    """One contender's time: median and half the distance between the quartiles, in microseconds a call.

    ``each_us`` are its samples by round where contenders took turns: those of one round were taken in like conditions.
    """

    median_us: float
    spread_us: float
    samples: int
    each_us: Sequence[float] = ()

    def __str__(self) -> str:
        digits = 2 if self.median_us < 100 else 0
        return f"{self.median_us:.{digits}f} ± {self.spread_us:.{digits}f}"


# --- how a script is called, and where it ran ---


def options(
    description: str | None,
    arguments: Sequence[str] | None = None,
    *,
    devices: Sequence[str] = ("cuda", "cpu"),
    more: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
    writes: bool = True,
    by_contest: bool = True,
) -> argparse.Namespace:
    """``--small``, ``--device``, ``--json``; the device is the first of ``devices`` here unless said otherwise.

    ``more`` adds a script's own options. Choices are made ``by_contest`` of device time, within the first call, where a
    script is not about how programs learn, and none comes from the package's tables; the environment may say otherwise.
    """
    os.environ.setdefault("SHAPEDISPATCH_TABLES", "false")
    if by_contest:
        for name, value in (("SHAPEDISPATCH_JUDGE", "contest"), ("SHAPEDISPATCH_REGIME", "stream")):
            os.environ.setdefault(name, value)
    here = [device for device in devices if device == "cpu" or torch.cuda.is_available()]
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--small", action="store_true", help="few and small sizes, for a check that everything runs")
    parser.add_argument("--device", choices=devices, default=here[0])
    if writes:
        told = "where to write the result (default: benchmarks/results/...)"
        parser.add_argument("--json", "--out", dest="json", type=Path, help=told)
    more(parser)
    found = parser.parse_args(arguments)
    if found.device not in here:
        parser.error("no CUDA device is available here; use --device cpu")
    return found


def environment(device: str) -> dict[str, Any]:
    """Where this runs: device, driver, versions, commit, command, date."""
    found = {
        "command": command(sys.argv),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "shapedispatch": own_version(),
        "device": device_name(device),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "triton": version_of("triton"),
        "python": platform.python_version(),
    }
    return found | ({"driver": driver_version()} if device == "cuda" else {})


def command(argv: Sequence[str]) -> str:
    """How to run the script again from the root of a checkout; where its result was written is left out."""
    kept = list(argv[1:])
    for name in ("--json", "--out"):
        if name in kept:
            del kept[kept.index(name) : kept.index(name) + 2]
    kept = [word for word in kept if not word.startswith(("--json=", "--out="))]
    return " ".join(["python", f"benchmarks/{Path(argv[0]).name}", *kept])


def commit() -> str:
    """What COMMIT says; else the commit that is checked out, ``+`` after it where files differ."""
    if "COMMIT" in os.environ:
        return os.environ["COMMIT"]
    try:
        git = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def own_version() -> str:
    """The version that this checkout is or will be: the one that its changelog tells of first."""
    found = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    return found[1] if found else "unknown"


def device_name(device: str) -> str:
    """The GPU's name, or ``CPU``."""
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found[1].strip() if found else platform.processor() or platform.machine()


def driver_version() -> str:
    """The NVIDIA driver's version, where ``nvidia-smi`` tells it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def version_of(package: str) -> str:
    """The version of a package, or ``not installed``."""
    if importlib.util.find_spec(package) is None:
        return "not installed"
    return str(importlib.import_module(package).__version__)


def banner(device: str) -> dict[str, Any]:
    """Print the environment; return it."""
    found = environment(device)
    for name, value in found.items():
        CONSOLE.print(f"[bold]{name:>8}[/bold]  {value}", highlight=False)
    return found


def fresh(fn: Callable[..., Any]) -> types.FunctionType:
    """A copy of a function with a code object of its own: Dynamo keeps what it compiled by code object."""
    copy = types.FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    copy.__annotations__ = fn.__annotations__
    return copy


# --- measuring ---


def summary(samples: Sequence[float]) -> Measured:
    """Median and half the distance between the quartiles."""
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    return Measured(statistics.median(samples), (quartiles[2] - quartiles[0]) / 2, len(samples))


def host_contest(contenders: Mapping[str, Call], *, calls: int = 2000, loops: int = 9) -> dict[str, Measured]:
    """Host time a call: in each loop every contender makes ``calls`` calls, so that a slow moment hits all of them.

    A contender is a function and the argument tuples to call it with in turn.
    """
    for fn, arguments in contenders.values():
        host_loop(fn, arguments, max(1, calls // 10))
    return interleaved({name: functools.partial(host_loop, *call, calls) for name, call in contenders.items()}, loops)


def interleaved(samplers: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Measured]:
    """One sample of every contender in each round, in microseconds; the order is turned from round to round.

    Before each the device is waited for: what one contender left it to do is nothing that the next should wait for.
    """
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    for index in range(rounds):
        for name in rotated(samplers, index):
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            samples[name].append(samplers[name]())
    return {name: replace(summary(found), each_us=found) for name, found in samples.items()}


def host_loop(fn: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], calls: int) -> float:
    """Microseconds a call over at least ``calls`` calls, whole rounds through ``arguments``; no garbage collection."""
    rounds = [list(arguments)] * max(1, -(-calls // len(arguments)))
    collecting = gc.isenabled()
    gc.disable()
    elapsed = ns_of_launches(fn, rounds) if isinstance(fn, GridBound) else ns_of_calls(fn, rounds)
    if collecting:
        gc.enable()
    return elapsed / 1e3 / (len(rounds) * len(arguments))


def ns_of_calls(fn: Callable[..., Any], rounds: Rounds) -> int:
    """Nanoseconds of ``fn(...)``, all together."""
    start = time.perf_counter_ns()
    for turn in rounds:
        for args in turn:
            fn(*args)
    return time.perf_counter_ns() - start


@dataclass(frozen=True)
class GridBound:
    """A kernel that is called as Triton kernels are. A loop launches it itself: a function between would cost, too."""

    kernel: Any
    grid: tuple[int, ...]

    def __call__(self, *args: Any) -> Any:
        """Launch it once."""
        return self.kernel[self.grid](*args)


def ns_of_launches(fn: GridBound, rounds: Rounds) -> int:
    """Nanoseconds of ``kernel[grid](...)``, all together."""
    kernel, grid = fn.kernel, fn.grid
    start = time.perf_counter_ns()
    for turn in rounds:
        for args in turn:
            kernel[grid](*args)
    return time.perf_counter_ns() - start


def event_contest(contenders: Mapping[str, Callable[[], Any]], *, rounds: int = 60) -> dict[str, Measured]:
    """GPU time of one call, by events, with the L2 cache flushed before each and the host well ahead."""
    for fn in contenders.values():
        for _ in range(3):
            fn()
    marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in contenders}
    buffer = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for index in range(rounds):
        for name in rotated(contenders, index):
            marks[name].append(event_pair(contenders[name], buffer))
        torch.cuda.synchronize()
    return {name: summary([a.elapsed_time(b) * 1e3 for a, b in found]) for name, found in marks.items()}


def event_pair(fn: Callable[[], Any], buffer: torch.Tensor | None = None) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Flush by writing the buffer, then one call between two events, all in the queue before the device gets there."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if hasattr(torch.cuda, "_sleep"):  # private: without it a call slower to launch than to run is timed with its host
        torch.cuda._sleep(SLEEP_CYCLES)
    if buffer is not None:
        buffer.zero_()
    first.record()
    fn()
    last.record()
    return first, last


def graph_contest(
    contenders: Mapping[str, Callable[[], Any]], *, unroll: int = 32, rounds: int = 30
) -> tuple[dict[str, Measured], dict[str, str]]:
    """GPU time of one call inside a CUDA graph of ``unroll`` calls, caches warm; and why some could not be captured.

    For kernels of a few microseconds: neither launch nor event resolution is in the number.
    """
    graphs, refused = {}, {}
    for name, fn in contenders.items():
        try:
            graphs[name] = captured(fn, unroll)
        except RuntimeError as error:
            refused[name] = str(error).split("\n")[0]
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for index in range(rounds):
        for name in rotated(graphs, index):
            first, last = event_pair(graphs[name].replay)
            last.synchronize()
            samples[name].append(first.elapsed_time(last) * 1e3 / unroll)
    return {name: summary(found) for name, found in samples.items()}, refused


def captured(fn: Callable[[], Any], unroll: int) -> torch.cuda.CUDAGraph:
    """A graph of ``unroll`` calls, replayed once."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            fn()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(unroll):
            fn()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def contest(contenders: Mapping[str, Callable[[], Any]], device: str, *, small: bool) -> dict[str, Measured]:
    """``event_contest`` on a GPU; on a CPU host time, each contender called for about 20 ms a loop."""
    if device == "cuda":
        return event_contest(contenders, rounds=15 if small else 60)
    slowest = max(host_loop(fn, [()], 3) for fn in contenders.values())
    calls = max(1, min(2000, int(20_000 / slowest)))
    return host_contest({name: (fn, [()]) for name, fn in contenders.items()}, calls=calls, loops=9)


def rotated(names: Iterable[str], by: int) -> list[str]:
    """The names, begun at another one each time."""
    ordered = list(names)
    return list(itertools.islice(itertools.cycle(ordered), by % len(ordered), by % len(ordered) + len(ordered)))


def kernels(fn: Callable[[], Any]) -> list[str]:
    """The names of the CUDA kernels that one call launches, in order of start; copies and fills by the driver are none.

    Read from the exported trace, where a kernel is told apart from the annotated ranges around it.
    """
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    fn()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        fn()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    launched = [event for event in events if event.get("cat") == "kernel"]
    return [event["name"] for event in sorted(launched, key=lambda event: event["ts"])]


# --- telling ---


def ratio(one: Measured, other: Measured) -> float:
    """How many times ``other`` the time ``one`` is: the median of the rounds' ratios where they took turns."""
    if len(one.each_us) > 1 and len(one.each_us) == len(other.each_us):
        return statistics.median(a / b for a, b in zip(one.each_us, other.each_us, strict=True))
    return one.median_us / other.median_us


def excess_us(one: Measured, other: Measured) -> float:
    """How much longer ``one`` takes than ``other``: the median of the rounds' differences where they took turns."""
    if len(one.each_us) > 1 and len(one.each_us) == len(other.each_us):
        return statistics.median(a - b for a, b in zip(one.each_us, other.each_us, strict=True))
    return one.median_us - other.median_us


def verdict(value: float, bar: float) -> str:
    """``value`` against the most it may be."""
    return f"{value:.3f} of at most {bar:g}: {'holds' if value <= bar else 'MISSED'}"


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; cells are text or become it."""
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    CONSOLE.print(table)


def write(
    script: str, found: Mapping[str, Any], ran_on: Mapping[str, Any], chosen: argparse.Namespace, *, part: str = ""
) -> Path:
    """Write the result beside its environment; return the path. ``part`` tells several results of a script apart."""
    name = f"{Path(script).stem}-{slug(ran_on['device'])}{part and f'-{part}'}{'-small' if chosen.small else ''}.json"
    path = chosen.json or RESULTS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(without_places({"environment": dict(ran_on), **found}), indent=1, default=plain_json)
    path.write_text(text + "\n", encoding="utf-8")
    CONSOLE.print(f"written: {path}", highlight=False)
    return path


def slug(text: object) -> str:
    """``nvidia-h100``: a name as a part of a file's."""
    return re.sub(r"[^a-z0-9]+", "-", str(text).lower()).strip("-")


def without_places(value: Any) -> Any:
    """The same with every text rid of this machine's folders: a reason for a refusal may quote them."""
    if isinstance(value, str):
        for folder in sorted(PLACES, key=len, reverse=True):  # a checkout in somebody's home is a checkout
            value = value.replace(folder, PLACES[folder]) if len(folder) > 1 else value
        return value
    if isinstance(value, Mapping):
        return {name: without_places(inner) for name, inner in value.items()}
    return [without_places(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def plain_json(value: Any) -> Any:
    """What JSON has no word for: measurements as mappings, anything else as text."""
    return asdict(value) if isinstance(value, Measured) else without_places(str(value))
