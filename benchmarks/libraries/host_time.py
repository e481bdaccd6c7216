"""What do a library's operations cost the host before and after its kernels are behind the dispatcher?

    python -m benchmarks.libraries.host_time liger            # with the library and this checkout on the path

Each operation is run forward and backward on small inputs, in blocks without waiting for the GPU, with the kernels as
the library has them and with their dispatchers in turn; a ratio is the median of the rounds' own. What both give is
compared first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import CONSOLE, RESULTS, environment, print_table, slug, without_places

from .operations import OPERATIONS, Operation
from .wrapping import Wrapped, import_all

ROUNDS, CALLS, WARM = 15, 30, 8
AT_MOST = 0.75
"""The bar: the median of the operations' ratios."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; 1 where a result is another one, or the median ratio is above the bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("library", choices=OPERATIONS)
    parser.add_argument("--json", type=Path, help="where to write the result")
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        CONSOLE.print("host_time launches another package's kernels: it needs a GPU, and there is none here")
        return 0
    package, make = OPERATIONS[chosen.library]
    import_all(package)
    wrapped = Wrapped([package])
    wrapped.update()
    found = {name: measured(run, wrapped, torch.cuda.synchronize) for name, run in make().items()}
    ratios = [one["ratio"] for one in found.values() if one.get("ratio")]
    median = statistics.median(ratios) if ratios else None
    rows = [
        (name, *[one.get(key, "") for key in ("before_us", "after_us", "ratio", "result")])
        for name, one in found.items()
    ]
    print_table(
        f"{package}: host time of an operation", ("operation", "before, µs", "after, µs", "ratio", "result"), rows
    )
    CONSOLE.print(f"median ratio {median}, at most {AT_MOST}")
    ran_on = environment("cuda") | {"command": f"python -m benchmarks.libraries.host_time {chosen.library}"}
    document = {"environment": ran_on, "operations": found, "median": median, "kernels": wrapped.counts()}
    target = chosen.json or RESULTS / f"host_time-{chosen.library}-{slug(ran_on['device'])}.json"
    target.write_text(json.dumps(without_places(document), indent=1) + "\n", "utf-8")
    CONSOLE.print(f"written: {target}", highlight=False)
    return 0 if all(one["result"] == "equal" for one in found.values()) and median and median <= AT_MOST else 1


def measured(
    run: Operation, wrapped: Any, synchronize: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> Mapping[str, Any]:
    """One operation's times, and whether its results are equal; or what it raised."""
    sides = {"before": wrapped.take_off, "after": wrapped.put_on}
    results = {}
    try:
        for side, switch in sides.items():
            switch()
            torch.manual_seed(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in range(WARM):
                    results[side] = [one.detach().clone() for one in run()]
    except Exception as error:  # noqa: BLE001 - an operation that fails is a row of its own
        return {"result": f"{side}: {type(error).__name__}: {str(error)[:200]}"}
    times: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(ROUNDS):
        for side in sorted(sides, reverse=bool(number % 2)):
            sides[side]()
            synchronize()
            started = clock()
            for _ in range(CALLS):
                run()
            times[side].append((clock() - started) / CALLS * 1e6)
    synchronize()
    ratios = [after / before for before, after in zip(times["before"], times["after"], strict=True)]
    return {
        "before_us": round(statistics.median(times["before"]), 2),
        "after_us": round(statistics.median(times["after"]), 2),
        "ratio": round(statistics.median(ratios), 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "result": compared(results["before"], results["after"]),
    }


def compared(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> str:
    """Equal, or the first difference."""
    if len(before) != len(after):
        return f"{len(before)} results before, {len(after)} after"
    for one, other in zip(before, after, strict=True):
        if one.shape != other.shape or not torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True):
            return "another result"
    return "equal"


if __name__ == "__main__":
    sys.exit(main())
