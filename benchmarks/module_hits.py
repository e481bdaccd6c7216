"""What does a hit cost inside a model, where plain was chosen and where a build was, by the number of submodules?

RMSNorm and MLP (`llama.py`), a block of two of each, and a hundred submodules with a parameter and a float each; four
instances in turn, tiny tensors, no gradients. Contenders, over code of their own and copies of the same weights: plain,
ours with plain chosen, ours with exact chosen, torch.compile(dynamic=False). Then the key and the guards of an exact
build alone, asked in C. Bars: with plain chosen at most 1.5 µs a call more than plain (Python 3.11: 2.5), whatever the
number of submodules; with exact chosen at most 0.30, 0.40 and 0.45 of torch.compile for RMSNorm, MLP and block; key and
guards at most 1.5 µs, on Python 3.11 at most 60 ns for each further submodule.

The floor of a ratio is what no dispatcher can leave out: Inductor's code, and Python's call of a module.

A CPU's times are of one thread, as the system counts them: what other processes took of the core is not in them.
"""

from __future__ import annotations

import argparse
import copy
import gc
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import llama
import torch
from common import (
    CONSOLE,
    Measured,
    banner,
    excess_us,
    fresh,
    host_loop,
    interleaved,
    options,
    print_table,
    ratio,
    summary,
    verdict,
    write,
)
from torch import Tensor, nn

PLAIN, COMPILED = "plain", "torch.compile(dynamic=False)"
OURS = {"plain": "shapedispatch, plain chosen", "exact": "shapedispatch, exact chosen"}
PAIRS = (PLAIN, OURS["plain"]), (OURS["exact"], COMPILED)
KEY, GUARDS, NOW_AND_THEN = "key and lookup", "guards", "guards now and then, plain chosen"
BUILD, EMPTY = "the build alone", "a module that returns its argument"
LARGEST = "100 submodules"
INSTANCES = 4
SAMPLE_US, SMALL_SAMPLE_US = 2_500, 1_000  # about as long is a sample of the slower contender
ROUNDS, ROUNDS_ASKED, SMALL_ROUNDS = 1601, 201, 15
RATIO_BARS = {"RMSNorm": 0.30, "MLP": 0.40, "block": 0.45}
BY_LOOKING = sys.version_info < (3, 12)
"""Whether Python has no watchers of dicts: each submodule is then looked at."""
PLAIN_BAR_US = 2.5 if BY_LOOKING else 1.5
ASKED_BAR_US, SUBMODULE_BAR_NS = 1.5, 60.0

SMALLEST = llama.Config(vocabulary=8, hidden=8, inner=16, layers=1, heads=1, shared_heads=1)
SHAPE = (1, 4, SMALLEST.hidden)


