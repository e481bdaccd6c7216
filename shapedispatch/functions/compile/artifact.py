"""Compiled code as bytes: what one process has compiled is loaded by another, which runs it as if it were its own.

AOTAutograd's own record of a compiled graph, with Inductor's code in it, is what crosses; `inductor.Code` tells what
our compiler has done around it, and the same is done here again. The names by which AOTAutograd's cache is made to
give that record stand here: where a release has others, nothing is compiled elsewhere.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import pickle
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
from torch._functorch._aot_autograd import autograd_cache
from torch._guards import TracingContext, tracing
from torch._inductor import codecache, cpu_vec_isa, output_code
from torch._inductor.cudagraph_utils import BoxedDeviceIndex
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._inductor.triton_bundler import TritonBundler
from torch._inductor.utils import BoxedBool
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ...hit.call import taking_back_draws
from ...interpreter.failures import what_fails
from ...keys.identity import has_gpu_driver
from ...private import find, why_off
from ..checks.graph_check import Verdict
from ..parts.joint import Joint
from ..parts.partial import Partial
from ..parts.plan import MadeOf, Plan
from .autograd import undefined_passed_on
from .code import Code, check_alignment_in_c, count_together, generated_modules_kept, tagged, without_compiler
from .inductor import skip_wrappers

__all__ = [
    "Artifact",
    "Checked",
    "NotSaved",
    "ShapeConditions",
    "first_asked",
    "hash_libraries",
    "loaded",
    "recorded",
    "saved",
]

Run = Callable[..., Any]


class NotSaved(Exception):
    """Compiled code cannot be handed to another process; the message is why."""


@dataclass(frozen=True, slots=True)
class ShapeConditions:
    """What compiled code asks of the sizes that it is called with: an expression of the graph's whole numbers.

    ``places`` are the positions of those among the graph's inputs; at those of ``sizes`` nothing else may stand.
    """

    expression: str
    places: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        fixed = [f"input {place} of its graph is {size}" for place, size in self.sizes]
        return ", ".join([*fixed, *([self.expression] if self.expression else [])])

    def are_none(self) -> bool:
        """Whether all sizes will do."""
        return not self.expression and not self.sizes

    def hold(self, inputs: Sequence[Any]) -> bool:
        """Whether these inputs of the graph are such sizes."""
        if any(inputs[place] != size for place, size in self.sizes):
            return False
        return not self.expression or bool(_condition(self.expression)([inputs[place] for place in self.places]))


@functools.lru_cache(maxsize=256)
def _condition(expression: str) -> Callable[[Sequence[Any]], bool]:
    """It as a function of the numbers: it is asked at each size, and takes longer to read than to evaluate."""
    code: Any = compile(expression, "<conditions>", "eval")
    return functools.partial(ShapeEnv().evaluate_guards_expression, code)


@dataclass(frozen=True, slots=True)
class Checked:
    """That compiled code computes what its graph says, whatever the values: found by the process that compiled it.

    It says so of that very ``code``, for that ``job`` (the graph and how it was compiled), where the compiler, the
    check and the machine are as they were there (``where``): each as a digest. ``digits`` are as in `Verdict`.
    """

    digits: int
    code: str
    job: str
    where: str


@dataclass(frozen=True, slots=True)
class Artifact:
    """Compiled code, what is to be known of it, and of which sizes it is right."""

    entry: bytes
    code: Code
    conditions: ShapeConditions
    libraries: tuple[tuple[str, bytes], ...] = ()
    """Its kernels for a CPU, by their places in Inductor's cache."""
    instructions: Any = None
    """The instructions of a CPU that those are made of, as Inductor has found out: by programs that it compiles."""
    checked: Checked | None = None
    unchecked: str = ""
    """Why nothing is said of its numbers, which are looked at where it is used then."""
    parts: tuple[Artifact, ...] = ()
    """What was compiled in its place, one after the other, as the ``plan`` has it: then ``entry`` is empty."""
    plan: Plan | None = None
    operators: bytes = b""
    """Of a part: its graph of those that plain calls."""
    made_of: MadeOf | None = None
    """And of what they are made."""
    tag: str = ""
    """That of `parcel.Job`: by it Inductor finds again which of a kernel's configs was best where it was compiled."""

    def digest(self) -> str:
        """Of all that runs, and of how: equal for what computes the same."""
        found = hashlib.sha256(repr((self.code.shared, self.code.bare, self.code.written, self.conditions)).encode())
        for part in (self.entry, *(part for place, content in self.libraries for part in (place.encode(), content))):
            found.update(len(part).to_bytes(8) + part)
        found.update(repr((self.plan, self.operators, self.made_of, [part.digest() for part in self.parts])).encode())
        return found.hexdigest()

    def verdict(self, job: str, where: str) -> Verdict | None:
        """What the process found that compiled it, where that is said of this code, of this job and for this place."""
        told = self.checked
        if told is None or told != Checked(told.digits, self.digest(), job, where):
            return None
        return Verdict(digits=told.digits)


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Have what is compiled inside be recorded, and nothing that was compiled before be taken in its place.

    AOTAutograd's cache is pointed at a folder of its own, and asked by a key that no graph has, for all threads.
    """
    cache: Any = autograd_cache
    folder_of, key_of = vars(cache.AOTAutogradCache)["_get_tmp_dir"], cache.autograd_cache_key
    kept = {"enable_autograd_cache": True, "bundled_autograd_cache": True, "strict_autograd_cache": True}
    with tempfile.TemporaryDirectory() as folder, torch._functorch.config.patch(kept):
        try:
            cache.AOTAutogradCache._get_tmp_dir = staticmethod(lambda *_: folder)
            cache.autograd_cache_key = lambda *_, **__: (f"a{uuid.uuid4().hex}", [])
            yield
        finally:
            cache.AOTAutogradCache._get_tmp_dir, cache.autograd_cache_key = folder_of, key_of


def saved(code: Code, examples: Sequence[Any]) -> Artifact:
    """What was compiled inside `recorded` of a graph with these inputs, for `loaded`; raises NotSaved."""
    if code.pieces is not None:
        pieces = code.pieces
        parts = tuple(map(_saved_part, pieces.codes, pieces.inputs, pieces.graphs, pieces.made_of))
        every = [part.conditions.expression for part in parts]  # each has all whole numbers of the call, in their order
        conditions = replace(_conditions("", examples), expression=" and ".join(f"({one})" for one in every if one))
        instructions = next((part.instructions for part in parts if part.instructions is not None), None)
        return Artifact(b"", code, conditions, (), instructions, parts=parts, plan=pieces.plan)
    if code.record is None:
        raise NotSaved("this torch keeps no record of what was compiled")
    entry = code.record()
    for name in ("aot_joint_graph_str", "aot_forward_graph_str", "aot_backward_graph_str"):
        if hasattr(entry, name):
            setattr(entry, name, None)  # for a log that nobody reads: to render it takes longer than to load
    for part in _parts(entry):
        part.result = _bare(part.result)
    conditions = _conditions(entry.guards_expr, examples)
    try:
        instructions = cpu_vec_isa.pick_vec_isa() if code.libraries else None
        return Artifact(pickle.dumps(entry), code, conditions, _libraries(code), instructions)
    except what_fails() as error:  # whatever pickling raises is the reason
        raise NotSaved(f"what was compiled cannot be sent: {type(error).__name__}: {error}") from None


def _saved_part(code: Code, examples: Sequence[Any], graph: torch.fx.GraphModule, made_of: MadeOf | None) -> Artifact:
    """As `saved`, of a part."""
    from .parcel import graph_bytes

    return replace(saved(code, examples), operators=graph_bytes(graph, ()), made_of=made_of)


def _operators(graph: bytes) -> Callable[[], torch.fx.GraphModule]:
    """A graph: it is read where it is needed, which is hardly ever."""

    @functools.cache
    def read() -> torch.fx.GraphModule:
        from .parcel import graph_from

        return graph_from(graph)

    return read


def _parts(entry: Any) -> list[Any]:
    """The forward of what was compiled, and its backward, if it has one: those that are Inductor's code."""
    parts = [part for part in (entry.compiled_fw, entry.compiled_bw) if part is not None]
    return [part for part in parts if isinstance(part.result, output_code.CompiledFxGraph)]


