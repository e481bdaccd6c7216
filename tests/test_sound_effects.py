"""The side-effect audit: a call that is decided leaves the world as one plain call would, and so does the next one.

Each function runs in a world of its own, plain and decorated, four times: cold, a hit, cold again at another shape, a
hit. After each call everything that it may have touched is compared. The decorated one has a second variant that wins
every contest it may enter, so that timing happens wherever it is allowed.
"""

# ruff: noqa: D103 - what an audited function does is its name and its lines

from __future__ import annotations

import contextlib
import io
import logging
import os
import pickle
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from shapedispatch import shapedispatch
from shapedispatch.functions.backend import TorchFunction
from tests.fuzzing import Config, Pair, ambient_state, last_wins, unlike
from tests.made_up_graphs import made_up_device

COUNTER = 0


class World:
    """All that a function may reach beside its arguments."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.count = 0
        self.log: list[Any] = []
        self.memo: dict[Any, Any] = {}
        self.tensor = torch.ones(3)
        self.norm = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3, 3)
        self.hooked = nn.Linear(3, 3)
        self.hooked.register_forward_hook(lambda *_: self.log.append("forward"))
        self.grad_hooked = nn.Linear(3, 3)
        self.grad_hooked.weight.register_hook(lambda g: self.log.append("gradient"))
        self.generator = torch.Generator().manual_seed(3)
        self.numpy = np.random.default_rng(3)
        self.file = io.StringIO()
        self.iterator = iter(range(1000))
        self.last: Tensor | None = None

    def state(self) -> dict[str, Any]:
        """Everything in it, as it is now."""
        modules = {"norm": self.norm, "linear": self.linear, "hooked": self.hooked, "grad_hooked": self.grad_hooked}
        return {
            "count": self.count,
            "log": list(self.log),
            "memo": dict(self.memo),
            "tensor": self.tensor.detach().clone(),
            "version": self.tensor._version,
            "generator": self.generator.get_state().clone(),
            "numpy": str(self.numpy.bit_generator.state),
            "file": self.file.getvalue(),
            "iterator": self.iterator.__reduce__()[-1],
            "last": None if self.last is None else self.last.detach().clone(),
            **{
                f"{name}.{part}": value.detach().clone()
                for name, module in modules.items()
                for part, value in module.state_dict().items()
            },
            **{
                f"{name}.{part}.grad": None if p.grad is None else p.grad.clone()
                for name, module in modules.items()
                for part, p in module.named_parameters()
            },
            "training": [module.training for module in modules.values()],
        }


OF_COMPILERS = ("TORCHINDUCTOR_", "_TORCHINDUCTOR_", "TRITON_", "KMP_DUPLICATE_LIB_OK")
"""Names that Inductor and Triton put into the environment themselves when one of their parts is first used."""


def of_the_process() -> dict[str, Any]:
    """Everything outside the world that a call may move."""
    return {
        "counter": COUNTER,
        "torch generator": torch.get_rng_state(),
        "generators of GPUs": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "python generator": str(random.getstate()),  # as one value each: element by element is a third of the audit
        "numpy generator": pickle.dumps(np.random.get_state()),
        "ambient": ambient_state(),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "warn always": torch.is_warn_always_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "environment": {name: value for name, value in os.environ.items() if not name.startswith(OF_COMPILERS)},
        "folder": os.getcwd(),  # noqa: PTH109 - as text
        "recursion": sys.getrecursionlimit(),
        "trace": sys.gettrace(),
    }


def of_a_result(value: Any) -> Any:
    """What can be seen of a result; how often its fresh memory was written before is no affair of anyone."""
    seen = of_an_argument(list(value) if isinstance(value, Pair) else value)
    if isinstance(seen, dict):
        seen.pop("version", None)
    return seen


def of_an_argument(value: Any) -> Any:
    """What can be seen of an argument."""
    if isinstance(value, Tensor):
        return {
            "values": value.detach().clone(),
            "version": value._version,
            "grad": value.grad.clone() if value.is_leaf and value.grad is not None else None,
            "requires_grad": value.requires_grad,
            "leaf": value.is_leaf,
            "hooks": len(value._backward_hooks or {}),
            "attributes": sorted(set(vars(value)) - {"_dynamo_dynamic_indices"}),
            "strides": value.stride(),
        }
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *[of_an_argument(item) for item in value]]
    if isinstance(value, dict):
        return {name: of_an_argument(item) for name, item in value.items()}
    if isinstance(value, Config):
        return of_an_argument(vars(value))
    return value


# ------------------------------------------------------------------------------------------------------------ functions

Body = Callable[[World, Tensor, Tensor], Any]
AUDITED: dict[str, Body] = {}


def audited(body: Body) -> Body:
    """Put a function into the audit."""
    AUDITED[body.__name__] = body
    return body


def _audit_lines(**bodies: Body) -> None:
    AUDITED.update(bodies)


_audit_lines(
    add=lambda w, x, y: x + y,
    matmul=lambda w, x, y: x @ y.t(),
    returns_x=lambda w, x, y: x,
    returns_both=lambda w, x, y: (x, y, x + 1),
    returns_view=lambda w, x, y: x[1:],
    returns_none=lambda w, x, y: None,
    returns_number=lambda w, x, y: x.shape[0] * 2,
    returns_dict=lambda w, x, y: {"sum": x.sum(), "x": x},
    returns_pair=lambda w, x, y: Pair(x * 2, y),
    returns_item=lambda w, x, y: x.sum().item(),
    adds_in_place=lambda w, x, y: x.add_(1),
    multiplies_y=lambda w, x, y: (x + 1, y.mul_(2))[0],
    writes_a_view=lambda w, x, y: x[0].fill_(3.0),
    copies=lambda w, x, y: x.copy_(y),
    swaps=lambda w, x, y: (x + 0, x.copy_(y))[0],
    zeroes=lambda w, x, y: x.zero_().sum(),
    out=lambda w, x, y: torch.add(x, y, out=y),
    unsqueezes=lambda w, x, y: x.unsqueeze_(0),
    sets_item=lambda w, x, y: x.__setitem__(0, 5.0),
    index_put=lambda w, x, y: x.index_put_((torch.tensor([0]),), torch.tensor(1.0)),
    rand=lambda w, x, y: x + torch.rand(3),
    randn_like=lambda w, x, y: torch.randn_like(x) * y,
    dropout=lambda w, x, y: F.dropout(x, 0.5),
    bernoulli=lambda w, x, y: torch.bernoulli(torch.full((3,), 0.5)) + x,
    uniform_in_place=lambda w, x, y: x.uniform_(),
    randperm=lambda w, x, y: x[torch.randperm(x.shape[0])],
    own_generator=lambda w, x, y: x + torch.rand(3, generator=w.generator),
    python_random=lambda w, x, y: x * random.random(),
    numpy_random=lambda w, x, y: x * float(np.random.rand()),
    numpy_generator=lambda w, x, y: x * float(w.numpy.random()),
    seeds=lambda w, x, y: (torch.manual_seed(1), x)[1],
    appends=lambda w, x, y: (w.log.append(x.shape[0]), x * 2)[1],
    remembers=lambda w, x, y: (w.memo.__setitem__("x", x.shape[0]), x * 2)[1],
    advances=lambda w, x, y: x * next(w.iterator),
    writes_world=lambda w, x, y: (w.tensor.add_(1), x * w.tensor)[1],
    reads_world=lambda w, x, y: x * w.tensor,
    linear=lambda w, x, y: w.linear(x),
    batch_norm=lambda w, x, y: w.norm(x),
    batch_norm_eval=lambda w, x, y: w.norm.eval()(x),
    goes_to_training=lambda w, x, y: w.norm.train()(x),
    forward_hook=lambda w, x, y: w.hooked(x),
    gradient_hook=lambda w, x, y: w.grad_hooked(x),
    prints=lambda w, x, y: (print("hello"), x)[1],
    writes_file=lambda w, x, y: (w.file.write("a"), x)[1],
    warns=lambda w, x, y: (warnings.warn("of the function", stacklevel=2), x * 2)[1],
    sets_attribute=lambda w, x, y: (setattr(x, "note", 1), x * 2)[1],
    hooks_x=lambda w, x, y: (x.requires_grad_().register_hook(lambda g: g), x * 2)[1],
    requires_grad=lambda w, x, y: x.requires_grad_() * 2,
    backward=lambda w, x, y: w.linear(x).sum().backward(),
    gradient=lambda w, x, y: torch.autograd.grad((y.detach().requires_grad_() * x).sum().exp(), [], allow_unused=True),
    no_grad=lambda w, x, y: torch.no_grad()(lambda: w.linear(x))(),
    default_dtype=lambda w, x, y: torch.zeros(2) + x.sum(),
    environment=lambda w, x, y: (os.environ.__setitem__("AUDITED", "1"), x)[1],
    last=lambda w, x, y: (setattr(w, "last", x * 2), w.last)[1],
    by_value=lambda w, x, y: x * 2 if bool(x.sum() > 0) else x,
    nonzero=lambda w, x, y: x.nonzero(),
    masked=lambda w, x, y: x[x > 0.5],
    sorts=lambda w, x, y: torch.sort(x, dim=-1),
    softmax=lambda w, x, y: torch.softmax(x, -1),
    einsum=lambda w, x, y: torch.einsum("ij,kj->ik", x, y),
    identity_asked=lambda w, x, y: x is y,
)


@audited
def counts(w: World, x: Tensor, y: Tensor) -> Tensor:
    w.count += 1
    return x * w.count


@audited
def counts_globally(w: World, x: Tensor, y: Tensor) -> Tensor:
    global COUNTER
    COUNTER += 1
    return x + 1


@audited
def raises(w: World, x: Tensor, y: Tensor) -> Tensor:
    raise ValueError("always")


@audited
def raises_after_writing(w: World, x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    w.log.append("written")
    raise KeyError("late")


@audited
def raises_at_times(w: World, x: Tensor, y: Tensor) -> Tensor:
    w.count += 1
    if w.count % 2:
        raise RuntimeError("odd")
    return x


@audited
def catches(w: World, x: Tensor, y: Tensor) -> Tensor:
    try:
        return x @ y
    except RuntimeError:
        return x * 2


@audited
def remembers_by_default(w: World, x: Tensor, y: Tensor) -> Tensor:
    seen = w.memo.setdefault("seen", [])
    seen.append(1)
    return x * len(seen)


@audited
def sets_grad_mode(w: World, x: Tensor, y: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    return x * 2


@audited
def sets_default_dtype(w: World, x: Tensor, y: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    return x + torch.zeros(3)


@audited
def looks_at_gradient(w: World, x: Tensor, y: Tensor) -> Tensor:
    return x if x.grad is None else x.grad


@audited
def step(w: World, x: Tensor, y: Tensor) -> Tensor:
    loss = w.linear(x).square().sum()
    gradients = torch.autograd.grad(loss, list(w.linear.parameters()))
    with torch.no_grad():
        for p, g in zip(w.linear.parameters(), gradients, strict=True):
            p.sub_(g, alpha=0.1)
    return loss.detach()


# ---------------------------------------------------------------------------------------------------------------- audit


def _arguments(rows: int) -> tuple[Tensor, Tensor]:
    return torch.arange(rows * 3.0).view(rows, 3) / 10 + 0.1, torch.ones(rows, 3)


def _ours(text: str) -> bool:
    return "plain runs" in text or "The plain function runs" in text


def _left_behind(
    make: Callable[[World], Callable[..., Any]], sizes: Sequence[int] = (2, 2, 4, 4), device: str = "cpu"
) -> list[dict[str, Any]]:
    """The world, the process, the arguments and what was said after each of a few calls."""
    global COUNTER
    with torch.device(device):
        world, found = World(), []
    fn = make(world)
    COUNTER = 0
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)
    for rows in sizes:
        with torch.device(device):
            args = _arguments(rows)
        result: Any = None
        with warnings.catch_warnings(record=True) as said, contextlib.redirect_stdout(io.StringIO()) as printed:
            warnings.simplefilter("always")
            try:
                result = fn(*args)
            except Exception as error:  # noqa: BLE001 - its class and words are compared
                result = [type(error).__name__, str(error)]
        found.append(
            {
                "result": of_a_result(result),
                "is an argument": [result is value for value in args],
                "arguments": of_an_argument(args),
                "world": world.state(),
                "process": of_the_process(),
                "warnings": [(w.category.__name__, str(w.message)) for w in said if not _ours(str(w.message))],
                "printed": printed.getvalue(),
            }
        )
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
    os.environ.pop("AUDITED", None)
    return found


def _decorated(body: Body, **given: Any) -> Callable[[World], Callable[..., Any]]:
    def make(world: World) -> Callable[..., Any]:
        def function(x: Tensor, y: Tensor) -> Any:
            return body(world, x, y)

        variants = [] if given.get("exact") or given.get("graphs") else [lambda x, y: body(world, x, y)]
        f = shapedispatch(function, hints=(), variants=variants, store=False, **given)
        f.core.timer_for = last_wins
        return f

    return make


def _plain(body: Body) -> Callable[[World], Callable[..., Any]]:
    return lambda world: lambda x, y: body(world, x, y)


def test_the_audit_is_of_at_least_sixty_functions() -> None:
    """The number that was promised."""
    assert len(AUDITED) >= 60


@pytest.mark.parametrize("name", sorted(AUDITED))
def test_deciding_leaves_the_world_as_a_plain_call_does(name: str) -> None:
    """Cold and as a hit, at two shapes."""
    plain = _left_behind(_plain(AUDITED[name]))
    decorated = _left_behind(_decorated(AUDITED[name]))
    for number, (one, other) in enumerate(zip(plain, decorated, strict=True)):
        for part, value in one.items():
            assert unlike(value, other[part], True, f"call {number}, {part}") is None


@pytest.mark.parametrize("name", ["adds_in_place", "rand", "appends", "batch_norm", "linear", "writes_world", "counts"])
def test_deciding_over_real_builds_leaves_the_world_as_a_plain_call_does(name: str) -> None:
    """The same with compiled builds among the candidates; numbers within rounding."""
    plain = _left_behind(_plain(AUDITED[name]))
    decorated = _left_behind(_decorated(AUDITED[name], exact=True))
    for number, (one, other) in enumerate(zip(plain, decorated, strict=True)):
        for part, value in one.items():
            assert unlike(value, other[part], False, f"call {number}, {part}") is None


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(AUDITED))
def test_graphs_leave_the_world_as_plain_calls_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With CUDA graphs of the builds, recorded and replayed, on a device that is made up."""
    with mock.patch.object(TorchFunction, "_offer_plains_graph", return_value=None):
        _leaves_the_world_as_plain_does(name, monkeypatch, exact=True)


