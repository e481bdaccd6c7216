"""The C path: it keys, finds and runs as the Python path does, holds nothing, and is done without where it must be."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import enum
import gc
import itertools
import math
import os
import random
import statistics
import struct
import subprocess
import sys
import threading
import time
import tomllib
import tracemalloc
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import Module, Parameter

from shapedispatch import private, set_mode, shapedispatch
from shapedispatch.hit import native
from shapedispatch.hit.table import Entry, Table
from shapedispatch.keys import key as keys
from shapedispatch.keys import tree
from shapedispatch.records import Choice
from shapedispatch.settings.resolve import reset
from tests.attributes import Slotted, Thing, Unknown, low_tensor
from tests.fuzzing import FUNCTIONS, baking, make_call, mismatch, observe, within
from tests.keys.test_instances import Computed
from tests.paths import NO_COMPILER, PATHS, SOURCE, c_module, compiled, library, loaded, taking

pytestmark = [
    pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER)),
    pytest.mark.operators_called,
]
PYPROJECT = Path(__file__).parent.parent.parent / "pyproject.toml"

Call = tuple[tuple[Any, ...], dict[str, Any]]


@pytest.fixture(params=PATHS)
def fast_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Dispatchers of the test take the Python path, then the C path."""
    with taking(request.param):
        yield request.param


@pytest.fixture
def c_path() -> Iterator[None]:
    """Dispatchers of the test take the C path."""
    with taking("c"):
        yield


def pack(*args: Any, receiver: bool = False, overlap: bool = False, **kwargs: Any) -> Any:
    """What C makes of a call."""
    return c_module().sign_call(args, kwargs, receiver, overlap)


def key(*args: Any, receiver: bool = False, overlap: bool = False, **kwargs: Any) -> Any:
    """What Python makes of the same call; the reason where it is a bypass."""
    try:
        made = keys.key(args, kwargs, receiver)
        return (*made, tree.overlap(args, kwargs)) if overlap else made
    except keys.Bypass as reason:
        return str(reason)


def plain_only(fn: Callable[..., Any], **given: Any) -> Any:
    """A dispatcher that builds nothing: each new key is a quick miss."""
    return shapedispatch(hints=(), **given)(fn)


def double(x: Tensor) -> Tensor:
    """Something to dispatch."""
    return x * 2


def sized(*sizes: int) -> Tensor:
    """A tensor of ones, of these sizes."""
    return torch.ones(sizes)


