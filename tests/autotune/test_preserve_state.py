from __future__ import annotations

import random
import warnings
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from shapedispatch.autotune import preserve_state as room
from shapedispatch.autotune.preserve_state import bytes_to_copy, copy_call, preserve_state
from shapedispatch.keys.tree import leaves


@pytest.fixture
def state() -> Callable[[], Any]:
    """All random numbers that would be drawn next, asked without drawing."""

    def snapshot() -> Any:
        array = numpy.random.get_state()[1:]
        return torch.get_rng_state().tolist(), random.getstate(), [str(part) for part in array], array[0].tolist()

    return snapshot


def draw() -> None:
    """Move every generator."""
    torch.randn(3), random.random(), random.gauss(0, 1), numpy.random.randn(3)


def test_random_numbers_are_put_back(state: Callable[[], Any]) -> None:
    """Torch's, Python's and numpy's."""
    before = state()
    with preserve_state():
        assert state() == before, "entering draws nothing"
        draw()
        assert state() != before
    assert state() == before


def test_a_generator_among_the_arguments_is_put_back() -> None:
    """A function that draws from its argument draws the same afterwards."""
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state().tolist()
    with preserve_state(([generator],)):
        torch.rand(2, generator=generator)
    assert generator.get_state().tolist() == before


def test_inside_of_another_random_numbers_are_put_back_to_where_that_began(state: Callable[[], Any]) -> None:
    """Each run on copies draws what a real call would draw."""
    before = state()
    with preserve_state():
        random.random(), numpy.random.randn(3)
        with preserve_state():
            draw()
        assert state() == before
        draw()
    assert state() == before


def test_what_another_began_with_is_forgotten_with_it(state: Callable[[], Any]) -> None:
    """The next one puts back what it finds."""
    with preserve_state():
        draw()
    draw()
    after = state()
    with preserve_state(), preserve_state():
        draw()
    assert state() == after


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_random_numbers_are_put_back_on_errors_and_interrupts(
    state: Callable[[], Any], error: type[BaseException]
) -> None:
    """However it ends, and the error is passed on."""
    before = state()
    with pytest.raises(error), preserve_state():
        draw()
        raise error
    assert state() == before


