from __future__ import annotations

import functools
import inspect
import itertools
import types
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shapedispatch.keys.signature import Signature, frame_locals, positional_names, with_code


def mixed(a: int, b: int = 2, /, c: int = 3, *, d: int = 4, e: int = 5) -> None:
    """Positional-only, ordinary and keyword-only parameters, with defaults."""


def packed(a: int, *rest: int, d: int = 4, **more: int) -> None:
    """Packed positional and keyword arguments."""


MIXED = Signature.of(mixed)
values = st.integers(-3, 3)


@given(a=values, b=values, c=values, d=values, e=values, by_name=st.sets(st.sampled_from("cde")), data=st.data())
def test_every_spelling_of_a_call_has_one_normal_form(
    a: int, b: int, c: int, d: int, e: int, by_name: set[str], data: st.DataObject
) -> None:
    """By position or by name, in any order: the normal form is the same, keywords in the signature's order."""
    keywords = {"d": d, "e": e} | ({"c": c} if "c" in by_name else {})
    shuffled = dict(data.draw(st.permutations(list(keywords.items()))))
    args = (a, b) if "c" in by_name else (a, b, c)
    normal = MIXED.normal(args, shuffled)
    assert normal == ((a, b, c), {"d": d, "e": e})
    assert list(normal[1]) == ["d", "e"]


@given(a=values, given_d=st.booleans())
def test_defaults_are_filled_in(a: int, given_d: bool) -> None:
    """A default that is spelled out and one that is left out are the same call."""
    assert MIXED.normal((a,), {"d": 4} if given_d else {}) == ((a, 2, 3), {"d": 4, "e": 5})


@given(args=st.lists(values, min_size=3, max_size=3), d=values, e=values)
def test_the_normal_form_of_a_normal_form_is_itself(args: list[int], d: int, e: int) -> None:
    """Nothing is changed twice."""
    once = MIXED.normal(tuple(args), {"d": d, "e": e})
    assert MIXED.normal(*once) == once


def test_a_bare_call_is_passed_through() -> None:
    """With as many positional arguments as there are parameters and no keywords, the very tuple comes back."""
    signature = Signature.of(lambda x, y: None)
    args = (1, 2)
    assert signature.normal(args, {})[0] is args


