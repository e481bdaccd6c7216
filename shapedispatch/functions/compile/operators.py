"""Operators that compiled code gets wrong, and what a build has in place of them, or that there is none.

Tables that ship with the package name them, by device, release of torch and dtype: at nan, at infinities, at large or
tiny values, in the sign of a zero, at a bad index. They are made by running every operator of torch's own database
compiled and as written, against float64 (``benchmarks/operator_faults.py``). An operator that a table names is computed
in another way, which is right, where one is known; else a build calls it as plain does.

Only what the function itself calls is looked up: an operator that was asked as a whole (gelu) and is right may well be
made of one that is wrong elsewhere (erf). Two norms are wrong by what they are given, and not at special values.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from types import FunctionType
from typing import Any

import torch
import torch._inductor.config
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.torch_version import TorchVersion

from ..guards.owners import is_of_others
from .graph import Uncompilable, called, nodes

__all__ = ["decompositions", "faults", "refuse_unchecked", "table_notes"]

Operator = Any
"""An ``OpOverload``."""
Decomposition = Callable[..., Any]
Faults = Mapping[str, Mapping[str, tuple[str, ...]]]
"""The kinds of values at which an operator is wrong, by its name and the dtype; ``any`` is any dtype."""

_SIGN = "sign of zero"

# ----------------------------------------------------------------------------------------------------------- the tables


@functools.cache
def _tables() -> Mapping[str, Mapping[TorchVersion, Faults]]:
    """By device, then by release."""
    found: dict[str, dict[TorchVersion, Faults]] = {}
    for file in (resources.files(__package__) / "operator_tables").iterdir():
        device, _, release = file.name.removesuffix(".json").partition("_")
        if release:
            document = json.loads(file.read_text("utf-8"))
            found.setdefault(device, {})[TorchVersion(release.replace("_", "."))] = document["operators"]
    return found


def _release() -> TorchVersion:
    return TorchVersion(".".join(torch.__version__.split("+", maxsplit=1)[0].split(".")[:2]))


def faults(device: str) -> Faults:
    """What is known of this torch on a kind of device: its own table, else that of the newest torch."""
    tables = _tables().get(device) or _tables()["cpu"]
    return tables.get(_release()) or tables[max(tables)]


def table_notes(device: str) -> tuple[str, ...]:
    """What a person may want to know: that the table is another torch's."""
    tables = _tables().get(device, {})
    if _release() in tables:
        return ()
    known = f"torch {max(tables)}" if tables else "the CPU"
    return (
        f"which operators torch {_release()} compiles wrongly on {device} is not known, and what {known} does is used",
    )


def is_faulty(operator: Operator, device: str, dtypes: frozenset[str]) -> bool:
    """Whether compiled code gets it wrong somewhere.

    The sign of a zero that a sum comes to depends on the order of the terms, and is no fault.
    """
    known = faults(device).get(_ASKED_AS.get(str(operator), str(operator)), {})
    kinds = {kind for dtype, of_dtype in known.items() if dtype == "any" or dtype in dtypes for kind in of_dtype}
    return bool(kinds - {_SIGN}) or (bool(kinds) and torch.Tag.pointwise in operator.tags)


_ASKED_AS = {
    "aten.bucketize.Scalar": "aten.bucketize.Tensor",
    "aten.div.Scalar_mode": "aten.div.Tensor_mode",
    "aten.floor_divide.Scalar": "aten.floor_divide.default",
    "aten.isin.Scalar_Tensor": "aten.isin.Tensor_Scalar",
    "aten.remainder.Scalar_Tensor": "aten.remainder.Tensor",
}
"""Operators of which torch's database has no sample, and what they are as wrong as."""

# ----------------------------------------------------------------------------------------------- what is right instead


def _relu(x: Tensor) -> Tensor:
    return torch.where(x <= 0, torch.zeros_like(x), x)


def _neg(x: Tensor) -> Tensor:
    return x * -1


def _floor(x: Tensor) -> Tensor:
    return torch.where((x > -1) & (x < 0), -torch.ones_like(x), torch.floor(x))


def _ceil(x: Tensor) -> Tensor:
    return torch.where((x > 0) & (x < 1), torch.ones_like(x), torch.ceil(x))


def _rsqrt(x: Tensor) -> Tensor:
    """A number below the smallest normal one, which a GPU's fast square root takes for 0, is made a larger one."""
    return torch.where(x.abs() < torch.finfo(x.dtype).tiny, torch.rsqrt(x * 2.0**64) * 2.0**32, torch.rsqrt(x))


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(x * -1))


def _softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    inside = torch.where(x.isnan(), x, torch.copysign(torch.zeros_like(x), x))
    return torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, inside))


def _acosh(x: Tensor) -> Tensor:
    return torch.where(x > 1e8, torch.log(x) + 0.6931471805599453, torch.acosh(x))


def _tanh_backward(gradient: Tensor, y: Tensor) -> Tensor:
    """1 - y * y would lose all digits where y is nearly 1."""
    wide, like = y.float(), gradient.dtype
    return (gradient.float() * ((1 - wide) * (1 + wide))).to(like)


