"""Tests of finding out what a user's function reads of the arguments."""

# ruff: noqa: D103 - kernels, fixtures and stand-ins are named for what they are; every test has its sentence
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from shapedispatch.kernels.observed_reads import Reads, Unreadable, outside

FACTOR = 3


def reads_of(fn: Callable[[Mapping[str, Any]], Any], **values: Any) -> tuple[Any, Reads]:
    reads = Reads()
    return fn(reads.mapping(values)), reads


@pytest.mark.parametrize(
    "read",
    [
        lambda args: args["K"],
        lambda args: args.get("K"),
        lambda args: args.pop("K"),
        lambda args: args.get("other", args["K"]),
    ],
)
def test_a_value_read_is_noted_by_name(read: Callable[..., Any]) -> None:
    """Only what is asked for is read."""
    answer, reads = reads_of(read, K=64, step=7)

    assert answer == 64
    assert reads.observed == {"K": {"value"}}


@pytest.mark.parametrize(
    "read",
    [
        lambda args: dict(args),
        lambda args: {**args},
        lambda args: args | {},
        lambda args: dict(args.items()),
        lambda args: {name: args[name] for name in args},
        lambda args: (lambda **rest: rest)(**args),
        lambda args: dict(zip(args.keys(), args.values(), strict=True)),
    ],
)
def test_whoever_takes_all_has_read_all(read: Callable[..., Any]) -> None:
    """Iterating, unpacking or copying reads every value, and what was given."""
    answer, reads = reads_of(read, K=64, step=7)

    assert answer == {"K": 64, "step": 7}
    assert reads.observed == {"K": {"value"}, "step": {"value"}}
    assert reads.form


@pytest.mark.parametrize("read", [lambda args: "K" in args, lambda args: len(args), lambda args: list(args)])
def test_asking_what_was_given_makes_the_form_part_of_the_key(read: Callable[..., Any]) -> None:
    """Whether a name is there depends on how the call was written."""
    assert reads_of(read, K=64)[1].form


@pytest.mark.parametrize(
    ("read", "observed"),
    [
        (lambda x: x.shape[0], {"shape"}),
        (lambda x: x.size(0), {"shape"}),
        (lambda x: x.numel(), {"shape"}),
        (lambda x: x.ndim, {"shape"}),
        (lambda x: len(x), {"shape"}),
        (lambda x: torch.numel(x), {"shape"}),
        (lambda x: x.nbytes, {"shape"}),
        (lambda x: x.stride(0), {"stride"}),
        (lambda x: x.is_contiguous(), {"shape", "stride"}),
        (lambda x: x.storage_offset(), {"offset"}),
        (lambda x: x.requires_grad, {"requires_grad"}),
        (lambda x: x.data_ptr() % 32, {"address % 32"}),
        (lambda x: x.data_ptr() & 127, {"address % 128"}),
        (lambda x: 7 & x.data_ptr(), {"address % 8"}),
        (lambda x: x.dtype, set()),
        (lambda x: x.element_size(), set()),
        (lambda x: x.device.type, set()),
        (lambda x: x.is_cuda, set()),
        (lambda x: x is None, set()),
        (lambda x: isinstance(x, torch.Tensor), set()),
    ],
)
def test_a_tensors_facets_are_noted(read: Callable[[torch.Tensor], Any], observed: set[str]) -> None:
    """What is read of a tensor answers as on the tensor, and its part of the key is noted."""
    x = torch.randn(6, 4)[1:, ::2].requires_grad_()

    answer, reads = reads_of(lambda args: read(args["x"]), x=x)

    assert answer == read(x)
    assert reads.observed == {"x": observed}


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.max(),
        lambda x: x.item(),
        lambda x: x[0],
        lambda x: x + 1,
        lambda x: x.data_ptr() & 12,
        lambda x: x.untyped_storage(),
        lambda x: torch.zeros(3).add(x),
    ],
)
def test_values_of_a_tensor_cannot_be_read(read: Callable[[torch.Tensor], Any]) -> None:
    """What no key holds is refused, and not answered."""
    with pytest.raises(Unreadable):
        reads_of(lambda args: read(args["x"]), x=torch.ones(1))


