"""What a build has in place of calls of the user's operators: their Python code, traced with the graph.

A build calls most operators that torch did not write. But what one is made of, if it is a composite or a
``triton_op``, and the formula of its gradient are traced after Dynamo, which guards nothing there: what such code reads
is a constant of the build. So it is guarded here; where it may read what no guard sees, the trace is not to be used.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import GraphModule
from torch.library import _impls

from .reads import Binding, Reads

__all__ = ["OperatorGuard", "definition_of", "guards_on", "operators_of", "reads_of"]

_OF_TORCH = frozenset(
    (
        "aten", "c10d", "c10d_functional", "c10d_functional_autograd", "dtensor", "inductor", "inductor_prims", "mkl",
        "mkldnn", "onednn", "prim", "prims", "quantized", "quantized_decomposed", "rngprims", "symm_mem",
    )
)  # fmt: skip
"""Namespaces of operators that come with torch, without what they begin with."""


@dataclass(frozen=True, slots=True)
class OperatorGuard:
    """What the code of some operators found when they were traced."""

    bindings: tuple[Binding, ...]

    def failed(self) -> str | None:
        """What an operator finds that is another now."""
        return next(
            (f"{one.name}, which an operator reads, has changed" for one in self.bindings if not one.check()), None
        )

    def check(self) -> bool:
        """Whether all is the very same; a hit asks."""
        for one in self.bindings:  # noqa: SIM110 - twice as fast as all() over a generator
            if one.ask() is not one.value:
                return False
        return True


def guards_on(reads: Reads) -> tuple[OperatorGuard, ...]:
    """One on all that may be compared, if anything may: a hit asks each guard there is."""
    return (OperatorGuard(tuple(reads.bindings)),) if reads.bindings else ()


def operators_of(gm: GraphModule) -> list[OpOverload]:
    """The operators that a graph calls and torch did not write, in graphs within it, too."""
    nodes = [node for module in gm.modules() if isinstance(module, GraphModule) for node in module.graph.nodes]
    return list(dict.fromkeys(one for node in nodes if node.op == "call_function" for one in _overloads(node.target)))


def reads_of(operators: Iterable[OpOverload], trains: bool) -> Reads:
    """What is read by that of their code that a build has in place of a call; ``trains`` where it makes gradients."""
    found, left, seen = Reads(), list(operators), set[OpOverload]()
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            _follow(one, trains, found)
            left += [more for named in found.operators for more in _overloads(named)]
            found.operators.clear()
    return found


def definition_of(operator: OpOverload) -> Any:
    """What `torch.library.custom_op` has noted of an operator; None of one that was made otherwise."""
    return OPDEFS.get(_name_of(operator))


def _follow(operator: OpOverload, trains: bool, found: Reads) -> None:
    """Add what the code of one reads."""
    name, definition = operator.name(), definition_of(operator)
    found.bindings.append(Binding(name, functools.partial(OPDEFS.get, _name_of(operator)), definition))
    if definition is None:
        _follow_registered(name, trains, found)
    else:
        for part in (*(_GRADIENT if trains else ()), "_vmap_fn"):
            fn = getattr(definition, part)
            found.bindings.append(Binding(f"{name}.{part}", functools.partial(getattr, definition, part), fn))
            _follow_each([fn], name, found)
        _follow_each(definition._torch_dispatch_fns.values(), name, found)
    _follow_each(operator.py_kernels.values(), name, found)


_GRADIENT = ("_backward_fn", "_setup_context_fn")


def _follow_each(functions: Iterable[Any], name: str, found: Reads) -> None:
    """Add what functions read that an operator is given."""
    for fn in functions:
        if isinstance(fn, FunctionType):
            found.follow(fn)
        elif fn is not None:
            found.unknown.append(f"{name} runs a {type(fn).__name__}")


def _follow_registered(name: str, trains: bool, found: Reads) -> None:
    """Add that code in Python is registered by `torch.library`, which keeps whether there is some, and not which."""
    for key in _TRACED_KEYS:
        entry = f"{name.replace('::', '/')}/{key}"
        there = entry in _impls
        found.bindings.append(Binding(f"{name} ({key})", functools.partial(_is_registered, entry), there))
        if there and (trains or not _is_of_register_autograd(name, key)):
            found.unknown.append(f"what {name} is made of for {key}: torch.library.custom_op would tell")


_TRACED_KEYS = ("CompositeImplicitAutograd", "Autograd", "AutogradCPU", "AutogradCUDA")


def _is_registered(entry: str) -> bool:
    return entry in _impls


def _is_of_register_autograd(name: str, key: str) -> bool:
    """Whether it is what torch itself has registered, to ask a formula where gradients are made and only there.

    Torch keeps where the library was made that it is in: there, if no library was given.
    """
    kept = re.search(rf"^{key}\[.*registered at (.*):(\d+) ", torch._C._dispatch_dump(name), re.MULTILINE)
    return kept is not None and any(
        kept[1] == code.co_filename and int(kept[2]) in {line for *_, line in code.co_lines()} for code in _MAKERS
    )


_MAKERS = [
    getattr(torch.library, name).__code__
    for name in ("_library_for_registration", "register_autograd")  # from torch 2.13 on, and before
    if hasattr(torch.library, name)
]
"""Code that makes libraries for formulas of gradients; what else it makes them for is for other keys."""


def _overloads(target: Any) -> Iterator[OpOverload]:
    """Those that a call of this may be, if torch did not write them."""
    each = [target] if isinstance(target, OpOverload) else []
    if isinstance(target, OpOverloadPacket):
        each = [getattr(target, name) for name in target.overloads()]
    return (one for one in each if one.namespace.lstrip("_") not in _OF_TORCH)


def _name_of(operator: OpOverload) -> str:
    return operator.name().partition(".")[0]
