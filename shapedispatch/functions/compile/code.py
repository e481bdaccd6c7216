"""The code that one build consists of, as this process holds it: its text, and the modules that were generated."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import warnings
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.compiler.config

if TYPE_CHECKING:
    from ...hit.facts import FactMap
    from ..parts.partial import Partial
    from ..parts.plan import MadeOf, Plan

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of torch about torch, and no business of the call that comes first
    from torch._inductor.codecache import CppPythonBindingsCodeCache, FxGraphCachePickler, PyCodeCache
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    from torch.compiler._cache import CacheArtifactManager

from ...graphs.operators import calls_only_views, draws_numbers, why_not_recorded
from ...hit import native
from ...keys.key import ALIGNMENT_BYTES
from ...private import find
from ...store.artifacts import our_code
from ..checks.graph_check import GraphCheck, Verdict

__all__ = [
    "Code",
    "ExternKernels",
    "Pieces",
    "check_alignment_in_c",
    "count_together",
    "extern_kernels",
    "generated_modules_kept",
    "remove_damaged",
    "tagged",
    "without_compiler",
]

# The end of a generated module: example inputs of the hint's size, and a loop over them.
_BENCHMARK = re.compile(r"^def (?:get_args|benchmark_compiled_module)\(", re.MULTILINE)
# A line of generated code that calls a kernel: Triton's, a library's, torch's own, one in C++.
_LAUNCH = re.compile(r"^ +(?:\w+ = )?(?:\w+\.run|extern_kernels\.\w+|torch\.ops\.[\w.]+|cpp_fused\w*)\(", re.MULTILINE)
# What it imports of Inductor's compiler, whether it uses that or not.
_ALIGN = re.compile(r"^from torch\._inductor\.codegen\.memory_planning import _align as align$", re.MULTILINE)
_EXTERN = re.compile(r"^from torch\._inductor\.select_algorithm import extern_kernels$", re.MULTILINE)


@dataclass(slots=True, weakref_slot=True)
class Code:
    """What one build consists of: its source texts (forward, then backward) and the modules that were generated.

    They are let go at `release`, or when the last reference to this goes, as that of a dropped dispatcher does.
    """

    sources: list[str] = field(default_factory=list)
    modules: list[Any] = field(default_factory=list)
    only_views: bool = True
    numbers: set[torch.dtype] = field(default_factory=set)
    """What numbers that are inputs become."""
    holders: int = 1
    check: GraphCheck | None = None
    """What its numbers are judged by; None once they have been."""
    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()
    """What is not known of the operators that it calls."""
    shared: tuple[tuple[tuple[int, bool, int], ...], tuple[int, ...]] | None = None
    """Which outputs share memory, and which hide that they are views, as `count_together` takes them."""
    bare: bool = False
    """Whether AOTAutograd has nothing to do around a run, as far as can be told before one."""
    computes: bool = False
    """Whether it does nothing but compute results, so that its operators can be run in its place."""
    written: bool = False
    """Whether Inductor has written all of its graph: it calls no operators, but products into memory of its own."""
    libraries: list[Path] = field(default_factory=list)
    """The files of its kernels for a CPU, as Inductor has put them into its cache."""
    unrecordable: str = ""
    """Why no CUDA graph is to be recorded of it, if so."""
    draws: bool = False
    """Whether it draws random numbers."""
    graph: Any = None
    """The graph as it was traced, which runs the operators that plain calls."""
    record: Callable[[], Any] | None = None
    """Gives AOTAutograd's record of what was compiled, where one is kept."""
    pieces: Pieces | None = None
    """What it was compiled in, in its place, where there is a record of each."""
    partial: Partial | None = None
    """What backwards have shown that its own cannot do; None where it has none."""

    @property
    def repeats(self) -> bool:
        """Whether its operators do each time what they did: they may run anew for a backward that is followed."""
        return self.computes and not self.draws

    def program(self, known: FactMap[Hashable, Any], calls: Hashable) -> Partial | None:
        """See `Candidate.program`; what is ``known`` of ``calls`` of this kind all of their builds have in common."""
        return None if self.partial is None else self.partial.of_calls(known, calls, self.repeats)

    def note(self, gm: torch.fx.GraphModule, numbers: Collection[torch.dtype]) -> None:
        """Be of this graph, too, a forward or a backward, in which numbers that are inputs become these dtypes."""
        self.only_views &= calls_only_views(gm)
        self.numbers |= set(numbers)
        self.unrecordable = self.unrecordable or why_not_recorded(gm)  # also of a graph that takes no tensor
        self.draws |= draws_numbers(gm)

    def operators(self) -> Any:
        """A graph of operators that does what it does, each time; None where there is none, or that is not all."""
        return self.graph if self.repeats else None

    def gather(self, parts: Sequence[Code], plan: Plan) -> None:
        """Be of what these say together: how they hang together, all forwards, and behind them all backwards."""
        self.notes = (*self.notes, *([f"compiled in {len(parts)} parts"] if len(parts) > 1 else []))
        forwards, backwards = [one.sources[0] for one in parts], [text for one in parts for text in one.sources[1:]]
        self.sources = ["\n".join(map(_before_benchmark, texts)) for texts in ([repr(plan), *forwards], backwards)]
        self.only_views = all(one.only_views for one in parts)
        self.numbers = self.numbers.union(*(one.numbers for one in parts))
        self.unrecordable = "it runs in parts"
        self.draws = any(one.draws for one in parts)
        self.computes = all(one.computes for one in parts)

    def take(self, other: Code) -> None:
        """Be of what that one says, which was compiled in another process."""
        for name in _OF_THE_CODE:
            setattr(self, name, getattr(other, name))

    def __reduce__(self) -> tuple[Callable[..., Code], tuple[Any, ...]]:
        """For another process, where there are no modules of it."""
        return _described, tuple(getattr(self, name) for name in _OF_THE_CODE)

    def text(self) -> str:
        """The code without comments, which number the compilation, and without Inductor's own benchmark of it."""
        lines = [line for source in self.sources for line in _before_benchmark(source).splitlines()]
        return "\n".join(line for line in lines if not line.lstrip().startswith("#"))

    def launches(self) -> int | None:
        """How many kernels a forward launches, as far as its text says; None where it does not."""
        forward = _before_benchmark(self.sources[0]) if self.sources else ""
        return len(_LAUNCH.findall(forward)) or None

    def __post_init__(self) -> None:
        weakref.finalize(self, _forget, self.modules).atexit = False

    def release(self) -> None:
        """One that holds it lets go; with the last one go the generated modules."""
        self.holders -= 1
        if self.holders <= 0:
            _forget(self.modules)