def test_one_restorer_that_fails_does_not_keep_the_others_from_running(
    state: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that can be put back is, and the failure is not hidden."""
    before = state()
    restorers = room._restorers

    def one_more(values: list[Any]) -> Any:
        yield from restorers(values)
        yield lambda: 1 // 0

    monkeypatch.setattr(room, "_restorers", one_more)
    with pytest.raises(ZeroDivisionError), preserve_state():
        draw()
    assert state() == before


def test_warnings_inside_are_silent_and_do_not_count_as_shown() -> None:
    """A warning that is shown once per place is shown by the real call, as if timing had not been."""

    def warns() -> None:
        warnings.warn("look here", stacklevel=1)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        with preserve_state():
            warns()
        assert shown == []
        warns()
        assert [str(warning.message) for warning in shown] == ["look here"]


def test_torchs_warnings_that_come_once_a_process_still_come() -> None:
    """The once-only memory in C++ is not used up inside, and its switch is put back."""
    boundaries, values = torch.arange(4.0), torch.rand(4, 4).t()  # warned of once; no other test looks up such values
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for _ in range(2):
            with preserve_state():
                assert torch.is_warn_always_enabled()
                torch.searchsorted(boundaries, values)
        assert shown == []
        assert not torch.is_warn_always_enabled()
        torch.searchsorted(boundaries, values)
        torch.searchsorted(boundaries, values)
    assert len(shown) == 1


def test_grad_mode_is_left_alone() -> None:
    """The caller decides under which mode candidates run."""
    with torch.no_grad(), preserve_state():
        assert not torch.is_grad_enabled()
    with preserve_state():
        assert torch.is_grad_enabled()


def test_cuda_is_not_asked_before_it_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving state must not be what initialises CUDA."""

    def initialises(*_: Any) -> Any:
        raise AssertionError("would initialise CUDA")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    for name in ("current_device", "current_stream", "get_rng_state"):
        monkeypatch.setattr(torch.cuda, name, initialises)
    with preserve_state((torch.ones(2),), {}, [nn.Linear(2, 2)]):
        pass


def test_cuda_state_is_put_back_device_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generators and streams of the current device and of those the call lies on; then the current device."""
    log: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream {device}")
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: f"state {device}")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: log.append(device))
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: log.append(stream))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: log.append((state, device)))
    monkeypatch.setattr(room, "_cuda_devices", lambda values: {3})
    with preserve_state():
        assert log == []
    assert log == [("state 3", 3), "stream 3", ("state 1", 1), "stream 1", 1]


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
]

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda base: base,
    "matrix": lambda base: base.view(12, 20),
    "transposed": lambda base: base.view(12, 20).t(),
    "rows": lambda base: base.view(12, 20)[2:7],
    "columns": lambda base: base.view(12, 20)[:, 3:9],
    "steps": lambda base: base.view(12, 20)[::3, 1::2],
    "steps of a transpose": lambda base: base.view(12, 20).t()[::2],
    "misaligned": lambda base: base[1:],
    "far off": lambda base: base[101:],
    "expanded": lambda base: base[5:6].expand(7),
    "expanded matrix": lambda base: base[:20].expand(3, 20),
    "overlapping": lambda base: base.as_strided((5, 6), (2, 1), 3),
    "0-dim": lambda base: base[17],
    "one by one": lambda base: base[9:10].as_strided((1, 1), (7, 3), 9),
    "zero-size": lambda base: base.view(12, 20)[:0],
    "zero-size, odd strides": lambda base: base.as_strided((3, 0), (11, 2), 4),
}


def a_base(dtype: torch.dtype) -> Tensor:
    """240 elements with values that differ."""
    return torch.arange(240).remainder(97).to(dtype)


def copy_tensor(tensor: Tensor) -> Tensor:
    """The copy of a call's only argument."""
    (copy,), _ = copy_call((tensor,), {}, None, ["x"])
    return copy  # type: ignore[no-any-return]  # what a call holds may be anything


def raw(tensor: Tensor) -> bytes:
    """The values, bit by bit."""
    values = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return bytes(values.view(-1).view(torch.uint8).tolist())


def span(tensor: Tensor) -> tuple[int, int]:
    """The addresses of the storage that a tensor keeps alive."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors keep the same storage."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


@given(st.sampled_from(DTYPES), st.sampled_from(sorted(LAYOUTS)), st.sampled_from(["plain", "leaf", "non-leaf"]))
def test_a_copy_is_the_original_in_all_that_a_kernel_sees(dtype: torch.dtype, layout: str, autograd: str) -> None:
    """Dtype, sizes, strides, address modulo the alignment, values, requires_grad and leafness; and no shared memory."""
    original = LAYOUTS[layout](a_base(dtype))
    if autograd != "plain" and dtype.is_floating_point | dtype.is_complex and dtype != torch.float8_e4m3fn:
        original.requires_grad_()
        if autograd == "non-leaf":
            original = room._Grown.apply(original)  # an operation that keeps any strides
    before, version = raw(original), original._version

    with torch.set_grad_enabled(dtype != torch.float64):  # in either grad mode
        copy = copy_tensor(original)

    assert type(copy) is Tensor
    assert (copy.dtype, copy.device, copy.size()) == (original.dtype, original.device, original.size())
    assert copy.stride() == original.stride()
    assert copy.data_ptr() % 64 == original.data_ptr() % 64
    assert (copy.requires_grad, copy.is_leaf) == (original.requires_grad, original.is_leaf)
    assert raw(copy) == before
    assert not share_memory(copy, original)

    storage = copy.untyped_storage()
    torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).fill_(1)
    assert raw(original) == before
    assert original._version == version


@given(st.integers(0, 70), st.integers(1, 5))
def test_a_copy_keeps_an_address_that_is_no_multiple_of_its_element(offset: int, count: int) -> None:
    """A tensor over a file's bytes can begin anywhere, and so does its copy."""
    memory = bytearray(range(200))
    original = torch.frombuffer(memory, dtype=torch.float32, offset=offset, count=count)
    copy = copy_tensor(original)
    assert copy.data_ptr() % 64 == original.data_ptr() % 64
    assert raw(copy) == raw(original)
    copy.zero_()
    assert memory == bytearray(range(200))


@pytest.mark.parametrize("tensor", [torch.ones(4, 4)[:, 1:], torch.ones(6)[1:], nn.Parameter(torch.ones(4))])
def test_what_torch_would_not_copy_as_it_is_wanted_is_copied_by_hand(tensor: Tensor) -> None:
    """Gaps, other addresses, parameters."""
    assert room._clone(tensor) is None


def test_an_ordinary_tensor_is_copied_as_torch_does() -> None:
    """In a tenth of the time; in inference mode it is no inference tensor either."""
    x = torch.arange(6.0).view(2, 3)
    with torch.inference_mode():
        copy = room._clone(x)
    assert copy is not None
    assert (copy.tolist(), copy.stride(), copy.is_inference()) == (x.tolist(), x.stride(), False)
    assert copy.data_ptr() != x.data_ptr()


def test_only_the_span_is_allocated() -> None:
    """A small view of a large storage costs what the view spans."""
    copy = copy_tensor(torch.zeros(1_000_000)[500:510])
    assert copy.untyped_storage().nbytes() <= 40 + 64


def test_a_parameter_stays_a_parameter() -> None:
    """Its class and whether it is frozen are kept."""
    for requires_grad in (True, False):
        copy = copy_tensor(nn.Parameter(torch.ones(3), requires_grad=requires_grad))
        assert type(copy) is nn.Parameter
        assert copy.requires_grad is requires_grad


def test_a_copy_has_no_gradient_history_or_hooks() -> None:
    """What autograd keeps of the original is not taken over."""
    leaf = torch.ones(3, requires_grad=True)
    (leaf * 2).sum().backward()
    called: list[Any] = []
    leaf.register_hook(called.append)
    copy = copy_tensor(leaf)
    copy.sum().backward()
    assert called == []
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2, 2, 2]

    middle = leaf * 3
    middle.register_hook(called.append)
    copy_tensor(middle).sum().backward()
    assert called == []
    assert leaf.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("leaf", lambda: torch.ones(3, requires_grad=True)),
        ("non-leaf", lambda: torch.ones(3, requires_grad=True) * 2),
        ("view of a leaf", lambda: torch.ones(4, requires_grad=True)[:3]),
        ("view of a non-leaf", lambda: (torch.ones(4, requires_grad=True) * 2)[:3]),
        ("no gradient", lambda: torch.ones(3)),
    ],
)
def test_a_copy_may_be_written_where_the_original_may(kind: str, make: Callable[[], Tensor]) -> None:
    """In-place writes raise on the copy if and only if they raise on the original."""

    def error_of(tensor: Tensor) -> str | None:
        try:
            tensor.mul_(2)
        except RuntimeError as error:
            return str(error)[:40]
        return None

    assert error_of(copy_tensor(make())) == error_of(make()), kind


