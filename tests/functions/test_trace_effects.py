"""Functions whose calls change what they read, or read what others change: they are not traced at every call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shapedispatch import Variant, shapedispatch
from shapedispatch.functions.builder import MOST_STATES
from shapedispatch.functions.compile import inductor, tracer
from shapedispatch.functions.trace_effects import STATES_A_FAMILY
from shapedispatch.hit import call
from shapedispatch.hit.table import MOST_REPLACEMENTS
from tests.helpers import built

pytestmark = pytest.mark.filterwarnings(r"ignore:(?s).*every variant but plain was refused")

CALLS = 20


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows with each trace."""
    made: list[str] = []
    original = tracer.trace

    def counted(fn: Any, *args: Any, tag: str, **kwargs: Any) -> Any:
        made.append(tag)
        return original(fn, *args, tag=tag, **kwargs)

    monkeypatch.setattr(tracer, "trace", counted)
    return made


@pytest.fixture
def every_call_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hit of plain asks whether the state is the one that it was chosen in, not one in many."""
    monkeypatch.setattr(call, "HITS_PER_CHECK", 0)


def looked_at(fn: Callable[..., Any]) -> Any:
    """A dispatcher that looks at what a call does, and has nothing to run but plain."""
    other = Variant(fn, name="other", when=lambda *_: "it is never the time for it")
    return shapedispatch(fn, hints=(), variants=[other], store=False)


class Counts(nn.Module):
    """A module with a method for each way to change what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.left, self.total, self.ready, self.scale = 0, 100, 0.0, False, 1
        self.seen: list[int] = []
        self.cache: dict[int, int] = {}
        self.act: Callable[[Tensor], Tensor] = torch.relu

    def up(self, x: Tensor) -> Tensor:
        """Counts its calls."""
        self.calls += 1
        return x * 2

    def down(self, x: Tensor) -> Tensor:
        """Counts what is left."""
        self.left -= 1
        return x * 2

    def adds(self, x: Tensor) -> Tensor:
        """Adds up what is no whole number."""
        self.total += 0.5
        return x * self.total

    def appends(self, x: Tensor) -> Tensor:
        """Appends to a list that it reads."""
        self.seen.append(len(self.seen))
        return x * 2

    def fills(self, x: Tensor) -> Tensor:
        """Fills a dict."""
        self.cache[len(self.cache)] = 1
        return x * len(self.cache)

    def once(self, x: Tensor) -> Tensor:
        """Makes itself ready at the first call."""
        if not self.ready:
            self.ready = True
        return x * 2

    def grown(self, x: Tensor) -> Tensor:
        """Grows at first, as tables of angles do, by more than one."""
        if self.calls < 16:
            self.calls = 16
        return x * 2

    def scaled(self, x: Tensor) -> Tensor:
        """Reads what others set."""
        return x * self.scale

    def acts(self, x: Tensor) -> Tensor:
        """Calls a function that others replace."""
        return self.act(x)


counted = 0


def counts_globally(x: Tensor) -> Tensor:
    """Counts its calls in a global."""
    global counted
    counted += 1
    return x * 2


def called(method: str, before: Callable[[Counts, int], None] | None = None) -> tuple[Any, list[Tensor]]:
    """The dispatcher of a method after many calls of it, and their answers."""
    dispatcher, module, answers = looked_at(getattr(Counts, method)), Counts(), []
    for turn in range(CALLS):
        if before is not None:
            before(module, turn)
        answers.append(dispatcher(module, torch.ones(3)))
    return dispatcher, answers


@pytest.mark.parametrize("method", ["up", "down"])
def test_what_counts_is_looked_at_once(method: str, traces: list[str]) -> None:
    """One trace, then every call is a hit of plain."""
    dispatcher, answers = called(method)
    assert len(traces) == 1
    assert dispatcher.cache_info().hits == CALLS - 1
    assert all(torch.equal(answer, torch.full((3,), 2.0)) for answer in answers)


def test_other_shapes_of_what_counts_are_not_looked_at_again(traces: list[str]) -> None:
    """What one call has shown holds for all of its family."""
    dispatcher, module = looked_at(Counts.up), Counts()
    for size in range(2, 12):
        dispatcher(module, torch.ones(size))
    assert len(traces) == 1
    assert module.calls == 10


