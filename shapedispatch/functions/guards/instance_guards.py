"""What Dynamo's guards read of a method's instance and of globals, as trees that C can follow, and what is left.

A hit need not ask them again while nothing of what they read has changed, which C sees: for each instance
(`hit/csrc/instance_record.c`), and for the globals (`hit/csrc/skipped_guards.c`). Dynamo's guards are a tree: whatever
in it is not known here, of this or a later release, means that they are asked at each hit.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, TypeAlias

import torch
from torch._C._dynamo.guards import GlobalStateGuard, TensorGuards
from torch._dynamo import guards as dynamo_guards
from torch._dynamo.guards import CheckFunctionManager, GuardBuilder

from ...hit import native

__all__ = [
    "OF_NO_LOCAL",
    "OF_ONE_VALUE",
    "OF_SEVERAL",
    "GlobalGuards",
    "InstanceGuards",
    "Tree",
    "Unknown",
    "dispatcher_state",
    "global_guards",
    "instance_guards",
    "managers_kept",
    "managers_untimed",
    "values_of",
    "ways_on",
]

Tree: TypeAlias = tuple[str, tuple[tuple[str, Any, "Tree"], ...]]
"""What is read of a value beside its type and which it is, see `_READ`; and the ways on: kind, key, what is there."""

_ACCESSORS = {
    "GetGenericDict": "d",
    "DictGetItem": "k",
    "ListGetItem": "l",
    "TupleGetItem": "t",
    "GetAttr": "a",
    "GenericGetAttr": "a",
    "Code": "c",
    "Type": "T",
    "TypeDict": "D",
    "TypeMRO": "M",
}
_NTH_ITEM = "i"
_READ = {
    "DICT_CONTAINS": "k",
    "DICT_LENGTH": "k",
    "DIMENSION_DYNAMIC_MARKING_GUARD": "t",
    "DYNAMIC_INDICES": "t",
    "EQUALS_MATCH": "=",
    "LENGTH_CHECK": "#",
    "TENSOR_MATCH": "t",
}
"""Guards on a value itself, with what they read: a dict's keys, a tensor's metadata, its length, all of it."""
OF_ONE_VALUE = _READ.keys() | {"FALSE_MATCH", "ID_MATCH", "NONE_MATCH", "NOT_NONE", "TRUE_MATCH", "TYPE_MATCH"}
OF_SEVERAL = frozenset({"NO_TENSOR_ALIASING", "OBJECT_ALIASING"})
"""Which values are one object."""
OF_NO_LOCAL = frozenset({"DEFAULT_DEVICE", "DUAL_LEVEL_MATCH", "GLOBAL_STATE", "TORCH_FUNCTION_MODE_STACK"})
"""Guards at the root that read no local name."""


class Unknown(Exception):
    """Something that is not known here."""


def dispatcher_state() -> Callable[[], bool]:
    """A question: whether operators are dispatched as they are now.

    Guards on tensors ask it, and no key holds it: in the code of a custom operator, say, autograd is left out.
    """
    in_c: Callable[[], bool] | None = None if native.in_use is None else native.in_use.dispatcher_state()
    if in_c is not None:
        return in_c
    sample = torch.empty(0)
    maker: Any = TensorGuards  # what the stubs say of it is not so
    return functools.partial(maker(sample, dynamic_dims_sizes=[[None]], dynamic_dims_strides=[[None]]).check, sample)


@dataclass(frozen=True, slots=True)
class InstanceGuards:
    """What guards read of the instance, and the guards that read no local name."""

    place: int
    """Of the instance among a call's positional arguments."""
    tree: Tree
    others: Callable[[Mapping[str, Any]], bool]
    state: Callable[[], Callable[[], bool]] = dispatcher_state


@dataclass(frozen=True, slots=True)
class GlobalGuards:
    """What guards that read no local name read of the globals, and a question: whether those hold that read no name."""

    tree: Tree
    state: Callable[[], bool]


def instance_guards(root: Any, others: Any, code: CodeType) -> InstanceGuards | None:
    """Of Dynamo's root manager, if its guards read one argument; None where they read more, or what C cannot look at.

    ``others`` is the root of the guards that read no local name; ``code``, the function's, says which argument it is.
    """
    try:
        below = list(ways_on(root))
        names = [_name(key) for (way, key), _ in below if way == "FrameLocals"]
        arguments = code.co_varnames[: code.co_argcount]
        if len(names) != 1 or names[0] not in arguments or root.get_epilogue_lambda_guards():
            return None
        if not _kinds(root) <= OF_NO_LOCAL or not _is_all_but_locals(root, others):
            return None
        own = next(manager for (way, _), manager in below if way == "FrameLocals")
        return InstanceGuards(arguments.index(names[0]), _tree(own), others.check)
    except (Unknown, AttributeError):
        return None