def linked(dispatcher: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether the C path knows this call."""
    return dispatcher.core.fast_path.find(*dispatcher.core.backend.normal(args, kwargs)) is not None


def warmed(dispatcher: Any, *args: Any, **kwargs: Any) -> Any:
    """The dispatcher after a miss and the Python path's hit: the next call is C's."""
    dispatcher(*args, **kwargs)
    dispatcher(*args, **kwargs)
    assert linked(dispatcher, *args, **kwargs)
    return dispatcher


# ------------------------------------------------------------------------------------------------------------- one law


def disagreements(calls: list[tuple[Any, Any]]) -> list[str]:
    """Sentences on calls, given as (key, packed), that are one to one road and two to the other."""
    by_pack: dict[Any, Any] = {}
    by_key: dict[Any, Any] = {}
    judged = [(made, packed) for made, packed in calls if packed is not None]
    coarse = [f"packed alike: {made}" for made, packed in judged if by_pack.setdefault(packed, made) != made]
    keyed = [(made, packed) for made, packed in judged if not isinstance(made, str)]
    fine = [f"one key, packed twice: {made}" for made, packed in keyed if by_key.setdefault(made, packed) != packed]
    return coarse + fine


@pytest.mark.parametrize(
    "value",
    [Thing(1), Thing((1, "a")), Thing(double), Thing(torch.float32), SimpleNamespace(held=1), double, lambda: None,
     torch.relu, torch.nn.functional.gelu, math.sin, int.from_bytes, Thing(torch.relu)],
)  # fmt: skip
def test_an_object_of_an_ordinary_class_and_a_function_are_packed(value: Any) -> None:
    """By what stands in its dict; by its name."""
    assert pack(value) is not None
    assert pack(value) != pack(Thing("other"))


def test_a_function_of_c_is_packed_by_what_it_is() -> None:
    """Some are another object each time; what is bound to an instance has no key."""
    calls = [(key(value), pack(value)) for value in (torch.relu, torch.tanh, int.from_bytes, int.from_bytes, math.sin)]
    assert disagreements(calls) == []
    assert len({packed for _, packed in calls}) == 4
    for value in ([].append, "a".join, torch.ones(2).relu):
        assert pack(value) is None
        assert "bound method" in key(value)


@dataclasses.dataclass
class Fields:
    """A dataclass with any values."""

    one: Any = 1
    other: Any = "a"


@dataclasses.dataclass
class MoreFields(Fields):
    """Another one."""


class Named(NamedTuple):
    """A named tuple."""

    one: Any = 1
    other: Any = "a"


class Colour(enum.Enum):
    """Two of three are one."""

    RED, BLUE, ROUGE = 1, 2, 1


class Bits(enum.IntFlag):
    """They are added."""

    LOW, HIGH = 1, 2


def beside(value: Any) -> Any:
    """The same with an attribute more."""
    value.more = 1
    return value


def renamed(value: Any) -> Any:
    """The same with another attribute in place of a field, which is its class's now."""
    del value.other
    return beside(value)


class WithDict(Named):
    """Named tuples that may hold more."""


class Counted(Named):
    """It says itself what it holds."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return iter((1,))


@dataclasses.dataclass
class OfClass:
    """One of its fields is none."""

    shared: ClassVar[int] = 1
    own: int = 1


class Answered(Fields):
    """What it holds under a name is not what it answers."""

    one = property(lambda self: 7, lambda self, value: self.__dict__.__setitem__("one", value))


def test_dataclasses_named_tuples_and_members_are_packed_by_what_they_hold() -> None:
    """With tensors in them, too; equal bytes if and only if equal keys."""
    x, y = torch.ones(2), torch.ones(3)
    held = (1, 1.0, "a", x, y, [x], [y], None, torch.relu, double, Fields(x), Named(y), Colour.RED, (1, 2))
    values = [made(one, other) for made in (Fields, MoreFields, Named) for one in held for other in (1, x)]
    values += [Colour.RED, Colour.ROUGE, Colour.BLUE, Bits.LOW, Bits.LOW | Bits.HIGH, Bits.LOW | Bits.HIGH, 1, 3]
    calls = [(key(value), pack(value)) for value in values]
    assert all(packed is not None for _, packed in calls)
    assert disagreements(calls) == []
    assert pack(Colour.RED) == pack(Colour.ROUGE) != pack(Colour.BLUE)


def test_memory_that_fields_share_is_packed() -> None:
    """And which of them are one."""
    x = torch.ones(8)
    pairs = [(x, x), (x, x[:]), (x[:4], x[4:]), (x[:4], x[2:6])]
    calls = [
        (key(made(*pair), overlap=True), pack(made(*pair), overlap=True)) for pair in pairs for made in (Fields, Named)
    ]
    assert disagreements(calls) == []
    assert len({packed for _, packed in calls}) == len(calls)


@pytest.mark.parametrize(
    "value",
    [
        beside(Fields()),
        renamed(Fields()),
        beside(WithDict()),
        WithDict(),
        Counted(),
        OfClass(),
        Answered(),
        Fields(object()),
    ],
)
def test_what_holds_more_or_less_than_it_says_is_left_to_python(value: Any) -> None:
    """Which may have a key for it."""
    assert pack(value) is None


@pytest.mark.parametrize(
    "value", [Thing([1]), Thing(Thing(1)), Thing(torch.ones(2)), Slotted(1), Unknown(), object(), Computed()]
)
def test_other_objects_are_left_to_python(value: Any) -> None:
    """Which knows some of them, too."""
    assert pack(value) is None


@pytest.mark.usefixtures("c_path")
def test_a_class_that_says_later_what_its_instances_have_is_asked_again() -> None:
    """Its dict tells nothing then."""

    class Later:
        """As ordinary as any."""

        def __init__(self) -> None:
            self.held = 1

    f, x, later = plain_only(lambda x, later: x * later.held), torch.ones(2), Later()
    warmed(f, x, later)
    assert pack(later) is not None
    Later.held = property(lambda self: 2, lambda self, value: None)  # type: ignore[assignment,misc]  # as a user may
    assert pack(later) is None
    assert torch.equal(f(x, later), x * 2)
    assert f.cache_info().bypasses == 1


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_generated_calls_pack_alike_where_their_keys_are_equal(name: str) -> None:
    """Equal bytes if and only if equal keys, over generated calls and states of one function; bypasses stand apart."""
    calls, alive = [], []
    writes = bool(FUNCTIONS[name].writes)
    for spec, values in itertools.product(range(150), (0, 1)):
        made = make_call(FUNCTIONS[name], spec)
        with within(made.state):
            args, kwargs = made.fresh(values)
            alive.append((args, kwargs))  # an address must not come again
            calls.append((key(*args, overlap=writes, **kwargs), pack(*args, overlap=writes, **kwargs)))
    assert disagreements(calls) == []
    judged = sum(packed is not None for _, packed in calls)
    assert judged > len(calls) / 2


BASE = torch.arange(64.0)
NUMBER = 2**70
VALUES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: BASE[:4],
    "other size": lambda: BASE[:5],
    "other stride": lambda: BASE[:8:2],
    "unaligned": lambda: BASE[1:5],
    "other dtype": lambda: BASE[:4].double(),
    "same width": lambda: BASE[:4].int(),
    "two dims": lambda: BASE[:4].view(2, 2),
    "dim of size 1": lambda: BASE[:4].view(1, 4),
    "dim of size 1, odd stride": lambda: BASE.as_strided((1, 4), (7, 1)),
    "with gradient": lambda: torch.zeros(4, requires_grad=True),
    "computed": lambda: torch.zeros(4, requires_grad=True) * 1,
    "parameter": lambda: Parameter(torch.zeros(4)),
    "frozen parameter": lambda: Parameter(torch.zeros(4), requires_grad=False),
    "inference": lambda: torch.inference_mode()(lambda: torch.zeros(4))(),
    "complex": lambda: torch.zeros(4, dtype=torch.complex64),
    "no elements": lambda: BASE[:0],
    "no dims": lambda: torch.tensor(1.0),
    "1": lambda: 1,
    "1.0": lambda: 1.0,
    "True": lambda: True,
    "1+0j": lambda: 1 + 0j,
    "0": lambda: 0,
    "0.0": lambda: 0.0,
    "-0.0": lambda: -0.0,
    "False": lambda: False,
    "None": lambda: None,
    "...": lambda: ...,
    "nan": lambda: float("nan"),
    "large": lambda: NUMBER,
    "larger": lambda: NUMBER + 1,
    "negative": lambda: -1,
    "2**63": lambda: 2**63,
    "'1'": lambda: "1",
    "b'1'": lambda: b"1",
    "'larger'": lambda: "larger" * 9,
    "float32": lambda: torch.float32,
    "strided": lambda: torch.strided,
    "channels last": lambda: torch.channels_last,
    "cpu": lambda: torch.device("cpu"),
    "cpu:0": lambda: torch.device("cpu:0"),
    "cuda:1": lambda: torch.device("cuda:1"),
    "int": lambda: int,
    "Size": lambda: torch.Size((1, 2)),
    "()": lambda: (),
    "[]": list,
    "{}": dict,
    "(1, 2)": lambda: (1, 2),
    "[1, 2]": lambda: [1, 2],
    "[[1], 2]": lambda: [[1], 2],
    "[1, [2]]": lambda: [1, [2]],
    "{1: 2}": lambda: {1: 2},
    "{2: 1}": lambda: {2: 1},
    "{1: 2, 2: 1}": lambda: {1: 2, 2: 1},
    "{2: 1, 1: 2}": lambda: {2: 1, 1: 2},
    "slice(1)": lambda: slice(1),
    "slice(None, 1, 1)": lambda: slice(None, 1, 1),
    "[tensor]": lambda: [BASE[:4]],
    "module": lambda: torch.nn.ReLU(),
    "other module": lambda: torch.nn.Sigmoid(),
    "module's type": lambda: torch.nn.ReLU,
}


@pytest.mark.parametrize("name", VALUES)
def test_an_argument_is_known_again_and_told_from_all_others(name: str) -> None:
    """Made twice it packs alike, and no other value packs as it does: as the keys have it."""
    calls = [(key(make()), pack(make())) for make in VALUES.values()]
    made, again = (key(VALUES[name]()), pack(VALUES[name]())), (key(VALUES[name]()), pack(VALUES[name]()))
    assert made == again
    assert made[1] is not None
    assert sum(packed == made[1] for _, packed in calls) == sum(one == made[0] for one, _ in calls) == 1


def test_a_nan_is_told_from_one_with_other_bits() -> None:
    """Which has no key in Python."""
    other = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000123))[0]
    assert len({pack(one) for one in (float("nan"), other, -float("nan"))}) == 3
    assert pack(complex(0, float("nan"))) != pack(complex(0, other))


@contextlib.contextmanager
def precision_of_mkldnn(word: str) -> Iterator[None]:
    """Set through the newer of torch's two ways, which the older does not always see."""
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = word
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


STATES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "as it is": contextlib.nullcontext,
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast to float16": lambda: torch.autocast("cpu", torch.float16),
    "autocast, no cache": lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    "float64": lambda: within({"default dtype": torch.float64}),
    "precision": lambda: within({"precision": "medium"}),
    "precision of one backend": lambda: precision_of_mkldnn("bf16"),
    "deterministic": lambda: within({"deterministic": "error"}),
    "warns of the undeterministic": lambda: within({"deterministic": "warn"}),
    "two threads": lambda: within({"threads": 2}),
    "new tensors on the CPU": lambda: torch.device("cpu"),
    "new tensors on another device": lambda: torch.device("meta"),
    "new tensors on the second": lambda: torch.device("meta", 1),
}


def test_a_receiver_whose_fields_may_be_tensors_is_never_signed() -> None:
    """Each time it is asked; and one that becomes such is not signed any more."""

    @dataclasses.dataclass
    class Holds:
        x: Any = 1

    class Bare:
        """No dataclass, at first."""

    assert [pack(Holds(), receiver=True) for _ in range(3)] == [None] * 3
    assert all(pack(Bare(), receiver=True) is not None for _ in range(3))
    Bare.__dataclass_fields__ = {}  # type: ignore[attr-defined]
    assert pack(Bare(), receiver=True) is None


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_known_again_and_told_from_all_others(name: str) -> None:
    """The state around the call stands in what C makes of it, as it stands in the key."""
    x = sized(2)
    for _ in range(2):  # the second round counts: torch restores some defaults as another word for the same
        calls = []
        for enter in STATES.values():
            with enter():
                calls.append((key(x), pack(x)))
    with STATES[name]():
        made = (key(x), pack(x))
    assert made[1] is not None
    assert sum(packed == made[1] for _, packed in calls) == sum(one == made[0] for one, _ in calls) == 1


def test_c_asks_all_that_python_asks() -> None:
    """A question that is new in `key.ambient` must be put by C too, or C would not see what it is about."""
    asked = {id(part) for value in native._state().values() for part in flat(value)}
    inside = {"_default_device", "autocast", "_determinism"}  # functions of keys itself, tested above by what they see
    names = set(keys.ambient.__code__.co_names) & set(vars(keys)) - inside
    assert len(names) > 15
    assert [name for name in names if not ({id(vars(keys)[name]), id(vars_of(vars(keys)[name]))} & asked)] == []


def flat(value: Any) -> Iterator[Any]:
    """A value, and what stands in it where it is a tuple."""
    yield value
    for part in value if isinstance(value, tuple) else ():
        yield from flat(part)


def vars_of(value: Any) -> Any:
    """The names of a module, which C reads as they are; else None."""
    return vars(value) if isinstance(value, ModuleType) else None


@contextlib.contextmanager
def global_hook() -> Iterator[None]:
    """A hook on every module."""
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(handle.remove)
        yield