def _bare(graph: Any) -> Any:
    """The same code, to be loaded without the compiler; under a name of its own in Inductor's cache."""
    bare = copy.copy(graph)
    bare.source_code = without_compiler(graph.source_code)
    bare.cache_key = f"c{hashlib.sha256(bare.source_code.encode()).hexdigest()}"
    return bare


def _libraries(code: Code) -> tuple[tuple[str, bytes], ...]:
    """Those that lie in Inductor's cache, whose names are made of all that they are compiled of."""
    cache = Path(cache_dir())
    inside = [path for path in code.libraries if cache in path.parents]
    return tuple((str(path.relative_to(cache)), path.read_bytes()) for path in inside)


@contextlib.contextmanager
def _kernels_known(instructions: Any) -> Iterator[None]:
    """Have Inductor find kernels for a CPU in its cache by what another process here has found out, for all threads.

    It would compile and run programs to see which instructions there are, and the headers of kernels to see whether
    they have changed, though nothing is to be compiled.
    """
    if instructions is None or not _may_run(instructions):
        yield
        return
    inductor: Any = codecache
    kernels = inductor.CppPythonBindingsCodeCache
    pick, header = inductor.pick_vec_isa, vars(kernels)["_get_uncompiled_header"]
    try:
        inductor.pick_vec_isa = lambda: instructions
        kernels._get_uncompiled_header = classmethod(lambda *_: None)
        yield
    finally:
        inductor.pick_vec_isa, kernels._get_uncompiled_header = pick, header