def test_packed_arguments_stay_where_they_are() -> None:
    """``*rest`` follows the positional arguments, ``**more`` the keyword-only ones."""
    signature = Signature.of(packed)
    assert signature.normal((1, 2, 3), {"z": 6, "d": 7}) == ((1, 2, 3), {"d": 7, "z": 6})
    assert signature.normal((), {"a": 1}) == ((1,), {"d": 4})
    assert signature.arguments((1, 2, 3), {"d": 7, "z": 6}) == {"a": 1, "rest": (2, 3), "d": 7, "z": 6}


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3, 4), {}), ((1,), {"z": 1}), ((1,), {"a": 1}), ((1, 2, 3), {"c": 1})]
)
def test_a_call_that_the_function_refuses_is_a_type_error(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Too few, too many, unknown, positional-only by name, twice."""
    with pytest.raises(TypeError):
        mixed(*args, **kwargs)
    with pytest.raises(TypeError):
        MIXED.normal(args, kwargs)


@pytest.mark.parametrize(
    "code", [mixed.__code__, (lambda a, c, b: None).__code__, (lambda a, b, c, d=1: None).__code__]
)
def test_a_function_that_takes_other_arguments_by_now_is_called_as_it_is(code: types.CodeType) -> None:
    """Their names and places are those of its new code: in normal form by the old ones it is another call."""

    def fn(a: int, b: int, c: int) -> None:
        """Plain."""

    signature = Signature.of(fn)
    fn.__code__ = code
    with pytest.raises(TypeError, match="its code was replaced"):
        signature.normal((), {"a": 1, "b": 2, "c": 3})
    fn.__code__ = (lambda a, b, c: a).__code__
    assert signature.normal((), {"a": 1, "b": 2, "c": 3}) == ((1, 2, 3), {})


@given(
    data=st.data(), given_by_place=st.integers(0, 4), names=st.sets(st.sampled_from(["a", "c", "d", "e", "z", "self"]))
)
def test_python_binds_as_inspect_does(data: st.DataObject, given_by_place: int, names: set[str]) -> None:
    """Whatever a function takes, and whatever it is given: the same form, or an error of both."""
    fn = data.draw(st.sampled_from([mixed, packed, lambda a, *c: 0, lambda *, d, z=1: 0, lambda self, a=1, **d: 0]))
    args, kwargs = tuple(range(given_by_place)), {name: ord(name[0]) for name in sorted(names)}
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError):
            Signature.of(fn).normal(args, kwargs)
        return
    bound.apply_defaults()
    found = Signature.of(fn).normal(args, kwargs)
    assert (found, [*found[1]]) == ((bound.args, bound.kwargs), [*bound.kwargs])


def test_a_builtin_without_a_signature_takes_its_arguments_as_they_come() -> None:
    """Nothing is known of their names, so spellings stay apart."""
    signature = Signature.of(torch.softmax)
    assert signature.normal((1, 2), {"dtype": 3}) == ((1, 2), {"dtype": 3})
    assert signature.arguments((1, 2), {"dtype": 3}) == {"0": 1, "1": 2, "dtype": 3}


def test_a_partials_signature_is_what_is_left() -> None:
    """Bound positional arguments are no parameters any more, bound keywords are defaults."""
    signature = Signature.of(functools.partial(mixed, 1, d=9))
    assert signature.normal((2,), {}) == ((2, 3), {"d": 9, "e": 5})


def test_what_a_function_says_of_its_signature_is_not_believed() -> None:
    """A wrapper that took the ``__signature__`` of another over takes what it takes."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    wrapper.__signature__ = inspect.signature(mixed)  # type: ignore[attr-defined]  # as functools.wraps copies it
    assert Signature.of(wrapper).normal((1,), {"c": 2}) == ((1,), {"c": 2})


def test_a_copy_keeps_defaults_globals_and_closure() -> None:
    """Of both kinds of defaults."""
    bound = 5

    def fn(a: int, b: int = 2, *, c: int = 3) -> tuple[Any, ...]:
        return a, b, c, bound, MIXED

    copy = with_code(fn, fn.__code__)
    assert copy(1) == fn(1) == (1, 2, 3, bound, MIXED)


def test_defaults_are_those_that_the_function_has_now() -> None:
    """Replaced, changed in place, and those of a partial: plain would fill in the same."""

    def fn(x: int, y: int = 1, *, z: int = 2) -> None: ...

    signature = Signature.of(fn)
    assert signature.normal((0,), {}) == ((0, 1), {"z": 2})
    fn.__defaults__ = (3,)
    assert signature.normal((0,), {}) == ((0, 3), {"z": 2})
    assert fn.__kwdefaults__ is not None
    fn.__kwdefaults__["z"] = 4
    assert signature.normal((0,), {}) == ((0, 3), {"z": 4})
    bound = functools.partial(fn, y=5)
    signature = Signature.of(bound)
    bound.keywords["y"] = 6
    assert signature.normal((0,), {}) == ((0,), {"y": 6, "z": 4})


def test_where_all_parameters_are_positional_they_are_the_locals() -> None:
    """And of no other function: one that closes over something, packs, or has keywords alone."""

    def closes(a: int) -> tuple[int, Any]:
        return a, values

    def closes_over_a_local(a: int) -> tuple[int, Any]:
        return a, closes

    def plain(a: int, b: int = 2, /, c: int = 3) -> int:
        d = a
        return d + b + c

    assert positional_names(plain) == ("a", "b", "c")  # type: ignore[arg-type]  # to mypy no function is a FunctionType
    locals_ = frame_locals(plain, (1, 2, 3), {})  # type: ignore[arg-type]  # as above
    assert locals_ == dict(zip("abc", (1, 2, 3), strict=True))
    assert positional_names(closes) == ("a",)  # type: ignore[arg-type]  # as above
    for other in (mixed, packed, closes_over_a_local, lambda *rest: rest, lambda **more: more):
        assert positional_names(other) is None  # type: ignore[arg-type]  # as above


def by_place_or_name(a: int, b: int = 2, c: int = 3) -> None:
    """Takes nothing but that."""


def first_by_place(a: int, b: int, /, c: int = 3) -> None:
    """Takes two by place alone."""


@pytest.mark.parametrize("fn", [by_place_or_name, first_by_place])
def test_a_call_that_names_arguments_is_bound_as_python_binds_it(fn: Any) -> None:
    """All calls of up to four arguments by place, and any of the names and an unknown one: filled in or refused."""
    signature, told = Signature.of(fn), inspect.signature(fn)
    for count, named in itertools.product(range(5), itertools.product((False, True), repeat=4)):
        args = tuple(range(count))
        kwargs = {name: f"{name}!" for name, given in zip("abcd", named, strict=True) if given}
        try:
            bound = told.bind(*args, **kwargs)
        except TypeError:
            with pytest.raises(TypeError):
                signature.normal(args, kwargs)
        else:
            bound.apply_defaults()
            assert signature.normal(args, kwargs) == (bound.args, bound.kwargs)
