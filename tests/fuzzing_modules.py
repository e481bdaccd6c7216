"""Generated calls of modules and of compiled builds: what a hit must notice besides its arguments.

Two modules of equal state are called in turn: one runs its `forward` as written, the other the dispatched one. Between
calls both change alike: training or not, a parameter written, replaced or frozen, a buffer written, an attribute set.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from shapedispatch import Variant, shapedispatch, wait
from shapedispatch.functions.backend import TorchFunction
from shapedispatch.graphs import placed
from shapedispatch.online import repeats
from shapedispatch.online.pool import Pool
from tests import fuzzing
from tests.fuzzing import (
    DEFAULTS,
    FUNCTIONS,
    Growing,
    Simple,
    Tally,
    compare,
    fuzz_built,
    last_wins,
    make_tensor,
    unlike,
    within,
)

BUILT = (
    *("same_or_not", "write_then_read", "in_place", "transposed", "scale", "noisy", "configured", "made", "layers"),
    *("by_sizes", "by_roots", "tuned", "activated"),
)
"""The functions that builds are compiled of."""
WAITS = 0.004
"""How often it is waited for what other processes build."""
GROWS, MOST_ROWS = 0.3, 1_500
"""How often there are some hundred calls whose sizes do not come again, and up to how many rows."""


class Fuzzed(nn.Module):
    """What all of them have: an attribute that may change."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0

    def forward(self, x: Tensor) -> Any:
        """See the subclasses."""
        raise NotImplementedError


class Dense(Fuzzed):
    """Parameters of a module within."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        """Values that need gradients."""
        return torch.relu(self.inner(x)) * self.scale


class Averaging(Fuzzed):
    """In training a call writes buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Any:
        """By the values of the batch, or by the buffers."""
        return self.inner(x) + self.scale


class Dropping(Fuzzed):
    """In training a call draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.inner = nn.Dropout(0.4)

    def forward(self, x: Tensor) -> Any:
        """Less of it in training."""
        return self.inner(x) * self.weight


class Counting(Fuzzed):
    """A call writes a buffer, and reads a view of another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("table", torch.arange(8.0))

    def forward(self, x: Tensor) -> Any:
        """With views of a buffer as a result."""
        self.seen.add_(1)
        return x * self.table[4:], self.table[:2], self.seen + 0


class Chosen(Fuzzed):
    """Which module runs depends on an attribute and on training."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.LayerNorm(4)])

    def forward(self, x: Tensor) -> Any:
        """One of two, or both."""
        if self.training:
            x = self.inner[0](x)
        return self.inner[1](x) if self.scale > 1.0 else x


class Updating(Fuzzed):
    """A call writes its argument, which may lie in a buffer that is read before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.linspace(-1, 1, 32).view(8, 4))

    def forward(self, x: Tensor) -> Any:
        """Of the buffer as it was, and as it is then."""
        before = x + self.held[:1]
        x.mul_(0.5).add_(self.scale)
        return before * self.held[2:3], x - self.held[1:2]


MODULES = (Dense, Averaging, Dropping, Counting, Chosen, Updating)
STATES: tuple[dict[str, Any], ...] = (
    {},
    {"grad": False},
    {"autocast": torch.bfloat16},
    {"inference": True},
    {"default dtype": torch.float64},
)


