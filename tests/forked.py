"""Python processes that need not import torch: each is a fork of one that has imported it, and nothing of ours.

Importing torch takes a second and a half of a processor, and Inductor three more: as much as most such tests have to
do. What is run here begins as with ``python``: its own environment, folder, arguments, modules and end. Tests of how
processes start, fork or die, and those whose environment torch reads when it is imported, start processes themselves.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import random
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["COMPILES", "OPERATORS_CALLED", "TORCH", "Forked", "python"]

ROOT = Path(__file__).parent.parent
TORCH = ("torch",)
COMPILES = (
    *TORCH,
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.cpp",
    "torch._inductor.codegen.cpp_wrapper_cpu",
)
"""For what compiles, too: Dynamo and Inductor. The package is imported by each process for itself."""
OPERATORS_CALLED = "TESTS_OPERATORS_CALLED"
"""In the environment of one that compiles: as with the mark of that name, no C++ is written and compiled."""


class Forked:
    """``python script.py ...``, ``python -m module ...`` or ``python -c code ...``, from when it is made."""

    def __init__(
        self, *words: str | Path, env: Mapping[str, str], folder: str | Path, imported: tuple[str, ...] = TORCH
    ) -> None:
        self._words = [str(word) for word in words]
        self._place = tempfile.TemporaryDirectory()
        self._server = _server(imported)
        out, err = self._said()
        told = {"words": self._words, "env": dict(env), "folder": str(folder), "out": str(out), "err": str(err)}
        self.pid = int(self._asked(told, 60))

    def wait(self, limit_s: float = 280) -> subprocess.CompletedProcess[str]:
        """What has become of it; where it has not ended by then it is killed."""
        try:
            code = int(self._asked({"wait": self.pid}, limit_s))
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            self._heard(60)
            raise
        with self._place:
            return subprocess.CompletedProcess(self._words, code, *(file.read_text() for file in self._said()))

    def _said(self) -> tuple[Path, Path]:
        return Path(self._place.name, "out"), Path(self._place.name, "err")

    def _asked(self, question: Mapping[str, Any], limit_s: float) -> str:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return self._heard(limit_s)

    def _heard(self, limit_s: float) -> str:
        """One line for each question, so that none waits in a buffer."""
        assert self._server.stdout is not None
        if not select.select([self._server.stdout], [], [], limit_s)[0]:
            raise TimeoutError(f"{self._words} has not ended after {limit_s} s")
        return self._server.stdout.readline()


def python(
    *words: str | Path,
    env: Mapping[str, str],
    folder: str | Path,
    imported: tuple[str, ...] = TORCH,
    limit_s: float = 280,
) -> subprocess.CompletedProcess[str]:
    """What becomes of such a process."""
    return Forked(*words, env=env, folder=folder, imported=imported).wait(limit_s)


@functools.cache
def _server(imported: tuple[str, ...]) -> subprocess.Popen[str]:
    """The process that is forked; it ends with this one."""
    command = [sys.executable, __file__, *imported]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SHAPEDISPATCH_")}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen(command, text=True, cwd=ROOT, env=env, **pipes)
    atexit.register(server.communicate)
    return server


# ------------------------------------------------------------------------------------------------- in other processes


def _serve() -> dict[str, Any] | None:
    """Fork where that is asked, and wait where that is; what a fork is to do, in it, and None at the end."""
    for line in sys.stdin:
        told: dict[str, Any] = json.loads(line)
        if "wait" in told:
            print(os.waitstatus_to_exitcode(os.waitpid(told["wait"], 0)[1]), flush=True)
        elif pid := os.fork():
            print(pid, flush=True)
        else:
            return told
    return None


def _become(told: dict[str, Any]) -> Sequence[str]:
    """A process as it is at its first line, but for what is imported."""
    for path, file in ((told["out"], 1), (told["err"], 2), (os.devnull, 0)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if file else os.O_RDONLY)
        os.dup2(opened, file)
        os.close(opened)
    sys.stdin = open(0)  # noqa: SIM115 - it is the process's own
    sys.stdout, sys.stderr = open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    os.environ.clear()
    os.environ |= told["env"]
    os.chdir(told["folder"])
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    random.seed()
    if OPERATORS_CALLED in os.environ and "torch._inductor.config" in sys.modules:
        config: Any = sys.modules["torch._inductor.config"]
        if hasattr(config, "fallback_by_default"):  # an older torch writes and compiles its code
            config.fallback_by_default = True
    words: list[str] = told["words"]
    return words


def _run(words: Sequence[str]) -> None:
    """As the interpreter runs its arguments."""
    first = words[0]
    if first in ("-m", "-c"):
        sys.path[0] = "" if first == "-c" else str(Path.cwd())
        sys.argv = [first, *words[2:]]
        if first == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            main = sys.modules["__main__"]
            del main.__file__
            exec(compile(words[1], "<string>", "exec", dont_inherit=True), vars(main))
    else:
        sys.path[0] = str(Path(first).absolute().parent)
        sys.argv = list(words)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    if guards := sys.modules.get("torch._dynamo.guards"):  # as in the tests themselves: see conftest.py
        vars(guards)["profile_guard_manager"] = lambda *_: 0.0
    if (asked := _serve()) is not None:
        _run(_become(asked))
