"""What does the key of a call cost? The screen and the key of a call with two tensors, in pure Python: at most 3 us.

    taskset -c 1 python benchmarks/key_cost.py --out benchmarks/results/key_cost.json

The best of many repeats of many calls: what the code costs when nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import timeit
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
BAR_US = 3.0


def best_us(fn: Callable[[], object], number: int = 20_000, repeats: int = 60) -> float:
    """Microseconds a call, less what an empty call costs."""
    empty = min(timeit.repeat(lambda: None, number=number, repeat=repeats))
    return (min(timeit.repeat(fn, number=number, repeat=repeats)) - empty) / number * 1e6


def measure() -> dict[str, float]:
    """Each part and the whole, in microseconds."""
    import torch

    from shapedispatch import keys

    torch.set_num_threads(1)
    x, w = torch.ones(16, 32), torch.ones(32, 8)
    two, three, none = (x, w), (x, w, 3), {}
    key = keys.key(two, none)
    table = {key: None}
    return {
        "key of two tensors": best_us(lambda: keys.key(two, none)),
        "key of two tensors and a number": best_us(lambda: keys.key(three, none)),
        "key of a receiver and two tensors": best_us(lambda: keys.key((table, x, w), none, True)),
        "ambient state": best_us(keys.ambient),
        "overlap of two tensors": best_us(lambda: keys.overlap(two, none)),
        "hash and lookup": best_us(lambda: table.get(key)),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    import torch

    found = {name: round(cost, 3) for name, cost in measure().items()}
    for name, cost in found.items():
        print(f"{name:<36} {cost:7.3f} us")
    whole = found["key of two tensors"]
    print(f"bar: {BAR_US} us, {'held' if whole <= BAR_US else 'MISSED'}")
    result = {
        "what": "microseconds a call, best of 60 repeats of 20000",
        "bar_us": BAR_US,
        "us": found,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()},
        "command": "python benchmarks/key_cost.py",
    }
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