def test_a_whole_address_cannot_be_read() -> None:
    """Only remainders of an address can be keyed."""
    with pytest.raises(TypeError):
        reads_of(lambda args: args["x"].data_ptr() + 1, x=torch.ones(1))


def test_a_parameter_is_watched_too() -> None:
    """nn.Parameter is read as a tensor."""
    answer, reads = reads_of(lambda args: args["x"].shape[0], x=torch.nn.Parameter(torch.ones(3)))

    assert answer == 3
    assert reads.observed == {"x": {"shape"}}


def test_keywords_count_where_the_function_can_reach_them() -> None:
    """A function that swallows ``**rest`` without looking has read only what it names."""
    values = {"M": 1, "N": 2}
    cases: list[tuple[Callable[..., Any], set[str]]] = [
        (lambda M, **rest: M, {"M"}),
        (lambda M, **rest: rest["N"], {"M", "N"}),
        (lambda **rest: dict(rest), {"M", "N"}),
        (lambda **rest: 1, set()),
    ]
    for fn, expected in cases:
        reads = Reads()
        fn(**reads.unpacked(fn, values))

        assert set(reads.observed) == expected


def test_a_builtin_counts_as_reading_everything_it_takes() -> None:
    """There is no code to look at in a builtin."""
    reads = Reads()
    reads.unpacked(dict, {"M": 1})

    assert set(reads.observed) == {"M"}


def test_plain_globals_and_closures_are_found() -> None:
    """Numbers that a function takes from outside have readers; modules and functions have none."""
    limit = 5

    def fn(args: Mapping[str, Any]) -> bool:
        torch.is_tensor(0)
        return max(args["n"], FACTOR) > limit

    readers = outside(fn)

    assert sorted(reader() for reader in readers) == [3, 5]
    limit = 6
    assert sorted(reader() for reader in readers) == [3, 6]


def test_a_builtin_reads_nothing_from_outside() -> None:
    """Without code there are no globals."""
    assert outside(max) == []


class Held:
    """Something with a number and with none."""

    number = 4
    other = object()


HELD, ITEMS = Held(), {"a": 1, "b": object(), 7: 2}


def test_numbers_on_objects_and_in_dicts_are_found() -> None:
    """By the names and the constants in the code; what is no plain value is not read."""
    readers = outside(lambda: (HELD.number, HELD.other, ITEMS["a"], ITEMS["b"], ITEMS[7], "missing"))
    assert sorted(read() for read in readers) == [1, 2, 4]


def test_a_reader_outlives_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another thing stands now, it answers with what equals none of before, and does not raise."""
    (read,) = outside(lambda: ITEMS["a"])
    monkeypatch.setitem(globals(), "ITEMS", None)
    assert read() not in (1, None)


def test_what_a_library_reads_is_not_looked_into() -> None:
    """No user changes it between two launches."""
    assert outside(lambda: torch.broadcast_shapes((1,), (2,))) == []


class Called:
    """A heuristic that is an object, or a method of one."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, args: Any) -> int:
        """Reads."""
        return self.number

    def method(self, args: Any) -> int:
        """Reads, too."""
        return self.number


def made(number: int) -> Callable[[], int]:
    return lambda: number


@pytest.mark.parametrize("fn", [Called(3), Called(3).method])
def test_what_hangs_on_the_object_that_is_called_is_found(fn: Any) -> None:
    """Under the names that its code has."""
    assert [read() for read in outside(fn)] == [3]


def test_functions_of_one_code_are_each_looked_into() -> None:
    """They differ in what they close over."""
    one, other = made(1), made(2)
    assert sorted(read() for read in outside(lambda: (one(), other()))) == [1, 2]