def test_torch_is_not_asked_at_each_call_for_what_it_does_not_show() -> None:
    """Of a sparse tensor it makes an error, which takes hundreds of times as long; others are shown as before."""
    sparse, dense = torch.ones(4, 4).to_sparse(), torch.ones(4, 4)
    shown, took_s = pack(dense), list[float]()
    for _ in range(1000):
        began_s = time.perf_counter()
        assert pack(sparse) is None
        took_s.append(time.perf_counter() - began_s)
    assert statistics.median(took_s) < max(took_s) / 10
    assert shown is not None
    assert pack(dense) == shown


class OtherContext(torch.utils._device.DeviceContext):
    """Whatever else it does."""


@contextlib.contextmanager
def two_devices() -> Iterator[None]:
    """One within the other, of which one would be seen."""
    with torch.device("meta"), torch.device("cpu"):
        yield


@pytest.mark.parametrize(
    "enter",
    [
        two_devices,
        lambda: OtherContext("cpu"),
        lambda: torch.overrides.TorchFunctionMode(),
        lambda: torch.utils._python_dispatch.TorchDispatchMode(),
        lambda: torch.autograd.graph.save_on_cpu(),
        lambda: torch.autograd.forward_ad.dual_level(),
        lambda: torch.autograd.set_detect_anomaly(True),
        global_hook,
    ],
)
def test_what_is_rare_or_a_bypass_is_left_to_python(enter: Callable[[], Any]) -> None:
    """C does not judge a call that something watches; afterwards it does again."""
    x = sized(2)
    with enter():
        assert pack(x) is None
    assert pack(x) is not None


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")  # of one category up to torch 2.13, of another in 2.15
def test_a_call_inside_a_transform_or_a_trace_is_left_to_python() -> None:
    """Neither the tracer's nor vmap's tensors are packed."""
    seen: list[Any] = []

    def look(x: Tensor) -> Tensor:
        seen.append(pack(sized(2)))
        return x * 1

    torch.func.vmap(look)(sized(2, 2))
    torch.jit.trace(look, sized(2), check_trace=False)
    assert seen == [None, None]


class Sub(Tensor):
    """A tensor of another type."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: sized(2).as_subclass(Sub),
        lambda: sized(2).to_sparse(),
        lambda: torch.empty(2, device="meta"),
        lambda: torch._to_functional_tensor(sized(2)),
        lambda: torch.quantize_per_tensor(sized(2), 1.0, 0, torch.quint8),
        lambda: torch.nested.nested_tensor([sized(2)]),
        lambda: object(),
        lambda: {1, 2},
        lambda: range(3),
        lambda: [].append,
        lambda: [object()],
        lambda: {"a": object()},
        lambda: Choice("plain", "only"),
    ],
)
def test_what_c_does_not_know_is_left_to_python(make: Callable[[], Any]) -> None:
    """Nothing is guessed, nothing raises, and no error is left behind."""
    with contextlib.suppress(UserWarning):  # torch warns of prototypes
        value = make()
        assert pack(value) is None
        assert pack(sized(2), [value]) is None


@pytest.mark.parametrize("flag", [None, "no number"])
def test_a_flag_that_c_cannot_read_leaves_every_call_to_python(monkeypatch: pytest.MonkeyPatch, flag: Any) -> None:
    """A flag of torch's that is gone or has become something else is taken for set."""
    assert pack(sized(2)) is not None
    if flag is None:
        monkeypatch.delattr(torch.compiler, "_is_compiling_flag")
    else:
        monkeypatch.setattr(torch.compiler, "_is_compiling_flag", flag)
    assert pack(sized(2)) is None


@pytest.mark.parametrize("offset", [0, 4, 8000])
def test_a_freed_storage_is_left_to_python(offset: int) -> None:
    """A tensor without memory is a bypass, and no tensor with memory packs as it does; its place may look like one."""
    x = sized(9999)[offset : offset + 4]
    assert pack(x) is not None
    x.untyped_storage().resize_(0)
    assert pack(x) is None
    assert isinstance(key(x), str)


@pytest.mark.parametrize("place", [0, 4])
def test_a_tensor_low_in_memory_packs_as_any_other(place: int) -> None:
    """With torch's C shim and without."""
    low, usual = low_tensor(64)[place : place + 4], sized(64)[place : place + 4]
    assert pack(low) == pack(usual) is not None
    with without_shim():
        assert pack(low) == pack(usual) is not None


@pytest.mark.parametrize("make", [lambda z: z.conj(), lambda z: z.conj().imag, lambda z: z.imag, lambda z: z.real])
def test_a_lazy_view_never_packs_as_memory_does(make: Callable[[Tensor], Tensor]) -> None:
    """What has a conj or neg bit is told from the tensor of the same layout without one."""
    view = make(torch.zeros(4, dtype=torch.complex64))
    offset = view.data_ptr() % 16 // view.element_size()
    other = torch.zeros(64, dtype=view.dtype)[offset:].as_strided(view.shape, view.stride())
    assert (pack(view) == pack(other)) == (not view.is_conj() and not view.is_neg())


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_dtype_is_told_from_all_others() -> None:
    """Tensors of equal layout pack alike only if their dtypes are one."""
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    packed = []
    for dtype in dtypes:
        with contextlib.suppress(RuntimeError, NotImplementedError):
            packed.append(pack(torch.empty(4, dtype=dtype)))
    judged = [one for one in packed if one is not None]
    assert len(set(judged)) == len(judged) >= 15


def test_one_tensor_in_two_places_is_no_two_tensors() -> None:
    """The same object counts, also inside containers and keywords; equal None and numbers do not."""
    x, y = sized(2), sized(2)
    for one, other in [((x, x), (x, y)), (([x], x), ([x], y)), (({"a": x}, [x]), ({"a": x}, [y]))]:
        assert pack(*one) != pack(*other)
        assert key(*one) != key(*other)
    assert pack(x, a=x) != pack(x, a=y)
    assert pack(x, y) == pack(y, x)


def test_overlap_counts_where_it_is_asked_for() -> None:
    """How far apart two arguments begin that share memory, and nothing of those that do not."""
    near, far = (BASE[:8], BASE[4:12]), (BASE[:8], BASE[8:16])
    apart = (sized(16)[:8], sized(16)[8:])
    assert pack(*near) == pack(*far) == pack(*apart)
    assert pack(*near, overlap=True) != pack(*far, overlap=True) == pack(*apart, overlap=True)
    assert pack(BASE[:8], BASE[4:12:2], overlap=True) != pack(BASE[:8], BASE[::2][:4], overlap=True)


class Plain:
    """A receiver."""


def test_a_receiver_counts_by_its_type() -> None:
    """Two instances are one call; two types, or an argument in the receiver's place, are two."""
    x = sized(2)
    assert pack(Plain(), x, receiver=True) == pack(Plain(), x, receiver=True)
    assert pack(Plain(), x, receiver=True) != pack(Module(), x, receiver=True)
    assert pack(Module(), x, receiver=True) != pack(Module(), x)


@pytest.mark.parametrize("receiver", [sized(2), [1], (1,), {}, Choice("plain", "only")])
def test_a_receiver_that_may_hold_tensors_is_left_to_python(receiver: Any) -> None:
    """What is found inside it is no business of C."""
    assert pack(receiver, sized(2), receiver=True) is None


@pytest.mark.parametrize(
    "args",
    [
        tuple(range(600)),
        tuple(str(i) for i in range(40)),
        tuple(sized(1) for _ in range(70)),
        (sized(*[1] * 64), *[sized(*[1] * 64)] * 4),
    ],
)
def test_a_call_too_large_for_c_is_left_to_python(args: tuple[Any, ...]) -> None:
    """Its room is fixed; a call that does not fit is not judged."""
    assert pack(*args) is None


def test_a_list_that_holds_itself_is_left_to_python() -> None:
    """And so is one that is nested deeply."""
    endless: list[Any] = []
    endless.append(endless)
    assert pack(endless) is None


