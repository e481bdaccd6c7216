"""The tool that runs other packages' tests: on a made-up package, with launches that are recorded."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.libraries import compare, host_time, operations
from benchmarks.libraries.compare import Side
from benchmarks.libraries.wrapping import Wrapped, import_all
from tests.triton_core import tensors
from tests.triton_recorder import recording

ROOT = Path(__file__).parent.parent
OPS = """
import triton
import triton.language as tl

@triton.jit
def helper(x):
    return x + 1

@triton.jit
def adds(x, n, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), helper(n))

@triton.jit
def scales(x, n, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), n)

@triton.jit
def fills(x, n):
    tl.store(x, n)

@triton.jit
def clears(x, n):
    tl.store(x, n * 0)

class Tuner(type(triton.autotune(configs=[], key=[])(fills))):
    def run(self, *args, **kwargs):
        return super().run(*args, **kwargs)

tuned = triton.autotune(configs=[triton.Config({"B": block}) for block in (16, 32)], key=["n"])(scales)
own = Tuner(clears, clears.arg_names, None, [], None, None)
KERNELS = {"fills": fills}

class Holder:
    kernel = fills

def add(x, n):
    adds[(1,)](x, n, B=16)
"""
TESTS = """
import os
import pytest, torch
from made_up import other
from made_up.ops import KERNELS, add, adds, own
from tests.triton_recorder import recording

X = torch.zeros(64)

@pytest.mark.parametrize("n", [1, 5])
def test_adds(n):
    with recording() as driver:
        for _ in range(2):
            add(X, n)
    assert len(driver.launches) == 2

def test_own():
    with recording():
        own[(1,)](X, 3)

def test_fails():
    raise ValueError("as it\\nshould")

@pytest.mark.skip(reason="not here")
def test_skips(): ...

def test_is_not_listed():
    os._exit(1)
