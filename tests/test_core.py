from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from shapedispatch import MissError, NoVariantError
from shapedispatch.backends import Candidate, Offer
from shapedispatch.core import Core
from shapedispatch.dims import Misfit
from shapedispatch.keys import Bypass, ambient, differences
from shapedispatch.records import Refusal
from shapedispatch.settings import Resolved, settings
from tests.helpers import Ladder, no_time


class Backend:
    """Calls of one number each: the number is the key, and what is offered is what a test says."""

    name = "tests.backend"
    searches = False
    arity = 1

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.offers = 0
        self.plain = self.variant("plain")
        self.others: list[Candidate] = []
        self.given: dict[str, Any] = {"written": ()}
        self.bypass = self.misfit = ""

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

    def key(self, args: Any, kwargs: Any) -> Any:
        """The number, or a bypass."""
        if self.bypass:
            raise Bypass(self.bypass)
        return (ambient(), ("number", args[0]))

    def arguments(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """By name."""
        return {"x": args[0]}

    def sizes(self, args: Any, kwargs: Any) -> dict[str, int]:
        """The number, or a misfit."""
        if self.misfit:
            raise Misfit(self.misfit)
        return {"M": args[0]}

    def differences(self, key: Any, other: Any) -> tuple[str, ...]:
        """Of keys, for a person."""
        return differences(key, other, ("x",))

    def resized(self, args: Any, kwargs: Any, point: Mapping[str, int]) -> Any:
        """The number set anew."""
        return (point.get("M", args[0]),), dict(kwargs)

    def offer(self, args: Any, kwargs: Any, key: Any, memory: Any, wish: Any = None) -> Offer:
        """Plain and the others."""
        self.offers += 1
        return Offer((Candidate("plain", self.plain), *self.others), **self.given)


def resolved(**given: Any) -> Callable[[], Resolved]:
    """The built-in settings with some changed and no store."""
    return lambda: settings().resolve("tests.backend", {"store": False, **given}, override={})


@pytest.fixture
def backend() -> Backend:
    """A backend that offers plain and one other."""
    backend = Backend()
    backend.supply("other")
    return backend


def core_of(backend: Backend, timed: bool = True, inputs: Any = None, **given: Any) -> Core:
    """A core whose stopwatch prefers the last, or that must not time."""
    return Core(backend, resolved(**given), inputs, (lambda *_: Ladder()) if timed else no_time)  # type: ignore[arg-type]


def call(core: Core, x: Any) -> Any:
    """One call in normal form."""
    return core.call((x,), {})


# hit and miss


def test_a_miss_decides_and_a_hit_does_not(backend: Backend) -> None:
    """The first call of a key asks for an offer and times it; the others run the winner, once each."""
    core = core_of(backend)
    assert call(core, 3) == 3
    assert (backend.offers, backend.ran[-1]) == (1, "other")
    backend.ran.clear()
    assert [call(core, 3), call(core, 3)] == [3, 3]
    assert (backend.offers, backend.ran) == (1, ["other", "other"])
    info = core.cache_info()
    assert (info.hits, info.misses, info.timings) == (2, 1, 1)


def test_a_single_candidate_is_not_timed() -> None:
    """There is nothing to compare, and plain runs once."""
    backend = Backend()
    core = core_of(backend, timed=False)
    call(core, 3)
    assert backend.ran == ["plain"]
    assert core.explain(3).origin == "only"


def test_off_runs_plain_and_counts_nothing(backend: Backend) -> None:
    """The key is not even made."""
    backend.bypass = "no key may be made"
    core = core_of(backend, mode="off")
    call(core, 3)
    assert backend.ran == ["plain"]
    assert core.cache_info().bypasses == 0


def test_a_bypass_runs_plain_and_is_counted(backend: Backend) -> None:
    """With its reason, and without a warning; `explain` gives the reason too."""
    backend.bypass = "the moon is full"
    core = core_of(backend, timed=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(core, 3)
        call(core, 4)
    assert backend.ran == ["plain", "plain"]
    assert core.cache_info().bypasses_by_reason == {"the moon is full": 2}
    choice = core.explain(3)
    assert (choice.variant, choice.origin, choice.notes) == ("plain", "bypass", ("the moon is full",))
    assert core.tune(3).origin == "bypass"


def test_a_misfit_runs_plain_with_one_warning(backend: Backend) -> None:
    """However often it comes."""
    backend.misfit = "x has 3 axes"
    core = core_of(backend, timed=False)
    with pytest.warns(UserWarning, match="x has 3 axes") as seen:
        call(core, 3)
    call(core, 4)
    assert len(seen) == 1
    assert backend.ran == ["plain", "plain"]


def test_a_dispatcher_entered_while_it_chooses_runs_plain(backend: Backend) -> None:
    """A function that calls itself, or another dispatcher, does not wait for itself for ever."""
    core = core_of(backend)
    inner = Backend()
    other = core_of(inner)
    backend.others = [Candidate("nested", lambda x: call(other, x))]
    call(core, 3)
    assert other.cache_info().misses == 0 or other.cache_info().bypasses > 0
    assert "another call of this thread is being decided" in other.cache_info().bypasses_by_reason


def test_while_another_thread_decides_plain_runs(backend: Backend) -> None:
    """A call that needs no gradients does not wait."""
    core = core_of(backend)
    inside, go_on = threading.Event(), threading.Event()

    def slow(x: Any) -> Any:
        inside.set()
        assert go_on.wait(10)
        return x

    backend.others = [Candidate("slow", slow)]
    thread = threading.Thread(target=call, args=(core, 3))
    thread.start()
    assert inside.wait(10)
    assert call(core, 3) == 3
    go_on.set()
    thread.join()
    assert core.cache_info().bypasses_by_reason == {"another thread is deciding": 1}
    assert core.explain(3).variant == "slow"


# what cannot be timed


@pytest.mark.parametrize("given", [{"untimed": "it performs collectives", "written": None}])
def test_what_must_not_be_run_again_is_not_timed(backend: Backend, given: dict[str, Any]) -> None:
    """Plain runs once, and the note says why."""
    backend.given = given
    core = core_of(backend, timed=False)
    call(core, 3)
    assert backend.ran == ["plain"]
    assert core.explain(3).notes == ("not timed: it performs collectives",)


def test_under_deterministic_algorithms_the_nearest_hint_is_taken() -> None:
    """Untimed, by log distance."""
    backend = Backend()
    for m in (64, 256):
        backend.supply(f"hint[M={m}]", point={"M": m})
    core = core_of(backend, timed=False)
    torch.use_deterministic_algorithms(True)
    try:
        for m, expected in ((3, "hint[M=64]"), (200, "hint[M=256]"), (127, "hint[M=64]")):
            call(core, m)
            assert (core.explain(m).variant, core.explain(m).origin) == (expected, "nearest")
    finally:
        torch.use_deterministic_algorithms(False)
    assert "plain" not in backend.ran


def test_copies_that_are_too_large_are_not_made() -> None:
    """`copy_limit` of the free memory."""
    backend = Backend()
    backend.supply("other")
    backend.given = {"written": None}
    core = core_of(backend, timed=False, copy_limit=1e-12)
    core.backend.sizes = lambda args, kwargs: {"M": 1}  # type: ignore[method-assign]
    core.backend.key = lambda args, kwargs: (ambient(), "tensor")  # type: ignore[method-assign]
    call(core, torch.ones(1000))
    assert backend.ran == ["plain"]
    assert "copies for timing would take 4000 bytes" in str(core.choices()[0])


# errors


def test_what_a_build_raises_plain_answers() -> None:
    """Where it writes nothing: plain's answer, or plain's error."""
    core = core_with_build()
    call(core, 3)
    [(_, entry)] = core.table.entries()
    entry.run = _raises("the build's")
    assert call(core, 3) == 3
    core.plain = _raises("plain's")
    with pytest.raises(ValueError, match="plain's"):
        call(core, 3)


def core_with_build(**given: Any) -> Core:
    """A core whose backend offers plain and a build that the table holds."""
    backend = Backend()
    backend.supply("build", build="b")
    backend.given |= given
    core = core_of(backend)
    core.table.hold("b", Released())
    return core


class Released:
    """A build with nothing to let go."""

    def release(self) -> None:
        """Nothing."""


def _raises(text: str) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        raise ValueError(text)

    return run


def test_what_a_build_that_writes_raises_is_raised() -> None:
    """Running plain after it would write twice."""
    core = core_with_build(written=("x",))
    call(core, 3)
    [(_, entry)] = core.table.entries()
    entry.run = _raises("the build's")
    with pytest.raises(ValueError, match="the build's"):
        call(core, 3)


def test_plains_error_is_raised_on_the_callers_arguments() -> None:
    """Nothing is remembered of a call that raises."""
    backend = Backend()
    backend.supply("other")
    backend.plain = _raises("plain's")
    core = core_of(backend)
    for _ in range(2):
        with pytest.raises(ValueError, match="plain's"):
            call(core, 3)
    assert core.cache_info().currsize == 0
    assert backend.ran == []


# what is asked


def test_explain_asks_for_no_offer(backend: Backend) -> None:
    """It never runs, builds or times anything."""
    core = core_of(backend, timed=False)
    choice = core.explain(3)
    assert (choice.variant, choice.origin, choice.sizes) == ("plain", "unseen", {"M": 3})
    assert (backend.offers, backend.ran, core.cache_info().misses) == (0, [], 0)


def test_explain_names_what_is_new(backend: Backend) -> None:
    """The parts of the key that differ from the nearest known one."""
    core = core_of(backend)
    call(core, 3)
    assert core.explain(4).new_because == ("x",)
    call(core, 4)
    assert core.explain(4).new_because == ("x",)
    assert core.cache_info().misses_by_reason == {"the first call": 1, "x": 1}


def test_tune_decides_anew(backend: Backend) -> None:
    """Whatever was known."""
    core = core_of(backend)
    core.tune(3)
    backend.supply("third")
    assert core.tune(3).variant == "third"
    call(core, 3)
    assert backend.ran[-1] == "third"


def test_prepare_tunes_every_combination(backend: Backend) -> None:
    """Of a mapping's lists; or each mapping of a list; or the call itself."""
    core = core_of(backend)
    assert [choice.sizes["M"] for choice in core.prepare({"M": (2, 3)}, 1)] == [2, 3]
    assert [choice.sizes["M"] for choice in core.prepare([{"M": 5}, {"M": 4}], 1)] == [5, 4]
    assert [choice.sizes["M"] for choice in core.prepare((), 7)] == [7]
    assert core.cache_info().currsize == 5


def test_prepare_without_arguments_asks_inputs(backend: Backend) -> None:
    """Which makes a call of given sizes."""
    core = core_of(backend, inputs=lambda sizes, like: ((sizes["M"],), {}))
    assert [choice.sizes["M"] for choice in core.prepare({"M": [8, 9]})] == [8, 9]


def test_a_variant_runs_as_asked(backend: Backend) -> None:
    """Also one that would not win."""
    backend.given["aliases"] = {"same": "other"}
    core = core_of(backend, timed=False)
    for name, ran in (("plain", "plain"), ("other", "other"), ("same", "other")):
        assert core.variant(name)(3) == 3
        assert backend.ran[-1] == ran
    assert core.cache_info().currsize == 0


def test_an_unknown_variant_is_an_error_with_four_parts(backend: Backend) -> None:
    """The call, what was tried, why each was refused, what there is."""
    backend.given["refusals"] = (Refusal("exact", ("no compiler",)),)
    with pytest.raises(NoVariantError) as raised:
        core_of(backend).variant("exact")(3)
    text = str(raised.value)
    for part in ("x = 3", "'exact' was asked for", "exact: no compiler", "plain, other"):
        assert part in text


def test_a_pinned_variant_is_taken_untimed(backend: Backend) -> None:
    """By the setting ``pick``, also under the name of an equal one; where it is not offered the others decide."""
    backend.given["aliases"] = {"same": "other"}
    for pick in ("other", "same"):
        core = core_of(backend, timed=False, pick=pick)
        call(core, 3)
        assert (core.explain(3).variant, core.explain(3).origin) == ("other", "pinned")
    core = core_of(backend, pick="nonsense")
    call(core, 3)
    assert core.explain(3).origin == "timed"


def test_one_warning_where_nothing_can_be_built() -> None:
    """At the line of the caller, once."""
    backend = Backend()
    failure = Refusal("exact", ("no compiler",))
    backend.given |= {"refusals": (failure,), "failures": (failure,)}
    core = core_of(backend, timed=False)
    with pytest.warns(UserWarning, match="exact: no compiler") as seen:
        call(core, 3)
    call(core, 4)
    assert [warning.filename for warning in seen] == [__file__]


def test_a_refusal_that_is_a_matter_of_size_is_no_warning() -> None:
    """That a hint takes no size 1 is what everybody expects."""
    backend = Backend()
    backend.given["refusals"] = (Refusal("hint[M=64]", ("too small",)),)
    call(core_of(backend, timed=False), 1)


# frozen modes


@pytest.mark.parametrize("mode", ["frozen", "sealed"])
def test_a_frozen_mode_never_times(backend: Backend, mode: str) -> None:
    """An unknown shape is answered untimed, as ``on_miss`` says."""
    for on_miss in ("nearest", "plain"):
        core = core_of(backend, timed=False, mode=mode, on_miss=on_miss)
        assert call(core, 3) == 3
        assert (core.explain(3).variant, backend.ran) == ("plain", ["plain"])
        backend.ran.clear()
    core = core_of(backend, timed=False, mode=mode, on_miss="error")
    with pytest.raises(MissError) as raised:
        call(core, 3)
    assert "x = 3" in str(raised.value)
    assert "prepare" in str(raised.value) or "tune" in str(raised.value)


def test_frozen_takes_the_nearest_choice(backend: Backend) -> None:
    """Of those that were timed before."""
    core = core_of(backend)
    core.tune(64)
    core._resolve = resolved(mode="frozen")
    core._stopwatch_for = no_time
    core.refresh()
    call(core, 60)
    choice = core.explain(60)
    assert (choice.variant, choice.origin) == ("other", "nearest")
