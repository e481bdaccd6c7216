"""Which variant ran at which call is recorded, and a record is followed."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import shapedispatch as package
from shapedispatch import Variant, shapedispatch
from shapedispatch.backend import Candidate, OfferRequest
from shapedispatch.choices import recording
from shapedispatch.hit.table import Table
from shapedispatch.online import real_calls
from shapedispatch.records import Choice
from shapedispatch.store.switches import FILE, Recorder, read_switches

X = torch.arange(4.0)


class Program:
    """A function with a variant, on a clock that they alone move; what ran, in order."""

    def __init__(self, plain_us: float = 100, other_us: float = 50) -> None:
        self.us = {"plain": plain_us, "other": other_us}
        self.now_us = 0.0
        self.ran: list[str] = []
        other = Variant(self.taking("other", lambda x: x + x), name="other")
        plain = self.taking("plain", lambda x: x * 2)
        self.f: Any = shapedispatch(plain, name="twice", hints=(), variants=[other], mutates=(), store=False)

    def clock_ns(self) -> int:
        """The time."""
        return int(self.now_us * 1e3)

    def taking(self, name: str, fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The function under that name."""

        def timed(x: Tensor) -> Tensor:
            self.now_us += self.us[name]
            self.ran.append(name)
            return fn(x)

        return timed

    def calls(self, count: int, x: Tensor = X) -> list[str]:
        """What ran in so many calls, but for what a decision ran on copies before."""
        found = []
        for _ in range(count):
            self.ran.clear()
            assert torch.equal(self.f(x), x * 2)
            found.append(self.ran[-1])
        return found


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Program]:
    """Makes programs that learn, in a folder of their own, each with a record of its own."""
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    monkeypatch.chdir(tmp_path)

    def make(learn: str, **us: float) -> Program:
        monkeypatch.setenv("SHAPEDISPATCH_LEARN", learn)
        monkeypatch.setattr(recording, "_recorder", Recorder())
        recording._read.cache_clear()
        package.settings.resolve.reset()
        made = Program(**us)
        for room in ("learning", "watch"):
            monkeypatch.setattr(
                f"shapedispatch.choices.{room}.sampler",
                lambda device: (real_calls.HostSampler(made.clock_ns), None),
            )
        return made

    return make


def test_a_record_is_followed_call_by_call(program: Callable[..., Program], tmp_path: Path) -> None:
    """Whatever the variants take in the second run; each call runs one, and nothing is sampled."""
    first = program("record").calls(60)
    assert {"plain", "other"} == set(first)
    (tmp_path / FILE).rename(tmp_path / "run.jsonl")
    second = program("run.jsonl", plain_us=50, other_us=100)
    assert second.calls(60) == first
    choice = second.f.explain(X)
    assert (choice.variant, choice.origin) == ("other", "pinned")
    assert "as recorded in run.jsonl" in choice.notes
    assert second.f.cache_info().timings == 0


def test_later_switches_are_recorded_too(program: Callable[..., Program], tmp_path: Path) -> None:
    """Those of a candidate that becomes slower, and each sample on the way."""
    one = program("record")
    first = one.calls(60)
    one.us["other"] = 300
    first += one.calls(5000)
    assert first[-1] == "plain"
    (tmp_path / FILE).rename(tmp_path / "run.jsonl")
    assert program("run.jsonl").calls(5060) == first


def test_each_switch_is_a_line(program: Callable[..., Program], tmp_path: Path) -> None:
    """With its call's number, from the first on."""
    ran = program("record").calls(60)
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    switches = [number for number, (one, before) in enumerate(zip(ran, [None, *ran], strict=False), 1) if one != before]
    assert [line["call"] for line in lines] == switches
    assert {line["dispatcher"] for line in lines} == {"twice"}


def test_a_key_that_was_not_recorded_runs_plain(program: Callable[..., Program], tmp_path: Path) -> None:
    """And says so; nothing is learned."""
    program("record").calls(60)
    (tmp_path / FILE).rename(tmp_path / "run.jsonl")
    second = program("run.jsonl")
    y = torch.arange(9.0)
    assert set(second.calls(60, y)) == {"plain"}
    assert "nothing is recorded for it in run.jsonl" in second.f.explain(y).notes


def test_a_variant_that_is_gone_is_plain(program: Callable[..., Program], tmp_path: Path) -> None:
    """The answer is right all the same."""
    program("record").calls(60)
    text = (tmp_path / FILE).read_text().replace('"other"', '"gone"')
    (tmp_path / "run.jsonl").write_text(text)
    second = program("run.jsonl")
    assert set(second.calls(60)) == {"plain"}
    assert "gone was recorded, and plain runs" in second.f.explain(X).notes


