"""Tests of the key of a kernel's calls."""

# ruff: noqa: D101, D103 - kernels, fixtures and stand-ins are named for what they are; every test has its sentence
from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend

from shapedispatch.kernels.specialize import ABSENT, Specializer, parameters_of
from shapedispatch.keys.key import Bypass
from tests.attributes import Thing

CPU = -1  # what a tensor on the CPU answers when asked for its device


@triton.jit
def kernel(x, y, n, scale, B: tl.constexpr, flag: tl.constexpr = False):
    tl.store(x + tl.arange(0, B), n)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["m"])
def unspecialized(x, n, m):
    tl.store(x, n)


def key_function(fn: Any = kernel, **facts: Any) -> Specializer:
    return Specializer(parameters_of(fn), facts.pop("on_this_device", lambda: CPU), **facts)


def key(*args: Any, keys: Specializer | None = None, **kwargs: Any) -> Any:
    return (keys or key_function()).of(*args, **kwargs)[0]


X = torch.zeros(64)
CALL: dict[str, Any] = {"x": X, "y": X, "n": 33, "scale": 1.5, "B": 16}


def same(keys: Specializer | None = None, **change: Any) -> bool:
    """Whether a call keeps its key when some arguments change."""
    keys = keys or key_function()
    return key(keys=keys, **CALL) == key(keys=keys, **{**CALL, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"x": torch.zeros(64, dtype=torch.float16)},
        {"x": X[1:]},
        {"x": None},
        {"x": 0},
        {"y": X[1:]},
        {"n": 1},
        {"n": 32},
        {"n": 2**31 + 1},
        {"n": -(2**31) - 1},
        {"n": 2**63 + 1},
        {"n": 33.0},
        {"n": True},
        {"n": None},
        {"n": tl.constexpr(33)},
        {"scale": 3},
        {"scale": None},
        {"scale": (1.5,)},
        {"B": 32},
        {"B": 16.0},
        {"flag": True},
        {"flag": 0},
        {"flag": 0.0},
        {"num_warps": 8},
        {"debug": True},
    ],
    ids=repr,
)
def test_what_triton_specializes_on_is_in_the_key(change: dict[str, Any]) -> None:
    """Each of these compiles to other code, so none may share a key with the call it changes."""
    assert not same(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"x": torch.zeros(3, 5)},
        {"x": torch.zeros(64)[16:]},
        {"x": torch.nn.Parameter(torch.zeros(2))},
        {"n": 35},
        {"n": -7},
        {"scale": 2.5},
        {"scale": float("nan")},
        {"flag": False},
    ],
    ids=repr,
)
def test_what_a_kernel_cannot_see_is_not_in_the_key(change: dict[str, Any]) -> None:
    """Sizes, strides, a step counter's value, a learning rate: the same compiled kernel is right."""
    assert same(**change)


def test_constants_differ_by_type() -> None:
    """1, True and 1.0 are equal in Python and three constants to Triton; so are 0.0 and -0.0, and two NaNs are one."""
    keys = key_function()
    found = [key(keys=keys, **{**CALL, "flag": flag}) for flag in (1, True, 1.0, 0, False, 0.0, -0.0, None, "1")]

    assert len(set(found)) == len(found)
    assert same(key_function(), flag=False)
    assert key(keys=keys, **{**CALL, "flag": float("nan")}) == key(keys=keys, **{**CALL, "flag": float("nan")})


class Kind(enum.Enum):
    A = 1
    B = 2


class Pair(NamedTuple):
    a: Any
    b: Any


@pytest.mark.parametrize(
    "values",
    [
        (tl.float32, tl.float16, torch.float32),
        (Kind.A, Kind.B),
        ((1, 2), (1, 2.0), (1, True), (1, (2,)), Pair(1, 2)),
        (kernel, unspecialized),
        (tl.constexpr(1), 1, tl.constexpr(True)),
        ("relu", "gelu", ""),
    ],
)
def test_every_kind_of_constant_is_told_apart(values: tuple[Any, ...]) -> None:
    """Types of Triton, enumerations, tuples, device functions and texts."""
    keys = key_function()
    found = [key(keys=keys, **{**CALL, "flag": value}) for value in values]

    assert len(set(found)) == len(values)
    assert found == [key(keys=keys, **{**CALL, "flag": value}) for value in values]


