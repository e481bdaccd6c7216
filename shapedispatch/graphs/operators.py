"""Which operators do what: by whose code, and beside computing on one device, so that no graph of them is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "OnlyKnown",
    "Unrecordable",
    "calls_only_views",
    "draws_numbers",
    "is_about_sizes",
    "is_all_written",
    "only_makes_views",
    "why_not_recorded",
]

RECORDS = "cuda"
"""The kind of device on which anything is recorded."""
_OURS = frozenset({"aten", "prims"})
_WAIT = ("linalg_", "cholesky", "lu_", "svd", "geqrf", "ormqr", "symeig", "eig", "lstsq", "triangular_solve")
_SIZED_BY_VALUES = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
_DROPOUT = "dropout_p"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What plain may call while it is recorded, beside what is computed value by value, summed up or only looked at anew:
# none of these waits for the device or decides anything by values. Compiled code's graphs hold less, and are read.
# Not cuDNN's attention: versions of it read past the end of their tensors, which a recording's memory does not forgive
# (pytorch#169849), and the recording of plain's decoder layer, with a mask, ended in an illegal access on an H200.
_KNOWN = _names(
    """mm addmm bmm baddbmm addmv mv dot convolution cudnn_convolution _conv_depthwise2d embedding cat stack clone copy_
    _to_copy _softmax _log_softmax native_layer_norm _fused_rms_norm native_group_norm native_batch_norm
    cudnn_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training _batch_norm_with_update
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention_for_cpu index_select gather scatter scatter_ scatter_add scatter_add_
    scatter_reduce index_add index_add_ index_copy index_copy_ index_fill index_fill_ index index_put index_put_
    arange full full_like zeros zeros_like ones ones_like empty empty_like empty_strided new_empty new_empty_strided
    new_zeros new_ones new_full scalar_tensor fill_ zero_ tril triu roll flip repeat constant_pad_nd where topk sort
    cumsum cumprod max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d upsample_nearest2d upsample_bilinear2d
    masked_fill masked_fill_ lerp argmax argmin var_mean std_mean glu prelu _prelu_kernel addcmul addcdiv linear
    _unsafe_view upsample_bicubic2d pixel_shuffle pixel_unshuffle im2col col2im reflection_pad1d reflection_pad2d
    replication_pad1d replication_pad2d grid_sampler_2d polar mse_loss nll_loss_forward hardswish floor_divide bucketize
    cummax cummin diag_embed trace linalg_vector_norm _safe_softmax split_with_sizes_copy _foreach_add _foreach_mul
    _foreach_copy_ _assert_async"""
)


def why_not_recorded(gm: GraphModule) -> str:
    """Why a graph of operators is not to be recorded: the first sentence that says so; empty where there is none.

    A recording runs the same kernels each time. So nothing may be decided by values or drawn by the host, nothing may
    be waited for, and all must be on one device. Of an operator that torch did not write none of this is known.
    """
    devices = {value.device for node in gm.graph.nodes for value in _tensors(node)}
    if others := sorted(str(device) for device in devices if device.type != RECORDS):
        return f"it computes on {others[0]}"
    if len(devices) > 1:
        return "it computes on several devices"
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    return next((why for node in calls if (why := _why_not(node))), "")


def draws_numbers(gm: GraphModule) -> bool:
    """Whether any of its operators draws random numbers, in graphs within it, too."""
    nodes = [node for module in gm.modules() if isinstance(module, GraphModule) for node in module.graph.nodes]
    return any(
        torch.Tag.nondeterministic_seeded in one.tags and not _drops_nothing(one, node.args, node.kwargs)
        for node in nodes
        for one in (node.target, *node.args)  # an operator may be handed to one that keeps the generator's state
        if isinstance(one, torch._ops.OpOverload)
    )


def _why_not(node: Node) -> str:
    target: Any = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return "" if str(target).startswith("triton_kernel_wrapper") else f"it runs a graph inside it ({target})"
    if not isinstance(target, torch._ops.OpOverload):
        return ""  # arithmetic on sizes, and what takes one of several results
    return _why_not_called(target, node.args, node.kwargs)


def _why_not_called(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Why this operator is not to be recorded, called with these, where there is a sentence for it."""
    if target.namespace not in _OURS:
        return f"nothing is known of {target}"
    indexes = target._opname.startswith("index")
    if indexes and _counts_a_mask(args):
        return f"{target} may wait for the device, to count what a mask lets through"
    if not indexes and any(tag in target.tags for tag in _SIZED_BY_VALUES):
        return f"the sizes of {target} depend on values"
    if torch.Tag.nondeterministic_seeded in target.tags and not _drops_nothing(target, args, kwargs):
        return f"{target} draws random numbers"
    waits = target._opname.lstrip("_").startswith(_WAIT) and target._opname not in _KNOWN
    return f"{target} may wait for the device" if waits else ""