@pytest.mark.parametrize("text", ["no JSON", '{"call": 1}', '["a"]', None])
def test_what_is_no_record_is_told_once_and_not_followed(
    program: Callable[..., Program], tmp_path: Path, text: str | None
) -> None:
    """Calls are answered as without it."""
    if text is not None:
        (tmp_path / "run.jsonl").write_text(text)
    one = program("run.jsonl")
    with pytest.warns(UserWarning, match="a record of switches cannot be written or followed"):
        one.calls(1)
    one.calls(60)
    assert one.f.explain(X).variant == "other"


def test_a_record_that_cannot_be_written_costs_no_answer(
    program: Callable[..., Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning."""
    (tmp_path / FILE).mkdir()
    with pytest.warns(UserWarning, match="cannot be written or followed") as told:
        program("record").calls(60)
    assert len(told) == 1


def test_under_deterministic_algorithms_nothing_switches(program: Callable[..., Program], tmp_path: Path) -> None:
    """One variant from the first call on."""
    one = program("record")
    torch.use_deterministic_algorithms(True)
    try:
        assert len(set(one.calls(60))) == 1
    finally:
        torch.use_deterministic_algorithms(False)
    assert len((tmp_path / FILE).read_text().splitlines()) == 1


def test_a_checkpoint_counts_in_both_runs_alike(program: Callable[..., Program], tmp_path: Path) -> None:
    """Its recomputation runs what its forward ran."""

    def run(one: Program) -> list[str]:
        one.ran.clear()
        for _ in range(12):
            x = X.clone().requires_grad_()
            checkpoint(lambda x: one.f(x).sin(), x, use_reentrant=False).sum().backward()
            assert torch.allclose(x.grad, 2 * torch.cos(2 * X))
        return list(one.ran[-20:])

    first = run(program("record"))
    (tmp_path / FILE).rename(tmp_path / "run.jsonl")
    assert run(program("run.jsonl")) == first


def test_the_next_record_of_a_process_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier process has left is no part of it."""
    monkeypatch.chdir(tmp_path)
    for variant in ("a", "b"):
        recorder = Recorder()
        assert recorder.switched("f", "key", 1, variant) is None
        assert recorder.switched("f", "key", 2, "c") is None
    assert read_switches(FILE) == {("f", "key"): [(1, "b"), (2, "c")]}


def test_a_recorded_build_that_raises_is_answered_by_plain_and_counted() -> None:
    """With what it raised."""

    def raises(x: Tensor) -> Tensor:
        raise RuntimeError("out of order")

    table = Table(8, 8)
    candidates = {"plain": Candidate("plain", lambda x: x * 2), "exact": Candidate("exact", raises, build="b")}
    following = recording.Following(candidates, deque(), (), table, now="exact")
    assert torch.equal(following(torch.ones(2)), torch.full((2,), 2.0))
    assert dict(table.bypasses_by_reason) == {"a build raised RuntimeError: out of order": 1}


def test_what_a_recorded_variant_runs_is_told() -> None:
    """And not what ran when the key was begun."""
    candidates = {
        "plain": Candidate("plain", lambda x: x * 2),
        "other": Candidate("other", lambda x: x + x, route="the function that was supplied"),
    }
    following = recording.Following(candidates, deque([(2, "other")]), (), Table(8, 8))
    begun = Choice("plain", "pinned")
    assert following.choice(begun).route == begun.route
    following(torch.ones(2))
    for choice in (following.choice(begun), following.pinned(begun).choice):
        assert (choice.variant, choice.route) == ("other", "the function that was supplied")


GAIN = [torch.ones(4)]


def test_a_record_is_followed_by_no_backward_through_what_was_computed_before() -> None:
    """A variant that may not be compared with plain does not run, and that is told."""
    base = torch.ones(4, requires_grad=True)
    GAIN[0] = base.exp()
    variants = [Variant(lambda x: GAIN[0] * x, name="other")]
    f: Any = shapedispatch(lambda x: x * GAIN[0], name="gained", hints=(), variants=variants, store=False)
    x = X.clone().requires_grad_()
    ctx = f.core.ctx(f.core.backend.key((x,), {}), (x,), {})
    offer = ctx.offer(OfferRequest())
    kept, refused = recording._right(offer.candidates, ctx, offer)
    assert [one.name for one in kept] == ["plain"]
    [refusal] = refused
    assert "computed before the call" in refusal.reasons[0]
    GAIN[0].sum().backward()
    assert base.grad is not None
