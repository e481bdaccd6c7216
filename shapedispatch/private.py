"""Private names of torch that something here cannot do without: looked for, and what is off without them is told.

The names themselves are used where they are needed; here stands which of them must be there for what. The same goes for
releases: what relies on how torch or Triton is made inside is off on one that is newer than the newest that was tried,
if nobody says otherwise (setting ``trust_newer``). Off means the safe path: every call gets its answer, more slowly.
`docs/private_names.md` lists all private names, with what becomes of a call without each.
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from types import MappingProxyType
from typing import Any

from .interpreter.failures import what_fails
from .interpreter.interrupts import imported_whole
from .settings.resolve import settings

__all__ = ["FEATURES", "NEWEST", "Feature", "find", "missing", "newer", "release", "tell", "why_off"]

NEWEST: Mapping[str, tuple[int, int]] = MappingProxyType({"torch": (2, 15), "triton": (3, 9)})
"""The newest release of each library that this package was tried with."""


@dataclass(frozen=True, slots=True)
class Feature:
    """What needs the ``names`` of a ``library``, and what is ``off`` without one of them, for a person.

    One that is ``inside`` relies on how the library is made: a release that is newer than what was tried turns it off.
    With ``late`` its names are in modules that take seconds to import, and it is looked at when it is needed.
    """

    off: str
    names: tuple[str, ...] = ()
    library: str = "torch"
    inside: bool = False
    late: bool = False


_AUTOGRAD = "torch._C._autograd."
_HOOKS = tuple(
    f"torch.nn.modules.module._global_{hooks}_hooks" for hooks in ("forward_pre", "forward", "backward_pre", "backward")
)
_STATE = (
    "torch._C._len_torch_function_stack",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._get_function_stack_at",
    "torch._C._functorch.peek_interpreter_stack",
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "torch._C._get_tracing_state",
    "torch._C._is_any_autocast_enabled",
    "torch._C._get_deterministic_algorithms",
    "torch._C._get_fp32_precision_getter",
    "torch._C._dispatch_keys",
    f"{_AUTOGRAD}_top_saved_tensors_default_hooks",
    "torch._is_functional_tensor",
    "torch.Tensor._is_zerotensor",
    "torch.autograd.forward_ad._current_level",
    "torch.compiler._is_compiling_flag",
    "torch.utils._device.DeviceContext",
    *_HOOKS,
)
_DYNAMO = (
    "torch._C._dynamo.guards.GlobalStateGuard",
    "torch._C._dynamo.guards.TensorGuards",
    "torch._dynamo.config.patch",
    "torch._dynamo.eval_frame.dynamo_tls.traced_frame_infos",
    "torch._dynamo.external_utils",
    "torch._dynamo.guards.CheckFunctionManager.build_guards",
    "torch._dynamo.guards.CheckFunctionManager.id_ref",
    "torch._dynamo.guards.GuardBuilder.DICT_CONTAINS",
    "torch._dynamo.guards.GuardBuilder.DICT_KEYS_MATCH",
    "torch._dynamo.guards.GuardBuilder.ID_MATCH",
    "torch._dynamo.guards.GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT",
    "torch._dynamo.guards.GuardBuilder.SEQUENCE_LENGTH",
    "torch._dynamo.guards.GuardBuilder.TYPE_MATCH",
    "torch._dynamo.guards.install_guard",
    "torch._dynamo.mark_dynamic",
    "torch._dynamo.mark_static",
    "torch._dynamo.source.DictGetItemSource",
    "torch._dynamo.symbolic_convert.InstructionTranslator.current_tx",
    "torch._dynamo.tensor_version_op._tensor_version",
    "torch._dynamo.utils.get_metrics_context",
    "torch._dynamo.variables.ConstDictVariable",
    "torch._dynamo.variables.ConstantVariable.create",
    "torch._dynamo.variables.ListVariable",
    "torch._dynamo.variables.TorchInGraphFunctionVariable._get_handlers",
    "torch._C._dynamo.eval_frame._debug_get_cache_entry_list",
    "torch._C._dynamo.eval_frame.reset_code",
    "torch._guards.TracingContext.try_get",
    "torch._subclasses.fake_tensor.FakeTensor",
    "torch._subclasses.fake_tensor.FakeTensorMode.cache",
    "torch.fx._symbolic_trace.is_fx_symbolic_tracing",
    "torch.fx._symbolic_trace.is_fx_tracing",
)
_INDUCTOR = (
    "torch._functorch.aot_autograd.aot_module_simplified",
    "torch._functorch.config.patch",
    "torch._inductor.codecache.CppPythonBindingsCodeCache.cache",
    "torch._inductor.codecache.FxGraphCachePickler",
    "torch._inductor.codecache.PyCodeCache.modules",
    "torch._inductor.config.patch",
    "torch.compiler._cache.CacheArtifactManager.with_fresh_cache",
)
_COMPILER = (
    "torch._inductor.compile_fx.compile_fx",
    "torch._inductor.compile_fx.compile_fx_inner",
    "torch._inductor.decomposition.select_decomp_table",
    "torch._inductor.lowering.fallback_handler",
    "torch._inductor.lowering.lowerings",
)
_OPERATORS = (
    "torch._C._set_grad_enabled",
    "torch._C._dispatch_dump",
    "torch._library.custom_ops.OPDEFS",
    "torch._ops.HigherOrderOperator",
    "torch._ops.OpOverload",
    "torch.amp.autocast_mode._enter_autocast",
    "torch.library._impls",
    "torch.ops.aten._assert_async",
    "torch.ops.aten._unsafe_view",
    "torch.ops.aten.add.Tensor._opname",
    "torch.ops.aten.add.Tensor._overloadname",
    "torch.ops.aten.add.Tensor._schema",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._pytree.tree_leaves",
    "torch.utils._pytree.tree_map",
    "torch.Tensor._version",
    "torch.UntypedStorage._cdata",
)
_SENT = (
    "torch._functorch._aot_autograd.autograd_cache.AOTAutogradCache._get_tmp_dir",
    "torch._functorch._aot_autograd.autograd_cache.autograd_cache_key",
    "torch._guards.tracing",
    "torch._inductor.codecache.CppPythonBindingsCodeCache._get_uncompiled_header",
    "torch._inductor.codecache.pick_vec_isa",
    "torch._inductor.config.get_config_copy",
    "torch._inductor.cudagraph_utils.BoxedDeviceIndex",
    "torch._inductor.runtime.cache_dir_utils.cache_dir",
    "torch._inductor.utils.BoxedBool",
    "torch._subclasses.FakeTensorMode",
    "torch.cpu._init_amx",
    "torch.fx._graph_pickler.GraphPickler.dumps",
    "torch.fx._graph_pickler.GraphPickler.loads",
    "torch.fx._graph_pickler.Options",
    "torch.fx._graph_pickler._SymNodePickleData.unpickle_sym_int",
)
_LOADED = (
    "torch._inductor.output_code.CompiledFxGraph.after_deserialization",
    "torch._inductor.output_code.CompiledFxGraph.post_compile",
    "torch._inductor.output_code.CompiledFxGraphConstants",
    "torch._inductor.triton_bundler.TritonBundler.read_and_emit",
)

FEATURES: Mapping[str, Feature] = MappingProxyType(
    {
        "calls": Feature("no call of a function is dispatched", _STATE),
        "checkpoints": Feature(
            "a call inside a checkpoint runs plain",
            (f"{_AUTOGRAD}_push_saved_tensors_default_hooks", f"{_AUTOGRAD}_pop_saved_tensors_default_hooks"),
        ),
        "timing": Feature(
            "nothing is timed",
            (
                "torch.Tensor._backward_hooks",
                "torch.Tensor._base",
                "torch.Tensor._is_view",
                "torch.Tensor._post_accumulate_grad_hooks",
            ),
        ),
        "builds": Feature(
            "no build of a function is made", (*_DYNAMO, *_INDUCTOR, *_OPERATORS), inside=True, late=True
        ),
        "compiling": Feature("no build of a function is made", _COMPILER, late=True),
        "steps": Feature(
            "a step of training goes through AOTAutograd's wrappers",
            (
                "torch._C._dynamo.eval_frame.get_eval_frame_callback",
                "torch._C._functorch.peek_interpreter_stack",
                "torch._C._get_obj_in_tls",
                "torch._C._is_key_in_tls",
            ),
        ),
        "builds elsewhere": Feature("in the background nothing is built, and plain runs", _SENT, late=True),
        "loads without the compiler": Feature("the first load of code imports Inductor's compiler", _LOADED, late=True),
        "hits in C": Feature(
            "hits are answered in Python",
            (*_STATE, "torch._C.TensorBase.storage_offset", "torch.Tensor._cdata"),
            inside=True,
        ),
        "direct launches": Feature("kernels are launched by Triton's own launch", library="triton", inside=True),
    }
)


def nothing(*_: Any) -> None:
    """In place of a function that is not there: what it would tell is not known."""


def find(path: str, instead: Any = nothing) -> Any:
    """What has this dotted name; ``instead`` where nothing has it."""
    parts = path.split(".")
    try:
        found: Any = importlib.import_module(parts[0])
        for i, part in enumerate(parts[1:], 2):
            found = getattr(found, part) if hasattr(found, part) else _imported(".".join(parts[:i]))
    except what_fails():  # whatever keeps it from being reached: it cannot be used
        return instead
    return found


def _imported(module: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about torch
        return imported_whole(module)


_NOTHING = object()


_whole: set[str] = set()
"""The features that nothing is missing for: to look for dozens of names takes as long as many calls."""


def missing(feature: str) -> tuple[str, ...]:
    """The names that a feature needs and that are not there; what was there once stays."""
    if feature in _whole:
        return ()
    lost = tuple(name for name in FEATURES[feature].names if find(name, _NOTHING) is _NOTHING)
    if not lost:
        _whole.add(feature)
    return lost


def why_off(feature: str) -> str | None:
    """Why a feature is off, or None where it is not; the first time, the log is told what that means."""
    here = FEATURES[feature]
    lost = missing(feature)
    if lost:
        return _told(f"{here.library} {_version(here.library)} has no {', '.join(lost)}", here.off)
    why = newer(here.library) if here.inside else None
    if why is None or settings().resolve("").trust_newer:
        return None
    off = [one.off for one in FEATURES.values() if one.inside and one.library == here.library]
    return _told(why, f"{', '.join(off)} (the setting trust_newer says otherwise)")


def tell() -> None:
    """Tell the log what is off, of all that can be looked at at once."""
    for name, feature in FEATURES.items():
        if not feature.late and feature.library in sys.modules:
            why_off(name)


def newer(library: str) -> str | None:
    """That a library is newer than the newest release that was tried, if so."""
    version, newest = _version(library), NEWEST[library]
    if release(version) <= newest:
        return None
    return f"{library} {version} is newer than {newest[0]}.{newest[1]}, the newest that shapedispatch was tried with"


def release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; none where it does not begin with two."""
    numbers = version.split("+")[0].split(".")[:2]
    return tuple(map(int, numbers)) if len(numbers) == 2 and all(map(str.isdecimal, numbers)) else ()


def _version(library: str) -> str:
    """Of what is imported, else of what is installed."""
    stated = getattr(sys.modules.get(library), "__version__", None)
    if stated is not None:
        return str(stated)
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


_log = logging.getLogger("shapedispatch")
_said: set[str] = set()


def _told(why: str, off: str) -> str:
    """``why``, of which the log is told once."""
    if why not in _said:
        _said.add(why)
        _log.warning("%s: %s", why, off)
    return why