def _sigmoid_backward(gradient: Tensor, y: Tensor) -> Tensor:
    """In plain's order, in which nothing overflows that does not there."""
    wide = y.float()
    return ((gradient.float() * (1 - wide)) * wide).to(gradient.dtype)


def _maximum(a: Tensor, b: Tensor) -> Tensor:
    """Of two zeros the positive one, as a GPU's own instruction has it."""
    return torch.where((a == 0) & (b == 0), a + b, torch.maximum(a, b))


def _minimum(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((a == 0) & (b == 0), (a * -1 + b * -1) * -1, torch.minimum(a, b))


_aten = torch.ops.aten
RIGHT: Mapping[str, Mapping[Operator, Decomposition]] = {
    "cpu": {
        _aten.softshrink.default: _softshrink,
        _aten.acosh.default: _acosh,
        _aten.tanh_backward.default: _tanh_backward,
        _aten.sigmoid_backward.default: _sigmoid_backward,
    },
    "cuda": {
        _aten.relu.default: _relu,
        _aten.neg.default: _neg,
        _aten.floor.default: _floor,
        _aten.ceil.default: _ceil,
        _aten.rsqrt.default: _rsqrt,
        _aten.sigmoid.default: _sigmoid,
        _aten.softshrink.default: _softshrink,
        _aten.sigmoid_backward.default: _sigmoid_backward,
        _aten.maximum.default: _maximum,
        _aten.minimum.default: _minimum,
    },
}
"""What is right as a formula, and fuses; ``operator_faults.py --mended`` says what compiled code still makes of it."""


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = [*range(x.dim() - len(shape), x.dim())]
    normed, mean, scale = _normed(x.float(), dims, eps)
    return _affine(normed, weight, bias).to(x.dtype), mean, scale


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int, _: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    normed, mean, scale = _normed(x.float().reshape(n, groups, -1), [2], eps)
    shape = (channels, *[1] * (x.dim() - 2))
    weight, bias = (one if one is None else one.reshape(shape) for one in (weight, bias))
    out = _affine(normed.reshape(x.shape), weight, bias).to(x.dtype)
    return out, mean.reshape(n, groups), scale.reshape(n, groups)


def _normed(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    scale = torch.rsqrt(variance + eps)
    return (x - mean) * scale, mean, scale


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = x if weight is None else x * weight
    return scaled if bias is None else scaled + bias


_OF_MIXED: Mapping[Operator, Decomposition] = {
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_group_norm.default: _group_norm,
}
"""On a CPU, of half precision with weights in float32: plain's statistics are in float32 then, and its backward reads
them as such, whatever they are."""


def _are_mixed(args: tuple[Any, ...]) -> bool:
    return len({one.dtype for one in args if isinstance(one, Tensor)}) > 1


# -------------------------------------------------------------------------------------------------- called as by plain

_library = torch.library.Library("shapedispatch", "FRAGMENT")


@functools.cache
def as_plain(operator: Operator, numbers: tuple[int, ...] = ()) -> Operator:
    """An operator that the compiler knows nothing of but its results' sizes: its code calls the one that it is for.

    ``numbers`` are the places of arguments that are numbers where a tensor is expected, as in ``x // 3``.
    """
    schema = operator._schema
    text = str(schema)
    text = text[text.index("(") :]
    for i in numbers:
        text = text.replace(f"Tensor {schema.arguments[i].name}", f"Scalar {schema.arguments[i].name}", 1)
    overload = f"_{operator._overloadname}".removesuffix("_default")
    name = "_".join([schema.name.partition("::")[2] + overload, *map(str, numbers)])
    _library.define(name + text, tags=_LAYOUTS_AS_GIVEN)
    _library.impl(name, lambda *args, **kwargs: operator(*args, **kwargs), "CompositeExplicitAutograd")
    from torch._inductor import lowering

    own = getattr(torch.ops.shapedispatch, name).default
    # Else the call would go through the function above, which takes some 10 us.
    lowering.lowerings[own] = lowering.fallback_handler(operator, add_to_fallback_set=False)
    return own


_LAYOUTS_AS_GIVEN = (torch.Tag.needs_exact_strides,)
"""What it is given lies in memory as plain's does: a kernel may ask for that, and its results lie by it."""


class _Table:
    """The decompositions of one compilation, which know whether they run inside one another."""

    def __init__(self, usual: Mapping[Operator, Decomposition]) -> None:
        self.usual = usual
        self.depth = 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def entry(self, operator: Operator) -> Decomposition:
        """The decomposition of an operator, as the compiler calls it."""
        usual = self.usual.get(operator)

        def decompose(*args: Any, **kwargs: Any) -> Any:
            right = usual
            if isinstance(usual, FunctionType) and not is_of_others(usual.__code__):
                raise Uncompilable(
                    f"{operator} is taken apart by {usual.__qualname__}(), and nothing guards what that reads"
                )
            if operator in _PRODUCTS and (floats := _zeros_as_floats(args)) is not None:
                return operator(*floats, **kwargs)
            if self.depth == 0:
                device, dtypes = _kind_of_call(args, kwargs)
                if operator in _OF_MIXED and device == "cpu" and _are_mixed(args):
                    right = _OF_MIXED[operator]
                elif is_faulty(operator, device, dtypes):
                    right = RIGHT.get(device, {}).get(operator) or as_plain(operator, _numbers(operator, args))
            if right is None:
                return NotImplemented
            with self.inside():
                return right(*args, **kwargs)

        return decompose


_PRODUCTS = (_aten.mul.Tensor, _aten.mul.Scalar)


def _zeros_as_floats(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The factors with a whole 0 as 0.0, where it has a float to be multiplied with; None where there is none.

    The compiler takes any product with a whole 0 for 0: also that of a nan, of an infinity, and of -1, which is -0.0.
    """
    whole = [type(factor) in (int, bool) and factor == 0 for factor in args]
    of_floats = any(isinstance(one, Tensor) and (one.is_floating_point() or one.is_complex()) for one in args)
    if not any(whole) or not of_floats:
        return None
    return tuple(0.0 if is_zero else factor for factor, is_zero in zip(args, whole, strict=True))


def _numbers(operator: Operator, args: tuple[Any, ...]) -> tuple[int, ...]:
    """The places of numbers where the operator expects tensors."""
    pairs = enumerate(zip(operator._schema.arguments, args, strict=False))
    return tuple(i for i, (a, given) in pairs if str(a.type) == "Tensor" and isinstance(given, _NUMBER))


_NUMBER = (int, float, torch.SymInt, torch.SymFloat)


def _kind_of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
    """The device of a call of an operator, and the dtypes of its tensors."""
    found = [leaf for leaf in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    dtypes = frozenset(str(tensor.dtype).removeprefix("torch.") for tensor in found)
    return (found[0].device.type if found else "cpu"), dtypes


def decompositions(options: Mapping[str, Any]) -> dict[Operator, Decomposition]:
    """What the compiler takes operators apart by, with those that it gets wrong computed rightly or as by plain.

    ``options`` are the compiler's settings: they have a say in the usual ones.
    """
    from torch._inductor.decomposition import select_decomp_table

    with torch._inductor.config.patch(dict(options)):
        usual = dict(select_decomp_table())
    table = _Table(usual)
    named = {name for releases in _tables().values() for known in releases.values() for name in known} | {*_ASKED_AS}
    faulty = [operator for name in named if (operator := _operator_of(name)) is not None]
    return {operator: table.entry(operator) for operator in (*usual, *faulty, *_PRODUCTS, *_OF_MIXED)}


def _operator_of(name: str) -> Operator | None:
    """The operator of a name such as ``aten.add.Tensor``, where this torch has it."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


# ------------------------------------------------------------------------------------------------ what plain looks at

_OTHERWISE_DIFFERENTIATED = frozenset({"softshrink"})
"""Torch differentiates what it takes these apart to, not what plain's own backward computes."""
_CHECKED_BY_PLAIN = frozenset({"bernoulli", "binary_cross_entropy", "repeat_interleave", "_assert_async"})


def refuse_unchecked(gm: GraphModule, examples: Sequence[Any]) -> None:
    """Where plain looks at values and raises, and compiled code takes them as they come: probabilities above 1, say.

    Asked of Dynamo's graph. On a GPU plain ends in a device assertion there, which is no error that anyone could have
    caught. Nor is there a build where torch differentiates another formula than plain does.
    """
    tensors = [one for one in examples if isinstance(one, Tensor)]
    names = {node: called(node) for node in nodes(gm) if node.op in ("call_function", "call_method")}
    if (
        torch.is_grad_enabled()
        and any(one.requires_grad for one in tensors)
        and (wrong := _OTHERWISE_DIFFERENTIATED & {*names.values()})
    ):
        raise Uncompilable(f"compiled code has another gradient of {min(wrong)} where it is given nan")
    if any(one.device.type != "cpu" for one in tensors):
        return
    for node, name in names.items():
        if name in _CHECKED_BY_PLAIN and not (_draws_by_a_constant(node) or _repeats_by_a_number(node)):
            raise Uncompilable(f"plain checks the values that {name} gets, and compiled code does not")


def _draws_by_a_constant(node: Node) -> bool:
    """Whether it draws by one probability, which stands in the code: of no tensor are values looked at."""
    likely: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("p")
    if likely is None and node.target == "bernoulli_":
        return True  # by a half
    return "bernoulli" in called(node) and type(likely) in (int, float) and 0 <= likely <= 1


def _repeats_by_a_number(node: Node) -> bool:
    """Whether what it repeats is repeated by one number, and not by a tensor of them."""
    by: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("repeats")
    by = by.meta.get("example_value") if isinstance(by, Node) else by
    return called(node) == "repeat_interleave" and isinstance(by, (int, torch.SymInt))
