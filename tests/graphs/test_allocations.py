"""Where generated code takes its memory, and how it is given other memory while it is recorded."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from shapedispatch.graphs.allocations import Allocations


def strided(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """As what Inductor's modules call."""
    return torch.empty_strided(size, stride, dtype=dtype)


def test_they_are_noted_in_their_order() -> None:
    """Whichever module asks; afterwards nobody looks."""
    one, other = SimpleNamespace(empty_strided_cpu=strided), SimpleNamespace(empty_strided_cuda=strided, mine=strided)
    with Allocations([one, other]).noted() as found:
        made = [
            module((4,), (1,), torch.float32)
            for module in (one.empty_strided_cpu, other.empty_strided_cuda, other.mine, one.empty_strided_cpu)
        ]
    assert found == [made[at].data_ptr() for at in (0, 1, 3)]
    assert one.empty_strided_cpu is other.empty_strided_cuda is strided


def test_some_are_answered_with_other_memory() -> None:
    """By their number, in the form that is asked for."""
    module, given = SimpleNamespace(empty_strided_cpu=strided), torch.zeros(8)
    with Allocations([module]).answered({1: given}):
        first, second, third = (module.empty_strided_cpu((2, 2), (1, 2), torch.int32) for _ in range(3))
    assert second.data_ptr() == given.data_ptr()
    assert (second.stride(), second.dtype) == ((1, 2), torch.int32)
    assert given.data_ptr() not in (first.data_ptr(), third.data_ptr())


def test_memory_that_is_too_small_is_not_taken() -> None:
    """The run is not the one that was recorded first, then."""
    module, given = SimpleNamespace(empty_strided_cpu=strided), torch.zeros(8)
    with Allocations([module]).answered({0: given}):
        made = module.empty_strided_cpu((9,), (1,), torch.float32)
    assert (made.data_ptr() != given.data_ptr(), made.untyped_storage().nbytes()) == (True, 36)


def test_other_threads_allocate_as_ever() -> None:
    """They run the same code meanwhile."""
    module, given, made = SimpleNamespace(empty_strided_cpu=strided), torch.zeros(8), []
    with Allocations([module]).answered({0: given}):
        thread = threading.Thread(target=lambda: made.append(module.empty_strided_cpu((8,), (1,), torch.float32)))
        thread.start()
        thread.join()
        here = module.empty_strided_cpu((8,), (1,), torch.float32)
    assert made[0].data_ptr() != given.data_ptr()
    assert here.data_ptr() == given.data_ptr()


def test_it_is_as_before_after_an_error() -> None:
    """A run that cannot be recorded."""
    module = SimpleNamespace(empty_strided_cpu=strided)
    with pytest.raises(ZeroDivisionError), Allocations([module]).noted():
        raise ZeroDivisionError
    assert module.empty_strided_cpu is strided
