"""Write ``private_names.md`` from the code: ``python docs/draw_private_names.py`` writes it anew.

Which private names are used, and in which files, is read from the code. What happens without one is said by
`shapedispatch.private` where the package looks for it before it relies on it, and here for the others. In which
versions a name was seen stands in ``private_names.json``: ``--look`` looks for each in the torch, the Triton and the
Python that run this script, and notes it there. `tests/test_private_names.py` compares the page with what this script
would write, and asks for a sentence on each name that is new.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import importlib
import inspect
import json
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from shapedispatch.private import FEATURES, find

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "shapedispatch"
PAGE = Path(__file__).with_name("private_names.md")
SEEN = Path(__file__).with_name("private_names.json")
BEGIN, END = "<!-- names begin -->\n", "<!-- names end -->"

NO_BATCHES = "A build takes no batch of gradients (`is_grads_batched`), and raises."
REFUSED = "That build is refused, with the error as its reason."
KEPT = "Some memory of the compiler's is not given back."
TOLD = "What it logs of a candidate that fails is shown."
NOT_JUDGED = (
    "The numbers of a graph that calls it are judged with other values too, at which it may raise: then they are not."
)
UNHIDDEN = "Code that asks it while a build is made is told that it is being compiled."
BENEATH = "A graph runs through the wrappers of autograd's operators, which pass on what they are given."
ASKED_WHOLE = "A build asks Dynamo's guard on all of torch's state at each hit, which is slower."
IMPORTED = "It, and what stands after it in that list, is imported by the first call that needs it."
ASKED_OF_A_GUARD = "A guard on a tensor is asked for the state of the dispatcher, which is slower."
NO_C = "The C module does not compile: hits are answered in Python."

# Private names that are reached through an object, or are parts of a text, with the place that has them.
OWNERS = {
    "_compute_slotdefs": "torch._dynamo.variables.base._compute_slotdefs",
    "_get_cached_slots": "torch._dynamo.variables.object_protocol._get_cached_slots",
    "_tp_type": "torch._dynamo.variables.base._tp_type",
    "_dynamo_marked_constant": "torch._dynamo.decorators: fn._dynamo_marked_constant",
    "_load_attr": "torch._dynamo.symbolic_convert.InstructionTranslatorBase._load_attr",
    "_load_global": "torch._dynamo.symbolic_convert.InstructionTranslatorBase._load_global",
    "_validate_args": "torch.distributions.Distribution._validate_args",
    "_assert_async": "torch.ops.aten._assert_async",
    "_assert_scalar": "torch.ops.aten._assert_scalar",
    "_backward_hooks": "torch.Tensor._backward_hooks",
    "_register_hook_dict": "torch.autograd.graph.Node._register_hook_dict",
    "_at_fork_reinit": "_thread.LockType._at_fork_reinit",
    "_base": "torch.Tensor._base",
    "_buffers": "torch.nn.Module._buffers",
    "_call_impl": "torch.nn.Module._call_impl",
    "_cdata": "torch.UntypedStorage._cdata",
    "hit/native.py: _cdata": "torch.Tensor._cdata",
    "_compile_session_context": "torch.compiler._compile_session_context",
    "_ctc_loss": "torch.ops.aten._ctc_loss",
    "_cuda_endAllocateToPool": "torch._C._cuda_endAllocateToPool",
    "_cuda_getCurrentRawStream": "torch._C._cuda_getCurrentRawStream",
    "_cuda_getDevice": "torch._C._cuda_getDevice",
    "_current_level": "torch.autograd.forward_ad._current_level",
    "_debug_get_cache_entry_list": "torch._C._dynamo.eval_frame._debug_get_cache_entry_list",
    "_get_uncompiled_header": "torch._inductor.codecache.CppPythonBindingsCodeCache._get_uncompiled_header",
    "_init_amx": "torch.cpu._init_amx",
    "_disable_profiler_legacy": "torch.autograd._disable_profiler_legacy",
    "_dynamo_dynamic_indices": "torch._dynamo.decorators: tensor._dynamo_dynamic_indices",
    "_edits": "torch._dynamo.metrics_context.MetricsContext._edits",
    "_enable_profiler_legacy": "torch.autograd._enable_profiler_legacy",
    "_enter_autocast": "torch.amp.autocast_mode._enter_autocast",
    "_exit_autocast": "torch.amp.autocast_mode._exit_autocast",
    "_foreach_copy_": "torch._foreach_copy_",
    "_forward_cls": "torch.autograd.function: grad_fn._forward_cls",
    "_functorch": "torch._functorch",
    "_triton_bundle": "torch._inductor.output_code: graph._triton_bundle",
    "_HashableTracker": "torch._dynamo.variables.dicts.ConstDictVariable._HashableTracker",
    "_get_": "torch._C._get_flash_sdp_enabled",
    "_set_": "torch._C._set_sdp_use_flash",
    "_get_dump": "abc._get_dump",
    "_get_handlers": "torch._dynamo.variables.TorchInGraphFunctionVariable._get_handlers",
    "_get_is_fx_tracing": "torch.fx._symbolic_trace._get_is_fx_tracing",
    "_get_modified_vars": "torch._dynamo.side_effects.SideEffects._get_modified_vars",
    "_expr_sym_node_id": "torch.fx.experimental.symbolic_shapes.ShapeEnv._expr_sym_node_id",
    "_init_fn": "torch._library.custom_ops.CustomOpDef._init_fn",
    "_library_for_registration": "torch.library._library_for_registration",
    "_abstract_fn": "torch._library.custom_ops.CustomOpDef._abstract_fn",
    "_backward_fn": "torch._library.custom_ops.CustomOpDef._backward_fn",
    "_setup_context_fn": "torch._library.custom_ops.CustomOpDef._setup_context_fn",
    "_torch_dispatch_fns": "torch._library.custom_ops.CustomOpDef._torch_dispatch_fns",
    "_vmap_fn": "torch._library.custom_ops.CustomOpDef._vmap_fn",
    "_opoverload": "torch._library.custom_ops.CustomOpDef._opoverload",
    "_get_tmp_dir": "torch._functorch._aot_autograd.autograd_cache.AOTAutogradCache._get_tmp_dir",
    "_getframe": "sys._getframe",
    "_is_compiling_flag": "torch.compiler._is_compiling_flag",
    "_is_fx_tracing_flag": "torch.fx._symbolic_trace._is_fx_tracing_flag",
    "_is_in_optimized_module": "torch._dynamo.eval_frame._is_in_optimized_module",
    "_is_profiler_enabled": "torch.autograd.profiler._is_profiler_enabled",
    "_is_view": "torch.Tensor._is_view",
    "_is_zerotensor": "torch.Tensor._is_zerotensor",
    "_linalg_check_errors": "torch.ops.aten._linalg_check_errors",
    "_loaded_module_names": "torch._inductor.codecache.CppPythonBindingsCodeCache._loaded_module_names",
    "_local_scalar_dense": "torch.ops.aten._local_scalar_dense",
    "_maybe_evaluate_static_worker": "torch.fx.experimental.symbolic_shapes._maybe_evaluate_static_worker",
    "_opname": "torch.ops.aten.add.Tensor._opname",
    "_orig_mod": "torch._dynamo.eval_frame.OptimizedModule._orig_mod",
    "_overloadname": "torch.ops.aten.add.Tensor._overloadname",
    "_pickleable_type_cache": "torch._inductor.codecache.FxGraphCachePickler._pickleable_type_cache",
    "_post_accumulate_grad_hooks": "torch.Tensor._post_accumulate_grad_hooks",
    "_profiler_enabled": "torch.autograd._profiler_enabled",
    "_repr": "triton.runtime.jit.JITFunction._repr",
    "_run": "triton.compiler.compiler.CompiledKernel._run",
    "_sample_dirichlet": "torch.ops.aten._sample_dirichlet",
    "_schema": "torch.ops.aten.add.Tensor._schema",
    "_sleep": "torch.cuda._sleep",
    "_standard_gamma": "torch.ops.aten._standard_gamma",
    "_tensor_version": "torch._dynamo.tensor_version_op._tensor_version",
    "_torchdynamo_orig_callable": "torch._dynamo.eval_frame: fn._torchdynamo_orig_callable",
    "_triton_jit_function_registry": "triton.runtime.jit._triton_jit_function_registry",
    "_typed_storage": "torch.Tensor._typed_storage",
    "_unique2": "torch.ops.aten._unique2",
    "_unsafe_update_src": "triton.runtime.jit.JITFunction._unsafe_update_src",
    "_version": "torch.Tensor._version",
    "_weakrefs": "torch._dynamo.guards.CheckFunctionManager._weakrefs",
    "_wrapped_call_impl": "torch.nn.Module._wrapped_call_impl",
    "_ZN2at11str2backendERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE": "torch.libtorch_cpu.at::str2backend",
    "_ZN2at13globalContextEv": "torch.libtorch_cpu.at::globalContext",
    "_ZN2at15get_num_threadsEv": "torch.libtorch_cpu.at::get_num_threads",
    "_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv": (
        "torch.libtorch_cpu.at::SavedTensorDefaultHooks::get_tls_state"
    ),
    "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv": "torch.libtorch_cpu.at::impl::PythonTorchFunctionTLS::stack_len",
    "_ZN2at6str2opERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE": "torch.libtorch_cpu.at::str2op",
    "_ZN2at9functorch20getDynamicLayerStackEv": "torch.libtorch_cpu.at::functorch::getDynamicLayerStack",
    "_ZN3c1013InferenceMode10is_enabledEv": "torch.libc10.c10::InferenceMode::is_enabled",
    "_ZN3c1031get_default_dtype_as_scalartypeEv": "torch.libc10.c10::get_default_dtype_as_scalartype",
    "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv": "torch.libc10.c10::impl::TorchDispatchModeTLS::stack_len",
    "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv": (
        "torch.libtorch_cpu.at::impl::PythonTorchFunctionTLS::get_disabled_state"
    ),
    "_ZN3c104impl23ExcludeDispatchKeyGuardC1ENS_14DispatchKeySetE": (
        "torch.libc10.c10::impl::ExcludeDispatchKeyGuard::ExcludeDispatchKeyGuard"
    ),
    "_ZN3c104impl23ExcludeDispatchKeyGuardD1Ev": (
        "torch.libc10.c10::impl::ExcludeDispatchKeyGuard::~ExcludeDispatchKeyGuard"
    ),
    "_ZN3c104impl26raw_local_dispatch_key_setE": "torch.libc10.c10::impl::raw_local_dispatch_key_set",
    "_ZN3c104impl31tls_is_dispatch_keyset_excludedENS_14DispatchKeySetE": (
        "torch.libc10.c10::impl::tls_is_dispatch_keyset_excluded"
    ),
    "_ZN3c108GradMode10is_enabledEv": "torch.libc10.c10::GradMode::is_enabled",
    "_ZN5torch8autograd11AnomalyMode8_enabledE": "torch.libtorch_cpu.torch::autograd::AnomalyMode::_enabled",
    "_ZN5torch3jit6tracer15getTracingStateEv": "torch.libtorch_cpu.torch::jit::tracer::getTracingState",
    "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE": (
        "torch.libtorch_cpu.at::Context::float32Precision"
    ),
    "_ZNK2at7Context23deterministicAlgorithmsEv": "torch.libtorch_cpu.at::Context::deterministicAlgorithms",
    "_ZNK3c1010TensorImpl13requires_gradEv": "torch.libc10.c10::TensorImpl::requires_grad",
    **{
        f"_{done}_saved_tensors_default_hooks": f"torch._C._autograd._{done}_saved_tensors_default_hooks"
        for done in ("push", "pop", "top")
    },
}
"""What follows a colon is looked for in the text of the module before it."""

SYMBOLS = {name: word for word, name in OWNERS.items() if "::" in name}
"""Functions of torch's that are found by what the linker calls them."""

