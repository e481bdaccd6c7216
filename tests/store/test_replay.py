from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Module, Parameter

from shapedispatch.keys import key as keys
from shapedispatch.keys.key import storable
from shapedispatch.store.key_text import canonical
from shapedispatch.store.replay import CannotReplay, axes_of, in_words, made_under, rebuilt, small_random

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool)
LAYOUTS = {
    "as it comes": lambda t: t,
    "transposed": lambda t: t.transpose(0, -1) if t.dim() else t,
    "every other": lambda t: t[..., ::2] if t.dim() else t,
    "shifted": lambda t: t[..., 1:] if t.dim() else t,
    "expanded": lambda t: t[None].expand(3, *t.shape),
}


def text_of(args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, receiver: bool = False) -> str:
    """The key of a call as a store has it."""
    return canonical(storable(keys.key(args, kwargs or {}, receiver)))


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of some dtype, sizes, layout and alignment, that may require a gradient."""
    sizes = draw(st.lists(st.integers(0, 5), max_size=3))
    made = torch.ones(sizes, dtype=draw(st.sampled_from(DTYPES)))
    made = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](made)
    return made.requires_grad_() if made.is_floating_point() and draw(st.booleans()) else made


def of_usual_nans(number: complex) -> complex:
    """The number, where it is none with the bits of ``float("nan")``: others have no key."""
    if isinstance(number, complex):
        return complex(of_usual_nans(number.real), of_usual_nans(number.imag))  # type: ignore[arg-type]  # both are floats
    return math.nan if math.isnan(number) else number


values = st.recursive(
    tensors()
    | st.integers(-(2**70), 2**70)
    | st.booleans()
    | st.floats().map(of_usual_nans)
    | st.none()
    | st.text(max_size=5)
    | st.complex_numbers().map(of_usual_nans)
    | st.sampled_from([torch.float32, torch.device("cpu"), torch.strided]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.lists(values, max_size=3), st.dictionaries(st.sampled_from(["a", "b"]), values, max_size=2))
def test_a_call_that_is_made_of_its_key_has_that_key(args: list[Any], kwargs: dict[str, Any]) -> None:
    """Whatever a key describes in full can be made again."""
    text = text_of(tuple(args), kwargs)
    assert text_of(*rebuilt(text)) == text
    assert text_of(*rebuilt(text, fill=small_random)) == text


@pytest.mark.parametrize("made", [Parameter(torch.ones(2, 3)), Parameter(torch.ones(2), requires_grad=False)])
def test_parameters_are_made_as_such(made: Parameter) -> None:
    """With or without a gradient."""
    ((again,), _) = rebuilt(text_of((made,)))
    assert type(again) is Parameter
    assert again.requires_grad == made.requires_grad


def test_what_is_no_leaf_is_made_as_none() -> None:
    """The result of an operation has a history, and its key says so."""
    text = text_of((torch.ones(2, requires_grad=True) * 2,))
    ((again,), _) = rebuilt(text)
    assert not again.is_leaf
    assert text_of((again,)) == text


def test_inference_tensors_are_made_as_such() -> None:
    """Under the modes of the key."""
    with torch.inference_mode():
        text = text_of((torch.ones(3),))
    with made_under(text):
        args, kwargs = rebuilt(text)
        assert text_of(args, kwargs) == text


def test_the_modes_of_a_key_are_restored() -> None:
    """Grad mode and autocast, inside and not after."""
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        text = text_of((1,))
    with made_under(text):
        assert text_of((1,)) == text
        assert torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64, torch.uint8, torch.float8_e4m3fn])
def test_random_numbers_are_small_and_the_same_each_time(dtype: torch.dtype) -> None:
    """From -1 to 1, whole ones 0 or 1, and the global generator is not asked."""
    before = torch.get_rng_state()
    one, two = torch.empty(50, dtype=dtype), torch.empty(50, dtype=dtype)
    small_random(one)
    small_random(two)
    wide = one.to(torch.complex128)
    assert torch.equal(wide, two.to(torch.complex128))
    assert wide.abs().max() <= math.sqrt(2)
    assert len(set(wide.tolist())) > 1
    assert torch.equal(before, torch.get_rng_state())


class Layer(Module):
    """A receiver."""


T = torch.ones(4)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (text_of((T, T)), "the same tensor stood in two places"),
        (text_of((Layer(), T), receiver=True), "an argument of type Layer"),
        (canonical((*storable(keys.key((T,), {})), ((0, 1, 16),))), "shared memory"),
        (canonical(("kernel", 1)), "not that of a function"),
        (text_of((T,)).replace('"cpu"', '"cuda"'), "cannot be made here"),
    ],
)
def test_what_a_key_does_not_hold_is_told(text: str, sentence: str) -> None:
    """Two places of one tensor, objects, shared memory, another kind of key, a device that is not here."""
    if "cuda" in text and torch.cuda.is_available():
        pytest.skip("there is such a device")
    with pytest.raises(CannotReplay, match=sentence):
        rebuilt(text)


def test_another_device_can_be_asked_for() -> None:
    """For sizes alone no memory is needed."""
    ((again, number), _) = rebuilt(text_of((torch.ones(3, 4).T, 7)), device=torch.device("meta"))
    assert (again.device.type, again.shape, again.stride(), number) == ("meta", (4, 3), (1, 4), 7)


def test_a_call_in_words() -> None:
    """Dtypes, sizes, unusual strides, numbers, names of keywords; cut where it is long; never an exception."""
    assert in_words(text_of((torch.ones(2, 3), torch.ones(3, 2).T, 3.5), {"n": 2})) == (
        "float32[2,3], float32[2,3]^(1,2), 3.5, n=2"
    )
    assert in_words(text_of((Layer(), T), receiver=True)) == "Layer, float32[4]"
    assert len(in_words(text_of(tuple(torch.ones(2, 3) for _ in range(50))))) == 120
    assert in_words("no key") == "no key"


def test_the_sizes_of_a_call_by_place() -> None:
    """Axes of tensors and whole numbers."""
    assert axes_of(text_of((torch.ones(2, 3), 5, 1.5))) == {"arg0.0": 2, "arg0.1": 3, "arg1": 5}
    assert axes_of("no key") == {}


@pytest.mark.parametrize("grad", [True, False])
def test_modes_are_left_as_they_were(grad: bool) -> None:
    """Inference mode sets the grad mode, too."""
    with torch.set_grad_enabled(grad):
        with made_under(canonical(storable(keys.key((torch.ones(2),), {})))):
            assert torch.is_grad_enabled() is grad
        assert torch.is_grad_enabled() is grad
        assert not torch.is_inference_mode_enabled()
