"""Learning in the background with real processes: who builds, what a death costs, and that none is left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import shapedispatch
from shapedispatch.background.orders import Orders
from tests.built_here import learning_with_processes

X = torch.linspace(-2, 2, 384).reshape(24, 16)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Orders]:
    """Orders of processes of their own; everything is worth it at once."""
    yield from learning_with_processes(monkeypatch, 1)


def composed(x: Tensor) -> Tensor:
    """Plain."""
    return torch.tanh(x) * torch.sigmoid(x) + x


def call_until(done: Callable[[], object], f: Any, plain: Callable[[Tensor], Tensor]) -> None:
    """Call it until then, each answer as plain's; what is known of the call where it never comes to that."""
    until = time.monotonic() + 120
    while not done():
        torch.testing.assert_close(f(X), plain(X))
        assert time.monotonic() < until, f.explain(X)


def test_another_process_builds_and_this_one_runs_it(own: Orders) -> None:
    """Calls are answered meanwhile, and the numbers are plain's."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    call_until(own.pending, f, composed)
    assert f.cache_info().builds == 0
    assert f.wait(timeout=120)
    assert own.built == 1
    for _ in range(500):
        torch.testing.assert_close(f(X), composed(X))
        if f.explain(X).origin == "timed":
            break
    assert {timing.variant for timing in f.explain(X).timings} == {"plain", "hint[M=64]"}
    assert f.cache_info().builds == 1


@pytest.mark.soak
def test_a_process_that_is_killed_costs_one_build(own: Orders) -> None:
    """Plain runs on, the reason is told, and the next build has another process."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    call_until(own.pending, f, composed)
    assert own._children is not None
    os.kill(own._children._family.members[0].process.pid, signal.SIGKILL)
    assert f.wait(timeout=60)
    with pytest.warns(UserWarning, match="SIGKILL"):
        torch.testing.assert_close(f(X), composed(X))
    assert f.explain(X).variant == "plain"


SOURCE = "def f(x):\n    return x.sin() * {number} + x\n"


@pytest.mark.filterwarnings("ignore::UserWarning")  # of each build that is killed
def test_calls_are_answered_while_processes_that_build_are_killed(own: Orders) -> None:
    """At random moments, one after another; none is left. The long form is ``benchmarks/background_faults.py``."""
    draw, pids = random.Random(0), []
    for number in range(3):
        scope: dict[str, Any] = {"__name__": __name__}  # torch 2.11 traces nothing of a module that is not there
        exec(SOURCE.format(number=number + 0.5), scope)
        f = shapedispatch(scope["f"], dims={"x": "M _"}, hints=(64,), store=False, name=f"made_{number}")
        call_until(own.pending, f, scope["f"])
        assert own._children is not None
        pids.append(own._children._family.members[0].process.pid)
        for _ in range(draw.randint(0, 2000)):
            torch.testing.assert_close(f(X), scope["f"](X))
        os.kill(pids[-1], signal.SIGKILL)
        call_until(lambda: not own.pending(), f, scope["f"])
        for _ in range(3):
            torch.testing.assert_close(f(X), scope["f"](X))
    own.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


SCRIPT = """
import os, sys, time
import torch
from shapedispatch import shapedispatch
from shapedispatch.background import orders

@shapedispatch(dims={"x": "M _"}, hints=(64,), store=False)
def f(x):
    return torch.nn.functional.gelu(x).softmax(-1)

x = torch.randn(24, 16)
f(x)
while not next(iter(orders._shared.values())).pending():
    f(x)
print(next(iter(orders._shared.values()))._children._family.members[0].process.pid, flush=True)
if sys.argv[1] == "fork":
    if not os.fork():
        f(x)
        os._exit(0 if not next(iter(orders._shared.values())).pending() else 1)
    assert os.wait()[1] == 0
print(time.time(), flush=True)
"""


@pytest.mark.soak
@pytest.mark.parametrize("how", ["exit", "fork"])
def test_a_program_that_ends_leaves_no_process_behind(tmp_path: Path, how: str) -> None:
    """Nor does it wait for a build; a fork of it has orders of its own."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    env = {**os.environ, "SHAPEDISPATCH_LEARN": "background", "SHAPEDISPATCH_EARN": "0"}
    env["PYTHONPATH"] = str(Path(__file__).parent.parent)
    done = subprocess.run([sys.executable, str(script), how], env=env, capture_output=True, text=True, check=True)
    ended = time.time()
    child, said = done.stdout.split()
    assert ended - float(said) < 5.0
    assert not Path(f"/proc/{child}").exists()
