from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch.autotune.generators import Generators
from shapedispatch.choices.context import MissContext
from shapedispatch.functions import builder
from shapedispatch.functions.checks import given, graph_check, shadow
from shapedispatch.functions.checks.graph_check import GraphCheck, distinct
from shapedispatch.functions.compile import graph, inductor
from tests.helpers import built

ROOM = 1 << 30


def verdict(graph: Callable[..., Any], compiled: Callable[..., Any], *inputs: Any, room: int = ROOM) -> Any:
    """Of two functions, as of a graph and its code, on a clock that stands still."""
    return GraphCheck(graph, compiled, clock=lambda: 0.0).verdict(inputs, room)


def test_the_same_code_is_right() -> None:
    """With gradients and an input that is written."""

    def step(x: Tensor, w: Tensor) -> Tensor:
        x.add_(1)
        return torch.tanh(x @ w).sum(0)

    assert verdict(step, step, torch.randn(8, 4), torch.randn(4, 3, requires_grad=True)).wrong == ""


@pytest.mark.parametrize("on_gpu", [False, True])
def test_what_inductor_tries_in_a_first_run_is_timed_on_the_device(
    on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reduction's kernels are chosen there, after it was compiled."""
    asked, within = list[bool](), list[bool]()

    @contextlib.contextmanager
    def timing(on_gpu: bool) -> Iterator[None]:
        asked.append(on_gpu)
        within.append(True)
        yield
        within.clear()

    def compiled(x: Tensor) -> Tensor:
        assert within
        return x.sin()

    monkeypatch.setattr(graph_check, "_on_gpu", lambda inputs: on_gpu)
    monkeypatch.setattr(graph_check, "inductors_timing", timing)
    assert verdict(torch.sin, compiled, torch.randn(9)).wrong == ""
    assert asked == [on_gpu]


def test_the_second_set_of_values_may_come_at_another_call() -> None:
    """What was found of the first call's values counts: which of them an index is made of."""

    def picked(x: Tensor, i: Tensor) -> Tensor:
        return x[i.long()]

    check = GraphCheck(picked, picked, clock=lambda: 0.0, ran=True)
    assert check.part([torch.randn(9), torch.tensor([1.0, 8.0])], ROOM) is None
    assert check.kept == {1}
    found = check.part([torch.randn(5), torch.tensor([4.0, 0.0, 4.0])], ROOM)
    assert found is not None
    assert (found.wrong, found.unjudged) == ("", "")


def test_what_is_wrong_on_the_first_values_is_wrong() -> None:
    """And nothing more is run."""
    check = GraphCheck(torch.sin, torch.cos, clock=lambda: 0.0, ran=True)
    found = check.part([torch.randn(9)], ROOM)
    assert found is not None
    assert found.wrong


def test_what_was_compiled_runs_once_before_it_is_compared() -> None:
    """On copies, with random numbers that nobody misses; what it raises is said when it is compared."""
    ran: list[Tensor] = []

    def noisy(x: Tensor) -> Tensor:
        ran.append(x)
        x.add_(torch.rand(9))
        raise ValueError("it cannot run")

    check, x = GraphCheck(torch.sin, noisy, clock=lambda: 0.0), torch.zeros(9)
    before = torch.get_rng_state()
    assert check.part([x], ROOM) is None
    assert (len(ran), ran[0] is x, bool(x.any())) == (1, False, False)
    assert torch.equal(torch.get_rng_state(), before)
    found = check.part([x], ROOM)
    assert found is not None
    assert "it raised ValueError" in found.wrong


def test_equal_inputs_hide_nothing() -> None:
    """Two tensors of zeros come out swapped whatever is done; those that the check makes do not."""

    def swap(a: Tensor, b: Tensor) -> Tensor:
        t = a.clone()
        a.copy_(b)
        b.copy_(t)
        return a.sum()

    def loses(a: Tensor, b: Tensor) -> Tensor:
        a.copy_(b)
        return a.sum()

    assert "different" in verdict(swap, loses, torch.zeros(9), torch.zeros(9)).wrong


def test_a_wrong_gradient_is_seen() -> None:
    """Its forward is right."""

    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] / 2

    assert verdict(torch.sin, Half.apply, torch.randn(9, requires_grad=True)).wrong
    assert not verdict(torch.sin, torch.sin, torch.randn(9, requires_grad=True)).wrong


