"""What does the key of a call cost? The screen and the key of a call with two tensors, in pure Python: at most 3 µs.

Pin it to one core and run it on a quiet machine: `taskset -c 1 python benchmarks/key_cost.py`. All parts are measured
in turn in each repeat. Quoted are the median with its spread and the least of the repeats, which is what the code costs
when nothing else runs; the bar is about that one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from common import CONSOLE, banner, host_loop, options, print_table, rotated, summary, verdict, write

BAR_US, BAR_OF = 3.0, "key of two tensors"
EMPTY = "an empty call"
CALLS, REPEATS = 20_000, 60
SMALL_CALLS, SMALL_REPEATS = 1_000, 5


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments, devices=("cpu",))
    torch.set_num_threads(1)
    ran_on = banner(chosen.device)
    calls, repeats = (SMALL_CALLS, SMALL_REPEATS) if chosen.small else (CALLS, REPEATS)
    found = measured(parts(), calls, repeats)
    rows = [(name, one["time"], f"{one['least_us']:.3f}") for name, one in found.items()]
    print_table("µs a call, less an empty call", ("part", "median ± half the quartile distance", "least"), rows)
    CONSOLE.print(f"{BAR_OF}, least: {verdict(found[BAR_OF]['least_us'], BAR_US)}", highlight=False)
    write(__file__, {"calls": calls, "bar_us": BAR_US, "bar_of": BAR_OF, "parts": found}, ran_on, chosen)


def parts() -> dict[str, Callable[[], object]]:
    """The whole, and what it consists of; checked to tell calls apart before anything is timed."""
    from shapedispatch.keys import key as keys

    x, w = torch.ones(16, 32), torch.ones(32, 8)
    two, three, none = (x, w), (x, w, 3), {}
    key = keys.key(two, none)
    table = {key: None}
    if keys.key((x.clone(), w.clone()), none) != key or keys.key((x, x), none) == key or keys.key(three, none) == key:
        raise RuntimeError("not what was to be measured: equal calls have two keys, or different ones share one")
    return {
        EMPTY: lambda: None,
        BAR_OF: lambda: keys.key(two, none),
        "key of two tensors and a number": lambda: keys.key(three, none),
        "key of a receiver and two tensors": lambda: keys.key((table, x, w), none, True),
        "ambient state": lambda: keys.ambient(),
        "overlap of two tensors": lambda: keys.overlap(two, none),
        "hash and lookup": lambda: table.get(key),
    }


def measured(contenders: Mapping[str, Callable[[], object]], calls: int, repeats: int) -> dict[str, dict[str, Any]]:
    """Every part in each repeat, less the least that an empty call took."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats):
        for name in rotated(contenders, repeat):
            samples[name].append(host_loop(contenders[name], [()], calls))
    empty_us = min(samples.pop(EMPTY))
    net = {name: [max(0.0, taken - empty_us) for taken in found] for name, found in samples.items()}
    return {name: {"time": summary(found), "least_us": min(found)} for name, found in net.items()}


if __name__ == "__main__":
    main()