@dataclass(frozen=True, slots=True)
class Pieces:
    """The code of each part of a graph, what each is called with, and how they run.

    And the operators of each, and of what its results are made where they have one backward.
    """

    codes: tuple[Code, ...]
    inputs: tuple[Sequence[Any], ...]
    plan: Plan
    graphs: tuple[torch.fx.GraphModule, ...]
    made_of: tuple[MadeOf | None, ...]


def _before_benchmark(source: str) -> str:
    """A generated module's text without its end."""
    return _BENCHMARK.split(source)[0]


_OF_THE_CODE = (
    "sources",
    "only_views",
    "numbers",
    "notes",
    "shared",
    "bare",
    "computes",
    "written",
    "unrecordable",
    "draws",
)


def _described(*values: Any) -> Code:
    code = Code()
    for name, value in zip(_OF_THE_CODE, values, strict=True):
        setattr(code, name, value)
    return code


def _forget(modules: list[Any]) -> None:
    """Take generated modules out of Inductor's and Python's own caches, which never forget."""
    for module in modules:
        with contextlib.suppress(ValueError):
            PyCodeCache.modules.remove(module)
        for table in (sys.modules, getattr(PyCodeCache, "modules_no_attr", {})):
            # A copy of the dict, not a list of its items: making a list may collect garbage, and that end up here.
            for name in [name for name, value in table.copy().items() if value is module]:
                table.pop(name, None)
        if not any(other.__file__ == module.__file__ for other in list(PyCodeCache.modules)):
            getattr(PyCodeCache, "linemaps", {}).pop(module.__file__, None)
    modules.clear()


_ALIGNING = "align_inputs_from_check_idxs.<locals>.run"
"""What Inductor puts before its code where that takes inputs on a GPU to be aligned: Python, which looks at each."""
_alignment: Any = find("torch._inductor.utils.ALIGNMENT")


def check_alignment_in_c(graph: Any) -> None:
    """Have it seen in C where a graph's inputs begin; where one is not aligned, Inductor's own copies it.

    Nothing is changed where this release does that otherwise, or not before the code: newer ones do it in the code.
    """
    run: Any = getattr(graph, "current_callable", None)
    if native.in_use is None or getattr(run, "__qualname__", "") != _ALIGNING or _alignment != ALIGNMENT_BYTES:
        return
    cells = zip(run.__code__.co_freevars, run.__closure__ or (), strict=True)
    inside = {name: cell.cell_contents for name, cell in cells}
    if {"model", "inputs_to_check"} <= inside.keys():
        graph.current_callable = native.in_use.AlignedCode(inside["model"], run, tuple(inside["inputs_to_check"]))