class Block(nn.Module):
    """Two norms and two MLPs, as a layer has them."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([norm() for _ in range(2)])
        self.mlps = nn.ModuleList([llama.MLP(SMALLEST) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        """``x`` (B, T, C); the same shape."""
        x = x + self.mlps[0](self.norms[0](x))
        return x + self.mlps[1](self.norms[1](x))


class Empty(nn.Module):
    """What Python takes to call a module."""

    def forward(self, x: Tensor) -> Tensor:
        """Its argument."""
        return x


class Scale(nn.Module):
    """A parameter and a float."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.gain = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """``x`` of any shape; the same."""
        return x * self.weight * self.gain


class Chain(nn.Module):
    """Many submodules, one after the other."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.scales = nn.ModuleList([Scale() for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        """``x`` of any shape; the same."""
        for scale in self.scales:
            x = scale(x)
        return x


def norm() -> nn.Module:
    """As the decoder has it."""
    return llama.RMSNorm(SMALLEST.hidden, SMALLEST.eps)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "RMSNorm": norm,
    "MLP": lambda: llama.MLP(SMALLEST),
    "block": Block,
    LARGEST: lambda: Chain(100),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments, more=own_options)
    os.environ["SHAPEDISPATCH_STORE"] = "false"  # nothing is read from earlier runs
    if chosen.device == "cpu":
        torch.set_num_threads(1)
    ran_on = banner(chosen.device)
    from shapedispatch.hit import native

    CONSOLE.print(f"guards in {'C' if native.reason() is None else f'Python: {native.reason()}'}", highlight=False)
    found: dict[str, Any] = {"hotpath_reason": native.reason(), "by_looking": BY_LOOKING, "modules": {}}
    # At the limit torch.compile would fall back to eager.
    with torch.no_grad(), torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for name in chosen.module or MODULES:
            found["modules"][name] = measured(name, chosen)
            write(__file__, told(found), ran_on, chosen)  # a run that is cut off leaves what it has
    show(found)


def told(found: Mapping[str, Any]) -> dict[str, Any]:
    """The result without its thousands of samples, which the bars were computed from."""
    bars_held = bars(found["modules"])

    def short(times: Mapping[str, Measured] | None) -> dict[str, Measured] | None:
        return times and {name: replace(time, each_us=()) for name, time in times.items()}

    modules = {
        name: one | {part: short(one[part]) for part in ("times", "asked")} for name, one in found["modules"].items()
    }
    return {**found, "modules": modules, "bars": bars_held}


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--module", action="append", choices=MODULES, help="this one; may be repeated", metavar="NAME")


def measured(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """One module: its contenders, then what a hit of its exact build asks."""
    x = torch.randn(SHAPE, device=chosen.device)
    made = contenders(name, chosen.device)
    with CONSOLE.status(f"{name}: compiling"):
        check(name, made, x)
    submodules = sum(1 for _ in made[PLAIN][0].modules())
    times = {}
    for pair in PAIRS:  # what is compared takes turns with nothing else: four in turn push each other out of the caches
        turns = {one: (called, [(module, x) for module in made[one]]) for one in pair}
        times |= contest(turns, chosen, ROUNDS)
    asked = questions({variant: made[one] for variant, one in OURS.items()}, x)
    found = contest(asked, chosen, ROUNDS_ASKED) if asked else None
    return {"submodules": submodules, "times": times, "asked": found}


def called(module: nn.Module, x: Tensor) -> Any:
    """As a model calls it."""
    return module(x)


def contenders(name: str, device: str) -> dict[str, list[nn.Module]]:
    """The instances of each: the same weights, under a class of its own whose ``forward`` is wrapped."""
    from shapedispatch import shapedispatch

    def chosen(variant: str) -> Callable[..., Any]:
        # What is timed is this variant, whatever happens to win at so small a size.
        return shapedispatch(exact=True, hints=(), objective=lambda timing: float(timing.variant != variant))

    ways: dict[str, Callable[..., Any]] = {
        PLAIN: lambda forward: forward,
        **{one: chosen(variant) for variant, one in OURS.items()},
        COMPILED: lambda forward: torch.compile(forward, dynamic=False),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        instances = [MODULES[name]().to(device) for _ in range(INSTANCES)]
    return {one: twins(instances, way) for one, way in ways.items()}


def twins(instances: Sequence[nn.Module], way: Callable[..., Any]) -> list[nn.Module]:
    """Copies of a class of their own, whose ``forward`` has code of its own."""
    cls = type(instances[0])
    own = type(cls.__name__, (cls,), {"forward": way(fresh(cls.forward))})
    made = [copy.deepcopy(module) for module in instances]
    for module in made:
        module.__class__ = own
    return made


def check(name: str, made: Mapping[str, Sequence[nn.Module]], x: Tensor) -> None:
    """Every contender gives plain's answer with each instance, and ours runs what it is to run; hits from here on."""
    for one, modules in made.items():
        for _ in range(3):
            for module, plain in zip(modules, made[PLAIN], strict=True):
                told = f"{name}, {one}: "
                torch.testing.assert_close(module(x), plain(x), msg=lambda text, told=told: told + text)
    for variant, one in OURS.items():
        runs = type(made[one][0]).forward.explain(made[one][0], x).variant
        if runs != variant:
            raise RuntimeError(f"{name}: {runs} runs where {variant} was to be measured")


def questions(ours: Mapping[str, Sequence[nn.Module]], x: Tensor) -> dict[str, Any]:
    """Key with lookup, and guards, as a hit in C asks them, and the build past both; nothing where C is not in use."""
    cores: dict[str, Any] = {variant: type(modules[0]).forward.core for variant, modules in ours.items()}  # type: ignore[attr-defined]  # dispatchers
    if any(core.fast_path is None for core in cores.values()):
        return {}
    calls = {variant: [((module, x), {}) for module in modules] for variant, modules in ours.items()}
    entries = {variant: entry for variant, core in cores.items() for _, entry in core.table.entries()}
    for variant, core in cores.items():
        if not all(core.fast_path.find(*call) is not None and entries[variant].check(*call) for call in calls[variant]):
            raise RuntimeError(f"not what was to be measured: the calls of {variant} are no hits")
    return {
        KEY: (cores["exact"].fast_path.find, calls["exact"]),
        GUARDS: (entries["exact"].check, calls["exact"]),
        NOW_AND_THEN: (entries["plain"].check, calls["plain"]),
        BUILD: (entries["exact"].run, [args for args, _ in calls["exact"]]),
        EMPTY: (called, [(Empty(), x)] * INSTANCES),
    }


