"""Every workload kernel under Triton's interpreter: by itself and through the dispatcher, against its reference."""
# ruff: noqa: D103 - the fixture is named for what it is

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked

WORKLOADS = [
    "histogram",
    "layer_norm",
    "matmul",
    "rms_norm",
    "rope",
    "softmax",
    "vector_add_2",
    "vector_add_8",
    "vector_add_16",
    "xsa",
]

SCRIPT = """
import json
import torch
import triton
import triton.language as tl

from benchmarks.kernels import load_all
from tests.triton_core import dispatched

HALF = (torch.bfloat16, torch.float16)  # the interpreter computes in NumPy, which has no bfloat16

def outcome(workload):
    kernels = workload.dispatched(dispatched)
    wrong = []
    for sizes in workload.small_sweep:
        for dtype in workload.tolerance:
            for _ in range(2 if dtype not in HALF else 0):
                try:
                    workload.check(kernels, workload.inputs(sizes, dtype=dtype))
                except AssertionError as error:
                    wrong.append(str(error))
    choices = [choice for kernel in kernels.values() for choice in kernel.choices()]
    counts = [kernel.cache_info() for kernel in kernels.values()]
    return {
        "wrong": wrong,
        "origins": sorted({choice.origin for choice in choices}),
        "routes": sorted({choice.route for choice in choices}),
        "timings": sum(count.timings for count in counts),
        "bypasses": sum(count.bypasses for count in counts),
        "hits": sum(count.hits for count in counts),
        "shapes": len(workload.small_sweep),
    }

print(json.dumps({name: outcome(workload) for name, workload in load_all().items()}))
"""


@pytest.fixture(scope="module")
def outcomes() -> Any:
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = forked.python("-c", SCRIPT, env=env, folder=Path.cwd())
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("the interpreter of this Triton (3.6) needs an older NumPy for loops over a runtime count")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_workload_is_here(outcomes: Any) -> None:
    """The list above is the folder's."""
    assert sorted(outcomes) == sorted(WORKLOADS)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_kernel_answers_what_its_reference_answers(outcomes: Any, name: str) -> None:
    """Outputs, and gradients where there are any, at a first call of each shape and at a second."""
    assert outcomes[name]["wrong"] == []


@pytest.mark.parametrize("name", WORKLOADS)
def test_nothing_is_timed_under_the_interpreter(outcomes: Any, name: str) -> None:
    """Calls go through the table: one choice a shape, the first config, and hits from then on."""
    outcome = outcomes[name]

    assert outcome["origins"] == ["only"]
    assert outcome["routes"] == ["Triton's interpreter"]
    assert outcome["timings"] == outcome["bypasses"] == 0
    assert outcome["hits"] >= outcome["shapes"]
