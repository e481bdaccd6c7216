from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import sys
import typing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shapedispatch as package
from shapedispatch import Variant, dispatchers, shapedispatch
from shapedispatch.errors import DeclarationError, SettingsError
from shapedispatch.settings import resolve
from tests import forked
from tests.helpers import assert_same, built

DIMS = {"x": "M K", "w": "K N"}
X = torch.linspace(-1, 1, 32).reshape(4, 8)
unbuilt = functools.partial(shapedispatch, hints=(), store=False)
"""A decorator that builds nothing: these tests are about the decoration."""


@unbuilt
def doubled(x: Tensor, scale: float = 2.0, *, shift: float = 0.0) -> Tensor:
    """Twice x."""
    return x * scale + shift


def product(x: Tensor, w: Tensor) -> Tensor:
    """A matrix product."""
    return x @ w


# what comes back


def test_what_comes_back_is_a_function() -> None:
    """With name, module, docstring, signature and annotations of the one that was written."""
    assert inspect.isfunction(doubled)
    assert (doubled.__name__, doubled.__qualname__, doubled.__module__) == ("doubled", "doubled", __name__)
    assert doubled.__doc__ == "Twice x."
    assert inspect.signature(doubled) == inspect.signature(doubled.__wrapped__)
    assert typing.get_type_hints(doubled) == {"x": Tensor, "scale": float, "shift": float, "return": Tensor}


@pytest.mark.parametrize(
    "name", ["explain", "tune", "prepare", "variant", "choices", "cache_info", "cache_clear", "__wrapped__"]
)
def test_it_carries_the_methods(name: str) -> None:
    """All of the table in the Protocol."""
    assert callable(getattr(doubled, name))
    assert hasattr(package.Dispatcher, name) or name in package.Dispatcher.__annotations__


def test_it_is_used_with_and_without_arguments() -> None:
    """Bare, with empty parentheses and with arguments."""
    for decorate in (shapedispatch, shapedispatch(), shapedispatch(exact=True)):
        assert decorate(product).__wrapped__ is product


def test_calls_may_be_spelled_as_they_like() -> None:
    """Positional, keyword and defaulted spellings are one call, one key, one choice."""
    doubled.cache_clear()
    for args, kwargs in (
        ((X,), {}),
        ((), {"x": X}),
        ((X, 2.0), {}),
        ((X,), {"shift": 0.0}),
        ((), {"scale": 2.0, "x": X}),
    ):
        assert_same(doubled(*args, **kwargs), X * 2)
    assert (doubled.cache_info().misses, doubled.cache_info().hits) == (1, 4)
    assert doubled.explain(x=X) == doubled.explain(X, 2.0, shift=0.0)


def test_a_wrong_call_is_the_functions_own_error() -> None:
    """Missing, surplus and unknown arguments: the TypeError that the undecorated function raises."""
    for args, kwargs in (((), {}), ((X, 1.0, 2.0), {}), ((X,), {"nonsense": 1})):
        with pytest.raises(TypeError) as mine:
            doubled(*args, **kwargs)
        with pytest.raises(TypeError) as theirs:
            doubled.__wrapped__(*args, **kwargs)
        assert str(mine.value) == str(theirs.value)
        assert mine.value.__context__ is None


def test_pickling_gives_the_same_function() -> None:
    """By its name, as functions are pickled; a copy is the function itself."""
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert copy.copy(doubled) is doubled
    assert copy.deepcopy(doubled) is doubled


