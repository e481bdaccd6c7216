"""Generated programs that train: calls in chains, and between them what a program does with tensors and gradients.

A program is made from one integer and runs with any function: calls of arguments and of results, checkpoints, hooks,
kept gradients, freezing, steps of an optimiser, backwards at some results, gradients of gradients, and, where that is
asked for, writes in place. What it leaves with the dispatched function must be what it leaves with the plain one.
"""

# ruff: noqa: D103 - what a function computes is its one line

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from shapedispatch import shapedispatch
from tests import fuzzing
from tests.fuzzing import Tally, unlike

MOST_STEPS = 6
LEARNED_RUNS = 40
"""How often one program runs while its function is learned: the build lands in the middle."""
WORK = 14
"""How many more operators a learned function has, so that a build is chosen over plain."""


# -------------------------------------------------------------------------------------------------------- the functions


def gate(x: Tensor, w: Tensor) -> Tensor:
    return torch.sigmoid(x) * w


def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = x + w
    return h, torch.exp(h * 0.1) * w


def norm(x: Tensor, w: Tensor) -> Tensor:
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def scores(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(x * w, -1)


def residual(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ torch.diag(w)) + x


def line(x: Tensor, w: Tensor) -> Tensor:
    return x * 2 + w


def loss(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).tanh().pow(2).mean()


def chained(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    size = (x * w).sum(-1)
    factor = torch.exp(size * 0.1)
    return size, factor, torch.sin(x * w) * factor[:, None]


def statistics(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x * w
    mean = y.mean()
    variance = (y - mean).pow(2).mean()
    return mean, variance, (y - mean) * torch.rsqrt(variance + 1e-5)


def losses(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    z = torch.tanh(x * w)
    one, other = z.pow(2).mean(), z.abs().sum()
    return one + other * 0.1, one, other


def viewed(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = torch.tanh(x * w)
    return h, h[:, ::2], x


PROGRAMMED = (gate, both, norm, scores, residual, line, loss, chained, statistics, losses, viewed)
"""What the programs call: of one result and several, of results made of each other, views, arguments."""


# ---------------------------------------------------------------------------------------------------------- the program


@dataclasses.dataclass
class Left:
    """What a program leaves behind; ``error`` is what it raised, with nothing else."""

    results: list[Tensor]
    gradients: list[Tensor | None]
    error: str = ""


class Program:
    """The steps of one seed, with this function: methods that take nothing, named in `STEPS` and `WRITES`."""

    def __init__(self, fn: Callable[..., Any], seed: int, names: Sequence[str]) -> None:
        self.fn, self.rng, self.calls = fn, random.Random(seed), 0
        values = torch.Generator().manual_seed(seed)
        base = torch.randn(4, 8, generator=values).to(fuzzing.DEVICE).requires_grad_()
        self.weight = torch.rand(8, generator=values).add_(0.5).to(fuzzing.DEVICE).requires_grad_()
        self.base = base
        first = base * 1 if self.rng.random() < 0.8 else base
        self.pool = [first.detach() if self.rng.random() < 0.15 else first]
        self.roots: list[Tensor] = []
        self.out: list[Tensor] = []
        self.gradients: list[Tensor | None] = []
        chances = [CHANCES.get(name, 1) for name in names]
        self.steps = self.rng.choices(names, chances, k=self.rng.randint(1, MOST_STEPS))
        for name, other in APART:
            self.steps = [one for one in self.steps if one != other or name not in self.steps]

    def run(self) -> Left:
        """All steps, then a backward at some of what came of them."""
        try:
            with contextlib.ExitStack() as self.around:
                for name in self.steps:
                    getattr(self, name)()
            roots = [one for one in self.roots if one.requires_grad]
            if roots:
                _sum(self.rng.sample(roots, self.rng.randint(1, len(roots)))).backward()
        except RuntimeError as error:
            return Left([], [], str(error))
        kept = [one.grad for one in self.out if one.retains_grad]
        return Left([*self.out, *self.roots], [self.base.grad, self.weight.grad, *kept, *self.gradients])

    # Calls.

    def call(self) -> None:
        """Of what came last, mostly."""
        self._take(self._called(self._argument()))

    def checkpoint(self) -> None:
        """Run anew in the backward."""
        self._take(checkpoint(self._called, self._argument(), use_reentrant=False))

    def saved_elsewhere(self) -> None:
        """What the backward needs is packed and unpacked by the program."""
        with saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t * 1):
            self._take(self._called(self._argument()))

    def without_gradients(self) -> None:
        """A result that takes no part in what is differentiated."""
        with torch.no_grad():
            found = self._called(self._argument())
        self.out += found if isinstance(found, tuple) else [found]

    def inferred(self) -> None:
        """A call whose arguments are inference tensors."""
        with torch.inference_mode():
            self.calls += 1
            self.fn(torch.ones(4, 8, device=fuzzing.DEVICE), self.weight.detach())

    def watched(self) -> None:
        """From here on anomalies are looked for."""
        self.around.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))

    # Gradients.

    def backward(self) -> None:
        """At what came last; it may come again."""
        if self.roots and self.roots[-1].requires_grad:
            _sum(self.roots[-1:]).backward(retain_graph=True)

    def followed(self) -> None:
        """Gradients of the last result, whose squares are a result; or not followed."""
        if not (self.roots and self.roots[-1].requires_grad):
            return
        followed = self._likely(0.6)
        found = self._take_gradients(_sum(self.roots[-1:]), create_graph=followed)
        if found and followed:
            self.roots.append(_sum([one.pow(2) for one in found]))

    def of_some(self) -> None:
        """Gradients for a result as it lies, given ones of other strides, or the same for each value."""
        roots = [one for one in self.roots if one.requires_grad]
        if roots:
            root = self.rng.choice(roots)
            given = torch.full_like(root, 0.5)
            if root.dim() == 2:
                given = given[:1].expand_as(root) if self._likely(0.5) else given.t().contiguous().t()
            self._take_gradients(root, grad_outputs=given)

    def batched(self) -> None:
        """Rows of a Jacobian at once, by vmap over the backward."""
        if self.roots and self.roots[-1].requires_grad:
            root = self.roots[-1]
            given = torch.stack([torch.full_like(root, by) for by in (1.0, -0.5, 2.0)])
            self._take_gradients(root, grad_outputs=given, is_grads_batched=True)

    def hook(self) -> None:
        """A gradient is made larger on its way."""
        one = self.rng.choice(self.pool)
        if one.requires_grad:
            one.register_hook(lambda gradient: gradient * 1.5)

    def retain(self) -> None:
        """A gradient in the middle is kept."""
        one = self.rng.choice(self.pool)
        if one.requires_grad and not one.is_leaf:
            one.retain_grad()
            self.out.append(one)

    def freeze(self) -> None:
        """The weight needs a gradient, or none."""
        self.weight.requires_grad_(not self.weight.requires_grad)

    def step(self) -> None:
        """The weight is trained; of what came before it nothing is differentiated any more (docs/guarantees.md)."""
        if self.weight.grad is not None:
            with torch.no_grad():
                self.weight -= 0.01 * self.weight.grad
            self.out, self.roots, self.pool = [*self.out, *self.roots], [], self.pool[:1]

    # Other tensors.

    def detach(self) -> None:
        """A leaf of a result."""
        self.pool.append(self.rng.choice(self.pool).detach().requires_grad_(self._likely(0.7)))

    def copy(self) -> None:
        """Of the same layout, or of another."""
        one = self.rng.choice(self.pool)
        self.pool.append(one.clone() if self._likely(0.5) else one.t().contiguous().t())

    # Writes.

    def add(self) -> None:
        """A result is added to an argument in place."""
        one = self.rng.choice(self.pool)
        if _may_be_written(one):
            by = self.pool[-1].detach() if self._likely(0.3) else self.pool[-1]
            one += by * 0.1

    def scale(self) -> None:
        """What came last is written."""
        if _may_be_written(self.pool[-1]):
            self.pool[-1].mul_(1.1)

    def write_rows(self) -> None:
        """Through a view."""
        one = self.rng.choice(self.pool)
        if _may_be_written(one):
            one[1:3].mul_(0.5)

    # What they share.

    def _called(self, argument: Tensor) -> Any:
        self.calls += 1
        return self.fn(argument, self.weight)

    def _argument(self) -> Tensor:
        return self.pool[-1] if self._likely(0.7) else self.rng.choice(self.pool)

    def _likely(self, chance: float) -> bool:
        return self.rng.random() < chance

    def _take(self, found: Any) -> None:
        for one in found if isinstance(found, tuple) else (found,):
            self.roots.append(one)
            if one.shape == self.base.shape:
                self.pool.append(one)

    def _take_gradients(self, root: Tensor, **given: Any) -> list[Tensor]:
        asked = [one for one in (self.base, self.weight, self.pool[0]) if one.requires_grad]
        if not asked:
            return []
        found = torch.autograd.grad(root, asked, allow_unused=True, retain_graph=True, **given)
        self.gradients += found
        return [one for one in found if one is not None]


STEPS = (
    *("call", "checkpoint", "saved_elsewhere", "without_gradients", "inferred", "watched"),
    *("backward", "of_some", "hook", "retain", "freeze", "step", "detach", "copy"),
)
FOLLOWED = ("followed", "batched")
"""Not of builds that give views of their arguments (docs/guarantees.md)."""
WRITES = ("add", "scale", "write_rows")
APART = (
    ("checkpoint", "freeze"),  # of arguments frozen between two calls, or at one: docs/guarantees.md
    ("followed", "freeze"),
    ("batched", "retain"),  # what is kept there of plain's backward cannot be read
)
"""Where a program has the first of a pair, it has not the second."""
CHANCES = {"call": 5, "followed": 2}


def _sum(roots: Sequence[Tensor]) -> Tensor:
    return torch.stack([one.float().sum() for one in roots]).sum()


def _may_be_written(one: Tensor) -> bool:
    return not (one.is_leaf and one.requires_grad)


# --------------------------------------------------------------------------------------------------------- the programs


def compare_programs(fn: Callable[..., Any], dispatcher: Any, seed: int, names: Sequence[str], tally: Tally) -> bool:
    """One program by plain and by the dispatcher; whether they agree.

    Where plain raises, what is kept for a backward was written, say, a build that keeps something else may answer.
    """
    plain, other = Program(fn, seed, names), Program(dispatcher, seed, names)
    expected, found = plain.run(), other.run()
    tally.calls += other.calls
    tally.raised += bool(expected.error)
    difference = "" if expected.error else found.error or _unlike(expected, found)
    if difference:
        tally.mismatches.append(f"{fn.__name__}, seed {seed}, {' '.join(plain.steps)}: {difference}")
    return not difference


def _unlike(plain: Left, other: Left) -> str | None:
    zeroed = [_zeros_if_none(*pair) for pair in zip(plain.gradients, other.gradients, strict=True)]
    return unlike(plain.results, other.results, 1e-3, "results") or unlike(
        [one for one, _ in zeroed], [one for _, one in zeroed], 1e-3, "gradients"
    )


def _zeros_if_none(one: Tensor | None, other: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """An input that no result depends on may get zeros in place of no gradient."""
    if (one is None) == (other is None):
        return one, other
    return (other.new_zeros(other.shape), other) if other is not None else (one, torch.zeros_like(one))  # type: ignore[arg-type] # one of both is


def worked(fn: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The function with more work, so that a build is chosen, and with code of its own, so that nothing is known."""

    def learned(x: Tensor, w: Tensor) -> Any:
        found = fn(x, w)
        *rest, last = found if isinstance(found, tuple) else (found,)
        for _ in range(WORK):
            last = last * 1.01 + 0.01
        return (*rest, last) if rest else last

    code = learned.__code__.replace(co_name=f"{fn.__name__}_{number}")
    return types.FunctionType(code, globals(), code.co_name, None, learned.__closure__)


def fuzz_programs(calls: int, seed: int, until: float = math.inf) -> Tally:
    """Programs without writes on one of the functions, whose builds answer all calls that they accept."""
    seeds, tally = random.Random(seed), Tally()
    fn = PROGRAMMED[seed % len(PROGRAMMED)]
    dispatcher = shapedispatch(fn, exact=True, hints=(), store=False)
    dispatcher.core.settings = dataclasses.replace(dispatcher.core.settings, pick="exact")
    names = STEPS if fn is viewed else (*STEPS, *FOLLOWED)
    while tally.calls < calls and time.time() < until:
        compare_programs(fn, dispatcher, seeds.getrandbits(32), names, tally)
    tally.count(dispatcher)
    return tally


def fuzz_learned_programs(functions: int, seed: int, until: float = math.inf) -> Tally:
    """Each program, with writes, some times over while its own function is learned."""
    seeds, tally = random.Random(seed), Tally()
    for number in range(seed, seed + functions):
        if time.time() > until:
            break
        learned, program = worked(PROGRAMMED[number % len(PROGRAMMED)], number), seeds.getrandbits(32)
        dispatcher = shapedispatch(learned, exact=True, hints=(), store=False)
        for _ in range(LEARNED_RUNS):
            if not compare_programs(learned, dispatcher, program, (*STEPS, *FOLLOWED, *WRITES), tally):
                break
        tally.count(dispatcher)
    return tally
