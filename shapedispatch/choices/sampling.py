"""What runs hits that may be samples: one thread at a time notes what its call took, and none waits for another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar

from ..backend import Candidate, Offer
from ..interpreter.failures import what_fails
from ..interpreter.locks import TryLock
from ..online.figures import Figures

__all__ = ["CALLED", "FIRST_STEPS", "LAUNCHED", "LAUNCHER", "Sampling", "Way", "unless_missed"]

Way = Callable[[Candidate], Callable[..., Any]]
CALLED: Way = attrgetter("run")
LAUNCHED: Way = attrgetter("run.launch")
"""How a candidate runs: called in normal form, or a kernel's at a hit."""
LAUNCHER: Way = attrgetter("run.launcher")
"""The same for a kernel's at a hit in C; of functions that is `CALLED`."""
FIRST_STEPS = "plain runs the first steps of a program that has backwards"
"""How the note begins that says why nothing else runs yet."""


def unless_missed(figures: Figures, candidate: Candidate, run: Callable[..., Any]) -> Callable[..., Any]:
    """How to run a candidate, by a sample that does not count where the call was no replay of its graph."""
    missed = candidate.missed
    if missed is None:
        return run

    def counted(*args: Any, **kwargs: Any) -> Any:
        before = missed()
        answer = run(*args, **kwargs)
        figures.warm = figures.warm and missed() == before
        return answer

    return counted


class Sampling:
    """Runs each call once, as a sample where it may be one."""

    __slots__ = ()

    judges: ClassVar[bool] = True
    offer: Offer
    _noting: TryLock
    """Held while a call is noted."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the call once: as a sample, or by the best candidate known."""
        return self._ran(CALLED, args, kwargs)

    def launch(self, /, *launch: Any) -> Any:
        """The same for a hit of a kernel."""
        return self._ran(LAUNCHED, launch, {})

    def _ran(self, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._is_unseen():
            return self._seen(way, args, kwargs)
        if self._pauses() or (held := self._noting.take()) is None:
            return self._unsampled_by(self._best(), way, args, kwargs)
        try:
            return self._ran_once(way, args, kwargs)
        finally:
            self._noting.give_back(held)

    def _unsampled_by(self, one: Candidate, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the call by this candidate, or by plain where that raises and may."""
        try:
            return way(one)(*args, **kwargs)
        except what_fails() as error:  # the boundary where a candidate is judged; the reason is kept
            if not self._plain_may_answer(one):
                raise
            self._raised(one, error)
        return way(self.offer.candidates[0])(*args, **kwargs)  # if it raises too, that is the answer

    def _is_unseen(self) -> bool:
        """Whether plain is to run first, so that it is seen what the program does with what a build may keep."""
        return any(one.program is not None and one.program.unseen() for one in self.offer.candidates)

    def why_plain(self) -> list[str]:
        """Why plain runs, whatever is best, if so."""
        programs = (one.program for one in self.offer.candidates if one.program is not None)
        return [f"{FIRST_STEPS}: {far}" for one in programs if (far := one.unseen())][:1]

    def _seen(self, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the call by plain, so that it shows what the program does then."""
        plain = self.offer.candidates[0]
        answer = way(plain)(*args, **kwargs)
        self._ran_by(plain, args, kwargs, answer)
        return answer

    def _ran_by(self, one: Candidate, args: tuple[Any, ...], kwargs: Mapping[str, Any], answer: Any) -> None:
        """Say what plain has run, to those whose backward may need what the program writes then."""
        told = (other.program for other in self.offer.candidates if one.name == "plain")
        for program in dict.fromkeys(program for program in told if program is not None):
            program.plain_ran((args, kwargs), answer)

    def _raised(self, one: Candidate, error: Exception) -> None:
        """Keep why plain answers for this one."""
        raise NotImplementedError

    def _plain_may_answer(self, one: Candidate) -> bool:
        """Whether plain may run a call at which this one has raised: it is a build, and has written nothing."""
        return one.build is not None and self.offer.written is not None and not self.offer.written

    def _pauses(self) -> bool:
        """Whether no call may be a sample now."""
        raise NotImplementedError

    def _best(self) -> Candidate:
        """The best candidate known."""
        raise NotImplementedError

    def _ran_once(self, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the call, by whatever candidate; no other thread notes anything meanwhile."""
        raise NotImplementedError
