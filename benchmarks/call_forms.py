"""What does a call cost over plain, in whatever form it comes, and whatever is around it?

A function that returns its argument, called by place, by keyword, with a default, through `*args`, `**kwargs` and
keyword-only parameters, under a default device; with a function, an object, a dataclass, a named tuple or a member of
an enumeration beside; with a number or a size that never comes again, with a sparse tensor,
and with an argument that has no key. Plain and ours take turns; each answer is the argument itself.
With hints and exact builds off plain is all that runs: the difference is what a hit costs, or what it costs to say that
there is none. Bars, on the path in C, in microseconds over plain: 3 for a form that has a key, 6 for a number or a size
that never comes again, 60 for what has none.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from common import Measured, banner, excess_us, fresh, host_contest, options, print_table, verdict, write
from torch import Tensor

PLAIN, OURS = "plain", "shapedispatch"
LOOPS, SMALL_LOOPS, CALLS, SMALL_CALLS = 101, 5, 2000, 200
KNOWN_US, NEW_US, KEYLESS_US = 3.0, 6.0, 60.0
WARM_CALLS, MOST_SIZES = 400, 1 << 20
"""Calls before, until numbers and sizes that never come again are no longer looked at; and how many sizes there are."""


def by_place(x: Tensor, y: Any = None) -> Tensor:
    """The first of its arguments."""
    return x


def packed(x: Tensor, *more: Any, **named: Any) -> Tensor:
    """The same."""
    return x


def keyword_only(x: Tensor, *, y: Any = None) -> Tensor:
    """The same."""
    return x


@dataclass
class Options:
    """What a program may hand on."""

    scale: float = 2.0
    name: str = "a"


class Pair(NamedTuple):
    """The same, of tensors."""

    left: Tensor
    right: Tensor


class Kind(enum.Enum):
    """The same, as a word."""

    ONE = 1


@dataclass(frozen=True)
class Form:
    """How a function is called with a tensor, in what, and how much that may take over plain."""

    fn: Callable[..., Tensor]
    call: Callable[[Callable[..., Tensor], Tensor], Tensor]
    bar_us: float = KNOWN_US
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


def forms(device: str) -> dict[str, Form]:
    """All of them; what they are called with besides the tensor is made once."""
    numbers, sparse, keyless = itertools.count(), torch.ones(2, 2).to_sparse(), iter(())
    plain_object, given = SimpleNamespace(scale=2.0, name="a"), Options()
    rows, sizes = torch.ones(MOST_SIZES, device=device), itertools.cycle(range(2, MOST_SIZES))
    return {
        "by place": Form(by_place, lambda fn, x: fn(x, x)),
        "by keyword": Form(by_place, lambda fn, x: fn(x, y=x)),
        "with a default": Form(by_place, lambda fn, x: fn(x)),
        "through *args": Form(packed, lambda fn, x: fn(x, x)),
        "through **kwargs": Form(packed, lambda fn, x: fn(x, y=x)),
        "keyword-only": Form(keyword_only, lambda fn, x: fn(x, y=x)),
        "with a function": Form(by_place, lambda fn, x: fn(x, torch.nn.functional.relu)),
        "with a function of C's": Form(by_place, lambda fn, x: fn(x, torch.relu)),
        "with an object": Form(by_place, lambda fn, x: fn(x, plain_object)),
        "with a dataclass": Form(by_place, lambda fn, x: fn(x, given)),
        "with a named tuple of tensors": Form(by_place, lambda fn, x: fn(x, Pair(x, x))),
        "with a member of an enumeration": Form(by_place, lambda fn, x: fn(x, Kind.ONE)),
        "under a default device": Form(by_place, lambda fn, x: fn(x, x), around=lambda: torch.device(device)),
        "a number that never comes again": Form(by_place, lambda fn, x: fn(x, 0.5 + next(numbers)), NEW_US),
        "a size that never comes again": Form(by_place, lambda fn, x: fn(x, rows[: next(sizes)]), NEW_US),
        "such a size in a list": Form(by_place, lambda fn, x: fn(x, [rows[: next(sizes)]]), NEW_US),
        "such a size by keyword": Form(keyword_only, lambda fn, x: fn(x, y=rows[: next(sizes)]), NEW_US),
        "a sparse tensor": Form(by_place, lambda fn, x: fn(x, sparse), KEYLESS_US),
        "an argument without a key": Form(by_place, lambda fn, x: fn(x, keyless), KEYLESS_US),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    chosen = options(__doc__, arguments, by_contest=False)
    where = banner(chosen.device)
    from shapedispatch.hit import native

    found = {name: compared(form, chosen) for name, form in forms(chosen.device).items()}
    tell(found)
    write(__file__, {"in_c": native.reason() is None, "forms": found}, where, chosen)
    return 0


def compared(form: Form, chosen: argparse.Namespace) -> dict[str, Any]:
    """Plain and ours, called so."""
    from shapedispatch import shapedispatch

    ours = shapedispatch(hints=(), exact=False, store=False)(fresh(form.fn))
    x = torch.ones(4, 4, device=chosen.device)
    with form.around(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that all calls run plain, where they have no key
        for _ in range(WARM_CALLS):
            assert form.call(ours, x) is x
        contenders = {PLAIN: (form.call, [(form.fn, x)]), OURS: (form.call, [(ours, x)])}
        calls, loops = (SMALL_CALLS, SMALL_LOOPS) if chosen.small else (CALLS, LOOPS)
        times: dict[str, Measured] = host_contest(contenders, calls=calls, loops=loops)
    return {"us": times, "over_us": excess_us(times[OURS], times[PLAIN]), "bar_us": form.bar_us}


def tell(found: Mapping[str, dict[str, Any]]) -> None:
    """A table with its bars."""
    columns = ("", f"{PLAIN}, µs", f"{OURS}, µs", "over plain, µs")
    rows = [
        (name, *map(shown, one["us"].values()), verdict(one["over_us"], one["bar_us"])) for name, one in found.items()
    ]
    print_table("a call", columns, rows)


def shown(time: Measured) -> str:
    """A time and its spread."""
    return f"{time.median_us:.3f} ± {time.spread_us:.3f}"


if __name__ == "__main__":
    raise SystemExit(main())