def _counts_a_mask(args: Sequence[Any]) -> bool:
    """Whether it indexes by a mask, and does more than write one number wherever that is true."""
    indices = _given(args[1:2])
    masked = any(one.dtype in (torch.bool, torch.uint8) for one in indices)
    return masked and not (len(indices) == 1 and any(one.numel() == 1 for one in _given(args[2:3])))


def _given(values: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among what an operator is called with, in lists, too; for nodes, what stands for theirs."""
    each = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
    found = [one.meta.get("val") if isinstance(one, Node) else one for one in each]
    return [one for one in found if isinstance(one, torch.Tensor)]


def _drops_nothing(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator that draws for a dropout alone is told to drop nothing."""
    for place, argument in enumerate(target._schema.arguments):
        if argument.name == _DROPOUT:
            default = argument.default_value
            return bool((args[place] if place < len(args) else kwargs.get(_DROPOUT, default)) == 0)
    return False


class Unrecordable(Exception):
    """No recording of a run would do what the run does; the message is why."""


class OnlyKnown(TorchDispatchMode):
    """While it is entered, what is called of which it is not known that it may be recorded raises Unrecordable."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: bool = False
        self.devices: set[torch.device] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Each operator that plain comes down to, before it runs."""
        if why := _why_not_run(func, args, kwargs or {}):
            raise Unrecordable(why)
        made = func(*args, **(kwargs or {}))
        self.note_devices((*args, *(kwargs or {}).values(), *(made if isinstance(made, (list, tuple)) else [made])))
        self.launched |= not only_makes_views(func)
        return made

    def note_devices(self, values: Sequence[Any]) -> None:
        """What another device computes is no part of a recording: a replay would leave it as it was then."""
        self.devices |= {one.device for one in _given(values)}
        if other := next((str(one) for one in self.devices if one.type != RECORDS), ""):
            raise Unrecordable(f"a tensor is on {other}")
        if len(self.devices) > 1:
            raise Unrecordable("it computes on several devices")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """What launches nothing has nothing to be recorded."""
        super().__exit__(kind, error, trace)
        if kind is None and not self.launched:
            raise Unrecordable("it launches no kernel")


def _why_not_run(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Why plain's call of this operator, with these values, is not to be recorded; empty where it may be."""
    if why := _why_not_called(target, args, kwargs):
        return why
    told = {torch.Tag.pointwise, torch.Tag.reduction} & set(target.tags)
    if not told and not only_makes_views(target) and target._opname not in _KNOWN:
        return f"nothing is known of {target}"
    return ""


def calls_only_views(gm: GraphModule) -> bool:
    """Whether every operation of a graph of operators is a view of its input: such code launches no kernel."""
    calls: list[Any] = [node.target for node in gm.graph.nodes if node.op == "call_function"]
    return all(
        only_makes_views(target) if isinstance(target, torch._ops.OpOverload) else is_about_sizes(target)
        for target in calls
    )


# Beside what is computed value by value or summed up: what Inductor writes itself, and products into its own memory.
_WRITTEN_BY_INDUCTOR = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "clone", "full", "cat", "convert_element_type", "iota", "var_mean", "copy_"}
)


def is_all_written(gm: GraphModule) -> bool:
    """Whether Inductor writes the code of each operation itself, as far as can be told before it does."""
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    return not any(_is_complex(node) for node in gm.graph.nodes) and all(_is_written(node.target) for node in calls)


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def _is_written(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return is_about_sizes(target)
    if target.namespace not in ("aten", "prims"):
        return False
    told = {torch.Tag.pointwise, torch.Tag.reduction} & set(target.tags)
    return bool(told) or only_makes_views(target) or target._opname in _WRITTEN_BY_INDUCTOR


def is_about_sizes(target: Any) -> bool:
    """Arithmetic, and what takes a size of a tensor; not what runs graphs nested in this one."""
    return not str(target).startswith("aten") and not isinstance(target, torch._ops.HigherOrderOperator)


def only_makes_views(target: Any) -> bool:
    """Whether all its results are views, which launch nothing."""
    returns = target._schema.returns
    return bool(returns) and all(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def _tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in values if isinstance(one, torch.Tensor)]
