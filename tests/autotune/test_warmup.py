"""Tests of warmup: what compares numbers on a device is loaded a few operators at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shapedispatch.autotune.choose import Rules, checked
from shapedispatch.autotune.compare import is_large
from shapedispatch.autotune.trial import Trial
from shapedispatch.autotune.warmup import PART_NS, Warmup
from shapedispatch.backend import Candidate

TRIAL = Trial((torch.ones(3, 5), 7, torch.ones(4, dtype=torch.int32)), {}, ("x", "n", "i"), ("x",), False)


class Loading(TorchDispatchMode):
    """An operator takes longer than a part the first time that it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.loaded = list[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in self.loaded:
            self.loaded.append(func)
            self.now_ns += 2 * PART_NS
        return func(*args, **(kwargs or {}))


def compare(few: Trial) -> None:
    """As kernels are compared that write nothing."""
    alike = [Candidate(name, lambda *args: None, None) for name in ("plain", "other")]
    checked(alike, few, Rules(lambda call: 0.0), {})


def test_each_part_loads_what_one_more_call_runs_until_all_is_loaded() -> None:
    """Nothing is loaded twice, and none is left out; such a call is that of a few operators at most."""
    with Loading() as loading:
        warmup, parts = Warmup(lambda: loading.now_ns), list[int]()
        while not warmup.is_over(TRIAL):
            before = len(loading.loaded)
            warmup.go_on(TRIAL, compare)
            parts.append(len(loading.loaded) - before)
        assert max(parts) <= 3 < sum(parts) / 4
        at_once = len(loading.loaded)
        compare(TRIAL)
        assert len(loading.loaded) == at_once
    assert torch.ops.aten.amax.default in loading.loaded


def test_it_comes_to_an_end_where_operators_take_long_that_are_loaded() -> None:
    """As on a slow host, or where there are many: each part begins anew, and each comes further."""
    now_ns = [0]

    def clock_ns() -> int:
        now_ns[0] += PART_NS // 3
        return now_ns[0]

    warmup, parts = Warmup(clock_ns), 0
    while not warmup.is_over(TRIAL):
        warmup.go_on(TRIAL, compare)
        parts += 1
        assert parts < 200
    assert parts > 9


def test_what_was_warmed_up_is_warmed_up_no_more() -> None:
    """It tells calls of other dtypes apart, and of many numbers."""
    warmup = Warmup(lambda: 0)
    assert warmup.go_on(TRIAL, compare) is True
    assert warmup.is_over(TRIAL)
    assert warmup.is_over(Trial((*TRIAL.args[::-1], torch.zeros(8)), {}, ("i", "n", "x", "y"), None, False))
    assert not warmup.is_over(Trial((torch.ones(3, dtype=torch.float64),), {}, ("x",), None, False))


def test_a_warmup_reads_none_of_the_call() -> None:
    """It has a few numbers for each dtype, however many tensors a call has."""
    seen: list[Trial] = []
    Warmup(lambda: 0).go_on(Trial((torch.ones(99), torch.ones(7)), {}, ("x", "y"), None, False), seen.append)
    (few,) = seen
    assert [one.dtype for one in few.args] == [torch.float32]
    assert few.names == ["t0"]


def test_an_error_of_the_comparison_is_not_a_part() -> None:
    """It is the caller's to judge."""

    def raises(few: Trial) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Warmup(lambda: 0).go_on(TRIAL, raises)


def test_what_was_there_before_is_put_back() -> None:
    """By operators, too, whose time is over by then."""
    before, now_ns = torch.zeros(3), iter([0, 2 * PART_NS])
    state = [before]

    def changes(few: Trial) -> None:
        kept = state[0].clone()
        try:
            state[0] += 1
        finally:
            state[0] = kept.clone()

    assert Warmup(lambda: next(now_ns)).go_on(TRIAL, changes) is None
    assert state[0] is not before
    assert state[0].tolist() == [0, 0, 0]


def test_many_numbers_on_a_gpu_are_large() -> None:
    """Those are compared in single precision, by other code."""
    assert not is_large(torch.ones((1 << 20) + 1))
    assert is_large(torch.ones((1 << 20) + 1, device="meta"))
    assert not is_large(torch.ones(1 << 20, device="meta"))
