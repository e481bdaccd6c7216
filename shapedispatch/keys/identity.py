"""Identity: of code, of candidates, and of the machine with its libraries; nothing is stored here.

An identity is SHA-256 over canonical bytes, the same in every process: no ``hash()``, no ``id()``, no modification
times, no clock. It decides only whether a stored timing is still worth trusting, never whether an answer is right;
so where a value cannot be described it is described by its type, and a walk that grows too large is cut.

Code is what runs: the code object without line numbers, not the text of a source file, which may have been edited
since it was imported and whose comments change nothing. For a Triton kernel, which is compiled from its text, it is
that text's syntax tree.

The machine's hard parts say for what kind of device a choice was made; its soft parts under which conditions it was
timed. Nothing there is a clock, a path or a modification time.
"""

from __future__ import annotations

import ast
import dis
import enum
import functools
import hashlib
import inspect
import json
import platform
import sys
import types
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ..interpreter.failures import what_fails
from .signature import nested_code

__all__ = [
    "Environment",
    "candidates_identity",
    "code_identity",
    "compared",
    "differences",
    "digest",
    "environment",
    "has_gpu_driver",
]

_DEPTH = 16
_NODES = 4096


def digest(value: object) -> str:
    """SHA-256 of a JSON-like value, as 64 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def code_identity(fn: object) -> str:
    """Identity of a function or kernel: its code, defaults, closure values and the globals that it names.

    Functions it refers to count by their code too, up to a bounded number; modules and what belongs to installed
    libraries by name and version; tensors and objects of other kinds by type.
    """
    return digest(_Walk(_package(fn)).describe_all(fn))


def candidates_identity(candidates: Iterable[tuple[str, object]]) -> str:
    """Identity of the variants that compete: each name with what stands behind it (code, a config, plain values)."""
    return digest([[name, code_identity(what)] for name, what in candidates])


# --- code --------------------------------------------------------------------------------------------------------


class _Walk:
    """A value and all it refers to as JSON-like data: each function once, the nearest first, so a cut is far away."""

    def __init__(self, package: str | None) -> None:
        self.package = package
        self.seen: dict[int, tuple[int, object]] = {}  # the object is kept, so that its id stays its own
        self.waiting: deque[object] = deque()
        self.nodes = 0

    def describe_all(self, value: object) -> Any:
        parts = [self.describe(value, _DEPTH)]
        while self.waiting:
            parts.append(self.thing(self.waiting.popleft(), _DEPTH))
        return parts

    def describe(self, value: Any, depth: int) -> Any:
        self.nodes += 1
        if depth <= 0 or self.nodes > _NODES:
            return ["cut", _type_name(value)]
        plain = _plain(value)
        if plain is not None:
            return plain
        if isinstance(value, (tuple, list, dict, set, frozenset)):
            return self.container(value, depth - 1)
        if isinstance(value, types.CodeType):
            return self.code(value, depth - 1)
        if id(value) not in self.seen:
            self.seen[id(value)] = (len(self.seen), value)
            self.waiting.append(value)
        return ["thing", self.seen[id(value)][0]]

    def container(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            pairs = [[self.describe(name, depth), self.describe(item, depth)] for name, item in value.items()]
            return [_type_name(value), sorted(pairs, key=json.dumps)]
        if isinstance(value, (set, frozenset)):
            # Things are numbered as they are met, so a set's must be met in an order of their own.
            by_name = sorted(value, key=lambda item: (_type_name(item), str(getattr(item, "__qualname__", ""))))
            return [_type_name(value), sorted((self.describe(item, depth) for item in by_name), key=json.dumps)]
        return [_type_name(value), [self.describe(item, depth) for item in value]]

    def thing(self, value: Any, depth: int) -> Any:
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__, package_version(value.__name__)]
        if isinstance(value, types.FunctionType):
            return self.function(value, depth)
        if isinstance(value, types.MethodType):
            return ["method", _type_name(value.__self__), self.describe(value.__func__, depth)]
        if isinstance(value, functools.partial):
            return ["partial", *(self.describe(part, depth) for part in (value.func, value.args, value.keywords))]
        if isinstance(value, type) or inspect.isbuiltin(value):
            return ["named", value.__module__, value.__qualname__, package_version(value.__module__)]
        if (type(value).__module__ or "").startswith("triton"):
            return self.triton(value, depth)
        call = type(value).__dict__.get("__call__")
        return ["object", _type_name(value), self.describe(call, depth)]

    def function(self, fn: types.FunctionType, depth: int) -> Any:
        if self.foreign(fn.__module__):
            return ["named", fn.__module__, fn.__qualname__, package_version(fn.__module__)]
        cells = dict(zip(fn.__code__.co_freevars, map(_content, fn.__closure__ or ()), strict=True))
        named = {name: fn.__globals__[name] for name in sorted(_global_names(fn.__code__) & fn.__globals__.keys())}
        parts = (fn.__code__, fn.__defaults__, fn.__kwdefaults__, cells, named, getattr(fn, "__wrapped__", None))
        attributes = [self.attributes(item, fn.__code__, depth) for item in named.values()]
        return ["function", *(self.describe(part, depth) for part in parts), attributes]

    def attributes(self, module: Any, code: types.CodeType, depth: int) -> Any:
        """What the code may read off a module of the user's own: there, a name and a version say too little."""
        if not isinstance(module, types.ModuleType) or self.foreign(module.__name__):
            return None
        names = sorted({name for part in nested_code(code) for name in part.co_names} & vars(module).keys())
        return [[name, self.describe(vars(module)[name], depth)] for name in names]

    def code(self, code: types.CodeType, depth: int) -> Any:
        constants = [self.describe(constant, depth) for constant in code.co_consts]
        names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
        counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
        return ["code", code.co_code.hex(), code.co_exceptiontable.hex(), constants, names, counts]

    def triton(self, value: Any, depth: int) -> Any:
        """Kernels, the wrappers around them, configs and constants; each attribute used only where it is there."""
        kwargs = getattr(value, "all_kwargs", None)
        if kwargs is not None:  # triton.Config
            return ["config", self.describe(kwargs(), depth), self.describe(getattr(value, "pre_hook", None), depth)]
        parts = [getattr(value, name, None) for name in ("fn", "configs", "values", "value")]
        text = _syntax(getattr(value, "src", None))
        if text is None and parts == [None] * 4:
            text = getattr(value, "cache_key", None)
        return ["triton", _type_name(value), text, [self.describe(part, depth) for part in parts]]

    def foreign(self, module: str | None) -> bool:
        """Whether code belongs to an installed library or Python itself and counts by its version."""
        package = (module or "").partition(".")[0]
        if package in _LIBRARIES or package in sys.stdlib_module_names:
            return True
        return package != self.package and package_version(package) is not None


