"""The numbers of a build, looked at by the process that compiles it; and when that is believed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import shapedispatch.functions.remote_build as remote_build
from shapedispatch import Store, shapedispatch
from shapedispatch.background.child_main import LastAnswer
from shapedispatch.functions import builder
from shapedispatch.functions.checks.graph_check import GraphCheck, NotJudged, Verdict
from shapedispatch.functions.compile import artifact, remote
from shapedispatch.functions.compile.artifact import Artifact, ShapeConditions
from shapedispatch.functions.parts.steps import MOST_CALLS
from shapedispatch.functions.request import BuildRequest
from shapedispatch.store.artifacts import KeptJob
from tests.built_here import BuiltHere, learning_here
from tests.custom_operators import cubed
from tests.helpers import assert_same, forget_rows

pytestmark = pytest.mark.operators_called

X, W = torch.linspace(-2, 2, 640).reshape(40, 16), torch.linspace(-0.5, 0.5, 256).reshape(16, 16)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> BuiltHere:
    """Whoever builds; everything is worth it at once."""
    return learning_here(monkeypatch)


@pytest.fixture
def checked_here(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The inputs on which graphs are checked in calls: in three, of which the first is noted."""
    found: list[Any] = []
    check = GraphCheck.part

    def part(self: GraphCheck, inputs: Any, room: int) -> Verdict | None:
        if not self.ran:
            found.append(inputs)
        return check(self, inputs, room)

    monkeypatch.setattr(GraphCheck, "part", part)
    return found


def composed(x: Tensor, w: Tensor) -> Tensor:
    """Plain."""
    return torch.tanh(x @ w) * torch.sigmoid(x @ w) + x


def learned(fn: Callable[..., Any], *call: Any, **how: Any) -> Any:
    """A dispatcher, after calls enough: for what it is to see of a program that has gradients, too."""
    f = shapedispatch(fn, **{"dims": {"x": "M _"}, "hints": (64,), "store": False, **how})
    for _ in range(40 + MOST_CALLS):
        f(*call)
    return f


def was_timed(dispatcher: Any, *call: Any) -> bool:
    """Whether there was a build to time."""
    return "hint[M=64]" in {timing.variant for timing in dispatcher.explain(*call).timings}


def sent(tasks: BuiltHere) -> list[Artifact]:
    """What was answered."""
    return [pickle.loads(task.answer) for task in tasks.tasks if task.answer is not None]


@pytest.mark.generated
def test_no_call_checks_what_was_checked(here: BuiltHere, checked_here: list[Any]) -> None:
    """By the process that compiled it; and it is judged by that."""
    f = learned(composed, X, W)
    assert was_timed(f, X, W)
    assert checked_here == []
    (answer,) = sent(here)
    assert answer.checked is not None
    assert answer.checked.digits == 24


@pytest.mark.generated
def test_one_with_a_backward_is_checked(here: BuiltHere, checked_here: list[Any]) -> None:
    """With its gradients."""
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    assert was_timed(learned(composed, x, w), x, w)
    assert checked_here == []


@pytest.mark.generated
def test_one_for_exact_sizes_is_checked(here: BuiltHere, checked_here: list[Any]) -> None:
    """At these."""
    f = learned(composed, X, W, exact=True)
    assert "exact" in {timing.variant for timing in f.explain(X, W).timings}
    assert checked_here == []


