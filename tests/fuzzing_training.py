"""Generated programs that train models: what happens to modules, parameters and gradients between the calls of a model.

Two models of equal state, of blocks of a few kinds, go through the same steps: calls of the whole, backwards, steps of
an optimiser, weights loaded, moved, tied, frozen, averaged, parametrized, hooks, copies of the model, casts. One runs
its blocks as written, the other by a dispatcher for each kind, which knows nothing of the program. What is left must be
the same: results, gradients and all state.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import clip_grad_norm_, parametrize
from torch.utils.checkpoint import checkpoint

from shapedispatch import shapedispatch
from tests import fuzzing
from tests.fuzzing import Tally, unlike

WIDTH, BLOCKS, MOST_STEPS, ROWS = 8, 3, 9, (2, 3, 8, 17)


# ----------------------------------------------------------------------------------------------------------- the models


class Gated(nn.Module):
    """Two products and a gate; an attribute is a number of its code."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.5
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """With what goes around it."""
        hidden = self.up(x)
        return x + self.down(hidden * torch.sigmoid(hidden)) * self.factor


class Normed(nn.Module):
    """A norm by hand, a buffer, and a module that may be another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("shift", torch.linspace(-0.2, 0.2, WIDTH))
        self.act: nn.Module = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        """In the type that comes in."""
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight
        return self.act(scaled) + self.shift


class Averaged(nn.Module):
    """What a call writes in training, and reads else."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.9))

    def forward(self, x: Tensor) -> Tensor:
        """Another code in training."""
        normed = self.norm(x) if self.training else x
        return torch.relu(normed) * self.scale + x


KINDS = (Gated, Normed, Averaged)


class Stack(nn.Module):
    """Some blocks, each run by what its kind is run by."""

    def __init__(self, kinds: Sequence[type[nn.Module]], runs: Mapping[type, Callable[..., Any]]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind() for kind in kinds)
        self.runs = runs

    def __deepcopy__(self, memo: dict[int, Any]) -> Stack:
        """Its blocks alone: what runs them is the same."""
        made = Stack((), self.runs)
        made.blocks = copy.deepcopy(self.blocks, memo)
        return made.train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        """One after another."""
        for block in self.blocks:
            x = block(x) if block._forward_hooks else self.runs[type(block)](block, x)
        return x


# ---------------------------------------------------------------------------------------------------------- the program


@dataclasses.dataclass
class Left:
    """What a program leaves behind; ``rough`` was computed in few digits, ``error`` is raised, with nothing else."""

    values: list[Tensor]
    gradients: list[Tensor | None]
    rough: list[Tensor]
    error: str = ""


