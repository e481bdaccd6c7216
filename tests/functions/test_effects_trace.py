from __future__ import annotations

from typing import Any

import pytest
import torch

from shapedispatch.backend import Effects
from shapedispatch.functions.effects_trace import what_timing_may_touch, why_no_builds

BASE = torch.ones(8)
APART, TOGETHER = (BASE[:4], BASE[4:]), (BASE[:6], BASE[2:])


@pytest.mark.parametrize(
    ("effects", "mutates", "written", "untimed"),
    [
        (Effects(), None, frozenset(), None),
        (Effects(frozenset({"x"})), None, {"x"}, None),
        (Effects(frozenset({"x"})), ("y",), ("y",), None),
        (Effects(elsewhere=("it changes G['n']",)), None, None, "running it again would be seen: it changes G['n']"),
        (Effects(elsewhere=("it changes G['n']",)), (), (), None),
        (Effects(collectives=("all_reduce",)), ("x",), None, "it performs collectives (all_reduce)"),
        ("a generator", None, None, "is unknown (name what it writes with mutates=): a generator"),
        ("a generator", ("x",), ("x",), None),
    ],
)
def test_what_timing_may_touch(effects: Any, mutates: Any, written: Any, untimed: str | None) -> None:
    """What the decoration says goes before what was seen, but not before other ranks."""
    found, why = what_timing_may_touch(effects, mutates)
    assert found == written
    assert (why is None) if untimed is None else (untimed in str(why))


@pytest.mark.parametrize(
    ("effects", "args", "reason"),
    [
        (Effects(), TOGETHER, None),
        (Effects(frozenset({"x"})), APART, None),
        (Effects(frozenset({"x"})), TOGETHER, "it writes x, and arguments share memory"),
        (Effects(frozenset({"x"}), reads_state=True), APART, "it writes x and reads tensors that are no arguments"),
        (Effects(reads_state=True), APART, None),
        (Effects(elsewhere=("it changes G['n']",)), APART, "it changes G['n']"),
        (Effects(collectives=("all_reduce",)), APART, "it performs collectives"),
    ],
)
def test_what_a_build_must_not_be_made_of(effects: Effects, args: Any, reason: str | None) -> None:
    """A build takes its arguments to share no memory, and may do things in another order."""
    found = why_no_builds(effects, args, {})
    assert (found is None) if reason is None else str(found).startswith(reason)
