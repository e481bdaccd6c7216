"""What a call does beside returning its value."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Effects"]


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one class of calls, as Dynamo and AOTAutograd see them.

    ``writes`` names the arguments written. ``elsewhere`` has a sentence for each thing written that is no argument.
    ``collectives`` are the operations that other ranks take part in. ``reads_state`` is true where the function reads
    tensors that are no arguments, such as parameters.
    """

    writes: frozenset[str] = frozenset()
    elsewhere: tuple[str, ...] = ()
    collectives: tuple[str, ...] = ()
    reads_state: bool = False