@pytest.mark.filterwarnings(r"ignore:(?s).*every variant but plain was refused")
@pytest.mark.parametrize("name", sorted(AUDITED))
def test_graphs_of_plain_leave_the_world_as_plain_calls_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with those of the operators that plain calls."""
    _leaves_the_world_as_plain_does(name, monkeypatch, exact=False)


def _leaves_the_world_as_plain_does(name: str, monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    recorder = made_up_device(monkeypatch)
    sizes = (2,) * 6 + (4,) * 6
    plain = _left_behind(_plain(AUDITED[name]), sizes)
    decorated = _left_behind(_decorated(AUDITED[name], exact=exact, graphs=True), sizes)
    for number, (one, other) in enumerate(zip(plain, decorated, strict=True)):
        for part, value in one.items():
            assert unlike(value, other[part], False, f"call {number}, {part}") is None
    assert recorder.replays or name not in RECORDED


RECORDED = ("adds_in_place", "sorts", "views_out")
"""Some that are replayed, so that the audit of graphs is of graphs."""


def test_the_audit_sees_a_second_run() -> None:
    """Else it would prove nothing: a decorator that runs everything twice fails for what has effects."""

    def twice(body: Body) -> Callable[[World], Any]:
        return lambda world: lambda x, y: (body(world, x, y), body(world, x, y))[1]

    seen = 0
    for name in ("adds_in_place", "rand", "python_random", "appends", "counts", "batch_norm", "prints", "warns"):
        one, other = _left_behind(_plain(AUDITED[name])), _left_behind(twice(AUDITED[name]))
        seen += any(unlike(a[part], b[part], True, part) for a, b in zip(one, other, strict=True) for part in a)
    assert seen == 8


def test_a_warning_of_the_function_is_shown_as_often_as_by_plain() -> None:
    """Once for each place and text, by Python's default filter, however many shapes are decided."""

    def counted(call: Callable[[Tensor], Any]) -> int:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("default")
            for rows in (2, 2, 3, 4):
                call(torch.ones(rows))
        return sum("of the function" in str(warning.message) for warning in said)

    def plain(x: Tensor) -> Tensor:
        warnings.warn("of the function", stacklevel=1)
        return x * 2

    def decorated(x: Tensor) -> Tensor:
        warnings.warn("of the function", stacklevel=1)
        return x * 2

    f = shapedispatch(decorated, hints=(), variants=[lambda x: x + x], mutates=(), store=False)
    f.core.timer_for = last_wins
    assert counted(plain) == 1
    assert counted(f) <= 1