# --- time ---


def contest(turns: Mapping[str, Any], chosen: argparse.Namespace, rounds: int) -> dict[str, Measured]:
    """Samples in turn, short and many: what is asked for is how far contenders are apart."""
    sample_us = SMALL_SAMPLE_US if chosen.small else SAMPLE_US
    slowest = max(host_loop(fn, calls, 20) for fn, calls in turns.values())
    count = max(INSTANCES, int(sample_us / slowest) // INSTANCES * INSTANCES)
    sample = cpu_sample if chosen.device == "cpu" else host_loop
    samplers = {
        name: lambda fn=fn, calls=calls: sample(fn, calls, count)  # type: ignore[misc]  # mypy guesses the arguments
        for name, (fn, calls) in turns.items()
    }
    return interleaved(samplers, SMALL_ROUNDS if chosen.small else rounds)


def cpu_sample(fn: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], calls: int) -> float:
    """As `common.host_loop`, in time of this thread: microseconds a call."""
    rounds = [list(arguments)] * max(1, calls // len(arguments))
    collecting = gc.isenabled()
    gc.disable()
    start = time.thread_time_ns()
    for turn in rounds:
        for args in turn:
            fn(*args)
    elapsed = time.thread_time_ns() - start
    if collecting:
        gc.enable()
    return elapsed / 1e3 / (len(rounds) * len(arguments))


# --- what follows ---


def bars(modules: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was measured, each beside its bar, if it has one."""
    held: list[dict[str, Any]] = []
    for name, one in modules.items():
        times, asked = one["times"], one["asked"]
        more = excess_us(times[OURS["plain"]], times[PLAIN])
        what, error = f"{name}: plain chosen, µs more than plain", error_us(times[OURS["plain"]], times[PLAIN])
        held.append({"what": what, "measured": more, "at most": PLAIN_BAR_US, "standard error": error})
        share = ratio(times[OURS["exact"]], times[COMPILED])
        what = f"{name}: exact chosen / torch.compile"
        held.append({"what": what, "measured": share, "at most": RATIO_BARS.get(name)})
        if asked:
            least = asked[BUILD].median_us / times[COMPILED].median_us
            held.append({"what": f"{name}: {BUILD} / torch.compile", "measured": least, "at most": None})
            floor = least + asked[EMPTY].median_us / times[COMPILED].median_us
            held.append({"what": f"{name}: it and {EMPTY} / torch.compile", "measured": floor, "at most": None})
            both = asked[KEY].median_us + asked[GUARDS].median_us
            bar = None if BY_LOOKING else ASKED_BAR_US
            held.append({"what": f"{name}: key and guards, µs", "measured": both, "at most": bar})
    if BY_LOOKING and len(modules) > 1 and all(one["asked"] for one in modules.values()):
        held.append({"what": "a submodule's guards, ns", "measured": growth_ns(modules), "at most": SUBMODULE_BAR_NS})
    return held


def error_us(one: Measured, other: Measured) -> float:
    """Standard error of a median of differences, by their quartiles."""
    found = summary([a - b for a, b in zip(one.each_us, other.each_us, strict=True)])
    return 1.253 * found.spread_us / 0.6745 / math.sqrt(found.samples)


def growth_ns(modules: Mapping[str, Mapping[str, Any]]) -> float:
    """Of the guards, from the module with the fewest submodules to that with the most; nanoseconds for each."""
    by_size = sorted(modules.values(), key=lambda one: one["submodules"])
    few, many = by_size[0], by_size[-1]
    more = many["asked"][GUARDS].median_us - few["asked"][GUARDS].median_us
    return float(more * 1e3 / (many["submodules"] - few["submodules"]))


def show(found: Mapping[str, Any]) -> None:
    """Two tables, and the bars."""
    for title, part in (("µs a call", "times"), ("asked at a hit of an exact build, µs", "asked")):
        parts = {name: one[part] for name, one in found["modules"].items() if one[part]}
        names = list(next(iter(parts.values()), {}))
        print_table(title, ("module", *names), [(name, *times.values()) for name, times in parts.items()])
    for one in bars(found["modules"]):
        said = f"{one['measured']:.3f}" if one["at most"] is None else verdict(one["measured"], one["at most"])
        error = f" (± {one['standard error']:.2f})" if "standard error" in one else ""
        CONSOLE.print(f"{one['what']}{error}: {said}", highlight=False)


if __name__ == "__main__":
    main()