def _may_run(instructions: Any) -> bool:
    """Whether this process may run them: those on tiles it has to ask the system for, and Inductor has not done so."""
    return "amx" not in str(instructions) or torch.cpu._init_amx()


def _put_back(libraries: Sequence[tuple[str, bytes]]) -> None:
    """Have kernels lie in Inductor's cache where they have left it: they would be compiled in the caller's time."""
    for place, content in libraries:
        path = Path(cache_dir()) / place
        with contextlib.suppress(OSError):  # then it is compiled
            if path.exists() and path.stat().st_size == len(content):  # who was killed has left the half of it
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
            fresh.write_bytes(content)
            fresh.chmod(0o755)
            fresh.replace(path)


def _conditions(expression: str | None, examples: Sequence[Any]) -> ShapeConditions:
    """Those that tracing and Inductor have come to; raises NotSaved where a size has become a constant."""
    places = tuple(i for i, one in enumerate(examples) if isinstance(one, torch.SymInt))
    for place in places:
        node = examples[place].node
        if node.shape_env.replace(node.expr).is_number:
            raise NotSaved("a size that varies has become a constant of its code")
    return ShapeConditions(expression or "", places)


def hash_libraries() -> None:
    """Have torch and Triton hash what they are made of, which they ask at the first load of code for a GPU.

    That is half a second, most of it the half a gigabyte of Triton's library, and needs no device: a thread may do it.
    """
    if has_gpu_driver():
        find("torch._inductor.runtime.triton_compat.triton_key")()
        find("torch._inductor.codecache.torch_key")()


def first_asked() -> bool:
    """Have Triton say what it compiles for, for the GPU that is in use, once a process; whether that was done now.

    A load would ask it: for that it loads its driver, which looks for libraries by a program of the system's.
    """
    if _asked.cache_info().currsize:
        return False
    _asked()
    return True


