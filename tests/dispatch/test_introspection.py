from __future__ import annotations

from typing import Any

import pytest
import torch

from shapedispatch import NoVariantError, shapedispatch
from shapedispatch.dispatch import introspection
from shapedispatch.errors import DeclarationError
from shapedispatch.records import Refusal
from tests.fake_core import Backend, call, core_of
from tests.fuzzing import baking


@pytest.fixture
def backend() -> Backend:
    """A backend that offers plain and one other."""
    return Backend("other")


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


def test_prepare_refuses_a_dim_that_there_is_not(backend: Backend) -> None:
    """Before anything is tuned at sizes that nobody asked for."""
    core = core_of(backend)
    with pytest.raises(DeclarationError, match="'Q' is no dim of this call. Allowed are M"):
        core.prepare({"M": 2, "Q": [1]}, 1)
    assert core.cache_info().misses == 0


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


# ------------------------------------------------------------------------------------------------------- for a person


def test_symbolic_sizes_hash_by_environment_and_expression() -> None:
    """In the safe road, for `explain`: they never reach a build."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    one, other = (FakeTensorMode(shape_env=ShapeEnv()) for _ in range(2))
    a, b = (mode.from_tensor(torch.ones(5, 3), static_shapes=False).shape[0] for mode in (one, other))
    assert hash(introspection.symbolic(a)) == hash(introspection.symbolic(a))
    assert introspection.symbolic(a) != introspection.symbolic(b)
    assert introspection.symbolic(7) == 7


def test_a_symbolic_call_is_explained_and_never_dispatched() -> None:
    """Under a fake mode with symbolic sizes, as an exporter has it."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    f = baking(lambda x: x * 2)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x = mode.from_tensor(torch.ones(5, 3), static_shapes=False)
        assert f(x).shape == x.shape
        assert f.explain(x).origin == "bypass"
        assert hash(f.explain(x).key) is not None
    assert f.cache_info().misses == 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_a_nested_call_is_explained_and_never_dispatched(layout: torch.layout) -> None:
    """Its sizes are symbolic, or none, and belong to nothing."""
    f = baking(lambda x: x * 2)
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)
    for _ in range(2):
        f(x)
    choice = f.explain(x)
    assert (choice.variant, choice.origin) == ("plain", "bypass")
    assert "nested" in str(choice.notes).lower()


class Doubling:
    """Something with a method."""

    @shapedispatch(hints=(), store=False)
    def double(self, x: torch.Tensor) -> torch.Tensor:
        """Twice."""
        return x * 2


def test_a_method_asked_through_an_instance_says_how() -> None:
    """Python does not hand the instance on to what is found on a method."""
    thing = Doubling()
    for ask in (thing.double.explain, thing.double.tune):  # type: ignore[attr-defined]
        with pytest.raises(TypeError, match=r"Of a method, ask the class.*Doubling\.double\.explain\(instance, "):
            ask(torch.ones(3))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'$"):
        shapedispatch(lambda x: x, hints=(), store=False).explain()


def test_none_means_left_out() -> None:
    """Of options that a wrapper hands on."""
    f: Any = shapedispatch(lambda x: x * 2, hints=(), store=False, static=None, exact=None, maxsize=None, buckets=None)
    assert f.core.settings.maxsize == 4096
    g: Any = shapedispatch(lambda x: x * 2, hints=(), store=False, variants=None, objective=None)
    assert g.core.objective == "time"


def test_lists_of_choices_are_read_as_lines() -> None:
    """Those of `choices`, `prepare` and `load`; nobody need know the fields of a record."""
    f: Any = shapedispatch(lambda x: x * 2, dims={"x": "M"}, hints=(), store=False)
    assert repr(f.choices()) == repr(f.load()) == "nothing is chosen yet"
    prepared = f.prepare({"M": [3, 4]}, torch.ones(2))
    assert str(prepared) == "plain (only) at M=3\nplain (only) at M=4"
    assert str(f.choices()) == str(prepared)