def test_the_dispatch_keys_are_read_or_asked_for_to_the_same_answer() -> None:
    """Where the place of the set is not known, C asks torch; calls pack alike either way, and by torch's C shim."""
    calls = [make() for make in VALUES.values()]
    module = c_module()
    assert module.calibrate(native._samples())
    read = [pack(value) for value in calls]
    assert [pack(value) for value in calls] == read
    try:
        assert not module.calibrate([])
        assert [pack(value) for value in calls] == read
    finally:
        assert module.calibrate(native._samples())


def test_a_place_that_does_not_hold_is_not_taken() -> None:
    """One tensor whose set stands nowhere in it is enough to read no set by its place."""
    module, samples = c_module(), native._samples()
    t, keyset, address = samples[-1]
    try:
        assert not module.calibrate([*samples, (t, keyset ^ (1 << 40), address)])
        assert pack(t) is not None
    finally:
        assert module.calibrate(samples)


@contextlib.contextmanager
def without_shim() -> Iterator[None]:
    """Only the exchange API is asked inside; afterwards nothing has been compared yet."""
    module = c_module()
    assert not module.calibrate([])
    try:
        yield
    finally:
        assert module.calibrate(native._samples())


BY_SHIM = sys.platform == "linux"


@pytest.mark.skipif(not BY_SHIM, reason="torch's C shim is asked on Linux alone")
def test_tensors_are_looked_at_by_the_shim_once_both_have_shown_one_alike() -> None:
    """Of each dispatch-key set one is compared; one without elements says nothing."""
    with without_shim():
        pack(BASE)
        assert c_module().asks_shim() == 0
    assert pack(BASE[:0]) is not None
    assert c_module().asks_shim() == 0
    assert pack(BASE) == pack(BASE)
    assert c_module().asks_shim() == 1
    inference = VALUES["inference"]()
    assert pack(inference) == pack(inference)
    assert c_module().asks_shim() == 2


def test_tensors_are_compared_by_memory_where_that_tells_them_apart() -> None:
    """It does of this torch; two that are alike, one that is no exact tensor, or no known place: then it does not."""
    module, unlike = c_module(), native._unlike()
    try:
        # Where torch has left the space between two fields as it was, even tensors that are alike may be told apart.
        alike = ([*native._unlike(), torch.as_strided(torch.empty(64), (2,) * 5, (1,) * 5)] for _ in range(8))
        assert not all(map(module.compare_memory, alike))
        assert not module.compare_memory([*unlike, torch.nn.Parameter(torch.empty(2))])
        with pytest.raises(TypeError, match="a list of tensors"):
            module.compare_memory([])
        assert not module.calibrate([])
        assert not module.compare_memory(unlike)
    finally:
        assert module.calibrate(native._samples())
        assert module.compare_memory(unlike) == BY_SHIM


@given(
    sizes=st.lists(st.integers(0, 4), max_size=4),
    order=st.randoms(use_true_random=False),
    offset=st.integers(0, 5),
    step=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.int64, torch.int8, torch.bool, torch.complex128]),
)
def test_the_shim_and_the_exchange_api_show_the_same(
    sizes: list[int], order: Any, offset: int, step: int, dtype: torch.dtype
) -> None:
    """For any sizes, strides, place in the storage and dtype."""
    base = torch.zeros(offset + step * 4**4 + 1, dtype=dtype)
    axes = list(range(len(sizes)))
    order.shuffle(axes)
    x = base[offset::step][: 4 ** len(sizes)].view([4] * len(sizes)).permute(axes)
    x = x[tuple(slice(size) for size in sizes)]
    shown = [pack(x), pack(x)]
    with without_shim():
        assert [pack(x), pack(x)] == shown


