"""What a call does beside returning a value: what it writes, and what else is to be known of that."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Beside", "Effects"]


@dataclass(frozen=True, slots=True)
class Beside:
    """Of a graph's inputs, by place: arguments that are ``written``, and ``others``, tensors that are no arguments.

    Each of those with the bytes from its first element to the end of its last; None where calls differ in them.
    """

    written: tuple[int, ...] = ()
    others: tuple[tuple[int, int | None], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.written and self.others)


@dataclass(frozen=True, slots=True)
class Effects:
    """What one class of calls, or one compiled kernel, does beside returning a value.

    ``mutated`` names the arguments written, None where any may be. ``other_writes`` has a sentence for each thing
    written that is no argument. ``collectives`` are the operations that other ranks take part in. ``beside`` is what
    of a graph's inputs is written, and what are no arguments, such as parameters. ``counts`` is true where a number is
    among the rest that is another after each call. Where something could not be found out, ``unknown`` says why.
    """

    mutated: frozenset[str] | None = frozenset()
    other_writes: tuple[str, ...] = ()
    collectives: tuple[str, ...] = ()
    beside: Beside = Beside()
    unknown: str = ""
    counts: bool = False

    def why_no_builds(self) -> str | None:
        """Why nothing that does this is compiled, if so: compiled code may do it in another order, or not at all."""
        if self.mutated is None or self.unknown:
            return self.unknown
        if self.other_writes:
            return self.other_writes[0]
        return "it performs collectives" if self.collectives else None

    def __or__(self, other: Effects) -> Effects:
        return Effects(
            None if self.mutated is None or other.mutated is None else self.mutated | other.mutated,
            tuple(dict.fromkeys(self.other_writes + other.other_writes)),
            tuple(dict.fromkeys(self.collectives + other.collectives)),
            self.beside or other.beside,
            self.unknown or other.unknown,
            self.counts or other.counts,
        )