def test_a_written_non_leaf_copy_has_the_gradient_of_the_write() -> None:
    """A backward through a write into the copy runs and is right."""
    copy = copy_tensor(torch.ones(3, requires_grad=True) * 2)
    (gradient,) = torch.autograd.grad((copy * copy).sum(), copy)
    assert gradient.tolist() == [4, 4, 4]
    copy.mul_(5)
    copy.sum().backward()


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("mode", [True, False])
def test_an_inference_tensor_stays_one_in_either_mode(inference: bool, mode: bool) -> None:
    """The caller's mode does not leak into the copy, and the copying does not leak into the caller's mode."""
    with torch.inference_mode(inference):
        original = torch.arange(6.0).view(2, 3).t()
    with torch.inference_mode(mode):
        copy = copy_tensor(original)
        assert torch.is_inference_mode_enabled() is mode
        assert torch.is_grad_enabled() is not mode
    assert copy.is_inference() is inference
    assert copy.stride() == original.stride()
    assert copy.tolist() == original.tolist()


def test_a_normal_leaf_is_copied_in_inference_mode() -> None:
    """A parameter used under inference mode is still a normal parameter in its copy."""
    parameter = nn.Parameter(torch.ones(3))
    with torch.inference_mode():
        copy = copy_tensor(parameter)
    assert not copy.is_inference()
    (copy * 2).sum().backward()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    ],
    ids=["conj", "neg", "sparse", "quantized"],
)
def test_what_bytes_do_not_describe_is_refused(make: Callable[[], Tensor]) -> None:
    """Copied byte by byte these would have other values: a TypeError says what was given."""
    with pytest.raises(TypeError, match="only plain strided tensors"):
        copy_tensor(make())