def count_together(graph: Any, shared: Sequence[tuple[int, bool, int]], hidden: Sequence[int]) -> None:
    """Have outputs that share memory, as `graph.shared_outputs` tells them, be seen as written where one of them is.

    ``hidden`` are those of `graph.take_unsafe_views`. Autograd counts what is written into a tensor and its views, and
    refuses a backward that needs what was there. The outputs of compiled code are tensors that count by themselves.
    """
    run = graph.current_callable

    def counting(inputs: list[Any]) -> tuple[Any, ...]:
        given = list(inputs)  # the code clears its list
        made = list(run(inputs))
        for i in hidden:
            if made[i]._is_view():
                made[i] = torch.ops.aten._unsafe_view(made[i], made[i].shape)
        for i, of_input, j in shared:
            made[i] = _counted_with(given[j] if of_input else made[j], made[i])
        return tuple(made)

    graph.current_callable = counting


def _counted_with(base: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, with the other's count of what is written; an inference tensor has none."""
    if tensor is base or base.is_inference():
        return tensor
    twin = base.detach()
    twin.data = tensor
    return twin


@contextlib.contextmanager
def generated_modules_kept(code: Code) -> Iterator[None]:
    """Note the modules that are generated inside, and have Inductor keep nothing else of what it compiles.

    It keeps a copy of each file of its cache, in case that `torch.compiler.save_cache_artifacts` asks for them, how
    each kernel for a CPU was compiled, which the generated module has loaded, and the class of each graph.
    """
    loaded = CppPythonBindingsCodeCache
    modules, kernels = set(map(id, PyCodeCache.modules)), set(loaded.cache)
    try:
        with CacheArtifactManager.with_fresh_cache():
            yield
    finally:
        code.modules += [module for module in PyCodeCache.modules if id(module) not in modules]
        for key in [key for key in loaded.cache.copy() if key not in kernels]:
            loaded.cache.pop(key, None)
            name = f"{key}.{loaded.entry_function}"
            if (library := sys.modules.pop(name, None)) is not None and library.__file__:
                code.libraries.append(Path(library.__file__))
            getattr(loaded, "_loaded_module_names", set()).discard(name)
        asked: dict[type, bool] = getattr(FxGraphCachePickler, "_pickleable_type_cache", {})
        for kind in [kind for kind in asked.copy() if issubclass(kind, torch.fx.GraphModule)]:
            asked.pop(kind, None)


def without_compiler(text: str) -> str:
    """A generated module as it is loaded without Inductor's compiler, which takes most of a second to import."""
    if len(re.findall(r"\balign\b", text)) == 1:
        text = _ALIGN.sub("", text)
    return _EXTERN.sub(f"from {__name__} import extern_kernels", text)


class ExternKernels:
    """What generated code calls so: functions, most of them torch's own, which compute a product, say.

    Inductor's object of that name has the same ones, in a module that imports the whole compiler: it is asked for those
    that are not known to be torch's.
    """

    OF_TORCH = frozenset({"addmm", "baddbmm", "bmm", "convolution", "mm"})

    def __getattr__(self, name: str) -> Any:
        place: Any = torch if name in self.OF_TORCH else _select_algorithm().extern_kernels
        setattr(self, name, found := getattr(place, name))
        return found


def _select_algorithm() -> Any:
    return importlib.import_module("torch._inductor.select_algorithm")


extern_kernels: ExternKernels = ExternKernels()
"""That of all code that is loaded so."""


def remove_damaged(error: Exception) -> bool:
    """Whether an error says that a library in Inductor's cache cannot be loaded, which is not there any more then.

    Who is killed while it is linked, or has no room on its disk, leaves a part of it, which is taken for whole after.
    """
    failed = vars(error).get("inner_exception", error)
    path = Path((failed.path if isinstance(failed, ImportError) else None) or "")
    if Path(cache_dir()) not in path.parents:
        return False
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        path.unlink()
    return True


def tagged(tag: str) -> contextlib.AbstractContextManager[None]:
    """Have Inductor's caches hold what is compiled meanwhile apart: by this, and by our own code as it is now.

    How the operators of a graph become code is ours in part, and shows in no graph.
    """
    whole = f"{tag} {our_code()}"
    return torch.compiler.config.patch(cache_key_tag=whole)  # type: ignore[attr-defined, no-any-return]  # it adds `patch` itself