_LIBRARIES = frozenset({"torch", "triton", "numpy", "shapedispatch"})


def _plain(value: Any) -> Any:
    """Values that are described by value; None when ``value`` is of another kind."""
    if value is None or isinstance(value, (bool, str)) or value is Ellipsis:
        return [type(value).__name__, str(value)]
    if isinstance(value, enum.Enum):
        return ["enum", _type_name(value), value.name]
    if isinstance(value, (int, bytes)):
        return [_type_name(value), hex(value) if isinstance(value, int) else value.hex()]
    if isinstance(value, (float, complex)):
        return [_type_name(value), repr(value)]
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return [_type_name(value), str(value)]
    return None


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # a cell that nothing has been put into yet
        return "empty"


def _global_names(code: types.CodeType) -> set[str]:
    steps = (step for part in nested_code(code) for step in dis.get_instructions(part))
    return {str(step.argval) for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


def _package(fn: Any) -> str | None:
    """The top-level package that ``fn`` belongs to: its own helpers are read as code whatever their version."""
    for _ in range(_DEPTH):
        inner = _inside(fn)
        if inner is None:
            break
        fn = inner
    module = getattr(fn, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else None


def _inside(fn: object) -> object:
    """What a wrapper wraps, read without running anything of the wrapper's; None for what wraps nothing."""
    if isinstance(fn, functools.partial):
        return fn.func
    if isinstance(fn, types.MethodType):
        return fn.__func__
    attributes = getattr(fn, "__dict__", None) or {}
    return attributes.get("__wrapped__") or attributes.get("fn")


def _syntax(source: object) -> str | None:
    """A kernel's text without comments, layout and line numbers, so that moving it changes nothing."""
    if not isinstance(source, str):
        return None
    try:
        return ast.dump(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return source


# --- the machine -----------------------------------------------------------------------------------------------------


def package_version(module: str | None) -> str | None:
    """The version that the imported top-level package of ``module`` states, or None."""
    package = sys.modules.get((module or "").partition(".")[0])
    try:
        version = getattr(package, "__version__", None)
    except what_fails():  # whatever a module's own `__getattr__` does
        return None
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
        return _gpu(device.index, libraries)
    if device.type == "cpu":
        return Environment({"family": "cpu", "capability": platform.machine() or "unknown"}, libraries).extended(
            **_cpu(), threads=torch.get_num_threads()
        )
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


def _gpu(index: int | None, libraries: dict[str, str | int]) -> Environment:
    found, driver = _gpu_properties(torch.cuda.current_device() if index is None else index)
    hip = getattr(torch.version, "hip", None) is not None
    capability = getattr(found, "gcnArchName", "unknown") if hip else f"{found.major}.{found.minor}"
    return Environment({"family": "hip" if hip else "cuda", "capability": capability}, libraries).extended(
        driver=driver,
        device=found.name,
        multiprocessors=found.multi_processor_count,
        memory_bytes=found.total_memory,
    )


_DRIVER_FILES = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))


def has_gpu_driver() -> bool:
    """Whether the system has a driver of GPUs loaded: asked of files, where a question to CUDA would start it."""
    return any(path.exists() for path in _DRIVER_FILES)


def _driver() -> str:
    """The kernel driver's version as it describes itself; "unknown" where it does not."""
    for path in _DRIVER_FILES:
        if lines := _lines(path):
            return lines[0].partition(":")[2].strip() or lines[0]
    return "unknown"  # no release of torch tells it, and the only public way is a library of NVIDIA's


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
        f"{_WORDS.get(part, part)} was {_short(str(stored.get(part, 'not recorded')))} when this was stored"
        f" and is {_short(str(here.get(part, 'not known')))} here"
        for part in sorted({*stored, *here})
        if stored.get(part) != here.get(part)
    )


def compared(one: Mapping[str, str | int], other: Mapping[str, str | int]) -> tuple[tuple[str, str, str], ...]:
    """What each part is called that differs between two environments, and what either has there, for a person."""
    return tuple(
        (_WORDS.get(part, part), _short(str(one.get(part, "nothing"))), _short(str(other.get(part, "nothing"))))
        for part in sorted({*one, *other})
        if one.get(part) != other.get(part)
    )


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:84]}... ({hashlib.sha256(text.encode()).hexdigest()[:8]})"