class Model(nn.Module):
    """A module with a decorated method."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 3.0

    @unbuilt
    def forward(self, x: Tensor) -> Tensor:
        """Scales."""
        return x * self.scale


def test_a_module_with_a_decorated_method_can_be_copied_and_pickled() -> None:
    """The method belongs to the class, so that an instance holds nothing of it."""
    model = Model()
    assert_same(copy.deepcopy(model)(X), X * 3)
    assert_same(pickle.loads(pickle.dumps(model))(X), X * 3)


def test_a_method_binds() -> None:
    """As any function in a class does; static and class methods too, with their decorators above."""

    class Box:
        factor = 2.0

        @unbuilt
        def method(self, x: Tensor) -> Tensor:
            return x * self.factor

        @staticmethod
        @unbuilt
        def static(x: Tensor) -> Tensor:
            return x * 3

        @classmethod
        @unbuilt
        def classy(cls, x: Tensor) -> Tensor:
            return x * cls.factor

    class Smaller(Box):
        factor = 0.5

    assert_same(Box().method(X), X * 2)
    assert_same(Smaller().method(X), X * 0.5)
    assert_same(Box.static(X), X * 3)
    assert_same(Box.classy(X), X * 2)
    assert_same(Smaller.classy(X), X * 0.5)
    assert Box.method.cache_info().misses == 2


# what can be decorated


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x: x + 1, (X,)),
        (functools.partial(torch.add, other=2), (X,)),
        (functools.partial(product, X), (X.T,)),
        (functools.partial(functools.partial(torch.sum, dim=1), keepdim=True), (X,)),
        (torch.softmax, (X, -1)),
        (torch.Tensor.relu, (X,)),
        (torch.nn.functional.softmax, (X, -1)),
        (Model().forward.__wrapped__.__get__(Model()), (X,)),
    ],
)
def test_functions_of_every_kind_are_accepted(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Lambdas, partials, builtins, methods: the answer is the undecorated one, and it has a name."""
    f = unbuilt(fn)
    assert_same(f(*args), fn(*args))
    assert isinstance(f.__name__, str)
    assert f.__name__ != "dispatch"
    assert f.__wrapped__ is fn


def test_the_arguments_are_keywords() -> None:
    """A second positional argument is Python's own TypeError."""
    with pytest.raises(TypeError):
        shapedispatch(product, DIMS)


# calls that do not fit


@pytest.mark.parametrize("x", [torch.ones(2, 3, 4), torch.ones(4)], ids=["more", "fewer"])
def test_a_call_of_another_rank_is_plain_with_one_warning(x: Tensor) -> None:
    """The answer is the undecorated one, the warning says why at the caller's line, and comes once."""
    f = built(product, dims=DIMS, hints=(), variants=[Variant(torch.matmul, name="mm")])
    w = torch.ones(4, 5)
    with pytest.warns(UserWarning, match=r"x has .*axes") as seen:
        assert_same(f(x, w), x @ w)
    assert [warning.filename for warning in seen] == [__file__]
    assert_same(f(x, w), x @ w)
    assert f.cache_info().bypasses == 2
    assert f.explain(x, w).origin == "bypass"


def test_one_dim_with_two_sizes_is_plain_with_one_warning() -> None:
    """A declaration that the function's own broadcasting does not share."""
    f = shapedispatch(dims={"x": "M", "y": "M"}, hints=(), variants=[lambda x, y: x + y])(lambda x, y: x + y)
    x, y = torch.ones(4), torch.ones(1)
    with pytest.warns(UserWarning, match="dim M has two sizes: 4 at x.0 and 1 at y.0") as seen:
        assert_same(f(x, y), x + y)
    assert len(seen) == 1
    assert_same(f(x, y), x + y)


def test_plains_own_error_is_the_answer() -> None:
    """What the function raises, the caller gets: the same type and words, at a miss and afterwards."""
    f = built(product, hints=(), variants=[Variant(product, name="other")])
    x, w = torch.ones(2, 3), torch.ones(4, 5)
    with pytest.raises(RuntimeError) as theirs:
        product(x, w)
    for _ in range(3):
        with pytest.raises(RuntimeError) as mine:
            f(x, w)
        assert str(mine.value) == str(theirs.value)


def test_an_error_after_a_write_has_written_once() -> None:
    """A function that writes its argument and then raises does so on the caller's own."""

    def careless(x: Tensor) -> Tensor:
        x.add_(1)
        raise KeyError("after the write")

    f = built(careless, hints=(), mutates=("x",), variants=[Variant(careless, name="other")])
    x = torch.zeros(3)
    for calls in range(1, 4):
        with pytest.raises(KeyError, match="after the write"):
            f(x)
        assert_same(x, torch.full((3,), float(calls)))


# variants


def test_supplied_variants_compete_and_are_judged() -> None:
    """A right one may win; one that is wrong, or crashes, or says that it cannot run, is refused with the reason."""

    def crash(x: Tensor) -> Tensor:
        raise RuntimeError("out of order")

    f = built(
        lambda x: x + 1,
        hints=(),
        variants=[
            Variant(lambda x: 1 + x, name="swapped"),
            Variant(lambda x: x + 2, name="wrong"),
            Variant(lambda x: (x + 1).double(), name="wide"),
            Variant(crash, name="crash"),
            Variant(lambda x: x + 1, name="picky", when=lambda x: "it is Sunday"),
            Variant(lambda x: x + 1, name="confused", when=lambda x: x.nonsense),
        ],
    )
    assert_same(f(X), X + 1)
    choice = f.explain(X)
    assert (choice.variant, choice.origin) == ("swapped", "timed")
    reasons = {refusal.variant: " ".join(refusal.reasons) for refusal in choice.refusals}
    assert "differs in 32 of 32" in reasons["wrong"]
    assert "float64 and not float32" in reasons["wide"]
    assert "out of order" in reasons["crash"]
    assert reasons["picky"] == "it is Sunday"
    assert "AttributeError" in reasons["confused"]


