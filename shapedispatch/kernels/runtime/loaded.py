"""Compiled kernels as the table holds them, and the ways to come by one: compiled, loaded, let go."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...effects import Effects
from ...hit.table import Table
from .compile import compile_all, compiled_already, forget
from .constexpr_copy import static_copy
from .launch import TritonLauncher, capturing, why_not_direct
from .mutation_analysis import effects_of
from .unload import PendingUnload, UnloadQueue

__all__ = ["Build", "Builds", "build_key", "unload_queue"]

unload_queue: UnloadQueue = UnloadQueue(lambda: capturing(), forget)
"""What all dispatchers of the process let go: a capture in one of them keeps the others waiting, too."""


_NOT_BUILT = LookupError("it is not built, and nothing may be compiled now")


@dataclass(slots=True)
class Build:
    """A compiled kernel of the function ``kernel``; ``launch`` is None where Triton launches it, for ``reasons``."""

    kernel: Any
    compiled: Any
    launch: TritonLauncher | None
    device: int
    reasons: tuple[str, ...] = ()

    @property
    def slot(self) -> Hashable:
        """See `build_key`."""
        return build_key(self.compiled, self.device)

    def release(self) -> None:
        """Let go of the compiled kernel and, where it may be, of its module."""
        if self.compiled is None:
            return
        captured = self.launch is not None and self.launch.captured
        pending = PendingUnload(self.kernel, self.compiled, self.device, captured)
        self.compiled = self.launch = None
        unload_queue.let_go(pending)


def build_key(compiled: Any, device: int) -> Hashable:
    """Under what the table holds the build of a compiled kernel: equal for the same code on the same device."""
    return ("kernel", compiled.hash, device)


class Builds:
    """Makes builds of one kernel, and of its copies with constants."""

    def __init__(self, kernel: Any, names: Sequence[str]) -> None:
        self.kernel = kernel
        self.names: list[str] = list(names)
        self._copies: dict[frozenset[str], Any] = {frozenset(): kernel}

    def function(self, static: Collection[str]) -> Any:
        """The kernel with these parameters as constants; itself where there are none."""
        wanted = frozenset(static)
        if wanted not in self._copies:
            self._copies[wanted] = static_copy(self.kernel, sorted(wanted))
        return self._copies[wanted]

    def compiled(
        self, variants: Sequence[Mapping[str, Any]], static: Collection[str], device: int, make: bool = True
    ) -> list[Any]:
        """Compiled kernels for arguments by name, an exception where one does not compile.

        Without ``make`` nothing is compiled or loaded: there is what was loaded already.
        """
        try:
            function = self.function(static)
        except LookupError as error:
            return [error] * len(variants)
        if make:
            return compile_all(function, variants, device)
        held = [compiled_already(function, variant, device) for variant in variants]
        return [_NOT_BUILT if one is None or one.module is None else one for one in held]

    def build(self, compiled: Any, static: Collection[str], device: int, memory: Table) -> Build:
        """The build of a compiled kernel: the one held, or one that is loaded now. Raises what loading raises."""
        fresh = Build(self.function(static), compiled, None, device)
        held = memory.build(fresh.slot)
        if held is not None:
            return held  # type: ignore[no-any-return]  # what this class has put there
        fresh.reasons = tuple(why_not_direct(compiled, self.names))
        if not fresh.reasons:
            fresh.launch = TritonLauncher(compiled)
        return fresh

    @staticmethod
    def effects(compiled: Any, memory: Table, told: Effects | None = None) -> Effects:
        """What a compiled kernel writes, as ``told`` by whoever has compiled it; else read from its IR once."""
        known: Effects | None = memory.facts.effects.get(compiled.hash)
        if known is None:
            known = memory.facts.effects[compiled.hash] = told or effects_of(compiled)
        return known