def unusual() -> dict[str, Tensor]:
    """Tensors of which the shim has no answer to some question."""
    freed = torch.zeros(9)
    freed.untyped_storage().resize_(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that some are experimental
        return {
            "freed": freed,
            "sparse": torch.eye(3).to_sparse(),
            "compressed": torch.eye(3).to_sparse_csr(),
            "meta": torch.empty(3, device="meta"),
            "mkldnn": torch.zeros(3, 3).to_mkldnn(),
            "nested": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
            "conjugated": torch.zeros(3, dtype=torch.complex64).conj(),
            "negated": torch.zeros(3, dtype=torch.complex64).conj().imag,
            "without elements": torch.empty(0, 3),
        }


def test_unusual_tensors_are_judged_alike_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """The shim prints what it cannot answer, so it is not asked."""
    kinds = unusual()
    pack(BASE)
    shown = [pack(x) for x in kinds.values()], [pack(x) for x in kinds.values()]
    assert shown[0] == shown[1]
    with without_shim():
        assert [pack(x) for x in kinds.values()] == shown[0]
    assert capfd.readouterr().err == ""


def test_a_tensor_that_shares_its_memory_until_one_is_written_gets_its_own() -> None:
    """A kernel may write to the address that it is given."""
    pack(BASE)
    for shim in (True, False):
        with contextlib.nullcontext() if shim else without_shim():
            lazy = torch._lazy_clone(BASE)  # type: ignore[attr-defined]  # copy on write, which has no public name
            assert pack(lazy) is not None
            assert not torch._C._is_cow_tensor(lazy)  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------------- one table


def counters(dispatcher: Any) -> tuple[Any, ...]:
    """What a dispatcher counted."""
    info = dispatcher.cache_info()
    return info.hits, info.misses, info.bypasses, info.evictions, info.currsize, info.bypasses_by_reason


@pytest.mark.filterwarnings("ignore")  # torch says some things once: to the road that comes first
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_both_roads_decide_and_answer_alike(name: str) -> None:
    """Over generated calls: the same hit, miss or bypass for each, the same answers and traces; small tables evict."""
    function, rng = FUNCTIONS[name], random.Random(name)
    dispatchers = {}
    for which in PATHS:
        with taking(which):
            dispatchers[which] = baking(function.fn, function.writes, maxsize=8)
    pool = [rng.getrandbits(32) for _ in range(12)]
    for _ in range(60):
        made, values = make_call(function, rng.choice(pool)), rng.getrandbits(16)
        python, c = (observe(dispatchers[which], made, values) for which in PATHS)
        assert mismatch(python, c) is None
        assert counters(dispatchers["python"]) == counters(dispatchers["c"])
    assert dispatchers["c"].core.fast_path.held <= 8


@given(turns=st.lists(st.integers(0, 5), max_size=60), maxsize=st.integers(1, 5))
def test_what_leaves_is_the_least_recently_used_on_both_roads(turns: list[int], maxsize: int) -> None:
    """Whichever road took the hits, the table holds what a plain LRU would."""
    shapes = [sized(1 + i) for i in range(6)]
    for which in PATHS:
        with taking(which):
            dispatcher = plain_only(lambda x: x + 1, maxsize=maxsize)
        model: list[int] = []
        for turn in turns:
            dispatcher(shapes[turn])
            model = [*[i for i in model if i != turn], turn][-maxsize:]
            held = {choice.sizes["x.0"] - 1 for choice in dispatcher.choices()}
            assert held == set(model)
        if which == "c":
            assert dispatcher.core.fast_path.held <= maxsize


def test_a_hit_in_c_keeps_a_build_in_use(c_path: None) -> None:
    """The least recently used build is the one that no hit used, whichever road the hits took."""
    dispatcher = plain_only(double)
    x, y = sized(2), sized(3)
    table = dispatcher.core.table
    warmed(dispatcher, x)
    warmed(dispatcher, y)
    used = [slot.used for slot in table._slots.values()]
    dispatcher(x)
    assert [slot.used > before for slot, before in zip(table._slots.values(), used, strict=True)] == [True, False]


def test_the_third_call_is_cs(c_path: None) -> None:
    """A miss, a hit by the Python path that links, and from then on C alone."""
    dispatcher, x = plain_only(double), sized(2)
    asked: list[Any] = []
    in_python = dispatcher.core.backend.sign
    dispatcher.core.backend.sign = lambda *call: asked.append(call) or in_python(*call)
    seen = []
    for _ in range(4):
        asked.clear()
        dispatcher(x)
        seen.append(bool(asked))
    assert seen == [True, True, False, False]
    assert dispatcher.cache_info().hits == 3


def test_clearing_and_forgetting_reach_c(c_path: None) -> None:
    """After either, the next call is a miss; cleared counters start at nought."""
    dispatcher, x = plain_only(double), sized(2)
    for forget in (dispatcher.cache_clear, dispatcher.core.table.forget_choices):
        warmed(dispatcher, x)
        before = dispatcher.cache_info().misses
        forget()
        assert not linked(dispatcher, x)
        dispatcher(x)
        assert dispatcher.cache_info().misses == (1 if forget == dispatcher.cache_clear else before + 1)
    dispatcher.cache_clear()
    warmed(dispatcher, x)
    assert dispatcher.cache_info().hits == 1


def test_a_lost_build_is_seen_at_once(fast_path: str) -> None:
    """What the table takes from an entry, C does not run."""
    dispatcher, x = plain_only(double), sized(2)
    for _ in range(3):
        dispatcher(x)
    (_, entry), ran = dispatcher.core.table.entries()[0], []
    entry.run = lambda x: ran.append(1) or x
    dispatcher(x)
    entry.run = None
    dispatcher(x)
    assert ran == [1]
    assert dispatcher.cache_info().misses == 2


def entry_of(dispatcher: Any) -> Entry:
    """The only entry that a dispatcher holds."""
    ((_, entry),) = dispatcher.core.table.entries()
    return entry


def test_the_guards_are_asked_with_the_call_on_every_hit(fast_path: str) -> None:
    """`check` gets the call in normal form; where it fails the call is a miss, and an entry for any state serves."""
    dispatcher, x = plain_only(lambda x, *, n=1: x * n), sized(2)
    for _ in range(3):
        dispatcher(x, n=3)
    entry, asked, verdict = entry_of(dispatcher), [], [True]
    entry.check = lambda args, kwargs: asked.append((args, kwargs)) or verdict[0]
    dispatcher(x, n=3)
    assert len(asked) == 1
    assert asked[0][0][0] is x
    assert asked[0][1] == {"n": 3}
    verdict[0] = False
    dispatcher(x, n=3)
    assert dispatcher.cache_info().misses == 2
    before = len(asked)
    dispatcher(x, n=3)
    assert len(asked) == before + 1  # which stands behind those for one state
    assert dispatcher.cache_info().misses == 2


@pytest.mark.parametrize("error", [KeyError("a guard"), KeyboardInterrupt()])
def test_where_a_guard_raises_plain_answers(fast_path: str, error: BaseException) -> None:
    """On either road, counted and told; what is no Exception passes."""
    dispatcher, x = plain_only(double), sized(2)
    for _ in range(3):
        dispatcher(x)

    def check(args: Any, kwargs: Any) -> bool:
        raise error

    entry_of(dispatcher).check = check
    if not isinstance(error, Exception):
        with pytest.raises(KeyboardInterrupt):
            dispatcher(x)
        return
    with pytest.warns(UserWarning, match="looking it up failed for a call:\n  - KeyError: 'a guard'"):
        assert torch.equal(dispatcher(x), double(x))
    assert torch.equal(dispatcher(x), double(x))
    assert dispatcher.cache_info().bypasses == 2


def failing(error: BaseException) -> Callable[..., Any]:
    """A build that raises."""

    def run(*args: Any, **kwargs: Any) -> Any:
        raise error

    return run


def test_plain_answers_where_a_build_that_writes_nothing_raises(fast_path: str) -> None:
    """And while it runs, what the build raised is the exception being handled; afterwards nothing is."""
    handled: list[Any] = []
    dispatcher, x = plain_only(lambda x: handled.append(sys.exc_info()[1]) or x + 1), sized(2)
    for _ in range(3):
        dispatcher(x)
    entry, error = entry_of(dispatcher), ValueError("the build")
    entry.run, entry.retry = failing(error), True
    assert torch.equal(dispatcher(x), x + 1)
    assert handled[-1] is error
    assert sys.exc_info()[1] is None


def test_what_a_build_raised_is_the_reason_that_plain_answered(fast_path: str) -> None:
    """Counted as often as it happens."""
    dispatcher, x = plain_only(double), sized(2)
    for _ in range(3):
        dispatcher(x)
    entry = entry_of(dispatcher)
    entry.run, entry.retry = failing(ValueError("the build")), True
    for _ in range(2):
        dispatcher(x)
    assert dispatcher.cache_info().bypasses_by_reason == {"a build raised ValueError: the build": 2}


def test_what_plain_raises_after_a_build_is_the_error(fast_path: str) -> None:
    """With what the build raised as its context."""
    raising = [False]

    def fn(x: Tensor) -> Tensor:
        if raising[0]:
            raise RuntimeError("plain")
        return x + 1

    dispatcher, x = plain_only(fn), sized(2)
    for _ in range(3):
        dispatcher(x)
    entry = entry_of(dispatcher)
    entry.run, entry.retry, raising[0] = failing(ValueError("the build")), True, True
    with pytest.raises(RuntimeError, match="plain") as caught:
        dispatcher(x)
    assert isinstance(caught.value.__context__, ValueError)
    assert dispatcher.cache_info().bypasses == 0


@pytest.mark.parametrize(("retry", "error"), [(False, ValueError("x")), (True, KeyboardInterrupt())])
def test_what_may_not_be_retried_is_raised(fast_path: str, retry: bool, error: BaseException) -> None:
    """A build that writes, and what is no Exception."""
    dispatcher, x = plain_only(double), sized(2)
    for _ in range(3):
        dispatcher(x)
    entry = entry_of(dispatcher)
    entry.run, entry.retry = failing(error), retry
    with pytest.raises(type(error)):
        dispatcher(x)


def test_off_is_off(fast_path: str) -> None:
    """In mode off nothing is counted or looked up; afterwards hits are hits again."""
    dispatcher, x = plain_only(double), sized(2)
    for _ in range(3):
        dispatcher(x)
    before = dispatcher.cache_info()
    with set_mode("off"):
        dispatcher(x)
        assert dispatcher.cache_info() == before
    dispatcher(x)
    assert dispatcher.cache_info().hits == before.hits + 1


def test_a_table_cleared_from_inside_a_call_is_no_danger(fast_path: str) -> None:
    """Guards and builds may publish, clear, forget or call again: the entry in hand still runs."""
    dispatcher, x = plain_only(double), sized(2)
    table = dispatcher.core.table

    def publish() -> None:
        key = dispatcher.core.backend.key((x,), {})
        table.publish(key, Entry(double, None, Choice("plain", "only")))

    inside = [
        publish,
        dispatcher.cache_clear,
        dispatcher.core.table.forget_choices,
        lambda: dispatcher(sized(5)),
        gc.collect,
    ]
    for act in inside:
        dispatcher.cache_clear()
        for _ in range(3):
            dispatcher(x)
        entry = next(e for _, e in dispatcher.core.table.entries())
        entry.check = lambda args, kwargs, act=act: (act(), True)[1]
        entry.run = lambda x, act=act: (act(), x * 3)[1]
        assert torch.equal(dispatcher(x), x * 3)


def test_a_link_of_another_state_is_not_taken(c_path: None) -> None:
    """The call is packed again before it is linked: what changed since its key was made must not be linked to it."""
    dispatcher, x = plain_only(double), sized(2)
    core, seen = dispatcher.core, []
    cache_miss = core.table.insert
    core.table.insert = lambda node, *rest: (seen.append(node), cache_miss(node, *rest))[1]
    dispatcher(x)
    dispatcher(x)
    core.table.forget_choices()
    dispatcher(x)
    made = core.backend.key((x,), {})
    with torch.no_grad():
        cache_miss(seen[0], made, (x,), {}, False)
        assert not linked(dispatcher, x)
    assert not linked(dispatcher, x)
    cache_miss(seen[0], made, (x,), {}, False)
    assert linked(dispatcher, x)


def test_links_of_keys_without_overlap_go_when_keys_get_it(c_path: None) -> None:
    """A table whose keys hold overlaps never serves a call by a link that does not."""
    dispatcher = plain_only(lambda x, y: x.add_(y) + y)
    near, apart = (BASE[:8].clone(), sized(8)), sized(16)
    with torch.no_grad():
        warmed(dispatcher, *near)
        dispatcher.core.backend.overlaps = True
        dispatcher.core.table.forget_choices()
        assert not linked(dispatcher, *near)
        dispatcher(*near)  # the link that C makes of this call is still without overlap, and is not taken
        warmed(dispatcher, *near)
        assert not linked(dispatcher, apart[:8], apart[4:12])


def test_a_change_of_the_keys_form_drops_what_was_linked() -> None:
    """Links made without overlap are gone once one is made with it."""
    small, x = Small(4), sized(2)
    for word in ("a", "b"):
        for _ in range(3):
            small.fast_path((x, word), {})
    assert small.fast_path.held == 2
    small.overlap = True
    for _ in range(3):
        small.fast_path((x, "c"), {})
    assert small.fast_path.held == 1


def mixed(words: tuple[int, ...], state: int) -> int:
    """The C module's hash of further words."""
    for word in words:
        state = ((state ^ word) * 0x9E3779B97F4A7C15) % 2**64
        state ^= state >> 32
    return state


def test_equal_hashes_are_not_enough(c_path: None) -> None:
    """Two calls whose packed words hash alike are told apart: so are equal objects from equally hashed ones."""
    dispatcher, x = plain_only(lambda x, a, b: x + a), sized(2)
    words = struct.unpack(f"<{len(pack(x, 3, 4)[0]) // 8}Q", pack(x, 3, 4)[0])
    *kernel_object, _, tag, _ = words
    before = mixed(tuple(kernel_object), len(words))
    meant, found = mixed((3, tag), before) ^ 4, mixed((5, tag), before)
    other = struct.unpack("<q", struct.pack("<Q", meant ^ found))[0]
    assert mixed((5, tag, other % 2**64), before) == mixed((3, tag, 4), before)
    warmed(dispatcher, x, 3, 4)
    assert not linked(dispatcher, x, 5, other)
    large = 2**70
    assert hash(large) == hash(large + 2**61 - 1)
    warmed(dispatcher, x, 3, large)
    assert not linked(dispatcher, x, 3, large + 2**61 - 1)


def test_what_is_evicted_goes_at_once() -> None:
    """Nothing waits for the garbage collector: a link does not keep its slot, nor a slot its link."""
    small, x = Small(1), sized(2)
    for _ in range(3):
        small.fast_path((x, "a"), {})
    run = weakref.ref(small.table.entries()[0][1].run)
    gc.disable()
    try:
        small.fast_path((x, "b"), {})
        assert run() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("count", [1, 7, 300])
def test_links_come_and_go_in_any_order(c_path: None, count: int) -> None:
    """Open addressing keeps every link findable, and none that was taken out."""
    dispatcher, rng = plain_only(double), random.Random(count)
    calls = [sized(1 + i) for i in range(count)]
    for x in calls:
        warmed(dispatcher, x)
    slots = dict(zip(range(count), list(dispatcher.core.table._slots.values()), strict=True))
    gone: set[int] = set()
    for i in rng.sample(range(count), count):
        dispatcher.core.fast_path.remove(slots[i].node)
        gone.add(i)
        look = rng.sample(range(count), min(count, 10))
        assert [linked(dispatcher, calls[j]) for j in look] == [j not in gone for j in look]
    assert dispatcher.core.fast_path.held == 0


def test_methods_keywords_and_modules_are_cs_too(c_path: None) -> None:
    """Receivers count by type, keyword-only arguments by name and value."""

    class Scaled(Module):
        @shapedispatch(hints=())
        def forward(self, x: Tensor, *, by: float = 2.0) -> Tensor:
            return x * by

    one, other, x = Scaled(), Scaled(), sized(3)
    one.forward(x, by=3.0)
    one.forward(x, by=3.0)
    assert linked(Scaled.forward, other, x, by=3.0)
    assert not linked(Scaled.forward, other, x, by=-3.0)
    assert torch.equal(other.forward(x, by=3.0), x * 3)


# -------------------------------------------------------------------------------------------------- threads and memory


def test_threads_get_right_answers_while_the_table_changes(c_path: None) -> None:
    """Hits, misses, evictions and clearing from several threads at once."""
    dispatcher = plain_only(lambda x: x.sum(), maxsize=6)
    wrong: list[Any] = []
    stop = threading.Event()

    def call(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(1500):
            n = rng.randrange(1, 12)
            if float(dispatcher(sized(n))) != n:
                wrong.append(n)

    def clear() -> None:
        while not stop.is_set():
            dispatcher.core.table.forget_choices()
            dispatcher.cache_info()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    cleaner = threading.Thread(target=clear)
    try:
        for thread in (*threads, cleaner):
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        cleaner.join()
        sys.setswitchinterval(before)
    assert wrong == []


def resident_bytes() -> int:
    """This process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def grown(act: Callable[[], None]) -> tuple[int, int]:
    """Python's and the process's bytes that ``act`` leaves behind the second time."""
    act()
    gc.collect()
    tracemalloc.start()
    try:
        resident, traced = resident_bytes(), tracemalloc.get_traced_memory()[0]
        act()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - traced, resident_bytes() - resident
    finally:
        tracemalloc.stop()


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")


class Small:
    """A table and its road with the least around them: a miss publishes the function itself."""

    def __init__(self, maxsize: int) -> None:
        self.overlap = False
        self.table = Table(maxsize, 1)
        self.fast_path: Any = c_module().FastPath(self.call, double, False)
        self.table.attach(self.fast_path)

    def call(self, args: Any, kwargs: Any, node: Any) -> Any:
        """The Python path."""
        made = keys.key(args, kwargs)
        entry = self.table.find(made, args, kwargs)
        if entry is None:
            self.table.publish(made, Entry(lambda *args, **kwargs: args[0], None, Choice("plain", "only")))
        elif node is not None:
            self.table.insert(node, made, args, kwargs, self.overlap)
        return args[0]


@needs_proc
def test_a_million_hits_leave_nothing() -> None:
    """Memory is flat, and the reference counts of the arguments are as before."""
    small, x, word, number = Small(4), sized(2, 3), "a word", 2**70
    call = ((x, word), {"n": [number, (1.5, None), {"k": word}]})
    for _ in range(3):
        small.fast_path(*call)
    held = [x, word, number, call[0], call[1], call[1]["n"], *small.table.entries()[0]]
    counts = [sys.getrefcount(thing) for thing in held]

    def hits() -> None:
        for _ in itertools.repeat(None, 500_000):
            small.fast_path(*call)

    traced, resident = grown(hits)
    assert traced < 10_000
    assert resident < 1_000_000
    assert [sys.getrefcount(thing) for thing in held] == counts
    assert small.table.info().hits == 1_000_002


@needs_proc
def test_ten_thousand_misses_with_evictions_leave_nothing() -> None:
    """What is evicted is let go, links too; each call comes three times, so that each is linked and hit."""
    small, x, turn = Small(16), sized(2), itertools.count()

    def misses() -> None:
        for _ in range(5_000):
            call = ((x, f"word {next(turn)}", [2**70]), {})
            for _ in range(3):
                small.fast_path(*call)

    traced, resident = grown(misses)
    assert small.table.info().evictions == 10_000 - 16
    assert small.table.info().hits == 20_000
    assert small.fast_path.held == 16
    assert traced < 100_000
    assert resident < 1_000_000


def test_a_dispatcher_is_collected_with_its_road(c_path: None) -> None:
    """FastPath, links and table hold each other; the collector sees through all of them."""

    class Owner:
        @shapedispatch(hints=())
        def method(self, x: Tensor) -> Tensor:
            return x

    collected: list[int] = []

    class Witness:
        def __del__(self) -> None:
            collected.append(1)

    x = sized(2)
    warmed(Owner.method, Owner(), x)
    Owner.witness = Witness()  # type: ignore[attr-defined]
    del Owner
    gc.collect()
    assert collected == [1]


def test_a_road_that_is_being_collected_says_so() -> None:
    """What goes with it may have it called when it is half gone: that is an error, and no crash."""
    said, place = [], []

    def call_what_is_left(_: object) -> None:
        for one in gc.get_objects():
            if id(one) in place:
                with pytest.raises(RuntimeError) as raised:
                    one((1,), {})
                said.append(str(raised.value))

    gc.collect()
    gc.disable()  # or the road may be of another generation than the list, and cleared after it
    try:
        # An array isn't the collector's: it goes when its list is cleared, which is after the road is.
        held: list[Any] = [c_module().FastPath(lambda *call: call, abs), numpy.zeros(1)]
        held.append(held)
        place.append(id(held[0]))
        last = weakref.ref(held[1], call_what_is_left)
        del held
        gc.collect()
    finally:
        gc.enable()
    assert last() is None
    assert said == ["the dispatcher of this path is being collected"]


# ------------------------------------------------------------------------------------------------------------- launches


class Driver:
    """A CUDA driver that runs nothing: it knows one kernel's parameters and notes what it is asked to launch."""

    def __init__(self, *parameters: tuple[int, int]) -> None:
        self.parameters = parameters
        self.launches: list[Any] = []
        self.during: Callable[[], Any] = lambda: None
        self.error = 0
        self.context: int | None = 9000
        sizes, unsigned, pointer = ctypes.POINTER(ctypes.c_size_t), [ctypes.c_uint] * 7, ctypes.c_void_p
        out = ctypes.POINTER(ctypes.c_char_p)
        self._functions = (
            ctypes.CFUNCTYPE(ctypes.c_int, pointer, *unsigned, pointer, ctypes.POINTER(pointer), pointer)(self._launch),
            ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.c_size_t, sizes, sizes)(self._info),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, out)(self._text),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(pointer))(self._stream),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(pointer))(self._context),
        )

    @property
    def addresses(self) -> tuple[int, ...]:
        """As `use_driver` takes them."""
        *others, context = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in self._functions]
        return (*others, 0, context)

    def _launch(self, function: Any, *rest: Any) -> int:
        *sizes, stream, places, _ = rest
        given = [ctypes.string_at(places[i], size) for i, (_, size) in enumerate(self.parameters)]
        self.launches.append((function, tuple(sizes), stream, given))
        self.during()
        return self.error

    def _info(self, function: Any, index: int, offset: Any, size: Any) -> int:
        if index >= len(self.parameters):
            return 1
        offset[0], size[0] = self.parameters[index]
        return 0

    def _text(self, error: int, text: Any) -> int:
        text[0] = b"the driver's words"
        return 0

    def _stream(self, kind: int, device: int, stream: Any) -> int:
        assert kind == 2
        stream[0] = 700 + device
        return 0

    def _context(self, context: Any) -> int:
        context[0] = self.context
        return 0


