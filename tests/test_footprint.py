"""How many files of the package one call runs through, which is how many a person opens who follows it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests import forked

ROOT = Path(__file__).parent.parent

MOST = {"hit": 3, "hit of a build": 4, "first miss": 81}

SCRIPT = """
import dataclasses, json, os, sys
import torch
from shapedispatch import shapedispatch
from shapedispatch.hit import native

package = os.path.dirname(sys.modules["shapedispatch"].__file__) + os.sep
native._loaded = lambda: (None, "python")  # what C does shows in no profile

def files(fn, *args):
    seen = set()
    sys.setprofile(lambda frame, event, _: seen.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        fn(*args)
    finally:
        sys.setprofile(None)
    return sorted(file.removeprefix(package) for file in seen if file.startswith(package))

@shapedispatch(dims={"x": "M K", "w": "K N"}, hints={"M": (64, 256, 4096)})
def called(x, w):
    return torch.relu(x @ w)

@shapedispatch(dims={"x": "M"}, hints={"M": (64, 256)})
def built(x):
    return torch.sin(x) * 2

x, w = torch.randn(64, 32), torch.randn(32, 16)
found = {"first miss": files(called, x, w), "hit": files(called, x, w)}
built.core.settings = dataclasses.replace(built.core.settings, pick="hint[M=64]")
y = torch.randn(64)
for _ in range(3):  # the first runs of a build are watched
    built(y)
found["variant"] = built.explain(y).variant
found["hit of a build"] = files(built, y)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The files that calls run through, in a process with a store of its own and without the C module."""
    folder = tmp_path_factory.mktemp("footprint")
    (folder / "script.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    ran = forked.python("script.py", env=env, folder=folder, imported=forked.COMPILES)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])  # type: ignore[no-any-return]  # as printed by the script


@pytest.mark.parametrize("call", MOST)
def test_a_call_runs_through_few_files(files: dict[str, list[str]], call: str) -> None:
    """Without the C module, with the default store."""
    assert files["variant"] == "hint[M=64]"
    assert files[call]
    count = len(files[call])
    assert count <= MOST[call], "\n".join([f"{count} files, at most {MOST[call]} are allowed:", *files[call]])
