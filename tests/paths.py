"""The two hit paths, for tests that must hold on both: the C module, built from this tree, or none.

The module is compiled once a process, with every warning an error, into a folder of its own: a test must see the file
that is here, not the one that was installed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from shapedispatch.hit import native

__all__ = ["NO_COMPILER", "PATHS", "SOURCE", "c_module", "compiled", "library", "loaded", "taking"]

SOURCE = Path(native.__file__).parent / "csrc" / "module.c"
STRICT = ("-Wall", "-Wextra", "-Werror")
PATHS = ("python", "c")

_COMPILER = shlex.split(sysconfig.get_config_var("CC") or "cc")
NO_COMPILER = None if shutil.which(_COMPILER[0]) else f"there is no C compiler here ({_COMPILER[0]})"


def compiled(folder: Path, *flags: str) -> Path:
    """The C module, compiled into the folder; raises CalledProcessError, whose ``stderr`` says what is wrong."""
    target = folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = f"-I{sysconfig.get_path('include')}"
    command = [*_COMPILER, "-std=c11", "-O2", "-shared", "-fPIC", include, *flags, str(SOURCE), "-o", str(target)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


def library(name: str) -> str | None:
    """Where the compiler keeps a library, or None."""
    if NO_COMPILER:
        return None
    command = [*_COMPILER, f"-print-file-name={name}"]
    said = subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
    return said if Path(said).is_absolute() and Path(said).exists() else None


@functools.cache
def c_module() -> ModuleType:
    """The C module of this tree, bound to torch."""
    with tempfile.TemporaryDirectory() as folder:  # a loaded library stays, with or without its file
        module = loaded(compiled(Path(folder), *STRICT))
    assert native.bind(module) is None
    return module


def loaded(file: Path) -> ModuleType:
    """The module in this file, fresh."""
    spec = importlib.util.spec_from_file_location("shapedispatch.hit._native", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def taking(fast_path: str) -> Iterator[None]:
    """Dispatchers that are made inside take this path."""
    before = native._loaded
    answer = (c_module(), None) if fast_path == "c" else (None, "this test takes the Python path")
    native._loaded = lambda: answer  # type: ignore[assignment]  # a cached function, replaced by a plain one
    try:
        yield
    finally:
        native._loaded = before
