"""What the soak calls: some fifty functions, methods and modules, each beside its plain form.

Most have variants that are supplied, so that nothing is compiled and choices come and go quickly; a few have builds.
Each call is made from one integer, so that plain and the dispatcher get equal arguments, and a bad one can be repeated.
"""

from __future__ import annotations

import functools
import random
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shapedispatch import Variant, shapedispatch
from tests.fuzzing import last_wins

Call = tuple[tuple[Any, ...], dict[str, Any]]
Maker = Callable[[random.Random], Call]


@dataclass(frozen=True)
class Subject:
    """Something that is called again and again. ``alone``: only from one thread, since a call changes what it reads."""

    name: str
    plain: Callable[..., Any]
    dispatched: Any
    make: Maker
    alone: bool = False
    compiled: bool = False
    change: Callable[[random.Random], object] | None = None


# ---------------------------------------------------------------------------------------------------------- arguments


def tensor(rng: random.Random, *sizes: int, dtype: torch.dtype = torch.float32, grad: float = 0.0) -> Tensor:
    """Numbers from -1 to 1, or small whole ones; needs a gradient with this chance."""
    generator = torch.Generator().manual_seed(rng.getrandbits(30))
    if not dtype.is_floating_point:
        return torch.randint(0, 5, sizes, generator=generator, dtype=dtype)
    made = (torch.rand(sizes, generator=generator) * 2 - 1).to(dtype)
    return made.requires_grad_() if rng.random() < grad else made


def size(rng: random.Random) -> int:
    return rng.choice((1, 2, 3, 5, 8, 16, 17, 31, 64, 100))


def rows(rng: random.Random, *, grad: float = 0.3, dtype: torch.dtype | None = None) -> Tensor:
    """A matrix in one of several layouts."""
    dtype = dtype or rng.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16))
    m, roll = size(rng), rng.random()
    if roll < 0.15:
        return tensor(rng, 8, m, dtype=dtype).t()
    if roll < 0.25:
        return tensor(rng, m, 16, dtype=dtype)[:, ::2]
    if roll < 0.3:
        return tensor(rng, m * 8 + 1, dtype=dtype)[1:].view(m, 8)
    return tensor(rng, m, 8, dtype=dtype, grad=grad)


def one(rng: random.Random) -> Call:
    return (rows(rng),), {}


def two(rng: random.Random) -> Call:
    x = rows(rng)
    return (x, tensor(rng, *x.shape, dtype=x.dtype, grad=0.3)), {}


def written(rng: random.Random) -> Call:
    return (rows(rng, grad=0.0),), {}


def two_written(rng: random.Random) -> Call:
    x = rows(rng, grad=0.0)
    return (x, tensor(rng, *x.shape, dtype=x.dtype)), {}


def floats(rng: random.Random) -> Call:
    return (rows(rng, dtype=torch.float32),), {}


def whole(rng: random.Random) -> Call:
    return (tensor(rng, size(rng), 8, dtype=rng.choice((torch.int64, torch.int32))),), {}


# ---------------------------------------------------------------------------------------------- functions and variants

SUBJECTS: list[Callable[[Path | None], Subject]] = []
"""Each makes its subject anew; a folder is that of the store, None for none."""


def subject(make: Maker, *variants: Callable[..., Any], alone: bool = False, change: Any = None, **said: Any) -> Any:
    """Put a function among the subjects, with supplied variants that win by turns."""

    turns = len(SUBJECTS) % 2  # half by the clock, half so that the last wins: variants run that are no faster

    def enter(fn: Callable[..., Any]) -> Callable[..., Any]:
        def made(store: Path | None) -> Subject:
            given = [Variant(variant, name=f"v{i}") for i, variant in enumerate(variants)]
            options = {"hints": (), "variants": given, **said, "store": store or False}
            dispatched = shapedispatch(fn, name=f"soak.{_name(fn)}", **options)
            if turns:
                dispatched.core.timer_for = last_wins
            return Subject(_name(fn), fn, dispatched, make, alone, bool(said.get("exact") or said.get("hints")), change)

        SUBJECTS.append(made)
        return fn

    return enter


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__)).strip("_")


@subject(one, lambda x: x * 2)
def double(x):
    return x + x


@subject(one, lambda x: x * torch.sigmoid(x))
def swish(x):
    return F.silu(x)


@subject(one, lambda x: torch.exp(x - x.logsumexp(-1, keepdim=True)))
def probabilities(x):
    return x.softmax(-1)


@subject(floats, lambda x: (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, correction=0) + 1e-5))
def normed(x):
    return F.layer_norm(x, x.shape[-1:])


@subject(two, lambda x, y: y + x, maxsize=8)
def added(x, y):
    return x + y


@subject(two, lambda x, y: torch.einsum("mk,nk->mn", x, y), maxsize=4)
def product(x, y):
    return x @ y.T


