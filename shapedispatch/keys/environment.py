"""The environment: the machine and its libraries, as far as a timing depends on them.

Hard parts say for what kind of device a choice was made; soft parts say under which conditions it was timed. Nothing
here is a clock, a path or a modification time.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

__all__ = ["Environment", "differences", "environment", "package_version"]


def package_version(module: str | None) -> str | None:
    """The version that the imported top-level package of ``module`` states, or None."""
    package = sys.modules.get((module or "").partition(".")[0])
    version = getattr(package, "__version__", None)
    return None if version is None else str(version)


@dataclass(frozen=True)
class Environment:
    """What a timing depends on besides its key.

    ``hard``: where it differs a stored choice is not used. ``soft``: where it differs the choice still answers, and is
    timed again when timing is allowed. Values are strings and integers; ``memory_bytes`` is in bytes.
    """

    hard: Mapping[str, str | int]
    soft: Mapping[str, str | int] = field(default_factory=dict)

    def extended(self, **soft: str | int) -> Environment:
        """The same with further soft parts, such as ``code=code_identity(fn)``."""
        return Environment(self.hard, {**self.soft, **soft})


def environment(device: torch.device) -> Environment:
    """Describe the machine as seen from ``device``: a GPU by its own parts, the CPU by model, instructions, threads.

    The CPU's parts stand only in a CPU's environment: a table made on one GPU server serves its neighbour, whose
    processor may be another.
    """
    libraries = _libraries()
    if device.type == "cuda":
        index: int | None = device.index  # typed as if it were never None
        return _gpu(torch.cuda.current_device() if index is None else index, libraries)
    if device.type == "cpu":
        cpu = {**_cpu(), "threads": torch.get_num_threads()}
        return Environment({"family": "cpu", "capability": platform.machine() or "unknown"}, {**libraries, **cpu})
    return Environment({"family": device.type, "capability": "unknown"}, libraries)


@functools.cache
def _libraries() -> dict[str, str | int]:
    parts = {
        "shapedispatch": _installed("shapedispatch"),
        "torch": torch.__version__,
        "torch_git": getattr(torch.version, "git_version", None),
        "triton": _installed("triton"),
        "runtime": torch.version.cuda or getattr(torch.version, "hip", None),
    }
    return {name: str(part) if part else "none" for name, part in parts.items()}


def _installed(package: str) -> str | None:
    # What is installed before what is imported: whether triton is imported yet must not matter.
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return package_version(package)


@functools.lru_cache(maxsize=64)
def _gpu_properties(index: int) -> tuple[Any, str]:
    return torch.cuda.get_device_properties(index), _driver()


def _gpu(index: int, libraries: dict[str, str | int]) -> Environment:
    found, driver = _gpu_properties(index)
    hip = getattr(torch.version, "hip", None) is not None
    capability = getattr(found, "gcnArchName", "unknown") if hip else f"{found.major}.{found.minor}"
    own: dict[str, str | int] = {
        "driver": driver,
        "device": found.name,
        "multiprocessors": found.multi_processor_count,
        "memory_bytes": found.total_memory,
    }
    return Environment({"family": "hip" if hip else "cuda", "capability": capability}, {**libraries, **own})


_DRIVER_FILES = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))


def _driver() -> str:
    """The kernel driver's version as it describes itself; "unknown" where it does not."""
    for path in _DRIVER_FILES:
        lines = _lines(path)
        if lines:
            return lines[0].partition(":")[2].strip() or lines[0]
    # Private, and the only public way is a library of NVIDIA's; without it the driver is no part of the identity.
    version = getattr(torch._C, "_cuda_getDriverVersion", None)
    return f"for CUDA {version()}" if version is not None else "unknown"


_CPUINFO = Path("/proc/cpuinfo")
# Only what a compiler may use: the other flags come and go with kernel and microcode.
_ISA = ("sse", "ssse", "avx", "fma", "f16c", "bmi", "amx", "asimd", "neon", "sve", "sme", "bf16", "i8mm", "fp16")


@functools.cache
def _cpu() -> dict[str, str | int]:
    found: dict[str, str] = {}
    for line in _lines(_CPUINFO):
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    flags = found.get("flags") or found.get("Features") or ""
    model = found.get("model name") or found.get("CPU part") or platform.processor() or platform.machine()
    usable = " ".join(sorted(flag for flag in set(flags.split()) - {"smep"} if flag.startswith(_ISA)))
    return {"cpu": model or "unknown", "instructions": usable or torch.backends.cpu.get_cpu_capability()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


_WORDS = {
    "code": "the function's code, closure values or globals",
    "candidates": "the list of candidates",
    "torch_git": "the build of torch",
    "runtime": "the CUDA or HIP runtime",
    "multiprocessors": "the number of multiprocessors",
    "memory_bytes": "the size of the device's memory",
    "cpu": "the model of the CPU",
    "instructions": "the CPU's instruction set",
    "threads": "the number of threads",
}


def differences(stored: Mapping[str, str | int], here: Mapping[str, str | int]) -> tuple[str, ...]:
    """A sentence for each part that differs between two environments' hard or soft parts, the stored one first."""
    return tuple(
        f"{_WORDS.get(part, part)} was {_short(stored.get(part, 'not recorded'))} when this was stored"
        f" and is {_short(here.get(part, 'not known'))} here"
        for part in sorted({*stored, *here})
        if stored.get(part) != here.get(part)
    )


def _short(value: str | int) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:84]}... ({hashlib.sha256(text.encode()).hexdigest()[:8]})"