class Twins:
    """Two modules of equal state and their changes; ``said`` is the decorator's."""

    def __init__(self, kind: type[Fuzzed], rng: random.Random, said: Mapping[str, Any]) -> None:
        own = type(kind.__name__, (kind,), {})
        self.dispatcher: Any = shapedispatch(kind.forward, hints=(), store=False, **said)
        self.dispatcher.core.timer_for = last_wins
        own.forward = self.dispatcher
        self.plain, self.other = kind().to(fuzzing.DEVICE), own().to(fuzzing.DEVICE)
        self.other.load_state_dict(self.plain.state_dict())
        self.rng = rng

    def both(self, do: Callable[[Any], object]) -> None:
        """The same change to each."""
        do(self.plain)
        do(self.other)

    def train(self) -> None:
        """Training or not."""
        mode = self.rng.random() < 0.5
        self.both(lambda module: module.train(mode))

    def attribute(self) -> None:
        """A number that the code reads."""
        scale = self.rng.choice((1.0, 2.0))
        self.both(lambda module: setattr(module, "scale", scale))

    def write(self) -> None:
        """Each parameter and buffer of floats is written in place."""
        by = self.rng.choice((0.5, 0.9, 1.1, -1.0))
        with torch.no_grad():
            self.both(
                lambda module: [t.mul_(by) for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
            )

    def freeze(self) -> None:
        """Parameters that need a gradient, or none."""
        needed = self.rng.random() < 0.5
        self.both(lambda module: module.requires_grad_(needed))

    def replace(self) -> None:
        """Each parameter is another object, with other values."""

        def renewed(module: nn.Module) -> None:
            for inner in module.modules():
                for name, one in list(inner.named_parameters(recurse=False)):
                    setattr(inner, name, nn.Parameter(one.detach() + 0.25, requires_grad=one.requires_grad))

        self.both(renewed)

    def buffers(self) -> None:
        """Each buffer is another object."""

        def renewed(module: nn.Module) -> None:
            for inner in module.modules():
                for name, one in list(inner.named_buffers(recurse=False)):
                    setattr(inner, name, one.clone())

        self.both(renewed)

    def compare(self, spec: int, state: Mapping[str, Any], tally: Tally) -> None:
        """One call of each."""
        with within({**DEFAULTS, **state}):
            inside = self.rng.randrange(4) if self.rng.random() < 0.3 else None
            plain, other = (self._seen(module, spec, inside) for module in (self.plain, self.other))
        rough = 4e-2 if state.get("autocast") else False
        found = next(
            filter(None, (unlike(*pair, rough, str(i)) for i, pair in enumerate(zip(plain, other, strict=True)))), None
        )
        tally.calls += 1
        tally.raised += plain[0] is not None
        if found:
            tally.mismatches.append(f"{type(self.plain).__name__}, spec {spec}, state {state}: {found}")

    def _seen(self, module: nn.Module, spec: int, inside: int | None) -> tuple[Any, ...]:
        """What a call leaves: what it raised, its result, gradients, what it wrote, the generator.

        A module that writes its argument is given rows of its own, from the one that is ``inside``.
        """
        rng = random.Random(spec)
        sizes, layout = (rng.choice((2, 3, 5)), 4), rng.choice(("dense", "transposed", "misaligned"))
        with torch._C.DisableTorchFunction(), torch.inference_mode(False):
            x = make_tensor(sizes, torch.float32, layout, 3 * rng.randrange(13) + (rng.random() < 0.5))
            x.requires_grad_(rng.random() < 0.4)
        if inside is not None and isinstance(module, Updating):
            x = module.held[inside : inside + 3]
        torch.manual_seed(spec)
        error, result = None, None
        try:
            result = module(x)
        except Exception as raised:  # noqa: BLE001 - its class is what is compared
            error = type(raised).__name__
        leaves = [t for t in (x, *module.parameters()) if t.requires_grad]
        gradients = (
            []
            if torch.is_inference_mode_enabled()
            else fuzzing._gradients(list(fuzzing.tensors_in(result)), leaves, spec)
        )
        gradients = [t.clone(memory_format=torch.contiguous_format) if isinstance(t, Tensor) else t for t in gradients]
        return error, result, gradients, x, dict(module.state_dict()), torch.get_rng_state()


def fuzz_modules(calls: int, seed: int, batch: int = 500, until: float = math.inf) -> Tally:
    """Modules with a supplied variant: every change may come before any call."""
    rng, tally = random.Random(seed), Tally()
    while tally.calls < calls and time.time() < until:
        kind = MODULES[(seed + tally.calls // batch) % len(MODULES)]
        plain = kind.forward
        again = Variant(lambda module, x, plain=plain: plain(module, x), name="again")
        twins = Twins(kind, rng, {"variants": [again], "maxsize": rng.choice((4, 64, 64))})
        changes = (twins.train, twins.attribute, twins.write, twins.freeze, twins.replace, twins.buffers)
        _run(
            twins,
            changes,
            0.02,
            STATES,
            [rng.getrandbits(32) for _ in range(4)],
            min(batch, calls - tally.calls),
            tally,
        )
    return tally


def fuzz_builds(calls: int, seed: int) -> Tally:
    """Compiled builds, of one function and of one module, few of each: what is compared is mostly hits."""
    rng, tally = random.Random(seed), Tally()
    function = FUNCTIONS[BUILT[seed % len(BUILT)]]
    dispatcher = shapedispatch(function.fn, hints=(), exact=True, store=False)
    dispatcher.core.timer_for = last_wins
    found = fuzz_built(function, dispatcher, calls // 2, seed, specs=3)
    twins = Twins(MODULES[seed % len(MODULES)], rng, {"exact": True})
    change = rng.choice((twins.train, twins.attribute, twins.freeze))
    _run(twins, (change, twins.write), 0.05, STATES[:2], [rng.getrandbits(32)], calls - calls // 2, tally)
    tally.calls, tally.raised = tally.calls + found.calls, tally.raised + found.raised
    tally.mismatches += found.mismatches
    tally.count(dispatcher)
    return tally


class OneSizeOnce:
    """A function whose calls have other sizes each time, but for some: all that may pass is let pass, and soon.

    To its pools builds are far faster than plain, so that where there are any, calls pass by these.
    """

    def __init__(self, name: str, rng: random.Random) -> None:
        self.function, self.rng, self.spec = FUNCTIONS[name], rng, rng.getrandbits(32)
        self.dispatcher = shapedispatch(self.function.fn, store=False)
        self.rows = itertools.cycle(range(2, MOST_ROWS))

    def compare(self, calls: int, tally: Tally) -> None:
        """So many calls."""
        state = {**DEFAULTS, "grad": self.rng.random() < 0.1}
        gave = Pool.gave

        def favoured(pool: Pool, pairs: Sequence[tuple[str, float, bool]]) -> None:
            gave(pool, [(name, share / 100, cold) for name, share, cold in pairs])

        with mock.patch.multiple(repeats, LOOKED_THROUGH=8, PASS_S=-1.0), mock.patch.object(Pool, "gave", favoured):
            for _ in range(calls):
                spec = self.spec if self.rng.random() < 0.95 else self.rng.getrandbits(32)
                rows = next(self.rows) if self.rng.random() < 0.95 else self.rng.randrange(2, MOST_ROWS)
                call = Growing(self.function, spec, state, rows)
                compare(self.dispatcher, call, self.rng.getrandbits(16), tally, exact=False)

    def passed(self) -> tuple[int, int]:
        """How many calls have passed as written, and how many by what runs their kin."""
        path = self.dispatcher.core.fast_path
        return (0, 0) if path is None else (path.spared, path.passed)


def fuzz_background(calls: int, seed: int, until: float = math.inf) -> tuple[Tally, dict[str, int]]:
    """Functions and modules in turn while other processes build for them; and how many builds these have made.

    Builds land at any moment, between any two calls; now and then all that is ordered is waited for. Of calls whose
    sizes never come again it is told how many have passed.
    """
    from shapedispatch.background import orders

    rng, tally = random.Random(seed), Tally()
    learned = [
        (FUNCTIONS[name], shapedispatch(FUNCTIONS[name].fn, exact=rng.random() < 0.5, store=False)) for name in BUILT
    ]
    pools = {function: [rng.getrandbits(32) for _ in range(3)] for function, _ in learned}
    twins = [(Twins(kind, rng, {"exact": True}), rng.getrandbits(32)) for kind in MODULES]
    growing = [OneSizeOnce(name, rng) for name in BUILT]
    while tally.calls < calls and time.time() < until:
        if rng.random() < GROWS:
            rng.choice(growing).compare(rng.randrange(50, 400), tally)
        elif rng.random() < 0.75:
            function, dispatcher = rng.choice(learned)
            state = {**DEFAULTS, "grad": rng.random() < 0.6}
            for _ in range(rng.randrange(5, 80)):
                call = Simple(function, rng.choice(pools[function]), state)
                compare(dispatcher, call, rng.getrandbits(16), tally, exact=False)
        else:
            both, spec = rng.choice(twins)
            if rng.random() < 0.2:
                rng.choice((both.train, both.attribute, both.freeze, both.write))()
            state = rng.choice(STATES[:2])
            for _ in range(rng.randrange(5, 60)):
                both.compare(spec, state, tally)
        if rng.random() < WAITS:
            wait(timeout=10)
    kept = [*(one for _, one in learned), *(both.dispatcher for both, _ in twins), *(one.dispatcher for one in growing)]
    for dispatcher in kept:
        tally.count(dispatcher)
    built = sum(one.built for one in orders._shared.values())
    plainly, by_kin = (sum(each) for each in zip(*(one.passed() for one in growing), strict=True))
    return tally, {"landed": built, "passed_plainly": plainly, "passed_by_kin": by_kin}


def fuzz_graphs(calls: int, seed: int, until: float = math.inf) -> Tally:
    """Functions and modules in turn, run by CUDA graphs wherever there are any, tensors new each time.

    By those of their builds, or, of every other seed, by those of what plain launches. Places that tensors come to
    again have recordings of their own sooner than in a program.
    """
    with contextlib.ExitStack() as patched:
        patched.enter_context(mock.patch.object(placed, "OFTEN", 3))
        if seed % 2:
            patched.enter_context(mock.patch.object(TorchFunction, "_offer_plains_graph", return_value=None))
        return _fuzz_graphs(calls, seed, until, of_builds=bool(seed % 2))


def _fuzz_graphs(calls: int, seed: int, until: float, of_builds: bool) -> Tally:
    rng, tally = random.Random(seed), Tally()
    given = {"exact": of_builds, "graphs": True}
    recorded = [(FUNCTIONS[name], shapedispatch(FUNCTIONS[name].fn, hints=(), store=False, **given)) for name in BUILT]
    for _, dispatcher in recorded:
        dispatcher.core.timer_for = last_wins
    pools = {function: [rng.getrandbits(32) for _ in range(3)] for function, _ in recorded}
    twins = [(Twins(kind, rng, given), rng.getrandbits(32)) for kind in MODULES]
    while tally.calls < calls and time.time() < until:
        state = {**DEFAULTS, "grad": rng.random() < 0.1}
        if rng.random() < 0.6:
            function, dispatcher = rng.choice(recorded)
            for _ in range(rng.randrange(5, 80)):
                call = Simple(function, rng.choice(pools[function]), state)
                compare(dispatcher, call, rng.getrandbits(16), tally, exact=False)
        else:
            both, spec = rng.choice(twins)
            if rng.random() < 0.3:
                rng.choice((both.train, both.attribute, both.freeze, both.write))()
            for _ in range(rng.randrange(5, 60)):
                both.compare(spec, state, tally)
    for dispatcher in [*(one for _, one in recorded), *(both.dispatcher for both, _ in twins)]:
        tally.count(dispatcher)
    return tally


def _run(
    twins: Twins,
    changes: Sequence[Callable[[], object]],
    chance: float,
    states: Sequence[Mapping[str, Any]],
    specs: Sequence[int],
    calls: int,
    tally: Tally,
) -> None:
    for _ in range(calls):
        if twins.rng.random() < chance:
            twins.rng.choice(changes)()
        twins.compare(twins.rng.choice(specs), twins.rng.choice(states), tally)
    tally.count(twins.dispatcher)
