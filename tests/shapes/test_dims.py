from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shapedispatch.errors import DeclarationError
from shapedispatch.shapes.dims import Axes, Declaration, DimsMismatch, axis_name


def declared(given: Any, *parameters: str, **annotations: Any) -> Declaration:
    """A declaration for a function of those parameters (of x, w and start where none are given)."""
    return Declaration.parse(given, parameters or ("x", "w", "start"), annotations)


def annotation(text: str) -> Any:
    """What has jaxtyping's attribute."""
    return SimpleNamespace(dim_str=text)


def test_names_come_in_the_order_of_their_first_appearance() -> None:
    """Every dim once, an int's too; axes without a name have none."""
    assert declared({"x": "M _ K", "w": "K N", "start": "P"}).names == ("M", "K", "N", "P")


def test_nothing_declared_is_a_declaration() -> None:
    """Bare decorations have no names, and fit every call."""
    assert declared(None).names == ()
    assert declared({}).sizes({"x": (2, 3)}) == {}


def test_a_kernels_string_names_its_parameters() -> None:
    """Each name is an integer parameter and its own dim."""
    kernel = declared("M N", "a", "M", "N")
    assert kernel.names == ("M", "N")
    assert kernel.sizes({"M": 7, "N": 8}) == {"M": 7, "N": 8}


def test_further_axes_stand_anywhere() -> None:
    """``...`` takes no axis, one or many; names behind it count from the end."""
    assert declared({"x": "... K"}).sizes({"x": (4,)}) == {"K": 4}
    assert declared({"x": "M ... K"}).sizes({"x": (2, 8, 9, 4)}) == {"M": 2, "K": 4}
    assert declared({"x": "M ..."}).sizes({"x": (2, 3)}) == {"M": 2}


def test_a_list_of_tensors_has_a_string_each() -> None:
    """Elements are told apart in sizes and names."""
    both = declared({"x": ["M K", "K _"]})
    assert both.sizes({"x": [(2, 3), (3, 4)]}) == {"M": 2, "K": 3}
    assert both.labels("x", 2, (1,)) == ("K", "x[1].1")


def test_axes_without_a_name_are_called_by_their_place() -> None:
    """``x.0`` for an axis that is not named, or of an argument that is not declared."""
    found = declared({"x": "_ K ..."})
    assert found.labels("x", 3) == ("x.0", "K", "x.2")
    assert found.labels("w", 1) == ("w.0",)
    assert axis_name("ws", 0, (1,)) == "ws[1].0"


def test_axes_read_as_they_were_written() -> None:
    """The text of axes is what the declaration said."""
    assert [str(axes) for axes in declared({"x": "M ... _ K", "w": ""}).axes.values()] == ["M ... _ K", ""]


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("M K", Axes(("M", "K"))),
        ("batch 3 n+1", Axes(("batch", None, None))),
        ("*batch c", Axes((), ("c",), True)),
        ("... c", Axes((), ("c",), True)),
        ("*#batch c", Axes((), ("c",), True)),
        ("#n m", Axes((None, "m"))),
        ("_ _rows rows=4 ?t", Axes((None, None, None, None))),
        ("", Axes(())),
    ],
)
def test_annotations_name_axes(text: str, axes: Axes) -> None:
    """jaxtyping's words in ours: numbers, expressions, broadcast axes have no name, ``*name`` is any axes."""
    assert declared(None, x=annotation(text)).axes["x"] == axes


def test_real_annotations_are_understood() -> None:
    """jaxtyping's own annotations, an optional one too."""
    jaxtyping = pytest.importorskip("jaxtyping")
    torch = pytest.importorskip("torch")
    found = jaxtyping.Float[torch.Tensor, "*batch M K"]
    assert declared(None, x=found, w=found | None).names == ("M", "K")
    assert declared(None, x=found | jaxtyping.Int[torch.Tensor, "N"]).names == ()


def test_dims_win_over_annotations_by_argument() -> None:
    """An argument that dims names is as dims says; the others are as annotated."""
    found = declared({"x": "A B"}, x=annotation("M K"), w=annotation("K N"))
    assert found.names == ("A", "B", "K", "N")