def test_autograds_zeros_without_memory_are_compared() -> None:
    """The derivative of a sign: to read behind them what they are as large as ends the process."""
    f = built(lambda x: x * torch.sgn(x) * 1.0, exact=True, hints=())
    x = torch.linspace(-1, 1, 24).view(4, 6).requires_grad_()
    for _ in range(3):
        f(x).sum().backward()
    assert torch.equal(x.grad, 3 * torch.sgn(x))
    assert f.variant("exact")(x.detach()).shape == (4, 6)


@pytest.mark.parametrize("share", [3e-6, 1e-3])
def test_an_error_beyond_rounding_is_seen(share: float) -> None:
    """However small beside what two dtypes are usually allowed."""
    assert verdict(torch.sin, lambda x: torch.sin(x) * (1 + share), torch.randn(1000)).wrong
    assert not verdict(torch.sin, lambda x: torch.sin(x) * (1 + 1e-7), torch.randn(1000)).wrong


def test_sums_of_doubles_in_another_order_are_right() -> None:
    """Doubles do not say what plain errs by that computes in them; by how much it moves says it."""

    def normed(x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, (x.shape[1],))

    def otherwise(x: Tensor) -> Tensor:
        centred = x - x.flip(1).cumsum(1)[:, -1:] / x.shape[1]
        return centred * (centred.square().flip(1).cumsum(1)[:, -1:] / x.shape[1] + 1e-5).rsqrt()

    x = torch.randn(64, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert not verdict(normed, otherwise, x).wrong
    assert verdict(normed, lambda x: otherwise(x.float()).double(), x).wrong


def test_sums_in_another_order_are_right() -> None:
    """Plain's own error at other places says what is usual."""
    x = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0))
    assert not verdict(lambda x: x.sum(1), lambda x: x.flip(1).cumsum(1)[:, -1], x).wrong


def test_a_sum_that_nearly_cancels_is_excused() -> None:
    """One value in many, where plain itself moves as far by its rounding."""
    x = torch.linspace(-3, 3, 2000)
    few = 1e-7 * (torch.arange(2000) % 200 == 77)
    assert not verdict(lambda x: x.sin() + 1, lambda x: (x.sin() + few) + 1, x).wrong


def test_what_lower_precision_rounds_is_right() -> None:
    """Under autocast plain errs by bfloat16, and so may the other."""
    x, w = torch.randn(32, 64), torch.randn(64, 64)

    def other(x: Tensor, w: Tensor) -> Tensor:
        return (x.bfloat16().float() @ w.bfloat16().float()).softmax(-1)

    with torch.autocast("cpu", torch.bfloat16):
        told = verdict(lambda x, w: (x @ w).softmax(-1), other, x, w)
    assert (told.wrong, told.digits) == ("", 8)


def test_a_cast_that_is_left_out_is_seen() -> None:
    """What is lost by it is what the function wants."""
    x = torch.randn(1000)
    assert verdict(lambda x: x.bfloat16().float() - x, lambda x: x * 0, x).wrong


def test_discrete_results_are_equal_or_wrong() -> None:
    """But for near ties, of which there are none here."""
    x = torch.randn(50, 20)
    assert verdict(lambda x: x.argmax(1), lambda x: x.argmin(1), x).wrong
    assert not verdict(lambda x: x.argmax(1), lambda x: x.argmax(1), x).wrong