def with_weights(rng: random.Random) -> Call:
    x = rows(rng, dtype=torch.float32)
    return (x, tensor(rng, 8, 5, grad=0.3)), {"bias": tensor(rng, 5, grad=0.3)}


@subject(with_weights, lambda x, w, bias: torch.relu(torch.addmm(bias, x, w)), maxsize=16)
def layer(x, w, bias):
    return torch.relu(x @ w + bias)


def heads(rng: random.Random) -> Call:
    t = size(rng)
    return tuple(tensor(rng, 1, 2, t, 4, grad=0.3) for _ in range(3)), {}


@subject(heads, lambda q, k, v: ((q @ k.mT) * 0.5).softmax(-1) @ v)
def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def scaled_call(rng: random.Random) -> Call:
    kwargs = {name: rng.choice((1, 2.0, 0.5, -1)) for name in ("alpha", "beta") if rng.random() < 0.6}
    return (rows(rng),), kwargs


@subject(scaled_call, lambda x, *, alpha=1, beta=0: torch.add(x * alpha, beta))
def scaled(x, *, alpha=1, beta=0):
    return x * alpha + beta


@subject(written, lambda x: (x.copy_(x + 1), x)[1], maxsize=8)
def stepped(x):
    x.add_(1)
    return x


@subject(two_written, lambda x, out: out.copy_(x * 3))
def into(x, out):
    return torch.mul(x, 3, out=out)


@subject(two_written, lambda x, y: (lambda t: (x.copy_(y), y.copy_(t), x.sum())[2])(x + 0))
def swapped(x, y):
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return x.sum()


@subject(written, lambda x: x.zero_()[:1])
def cleared(x):
    x.fill_(0)
    return x[:1]


@subject(one, lambda x: x.flatten())
def flat(x):
    return x.reshape(-1)