def test_a_variant_that_writes_what_plain_does_not_is_refused() -> None:
    """Found out on copies: the caller's tensor and answer are those of plain."""

    def careless(x: Tensor) -> Tensor:
        y = x + 1
        x.zero_()
        return y

    f = built(lambda x: x + 1, hints=(), variants=[careless])
    x = torch.ones(4)
    assert_same(f(x), torch.full((4,), 2.0))
    assert_same(x, torch.ones(4))
    [refusal] = f.explain(x).refusals
    assert "what it wrote into the arguments" in refusal.reasons[0]


def test_a_variant_can_be_asked_for_by_name() -> None:
    """For bisecting; a name that there is not is an error with the names that there are."""
    f = built(lambda x: x + 1, hints=(), variants=[Variant(lambda x: x + 2, name="wrong")])
    assert_same(f.variant("wrong")(X), X + 2)
    assert_same(f.variant("plain")(x=X), X + 1)
    with pytest.raises(package.NoVariantError, match="plain, wrong"):
        f.variant("nonsense")(X)


# explain, tune, prepare


def test_explain_runs_builds_and_times_nothing() -> None:
    """It says what is known, and counts neither hit nor miss."""
    ran = []

    def noisy(x: Tensor) -> Tensor:
        ran.append(1)
        return x + 1

    f = built(noisy, exact=True, variants=[Variant(noisy, name="other")])
    choice = f.explain(X)
    assert (choice.variant, choice.origin) == ("plain", "unseen")
    info = f.cache_info()
    assert (info.hits, info.misses, info.builds, info.timings, info.currsize) == (0, 0, 0, 0, 0)
    assert ran == []


def test_tune_decides_without_touching_the_arguments() -> None:
    """A function that writes is timed on copies; the caller's tensor is as it was."""
    fn = lambda x: x.add_(1)  # noqa: E731
    f = built(fn, hints=(), mutates=("x",), variants=[Variant(lambda x: x.add_(1.0), name="other")])
    x = torch.zeros(3)
    version = x._version
    choice = f.tune(x)
    assert choice.origin == "timed"
    assert_same(x, torch.zeros(3))
    assert x._version == version
    f(x)
    assert_same(x, torch.ones(3))
    assert f.cache_info().hits == 1


def test_prepare_decides_for_sizes_that_were_not_called_yet() -> None:
    """The given call with named dims resized: afterwards a call of that size is a hit."""
    f = built(product, dims=DIMS, hints=(), variants=[Variant(torch.matmul, name="mm")])
    x, w = torch.randn(4, 8), torch.randn(8, 3)
    chosen = f.prepare({"M": (2, 5), "N": 7}, x, w)
    assert [choice.sizes for choice in chosen] == [{"M": 2, "K": 8, "N": 7}, {"M": 5, "K": 8, "N": 7}]
    f(torch.randn(5, 8), torch.randn(8, 7))
    assert f.cache_info().hits == 1
    assert len(f.choices()) == 2


def test_what_is_prepared_is_what_a_call_finds() -> None:
    """Of a transposed tensor and of one that needs gradients, too."""
    f = built(product, dims=DIMS, hints=(), variants=[Variant(torch.matmul, name="mm")])
    x, w = torch.randn(8, 4).t(), torch.randn(8, 3, requires_grad=True)
    f.prepare({"M": 6}, x, w)
    f(torch.randn(8, 6).t(), w)
    assert f.cache_info().hits == 1


def test_prepare_makes_calls_by_inputs() -> None:
    """Without arguments the calls come from ``inputs``."""

    def inputs(sizes: dict[str, int], like: Any) -> Any:
        return (torch.randn(sizes["M"], 8), torch.randn(8, 3)), {}

    f = built(product, dims=DIMS, hints=(), inputs=inputs, variants=[Variant(torch.matmul, name="mm")])
    assert [choice.sizes["M"] for choice in f.prepare([{"M": 6}, {"M": 9}])] == [6, 9]
    f(torch.randn(9, 8), torch.randn(8, 3))
    assert f.cache_info().hits == 1