class Training:
    """The steps of one seed with models whose kinds are run like this: methods that take nothing, named in `STEPS`."""

    def __init__(self, runs: Mapping[type, Callable[..., Any]], seed: int) -> None:
        self.rng, self.calls, self.dtype = random.Random(seed), 0, torch.float32
        torch.manual_seed(seed)
        self.model = Stack([self.rng.choice(KINDS) for _ in range(BLOCKS)], runs).to(fuzzing.DEVICE)
        self.loaded = {name: torch.randn_like(t, dtype=torch.float32) for name, t in self.model.state_dict().items()}
        self.average = copy.deepcopy(self.model)
        self.out: list[Tensor] = []
        self.rough: list[Tensor] = []
        self.steps = self.rng.choices(STEPS, [CHANCES.get(name, 1) for name in STEPS], k=MOST_STEPS)

    def run(self) -> Left:
        """All steps, one of training and one without after them."""
        try:
            for name in [*self.steps, "learn", "evaluated"]:
                getattr(self, name)()
        except RuntimeError as error:
            return Left([], [], [], str(error))
        states = [*self.model.state_dict().values(), *self.average.state_dict().values()]
        return Left([*self.out, *states], [one.grad for one in self.model.parameters()], self.rough)

    # Calls.

    def learn(self) -> None:
        """A call, its backward, a step of an optimiser."""
        loss = self._called(self.model, self._rows()).float().pow(2).mean()
        if loss.requires_grad:
            loss.backward()
            self._optimise(1.0)

    def accumulate(self) -> None:
        """Several calls, whose gradients come together."""
        for _ in range(2):
            loss = self._called(self.model, self._rows()).float().mean()
            if loss.requires_grad:
                (loss * 0.5).backward()

    def scaled(self) -> None:
        """A loss that is scaled on its way back."""
        scaler = torch.amp.GradScaler(fuzzing.DEVICE, init_scale=64.0)  # type: ignore[attr-defined]  # torch has it
        loss = self._called(self.model, self._rows()).float().pow(2).mean()
        if loss.requires_grad:
            scaler.scale(loss).backward()
            self._optimise(1 / 64.0)

    def checkpointed(self) -> None:
        """Run anew in the backward."""
        x = self._rows().requires_grad_()
        self.calls += 1
        checkpoint(self.model, x, use_reentrant=False).float().sum().backward()
        self._keep(x.grad)

    def evaluated(self) -> None:
        """Without gradients, in the other mode, or in inference mode."""
        training = self.model.training
        self.model.eval()
        with torch.inference_mode(self._likely(0.3)), torch.no_grad():
            self._keep(self._called(self.model, self._rows()))
        self.model.train(training)

    def autocast(self) -> None:
        """In less digits."""
        with torch.autocast(fuzzing.DEVICE, torch.bfloat16):
            self.rough.append(self._called(self.model, self._rows()).detach().clone())

    def functional(self) -> None:
        """With other parameters, which are the model's as long as the call lasts."""
        named = {name: one.detach() * 1.1 for name, one in self.model.named_parameters()}
        self.calls += 1
        self._keep(functional_call(self.model, named, (self._rows(),)))

    def averaged(self) -> None:
        """A model whose parameters follow the other's."""
        with torch.no_grad():
            for one, other in zip(self.average.parameters(), self.model.parameters(), strict=False):
                if one.shape == other.shape and one.dtype == other.dtype:
                    one.lerp_(other, 0.1)
            self._keep(self._called(self.average, self._rows(torch.float32)))

    # Of the model.

    def mode(self) -> None:
        """Training, or not."""
        self.model.train(self._likely(0.5))

    def load(self) -> None:
        """Other weights, into those that are there or in place of them."""
        state = {name: one.to(t.dtype) for (name, t), one in zip(self._state(), self.loaded.values(), strict=False)}
        if [t.shape for t in state.values()] == [t.shape for _, t in self._state()]:
            self.model.load_state_dict({name: t.clone() for name, t in state.items()}, assign=self._likely(0.4))

    def flatten(self) -> None:
        """All parameters lie in one memory, as an optimiser of flat ones has it."""
        own = list(self.model.parameters())
        flat = torch.cat([one.detach().reshape(-1) for one in own])
        for one, values in zip(own, flat.split([one.numel() for one in own]), strict=True):
            one.data = values.view_as(one)

    def freeze(self) -> None:
        """One parameter needs a gradient, or none."""
        one = self.rng.choice(list(self.model.parameters()))
        one.requires_grad_(not one.requires_grad)

    def tie(self) -> None:
        """Two blocks have one parameter."""
        gated = [block for block in self._blocks(Gated) if not parametrize.is_parametrized(block.down)]
        if len(gated) > 1:
            gated[-1].down.weight = gated[0].down.weight

    def parametrized(self) -> None:
        """A weight is computed at each call, from then on."""
        gated = [block for block in self._blocks(Gated) if not parametrize.is_parametrized(block.down)]
        if gated and not self._likely(0.5):
            parametrize.register_parametrization(self.rng.choice(gated).down, "weight", Halved())

    def attribute(self) -> None:
        """A number that code reads is another."""
        for block in self._blocks(Gated):
            block.factor = self.rng.choice((0.5, 1.5))

    def module(self) -> None:
        """A module within is another."""
        for block in self._blocks(Normed):
            block.act = nn.ReLU() if self._likely(0.5) else nn.Tanh()

    def buffer(self) -> None:
        """A buffer is written, or another object."""
        for block in self._blocks(Normed):
            block.shift = block.shift.add_(0.1) if self._likely(0.5) else block.shift * 0.9

    def hook(self) -> None:
        """What a block gives is changed on its way."""
        block = self.rng.choice(list(self.model.blocks))
        if block._forward_hooks:
            block._forward_hooks.clear()
        else:
            block.register_forward_hook(lambda block, given, found: found * 1.1)

    def hook_within(self) -> None:
        """The same of a module within a block, or of its gradient."""
        for block in self._blocks(Gated):
            if self._likely(0.5):
                block.up.register_forward_hook(lambda block, given, found: found * 0.9)
            elif block.up.weight.requires_grad:
                block.up.weight.register_hook(lambda gradient: gradient * 0.5)

    def copied(self) -> None:
        """The program goes on with a copy of the model."""
        self.model = copy.deepcopy(self.model)

    def cast(self) -> None:
        """All of it has another type."""
        self.dtype = torch.float64 if self.dtype is torch.float32 else torch.float32
        self.model.to(self.dtype)

    # What they share.

    def _rows(self, dtype: torch.dtype | None = None) -> Tensor:
        count, at = self.rng.choice(ROWS), self.rng.random()
        values = torch.linspace(-1 - at, 1 + at, count * WIDTH, dtype=torch.float64).sin()
        return values.view(count, WIDTH).to(fuzzing.DEVICE, dtype or self.dtype)

    def _called(self, model: Stack, x: Tensor) -> Tensor:
        self.calls += 1
        found: Tensor = model(x)
        return found

    def _optimise(self, by: float) -> None:
        with torch.no_grad():
            for one in self.model.parameters():
                if one.grad is not None:
                    one.grad *= by
            clip_grad_norm_(self.model.parameters(), 1.0)
            for one in self.model.parameters():
                if one.grad is not None:
                    one -= 0.05 * one.grad
        if self._likely(0.7):
            self.model.zero_grad(set_to_none=self._likely(0.5))

    def _keep(self, one: Tensor | None) -> None:
        self.out.append(torch.zeros(()) if one is None else one.detach().clone())

    def _likely(self, chance: float) -> bool:
        return self.rng.random() < chance

    def _blocks(self, kind: type) -> list[Any]:
        return [block for block in self.model.blocks if type(block) is kind]

    def _state(self) -> list[tuple[str, Tensor]]:
        return list(self.model.state_dict().items())