@pytest.fixture
def driver() -> Iterator[Driver]:
    """A driver whose kernel takes two addresses, an int, a float and eight bytes of scratch."""
    made = Driver((0, 8), (8, 8), (16, 4), (20, 4), (24, 8))
    c_module().use_driver(made.addresses)
    yield made
    c_module().use_driver((0,) * 6)


ADD = (("p", 8, 0), ("p", 8, 2), ("i", 4, 3), ("f", 4, 1), ("0", 8, 0))


def planned(parameters: tuple[Any, ...] = ADD, device: int = 0) -> Any:
    """A plan for the driver's kernel."""
    return c_module().CudaLauncher("add_kernel", 4096, 128, 64, device, parameters)


@pytest.mark.parametrize("number", [3, -1, -(2**31), True])
def test_a_launch_passes_each_parameter_in_its_place(driver: Driver, number: int) -> None:
    """Tensors by their address, numbers in the width that the kernel takes, on the device's current stream."""
    x = sized(8)
    assert planned(device=1)((5, 2), (x[1:], 0.1, x.data_ptr() + 8, number, "not passed")) is True
    ((function, sizes, stream, given),) = driver.launches
    assert (function, sizes, stream) == (4096, (5, 2, 1, 128, 1, 1, 64), 701)
    wanted = struct.pack("<QQifQ", x.data_ptr() + 4, x.data_ptr() + 8, number, 0.1, 0)
    assert b"".join(given) == wanted