def test_cache_clear_forgets() -> None:
    """Choices and counters start at nought."""
    f = unbuilt(product)
    f(X, X.T)
    f(X, X.T)
    f.cache_clear()
    info = f.cache_info()
    assert (info.hits, info.misses, info.currsize, info.misses_by_reason) == (0, 0, 0, {})
    f(X, X.T)
    assert f.cache_info().misses == 1


def test_maxsize_bounds_the_choices() -> None:
    """The least recently used leaves."""
    f = unbuilt(product, maxsize=2)
    for m in (1, 2, 1, 3, 1, 2):
        f(X[:m], X.T)
    info = f.cache_info()
    assert (info.currsize, info.maxsize, info.evictions, info.hits) == (2, 2, 2, 2)


# names, settings


def test_dispatchers_lists_the_living_by_name() -> None:
    """Two of one name are told apart; one that is gone is not listed."""
    one = unbuilt(product, name="tests.same")
    two = unbuilt(product, name="tests.same")
    found = {name: value for name, value in dispatchers().items() if name.startswith("tests.same")}
    assert found["tests.same"] is one
    assert set(found.values()) == {one, two}
    assert len(found) == 2
    del two, found
    gc.collect()
    assert [name for name in dispatchers() if name.startswith("tests.same")] == ["tests.same"]


def test_a_function_defined_anew_takes_its_name_back() -> None:
    """As in a notebook: the dispatcher of the dead function does not hold the name."""
    f = unbuilt(product, name="tests.again")
    del f
    gc.collect()
    f = unbuilt(product, name="tests.again")
    assert dispatchers()["tests.again"] is f


def test_the_default_name_is_module_and_qualified_name() -> None:
    """As settings files name it."""
    assert dispatchers()[f"{__name__}.doubled"] is doubled
    assert f"{__name__}.Model.forward" in dispatchers()


def write_settings(text: str) -> None:
    """A settings file in this test's own working directory."""
    Path("shapedispatch.toml").write_text(text, "utf-8")


def test_who_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment, then the kernel's section, then the decorator, then defaults, then the built-in."""
    write_settings('[defaults]\nmaxsize = 11\nmargin = 0.5\nbudget_ms = 7\n[kernels."tests.wins"]\nmaxsize = 22\n')
    assert unbuilt(product, name="tests.wins", maxsize=33).cache_info().maxsize == 22
    assert unbuilt(product, name="tests.other", maxsize=33).cache_info().maxsize == 33
    assert unbuilt(product, name="tests.another").cache_info().maxsize == 11
    assert unbuilt(product).core.settings.margin == 0.5
    monkeypatch.setenv("SHAPEDISPATCH_MAXSIZE", "44")
    resolve.reset()
    assert unbuilt(product, name="tests.wins", maxsize=33).cache_info().maxsize == 44


def test_a_sections_hints_are_checked_against_the_dims(monkeypatch: pytest.MonkeyPatch) -> None:
    """A section that names a dim which the function has not is an error that says so, where the file was named."""
    monkeypatch.setenv("SHAPEDISPATCH_SETTINGS", "shapedispatch.toml")
    write_settings('[kernels."tests.hints"]\nhints = { Q = [64] }\n')
    with pytest.raises((DeclarationError, SettingsError), match="'Q' is unknown"):
        shapedispatch(product, name="tests.hints", dims=DIMS)