HIDDEN = {"triton.compiler.compiler.CompiledKernel._run": "kernels/runtime/unload.py"}
"""Names that something of our own has as well, each with the one file where it is theirs."""

NOT_THEIRS = frozenset(["_fields", "_field_defaults", "_default", "_global_", "_LeftOut", "_shapedispatch_target"])
"""Two documented names of a namedtuple's; an overload's end; the beginning of names that are listed; two of our own."""

C_NAMES = {
    "_PyType_Lookup": "_PyType_Lookup",
    "tp_version_tag": "PyTypeObject.tp_version_tag",
    "PyUnstable_Type_AssignVersionTag": "PyUnstable_Type_AssignVersionTag",
    "structmember.h": "structmember.h",
    "d_member": "PyMemberDescrObject.d_member",
    "d_getset": "PyGetSetDescrObject.d_getset",
}
"""Words of the C code to CPython's names."""

HASHED = "The first load of code for a GPU takes half a second of a call."
WITHOUT = {
    "torch._dynamo.polyfills.__file__": "No build of a function is made.",
    "torch._dynamo.variables.base._compute_slotdefs": (
        "A special method that a class is given later is not seen by the next trace, if the release keeps such."
    ),
    "torch._dynamo.variables.base._tp_type": (
        "A special method that a class is given later is not seen by the next trace, if the release keeps such."
    ),
    "torch._dynamo.variables.object_protocol._get_cached_slots": (
        "A special method that a class is given later is not seen by the next trace, if the release keeps such."
    ),
    "torch._dynamo.decorators: fn._dynamo_marked_constant": "What is marked so is taken for a constant.",
    "torch._dynamo.source.AttrSource": "No build of a function is made.",
    "torch._dynamo.source.SkipGuardSource": "No build of a function is made.",
    "torch._dynamo.exc.ObservedKeyError": "No build of a function is made.",
    "torch._dynamo.variables.builtin": "No build of a function is made.",
    "torch._dynamo.exc.ObservedException": "No build of a function is made.",
    "torch._dynamo.variables.dicts.NNModuleHooksDictVariable": "No build of a function is made.",
    "torch._dynamo.exc.ObservedAttributeError": "No build of a function is made.",
    "torch._dynamo.exc.observed_exception_map": "No build of a function is made.",
    "torch._dynamo.symbolic_convert.InstructionTranslatorBase._load_attr": (
        "What looks through an object's `__dict__` has no build."
    ),
    "torch._dynamo.symbolic_convert.InstructionTranslatorBase._load_global": (
        "That a global is there which is loaded, and used for nothing, has no guard."
    ),
    "torch._dynamo.variables.SkipFunctionVariable": "No build of a function is made.",
    "torch._dynamo.variables.LazyVariableTracker": "No build of a function is made.",
    "torch._dynamo.variables.SuperVariable": REFUSED,
    "torch._dynamo.exc.raise_observed_exception": "No build of a function is made.",
    **dict.fromkeys(SYMBOLS, "C asks Python's function for the same, which is slower."),
    "torch.libc10.c10::impl::ExcludeDispatchKeyGuard::ExcludeDispatchKeyGuard": BENEATH,
    "torch.libc10.c10::impl::ExcludeDispatchKeyGuard::~ExcludeDispatchKeyGuard": BENEATH,
    "torch.libtorch_cpu.at::impl::PythonTorchFunctionTLS::get_disabled_state": ASKED_WHOLE,
    "torch._C._is_torch_function_enabled": ASKED_WHOLE,
    "torch._C._is_torch_function_all_disabled": ASKED_WHOLE,
    "torch._C._AutoDispatchBelowAutograd": BENEATH,
    "torch._C._autograd._get_creation_meta": REFUSED,
    "torch.libc10.c10::impl::raw_local_dispatch_key_set": ASKED_OF_A_GUARD,
    "torch._C._dispatch_tls_local_include_set": ASKED_OF_A_GUARD,
    "torch._C._dispatch_tls_local_exclude_set": ASKED_OF_A_GUARD,
    "torch.libc10.c10::TensorImpl::requires_grad": "C asks torch's shim for the metadata of a module's tensors.",
    "torch.nn.Module._buffers": "A name that shadows what a module registers is not guarded.",
    "torch.nn.Module._call_impl": "The guard on a module's code looks at one function more.",
    "torch.nn.Module._wrapped_call_impl": "The guard on a module's code looks at one function more.",
    "torch.Tensor._make_subclass": "A fake of which only guards are asked takes five times as long to make.",
    "torch.compiler._compile_session_context": "Code that is not traced, and asks, is told that it is being compiled.",
    "torch._dynamo.variables.UserDefinedClassVariable": REFUSED,
    "torch._dynamo.variables.builder.SourcelessBuilder.create": REFUSED,
    "torch._dynamo.variables.BaseListVariable": REFUSED,
    "torch._dynamo.utils.iter_contains": REFUSED,
    "torch._dynamo.variables.TensorVariable": REFUSED,
    "torch._dynamo.variables.NNModuleVariable": REFUSED,
    "torch._dynamo.variables.builder.VariableBuilder": REFUSED,
    "torch._dynamo.variables.dicts.ConstDictVariable._HashableTracker": REFUSED,
    "torch._dynamo.variables.lists": REFUSED,
    "torch._dynamo.guards.GuardBuilder.EQUALS_MATCH": REFUSED,
    "torch._dynamo.source.GetItemSource": REFUSED,
    "torch._dynamo.source.TempLocalSource": REFUSED,
    "torch._dynamo.guards.GuardBuilder.CONSTANT_MATCH": REFUSED,
    "torch._dynamo.exc.Unsupported": REFUSED,
    "torch._dynamo.variables.GetAttrVariable": REFUSED,
    "torch.distributions.Distribution._validate_args": "Distributions check after a trace, whatever was set.",
    "torch._C._DisablePythonDispatcher": "An interrupt in a trace leaves every operator of its thread slower.",
    "torch._C._cuda_endAllocateToPool": "After a CUDA graph that failed the allocator keeps more memory.",
    "torch._C._cuda_getCurrentRawStream": "The current stream is asked of the public function, which is slower.",
    "torch._foreach_copy_": "What a CUDA graph reads and gives is copied one tensor at a time.",
    "torch._C._cuda_getDevice": "The current device is asked of the public function, which is slower.",
    "torch._dynamo.decorators: tensor._dynamo_dynamic_indices": "A caller's `mark_dynamic` says nothing.",
    "torch._dynamo.metrics_context.MetricsContext._edits": KEPT,
    "torch._C._set_sdp_use_flash": "As above: set otherwise, no other process compiles.",
    "torch._C._get_flash_sdp_enabled": "And the others of attention: a build does not see that setting change.",
    "torch.autograd.variable.Variable._execution_engine.queue_callback": (
        "Of several results with gradients each has a backward of its own."
    ),
    "torch.autograd.graph.Node._register_hook_dict": "A result that others are made of has a backward of its own.",
    "torch._C._dispatch_tls_is_dispatch_key_included": NO_BATCHES,
    "torch._C._parse_dispatch_key": NO_BATCHES,
    "torch._C._storage_id": "FSDP's weights count as other memory once it has freed them: some backwards raise once.",
    "torch._C._current_graph_task_id": "Of several results with gradients each has a backward of its own.",
    "torch._C._will_engine_execute_node": "Of several results with gradients each has a backward of its own.",
    "torch._C._autograd._get_current_graph_task_keep_graph": (
        "What code whose results have one backward keeps for that goes with the graph, and not with the backward."
    ),
    "torch.amp.autocast_mode._exit_autocast": (
        "A function with several results that have gradients runs plain where some are made inside an autocast."
    ),
    "abc._get_dump": "A build with an abstract class in it is made anew after any class was registered as another.",
    "torch._dynamo.side_effects.SideEffects._get_modified_vars": REFUSED,
    "torch._inductor.output_code: graph._triton_bundle": REFUSED,
    "torch._dynamo.variables.BuiltinVariable": "No build of a function is made.",
    "torch._dynamo.variables.UserDefinedObjectVariable": "No build of a function is made.",
    "torch._dynamo.variables.PolyfilledFunctionVariable": "No build of a function is made.",
    "torch._dynamo.variables.UserFunctionVariable": REFUSED,
    "torch._inductor.debug": IMPORTED,
    "torch._inductor.async_compile.AsyncCompile.pool.cache_clear": (
        "A process that was forked from one that has compiled may wait for ever for its first build."
    ),
    "torch._inductor.scheduler": "What torch logs of a build that fails is seen.",
    "torch._inductor.runtime.benchmarking": "Inductor tries kernels as it does without us, and may prefer slow ones.",
    "torch._inductor.runtime.triton_heuristics": IMPORTED,
    "torch._inductor.exc.InductorError": "No build of a function is made.",
    "torch._inductor.hooks": IMPORTED,
    "torch._inductor.inductor_prims": IMPORTED,
    "torch._functorch.aot_autograd.aot_stage1_graph_capture": (
        "A look at what a call writes traces its graph of operators, too, which takes three times as long."
    ),
    "torch._inductor.graph": "Code is loaded without the compiler where that is imported, too.",
    "torch._inductor.codecache.torch_key": HASHED,
    "torch._inductor.utils.ALIGNMENT": "Where the inputs of a GPU's code begin is looked at by Inductor, in Python.",
    "torch._inductor.runtime.triton_compat.triton_key": HASHED,
    "torch.utils._triton.triton_hash_with_backend": "The first load for a GPU asks what Triton compiles for.",
    "torch._inductor.cpu_vec_isa.pick_vec_isa": "The first load of code for a CPU takes seconds of a call.",
    "_thread.LockType._at_fork_reinit": "A lock that another thread held at a fork stays held in the child.",
    "sys._getframe": "A warning names a line of this package, and not the line that made the call.",
    "torch.fx._symbolic_trace._get_is_fx_tracing": "Before torch 2.14 there is a flag for it, in this table too.",
    "torch.fx._symbolic_trace._is_fx_tracing_flag": f"From torch 2.14 on there is a function for it; else: {REFUSED}",
    "torch._dynamo.eval_frame.OptimizedModule._orig_mod": "A compiled module is dispatched like any other.",
    "torch._dynamo.eval_frame._is_in_optimized_module": UNHIDDEN,
    "torch._utils": UNHIDDEN,
    "torch.autograd.profiler._is_profiler_enabled": "A profiler's trace does not name the variants that ran.",
    "torch._inductor.codecache.CppPythonBindingsCodeCache._loaded_module_names": KEPT,
    "torch._inductor.codecache.FxGraphCachePickler._pickleable_type_cache": KEPT,
    "torch.fx.experimental.symbolic_shapes._maybe_evaluate_static_worker": KEPT,
    "torch.fx.experimental.symbolic_shapes.ShapeEnv._expr_sym_node_id": "What was kept is found by no other process.",
    "torch._library.custom_ops.CustomOpDef._abstract_fn": "A `triton_op` of the user's is sent without its module.",
    "torch._library.custom_ops.CustomOpDef._backward_fn": REFUSED,
    "torch._library.custom_ops.CustomOpDef._setup_context_fn": REFUSED,
    "torch._library.custom_ops.CustomOpDef._torch_dispatch_fns": REFUSED,
    "torch._library.custom_ops.CustomOpDef._vmap_fn": REFUSED,
    "torch._library.custom_ops.CustomOpDef._opoverload": REFUSED,
    "torch.library._library_for_registration": REFUSED,
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass": REFUSED,
    "torch._library.custom_ops.CustomOpDef._init_fn": "An operator of the user's is sent without its module.",
    "torch._ops.OpOverloadPacket": "No graph is sent to another process.",
    "torch._ops.OpOverload": "No graph is sent to another process.",
    "torch._dynamo.convert_frame": "Dynamo may follow a build's code where it follows what calls it.",
    "torch.autograd._disable_profiler_legacy": "The memory of a call is not measured.",
    "torch.autograd._enable_profiler_legacy": "The memory of a call is not measured.",
    "torch.autograd._profiler_enabled": "Memory is measured while that profiler is on, too.",
    "torch.cuda._sleep": "Times of kernels that are launch-bound have part of their launches in them, all alike.",
    "torch.Tensor._typed_storage": "Code that asks for it is built like any other.",
    "torch._dynamo.eval_frame: fn._torchdynamo_orig_callable": "Builds keep two wrappers.",
    "torch.autograd.function: grad_fn._forward_cls": "A step of training goes through AOTAutograd's wrappers.",
    "torch._dynamo.guards.CheckFunctionManager._weakrefs": REFUSED,
    "torch._inductor.select_algorithm": TOLD,
    "triton.runtime.jit.JITFunction._repr": "A kernel's copy with constants has another name in a profiler.",
    "triton.compiler.compiler.CompiledKernel._run": "A launcher outlives an unloaded kernel.",
    "triton.runtime.jit._triton_jit_function_registry": "Triton has no such table: none is kept as it was.",
    "triton.runtime.jit.JITFunction._unsafe_update_src": "Refuses constants where a source is new.",
    "triton.runtime._async_compile": "Configs are compiled one after the other, and in calls.",
    "triton._C.libtriton.ir.context": "A kernel counts as writing each tensor that it is given.",
    "triton._C.libtriton.ir.load_dialects": "A kernel counts as writing each tensor that it is given.",
    "triton._C.libtriton.ir.parse_mlir_module": "A kernel counts as writing each tensor that it is given.",
    **{
        f"torch.ops.aten.{operator}": NOT_JUDGED
        for operator in (
            "_assert_scalar",
            "_ctc_loss",
            "_linalg_check_errors",
            "_local_scalar_dense",
            "_sample_dirichlet",
            "_standard_gamma",
            "_unique2",
        )
    },
    **dict.fromkeys(C_NAMES.values(), NO_C),
}


