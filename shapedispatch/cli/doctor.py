"""What is here and what is not: torch, Triton, GPU, compilers, the hit path in C, the store, the settings.

Each `Finding` says what was found and, where something is missing, what that means and what to do.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch

from ..api.registry import dispatchers
from ..errors import SettingsError
from ..hit import native
from ..settings.resolve import Settings, settings
from ..store.folder import Folder, Refused
from ..store.kernel_store import store_at
from ..store.store import Store

__all__ = ["Finding", "examine", "store_in_use"]

OLDEST_TORCH, OLDEST_TRITON = (2, 11), (3, 6)
COMPILERS = ("g++", "clang++", "c++", "cl")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``state``: ``ok``; ``note``, it works without; ``bad``, it does not work."""

    what: str
    state: Literal["ok", "note", "bad"]
    found: str
    advice: str = ""


def examine() -> list[Finding]:
    """Look at everything; touches no GPU beyond asking what it is, and writes nothing."""
    parts = (_python, _torch, _triton, _gpu, _compiler, _hot_path, _store, _settings, _matplotlib)
    return [finding for part in parts for finding in part()]


def store_in_use() -> Store:
    """The store of the settings, or where they say that there is none, the one that there would be."""
    return store_at(settings().resolve("").store) or Store()


def _python() -> Iterator[Finding]:
    yield Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")


def _torch() -> Iterator[Finding]:
    old = _release(torch.__version__) < OLDEST_TORCH
    advice = f"install torch {_dotted(OLDEST_TORCH)} or later: private names that are used here differ" if old else ""
    yield Finding("torch", "bad" if old else "ok", torch.__version__, advice)


def _triton() -> Iterator[Finding]:
    if importlib.util.find_spec("triton") is None:
        advice = "kernels cannot be dispatched and GPU builds cannot be made: pip install triton, on Linux"
        yield Finding("Triton", "bad" if torch.cuda.is_available() else "note", "not installed", advice)
        return
    version = _installed("triton")
    old = _release(version) < OLDEST_TRITON
    yield Finding(
        "Triton", "bad" if old else "ok", version, f"install {_dotted(OLDEST_TRITON)} or later" if old else ""
    )


def _gpu() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        built = torch.version.cuda or getattr(torch.version, "hip", None)
        advice = "torch sees none: look at the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES" if built else ""
        found = "none that torch can use" if built else "none: this torch is built for the CPU alone"
        yield Finding("GPU", "note", found, advice or "functions are compiled for the CPU; kernels need a GPU")
        return
    for index in range(torch.cuda.device_count()):
        one = torch.cuda.get_device_properties(index)
        memory = f"{one.total_memory / 2**30:.0f} GiB"
        yield Finding(f"GPU {index}", "ok", f"{one.name}, capability {one.major}.{one.minor}, {memory}")


def _compiler() -> Iterator[Finding]:
    """Inductor's for the CPU; what CXX says instead is Inductor's own to read."""
    path = next(filter(None, map(shutil.which, COMPILERS)), None)
    if path:
        yield Finding("C++ compiler", "ok", path)
        return
    advice = "every CPU call runs the plain function: install g++ or clang++"
    yield Finding("C++ compiler", "note" if torch.cuda.is_available() else "bad", "none was found", advice)


def _hot_path() -> Iterator[Finding]:
    try:
        reason = native.reason()
    except SettingsError:
        return  # told below
    if reason is None:
        yield Finding("hit path in C", "ok", "in use")
        return
    yield Finding("hit path in C", "note", f"not in use: {reason}", "hits take the Python road: right, and slower")


def _store() -> Iterator[Finding]:
    try:
        setting, store = settings().resolve("").store, store_in_use()
    except SettingsError:
        return  # told below
    if setting is False:
        yield Finding("store", "note", "off, by the settings", "each process times its shapes anew")
        return
    try:
        folder = Folder.open(store.path, create=False)
    except FileNotFoundError:
        yield _store_to_be(store.path)
        return
    except Refused as refused:
        yield Finding("store", "bad", f"{store.path} is not used: {'; '.join(refused.reasons)}", _MEMORY_ONLY)
        return
    except OSError as error:
        yield Finding("store", "bad", f"{store.path} cannot be opened: {error.strerror or error}", _MEMORY_ONLY)
        return
    mode = stat.S_IMODE(folder.path.stat().st_mode)
    folder.close()
    yield Finding("store", "ok", f"{store.path} (mode {mode:o})")


_MEMORY_ONLY = "choices are kept in memory only: mend the folder, or name another with SHAPEDISPATCH_STORE"


def _store_to_be(path: Path) -> Finding:
    above = next(folder for folder in path.parents if folder.exists())
    if not above.is_dir():
        return Finding("store", "bad", f"{path} cannot be made: {above} is not a folder", _MEMORY_ONLY)
    if not os.access(above, os.W_OK | os.X_OK):
        return Finding("store", "bad", f"{path} cannot be made: nothing may be written in {above}", _MEMORY_ONLY)
    return Finding("store", "ok", f"{path}, which the first choice that is timed makes")


def _settings() -> Iterator[Finding]:
    try:
        found = settings()
    except SettingsError as error:
        yield Finding("settings", "bad", str(error), "mend what it names")
        return
    if found.left_out:
        yield Finding("settings", "bad", found.left_out, "the whole file is left out: mend what it names")
        return
    said = ", ".join(sorted(found.environment))
    environment = f"; the environment sets {said}" if said else ""
    yield Finding("settings", "ok", f"{found.path or 'no file'}{environment}")
    yield from _sections(found)


def _sections(found: Settings) -> Iterator[Finding]:
    """Sections that match nothing: only those of modules that were imported can be told."""
    for section in found.sections_unmatched(dispatchers()):
        advice = "misspelt, or its module is not imported: name the module, shapedispatch doctor MODULE"
        yield Finding("settings", "note", f'[kernels."{section}"] matches no dispatcher', advice)


def _matplotlib() -> Iterator[Finding]:
    if importlib.util.find_spec("matplotlib") is None:
        yield Finding("matplotlib", "note", "not installed", "plots need it: pip install 'shapedispatch[plot]'")
        return
    yield Finding("matplotlib", "ok", _installed("matplotlib"))


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def _release(version: str) -> tuple[int, ...]:
    numbers = version.split("+")[0].split(".")[:2]
    return tuple(int(number) if number.isdecimal() else 0 for number in numbers)


def _dotted(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))