def test_every_width_is_passed_whole() -> None:
    """Signed and unsigned, of one to eight bytes, up to their ends; a double is a double, None is no address."""
    kinds = [(kind, size) for kind in "iu" for size in (1, 2, 4, 8)]
    driver = Driver(*[(8 * i, size) for i, (_, size) in enumerate(kinds)], (64, 8), (72, 8))
    parameters = tuple((kind, size, i) for i, (kind, size) in enumerate([*kinds, ("f", 8), ("p", 8)]))
    c_module().use_driver(driver.addresses)
    try:
        run = planned(parameters)
        low = tuple(-(2 ** (8 * size - 1)) if kind == "i" else 0 for kind, size in kinds)
        high = tuple(2 ** (8 * size - (kind == "i")) - 1 for kind, size in kinds)
        for values in (low, high):
            run((1,), (*values, 0.1, None))
            given = driver.launches[-1][3]
            assert given == [
                struct.pack(f"<{form}", v) for form, v in zip("bhiqBHIQdQ", (*values, 0.1, 0), strict=True)
            ]
        for i, (one, other) in enumerate(zip(low, high, strict=True)):
            for outside in (one - 1, other + 1):
                with pytest.raises((OverflowError, TypeError)):
                    run((1,), (*low[:i], outside, *low[i + 1 :], 0.1, None))
        assert len(driver.launches) == 2
    finally:
        c_module().use_driver((0,) * 6)


def test_what_the_driver_refuses_names_kernel_and_call(driver: Driver) -> None:
    """An exception with the grid, the arguments and the driver's own words."""
    driver.error = 700
    with pytest.raises(RuntimeError) as caught:
        planned()((4, 2), (16, 1.5, 32, 3))
    for part in ("add_kernel", "(4, 2)", "(16, 1.5, 32, 3)", "128", "64", "700", "the driver's words"):
        assert part in str(caught.value)


@pytest.mark.parametrize("current", [None, 9001])
def test_a_plan_launches_on_the_device_that_it_was_made_on(driver: Driver, current: int | None) -> None:
    """Where another is current, or none since this thread has not used CUDA, the caller takes Triton's own launch."""
    run = planned()
    driver.context = current
    assert run((1,), (0, 1.0, 0, 3)) is False
    assert driver.launches == []
    driver.context = 9000
    assert run((1,), (0, 1.0, 0, 3)) is True


def test_without_a_current_device_there_is_no_plan(driver: Driver) -> None:
    """It would be of none."""
    driver.context = None
    with pytest.raises(RuntimeError, match="no device is current to launch add_kernel on"):
        planned()


def test_the_gil_is_free_while_the_driver_works(driver: Driver) -> None:
    """Another thread runs during a launch."""
    entered, left = threading.Event(), threading.Event()
    driver.during = lambda: (entered.set(), left.wait(10))
    run = planned()
    thread = threading.Thread(target=run, args=((1,), (0, 1.0, 0, 3)))
    thread.start()
    assert entered.wait(10)
    left.set()
    thread.join()
    assert len(driver.launches) == 1


def test_a_kernel_whose_parameters_are_otherwise_has_no_plan(driver: Driver) -> None:
    """In number or in size, the driver's word counts."""
    planned()
    with pytest.raises(ValueError, match="parameter 2 of add_kernel takes 4 bytes, and 8"):
        planned((*ADD[:2], ("i", 8, 3), *ADD[3:]))
    with pytest.raises(ValueError, match="more than the 4 parameters"):
        planned(ADD[:4])
    with pytest.raises(ValueError, match="parameter 5 of add_kernel"):
        planned((*ADD, ("p", 8, 0)))


@pytest.mark.parametrize("wrong", [("x", 8, 0), ("p", 4, 0), ("f", 2, 0), ("i", 3, 0), ("i", 4, -1)])
def test_a_parameter_that_cannot_be_passed_is_refused(driver: Driver, wrong: tuple[str, int, int]) -> None:
    """Kinds and sizes that C does not know."""
    with pytest.raises(ValueError, match="is no parameter"):
        planned((wrong,))