@pytest.mark.parametrize("value", [[1], {"a": 1}, object(), Thing(1), lambda: 0, X])
def test_a_constant_that_cannot_be_keyed_is_a_bypass(value: Any) -> None:
    """Lists cannot be hashed, objects have no value, tensors are no constants."""
    with pytest.raises(Bypass):
        key(**{**CALL, "flag": value})


class Odd(torch.Tensor):
    pass


@pytest.mark.parametrize("value", [X.as_subclass(Odd), "text", [1], object(), 2**64, -(2**63) - 1, torch.float32])
def test_an_argument_of_another_type_is_a_bypass(value: Any) -> None:
    """Subclasses of tensors and whatever Triton refuses go to Triton."""
    with pytest.raises(Bypass):
        key(**{**CALL, "n": value})


def test_fake_tensors_are_a_bypass() -> None:
    """A fake tensor has no memory to launch on."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode, pytest.raises(Bypass):
        key(**{**CALL, "x": mode.from_tensor(X)})


def test_a_tuple_is_keyed_item_by_item() -> None:
    """Tensors inside a tuple count by dtype and alignment, numbers by class."""
    keys = key_function()
    found = [(X, 3), (X[1:], 3), (X.half(), 3), (X, 16), (X, 1), (X, None), Pair(X, 3), ((X,), 3)]

    assert len({key(keys=keys, **{**CALL, "scale": value}) for value in found}) == len(found)
    assert key(keys=keys, **{**CALL, "scale": (X, 3)}) == key(keys=keys, **{**CALL, "scale": (X[16:], 5)})
    with pytest.raises(Bypass):
        key(**{**CALL, "scale": (X.as_subclass(Odd),)})


def test_do_not_specialize_is_heeded() -> None:
    """Where Triton does not specialize there is one key for all of a width."""
    keys = key_function(unspecialized)

    assert key(X, 3, 3, keys=keys) == key(X, 1, 3, keys=keys) == key(X, 16, 3, keys=keys)
    assert key(X, 3, 3, keys=keys) != key(X, 2**40, 3, keys=keys)
    assert key(X, 3, 3, keys=keys) == key(X, 3, 16, keys=keys)
    assert key(X, 3, 3, keys=keys) != key(X, 3, 1, keys=keys)


def test_the_device_is_in_the_key() -> None:
    """The device that kernels run on, and a tensor that lies elsewhere."""
    devices = iter([0, 1, CPU])
    keys = key_function(on_this_device=lambda: next(devices))

    found = [key(keys=keys, **CALL) for _ in range(3)]
    assert len(set(found)) == 3
    assert [keys.class_of(each, ())[0] for each in found] == [0, 1, CPU]
    assert found[2][2] == ()


def test_dims_are_keyed_by_value() -> None:
    """A dim is a size: each value is its own key, told from a bool and a float of that value."""
    keys = key_function(dims=("n",))
    found = [key(keys=keys, **{**CALL, "n": n}) for n in (1, True, 1.0, 33, 35, 2**40, 0, None)]

    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("facet", "change"),
    [
        ("shape", torch.zeros(8, 8)),
        ("stride", torch.zeros(128)[::2]),
        ("offset", torch.zeros(128)[32:96]),
        ("requires_grad", torch.zeros(64, requires_grad=True)),
    ],
)
def test_a_facet_that_is_read_is_in_the_key(facet: str, change: torch.Tensor) -> None:
    """What a heuristic reads of a tensor makes a key of its own; None and numbers there are still keyed."""
    keys = key_function(observed={"x": {facet}})

    assert same(x=change)
    assert not same(keys, x=change)
    assert not same(keys, x=None)
    assert not same(keys, x=3)
    assert same(keys, x=torch.zeros(64))


def test_the_remainder_of_an_address_is_in_the_key() -> None:
    """A heuristic that looks at 64 bytes gets keys for 64 bytes."""
    memory = torch.zeros(256)
    start = (-memory.data_ptr() // 4) % 16
    keys = key_function(observed={"x": {"address % 64"}})
    found = [key(keys=keys, **{**CALL, "x": memory[start + i :]}) for i in (0, 4, 16)]

    assert found[0] != found[1]
    assert found[0] == found[2]


def test_globals_that_are_read_are_in_the_key() -> None:
    """A reader's value counts with its type."""
    values = iter([3, 4, 3.0, 3])
    keys = key_function(global_readers=(lambda: next(values),))
    found = [key(keys=keys, **CALL) for _ in range(4)]

    assert len(set(found)) == 3
    assert found[0] == found[3]


