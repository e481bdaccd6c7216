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
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch

from ..api.registry import dispatchers
from ..errors import SettingsError
from ..hit import native
from ..private import FEATURES, release, why_off
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


def _python() -> list[Finding]:
    return [Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")]


def _torch() -> list[Finding]:
    old = release(torch.__version__) < OLDEST_TORCH
    advice = f"install torch {_dotted(OLDEST_TORCH)} or later: private names that are used here differ" if old else ""
    return [Finding("torch", "bad" if old else "ok", torch.__version__, advice), *_off()]


def _off() -> list[Finding]:
    """What of this package does without, on this torch and this Triton."""
    try:
        why = {feature.off: why_off(name) for name, feature in FEATURES.items() if feature.library in sys.modules}
    except SettingsError:
        return []  # told below
    return [Finding("private names", "note", reason, off) for off, reason in why.items() if reason is not None]


def _triton() -> list[Finding]:
    if importlib.util.find_spec("triton") is None:
        advice = "kernels cannot be dispatched and GPU builds cannot be made: pip install triton, on Linux"
        return [Finding("Triton", "bad" if torch.cuda.is_available() else "note", "not installed", advice)]
    version = _installed("triton")
    old = release(version) < OLDEST_TRITON
    advice = f"install {_dotted(OLDEST_TRITON)} or later" if old else ""
    return [Finding("Triton", "bad" if old else "ok", version, advice)]


def _gpu() -> list[Finding]:
    if not torch.cuda.is_available():
        built = torch.version.cuda or getattr(torch.version, "hip", None)
        advice = "torch sees none: look at the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES" if built else ""
        found = "none that torch can use" if built else "none: this torch is built for the CPU alone"
        return [Finding("GPU", "note", found, advice or "functions are compiled for the CPU; kernels need a GPU")]
    gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [
        Finding(
            f"GPU {index}",
            "ok",
            f"{gpu.name}, capability {gpu.major}.{gpu.minor}, {gpu.total_memory / 2**30:.0f} GiB",
        )
        for index, gpu in enumerate(gpus)
    ]


def _compiler() -> list[Finding]:
    """Inductor's for the CPU; what CXX says instead is Inductor's own to read."""
    path = next(filter(None, map(shutil.which, COMPILERS)), None)
    if path:
        return [Finding("C++ compiler", "ok", path)]
    advice = "every CPU call runs the plain function: install g++ or clang++"
    return [Finding("C++ compiler", "note" if torch.cuda.is_available() else "bad", "none was found", advice)]


def _hot_path() -> list[Finding]:
    try:
        reason = native.reason()
    except SettingsError:
        return []  # told below
    if reason is None:
        return [Finding("hit path in C", "ok", "in use")]
    return [Finding("hit path in C", "note", f"not in use: {reason}", "hits take the Python road: right, and slower")]


def _store() -> list[Finding]:
    try:
        setting, store = settings().resolve("").store, store_in_use()
    except SettingsError:
        return []  # told below
    if setting is False:
        return [Finding("store", "note", "off, by the settings", "each process times its shapes anew")]
    try:
        folder = Folder.open(store.path, create=False)
    except FileNotFoundError:
        return [_store_to_be(store.path)]
    except Refused as refused:
        return [Finding("store", "bad", f"{store.path} is not used: {'; '.join(refused.reasons)}", _MEMORY_ONLY)]
    except OSError as error:
        return [Finding("store", "bad", f"{store.path} cannot be opened: {error.strerror or error}", _MEMORY_ONLY)]
    mode = stat.S_IMODE(folder.path.stat().st_mode)
    folder.close()
    return [Finding("store", "ok", f"{store.path} (mode {mode:o})")]


_MEMORY_ONLY = "choices are kept in memory only: mend the folder, or name another with SHAPEDISPATCH_STORE"


def _store_to_be(path: Path) -> Finding:
    above = next(folder for folder in path.parents if folder.exists())
    if not above.is_dir():
        return Finding("store", "bad", f"{path} cannot be made: {above} is not a folder", _MEMORY_ONLY)
    if not os.access(above, os.W_OK | os.X_OK):
        return Finding("store", "bad", f"{path} cannot be made: nothing may be written in {above}", _MEMORY_ONLY)
    return Finding("store", "ok", f"{path}, which the first choice that is timed makes")


def _settings() -> list[Finding]:
    try:
        found = settings()
    except SettingsError as error:
        return [Finding("settings", "bad", str(error), "mend what it names")]
    if found.left_out:
        what = (
            "the whole file is" if found.path is None else "that line is" if "\n" not in found.left_out else "they are"
        )
        return [Finding("settings", "bad", found.left_out, f"{what} left out: mend what it names"), *_sections(found)]
    said = ", ".join(sorted(found.environment))
    environment = f"; the environment sets {said}" if said else ""
    return [Finding("settings", "ok", f"{found.path or 'no file'}{environment}"), *_sections(found)]


def _sections(found: Settings) -> list[Finding]:
    """Sections that match nothing: only those of modules that were imported can be told."""
    advice = "misspelt, or its module is not imported: name the module, shapedispatch doctor MODULE"
    return [
        Finding("settings", "note", f'[kernels."{section}"] matches no dispatcher', advice)
        for section in found.sections_unmatched(dispatchers())
    ]


def _matplotlib() -> list[Finding]:
    if importlib.util.find_spec("matplotlib") is None:
        return [Finding("matplotlib", "note", "not installed", "plots need it: pip install 'shapedispatch[plot]'")]
    return [Finding("matplotlib", "ok", _installed("matplotlib"))]


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def _dotted(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))