@pytest.mark.parametrize("other", ["code", "job", "where"])
def test_what_was_found_of_something_else_is_not_believed(
    here: BuiltHere, checked_here: list[Any], monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Other code, another graph, other versions: the call looks at the numbers itself."""
    made = remote.compiled

    def compiled(job: bytes) -> bytes:
        answer = pickle.loads(made(job))
        return pickle.dumps(replace(answer, checked=replace(answer.checked, **{other: "another"})))

    monkeypatch.setattr(remote, "compiled", compiled)
    assert was_timed(learned(composed, X, W), X, W)
    assert len(checked_here) == 1


@pytest.mark.filterwarnings("ignore:(?s).*every variant but plain was refused")
def test_code_that_was_exchanged_is_looked_at(
    here: BuiltHere, checked_here: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found right is the very code that comes with it."""

    def other(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w) * torch.sigmoid(x @ w) - x

    learned(composed, X, W)
    (right,), made = sent(here), remote.compiled

    def compiled(job: bytes) -> bytes:
        return pickle.dumps(replace(right, checked=pickle.loads(made(job)).checked))

    monkeypatch.setattr(remote, "compiled", compiled)
    f = learned(other, X, W)
    assert len(checked_here) == 1
    assert any("of the graph's" in " ".join(one.reasons) for one in f.explain(X, W).refusals)
    assert_same(f(X, W), other(X, W))


def test_what_is_made_for_another_machine_is_not_believed(
    here: BuiltHere, checked_here: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one with other libraries is."""
    monkeypatch.setattr(remote_build, "made_by", lambda _: "another machine")
    assert was_timed(learned(composed, X, W), X, W)
    assert len(checked_here) == 1


def test_a_kept_build_comes_with_what_was_found(here: BuiltHere, checked_here: list[Any], tmp_path: Any) -> None:
    """For the next process; the store says nothing of it then."""
    store = Store(tmp_path / "store")
    learned(composed, X, W, store=store)
    forget_rows(store)
    assert was_timed(learned(composed, X, W, store=store), X, W)
    assert isinstance(pickle.loads(here.tasks[0].job), KeptJob)
    assert len(here.tasks) == 1
    assert checked_here == []


@pytest.mark.filterwarnings("ignore:(?s).*every variant but plain was refused")
def test_what_was_found_on_a_callers_values_counts_for_more(here: BuiltHere, tmp_path: Any) -> None:
    """A build that the store has as wrong is wrong, whoever has found it right on other values."""
    store = Store(tmp_path / "store")
    f = learned(composed, X, W, store=store)
    offer = f.core.backend.offer((X, W), {}, f.explain(X, W).key, f.core.table)
    (slot,) = [one.build for one in offer.candidates if one.build]
    forget_rows(store)
    f.core.kernel_store.verdicts(X.device).keep(f.core.table.build(slot).identity(), "it was wrong there", 24)
    again = learned(composed, X, W, store=store)
    assert any("it was wrong there" in one.reasons for one in again.explain(X, W).refusals)


@pytest.mark.generated
def test_numbers_that_are_wrong_are_looked_at_here(
    here: BuiltHere, checked_here: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be none of the caller's."""
    monkeypatch.setattr(GraphCheck, "verdict_for_any", lambda *_: Verdict("tensor 0 is wrong"))
    learned(composed, X, W)
    assert len(checked_here) == 1


def test_a_check_that_breaks_leaves_the_build(
    here: BuiltHere, checked_here: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at here."""
    monkeypatch.setattr(remote, "free_memory", lambda _: 1 / 0)
    assert was_timed(learned(composed, X, W), X, W)
    assert len(checked_here) == 1


# -- at which sizes a GPU runs it first


def of_size(rows: int) -> tuple[Any, Tensor]:
    """A size that varies, and a tensor of so many rows of 16 float32, as a process that compiles is given both."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    dims = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = mode.from_tensor(torch.empty(rows, 16, device="meta"), symbolic_context=dims, source=ConstantSource("x"))
    return x.shape[0], x


@pytest.mark.parametrize(("room", "rows"), [(4096, 4096), (4095, 2048), (64, 64), (2, 2)])
def test_what_is_too_large_is_run_at_a_part_of_its_sizes(monkeypatch: pytest.MonkeyPatch, room: int, rows: int) -> None:
    """Halves, until as many rows fit as there is room for."""
    monkeypatch.setattr(remote, "CHECK_BYTES", {"cuda": room * 16 * 4})
    size, x = of_size(4096)
    symbol = size.node.expr
    assert remote._fitting([size, x], {symbol: 4096}, ShapeConditions("", ())) == {symbol: rows}


@pytest.mark.parametrize(
    ("room", "conditions", "why"),
    [(1, ShapeConditions("", ()), remote.TOO_LARGE), (64, ShapeConditions("", (), ((0, 4096),)), remote.NO_SIZES)],
    ids=["no room at all", "for no other size"],
)
def test_what_is_too_large_at_any_size_is_not_run(
    monkeypatch: pytest.MonkeyPatch, room: int, conditions: ShapeConditions, why: str
) -> None:
    """Or is for these sizes alone."""
    monkeypatch.setattr(remote, "CHECK_BYTES", {"cuda": room * 16 * 4})
    size, x = of_size(4096)
    with pytest.raises(NotJudged, match=why):
        remote._fitting([size, x], {size.node.expr: 4096}, conditions)


# -- whose values matter


def placed(x: Tensor, w: Tensor) -> Tensor:
    """Whose values are bounds in order."""
    return x * torch.bucketize(x, w[0])


def taken(x: Tensor, w: Tensor) -> Tensor:
    """Whose whole numbers are the caller's."""
    return x * 2 + w


def scaled(x: Tensor, w: int) -> Tensor:
    """With a number."""
    return torch.tanh(x) * w


def logarithm(x: Tensor, w: Tensor) -> Tensor:
    """Numbers for some values only."""
    return torch.log(x + 3) @ w


def never(x: Tensor, w: Tensor) -> Tensor:
    """No numbers ever."""
    return (x * torch.inf - x * torch.inf) @ w


def custom(x: Tensor, w: Tensor) -> Tensor:
    """What the user's own operator makes."""
    return cubed(x) @ w


WHOLE = torch.arange(16)


@pytest.mark.parametrize(
    ("fn", "w"),
    [(placed, W), (taken, WHOLE), (taken, WHOLE > 3), (never, W), (custom, W)],
    ids=["place", "whole", "truth", "never", "custom"],
)
def test_where_values_may_matter_a_call_checks(
    here: BuiltHere, checked_here: list[Any], fn: Callable[..., Any], w: Tensor
) -> None:
    """On its own."""
    f = learned(fn, X, w)
    assert [one.checked for one in sent(here)] == [None]
    assert all(one.unchecked for one in sent(here))
    assert len(checked_here) == 1
    assert_same(f(X, w), fn(X, w))


def test_a_call_that_checks_says_why_nobody_else_has(here: BuiltHere, caplog: pytest.LogCaptureFixture) -> None:
    """Of three parts, each with what the process that compiled it has said."""
    caplog.set_level("DEBUG", "shapedispatch")
    learned(placed, X, W)
    (why,) = (one.unchecked for one in sent(here))
    looks = [one.getMessage() for one in caplog.records if f", checked ({why}) for " in one.getMessage()]
    assert len(looks) == 3


def test_numbers_that_vary_are_the_callers(here: BuiltHere, checked_here: list[Any]) -> None:
    """They are inputs of the graph like sizes."""
    f = shapedispatch(scaled, dims={"x": "M _"}, hints=(64,), store=False)
    for i in range(60):
        f(X, 2 + i % 3)
    numbers = [pickle.loads(task.job).number_inputs for task in here.tasks]
    assert True in numbers
    assert [one.checked is None for one in sent(here)] == numbers


def test_numbers_for_some_values_are_enough(here: BuiltHere, checked_here: list[Any]) -> None:
    """Beyond them plain and what was compiled have none at the same places."""
    assert was_timed(learned(logarithm, X, W), X, W)
    assert checked_here == []


def test_no_operator_of_the_users_runs_there(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """On values that are made up."""
    monkeypatch.setattr(GraphCheck, "verdict_for_any", lambda *_: pytest.fail("it is run"))
    monkeypatch.setattr(remote, "loaded", lambda *_: pytest.fail("it is loaded"))
    learned(custom, X, W)
    assert [one.checked for one in sent(here)] == [None]


def test_what_is_large_is_not_made_up(
    here: BuiltHere, checked_here: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take memory that nobody has asked for."""
    monkeypatch.setattr(remote, "CHECK_BYTES", {"cpu": 100})
    learned(composed, X, W)
    assert len(checked_here) == 1


def test_sizes_that_it_is_not_for_are_not_made_up(here: BuiltHere, checked_here: list[Any]) -> None:
    """Those that it was traced with are taken where small ones will not do."""

    def halves(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).reshape(x.shape[0] // 8, 8, 16).sum(1)

    f = learned(halves, X, W)
    assert_same(f(X, W), halves(X, W))
    assert [one.checked is not None for one in sent(here)] == [True]
    assert checked_here == []


def on_gpu(index: int) -> Tensor:
    """What a tensor there looks like."""
    with FakeTensorMode():
        return torch.empty(4, device=f"cuda:{index}")


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="there is no second one, and torch asks whether there is")
def test_what_runs_on_several_gpus_is_not_made_up() -> None:
    """Which of them is meant nobody says."""
    with pytest.raises(NotJudged, match="several devices"):
        remote._made_up([on_gpu(0), torch.empty(4), on_gpu(1)], {})


# -- on a GPU


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is compiled counts as a GPU's; what ran there and here, and at how many rows."""
    ran: list[tuple[str, int]] = []
    gpu = torch.device("meta")
    monkeypatch.setattr(remote, "device_of", lambda _: gpu)
    monkeypatch.setattr(remote_build, "device_of", lambda _: gpu)
    monkeypatch.setattr(BuildRequest, "on_gpu", lambda _: True)
    monkeypatch.setattr(artifact, "first_asked", lambda: False)
    monkeypatch.setitem(remote.CHECK_BYTES, "meta", 1 << 25)
    for name in ("_first_run", "_verdict_for_any", "_part"):
        method = getattr(GraphCheck, name)

        def noted(self: GraphCheck, inputs: Any, room: int, name: str = name, method: Any = method) -> Any:
            ran.append((name, next(len(one) for one in inputs if isinstance(one, Tensor))))
            return method(self, inputs, room)

        monkeypatch.setattr(GraphCheck, name, noted)
    return ran


def test_on_a_gpu_it_has_run_before_at_its_hint(here: BuiltHere, as_on_gpu: list[tuple[str, int]]) -> None:
    """What Inductor tries in a first run is for these sizes; a call runs it once, and looks at no numbers."""
    assert was_timed(learned(composed, X, W), X, W)
    assert as_on_gpu == [("_first_run", 64), ("_verdict_for_any", 53), ("_first_run", 40)]


def test_on_a_gpu_a_first_run_is_a_call_of_its_own(
    here: BuiltHere, as_on_gpu: list[tuple[str, int]], caplog: pytest.LogCaptureFixture
) -> None:
    """It may take a while, and does not come with the load."""
    with caplog.at_level("DEBUG", "shapedispatch"):
        learned(composed, X, W)
    done = [line.partition(" for ")[2] for line in caplog.messages if "looked at for" in line]
    assert ["loaded" in line for line in done if "loaded" in line or "checked" in line] == [True, False]
    assert not any("loaded" in line and "checked" in line for line in done)


def test_what_was_found_right_stays_so_where_a_first_run_cannot_be(
    here: BuiltHere, as_on_gpu: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is for what takes time there, and not for numbers."""
    monkeypatch.setattr(builder, "_judged", lambda *_: Verdict(unjudged="what it is called with cannot be seen"))
    f = learned(composed, X, W)
    (build,) = [f.core.table.build(slot) for slot in f.core.table._builds]
    assert build.code.verdict == Verdict(digits=24)
    assert [name for name, _ in as_on_gpu] == ["_first_run", "_verdict_for_any"]


def test_what_looks_at_values_never_runs_there_on_made_up_ones(
    here: BuiltHere, as_on_gpu: list[tuple[str, int]]
) -> None:
    """One that is out of range stops a GPU for good."""
    learned(placed, X, W)
    assert [one.unchecked for one in sent(here)] == ["NotJudged: aten::bucketize reads values"]
    assert as_on_gpu[0] == ("_first_run", len(W))
    assert {name for name, _ in as_on_gpu[1:]} == {"_part"}


@pytest.mark.parametrize(("grad", "found"), [(False, ""), (True, "aten::scatter")])
def test_a_backward_is_looked_at_too(grad: bool, found: str) -> None:
    """It has operators of its own."""

    def largest(x: Tensor) -> Tensor:
        return x.max(0).values

    with FakeTensorMode():
        name = GraphCheck(largest, largest).value_read([torch.empty(8, 4, requires_grad=grad)])
    assert name.removesuffix("_") == found


def test_a_process_whose_gpu_has_stopped_answers_for_the_last_time(
    here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has compiled is of use."""
    learned(composed, X, W)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: torch.empty(-1))
    with pytest.raises(LastAnswer) as last:
        remote.compiled(here.tasks[0].job)
    assert isinstance(pickle.loads(last.value.answer), Artifact)


def test_where_a_name_of_the_compiler_is_missing_the_build_is_refused(
    here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the process that would compile, which alone looks for it; plain answers, and one warning says why."""
    monkeypatch.setattr(remote, "why_off", {"compiling": "torch has no such name"}.get)
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    with pytest.warns(UserWarning, match="another process could not build it: RuntimeError: torch has no such name"):
        answers = [f(X, W) for _ in range(20)]
    assert_same(answers, [composed(X, W)] * 20)
    assert f.explain(X, W).variant == "plain"
