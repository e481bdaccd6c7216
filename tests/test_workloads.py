"""Every benchmark workload answers what its reference answers, and the pure views are views."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from benchmarks.workloads import Workload, as_tuple, load, load_all

CASES = [
    pytest.param(workload, sizes, dtype, id=f"{name}-{'x'.join(map(str, sizes.values()))}-{str(dtype)[6:]}")
    for name, workload in load_all().items()
    for sizes in workload.small_sweep
    for dtype in workload.tolerance
]


@pytest.mark.parametrize(("workload", "sizes", "dtype"), CASES)
def test_answers_are_those_of_the_float64_reference(workload: Workload, sizes: dict, dtype: torch.dtype) -> None:
    """Outputs, and gradients where there are any, are within the workload's own tolerance."""
    workload.check(workload.fn, workload.inputs(sizes, dtype=dtype))


@pytest.mark.parametrize("name", load_all())
def test_a_wrong_answer_fails_the_check(name: str) -> None:
    """The tolerance is tight enough to see an error of an eighth."""
    workload = load(name)
    args = workload.inputs(workload.small_sweep[0])
    with pytest.raises(AssertionError):
        workload.check(lambda *call: tuple(out * 1.125 for out in as_tuple(workload.fn(*call))), args)


def test_a_wrong_gradient_fails_the_check() -> None:
    """Gradients are compared, not only outputs."""
    workload = load("layer_norm")
    args = workload.inputs(workload.small_sweep[0])

    def half_gradient(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return workload.fn((x + x.detach()) / 2, *rest)

    with pytest.raises(AssertionError, match="gradient 0"):
        workload.check(half_gradient, args)


def test_a_pure_view_returns_views_of_its_input() -> None:
    """Every output of a workload that says it is a view shares its argument's storage."""
    for workload in (found for found in load_all().values() if found.is_view):
        args = workload.inputs(workload.small_sweep[0])
        outputs = as_tuple(workload.fn(*args))
        assert outputs
        assert all(out.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr() for out in outputs)


def test_the_slice_of_rope_is_there_and_is_a_view() -> None:
    """The segment of nvFuser#2577 is among the workloads that must launch nothing."""
    assert load("rope_slice").is_view


@pytest.mark.parametrize("name", load_all())
def test_declarations_name_the_arguments_and_their_ranks(name: str) -> None:
    """``dims`` fits the tensors of every sweep entry, size by size, and ``static`` and ``hints`` name its dims."""
    workload = load(name)
    parameters = workload.fn.__code__.co_varnames
    for sizes in workload.small_sweep:
        call = dict(zip(parameters, workload.inputs(sizes), strict=False))
        for argument, dims in workload.dims.items():
            assert tuple(call[argument].shape) == tuple(sizes[dim] for dim in dims.split())
    assert {*workload.static, *workload.hints} <= {*workload.sweep[0]} == {*workload.small_sweep[0]}


def test_the_same_seed_gives_the_same_numbers() -> None:
    """Runs can be compared: inputs depend on the seed alone."""
    workload = load("softmax")
    sizes = workload.small_sweep[0]
    assert torch.equal(*(workload.inputs(sizes, seed=3)[0] for _ in range(2)))
    assert not torch.equal(workload.inputs(sizes, seed=3)[0], workload.inputs(sizes, seed=4)[0])


def test_workloads_are_found_by_file_and_called_as_it() -> None:
    """A new file is a new workload; its record carries the file's name."""
    found = load_all()
    assert {"layer_norm", "relu_matmul", "rope", "rope_slice", "softmax", "xsa_expand", "xsa_unsqueeze"} <= set(found)
    assert all(name == workload.name for name, workload in found.items())
    assert all(dataclasses.is_dataclass(workload) for workload in found.values())