def global_guards(root: Any, others: Any, state: Any) -> GlobalGuards | None:
    """Of Dynamo's root manager, if it is known what its guards read of globals; None where not, or where it is nothing.

    ``others`` is the root of the guards that read no local name; ``state``, of those that read none at all.
    """
    try:
        below = list(ways_on(others))
        known = _kinds(others) <= OF_NO_LOCAL and not others.get_epilogue_lambda_guards()
        alone = _texts(state) == _texts(others) and not any(ways_on(state)) and not state.get_epilogue_lambda_guards()
        if (
            not known
            or not alone
            or not _is_all_but_locals(root, others)
            or any(way != "Globals" for (way, _), _ in below)
        ):
            return None
        tree = _tree(below[0][1]) if below else ("", ())
        return GlobalGuards(tree, _torch_state(state) or functools.partial(state.check, {}))
    except (Unknown, AttributeError):
        return None


def _torch_state(state: Any) -> Callable[[], bool] | None:
    """A question that is asked faster than these guards and says the same of each call that has a key, if there is one.

    A call in a mode of functions has none.
    """
    if _kinds(state) != {"GLOBAL_STATE", "TORCH_FUNCTION_MODE_STACK"} or torch._C._len_torch_function_stack() != 0:
        return None
    now: Any = GlobalStateGuard()
    texts = [text for kind, parts in _texts(state) for text in parts if kind == "GLOBAL_STATE"]
    noted = json.loads(now.__getstate__())
    if [_noted(text) for text in texts] != [noted]:
        return None
    asked: Callable[[], bool] = now.check
    return _what_no_key_holds(noted) or asked


def _what_no_key_holds(noted: Mapping[str, Any]) -> Callable[[], bool] | None:
    """A question of that alone, in C, if the others are all known: what casts where nothing is cast changes nothing.

    Nor do settings of products on GPUs where there is none.
    """
    if native.in_use is None or not noted.keys() <= _HELD | _OF_FUNCTIONS | _OF_GPUS or torch.cuda.is_available():
        return None
    in_c: Callable[[], bool] | None = native.in_use.function_state()
    return in_c


_HELD = frozenset(
    {
        "autocast_state", "default_dtype", "deterministic_algorithms", "deterministic_algorithms_warn_only",
        "grad_mode", "num_threads",
    }
)  # fmt: skip
"""What of the state around a call a key holds, as far as it changes anything."""
_OF_FUNCTIONS = frozenset({"torch_function", "torch_function_all_disabled"})
_OF_GPUS = frozenset({"allow_bf16_reduce", "allow_fp16_reduce", "allow_tf32", "cuda_matmul_precision"})


def _noted(text: str) -> Any:
    """The state that a guard says it compares with."""
    with contextlib.suppress(ValueError):
        return json.JSONDecoder().raw_decode("".join(text.partition("{")[1:]))[0]
    return None


@contextlib.contextmanager
def managers_kept(tracing: Callable[[], bool], kept: list[Any], compared: list[Any]) -> Iterator[None]:
    """Keep the managers of guards that Dynamo makes in a thread that is ``tracing``, and what they compare by identity.

    Where guards are filtered it makes two: of all, then of those that are left. The others of `instance_guards`, and
    those of them that read no name, are made between them.
    """
    maker: Any = CheckFunctionManager
    original = maker.build_guards

    def build_guards(checks: Any, *args: Any, **kwargs: Any) -> Any:
        if not tracing():
            return original(checks, *args, **kwargs)
        if not kept and args:
            args[0].extend(_on_shadows(args[0]))
        elif kept:
            without_locals = [guard for guard in args[0] if re.search(r"\bL\[", guard.name) is None]
            without_names = [guard for guard in without_locals if not guard.name]
            kept.extend(original(checks, some, *args[1:], **kwargs)[1] for some in (without_locals, without_names))
        built = original(checks, *args, **kwargs)
        kept.append(built[1])
        compared.extend(one for reference in checks._weakrefs.values() if (one := reference()) is not None)
        return built

    try:
        maker.build_guards = build_guards
        yield
    finally:
        maker.build_guards = original


_MEASURES = "profile_guard_manager"


