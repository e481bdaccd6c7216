"""Each component of the key is removed in turn, by an edit of the source of `keys`, and some test must then fail.

Two lists. `WITNESSES`: for each component that a wrong answer can show on a CPU, two calls that differ in it alone, and
a build of the first that gives a wrong answer at the second once the component is gone. `MUTANTS`: every element of
every tuple that `keys` makes, every condition of the screen and every reason, found in the source and not by hand;
each must be killed by a witness, by the matrix of attributes, or by a test of `keys`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from shapedispatch.keys import key as keys
from tests.attributes import ARGUMENTS, STATES, Recipe, all_attributes
from tests.fuzzing import DEFAULTS, Call, Function, Made, baking, mismatch, observe
from tests.keys import test_key, test_layout

SOURCE = inspect.getsource(keys)


# ------------------------------------------------------------------------------------------------------------ witnesses


@dataclass
class Fixed(Made):
    """A call that is the same whatever the values."""

    make: Callable[[], Call] = lambda: ((), {})

    def fresh(self, values: int) -> Call:
        """The call with tensors of its own."""
        return self.make()


@dataclass(frozen=True)
class Witness:
    """Two calls of a function, and the state around each, that differ in one component of the key."""

    fn: Callable[..., Any]
    first: Callable[[], tuple[Any, ...]]
    then: Callable[[], tuple[Any, ...]]
    writes: tuple[str, ...] = ()
    state: Mapping[str, Any] | None = None

    def wrong(self) -> str | None:
        """What is wrong with the second call's answer by a dispatcher that has seen the first, if anything."""
        f = baking(self.fn, self.writes)
        observe(f, self._made(self.first, None), 0)
        then = self._made(self.then, self.state)
        return mismatch(observe(self.fn, then, 0), observe(f, then, 0))

    def _made(self, make: Callable[[], tuple[Any, ...]], state: Mapping[str, Any] | None) -> Fixed:
        return Fixed(Function(self.fn, (), self.writes), 0, {**DEFAULTS, **(state or {})}, lambda: (make(), {}))


def _row(count: int = 12, **more: Any) -> torch.Tensor:
    return torch.arange(count, device="cpu", **{"dtype": torch.float32, **more}) + 1


def _inferred() -> torch.Tensor:
    with torch.inference_mode():
        return _row()