"""


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a package of kernels and its tests; the package can be imported."""
    package = tmp_path / "made_up"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ops.py").write_text(OPS)
    (package / "other.py").write_text("from .ops import KERNELS, adds, helper, tuned\n")
    (package / "broken.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "test_made_up.py").write_text(TESTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "made_up"]:
        del sys.modules[name]


@pytest.fixture
def wrapped(made_up: Path) -> Wrapped:
    """The package's kernels, wrapped."""
    assert import_all("made_up") == {"made_up.broken": "ModuleNotFoundError: No module named 'nowhere_to_be_found'"}
    found = Wrapped(["made_up"])
    found.update()
    return found


def is_dispatched(kernel: Any) -> bool:
    """Whether a dispatcher stands there."""
    return hasattr(type(kernel), "cache_info")


def test_launched_kernels_are_wrapped_wherever_they_stand(wrapped: Wrapped) -> None:
    """One dispatcher a kernel, in each module, dict and class; what a kernel calls stays as it is."""
    ops, other = (importlib.import_module(f"made_up.{name}") for name in ("ops", "other"))

    assert ops.adds is other.adds
    assert ops.tuned is other.tuned
    assert ops.fills is ops.KERNELS["fills"] is ops.Holder.kernel
    assert all(map(is_dispatched, (ops.adds, ops.tuned, ops.fills, ops.own)))
    assert not is_dispatched(ops.helper)
    assert wrapped.left == {"made_up.ops.helper": "another kernel calls it"}


LATE = """
import triton
import triton.language as tl
from . import devices

@triton.jit
def late(x, n):
    tl.store(x, devices.doubles(n))
"""
DEVICES = """
import triton

@triton.jit
def doubles(n):
    return n * 2
"""


def test_a_module_that_comes_later_is_wrapped_too(wrapped: Wrapped, made_up: Path) -> None:
    """What its kernels call in another module stays as it is; so does what earlier ones call."""
    (made_up / "made_up" / "late.py").write_text(LATE)
    (made_up / "made_up" / "devices.py").write_text(DEVICES)
    late = importlib.import_module("made_up.late")
    wrapped.update()

    assert is_dispatched(late.late)
    assert not is_dispatched(late.devices.doubles)
    assert not is_dispatched(importlib.import_module("made_up.ops").helper)


def test_kernels_can_be_put_back_and_on_again(wrapped: Wrapped) -> None:
    """For a comparison within one process."""
    ops = importlib.import_module("made_up.ops")
    wrapped.take_off()
    assert not any(map(is_dispatched, (ops.adds, ops.tuned, ops.fills, ops.KERNELS["fills"])))
    wrapped.put_on()
    assert all(map(is_dispatched, (ops.adds, ops.tuned, ops.fills, ops.KERNELS["fills"])))


def test_calls_are_counted_with_the_reasons_of_bypasses(wrapped: Wrapped) -> None:
    """By kernel."""
    ops = importlib.import_module("made_up.ops")
    with recording(*(getattr(ops, name).core.backend.wrapped.kernel for name in ("adds", "own"))):
        for _ in range(3):
            ops.add(tensors(1)[0], 5)
        ops.own[(1,)](tensors(1)[0], 5)
    counts = wrapped.counts()

    assert counts["made_up.ops.adds"] == {"hits": 2, "misses": 1, "bypasses": 0, "why": {}}
    assert counts["made_up.ops.clears #2"]["why"] == {"Tuner has a launch of its own: it overrides run": 1}


def test_a_run_under_the_plugin_notes_outcomes_and_counts(made_up: Path) -> None:
    """In a process of its own, of the tests that are listed."""
    listed = [f"test_made_up.py::{name}" for name in ("test_adds[1]", "test_adds[5]", "test_own", "test_fails")]
    (made_up / "list.txt").write_text("\n".join(["# a list", *listed, "test_made_up.py::test_skips", "gone.py::test"]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.libraries.plugin", "test_made_up.py"]
    for option, value in (("package", "made_up"), ("json", "lines"), ("tests", "list.txt")):
        command += [f"--shapedispatch-{option}", value]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(made_up), str(ROOT)])}
    answer = subprocess.run(command, cwd=made_up, env=env, capture_output=True, text=True)
    side = compare.read(made_up / "lines")

    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert [side.tests[test]["outcome"] for test in listed] == ["passed", "passed", "passed", "failed"]
    assert side.tests[listed[-1]]["why"] == "ValueError: as it"
    assert side.tests["test_made_up.py::test_skips"] | {"seconds": 0} == {
        "outcome": "skipped", "why": "Skipped: not here", "seconds": 0,
    }  # fmt: skip
    assert side.facts["not_collected"] == ["gone.py::test"]
    assert compare.summary(side) == {
        "wrapped": 6, "left as they are": 1, "called": 2, "dispatched": 1, "only bypassed": 1, "hits": 2, "misses": 2,
        "bypasses": 1, "why": {"Tuner has a launch of its own: it overrides run": 1},
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ comparing


def side_of(**outcomes: str) -> Side:
    """A side whose tests ended so."""
    return Side({name: {"outcome": outcome, "why": "", "seconds": 1.0} for name, outcome in outcomes.items()})


def test_only_tests_that_ran_on_both_sides_can_differ() -> None:
    """And each that ended otherwise does."""
    before = side_of(a="passed", b="passed", c="failed", d="not run", e="passed", f="passed")
    after = side_of(a="passed", b="failed", c="failed", d="passed", e="not run", f="died")

    assert [one[0] for one in compare.differences(before, after)] == ["b", "f"]


@pytest.mark.parametrize(("now", "code"), [("passed", 0), ("failed", 1), ("not run", 1)])
def test_a_difference_is_the_answer_of_the_script(tmp_path: Path, now: str, code: int) -> None:
    """Written with the counts; and where nothing ran there is nothing to be glad of."""
    before, after = side_of(a="passed"), side_of(a=now)
    after.facts["environment"] = {"device": "CPU"}
    target = tmp_path / "result.json"

    assert compare.report("made_up", ["a"], before, after, target) == code
    written = json.loads(target.read_text())
    assert len(written["differences"]) == (now == "failed")
    assert written["ran"] == (now != "not run")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50])