@contextlib.contextmanager
def managers_untimed(tracing: Callable[[], bool]) -> Iterator[None]:
    """Have Dynamo not measure, in a thread that is ``tracing``, how long the guards take that it has made.

    For one line of a log it empties the processor's caches after each trace, which takes as long as a small function's
    whole trace, and leaves the caller's next calls with nothing in them.
    """
    original = vars(dynamo_guards).get(_MEASURES)
    if original is None:  # a release that measures nothing, or does so elsewhere
        yield
        return
    try:
        vars(dynamo_guards)[_MEASURES] = lambda *args: 0.0 if tracing() else original(*args)
        yield
    finally:
        vars(dynamo_guards)[_MEASURES] = original


def _on_shadows(guards: Iterable[Any]) -> Iterator[Any]:
    """Guards on what would be found before a module's parameters, buffers and submodules: an attribute of its own.

    Dynamo reads those where a module's `__getattr__` finds them, and does not guard that it is asked.
    """
    for module, name in dict.fromkeys(pair for guard in guards for pair in _registered(guard.originating_source)):
        yield module.make_guard(functools.partial(GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr=name))


def _registered(source: Any) -> Iterator[tuple[Any, str]]:
    """What a source reads on its way from a module's dicts: the module's source, and the name."""
    while source is not None:
        base = getattr(source, "base", None)
        held = getattr(base, "base", None)
        if getattr(base, "member", None) in ("_buffers", "_modules", "_parameters"):
            name = getattr(source, "index", None)
            if isinstance(name, str) and held is not None:
                yield held, name
        source = base


def _is_all_but_locals(root: Any, others: Any) -> bool:
    """Whether these are the same guards on the same values, but for those on local names."""
    below = [pair for pair in ways_on(root) if pair[0][0] != "FrameLocals"]
    return _texts(root) == _texts(others) and _are_the_same(below, list(ways_on(others)))


def _are_the_same(some: Sequence[tuple[Any, Any]], others: Sequence[tuple[Any, Any]]) -> bool:
    """Of managers by their accessors, in any order."""
    by_accessor = dict(others)
    return (
        len(some) == len(others) == len(by_accessor)
        and not any(_is_of_dict_items(manager) for _, manager in (*some, *others))
        and all(
            accessor in by_accessor
            and _texts(manager) == _texts(by_accessor[accessor])
            and _are_the_same(list(ways_on(manager)), list(ways_on(by_accessor[accessor])))
            for accessor, manager in some
        )
    )


def _texts(manager: Any) -> list[tuple[str, list[str]]]:
    """The guards on a value itself, with what they say that they ask."""
    return sorted((type(guard).__name__, guard.verbose_code_parts()) for guard in manager.get_leaf_guards())


def _tree(manager: Any) -> Tree:
    kinds = _kinds(manager)
    if not kinds <= OF_ONE_VALUE | OF_SEVERAL:
        raise Unknown
    branches = [(_ACCESSORS.get(way, ""), _key(way, key), _tree(inner)) for (way, key), inner in ways_on(manager)]
    branches += [(_NTH_ITEM, place, _tree(value)) for place, value in values_of(manager)]
    if not all(way for way, _, _ in branches):
        raise Unknown
    return "".join(sorted({_READ[kind] for kind in kinds & _READ.keys()})), tuple(branches)


def _kinds(manager: Any) -> set[str]:
    """Of the guards on a value itself."""
    return {type(guard).__name__ for guard in manager.get_leaf_guards()}


def ways_on(manager: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    """Managers of what is read from a value, each by its accessor: ``DictGetItem``, ``'weight'``."""
    for accessor, inner in zip(manager.get_accessors(), manager.get_child_managers(), strict=True):
        named = re.fullmatch(r"(\w+?)(?:Guard)?Accessor(?:\((.*)\))?", accessor.repr(), re.DOTALL)
        if named is None:
            raise Unknown
        yield (named[1], named[2] or ""), inner


def values_of(manager: Any) -> Iterator[tuple[int, Any]]:
    """Managers of a dict's values by their places in its order; its keys are as they were while the dict is."""
    pairs = manager.get_key_value_managers() if _is_of_dict_items(manager) else {}
    for place, (_, value) in pairs.items():
        if value is not None:
            yield place, value


def _is_of_dict_items(manager: Any) -> bool:
    return hasattr(manager, "get_key_value_managers")


def _key(way: str, key: str) -> Any:
    """What an accessor says in brackets: a constant, or an attribute's name."""
    if way in ("GetAttr", "GenericGetAttr"):
        return key
    try:
        value = ast.literal_eval(key) if key else None
    except (SyntaxError, ValueError):
        raise Unknown from None
    if type(value) not in (str, int, type(None)):
        raise Unknown
    return value


def _name(key: str) -> str | None:
    """The local name that an accessor reads."""
    named = re.match(r"key='(\w+)'", key)
    return named[1] if named is not None else None