def test_without_a_driver_there_is_no_plan() -> None:
    """And no way to launch."""
    c_module().use_driver((0,) * 6)
    with pytest.raises(RuntimeError, match="no driver to launch add_kernel"):
        planned()


def test_why_there_is_no_plan_is_said(c_path: None, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own door gives a sentence where the driver is missing or disagrees, and else a plan."""
    monkeypatch.setattr(native, "_no_driver", lambda module: None)
    assert "more than the 4" in str(native.cuda_launcher("add_kernel", 4096, 128, 0, 0, ADD[:4]))
    assert callable(native.cuda_launcher("add_kernel", 4096, 128, 0, 0, ADD))
    monkeypatch.setattr(native, "_no_driver", lambda module: "there is no CUDA driver")
    assert native.cuda_launcher("add_kernel", 4096, 128, 0, 0, ADD) == "there is no CUDA driver"


class Answer:
    """What a launch returns: as Triton's, an object that others may hang something on."""

    plan: Any = None


@pytest.mark.parametrize("by", ["answer", "filled"])
def test_a_plan_is_collected_with_what_it_holds(driver: Driver, by: str) -> None:
    """What a launch returns and what a config fills in are the user's, and may lead back to the plan."""
    answer, filled = Answer(), {}
    plan = c_module().CudaLauncher("add_kernel", 4096, 128, 64, 0, ADD, None, filled, answer)
    if by == "answer":
        answer.plan = plan
    else:
        filled.update(plan=plan, kept=answer)
    gone = weakref.ref(answer)
    del plan, answer, filled
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("grid", [(), (1, 1, 1, 1), (-1,), ("1",), [1], None, (2**31,)])
def test_a_grid_that_is_none_is_refused(driver: Driver, grid: Any) -> None:
    """Before anything is launched."""
    with pytest.raises((TypeError, ValueError)):
        planned()(grid, (0, 1.0, 0, 0))
    assert driver.launches == []


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ((0, 1.0, 0), TypeError),
        ((0, 1.0, 0, 2**31), OverflowError),
        ((0, 1.0, 0, "3"), TypeError),
        ((0, "1", 0, 3), TypeError),
        ((-1, 1.0, 0, 3), OverflowError),
        (("x", 1.0, 0, 3), TypeError),
        ((sized(2).to_sparse(), 1.0, 0, 3), RuntimeError),
    ],
)
def test_values_that_do_not_fit_are_refused(driver: Driver, values: tuple[Any, ...], error: type[Exception]) -> None:
    """Nothing is cut off, and nothing is launched."""
    with pytest.raises(error):
        planned()((1,), values)
    assert driver.launches == []


def test_an_empty_grid_launches_nothing(driver: Driver) -> None:
    """As Triton has it."""
    assert planned()((4, 0), (0, 1.0, 0, 3)) is True
    assert driver.launches == []


# ------------------------------------------------------------------------------------------------------ where it is not


def test_without_the_module_the_package_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python path is taken, and the reason names the module."""
    monkeypatch.setattr(native, "_loaded", native._loaded.__wrapped__)
    monkeypatch.setattr(native, "__package__", "shapedispatch.backend")
    assert not native.hotpath_available
    assert "_native" in native.hotpath_reason
    assert plain_only(double).core.fast_path is None


def test_what_the_last_decoration_found_is_not_looked_for_again(c_path: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each config that is loaded asks, and names are many; where C is not in use there is a reason to be told."""
    plain_only(double)
    looks = private.why_off
    monkeypatch.setattr(private, "why_off", lambda feature: pytest.fail("it was looked for again"))
    assert "SHAPEDISPATCH_HOTPATH" not in str(native.cuda_launcher("k", 0, 32, 0, 0, []))
    monkeypatch.setattr(private, "why_off", looks)
    monkeypatch.setenv("SHAPEDISPATCH_HOTPATH", "false")
    reset()
    plain_only(double)
    assert "SHAPEDISPATCH_HOTPATH" in str(native.cuda_launcher("k", 0, 32, 0, 0, []))


def test_the_environment_turns_it_off(c_path: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """SHAPEDISPATCH_HOTPATH=false, and the reason says that it was the environment."""
    assert native.hotpath_available
    assert native.hotpath_reason is None
    monkeypatch.setenv("SHAPEDISPATCH_HOTPATH", "false")
    reset()
    assert not native.hotpath_available
    assert "SHAPEDISPATCH_HOTPATH" in native.hotpath_reason
    assert plain_only(double).core.fast_path is None


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("requires_grad", property(lambda t: False), "requires_grad"),
        ("exchange", object(), "torch"),
        ("Tensor", "Tensor", "Tensor"),
        ("keyed", None, "keyed"),
        ("hook_tables", [], "hook_tables"),
        ("compiler_names", None, "compiler_names"),
        ("no_modes", (torch.is_grad_enabled,), "no_modes"),
        ("no_modes", ((torch.is_grad_enabled,),) * 17, "no_modes"),
    ],
)
def test_a_torch_that_is_otherwise_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any, reason: str
) -> None:
    """What C needs and does not find leaves every call to Python."""
    names = native._names()
    changed = {k: v for k, v in names.items() if k != name} | ({} if value is None else {name: value})
    monkeypatch.setattr(native, "_names", lambda: changed)
    try:
        assert reason in str(native.bind(c_module()))
        assert pack(sized(2)) is None
    finally:
        monkeypatch.undo()
        assert native.bind(c_module()) is None


def test_a_python_without_the_gil_is_refused(tmp_path: Path) -> None:
    """The module relies on the GIL and says so."""
    if sys.version_info >= (3, 13):
        pytest.skip("from 3.13 on the macro changes the layout of objects, so that it cannot be tried here")
    with pytest.raises(ImportError, match="GIL"):
        loaded(compiled(tmp_path, "-DPy_GIL_DISABLED=1"))


SANITIZED = ("-g1", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
SANITIZED_FILES = [
    str(Path(__file__).parent.parent / name) for name in ("hit/test_native.py", "kernels/test_c_launch.py")
]
UNDER_SANITIZERS = (
    "launched_in_c or evaluated_at_every or raises_reaches or cannot_read or joins_a_chain or global_that_has"
    " or older_key or sometimes_is_keyed or recently_used_leaves or does_not_bind or driver_refuses or no_argument_is"
    " or collected_with or without_a_road"
    " or (both_roads and in_place) or any_order or inside_a_call"
    " or argument_is_known or left_to_python or collected or too_large or read_or_asked"
)
LONGER = f"{UNDER_SANITIZERS} or (both_roads and (listed or nested or keyworded)) or threads_get"


@pytest.mark.skipif(library("libasan.so") is None, reason="the compiler here has no address sanitizer")
@pytest.mark.parametrize(
    "tests", [UNDER_SANITIZERS, pytest.param(LONGER, marks=pytest.mark.soak)], ids=["short", "all"]
)
def test_sanitizers_find_nothing(tests: str) -> None:
    """The tests that come and go most, in a process whose module checks each access and each shift."""
    script = f"""
import sys, pytest
from tests import paths
paths.STRICT += {SANITIZED!r}
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *{SANITIZED_FILES!r}, "-k", {tests!r}]))
"""
    # The C++ library beside it, or torch's exceptions are not seen; Python's own allocator would hide freed objects.
    preloaded = {"LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so')}"}
    quiet = {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc", "PYTHONPATH": str(PYPROJECT.parent)}
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, env={**os.environ, **preloaded, **quiet}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]


def test_the_module_is_optional_in_the_build() -> None:
    """Where it cannot be compiled, installation goes on without it."""
    built = tomllib.loads(PYPROJECT.read_text("utf-8"))["tool"]["setuptools"]["ext-modules"]
    headers = sorted(f"shapedispatch/hit/csrc/{file.name}" for file in SOURCE.parent.iterdir() if file != SOURCE)
    assert [sorted(extension.pop("depends")) for extension in built] == [headers]
    assert built == [
        {"name": "shapedispatch.hit._native", "sources": ["shapedispatch/hit/csrc/module.c"], "optional": True}
    ]