@pytest.mark.parametrize(
    "call",
    [
        lambda x, table: table[x.long()],
        lambda x, table: torch.bernoulli(x / 10) + table.sum(),
        lambda x, table: table.gather(0, (x * 0.5).to(torch.int64)),
    ],
    ids=["index", "probability", "gather"],
)
def test_what_becomes_an_index_keeps_the_callers_values(call: Any) -> None:
    """On a GPU an index out of range would end the context."""
    given: list[Tensor] = []

    def noted(x: Tensor, table: Tensor) -> Any:
        given.append(x.clone())
        return call(x, table)

    x = torch.tensor([0.0, 1.0, 1.0, 2.0])
    told = verdict(call, noted, x, torch.randn(5))
    assert (told.wrong, told.unjudged) == ("", "")
    assert all(torch.equal(one, x) for one in given)


def test_random_numbers_are_drawn_alike_and_put_back() -> None:
    """Both runs begin with the same state."""
    x = torch.randn(100)
    told = verdict(lambda x: torch.nn.functional.dropout(x), lambda x: torch.nn.functional.dropout(x), x)
    assert (told.wrong, told.unjudged) == ("", "")


@pytest.mark.parametrize(("built_s", "given_up"), [(0.0, True), (0.2, True), (5.0, False)])
def test_a_run_that_takes_too_long_is_given_up(built_s: float, given_up: bool) -> None:
    """And nothing is said of the build; of one that took long to make, as a whole model's, longer is not too long."""
    now = iter([0.0, 0.001, 1.0, 1.02, *[1.06] * 99])  # plain takes 1 ms: 50 are allowed
    check = GraphCheck(lambda x: x.sin().cos(), lambda x: x.sin().cos(), lambda: next(now), built_s=built_s)
    told = check.verdict([torch.randn(9)], ROOM)
    assert told.wrong == ""
    assert ("too long" in told.unjudged) is given_up


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_run_that_takes_too_long_on_a_gpu_is_tried_again(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one loads each kernel: once more, and in another call, if whoever checks has several."""
    monkeypatch.setattr(graph_check, "_on_gpu", lambda inputs: on_gpu)
    now = iter([0.0, 0.001, 1.0, 1.02, 1.09, *[2.0] * 99])  # plain takes 1 ms: 50 are allowed
    check = GraphCheck(lambda x: x.sin().cos(), lambda x: x.sin().cos(), lambda: next(now), ran=True)
    found = check.part([torch.randn(9)], ROOM)
    assert (found is None) is on_gpu
    if found is None:
        found = check.verdict([torch.randn(9)], ROOM)
        assert (found.wrong, found.unjudged) == ("", "")


def test_no_more_memory_is_taken_than_copies_may() -> None:
    """Doubles of everything take twice as much."""
    for room, what in ((1000, "copies of what it is given"), (20_000, "its values in double precision")):
        told = verdict(lambda x: x.sin().repeat(9), lambda x: x.cos().repeat(9), torch.randn(1000), room=room)
        assert told.wrong == ""
        assert what in told.unjudged


@torch.library.custom_op("shapedispatch_checks::only_halves", mutates_args=())
def only_halves(x: Tensor) -> Tensor:
    """What is not made for doubles."""
    if x.dtype is torch.float64:
        raise NotImplementedError
    return x.clone()


def test_behind_an_operator_that_takes_no_doubles_plain_errs_as_much_as_it_moves() -> None:
    """What is right is what that made of plain's own errors: attention on a GPU, sixteen layers of it."""

    def plain(x: Tensor, w: Tensor) -> Tensor:
        return torch.sin(4 * only_halves(x @ w))

    def finer(x: Tensor, w: Tensor) -> Tensor:
        return torch.sin(4 * (x.float() @ w.float())).bfloat16()

    torch.manual_seed(0)
    x, w = torch.randn(16, 64).bfloat16(), torch.randn(64, 200).bfloat16() / 8
    assert (verdict(plain, finer, x, w).wrong, verdict(plain, finer, x, w).digits) == ("", 8)
    assert "where plain has" in verdict(plain, lambda x, w: finer(x, w) + 1, x, w).wrong


def test_weights_that_are_too_large_to_be_copied_are_the_callers_own() -> None:
    """In each run: of a model, copies and doubles of all weights would take most of the memory."""
    large, ran = torch.nn.Parameter(torch.randn(4, 1000), requires_grad=False), []

    def first(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        ran.append(w.data_ptr() == large.data_ptr())
        return torch.tanh(x @ w + b)

    given = torch.randn(3, 4), large, torch.nn.Parameter(torch.randn(1000), requires_grad=False)
    found = verdict(first, first, *given, room=70_000)
    assert (found.wrong, found.unjudged) == ("", "")
    assert ran
    assert all(ran)
    wrong = verdict(first, lambda x, w, b: torch.tanh(x @ w + 1.1 * b), *given, room=70_000)
    assert "where plain has" in wrong.wrong


def test_a_weight_is_copied_where_it_says_too_little_as_it_is() -> None:
    """Beside zeros much is right by chance, and two that are alike may be taken for each other."""

    def added(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return x * v - w

    def weight(values: Tensor) -> Tensor:
        return torch.nn.Parameter(values, requires_grad=False)

    x, some, zeros = torch.randn(1000), weight(torch.randn(1000)), weight(torch.zeros(1000))
    told = [
        verdict(added, added, x, v, w, room=20_000).unjudged for v, w in ((some, zeros), (some, weight(some.clone())))
    ]
    assert all("copies of what it is given" in one for one in told)
    assert verdict(added, added, x, some, weight(torch.randn(1000)), room=20_000).unjudged == ""


def test_a_large_weight_that_the_graph_writes_is_copied() -> None:
    """Or where not even that one fits, nothing is run on it."""

    def counted(x: Tensor, w: Tensor) -> Tensor:
        w.add_(1)
        return x * w.sum()

    x, w = torch.randn(10), torch.nn.Parameter(torch.randn(1000), requires_grad=False)
    before = w.clone()
    assert "copies of what it is given" in verdict(counted, counted, x, w, room=10_000).unjudged
    rest = torch.nn.Parameter(torch.randn(900), requires_grad=False)
    found = verdict(
        lambda x, w, r: counted(x, w) + r.sum(), lambda x, w, r: counted(x, w) + r.sum(), x, w, rest, room=30_000
    )
    assert (found.wrong, found.unjudged) == ("", "")
    assert torch.equal(before, w)


def test_code_that_writes_into_a_weight_that_is_read_is_wrong() -> None:
    """It is the caller's own, and seen to be as it was; in its first run as in any other."""

    def reads(x: Tensor, w: Tensor) -> Tensor:
        return x * w.sum()

    def writes(x: Tensor, w: Tensor) -> Tensor:
        result = x * w.sum()
        w.data[0] = 7
        return result

    def given() -> tuple[Tensor, Tensor]:
        return torch.randn(10), torch.nn.Parameter(torch.randn(1000), requires_grad=False)

    assert verdict(reads, writes, *given(), room=10_000).wrong == graph_check.ALTERS
    found = GraphCheck(reads, writes, clock=lambda: 0.0).part(given(), 10_000)
    assert found is not None
    assert found.wrong == graph_check.ALTERS


def test_the_callers_tensors_are_not_written() -> None:
    """Every run has copies."""
    x = torch.randn(9)
    before = x.clone()
    verdict(lambda x: x.add_(1), lambda x: x.add_(1), x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("values", [torch.zeros(50), torch.full((50,), 3.0), torch.rand(50), -torch.rand(50)])
def test_drawn_values_are_all_different_and_none_is_zero(values: Tensor) -> None:
    """In the range that the caller's lie in."""
    drawn = distinct(values, Generators())
    assert len(drawn.unique()) == 50
    assert not bool((drawn == 0).any())
    assert float(drawn.min()) >= min(0.5 * float(values.min()), 1.5 * float(values.min()), 0.0)


def test_a_large_weight_keeps_its_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another order, with those that were alike apart; where most are zero it is spread like any other."""
    monkeypatch.setattr(given, "LARGE", 1000)
    monkeypatch.setattr(given, "BLOCK", 300)
    weight = torch.randn(1000, dtype=torch.float64).round(decimals=1)
    drawn = distinct(weight, Generators())
    assert len(drawn.unique()) == 1000 > len(weight.unique())
    assert not bool((drawn == weight).any())
    assert 0.95 < float(drawn.std() / weight.std()) < 1.05
    sparse = weight * (torch.arange(1000) % 3 == 0)
    assert float(distinct(sparse, Generators()).std()) > 2 * float(sparse.std())
    assert float(distinct(torch.ones(1000), Generators()).std()) > 0.2


def test_integers_and_masks_stay_as_they_are() -> None:
    """As do floats some of which are infinite: they fill in for nothing."""
    for kept in (torch.arange(5), torch.tensor([0.0, float("-inf")])):
        assert distinct(kept, Generators()) is kept


def lost_swap(a: Tensor, b: Tensor) -> Tensor:
    """Which torch compiles wrongly, up to 2.13 by itself."""
    t = a.clone()
    a.copy_(b)
    b.copy_(t)
    return a.sum()


@pytest.fixture
def _swaps_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor writes each tensor but the last one, whatever torch it is of."""
    original = inductor._compile_fx().compile_fx_inner

    def loses(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        written = [node for node in gm.graph.nodes if node.target is torch.ops.aten.copy_.default]
        written[-1].args = (written[-1].args[0],) * 2
        gm.recompile()
        return original(gm, *args, **kwargs)

    monkeypatch.setattr(inductor._compile_fx(), "compile_fx_inner", loses)


@pytest.mark.usefixtures("_swaps_are_lost")
def test_a_swap_decided_on_equal_tensors_loses_nothing_later() -> None:
    """The law is plain's answer, also for what the decision did not see."""
    f = built(lost_swap, exact=True, hints=())
    with pytest.warns(UserWarning, match="all different"):
        f(torch.zeros(9), torch.zeros(9))
    ours, plain = [torch.ones(9), torch.full((9,), 2.0)], [torch.ones(9), torch.full((9,), 2.0)]
    assert torch.equal(f(*ours), lost_swap(*plain))
    assert all(map(torch.equal, ours, plain))


def test_a_build_under_autocast_is_not_refused_for_its_rounding() -> None:
    """Its result is float32, and its arithmetic bfloat16."""
    layer = torch.nn.Linear(64, 64)
    f = built(lambda x: torch.nn.functional.gelu(layer(x)).float().sum(-1), exact=True, hints=())
    x = torch.randn(32, 64)
    with torch.autocast("cpu", torch.bfloat16):
        f(x)
        assert f.explain(x).variant == "exact"


def test_only_the_sample_is_checked_where_that_is_asked_for() -> None:
    """As it was before graphs were."""
    f = built(lost_swap, exact=True, hints=())
    f.core.settings = dataclasses.replace(f.core.settings, check="sample")
    f(torch.zeros(9), torch.zeros(9))
    [build] = f.core.table.builds()
    assert build.code.verdict is None


@pytest.mark.operators_called
def test_a_second_process_does_not_repeat_a_check(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found is kept in the store, by the code that was made."""
    asked: list[Any] = []
    verdict = GraphCheck.verdict
    monkeypatch.setattr(GraphCheck, "verdict", lambda self, *given: asked.append(given) or verdict(self, *given))
    for x in (torch.randn(9), torch.randn(9), torch.randn(10)):
        builder.made.clear()
        f = built(lambda x: torch.sin(x) * 5.5, exact=True, hints=(), store=tmp_path / "store")
        f(x)
        assert f.explain(x).variant == "exact"
    assert [tuple(given[0][0].shape) for given in asked] == [(9,), (10,)]


@pytest.mark.usefixtures("_swaps_are_lost")
@pytest.mark.operators_called
def test_what_a_build_was_refused_for_is_kept(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong build is not run again to see it."""
    asked: list[Any] = []
    verdict = GraphCheck.verdict
    monkeypatch.setattr(GraphCheck, "verdict", lambda self, *given: asked.append(given) or verdict(self, *given))
    for _ in range(2):
        builder.made.clear()
        f = built(lost_swap, exact=True, hints=(), store=tmp_path / "store")
        f.core.settings = dataclasses.replace(f.core.settings, pick="exact")  # which is no choice that is stored
        with pytest.warns(UserWarning, match="all different"):
            f(torch.zeros(9), torch.zeros(9))
    assert len(asked) == 1


@pytest.mark.operators_called
def test_a_build_is_judged_at_a_smaller_call_where_one_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of memory nothing is said of the build; the notes of the large call say so."""
    monkeypatch.setattr(MissContext, "_room", lambda ctx: 20_000)
    f = built(lambda x: x.sin() * 2, dims={"x": "M"}, hints=(64,))
    large, small = torch.randn(4000), torch.randn(100)
    for x in (large, small):
        f(x)
    alone = [[note for note in f.explain(x).notes if "on calls alone" in note] for x in (large, small)]
    assert [len(notes) for notes in alone] == [1, 0]
    assert shadow.NO_ROOM in alone[0][0]


def test_a_check_that_is_given_up_leaves_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that turns gradients off turns them on at its end, which a raise in the middle would pass over."""
    monkeypatch.setattr(graph_check, "SECONDS", -1.0)
    monkeypatch.setattr(graph_check, "TIMES_PLAIN", 0)
    monkeypatch.setattr(graph_check, "OF_BUILD", 0)

    def fn(x: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            y = x @ x
        return y.float() + x

    f = built(fn, exact=True, hints=())
    x = torch.randn(4, 4, requires_grad=True)
    f(x)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()
    [build] = f.core.table.builds()
    assert "too long" in build.code.verdict.unjudged


@pytest.mark.operators_called
def test_code_that_raises_leaves_no_state() -> None:
    """Which its graph would have put back at its end."""

    def compiled(x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        torch.set_autocast_enabled("cpu", True)
        torch.autocast_increment_nesting()
        raise ValueError("no")

    assert "ValueError" in verdict(torch.sin, compiled, torch.ones(9)).wrong
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()


@pytest.mark.filterwarnings("ignore:.*")  # torch before 2.13 cannot guard the class that vmap asks for
def test_a_transform_is_not_run_beside_doubles() -> None:
    """What vmap enters it leaves at its end."""
    f = built(lambda x: torch.func.vmap(torch.sin)(x) * 2, exact=True, hints=())
    f(torch.randn(4, 4))
    assert all(build.code.check is None and build.code.verdict is None for build in f.core.table.builds())


@pytest.mark.skipif(graph._DIES_OF_AN_INDEX, reason="this torch's compiled code does not check an index")
def test_a_graph_that_raises_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Its error is the call's, and a module of a graph prints where it was."""
    f = built(lambda x, i: x[i] * 2, hints=(), exact=True)
    with pytest.raises(IndexError, match="out of bounds"):
        f(torch.ones(5, 16), torch.tensor([-6]))
    assert capfd.readouterr().err == ""


class Rounds(torch.autograd.Function):
    """As a GPU's sum, which autocast has summed in float32 and rounded to what its backward takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """As it is."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Rounded where autocast is on."""
        return gradient.to(torch.bfloat16).to(gradient.dtype) if torch.is_autocast_enabled("cpu") else gradient * 1


def test_a_backward_is_compared_under_no_autocast() -> None:
    """Which would round plain's gradients, and not those of compiled code."""
    call: Any = Rounds.apply
    x = torch.rand(40, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert GraphCheck(lambda x: call(x), lambda x: x * 1).verdict([x], ROOM).wrong == ""