def test_layouts_never_share_a_key() -> None:
    """What was published under fewer reads is not found when more is read."""
    layouts = [{}, {"dims": ("n",)}, {"observed": {"x": {"shape"}}}, {"observed": {"n": {"value"}}}, {"form": True}]

    assert len({key(keys=key_function(**key_schema), **{**CALL, "n": 3}) for key_schema in layouts}) == len(layouts)


def test_spellings_of_a_call_are_one_key() -> None:
    """By position, by keyword, with and without defaults."""
    keys = key_function()

    assert key(X, X, 33, 1.5, 16, keys=keys) == key(keys=keys, **CALL) == key(X, X, scale=1.5, B=16, n=33, keys=keys)


def test_the_form_of_a_call_is_a_key_where_it_is_read() -> None:
    """A function that asks what was given tells the spellings apart."""
    keys = key_function(form=True)

    assert key(X, X, 33, 1.5, 16, keys=keys) != key(keys=keys, **CALL)
    assert key(X, X, 33, 1.5, 16, keys=keys) == key(X, X, 35, 2.5, 16, keys=keys)


@triton.jit
def keyword_only(x, n=3, *, m, B: tl.constexpr = 4):
    tl.store(x, n + m + B)


@pytest.mark.parametrize("form", [False, True])
def test_a_bound_call_has_the_same_key_again(form: bool) -> None:
    """The key of what was bound, with the form that it had, is the key of the call."""
    keys = key_function(keyword_only, form=form)
    args, kwargs = (X,), {"m": 5, "num_warps": 2}
    found, _, raw, options = keys.of(*args, **kwargs)

    assert keys.bind(*args, **kwargs) == (raw, options)
    assert keys.key_of_bound((len(args), *kwargs), raw, options)[0] == found


def test_what_configs_supply_may_be_absent_and_must_not_be_given() -> None:
    """A parameter that a config fills is left out of the call; given as well, Triton decides what that means."""
    keys = key_function(supplied=("B",))
    found, values, raw, options = keys.of(X, X, 33, 1.5)

    assert values[4] is ABSENT
    assert raw[:4] == (X, X, 33, 1.5)
    assert options == {}
    assert found == keys.of(X, X, 33, scale=2.5)[0]
    with pytest.raises(Bypass, match="'B' is given by the call and by a config"):
        keys.of(X, X, 33, 1.5, 16)


def test_values_are_as_a_launch_takes_them() -> None:
    """Tensors as addresses, everything else as it is."""
    _, values, raw, _ = key_function().of(X, None, 33, (X, 2), 16, num_warps=2)

    assert values == (X.data_ptr(), None, 33, (X, 2), 16, False)
    assert raw == (X, None, 33, (X, 2), 16, False)


def test_a_call_that_does_not_bind_is_refused() -> None:
    """As Python refuses it."""
    with pytest.raises(TypeError):
        key(X)
    with pytest.raises(TypeError):
        key(X, X, 33, 1.5, 16, B=16)


@triton.jit
def middle(x, B: tl.constexpr, n):
    tl.store(x + tl.arange(0, B), n)


def test_a_supplied_parameter_may_stand_in_the_middle() -> None:
    """Behind it, arguments come by keyword; one that is missing is for Triton to complain about."""
    keys = key_function(middle, supplied=("B",))

    assert keys.of(X, n=3)[2] == (X, ABSENT, 3)
    with pytest.raises(Bypass, match="missing"):
        keys.of(X)


@triton.jit
def awkward(_x, on_this_device, off, options, constant, v0, k0, B: tl.constexpr):
    tl.store(_x, on_this_device)