# Calls: which arguments are copied, and what they share.


def test_only_what_is_written_is_copied() -> None:
    """Arguments that are only read are the caller's own objects."""
    x, w, out = torch.ones(3), torch.ones(3), torch.zeros(3)
    args, kwargs = copy_call((x, w), {"out": out}, {"out"}, ["x", "w"])
    assert args[0] is x
    assert args[1] is w
    assert not share_memory(kwargs["out"], out)


def test_when_nothing_is_known_everything_is_copied() -> None:
    """``written=None`` copies every tensor, nested ones too."""
    x, y = torch.ones(3), torch.ones(3)
    args, kwargs = copy_call((x, [y]), {"z": {"a": y}}, None, ["x", "ys"])
    assert not share_memory(args[0], x)
    assert not share_memory(args[1][0], y)
    assert kwargs["z"]["a"] is args[1][0]


def test_further_positional_arguments_have_the_last_name() -> None:
    """``f(x, *rest)`` with ``rest`` written: all of them are copied."""
    tensors = tuple(torch.ones(2) for _ in range(4))
    args, _ = copy_call(tensors, {}, {"rest"}, ["x", "rest"])
    assert [new is old for new, old in zip(args, tensors, strict=True)] == [True, False, False, False]


def test_no_names_and_no_arguments() -> None:
    """The empty call is its own copy."""
    assert copy_call((), {}, None, []) == ((), {})
    assert bytes_to_copy((), {}, None, []) == 0


def test_an_object_passed_twice_stays_one_object() -> None:
    """Tensors and containers alike, copied or not."""
    x, y = torch.ones(3), [torch.ones(2)]
    args, _ = copy_call((x, x, y, y), {}, {"a"}, ["a", "b", "c", "d"])
    assert args[0] is args[1]
    assert args[0] is not x
    assert args[2] is args[3]
    assert args[2] is not y


def test_overlapping_arguments_overlap_in_the_copy() -> None:
    """A write to one copy is seen through the others exactly where it was through the originals."""
    base = torch.arange(100.0)
    x, y, far = base[10:30], base[20:40], base[60:70]
    args, _ = copy_call((x, y, far), {}, {"x"}, ["x", "y", "far"])
    assert args[2] is far
    args[0].fill_(-1)
    assert args[1].tolist() == [-1.0] * 10 + list(range(30, 40))
    assert args[1].data_ptr() - args[0].data_ptr() == y.data_ptr() - x.data_ptr()
    assert base.tolist() == list(range(100))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(1, 3)), min_size=1, max_size=5))