@subject(one, lambda x: x.narrow(0, 0, max(1, x.shape[0] // 2)))
def half(x):
    return x[: max(1, x.shape[0] // 2)]


@subject(one, lambda x: (x.t(), x.permute(1, 0)[:2]))
def turned(x):
    return x.mT, x.mT[:2]


@subject(one, lambda x: {"sum": x.sum(), "rows": list(x.sum(-1).unbind())})
def collected(x):
    return {"sum": x.sum(), "rows": list(x.sum(-1))}


def some(rng: random.Random) -> Call:
    return ([rows(rng) for _ in range(rng.choice((0, 1, 2, 3)))],), {}


@subject(some, lambda xs: [x + x for x in xs])
def listed(xs):
    return [x * 2 for x in xs]


def mapping(rng: random.Random) -> Call:
    return ({name: rows(rng) for name in rng.sample(("a", "b", "c"), rng.choice((1, 2)))},), {}


@subject(mapping, lambda d: {name: x.neg() for name, x in d.items()})
def mapped(d):
    return {name: -x for name, x in d.items()}


Pair = namedtuple("Pair", "left right")


@dataclass
class Options:
    x: Tensor
    scale: float = 1.0


@subject(lambda rng: ((Pair(rows(rng), rows(rng)),), {}), lambda p: Pair(p.right, p.left + p.left))
def paired(p):
    return Pair(p.right, p.left * 2)


@subject(lambda rng: ((Options(rows(rng), rng.choice((1.0, 2.0))),), {}), lambda o: o.scale * o.x)
def optioned(o):
    return o.x * o.scale


@subject(lambda rng: ((rows(rng), rng.random() < 0.5), {}), lambda x, up: x + 1 if up else -x)
def flagged(x, up):
    return 1 + x if up else x.neg()


@subject(lambda rng: ((rows(rng), rng.choice((torch.float32, torch.float64))), {}), lambda x, to: x.type(to))
def cast(x, to):
    return x.to(to)


@subject(whole, lambda x: (x + x, (x % 2) == 0))
def counted(x):
    return x * 2, x.remainder(2).eq(0)


def looked_up(rng: random.Random) -> Call:
    return (tensor(rng, 5, 8, grad=0.3), tensor(rng, size(rng), dtype=torch.int64)), {}


@subject(looked_up, lambda table, where: table.index_select(0, where))
def gathered(table, where):
    return table[where]


@subject(looked_up, lambda table, where: table[where])
def embedded(table, where):
    return F.embedding(where, table)


@subject(floats, lambda x: torch.stack([x[:, : i + 1].sum(-1) for i in range(x.shape[1])], -1))
def running(x):
    return x.cumsum(-1)


@subject(floats, lambda x: x.sort(-1, descending=True).values[:, :2])
def largest(x):
    return x.topk(2, -1).values


@subject(two, lambda x, y: torch.maximum(x, y))
def greater(x, y):
    return torch.where(x > y, x, y)


@subject(lambda rng: ((rows(rng), 0.5), {}), lambda x, p: F.dropout(x, p), alone=True)
def dropped(x, p):
    return torch.dropout(x, p, True)


@subject(floats, lambda x: x.unsqueeze(0), maxsize=8)
def refusing(x):
    if x.shape[0] == 5:
        raise ValueError("five rows")
    return x[None]


@subject(floats, lambda x: x + 0 if float(x.detach().sum()) > 0 else x - 0)
def by_value(x):
    return x + 0 if bool(x.detach().sum() > 0) else x - 0


@subject(
    lambda rng: ((tensor(rng, 2, 3, 8, size(rng), grad=0.3), tensor(rng, 4, 3, 1, 1, grad=0.3)), {}),
    lambda x, w: torch.einsum("bchw,oc->bohw", x, w[:, :, 0, 0]),
)
def convolved(x, w):
    return F.conv2d(x, w)


@subject(
    lambda rng: ((tensor(rng, m := size(rng), 5, grad=0.5), tensor(rng, m, dtype=torch.int64)), {}),
    lambda x, y: F.nll_loss(x.log_softmax(-1), y),
)
def loss(x, y):
    return F.cross_entropy(x, y)


@subject(one, lambda x: x.norm(dim=-1), objective="memory")
def length(x):
    return x.pow(2).sum(-1).sqrt()


@subject(floats, lambda x: x * 3, dims={"x": "M K"}, buckets={"M": "pow2"})
def bucketed(x):
    return x + x + x


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


@subject(floats, lambda x: x * 3)
def own_gradient(x):
    return Tripled.apply(x)


SCALE = {"by": 2.0}


def change_scale(rng: random.Random) -> None:
    SCALE["by"] = rng.choice((1.0, 2.0, 3.0))


@subject(one, lambda x: SCALE["by"] * x, change=change_scale, alone=True)
def with_a_global(x):
    return x * SCALE["by"]


def _made_by(n: int) -> Callable[[Tensor], Tensor]:
    def closure(x):
        return x * n

    return closure


subject(one, lambda x: 5 * x)(_made_by(5))
subject(one, lambda x: torch.mean(x, -1))(functools.partial(torch.mean, dim=-1))


# ------------------------------------------------------------------------------------------------- methods and modules


class Scaler:
    """An object whose attribute changes."""

    def __init__(self) -> None:
        self.by = 2.0

    def scaled(self, x):
        return x * self.by


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 4)

    def forward(self, x):
        return torch.relu(self.inner(x))


class Averaging(nn.Module):
    """Batch norm: a call in training writes buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.inner(x) * 2


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dropout(0.3)

    def forward(self, x):
        return self.inner(x) + x


def flip(module: nn.Module, rng: random.Random) -> None:
    """Training or not, another parameter, another value in one."""
    module.train(rng.random() < 0.5)
    for inner in module.modules():
        for name, parameter in list(inner.named_parameters(recurse=False)):
            if rng.random() < 0.5:
                setattr(inner, name, nn.Parameter(parameter.detach() + 0.1))
            else:
                with torch.no_grad():
                    parameter.mul_(0.9)


def rescale(thing: Scaler, rng: random.Random) -> None:
    thing.by = rng.choice((1.0, 2.0, -3.0))


def of_an_object(kind: type, attribute: str, change: Callable[[Any, random.Random], object], **said: Any) -> None:
    """A method as a subject: called on an object that lives as long as the soak, and changes."""

    def made(store: Path | None) -> Subject:
        plain = vars(kind)[attribute]
        given = said or {"variants": [Variant(lambda self, x: plain(self, x), name="again")]}
        own = type(kind.__name__, (kind,), {})
        dispatched = shapedispatch(plain, name=f"soak.{own.__name__}", hints=(), store=store or False, **given)
        setattr(own, attribute, dispatched)
        thing = own()
        make = lambda rng: ((thing, *floats(rng)[0]), {})  # noqa: E731
        name = own.__name__ + ("_built" if said else "")
        return Subject(name, plain, dispatched, make, True, bool(said), functools.partial(change, thing))

    SUBJECTS.append(made)


of_an_object(Scaler, "scaled", rescale)
of_an_object(Dense, "forward", flip)
of_an_object(Averaging, "forward", flip)
of_an_object(Dropping, "forward", flip)


# --------------------------------------------------------------------------------------------------------------- builds


def few(rng: random.Random) -> Call:
    """Of few shapes: each is a compilation."""
    return (tensor(rng, rng.choice((3, 5, 8)), 8, grad=0.3),), {}


def few_written(rng: random.Random) -> Call:
    return (tensor(rng, rng.choice((3, 5)), 8),), {}


@subject(few, exact=True)
def built(x):
    return torch.sin(x) * 2 + x


@subject(few_written, exact=True)
def built_in_place(x):
    x.mul_(2)
    return x + 1


@subject(few, dims={"x": "T D"}, static=("D",), hints={"T": (64,)})
def hinted(x):
    return (x * 3).tanh()


of_an_object(Dense, "forward", flip, exact=True)


def subjects(store: Path) -> Sequence[Subject]:
    """All of them, every other with a store on disk."""
    return [made(store if i % 3 == 0 else None) for i, made in enumerate(SUBJECTS)]