def test_a_global_that_counts_is_looked_at_once(traces: list[str]) -> None:
    """As an attribute."""
    dispatcher, before = looked_at(counts_globally), counted
    for _ in range(CALLS):
        dispatcher(torch.ones(3))
    assert len(traces) == 1
    assert counted == before + CALLS


def test_a_closure_that_counts_is_looked_at_once(traces: list[str]) -> None:
    """As a global."""
    calls = 0

    def counts(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x * 2

    dispatcher = looked_at(counts)
    for _ in range(CALLS):
        dispatcher(torch.ones(3))
    assert len(traces) == 1
    assert calls == CALLS


@pytest.mark.parametrize("method", ["appends", "fills"])
def test_what_changes_at_each_call_is_looked_at_twice(method: str, traces: list[str]) -> None:
    """It might have been the first call's alone; the second shows that it is not."""
    dispatcher, answers = called(method)
    plain = Counts()
    assert len(traces) == 2
    assert dispatcher.cache_info().hits == CALLS - 2
    assert all(torch.equal(answer, getattr(plain, method)(torch.ones(3))) for answer in answers)


@pytest.mark.parametrize("method", ["once", "grown"])
def test_what_changes_at_the_first_call_alone_may_be_built(method: str, traces: list[str]) -> None:
    """The second look finds nothing written: nothing stands against a build."""
    dispatcher, _ = called(method)
    assert len(traces) == 2
    module = Counts()
    assert "hint and exact builds" in [r.variant for r in dispatcher.explain(module, torch.ones(3)).refusals]
    module.ready, module.calls = True, 16
    assert [refusal.variant for refusal in dispatcher.explain(module, torch.ones(3)).refusals] == ["other"]


def test_what_is_no_constant_is_looked_at_once(traces: list[str]) -> None:
    """A float that is added to is an input of the trace: no state to guard."""
    dispatcher, answers = called("adds")
    assert len(traces) == 1
    assert dispatcher.cache_info().hits == CALLS - 1
    assert [answer[0].item() for answer in answers] == [(turn + 1) / 2 for turn in range(CALLS)]


@pytest.mark.usefixtures("every_call_looks")
def test_what_others_change_at_each_call_is_looked_at_a_few_times(traces: list[str]) -> None:
    """As often as there may be builds for the states; the answers follow the state."""
    dispatcher, answers = called("scaled", lambda module, turn: setattr(module, "scale", turn))
    assert len(traces) == MOST_STATES
    assert [answer[0].item() for answer in answers] == list(range(CALLS))
    assert dispatcher.cache_info().hits == CALLS - MOST_STATES - 1


@pytest.mark.usefixtures("every_call_looks")
def test_code_that_others_replace_at_each_call_is_looked_at_a_few_times(traces: list[str]) -> None:
    """A notebook replaces code more often than a state has values; a loop does so for ever."""

    def replace(module: Counts, turn: int) -> None:
        module.act = lambda x: x + turn

    _, answers = called("acts", replace)
    assert len(traces) <= MOST_REPLACEMENTS
    assert [answer[0].item() for answer in answers] == [turn + 1 for turn in range(CALLS)]


@pytest.mark.usefixtures("every_call_looks")
def test_states_that_were_known_are_still_known() -> None:
    """What stands for every other state stands behind the entries of those that were decided."""
    dispatcher, _ = called("scaled", lambda module, turn: setattr(module, "scale", turn))
    module = Counts()
    module.scale = MOST_STATES - 1
    assert [refusal.variant for refusal in dispatcher.explain(module, torch.ones(3)).refusals] == ["other"]
    module.scale = CALLS + 1
    assert "hint and exact builds" in [r.variant for r in dispatcher.explain(module, torch.ones(3)).refusals]


def test_what_plain_reads_is_not_asked_of_each_call(traces: list[str]) -> None:
    """Plain is right in every state: where nothing changes but values, most hits ask nothing."""
    dispatcher, answers = called("scaled", lambda module, turn: setattr(module, "scale", turn))
    assert [answer[0].item() for answer in answers] == list(range(CALLS))
    assert dispatcher.cache_info().misses < MOST_STATES
    module = Counts()
    module.scale = CALLS + 1
    assert "chosen in another state" in dispatcher.explain(module, torch.ones(3)).notes[-1]


def test_instances_with_sizes_of_their_own_are_each_looked_at(traces: list[str]) -> None:
    """Another instance with another shape is no state that changes: it has a key of its own."""
    dispatcher = looked_at(Counts.scaled)
    for size in range(2, 12):
        module = Counts()
        module.scale = size
        assert torch.equal(dispatcher(module, torch.ones(size)), torch.full((size,), float(size)))
    assert len(traces) == 10
    assert STATES_A_FAMILY > 10


@pytest.mark.parametrize(
    ("method", "named"),
    [("up", "self.calls"), ("appends", "self.seen"), ("fills", "self.cache"), ("adds", "self.total")],
)
def test_it_is_said_once_and_the_attribute_named(method: str, named: str) -> None:
    """One warning, with the attribute as a person writes it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        called(method)
    said = [str(warning.message) for warning in caught if "refused" in str(warning.message)]
    assert len(said) == 1
    assert f"it changes {named}" in said[0]


@pytest.mark.usefixtures("every_call_looks")
def test_an_attribute_that_others_change_is_named() -> None:
    """With what no longer holds."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        called("scaled", lambda module, turn: setattr(module, "scale", turn))
    said = [str(warning.message) for warning in caught if "self.scale" in str(warning.message)]
    assert len(said) == 1
    assert f"has changed {MOST_STATES} times" in said[0]


def built_exactly(fn: Callable[..., Any]) -> Any:
    """A dispatcher that has a build made for each key."""
    return shapedispatch(fn, hints=(), exact=True, store=False)


def test_a_build_that_is_made_shows_what_calls_do(traces: list[str]) -> None:
    """Nothing is traced for that alone, at this key or another."""
    dispatcher = built_exactly(lambda x: x * 2)
    for size in (3, 4):
        dispatcher(torch.ones(size))
    assert traces == ["shapedispatch exact"] * 2


def test_what_a_builds_trace_has_shown_outlives_the_build() -> None:
    """It is known of its calls, without the code."""
    dispatcher, x = built_exactly(lambda x: x.mul_(2)), torch.ones(3)
    dispatcher(x)
    (known,) = dispatcher.core.table.facts.effects._known.values()
    (look,) = known.known
    assert look.effects.mutated == {"x"}
    assert look.call is look.function


class Normed(nn.Module):
    """Its statistics are another's than its arguments'."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        """Normed over the batch."""
        return self.norm(x)


def test_what_writes_elsewhere_is_not_compiled(traces: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A build's trace is given up before code is made; what calls do is then traced alone, and known for all sizes."""
    compiled: list[Any] = []
    one_graph = inductor._one_graph
    monkeypatch.setattr(inductor, "_one_graph", lambda *args: compiled.append(args) or one_graph(*args))
    dispatcher = shapedispatch(Normed(), hints=(), exact=True, store=False)
    for size in (3, 4, 5):
        dispatcher(torch.ones(size, 4))
    assert traces == ["shapedispatch exact", "effects"]
    assert not compiled


def test_what_acts_at_each_call_is_not_tried_as_a_build_again(traces: list[str]) -> None:
    """Though each call finds another state."""
    dispatcher, module = built_exactly(Counts.appends), Counts()
    for _ in range(5):
        dispatcher(module, torch.ones(3))
    assert traces == ["shapedispatch exact", "effects", "effects"]


@pytest.mark.usefixtures("every_call_looks")
def test_what_acts_in_one_state_is_built_in_another() -> None:
    """That it was given up in the first is not remembered."""
    dispatcher, module = built(Counts.once, hints=(), exact=True), Counts()
    dispatcher(module, torch.ones(3))
    assert module.ready
    dispatcher(module, torch.ones(3))
    assert dispatcher.explain(module, torch.ones(3)).variant == "exact"


def test_more_states_in_turn_than_there_are_builds_for_are_decided_once() -> None:
    """Layers of a class, each with a number of its own: what has no build runs plain from then on."""
    dispatcher, module, x = built(Counts.scaled, hints=(), exact=True), Counts(), torch.ones(3)
    for turn in range(5 * (MOST_STATES + 2)):
        module.scale = 2 + turn % (MOST_STATES + 2)  # not 1: Inductor of torch 2.14 gives x * 1 as x, which is refused
        assert torch.equal(dispatcher(module, x), x * module.scale)
    info = dispatcher.cache_info()
    assert (info.builds, info.misses <= MOST_STATES + 2) == (MOST_STATES, True)
