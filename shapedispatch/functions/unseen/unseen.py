"""What a trace follows that no guard of Dynamo's would see at a later call.

Caches that it looks past, settings that it sets, lookups that fail, attributes that it asks for, what is compared by
``is``: each is guarded here, or the trace is not to be used.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import math
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import (
    AsyncGeneratorType,
    CodeType,
    CoroutineType,
    FunctionType,
    GeneratorType,
)
from typing import Any

import torch
from torch._dynamo import variables
from torch._dynamo.exc import Unsupported
from torch.fx import GraphModule
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ...keys.signature import nested_code
from ..guards.code_guard import is_of_torch
from ..guards.guard import Guard
from ..guards.object_guard import is_of_constants, may_change
from ..guards.operator_guards import guards_on, operators_of, reads_of
from ..guards.owners import is_of_einops, is_of_others
from ..guards.reads import Reads
from .captures import Captures
from .caught import CaughtErrors
from .comparisons import Comparisons, identities_guarded, memberships_compared
from .context_vars import ContextVars
from .hooks import builds_seen, forget_handlers, forget_slots, replaced
from .lookups import Lookups
from .python_state import python_state_guarded
from .sizes import value_of

__all__ = ["Unseen"]

_Cached = type(functools.cache(lambda: None))
_PLACE = re.compile(r'File "(.+?)", line \d+, in (\S+)')
_DEVICES = ("cpu", "cuda")
_DRAWN = (GeneratorType, CoroutineType, AsyncGeneratorType)


class Unseen:
    """Of one trace, from before it on: each thing as a person would write it."""

    def __init__(self) -> None:
        self._settings = _settings()
        self._keeps_gradients = torch.is_grad_enabled()
        self._places = set[tuple[str, str]]()
        self._found: list[str] = []
        self._lookups = Lookups(self._found.append)
        self._caught = CaughtErrors(self._found.append)
        self._context = ContextVars()
        self._captures = Captures()
        self._operators = Reads()
        self.compared: Comparisons = Comparisons()

    @contextlib.contextmanager
    def noted(self, tracing: Callable[[], bool], keyed: Collection[str]) -> Iterator[None]:
        """Note all of it, in a thread that is ``tracing``; ``keyed`` as for `identities_guarded`."""
        forget_slots()
        with (
            identities_guarded(tracing, keyed, self._found.append),
            self.compared.noted(tracing, self._found.append),
            self._generators_refused(tracing),
            memberships_compared(tracing, self._found.append),
            self._lookups.noted(tracing),
            self._caught.noted(tracing),
            self._context.noted(tracing),
            self._captures.noted(tracing),
            python_state_guarded(tracing),
            self._caches_noted(tracing),
            self._texts_noted(tracing),
        ):
            yield

    @contextlib.contextmanager
    def _generators_refused(self, tracing: Callable[[], bool]) -> Iterator[None]:
        """Stop at a generator that was there before, in a thread that is ``tracing``: to follow it is to draw."""

        def met(builder: Any, value: Any) -> None:
            if tracing() and isinstance(value, _DRAWN):
                raise Unsupported(f"it draws from a {type(value).__name__} that is there before")

        with builds_seen(met):
            yield

    @contextlib.contextmanager
    def _caches_noted(self, tracing: Callable[[], bool]) -> Iterator[None]:
        """Note each call of a function that keeps its results, and may give what is no more what it would compute.

        Dynamo computes it anew: other than what is kept, where what it is made of or it itself has changed since.
        """

        def calling(original: Any) -> Any:
            def call_function(variable: Any, *args: Any) -> Any:
                wrapper = getattr(variable, "wrapper_obj", None)
                fn = wrapper.__wrapped__ if type(wrapper) is _Cached else None
                if tracing() and isinstance(fn, FunctionType) and not _is_computed_again(fn):
                    self._found.append(_kept_of(fn.__code__))
                return original(variable, *args)

            return call_function

        with replaced(getattr(variables, "WrapperUserFunctionVariable", None), "call_function", calling):
            yield

    @contextlib.contextmanager
    def _texts_noted(self, tracing: Callable[[], bool]) -> Iterator[None]:
        """Note each text that is made of an object whose class has no ``__str__`` of its own.

        Up to torch 2.13 Dynamo takes it for a constant.
        """

        def making(original: Any) -> Any:
            if "generic_str" in original.__code__.co_names:  # which follows what makes the text
                return original

            def call_str(variable: Any, tx: Any, one: Any) -> Any:
                cls: Any = type(value_of(one))
                if tracing() and isinstance(one, variables.UserDefinedObjectVariable) and cls.__str__ is object.__str__:
                    self._found.append(f"the text of an object ({cls.__name__}), which its __repr__ makes")
                return original(variable, tx, one)

            return call_str

        with contextlib.ExitStack() as stack:
            stack.callback(forget_handlers, str)
            stack.enter_context(replaced(variables.BuiltinVariable, "call_str", making))
            forget_handlers(str)
            yield

    def guards(self) -> tuple[Guard, ...]:
        """On what was asked for and found, or not."""
        return (
            *self._lookups.guards(),
            *self._context.guards(),
            *self._captures.guards(),
            *guards_on(self._operators),
        )

    def guard_at_the_end(self) -> None:
        """Install those guards of Dynamo's of which it is known where a trace ends that they are wanted."""
        self.compared.guard_named()
        self._lookups.guard_unused()

    def code(self, gm: GraphModule) -> list[CodeType]:
        """What is traced and Dynamo does not tell of.

        Code that an error has left, names that were asked for, and that of operators which a build has in place of
        calls of them.
        """
        if operators := operators_of(gm):
            self._operators = reads_of(operators, _trains(gm))
        names = compile(repr(tuple(sorted(self._lookups.names))), "<names that were asked for>", "eval")
        return [*self._caught.left, names, *(fn.__code__ for fn in self._operators.functions)]

    def of_code(self, code: Iterable[CodeType]) -> Iterator[str]:
        """What it has looked for in vain, whose attributes it has looked through as a dict, marks that it asks for."""
        yield from self._found
        others = [part for part in code if not is_of_others(part)]
        yield from self._lookups.of_code(others)
        if any(part.co_flags & inspect.CO_COROUTINE for outer in others for part in nested_code(outer)):
            yield "a coroutine, which is run when it is awaited"
        if any("Buffer" in part.co_names for part in others):
            yield "whether a tensor is a torch.nn.Buffer, which only a mark on it says"

    def of_graph(self, gm: GraphModule) -> Iterator[str]:
        """What it has set by the end of the trace, when torch has not yet put that back, and what the graph would set.

        Nothing uses what such a call gives, and so the compiler leaves it out.
        """
        nodes = [node for module in gm.modules() if isinstance(module, GraphModule) for node in module.graph.nodes]
        traces = {node.stack_trace for node in nodes if node.stack_trace}
        self._places = {(file, name) for trace in traces for file, name in _PLACE.findall(trace)}
        unused = [node for node in nodes if node.op == "call_function" and not node.users]
        names = [str(getattr(node.target, "__name__", "")) for node in unused]
        yield from (f"what {name}() sets" for name in names if name.startswith("set_") and name != _PUT_BACK)
        modes = [node.args[0] for node in nodes if node.target is torch._C._set_grad_enabled]
        if modes and modes[-1] != self._keeps_gradients:
            yield "whether gradients are kept, which it sets"
        left = {node.target for node in nodes if node.op == "call_function" and _is_left_in_the_graph(node.target)}
        yield from (f"what {fn.__name__}() reads, which Dynamo is told to leave in the graph" for fn in left)
        yield from (f"what an operator reads ({one})" for one in self._operators.unknown)
        kinds = {kind for one in _given(gm) for kind in _wrappers(one) if not is_of_torch(kind)}
        yield from (f"what {kind.__name__}.__torch_dispatch__() reads" for kind in kinds)
        now = _settings()
        yield from self._context.seen_elsewhere(node.target for node in nodes if node.op == "call_function")
        yield from (f"{name}, which it sets" for name, value in self._settings.items() if now[name] != value)

    def of_value(self, value: Any, kind: str, name: str) -> Iterator[str]:
        """What a guard of this kind on this value, of this name, would not see.

        Tensors that it has computed once and keeps: the trace computes them at each call. What is in a list within a
        tuple: Dynamo compares the tuple with itself. A mark that makes a tensor a buffer, which torch's modules ask
        for whenever an attribute is set. What makes an object one of a protocol: attributes that no code names.
        """
        if isinstance(value, type) and _answers_for_itself(value):
            yield f"what {value.__name__} answers for itself, by code on it or on its own class"
        if _is_a_users_protocol(value):
            yield f"whether an object has what {value.__name__} asks for (isinstance of a runtime_checkable Protocol)"
        if isinstance(value, deque) and value.maxlen is not None:
            yield "how many a deque may hold"
        if getattr(value, "_dynamo_marked_constant", False) is True:
            yield f"what {value.__name__}() gives, which Dynamo is told to take for a constant"
        if value is torch.nn.Buffer and not name.startswith("G['__import_torch_dot_nn"):
            yield "whether a tensor is a torch.nn.Buffer, which only a mark on it says"
        unwatched = kind in _BY_VALUE and isinstance(value, tuple) and not is_of_constants(value)
        if unwatched and may_change(value):
            yield "a list or set within a tuple"
        if type(value) is _Cached and not is_of_einops(value.__wrapped__):
            code = getattr(value.__wrapped__, "__code__", None)
            if code is not None and (code.co_filename, code.co_name) in self._places:
                yield _kept_of(code)
        missing = getattr(type(value), "__missing__", None) if isinstance(value, dict) else None
        if isinstance(missing, FunctionType) and not is_of_others(missing.__code__):
            yield f"what {type(value).__name__}.__missing__() gives for a key that is not there"