class Kept(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one sentence."""
        self.said.append(record.getMessage())


def test_deciding_a_call_that_raises_logs_nothing_of_torchs_own() -> None:
    """Torch logs an operation that its fake tensors refuse, at length; without elements, `sum` is one."""
    logger, kept = logging.getLogger("torch._subclasses.fake_tensor"), Kept()
    x = torch.ones(0)
    logger.addHandler(kept)
    try:
        with FakeTensorMode() as mode, pytest.raises(IndexError):
            mode.from_tensor(x).sum(5)
        if not kept.said:
            pytest.skip("this torch logs nothing")
        f = shapedispatch(lambda x: x.sum(5), hints=(), variants=[lambda x: x.sum(5)], store=False)
        with pytest.raises(IndexError):
            f(x)
    finally:
        logger.removeHandler(kept)
    assert len(kept.said) == 1


def test_an_error_of_the_function_is_raised_once_with_its_own_traceback() -> None:
    """Its innermost frame is the function, its cause and context are its own; nothing of the trial hangs on it."""

    def failing(x: Tensor) -> Tensor:
        raise LookupError("mine") from OSError("cause")

    f = shapedispatch(failing, hints=(), variants=[lambda x: x], mutates=(), store=False)
    with pytest.raises(LookupError, match="mine") as caught:
        f(torch.ones(2))
    assert caught.traceback[-1].name == "failing"
    assert isinstance(caught.value.__cause__, OSError)
    seen, error = 0, caught.value.__context__
    while error is not None:
        seen, error = seen + 1, error.__context__
    assert seen <= 1