@functools.cache
def _asked() -> None:
    with contextlib.suppress(RuntimeError):  # as Inductor does, which makes do without
        find("torch.utils._triton.triton_hash_with_backend")()


def _made_ready(part: Any, graph: Any, how: Mapping[str, Any]) -> Any:
    """What a part of AOTAutograd's record does to its code when that is loaded, but for hooks of torch's own tests.

    Those are in the module of Inductor that compiles.
    """
    constants = output_code.CompiledFxGraphConstants()
    if (bundle := graph._triton_bundle) is not None:
        TritonBundler.read_and_emit(bundle)
    graph.after_deserialization(constants)
    graph.post_compile(part.example_inputs, constants, how)
    return graph


def _without_compiler() -> bool:
    """Whether code is to be loaded without Inductor's compiler: nothing has been compiled here, and no setting asks."""
    compiled = "torch._inductor.graph" in sys.modules
    return not compiled and _policy() is None and why_off("loads without the compiler") is None


def _policy() -> Any:
    """A user's own way with CUDA graphs, which wraps code when it is loaded; not in each release."""
    return getattr(torch._inductor.config, "cudagraph_policy", None)


def loaded(artifact: Artifact, code: Code) -> Run:
    """The compiled graph; ``code`` is filled in as `inductor.compiler` does. Must run under the lock of building.

    Inductor starts no processes of its own for it, one a core, as it does in a process that compiles: all is compiled.
    """
    code.take(artifact.code)
    if artifact.plan is not None:
        code.partial = Partial()
        run = artifact.plan.joined([_loaded_part(part, artifact.tag, code) for part in artifact.parts])
    else:
        run = _loaded_whole(artifact, code, lambda: code.graph)
    return taking_back_draws(run) if code.draws else run


def _loaded_whole(artifact: Artifact, code: Code, operators: Callable[[], torch.fx.GraphModule | None]) -> Run:
    """As `loaded`, of what was compiled as one."""
    _put_back(artifact.libraries)
    entry = pickle.loads(artifact.entry)
    entry.guards_expr = None  # asked by `ShapeConditions`, of each class of calls
    for part in _parts(entry) if _without_compiler() else ():
        part.post_compile = functools.partial(_made_ready, part)
    how = {"cudagraphs": BoxedBool(False), "boxed_forward_device_index": BoxedDeviceIndex(None)}
    context = TracingContext(FakeTensorMode(shape_env=ShapeEnv()))
    known = torch._inductor.config.patch(unsafe_skip_cache_dynamic_shape_guards=True, compile_threads=1)
    passed_on = undefined_passed_on(
        lambda: entry.compiled_bw is not None, lambda: operators() if code.repeats else None, code
    )
    with (
        generated_modules_kept(code),
        tracing(context),
        known,
        tagged(artifact.tag),
        _kernels_known(artifact.instructions),
        passed_on,
    ):
        whole = entry.wrap_post_compile([], entry.sanitized_aot_config, how)
    graph = entry.compiled_fw.result
    for part in _parts(entry):
        check_alignment_in_c(part.result)
    if code.shared is not None:
        count_together(graph, *code.shared)

    def run(*inputs: Any) -> Any:
        return whole(list(inputs))

    backward = None if entry.compiled_bw is None else entry.compiled_bw.result
    return skip_wrappers(run, graph, code.written, backward) if code.bare else run


def _loaded_part(part: Artifact, tag: str, whole: Code) -> Run:
    """As `loaded`, of a part of other code, which has its modules."""
    code = Code(partial=whole.partial)
    code.take(part.code)
    operators = _operators(part.operators)
    try:
        run = _loaded_whole(replace(part, tag=tag), code, operators)
        if whole.partial is None or part.made_of is None:
            return run
        return Joint(run, operators, part.made_of, whole.partial)
    finally:
        whole.modules += code.modules
        whole.libraries += code.libraries
        code.modules.clear()  # else they went with it