def test_annotations_of_other_kinds_say_nothing() -> None:
    """A class, a string, a union of two tensors, the return annotation: no dims."""
    two = SimpleNamespace(dim_str=3)
    assert declared(None, x=int, w="M K", start=two, **{"return": annotation("M")}).names == ()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"y": "M"}, r"unknown argument 'y'.*Allowed are x, w, start"),
        ({"stat": "P"}, r"Did you mean 'start'"),
        ("M N", r"unknown argument 'M'.*Axes of tensors are a mapping"),
        ("x x", r"twice"),
        (["M"], r"allowed is a mapping of argument to axes"),
        ({1: "M"}, r"allowed is a mapping of argument to axes"),
        ({"x": 3}, r"dims of x are 3: allowed is a string"),
        ({"x": []}, r"allowed is a string of names"),
        ({"x": ["M", 2]}, r"allowed is a string of names"),
        ({"x": "M,K"}, r"'M,K' is no name"),
        ({"x": "M 4"}, r"'4' is no name. Allowed are names, _"),
        ({"x": ["M", "N-1"]}, r"dims of x\[1\] are 'N-1'"),
        ({"x": "... M ..."}, r"\.\.\. is allowed once"),
    ],
)
def test_wrong_declarations_say_what_is_allowed(given: Any, says: str) -> None:
    """An error at decoration, with what was given."""
    with pytest.raises(DeclarationError, match=says):
        declared(given)


def test_sizes_of_a_call() -> None:
    """Tensors by their axes, ints by their value; dims in the order of the names."""
    found = declared({"x": "M K", "w": "K N", "start": "P"}).sizes({"x": (2, 3), "w": (3, 4), "start": 5, "other": "a"})
    assert list(found.items()) == [("M", 2), ("K", 3), ("N", 4), ("P", 5)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"x": (2, 3), "w": (4, 5)}, "dim K has two sizes: 3 at x.1 and 4 at w.0"),
        ({"x": (2, 3, 4), "w": (4, 5)}, 'x has 3 axes, and "M K" declares 2'),
        ({"x": (2,), "w": (4, 5)}, 'x has 1 axes, and "M K" declares 2'),
        ({"x": (2, 3)}, "argument w is missing"),
        ({"x": 2, "w": (3, 4)}, 'x is a number, and "M K" declares the axes of a tensor'),
        ({"x": "text", "w": (3, 4)}, 'x is neither a tensor nor an int, and "M K" is declared for it'),
        ({"x": [(2, 3)], "w": (3, 4)}, 'x is neither a tensor nor an int, and "M K" is declared for it'),
        ({"x": (2, 3), "w": None}, "dim N has no size: the arguments that name it are None"),
    ],
)
def test_what_does_not_fit_is_a_sentence(arguments: dict[str, Any], says: str) -> None:
    """A rank, a kind, two sizes, a missing argument: each has its reason."""
    with pytest.raises(DimsMismatch) as caught:
        declared({"x": "M K", "w": "K N"}).sizes(arguments)
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ((2, 3), "argument x is no list of tensors"),
        ([(2, 3)], "argument x has 1 elements, and 2 are declared"),
        ([(2, 3), (3, 4, 5)], r"x\[1\] has 3 axes"),
    ],
)
def test_a_list_that_does_not_fit_is_a_sentence(value: Any, says: str) -> None:
    """No list, another length, an element of another rank."""
    with pytest.raises(DimsMismatch, match=says):
        declared({"x": ["M K", "K N"]}).sizes({"x": value})


def test_a_bool_is_no_size() -> None:
    """True is no 1."""
    with pytest.raises(DimsMismatch, match="neither a tensor nor an int"):
        declared({"start": "P"}).sizes({"start": True})


def test_open_axes_say_at_least() -> None:
    """Too few axes for a declaration with further axes."""
    with pytest.raises(DimsMismatch, match="declares at least 2"):
        declared({"x": "M ... K"}).sizes({"x": (2,)})


def test_an_argument_that_is_none_has_no_say() -> None:
    """An optional tensor may be left out where the others name its dims."""
    for others in ("K", ["M", "K"]):
        assert declared({"x": "M K", "w": others}).sizes({"x": (2, 3), "w": None}) == {"M": 2, "K": 3}


def test_one_dim_twice_in_a_tensor_is_square() -> None:
    """A name on two axes of one argument asks for equal sizes."""
    square = declared({"x": "N N"})
    assert square.sizes({"x": (3, 3)}) == {"N": 3}
    with pytest.raises(DimsMismatch, match=r"two sizes: 3 at x\.0 and 4 at x\.1"):
        square.sizes({"x": (3, 4)})