def test_parameters_may_have_any_name() -> None:
    """No name in the generated function clashes with a parameter's."""
    keys = key_function(awkward, dims=("on_this_device",))

    assert keys.of(X, 1, 2, 3, 4, 5, 6, B=7, num_warps=1)[2] == (X, 1, 2, 3, 4, 5, 6, 7)


def test_parts_have_names() -> None:
    """A person is told which parts of two keys differ."""
    keys = key_function(dims=("n",), observed={"x": {"shape"}})
    one, other = (key(keys=keys, **{**CALL, **change}) for change in ({}, {"n": 5, "x": X[1:], "num_warps": 2}))

    assert keys.differing(one, other) == ("alignment", "n", "x.shape read", "options")
    assert keys.differing(one, one) == ()
    assert keys.differing(one, key(**CALL)) == ("what is read",)


def test_a_class_leaves_out_sizes() -> None:
    """Calls that differ in dynamic dims, or in what is merely read, are of one class; other dims tell classes apart."""
    keys = key_function(dims=("n", "scale"), observed={"x": {"shape"}, "y": {"value"}})

    def class_of(**change: Any) -> Any:
        return keys.class_of(key(keys=keys, **{**CALL, **change}), ["n"])

    assert class_of() == class_of(n=5) == class_of(x=torch.zeros(8, 8)) == class_of(n=16)
    assert class_of() != class_of(scale=2.5)
    assert class_of() != class_of(B=32)


# ------------------------------------------------------------------------------------ the law, against Triton itself

TENSORS = [X, X[1:], X[16:], X.half(), X.int(), X.double()[1:]]
INTEGERS = st.one_of(
    st.sampled_from([0, 1, -1, 16, 17, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, 2**64 - 1]),
    st.integers(-(2**63), 2**64 - 1),
)
ARGUMENTS = st.one_of(
    st.sampled_from(TENSORS), INTEGERS, st.floats(), st.booleans(), st.none(), st.tuples(INTEGERS, st.booleans())
)
CALLS = st.tuples(ARGUMENTS, ARGUMENTS, INTEGERS, ARGUMENTS, st.sampled_from([16, 32]), st.sampled_from([0, 1, "a"]))


def tritons_key(fn: Any) -> Callable[..., Any]:
    """What Triton would compile for: its own binder's specialization."""
    from triton.runtime.jit import create_function_from_signature

    backend = make_backend(GPUTarget("cuda", 90, 32))
    binder = create_function_from_signature(fn.signature, fn.params, backend)
    return lambda *args: str(binder(*args)[1])


KEYS = key_function()
TRITONS_KEY = tritons_key(kernel)


@given(CALLS, CALLS)
def test_equal_keys_are_one_specialization(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """Two calls with equal keys are compiled to the same kernel by Triton itself."""
    if KEYS.of(*one)[0] == KEYS.of(*other)[0]:
        assert TRITONS_KEY(*one) == TRITONS_KEY(*other)


@given(CALLS, st.data())
def test_one_changed_argument_is_a_changed_specialization_or_the_same_key(one: tuple[Any, ...], data: Any) -> None:
    """The law, where it is most often broken: calls that differ in one argument."""
    place = data.draw(st.integers(0, 3))
    other = (*one[:place], data.draw(ARGUMENTS if place != 2 else INTEGERS), *one[place + 1 :])
    if KEYS.of(*one)[0] == KEYS.of(*other)[0]:
        assert TRITONS_KEY(*one) == TRITONS_KEY(*other)


@given(CALLS)
def test_a_key_is_a_function_of_the_call(call: tuple[Any, ...]) -> None:
    """The same call has the same key, and it can be hashed."""
    assert hash(KEYS.of(*call)[0]) == hash(KEYS.of(*call)[0])
    assert KEYS.of(*call)[0] == KEYS.of(*call)[0]


def test_a_step_counter_makes_three_keys_in_all() -> None:
    """1, multiples of 16, the others: no new key for each step."""
    found = {key(**{**CALL, "n": step}) for step in range(1000)}

    assert len(found) == 3


def test_keys_of_different_arguments_do_not_run_into_each_other() -> None:
    """Which argument is misaligned matters."""
    keys = key_function()
    calls = itertools.product([X, X[1:]], [X, X[1:]])

    assert len({key(keys=keys, **{**CALL, "x": x, "y": y}) for x, y in calls}) == 4
