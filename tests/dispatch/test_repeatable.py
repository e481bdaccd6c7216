"""Processes that learn the same choose alike, each on a clock of its own with a noise of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.forked import Forked

ROOT = Path(__file__).parent.parent.parent
PROCESSES = 2

SCRIPT = """
import json, os, random, sys
os.environ.update(SHAPEDISPATCH_JUDGE="online", SHAPEDISPATCH_STORE="false")
import torch
from shapedispatch import Variant, shapedispatch
from shapedispatch.online import real_calls
from shapedispatch.choices import learning, watch

noise = random.Random(int(sys.argv[1]))
now_us = [0.0]
makes = lambda device: (real_calls.HostSampler(lambda: int(now_us[0] * 1e3)), None)
learning.sampler = watch.sampler = makes

def taking(us, spike):
    def fn(x):
        now_us[0] += us * (1 + 0.03 * abs(noise.gauss(0, 1))) * (20 if noise.random() < spike else 1)
        return x * 2
    return fn

chosen = {}
for spike in (0.0, 0.02):
    for ratio in (0.5, 0.8, 0.9, 0.95, 1.0, 1.01, 1.1, 2.0, 20.0):
        variants = [Variant(taking(50 * ratio, spike), name="a"), Variant(taking(60, spike), name="b")]
        f = shapedispatch(taking(50, spike), name=f"f{ratio}", hints=(), variants=variants, mutates=())
        x = torch.ones(4)
        for _ in range(400):
            f(x)
        chosen[f"{ratio} {spike}"] = f.explain(x).variant
print(json.dumps(chosen))
"""


def test_processes_choose_alike(tmp_path: Path) -> None:
    """In normal noise and with spikes; what is as good as plain, or nearly, is plain in each."""
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [Forked("script.py", str(seed), env=env, folder=tmp_path) for seed in range(PROCESSES)]
    found = [json.loads(one.wait().stdout.splitlines()[-1]) for one in running]
    first = found[0]
    assert all(other == first for other in found)
    assert {first[f"{ratio} {spike}"] for ratio in (0.5, 0.8, 0.9) for spike in (0.0, 0.02)} == {"a"}
    assert {first[f"{ratio} {spike}"] for ratio in (1.0, 1.01, 1.1, 2.0, 20.0) for spike in (0.0, 0.02)} == {"plain"}