class Halved(nn.Module):
    """A parametrization."""

    def forward(self, weight: Tensor) -> Tensor:
        """Half of it, and something beside."""
        return weight * 0.5 + 0.01


CALLS = ("learn", "accumulate", "scaled", "checkpointed", "evaluated", "autocast", "functional", "averaged")
CHANGES = (
    *("mode", "load", "flatten", "freeze", "tie", "parametrized", "attribute", "module", "buffer"),
    *("hook", "hook_within", "copied", "cast"),
)
STEPS = (*CALLS, *CHANGES)
CHANCES = {"learn": 5, "evaluated": 2}


# --------------------------------------------------------------------------------------------------------- the programs


def dispatched(pinned: bool) -> dict[type, Any]:
    """A dispatcher for each kind; where it is ``pinned`` a build answers each call that it accepts, else it learns."""
    made = {kind: shapedispatch(kind.forward, exact=True, hints=(), store=False) for kind in KINDS}
    for one in made.values():
        if pinned:
            one.core.settings = dataclasses.replace(one.core.settings, pick="exact")
    return made


def compare_training(runs: Mapping[type, Callable[..., Any]], seed: int, tally: Tally) -> bool:
    """One program by plain and by these; whether they agree. Where plain raises, nothing is said."""
    plain, other = Training({kind: kind.forward for kind in KINDS}, seed), Training(runs, seed)
    expected, found = plain.run(), other.run()
    tally.calls += BLOCKS * other.calls
    tally.raised += bool(expected.error)
    difference = "" if expected.error else found.error or _unlike(expected, found)
    if difference:
        tally.mismatches.append(f"seed {seed}, {' '.join(plain.steps)}: {difference}")
    return not difference


def _unlike(plain: Left, other: Left) -> str | None:
    """A step of training magnifies what rounding leaves; with few digits a norm of large values does, too."""
    places = (("values", 2e-3), ("gradients", 2e-3), ("rough", 0.2))
    found = (unlike(getattr(plain, place), getattr(other, place), digits, place) for place, digits in places)
    return next(filter(None, found), None)


def fuzz_training(made: Mapping[type, Any], calls: int, seed: int, until: float = math.inf) -> Tally:
    """So many calls of blocks in such programs, by these dispatchers."""
    seeds, tally = random.Random(seed), Tally()
    while tally.calls < calls and time.time() < until:
        compare_training(made, seeds.getrandbits(32), tally)
    for one in made.values():
        tally.count(one)
    return tally