def _trains(gm: GraphModule) -> bool:
    """Whether a build of this graph may make gradients: of what it is given, or because it calls something to do so."""
    told = any("grad" in str(node.target) for node in gm.graph.nodes if node.op.startswith("call"))
    return told or (torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in _given(gm)))


def _given(gm: GraphModule) -> list[Any]:
    """What a graph is given, as it was traced."""
    return [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]


def _wrappers(value: Any) -> Iterator[type]:
    """The classes of a tensor made of tensors, and of those in it: what their code does a build does in its place."""
    if is_traceable_wrapper_subclass(value):
        yield type(value)
        for name in value.__tensor_flatten__()[0]:
            yield from _wrappers(getattr(value, name))


def _is_left_in_the_graph(target: Any) -> bool:
    """Whether it is a function of the user's, which Dynamo has not followed."""
    return isinstance(target, FunctionType) and not (is_of_others(target.__code__) or is_of_einops(target))


_PUT_BACK = "set_inplace_requires_grad_allowed"
"""What ``torch.func.grad`` sets for as long as it runs; it is nobody else's."""
_BY_VALUE = frozenset(("CONSTANT_MATCH", "EQUALS_MATCH"))


def _answers_for_itself(cls: type) -> bool:
    """Whether code of the user's answers what is asked of the class: Dynamo runs that, and guards nothing it reads."""
    above = [base for base in type.mro(type(cls)) if base is not type]
    own = [vars(base).get("__class_getitem__") for base in cls.__mro__]
    asked = [*own, *(vars(base).get(name) for base in above for name in _ASKED_OF_CLASSES)]
    functions = (getattr(one, "__func__", one) for one in asked)
    return any(isinstance(one, FunctionType) and not is_of_others(one.__code__) for one in functions)