def test_aliasing_between_arguments_is_kept(pieces: list[tuple[int, int, int]]) -> None:
    """Whatever views of one base are passed, writing the first changes the others as it would the originals."""
    names = [str(number) for number in range(len(pieces))]

    def views(base: Tensor) -> tuple[Tensor, ...]:
        return tuple(base[start : start + length * step : step] for start, length, step in pieces)

    base, reference = torch.arange(101.0), torch.arange(101.0)
    args, _ = copy_call(views(base), {}, {"0"}, names)
    expected = views(reference)
    args[0].fill_(-1)
    expected[0].fill_(-1)
    assert [arg.tolist() for arg in args] == [view.tolist() for view in expected]
    assert base.tolist() == list(range(101))


def test_aliasing_through_another_arguments_span_is_kept() -> None:
    """Two that don't touch each other but touch a third are still one group."""
    base = torch.arange(30.0)
    parts = (base[0:10], base[8:20], base[18:30])
    args, _ = copy_call(parts, {}, {"a"}, ["a", "b", "c"])
    assert share_memory(args[0], args[2])
    assert args[2].data_ptr() - args[0].data_ptr() == 18 * 4
    assert args[1].tolist() == parts[1].tolist()


def test_aliasing_of_different_dtypes_is_kept() -> None:
    """A view of the same bytes as another dtype overlaps like any other."""
    base = torch.zeros(8, dtype=torch.int32)
    args, _ = copy_call((base, base.view(torch.float32)), {}, {"a"}, ["a", "b"])
    args[0].fill_(0x3F800000)
    assert args[1].tolist() == [1.0] * 8
    assert base.tolist() == [0] * 8


def test_aliasing_of_two_storages_over_one_memory_is_kept() -> None:
    """Two tensors made from one numpy array share memory without sharing a storage."""
    array = numpy.arange(20.0)
    x, y = torch.from_numpy(array[:12]), torch.from_numpy(array[8:])
    args, _ = copy_call((x, y), {}, {"y"}, ["x", "y"])
    args[1].fill_(-1)
    assert args[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1]
    assert array.tolist() == list(range(20))


Pair = namedtuple("Pair", "first second")


@dataclass
class Config:
    """A dataclass argument."""

    weight: Tensor
    scale: float = 2.0
    derived: Tensor = field(init=False, default=None)  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Frozen:
    """One that cannot be filled by assignment."""

    weight: Tensor


class Stack(list):  # type: ignore[type-arg]
    """A list class of the user's."""


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: [t, 1],
        lambda t: (t, "a"),
        lambda t: Pair(t, None),
        lambda t: {"t": t, 2: 3},
        lambda t: OrderedDict(t=t),
        lambda t: defaultdict(list, t=t),
        lambda t: Stack([t]),
        lambda t: Config(t),
        lambda t: Frozen(t),
        lambda t: [({"deep": [t]},)],
    ],
)
def test_containers_are_rebuilt_in_their_own_class(wrap: Callable[[Tensor], Any]) -> None:
    """Each nest keeps its class and its other values, and holds a copy; the caller's nest holds what it held."""
    tensor = torch.ones(3)
    nest = wrap(tensor)
    (new,), _ = copy_call((nest,), {}, {"nest"}, ["nest"])
    assert type(new) is type(nest)
    (copied,) = [leaf for leaf in leaves(new) if isinstance(leaf, Tensor)]
    (kept,) = [leaf for leaf in leaves(nest) if isinstance(leaf, Tensor)]
    assert kept is tensor
    assert not share_memory(copied, tensor)
    assert [x for x in leaves(new) if x is not copied] == [x for x in leaves(nest) if x is not tensor]


def test_a_list_that_is_appended_to_is_not_the_callers() -> None:
    """Even where no tensor is written, the caller's containers are not handed out."""
    trail: list[int] = []
    (given_trail, same), _ = copy_call((trail, (1, 2)), {}, set(), ["trail", "pair"])
    given_trail.append(1)
    assert trail == []
    assert same == (1, 2)


