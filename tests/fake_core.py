"""A core over a backend of numbers: nothing is compiled, and nothing is timed but on paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shapedispatch.backend import Candidate, Offer
from shapedispatch.dispatch.dispatcher import Core
from shapedispatch.keys.key import Bypass, ambient
from shapedispatch.keys.layout import differences
from shapedispatch.settings.resolve import Resolved, settings
from shapedispatch.shapes.dims import DimsMismatch
from tests.helpers import Ladder, no_time


class Backend:
    """Calls of one number each: the number is the key, and what is offered is what a test says."""

    name = "tests.backend"
    searches = replayable = supplies = False
    arity = 1
    dims = ("M",)
    receiver = None
    overlaps = False

    def __init__(self, *others: str) -> None:
        self.ran: list[str] = []
        self.offers = 0
        self.plain = self.variant("plain")
        self.others: list[Candidate] = []
        self.given: dict[str, Any] = {"written": ()}
        self.bypass = self.misfit = ""
        for name in others:
            self.supply(name)

    def variant(self, name: str) -> Callable[[Any], Any]:
        """A function that notes that it ran, and returns what all of them return."""

        def run(x: Any) -> Any:
            self.ran.append(name)
            return x

        return run

    def supply(self, name: str, **given: Any) -> None:
        """Offer one more variant."""
        self.others.append(Candidate(name, self.variant(name), **given))

    def normal(self, args: Any, kwargs: Any) -> Any:
        """As it is."""
        return args, dict(kwargs)

    @property
    def first(self) -> Callable[[Any], Any]:
        """Plain, and so is ``named``."""
        return self.plain

    named = first

    def sign(self, args: Any, kwargs: Any) -> Any:
        """The number, or why the call is a bypass."""
        return self.bypass or ((ambient(), ("number", args[0])), args, None)

    def key(self, args: Any, kwargs: Any) -> Any:
        """The number, or a bypass."""
        if self.bypass:
            raise Bypass(self.bypass)
        return self.sign(args, kwargs)[0]

    def at_once(self, *asked: Any) -> None:
        """None: there is no capture."""

    def arguments(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """By name."""
        return {"x": args[0]}

    def sizes(self, args: Any, kwargs: Any) -> dict[str, int]:
        """The number, or a misfit."""
        if self.misfit:
            raise DimsMismatch(self.misfit)
        return {"M": args[0]}

    def bucket(self, *asked: Any) -> None:
        """None: each call is timed for itself."""

    def serves(self, build: Any, args: Any, kwargs: Any) -> bool:
        """Nothing is built."""
        return False

    def kin(self, key: Any) -> None:
        """None."""

    def differences(self, key: Any, other: Any) -> tuple[str, ...]:
        """Of keys, for a person."""
        return differences(key, other, ("x",))

    def resized(self, args: Any, kwargs: Any, point: Mapping[str, int]) -> Any:
        """The number set anew."""
        return (point.get("M", args[0]),), dict(kwargs)

    def offer(self, args: Any, kwargs: Any, key: Any, memory: Any, request: Any = None) -> Offer:
        """Plain and the others."""
        self.offers += 1
        return Offer((Candidate("plain", self.plain), *self.others), **self.given)


def resolved(**given: Any) -> Callable[[], Resolved]:
    """The built-in settings with some changed and no store."""
    return lambda: settings().resolve("tests.backend", {"store": False, **given}, override={})


def core_of(backend: Backend, timed: bool = True, inputs: Any = None, **given: Any) -> Core:
    """A core whose stopwatch prefers the last, or that must not time."""
    return Core(backend, resolved(**given), inputs, (lambda *_: Ladder()) if timed else no_time)  # type: ignore[arg-type]


def call(core: Core, x: Any) -> Any:
    """One call in normal form."""
    return core.call((x,), {})


def raises(text: str) -> Callable[[Any], Any]:
    """A function that raises a ValueError."""

    def run(x: Any) -> Any:
        raise ValueError(text)

    return run