_ASKED_OF_CLASSES = (
    "__bool__", "__contains__", "__eq__", "__getitem__", "__instancecheck__", "__iter__", "__len__",
    "__subclasscheck__",
)  # fmt: skip


def _is_a_users_protocol(value: Any) -> bool:
    """Whether it is a class of which every object is that has some attributes; torch and Python ask for methods."""
    bases = value.__bases__ if isinstance(value, type) else ()
    told = any(one.__name__ == "Protocol" and one.__module__ in ("typing", "typing_extensions") for one in bases)
    return told and value.__module__.partition(".")[0] not in ("collections", "torch", "typing")


_OF_NUMBERS = frozenset(
    ("abs", "bool", "divmod", "float", "int", "len", "max", "min", "pow", "round", "sum", "math", *vars(math))
)
_NUMBERS = frozenset((int, float, bool, complex))
_MAKING = ("BUILD_LIST", "BUILD_MAP", "BUILD_SET", "MAKE_", "STORE_ATTR")


def _is_computed_again(fn: FunctionType) -> bool:
    """Whether what is computed anew is what a function that keeps its results has kept."""
    return is_of_others(fn.__code__) or is_of_einops(fn) or _only_calculates(fn)


def _kept_of(code: CodeType) -> str:
    return f"the results that functools.lru_cache keeps of {code.co_name}()"


def _only_calculates(fn: FunctionType) -> bool:
    """Whether a function makes numbers of its arguments and constants alone: computed again, they are the same."""
    code, steps = fn.__code__, list(dis.get_instructions(fn))
    own = [name for name in code.co_names if name in fn.__globals__ and fn.__globals__[name] is not math]
    held = [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]  # which may be changed, as a list is
    alone = not (code.co_freevars or own or any(type(one) not in _NUMBERS for one in held))
    return alone and _OF_NUMBERS.issuperset(code.co_names) and not _makes_more(steps)


def _makes_more(steps: Sequence[dis.Instruction]) -> bool:
    """Whether code makes what may be changed later, or a function or class, or sets or reads something of an object."""
    of_math = [step.opname == "LOAD_GLOBAL" and step.argval == "math" for step in steps]
    reads = [step.opname in ("LOAD_ATTR", "LOAD_METHOD") for step in steps[1:]]
    return any(step.opname.startswith(_MAKING) for step in steps) or any(
        read and not before for before, read in zip(of_math, reads, strict=False)
    )


def _settings() -> dict[str, Any]:
    """What a function may set for the whole thread or process, and leave so."""
    casts = [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]
    return {
        "the default dtype": torch.get_default_dtype(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "that these only warn": torch.is_deterministic_algorithms_warn_only_enabled(),
        "the precision of matrix products": torch.get_float32_matmul_precision(),
        "autocast": (*casts, torch.is_autocast_cache_enabled()),
        "the number of threads": torch.get_num_threads(),
    }