def _twice(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return t, t


def _leaf() -> tuple[torch.Tensor]:
    return (_row().requires_grad_(),)


def _result() -> tuple[torch.Tensor]:
    with torch.enable_grad():
        return (_row().requires_grad_() * 1,)


def _overlapping() -> tuple[torch.Tensor, torch.Tensor]:
    base = _row()
    return base[:8], base[4:]


def _write_both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x + y


def _in(state: str, value: Any) -> Witness:
    """The same call, in another state."""
    seen: Mapping[str, Callable[[torch.Tensor], Any]] = {
        "grad": lambda x: torch.is_grad_enabled(),
        "inference": lambda x: torch.is_inference_mode_enabled(),
        "autocast": lambda x: x.view(3, 4) @ x.view(4, 3),
        "cast cache": lambda x: torch.is_autocast_cache_enabled(),
        "deterministic": lambda x: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "default dtype": lambda x: torch.zeros(2),
        "precision": lambda x: torch.get_float32_matmul_precision(),
        "threads": lambda x: torch.get_num_threads(),
        "device": lambda x: torch.zeros(2),
    }
    return Witness(seen[state], lambda: (_row(),), lambda: (_row(),), state={state: value})


def _valued(one: Any, other: Any) -> Witness:
    return Witness(lambda x, value: (x, value), lambda: (_row(), one), lambda: (_row(), other))


WITNESSES: Mapping[str, Witness] = {
    "type": Witness(
        lambda x: type(x).__name__,
        lambda: (_row(),),
        lambda: (nn.Parameter(_row(), requires_grad=False),),
    ),
    "dtype": Witness(lambda x: x + 1, lambda: (_row(),), lambda: (_row(dtype=torch.int32),)),
    "sizes": Witness(lambda x: x.sum(), lambda: (_row(4),), lambda: (_row(5),)),
    "strides": Witness(lambda x: x * 2, lambda: (_row(9).view(3, 3),), lambda: (_row(9).view(3, 3).t(),)),
    "alignment": Witness(lambda x: x * 2, lambda: (_row(13)[:12],), lambda: (_row(13)[1:],)),
    "requires_grad": Witness(lambda x: x * 2, lambda: (_row(),), _leaf),
    "leaf": Witness(lambda x: x.is_leaf, _leaf, _result),
    "inference tensor": Witness(lambda x: x.is_inference(), lambda: (_row(),), lambda: (_inferred(),)),
    "identity": Witness(lambda x, y: x is y, lambda: (_row(), _row()), lambda: _twice(_row())),
    "overlap": Witness(_write_both, lambda: (_row(8), _row(8)), _overlapping, ("x",)),
    "overlap gone": Witness(_write_both, _overlapping, lambda: (_row(8), _row(8)), ("x",)),
    "grad mode": _in("grad", False),
    "inference mode": _in("inference", True),
    "autocast": _in("autocast", torch.bfloat16),
    "deterministic": _in("deterministic", "error"),
    "deterministic, warnings only": _in("deterministic", "warn"),
    "default dtype": _in("default dtype", torch.float64),
    "matmul precision": _in("precision", "high"),
    "threads": _in("threads", 2),
    "default device": _in("device", "meta"),
    "type of a number": _valued(1, True),
    "int and float": _valued(1, 1.0),
    "value of a number": _valued(1, 2),
    "sign of zero": _valued(0.0, -0.0),
    "word": _valued("a", "b"),
    "list and tuple": _valued([1], (1,)),
    "order of a dict": _valued({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "slice": _valued(slice(1), slice(2)),
    "dtype argument": _valued(torch.float32, torch.float64),
}


@pytest.mark.parametrize("name", WITNESSES)
def test_a_witness_is_answered_as_plain_does(name: str) -> None:
    """With the whole key, the harshest of builds gives the right answer."""
    assert WITNESSES[name].wrong() is None


# -------------------------------------------------------------------------------------------------------------- mutants

# Functions whose tuples are the key, and functions whose conditions are the screen.
MAKERS = {
    "ambient", "_autocast", "_determinism", "_tensor", "_float", "_by_value", "_sequence", "_dict",
    "_builtin", "_describe_instance", "_beside", "key", "_same", "overlap", "_DESCRIBE",
}  # fmt: skip
SCREENS = {
    "ambient", "why_ambient", "_tensor", "why_tensor", "_describe_instance", "_builtin", "key", "overlap",
}  # fmt: skip

_UNIQUE = "what else stands in it is in no other kind's description"
_NAMED = "this torch has no named tensors"
EQUIVALENT = {
    "_builtin: the element BuiltinFunctionType": _UNIQUE,
    "_float: the element float": _UNIQUE,
    "_dict: the element dict": _UNIQUE,
    "_DESCRIBE: the element slice": _UNIQUE,
    "why_ambient: the test LOST": "nothing is lost on a torch that the tests run with; see test_private_names",
    "_DESCRIBE: the element complex": _UNIQUE,
    "_DESCRIBE: the element torch.Size": _UNIQUE,
    "_DESCRIBE: the element range": _UNIQUE,
    "_describe_instance: the test isinstance(value, Tensor)": "a tensor is then an object of unknown type",
    "_tensor: the test odd": "a quicker way to the same",
    "key: the test kind is Tensor": "a quicker way to the same",
    "key: the test kind is Parameter": "a quicker way to the same",
    **({} if keys._NAMES else dict.fromkeys(["_tensor: the test _NAMES and t.has_names()"], _NAMED)),
    **({} if keys._NAMES else dict.fromkeys(["why_tensor: the test t.has_names()"], _NAMED)),
    **({"why_tensor: the test _NAMES": "this torch has named tensors"} if keys._NAMES else {}),
}
"""Mutants that no test can kill, since they change nothing that matters; and why."""


@dataclass(frozen=True)
class Mutant:
    """An edit of the source: in ``function``, the node at ``place`` becomes ``instead``."""

    function: str
    place: tuple[int, int, int, int]
    instead: str
    what: str

    def __str__(self) -> str:
        return f"{self.function}: {self.what}"


def _place(node: ast.expr) -> tuple[int, int, int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _bodies() -> Iterator[tuple[str, ast.AST]]:
    for node in ast.parse(SOURCE).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, ast.Module(body=node.body, type_ignores=[])
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def _mutants() -> Iterator[Mutant]:
    for name, body in _bodies():
        if name in MAKERS:
            yield from _elements(name, body)
        if name in SCREENS:
            yield from _conditions(name, body)


def _elements(name: str, body: ast.AST) -> Iterator[Mutant]:
    """Each element of each tuple made becomes None, or nothing where it is starred."""
    typed = [node.annotation for node in ast.walk(body) if isinstance(node, ast.AnnAssign)]
    annotations = {id(part) for annotation in typed for part in ast.walk(annotation)}
    for node in ast.walk(body):
        if id(node) in annotations or not isinstance(node, ast.Tuple) or not isinstance(node.ctx, ast.Load):
            continue
        for item in node.elts:
            if isinstance(item, ast.Constant):
                continue
            gone = "*()" if isinstance(item, ast.Starred) else "None"
            yield Mutant(name, _place(item), gone, f"the element {ast.unparse(item)}")


def _conditions(name: str, body: ast.AST) -> Iterator[Mutant]:
    """Each condition, and each part of one, becomes False."""
    for node in ast.walk(body):
        if isinstance(node, ast.If):
            parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
            for part in parts:
                neutral = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
                yield Mutant(name, _place(part), str(neutral), f"the test {ast.unparse(part)}")


ALL = list(_mutants())


def _edited(mutant: Mutant) -> str:
    lines = SOURCE.splitlines(keepends=True)
    top, left, bottom, right = mutant.place
    head, tail = lines[top - 1].encode()[:left].decode(), lines[bottom - 1].encode()[right:].decode()
    return "".join([*lines[: top - 1], head, mutant.instead, tail, *lines[bottom:]])


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """`keys` with the edit in place, in the very module that everything else imports."""
    before = dict(vars(keys))
    try:
        exec(compile(_edited(mutant), keys.__file__, "exec"), vars(keys))
        vars(keys)["Bypass"] = before["Bypass"]  # others have imported the class
        yield
    finally:
        vars(keys).clear()
        vars(keys).update(before)


# -------------------------------------------------------------------------------------------------------------- killers


def _matrix() -> None:
    seen = set()
    for _, _, change in [("", "", lambda recipe: recipe), *all_attributes()]:
        key = change(Recipe()).key()
        assert key not in seen
        seen.add(key)


def _witnesses() -> None:
    for name, witness in WITNESSES.items():
        assert witness.wrong() is None, name


def _by_parameter(test: Callable[[str], None], names: Mapping[str, Any]) -> list[Callable[[], None]]:
    return [lambda name=name: test(name) for name in names]  # type: ignore[misc]


KILLERS: list[Callable[[], None]] = [
    _matrix,
    test_key.test_a_key_holds_the_device_of_each_tensor,
    test_key.test_which_tensors_are_one_object_is_seen_at_any_depth,
    test_key.test_a_receiver_counts_by_its_type,
    test_key.test_a_receiver_that_is_a_tensor_counts_by_value,
    test_key.test_a_module_argument_counts_by_its_type,
    test_key.test_a_function_counts_by_its_name,
    test_key.test_an_empty_or_complex_parameter_is_dispatched,
    test_key.test_nothing_speaks_against_an_ordinary_state,
    test_key.test_nothing_speaks_against_a_checkpoint,
    test_key.test_the_device_that_casts_is_keyed,
    test_key.test_filling_of_fresh_memory_is_keyed,
    test_layout.test_differences_name_the_part_that_differs,
    lambda: test_key.test_the_new_way_to_set_precision_is_keyed("cuda", "tf32"),
    lambda: test_key.test_the_new_way_to_set_precision_is_keyed("mkldnn", "bf16"),
    test_key.test_overlap_says_which_arguments_share_memory_and_how_far_apart,
    *_by_parameter(test_key.test_a_state_that_cannot_be_keyed_makes_a_call_a_bypass, STATES),
    *_by_parameter(test_key.test_an_argument_that_cannot_be_keyed_makes_a_call_a_bypass, ARGUMENTS),
    lambda: test_key.test_a_transform_sees_plain(torch.func.vmap),
    test_key.test_a_transform_that_wraps_no_argument_makes_a_bypass,
    test_key.test_jit_trace_sees_plain,
    test_key.test_a_dual_tensor_keeps_its_tangent,
    _witnesses,
]


def _killed() -> bool:
    for killer in KILLERS:
        try:
            killer()
        except Exception:  # noqa: BLE001 - a test that fails, however it fails, has seen the edit
            return True
    return False


def test_the_killers_pass_on_the_source_as_it_is() -> None:
    """Else every mutant would be killed by a test that fails anyway."""
    for killer in KILLERS:
        killer()


def test_there_are_mutants_of_every_maker() -> None:
    """The list is read from the source: an empty one would prove nothing."""
    assert len(ALL) >= 60
    assert {mutant.function for mutant in ALL} >= {"ambient", "_tensor", "why_tensor", "why_ambient", "key"}


@pytest.mark.parametrize("mutant", ALL, ids=str)
def test_removing_a_component_of_the_key_makes_a_test_fail(mutant: Mutant) -> None:
    """100 % of the components are killed."""
    with mutated(mutant):
        killed = _killed()
    if str(mutant) in EQUIVALENT:
        assert not killed
    else:
        assert killed, f"no test misses it: {mutant}"
