"""Does a hit on what another process has compiled cost more than one on what was compiled here?

Four functions, each twice with a number of its own, so that nothing is shared: one built within its first call
(learn = "now"), one built by another process and loaded (learn = "background"). Both are called until they run the
hint's build, no hit is a sample, and it is asked who has built it. Then the numbers are exchanged, and all is done
again. Nothing is autotuned, which another process would not do. Calls in turn, by host time; on a GPU few calls a loop,
so that no launch waits for the device.
Bar: a loaded build's hit takes no more than 1.02 of the other's, by the median over functions and both ways round.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from common import CONSOLE, Measured, banner, host_contest, options, print_table, ratio, verdict, write
from torch import Tensor

SOURCES = {
    "pointwise": "def {name}(x, w):\n    return (x.square() * {number} + x.abs() + w).neg().relu().square() - w",
    "norm": "def {name}(x, w):\n    return x * (x.square().mean(-1, keepdim=True) + {number}).rsqrt() * w + x.abs()",
    "product": "def {name}(x, w):\n    y = x @ w.T\n    return (y.relu().square() * {number} + y.abs()).neg() + x * y",
    "two results": "def {name}(x, w):\n    y = (x * {number} + w).abs().neg().relu()\n    return y.square() + w, y + x",
}
NUMBERS = 1.25, 2.5
HERE, LOADED = "built here", "loaded"
RATIO = "loaded / built here"
LEARN = {HERE: "now", LOADED: "background"}
DEFAULTS = "[defaults]\nearn = 0\nretime = 0\nstore = false\ngraphs = false\n"
ROWS, WIDTH, HINT = 48, 64, 64
WANTED, MOST_CALLS = f"hint[M={HINT}]", 20_000
LOOPS, SMALL_LOOPS, CALLS, CALLS_ON_GPU = 101, 5, 2000, 200
BAR = 1.02

Found = dict[str, dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    chosen = options(__doc__, arguments, by_contest=False)
    if chosen.device == "cpu":
        torch.set_num_threads(1)
    where = banner(chosen.device)
    x, w = (torch.randn(rows, WIDTH, device=chosen.device) for rows in (ROWS, WIDTH))
    found: Found = {}
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings, torch.no_grad():
        settings.write(DEFAULTS + "".join(map(section, all_of())))
        settings.flush()
        os.environ["SHAPEDISPATCH_SETTINGS"] = settings.name
        for source in SOURCES:
            for way in (NUMBERS, NUMBERS[::-1]):
                given = x, (w if source == "product" else w[:1])
                pair = [Made(source, how, number) for how, number in zip(LEARN, way, strict=True)]
                found[f"{source}, {'as said' if way is NUMBERS else 'exchanged'}"] = compared(pair, given, chosen.small)
    tell(found)
    write(__file__, {"functions": found, "ratio": median_of(found)}, where, chosen)
    return 0


@dataclass(frozen=True)
class Made:
    """A function of one of the sources, and how it comes to its build."""

    source: str
    how: str
    number: float

    def __str__(self) -> str:
        return re.sub(r"\W", "_", f"{self.source} {self.how} {self.number}")


def all_of() -> Iterator[Made]:
    """Each that may be made."""
    return itertools.starmap(Made, itertools.product(SOURCES, LEARN, NUMBERS))


def section(made: Made) -> str:
    """Its settings."""
    return f'[kernels."{made}"]\nlearn = "{LEARN[made.how]}"\n'


def compared(pair: Sequence[Made], given: tuple[Tensor, ...], small: bool) -> dict[str, Any]:
    """Hits on both builds of one function."""
    contenders = {made.how: (dispatched(made, given), [given]) for made in pair}
    calls, loops = CALLS_ON_GPU if given[0].is_cuda else CALLS, SMALL_LOOPS if small else LOOPS
    times = host_contest(contenders, calls=calls, loops=loops)
    return {"us": times, RATIO: ratio(times[LOADED], times[HERE])}


def dispatched(made: Made, given: tuple[Tensor, ...]) -> Callable[..., Any]:
    """The function, which has come to its build."""
    from shapedispatch import shapedispatch  # once the file of settings is there
    from shapedispatch.background import orders

    scope: dict[str, Any] = {"__name__": str(made), "torch": torch}
    exec(SOURCES[made.source].format(name=made, number=made.number), scope)
    plain, before = scope[str(made)], sum(each.built for each in orders._shared.values())
    fn = shapedispatch(plain, dims={"x": "M _"}, hints=(HINT,), name=str(made), options={})
    for _ in range(MOST_CALLS):
        torch.testing.assert_close(fn(*given), plain(*given), rtol=1e-4, atol=1e-5)
        fn.wait()
        choice = fn.explain(*given)
        if choice.variant == WANTED and choice.origin == "timed":
            break
    built = sum(each.built for each in orders._shared.values()) - before
    if choice.variant != WANTED or built != (made.how == LOADED):
        raise SystemExit(f"{made}, of which other processes have built {built}:\n{choice}")
    return fn  # type: ignore[no-any-return]  # as it was decorated


def median_of(found: Found) -> float:
    """Of all functions, both ways round."""
    return statistics.median(one[RATIO] for one in found.values())


def tell(found: Found) -> None:
    """A table, and the bar."""
    columns = ("", f"{HERE} us", f"{LOADED} us", RATIO)
    rows = [(name, *map(shown, one["us"].values()), f"{one[RATIO]:.3f}") for name, one in found.items()]
    print_table("hits", columns, rows)
    CONSOLE.print(f"loaded / built here, median: {verdict(median_of(found), BAR)}")


def shown(time: Measured) -> str:
    """A time and its spread."""
    return f"{time.median_us:.3f} ± {time.spread_us:.3f}"


if __name__ == "__main__":
    raise SystemExit(main())