def test_shares_are_of_like_sizes(count: int) -> None:
    """Each test is in one of them, and a file's are together where that is possible."""
    tests = [f"{file}.py::test_{i}" for file, size in (("a", 10), ("b", 3), ("c", 1)) for i in range(size)]
    parts = compare.shares(tests, count)

    assert sorted(test for part in parts for test in part) == sorted(tests)
    assert max(map(len, parts)) <= -(-len(tests) // count) + 3


def test_after_a_death_the_rest_runs_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test that ended the process is told; and what ends before its first test is not begun again."""
    runs: list[list[str]] = []

    def one_process(library: Any, checkout: Any, tests: list[str], *rest: Any) -> Side:
        runs.append(list(tests))
        done = tests[: tests.index("dies") + 1] if "dies" in tests else tests[:1] if "never" not in tests[0] else []
        return side_of(**{test: "died" if test == "dies" else "passed" for test in done})

    monkeypatch.setattr(compare, "_one_process", one_process)
    library = compare.LIBRARIES["fla"]
    tests = ["a", "dies", "b", "never"]
    side = compare.run_share(library, tmp_path, tests, tmp_path / "x", time.monotonic() + 1000, True)

    assert runs == [tests, ["b", "never"], ["never"]]
    assert {test: one["outcome"] for test, one in side.tests.items()} == {
        "a": "passed", "dies": "died", "b": "passed", "never": "not run",
    }  # fmt: skip


def test_what_is_left_at_the_limit_has_not_run(tmp_path: Path) -> None:
    """Nothing is begun after it, and a process that is under way is ended."""
    side = compare.run_share(compare.LIBRARIES["fla"], tmp_path, ["a"], tmp_path / "x", time.monotonic() - 1, True)
    assert side.tests["a"]["outcome"] == "not run"

    waits = [sys.executable, "-c", "input()"]
    process = subprocess.Popen(waits, stdin=subprocess.PIPE, start_new_session=True)
    assert not compare._ended(process, time.monotonic() - 1)
    assert process.returncode
    process.communicate()
    ends = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    assert compare._ended(ends, time.monotonic() + 1000)


def test_what_was_under_way_when_a_process_ended_has_ended_it(tmp_path: Path) -> None:
    """Lines that are cut off are left out."""
    lines = tmp_path / "lines"
    lines.write_text(
        textwrap.dedent("""\
        {"wrapped": ["a.k"], "left": {}}
        {"start": "one"}
        {"test": "one", "outcome": "passed", "why": "", "seconds": 1}
        {"kernels": {"a.k": {"hits": 1, "misses": 1, "bypasses": 0, "why": {}}}}
        {"start": "two"}
        {"test": "tw""")
    )
    side = compare.read(lines)

    assert {test: one["outcome"] for test, one in side.tests.items()} == {"one": "passed", "two": "died"}
    assert side.kernels["a.k"]["hits"] == 1


@pytest.mark.parametrize(("name", "least"), [("fla", 400), ("liger", 200)])
def test_the_lists_are_long_enough(name: str, least: int) -> None:
    """And each line is the id of a test, once."""
    tests = compare.listed(compare.LIBRARIES[name].tests)

    assert len(tests) >= least
    assert len(set(tests)) == len(tests)
    assert all("::test_" in test and test.partition("::")[0].endswith(".py") for test in tests)


# ------------------------------------------------------------------------------------------------------------ host time


class Switched:
    """Stands for wrapped kernels: which side is on."""

    def __init__(self) -> None:
        self.on = False

    def take_off(self) -> None:
        """As the library has them."""
        self.on = False

    def put_on(self) -> None:
        """Behind dispatchers."""
        self.on = True


def test_a_ratio_is_the_median_of_the_rounds_own() -> None:
    """The sides take turns, and each is timed with its own kernels."""
    switched, now = Switched(), [0.0]

    def run() -> list[torch.Tensor]:
        now[0] += 2e-6 if switched.on else 8e-6
        return [torch.ones(2)]

    found = host_time.measured(run, switched, lambda: None, lambda: now[0])

    assert (found["before_us"], found["after_us"], found["ratio"]) == (8.0, 2.0, 0.25)
    assert len(found["ratios"]) == host_time.ROUNDS
    assert found["result"] == "equal"


def test_another_result_or_an_error_is_told() -> None:
    """And no ratio of it where there is none."""
    switched = Switched()
    found = host_time.measured(lambda: [torch.full((2,), float(switched.on))], switched, lambda: None)
    assert found["result"] == "another result"

    def run() -> list[torch.Tensor]:
        if switched.on:
            raise ValueError("no")
        return []

    assert host_time.measured(run, switched, lambda: None) == {"result": "after: ValueError: no"}
    assert host_time.compared([torch.ones(2)], []) == "1 results before, 0 after"


def test_without_a_gpu_nothing_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And the script says so."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert host_time.main(["liger"]) == 0
    assert "it needs a GPU" in capsys.readouterr().out


def test_an_operation_gives_its_results_and_gradients() -> None:
    """Of all leaves that are given, and its results alone where none needs a gradient."""
    x = torch.full((2,), 3.0, requires_grad=True)

    assert [one.tolist() for one in operations.of(lambda x, y: x * y, x, 2.0)()] == [[6.0, 6.0], [2.0, 2.0]]
    assert [one.tolist() for one in operations.of(torch.neg, torch.ones(2))()] == [[-1.0, -1.0]]