@pytest.mark.parametrize("setting", ['static = ["Q"]', "hints = {Q = [2]}"])
def test_a_setting_that_does_not_fit_the_function_says_where_it_stands(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File and section; of what the decorator says only the words."""
    monkeypatch.setenv("SHAPEDISPATCH_SETTINGS", "shapedispatch.toml")
    section = 'kernels."mine"'
    write_settings(f"[{section}]\n{setting}\n")
    with pytest.raises(DeclarationError) as caught:
        shapedispatch(dims=DIMS, store=False, name="mine")(product)
    assert f"shapedispatch.toml [{section}]: " in str(caught.value)
    write_settings("")
    with pytest.raises(DeclarationError) as caught:
        shapedispatch(dims=DIMS, static=("Q",), store=False, name="mine")(product)
    assert "toml" not in str(caught.value)


def test_a_bad_settings_file_that_was_found_is_left_out_with_a_warning() -> None:
    """The decoration works with what else there is."""
    write_settings("[defaults]\nmaxsise = 3\n")
    with pytest.warns(UserWarning, match="maxsise"):
        f = unbuilt(product)
    assert f.cache_info().maxsize == 4096


def test_a_bad_settings_file_that_was_named_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With file, section, setting, what was found and what is allowed."""
    path = tmp_path / "mine.toml"
    path.write_text("[defaults]\nmaxsize = 0\n", "utf-8")
    monkeypatch.setenv("SHAPEDISPATCH_SETTINGS", str(path))
    with pytest.raises(SettingsError) as raised:
        unbuilt(product)
    for part in (str(path), "defaults", "maxsize", "0"):
        assert part in str(raised.value)


def test_pick_forces_a_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, without timing; where it cannot run the others decide."""
    monkeypatch.setenv("SHAPEDISPATCH_PICK", "mm")
    f = shapedispatch(product, hints=(), variants=[Variant(torch.matmul, name="mm")])
    f(X, X.T)
    assert (f.explain(X, X.T).variant, f.explain(X, X.T).origin) == ("mm", "pinned")
    assert f.cache_info().timings == 0


# jaxtyping


def test_jaxtyping_annotations_name_the_dims() -> None:
    """Functions annotated with jaxtyping need no ``dims``."""
    jaxtyping = pytest.importorskip("jaxtyping")
    fn = lambda x, w: x @ w  # noqa: E731
    fn.__annotations__ = {"x": jaxtyping.Float[Tensor, "M K"], "w": jaxtyping.Float[Tensor, "K N"]}
    f = unbuilt(fn)
    assert f.explain(X, X.T).sizes == {"M": 4, "K": 8, "N": 4}


def test_an_annotation_that_does_not_resolve_is_no_error() -> None:
    """Names that exist for a type checker only say nothing of dims."""

    def fn(x: Nonsense) -> Tensor:  # type: ignore[name-defined]  # noqa: F821
        return x

    assert_same(unbuilt(fn)(X), X)


# the import


def test_the_import_is_light() -> None:
    """Importing and decorating load neither Dynamo nor Inductor beyond what torch itself does."""
    code = (
        "import sys, torch; before = set(sys.modules); from shapedispatch import shapedispatch\n"
        "shapedispatch(lambda x: x)\n"
        "new = [m for m in set(sys.modules) - before if m.startswith(('torch._dynamo', 'torch._inductor', 'triton'))]\n"
        "print(new)"
    )
    done = forked.python("-c", code, env={"PYTHONPATH": ":".join(sys.path)}, folder=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_call_that_the_function_refuses_is_told_by_the_function_alone() -> None:
    """No word of builds beside its error."""
    f = shapedispatch(store=False, exact=True, hints=())(product)
    with warnings.catch_warnings(action="error"), pytest.raises(RuntimeError, match="cannot be multiplied"):
        f(torch.ones(2, 3), torch.ones(2, 3))


def test_a_module_stays_whole_after_a_wrong_call() -> None:
    """That its forward raised for a wrong size says nothing of whether it can be compiled as a whole."""
    module = shapedispatch(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), store=False, hints=())
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        module(torch.ones(2, 5))
    module(torch.ones(2, 3))
    assert not any("as a whole" in note for note in module.forward.explain(torch.ones(2, 3)).notes)


def test_what_only_the_trace_refuses_is_told_once_the_function_has_answered() -> None:
    """An operator whose stand-in for the trace raises, which the operator itself does not."""

    @torch.library.custom_op("tests_decorator::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    @doubled.register_fake
    def _(x: Tensor) -> Tensor:
        raise RuntimeError("a stand-in that is wrong")

    f = shapedispatch(store=False, exact=True, hints=())(lambda x: doubled(x))
    with pytest.warns(UserWarning, match="every variant but plain was refused"):
        assert_same(f(torch.ones(3)), torch.full((3,), 2.0))


def test_calls_by_name_go_where_the_code_has_those_names_by_now() -> None:
    """The code was replaced by one that has its parameters in another order."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        """Plain."""
        return x * 2 + y * 3

    def other(y: Tensor, x: Tensor) -> Tensor:
        """The same, of other places."""
        return x * 2 + y * 3

    f = shapedispatch(fn, hints=(), store=False)
    one, two = torch.ones(3), torch.full((3,), 5.0)
    for _ in range(2):
        assert torch.equal(f(x=one, y=two), fn(x=one, y=two))
    fn.__code__ = other.__code__
    for _ in range(2):
        assert torch.equal(f(x=one, y=two), one * 2 + two * 3)
        assert torch.equal(f(two, one), one * 2 + two * 3)
