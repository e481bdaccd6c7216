"""Several pieces of code that run one after the other in place of one: what each is given, and what is kept for whom.

Values are numbered: first what the whole is given, then what each piece makes, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["MadeOf", "Plan", "Step"]

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One piece: the numbers of the values that it is given, how many it makes, and which nobody needs after it."""

    takes: tuple[int, ...]
    makes: int
    frees: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MadeOf:
    """Of what the results of a piece are made that have a gradient, where these have one backward.

    ``inputs`` says of each input whether they are made of it, all of them; ``results``, of each of what the piece
    makes, of which others it is made.
    """

    inputs: tuple[bool, ...]
    results: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The pieces, and the numbers of the values that are the results of the whole."""

    steps: tuple[Step, ...]
    results: tuple[int, ...]

    @classmethod
    def of(cls, inputs: int, steps: Sequence[tuple[Sequence[int], int]], results: Sequence[int]) -> Plan:
        """With what each step takes and makes, and so many inputs of the whole: what is made is let go in time."""
        last = {value: at for at, (takes, _) in enumerate(steps) for value in takes}
        made = sum(count for _, count in steps)
        left: dict[int, list[int]] = {}
        for value in set(range(inputs + made)) - set(results):
            left.setdefault(last.get(value, len(steps)), []).append(value)
        frees = [tuple(sorted(left.get(at, ()))) for at in range(len(steps))]
        return cls(
            tuple(Step(tuple(takes), count, free) for (takes, count), free in zip(steps, frees, strict=True)),
            tuple(results),
        )

    def joined(self, pieces: Sequence[Run]) -> Run:
        """What runs these, each of which gives a sequence of what it makes."""
        steps, results = [*zip(self.steps, pieces, strict=True)], self.results

        def run(*inputs: Any) -> tuple[Any, ...]:
            values = [*inputs]
            for step, piece in steps:
                values += piece(*[values[number] for number in step.takes])
                for number in step.frees:
                    values[number] = None
            return tuple([values[number] for number in results])

        return run
