"""How many processors there are to use."""

from __future__ import annotations

import os

import pytest

from shapedispatch.interpreter.cores import usable_cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not tell")
def test_those_that_the_process_may_run_on() -> None:
    """A job that was given one core of a host of many has one."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_those_of_the_host_where_nothing_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system that knows no affinity; an unknown number is 1."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1