# ----------------------------------------------------------------------------------------------------- what is used


@functools.cache
def trees() -> Mapping[str, ast.Module]:
    """Each module of the package by its file, below the package."""
    return {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))
    }


@functools.cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All of a tree, which is asked many things: to walk through it takes most of the time."""
    return tuple(ast.walk(tree))


def is_private(path: str) -> bool:
    """Whether a part of a dotted name is private; double underscores are Python's own."""
    return any(part.startswith("_") and not part.startswith("__") for part in path.split("."))


def bound(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each name that an import binds to something of torch's or Triton's, with what that is called there."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] in ("torch", "triton"):
                    yield name.asname or name.name.split(".")[0], name.name if name.asname else name.name.split(".")[0]
                    yield "", name.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("torch", "triton"):
            yield from ((name.asname or name.name, f"{node.module}.{name.name}") for name in node.names)


def dotted(node: ast.AST) -> list[str]:
    """The parts of ``a.b.c``; none of anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return [node.id, *parts] if isinstance(node, ast.Name) else []


def chains(tree: ast.AST) -> set[str]:
    """The private names that are reached from an import, each to its end."""
    pairs = list(bound(tree))
    roots = dict(pairs)
    used = [dotted(node) for node in nodes(tree) if isinstance(node, ast.Attribute)]
    reached = {".".join([roots[path[0]], *path[1:]]) for path in used if path and path[0] in roots}
    found = {path for path in {*reached, *(path for _, path in pairs)} if is_private(path)}
    return {path for path in found if not any(other.startswith(f"{path}.") for other in found)}


@functools.cache
def own_attributes() -> frozenset[str]:
    """Every name that an object or a class of this package has for something of its own."""
    found: set[str] = set()
    for tree in trees().values():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                found.update(names_at(node.body))
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node)[:1] == ["self"]:
                found.add(node.attr)
    return frozenset(found)


def names_at(body: list[ast.stmt]) -> Iterator[str]:
    """What the statements of a class or a module define."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        for part in ast.walk(node) if isinstance(node, (ast.Assign, ast.AnnAssign)) else ():
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id


def words(tree: ast.Module) -> set[str]:
    """Private names of others that are reached through an object, or stand in a text."""
    modules = {
        alias.asname or alias.name
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    attributes = {node.attr for node in nodes(tree) if isinstance(node, ast.Attribute) and dotted(node)[:1] != ["self"]}
    of_ours = {node.attr for node in nodes(tree) if isinstance(node, ast.Attribute) and set(dotted(node)[:1]) & modules}
    constants = {node.value for node in nodes(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    found = (attributes - of_ours) | (constants - set(names_at(tree.body)))
    return {word for word in found if re.fullmatch(r"_[A-Za-z]\w*", word)} - own_attributes() - NOT_THEIRS


def texts(tree: ast.AST) -> set[str]:
    """Private names that stand in a text from their beginning."""
    constants = {node.value for node in nodes(tree) if isinstance(node, ast.Constant)}
    pattern = re.compile(r"(torch|triton)(\.\w+)+")
    return {text for text in constants if isinstance(text, str) and pattern.fullmatch(text) and is_private(text)}


def used() -> dict[str, set[str]]:
    """Each private name of torch, Triton and CPython to the files that use it; raises KeyError for an unknown word."""
    found: dict[str, set[str]] = {name: {file} for name, file in HIDDEN.items()}
    for file, tree in trees().items():
        if file == "private.py":  # which uses none of those that it names
            continue
        reached = chains(tree)
        parts = {
            part for path in reached for part in path.split(".")
        }  # of a chain from an import: no words of their own
        words_here = words(tree) - parts
        for name in reached | texts(tree) | {OWNERS.get(f"{file}: {word}") or OWNERS[word] for word in words_here}:
            found.setdefault(name, set()).add(file)
    for path in sorted(PACKAGE.rglob("*.c")):
        code = re.sub(r"/\*.*?\*/", "", path.read_text("utf-8"), flags=re.DOTALL)
        names = {name for word, name in C_NAMES.items() if re.search(rf"(?<!\w){re.escape(word)}", code)}
        texts_here = set(re.findall(r'"(_[A-Za-z]\w*)"', code)) - own_attributes() - NOT_THEIRS
        for name in names | {OWNERS[word] for word in texts_here}:
            found.setdefault(name, set()).add(str(path.relative_to(PACKAGE)))
    return found


# ----------------------------------------------------------------------------------------------------- what it comes to


def needed() -> dict[str, list[str]]:
    """What the package looks for before it relies on it, and what is off without."""
    found: dict[str, list[str]] = {}
    for feature in FEATURES.values():
        for name in feature.names:
            found.setdefault(name, []).append(feature.off)
    return found


def rows() -> dict[str, tuple[set[str], str]]:
    """Each name to the files that use it and what becomes of a call without it; raises KeyError where nobody says."""
    files, off = used(), needed()
    lines: dict[str, tuple[set[str], str]] = {}
    for name, reasons in off.items():
        near = {file for other, there in files.items() if _on_one_way(name, other) for file in there}
        sentence = "; ".join(reasons)
        lines[name] = {file for file in near if _names(file, name)}, f"{sentence[0].upper()}{sentence[1:]}."
    for name, there in files.items():
        is_in_another = any(_is_below(other, name) for other in (*files, *off))
        if not is_in_another and (name in WITHOUT or not any(_on_one_way(name, other) for other in off)):
            lines[name] = there, WITHOUT[name]
    return dict(sorted(lines.items(), key=lambda line: line[0].lower()))


def _names(file: str, name: str) -> bool:
    """Whether a file has the last word of a name: it may go there from a module that it has imported."""
    return re.search(rf"\b{name.rpartition('.')[2]}\b", _text(PACKAGE / file)) is not None


def _is_below(name: str, other: str) -> bool:
    return name.startswith((f"{other}.", f"{other}:"))


def _on_one_way(name: str, other: str) -> bool:
    return name == other or _is_below(name, other) or _is_below(other, name)


# -------------------------------------------------------------------------------------------------------- where it was


def seen() -> dict[str, dict[str, dict[str, list[str]]]]:
    """By library and version, the names that were not found there, and those that are newer: nobody has looked."""
    return json.loads(SEEN.read_text("utf-8")) if SEEN.exists() else {}


def library_of(name: str) -> str:
    """Whose name it is."""
    first = name.split(".")[0]
    return first if first in ("torch", "triton") else "Python"


def is_there(name: str) -> bool:
    """Whether what runs this script has a name."""
    if name in C_NAMES.values():
        word = {theirs: word for word, theirs in C_NAMES.items()}[name]
        headers = Path(sysconfig.get_path("include"))
        return any(word in (file.name, *re.findall(r"\w+", _text(file))) for file in headers.rglob("*.h"))
    if name in SYMBOLS:
        file = f"{name.split('.')[1]}.so"
        library = Path(str(importlib.import_module("torch").__file__)).parent / "lib" / file
        return hasattr(ctypes.CDLL(str(library)), SYMBOLS[name])
    module, _, word = name.partition(": ")
    if word:
        return word.rpartition(".")[2] in _source(importlib.import_module(module))
    if find(name, None) is not None:
        return True
    owner = find(name.rpartition(".")[0], None)
    return owner is not None and inspect.isclass(owner) and f"self.{name.rpartition('.')[2]}" in _source(owner)


def _text(file: Path) -> str:
    return file.read_text("utf-8", "replace")


def _source(what: Any) -> str:
    try:
        return inspect.getsource(what)
    except (OSError, TypeError):
        return ""


def here() -> dict[str, str]:
    """The versions of what runs this script; a torch for CPUs alone lacks what only CUDA has."""
    numbers = {library: metadata.version(library).split("+")[0].split(".")[:2] for library in ("torch", "triton")}
    found = {library: ".".join(release) for library, release in numbers.items()}
    found["torch"] += " (CPU)" if find("torch.version.cuda", None) is None else ""
    return {**found, "Python": ".".join(platform.python_version_tuple()[:2])}


def look() -> None:
    """Note for this torch, this Triton and this Python which of the names they lack, and for others what is new."""
    noted, new = seen(), [name for name in rows() if f"| `{name}` |" not in PAGE.read_text("utf-8")]
    for library, version in here().items():
        ours = [name for name in rows() if library_of(name) == library]
        for found in noted.setdefault(library, {}).values():
            found["unlooked"] = [name for name in ours if name in new or name in found["unlooked"]]
        noted[library][version] = {"lacking": [name for name in ours if not is_there(name)], "unlooked": []}
    ordered = {library: dict(sorted(versions.items(), key=_in_order)) for library, versions in noted.items()}
    SEEN.write_text(json.dumps(ordered, indent=1) + "\n", "utf-8")


def _in_order(item: tuple[str, Any]) -> list[int]:
    return [int(number) for number in item[0].split()[0].split(".")]


def where_seen(name: str) -> str:
    """The versions that have a name, of those that were looked at, and those that have it not."""
    versions = seen().get(library_of(name), {})
    there = [version for version, found in versions.items() if name not in (*found["lacking"], *found["unlooked"])]
    gone = [version for version, found in versions.items() if name in found["lacking"]]
    return "; ".join(filter(None, [", ".join(there), f"not in {', '.join(gone)}" if gone else ""]))


def drawn(text: str) -> str:
    """The page with its tables between their markers drawn anew."""
    lines, named = [], rows()
    for library in ("torch", "triton", "Python"):
        looked = ", ".join(seen().get(library, {}))
        lines += [f"## {'Triton' if library == 'triton' else library}", "", f"Looked for in {looked}.", ""]
        lines += ["| name | used in | without it | seen in |", "|---|---|---|---|"]
        for name, (files, without) in named.items():
            if library_of(name) == library:
                places = ", ".join(f"`{file}`" for file in sorted(files))
                lines.append(f"| `{name}` | {places} | {without} | {where_seen(name)} |")
        lines.append("")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{chr(10).join(lines)}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "--look" in sys.argv:
        look()
    PAGE.write_text(drawn(PAGE.read_text("utf-8")), "utf-8")