def test_what_is_no_tensor_passes_through() -> None:
    """Modules, numbers, None and other objects are the caller's own."""
    values = (nn.Linear(2, 2), None, 3, 2.5, "text", torch.float32, torch.Size([2]), Tensor, object())
    args, _ = copy_call(values, {}, None, ["values"])
    assert all(new is old for new, old in zip(args, values, strict=True))


def test_a_backward_through_the_copied_call_touches_nothing_of_the_callers() -> None:
    """With ``grad`` no gradient, hook or history of the caller's is reached, written or not."""
    called: list[Any] = []
    leaf, weight = torch.ones(3, requires_grad=True), nn.Parameter(torch.ones(3))
    middle = leaf * 2
    for tensor in (leaf, weight, middle):
        tensor.register_hook(called.append)
    versions = [tensor._version for tensor in (leaf, weight, middle)]
    plain = torch.ones(3)

    args, _ = copy_call((leaf, weight, middle, plain), {}, set(), ["leaf", "weight", "middle", "plain"], grad=True)
    sum(args).sum().backward()  # type: ignore[arg-type]

    assert called == []
    assert leaf.grad is None
    assert weight.grad is None
    assert [type(arg) for arg in args] == [Tensor, nn.Parameter, Tensor, Tensor]
    assert [(arg.requires_grad, arg.is_leaf) for arg in args] == [
        (True, True),
        (True, True),
        (True, False),
        (False, True),
    ]
    assert args[3] is plain
    assert [tensor._version for tensor in (leaf, weight, middle)] == versions
    middle.sum().backward()  # the caller's own graph is whole
    assert len(called) == 2


def test_with_grad_what_is_only_read_is_not_copied() -> None:
    """An alias of the memory is enough, at any stride; what is written is a true copy."""
    x = torch.arange(12.0).view(3, 4).t()[1:].requires_grad_()
    y = torch.ones(3, requires_grad=True) * 1
    args, _ = copy_call((x, y), {}, {"y"}, ["x", "y"], grad=True)
    assert (args[0].data_ptr(), args[0].stride(), args[0].tolist()) == (x.data_ptr(), x.stride(), x.tolist())
    assert args[0] is not x
    version = y._version
    args[1].mul_(2)
    assert (y._version, y.tolist()) == (version, [1, 1, 1])


def test_without_grad_a_tensor_that_requires_it_is_passed_as_it_is() -> None:
    """Where no gradients are needed nothing needs to be aliased."""
    x = torch.ones(3, requires_grad=True)
    args, _ = copy_call((x,), {}, set(), ["x"])
    assert args[0] is x


def test_bytes_to_copy_counts_spans_once() -> None:
    """Overlapping arguments count with their union, unwritten ones not at all."""
    base = torch.zeros(100)
    args = (base[:20], base[10:30], base[:20], torch.zeros(1000))
    assert bytes_to_copy(args, {}, {"a"}, ["a", "b", "c", "d"]) == 30 * 4
    assert bytes_to_copy(args, {"e": [torch.zeros(7)]}, {"e"}, ["a", "b", "c", "d"]) == 28
    assert bytes_to_copy(args, {}, None, ["a", "b", "c", "d"]) == 30 * 4 + 4000
    assert bytes_to_copy((torch.zeros(1).expand(1000),), {}, None, ["a"]) == 4


def test_runs_inside_begin_alike_whatever_was_drawn_around_them() -> None:
    """Two that are compared draw the same numbers, though a compiler has drawn before the first."""
    drawn = []
    before = random.getstate()
    with preserve_state():
        random.random()
        numpy.random.rand()
        for _ in range(2):
            with preserve_state():
                drawn.append((random.random(), numpy.random.rand()))
    assert drawn[0] == drawn[1]
    assert random.getstate() == before
