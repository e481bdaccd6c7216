"""The calls of keys that find out together, of which C makes samples: whatever key comes takes a candidate's turn.

Where sizes hardly repeat, no key has calls enough to find its code in the caches and then be timed. All of them have:
some calls of one candidate go before, one or two are its samples, and each is half a pair for the pool of the key that
was called. So a pair costs little more than the calls that it is made of.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from ..backend import Check
from ..choices.context import DispatcherParts, MissContext, capturing
from ..choices.follows import Follows
from ..choices.learner import WARM, all_checks_of
from ..errors import in_a_line
from ..hit.native import call_turns, pool_leader, pooled_calls
from ..hit.table import Entry
from ..hit.turns import CallTurns, PoolLeader
from ..interpreter.locks import fork_safe_lock, if_free
from ..keys.key import Key
from ..online.contest import COLD_US, FAR, SAMPLE_US, SMALL_US
from ..online.figures import Figures
from ..online.pairs import PLAIN_US, Half
from ..online.pool import MOST_POOLS, Family, Pool
from ..online.real_calls import Sampler, sampler
from ..online.shares import Shares
from ..records import Choice, Refusal

__all__ = ["SharedTurns", "TakesTurns"]

AT_ONCE = 2
"""How many samples are taken of a candidate once its code is in the caches."""
LONG_WARM, MORE_AT_ONCE = 12, 4
"""How many calls go before, and how many samples are taken, where none of the last was dear. The host gets faster at a
build of much code for a dozen of calls; and what some samples have shown is seen in little more time than what one has.
"""
MOST_PASSES = 31
"""How many times in a row it is not polled, at most: most times find nothing to do, and take as long as some calls."""
AT_SIGHT, PATIENCE = 2, 1024
"""After how many rounds small calls that come beside a new key take no turn, and how many of them in a row: where sizes
never repeat, there are no others. What is much faster is seen to be so even there."""
Where: TypeAlias = tuple[Pool, tuple[int, ...], bool]
"""Of which pool a sample's key is, of which sizes, and whether it came beside a new key."""


@dataclass(slots=True, eq=False)
class SharedTurns:
    """Which candidate the next calls of a family's keys run, and what the samples among them have shown.

    It is polled when there is a new key, and at hits that have a turn.
    """

    core: DispatcherParts
    family: Family
    known: Mapping[str, Entry]
    """What the family knows to be right, when it was last seen that this is no more than what is among ``entries``."""
    entries: Mapping[str, Entry]
    """What runs each candidate, the first of which is plain, at one of the keys."""
    runs: Mapping[str, Callable[..., Any]]
    """What that was when this was made: a build that has left since runs at no key."""
    sampler: Sampler
    regime: str
    shares: Shares | None
    device: torch.device
    check: Check | None
    """What is asked before each call: any of the builds may run it."""
    turns: CallTurns = field(init=False)
    calls: Callable[[PoolLeader, Where, Where], Callable[..., Any]] = field(init=False)
    """What makes what a key runs."""
    leaders: dict[Pool, PoolLeader] = field(default_factory=dict)
    """What the keys of each pool run at calls that take no turn."""
    refused: dict[str, Refusal] = field(default_factory=dict)
    """Why those are out that have raised."""
    _before: int = WARM
    """How many calls of each candidate go before its samples."""
    _at_once: int = AT_ONCE
    """How many of those were begun last."""
    _begun: int = 0
    _passed: int = 0
    """How often it was not polled since the last time."""
    _passes: int = 0
    """How often it is not, after a time that found nothing to begin: twice as often each time."""
    _polled_ns: int = 0
    """When it was polled last."""
    _least_us: float = 0.0
    """The least that a sample has taken."""
    _least_in: dict[Pool, float] = field(default_factory=dict)
    """The same in each pool, of sizes near each other."""
    _most_us: float = 0.0
    """The most that a sample has taken, of those that were begun last."""
    _polling: threading.Lock = field(default_factory=fork_safe_lock)

    @classmethod
    def of(cls, ctx: MissContext, pool: Pool) -> SharedTurns | None:
        """Those of the pool's family, with what is known to be right by now; None where C takes no turns for them."""
        family, before = pool.family, pool.family.shared
        there = dict(sorted(family.entries.items(), key=lambda item: item[0] != "plain"))
        runs = {name: entry.run for name, entry in there.items()}
        if isinstance(before, SharedTurns):
            if before.runs == runs:
                before.known = family.entries
                return before
            before.turns.begin(())
        right = len(runs) > 1 and "plain" in runs and None not in runs.values()
        family.shared = made = cls._made(ctx, family, there) if right else None
        return made

    @classmethod
    def _made(cls, ctx: MissContext, family: Family, there: Mapping[str, Entry]) -> SharedTurns | None:
        core, regime = ctx.core, ctx.settings.regime
        core.turns.begin(core.fast_path)
        takes, shares = sampler(ctx.device)
        if ctx.grad() or not core.turns.on or not takes.in_c:
            return None
        check = all_checks_of([entry.check for entry in there.values() if entry.build is not None])
        runs = {name: entry.run for name, entry in there.items() if entry.run is not None}
        made = cls(core, family, family.entries, there, runs, takes, regime, shares, ctx.device, check)
        turns = call_turns(core.backend.plain, core.backend.plain, made.raised, core.fast_path, ctx.device)
        if turns is None:
            return None
        made.takes(turns)
        return made

    def takes(self, turns: CallTurns) -> None:
        """By these."""
        self.turns, self.calls = turns, pooled_calls(turns)

    def entry(self, key: Key, pool: Pool, choice: Choice) -> Entry:
        """The entry of a key that takes turns, and else runs what leads in its pool; all candidates take its calls."""
        sizes, leader = tuple(choice.sizes.values()), self._leader(pool)
        self.poll()
        call = self.calls(leader, (pool, sizes, True), (pool, sizes, False))
        built = [entry for entry in self.entries.values() if entry.build is not None]
        builds, retry = tuple(entry.build for entry in built), all(entry.retry for entry in built)
        self.core.turns.hurry(1)
        follows = TakesTurns(self.core, key, pool, None, True, (), pool.favourite, shared=self)
        return Entry(call, self.check, choice, None, retry, others=builds, learner=follows)

    def _leader(self, pool: Pool) -> PoolLeader:
        if pool not in self.leaders:
            while len(self.leaders) >= MOST_POOLS:
                left = next(iter(self.leaders))
                del self.leaders[left]
                self._least_in.pop(left, None)
            self.leaders[pool] = pool_leader(self.runs["plain"])
            self._passes = 0
            with self.family.lock:
                for name in [name for name in self.entries if not pool.knows(name)]:
                    pool.learns(name, self.entries[name])
                self.follow(pool)
        return self.leaders[pool]

    def is_current(self) -> bool:
        """Whether these are the family's, and it knows of nothing else by now."""
        return self.family.shared is self and self.family.entries is self.known

    def leads(self, pool: Pool) -> str:
        """The candidate that the pool's keys run: its favourite, if that is one of them."""
        favourite = pool.favourite or "plain"
        return favourite if favourite in self.runs else "plain"

    def follow(self, pool: Pool) -> None:
        """See `online.pool.Shared`."""
        leader = self.leaders.get(pool)
        if leader is not None:
            leader.run = self.runs[self.leads(pool)]
            leader.open = not pool.over and bool(pool.pairs.wanted(self._compared()))

    def _compared(self) -> list[str]:
        """The candidates that are compared with plain."""
        return [name for name in self.runs if name != "plain"]

    def awaits_new(self) -> bool:
        """Whether the next new keys are to take turns: not where those are for others, if such come."""
        return self.turns.left > 0 and not self.turns.patience

    def serves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether all candidates may run this call, which differs in sizes alone from others that they ran."""
        builds = [entry.build for entry in self.entries.values() if entry.build is not None]
        return all(
            (build := self.core.table.build(key)) is not None and self.core.backend.serves(build, args, kwargs)
            for key in builds
        )

    def poll(self) -> None:
        """See `online.pool.Shared`; where another thread does, that is enough."""
        if self._passed < self._passes or self.turns.left:
            self._passed += 1
            return
        if capturing(self.device):
            return
        with if_free(self._polling) as free:
            if free:
                self._polled()

    def _polled(self) -> None:
        began_ns = self.sampler.clock_ns()
        self._take_in(self.turns.collect())
        self._passed = 0
        first_ns, self.turns.first_ns = self.turns.first_ns, 0
        since_ns, self._polled_ns = began_ns - self._polled_ns, began_ns
        self.family.ran(min(first_ns * self.core.new_sizes.counts_as, since_ns) / 1e3)
        if self.turns.waiting:
            self.core.turns.hurry(1)  # it is soon that they are over
        else:
            self._passes = 0 if self._begin() else min(2 * self._passes + 1, MOST_PASSES)
        self.family.looked((self.sampler.clock_ns() - began_ns) / 1e3)

    def _take_in(self, samples: Iterable[tuple[Any, ...]]) -> None:
        """Samples are over: each is half a pair for the pool of its key, of plain half of each that is compared."""
        found: dict[Pool, list[Half]] = {}
        for ((names, of_plain), (pool, sizes, beside_new)), _, host_ns, device_us, dry, since_us in samples:
            ran = "plain" if of_plain else names[0]
            took_us = self._took_us(ran, host_ns / 1e3, device_us, dry, since_us)
            if took_us is not None:
                self._count(pool, ran, took_us)
                cold = beside_new and took_us <= SMALL_US
                halves = [Half(name, of_plain, took_us, sizes, cold=cold, dry=dry) for name in names]
                found.setdefault(pool, []).extend(halves)
        for pool, halves in found.items():
            if not pool.over:
                pool.gave_halves(halves)
                with self.family.lock:
                    self.follow(pool)

    def _took_us(self, ran: str, host_us: float, device_us: float, dry: bool, since_us: float | None) -> float | None:
        """What a sample of this candidate took, by what counts here; None where it says nothing."""
        (figures,) = Figures.of_key([ran], self.regime, self.shares, grad=False)
        self.sampler.noted(figures, host_us, device_us, dry, since_us)
        cost = figures.cost()
        return cost.median_us if cost.repeats else None

    def _count(self, pool: Pool, ran: str, took_us: float) -> None:
        """So much was lost with a sample, and with the calls before it."""
        self._least_us, self._most_us = min(self._least_us or took_us, took_us), max(self._most_us, took_us)
        least_us = self._least_in[pool] = min(self._least_in.get(pool, took_us), took_us)
        calls = 1 + self._before / self._at_once
        self.family.lost(SAMPLE_US + calls * self._extra_us(pool, ran, min(took_us, FAR * least_us)))  # but for a pause

    def _extra_us(self, pool: Pool, ran: str, took_us: float) -> float:
        """How much less the favourite would have taken; of what there is no pair yet, the fastest at such sizes."""
        likely = pool.least_share()
        with self.family.lock:
            shares = {cost.variant: cost.median_us / PLAIN_US for cost in pool.pairs.costs()}
        if ran not in shares:
            return max(0.0, took_us - self._least_in[pool])
        return max(0.0, took_us * (1 - shares.get(self.leads(pool), likely) / shares[ran]))

    def _begin(self) -> bool:
        """Let the next calls be plain's and those of the variants that are wanted, if any are and may be afforded."""
        names = self.family.wanted(self._compared(), [*self.leaders])
        if not names:
            return False
        parts = [(self.runs["plain"], (names, True)), *((self.runs[name], ([name], False)) for name in names)]
        self._begun += 1
        self._before, self._at_once = self._how_many()
        self._most_us = 0.0
        self.turns.patience = PATIENCE if self._begun > AT_SIGHT and 0 < self._least_us <= COLD_US else 0
        self.turns.begin(
            tuple(
                turn
                for run, whose in (parts if self._begun % 2 else parts[::-1])
                for turn in ((run, None, self._before), (run, whose, self._at_once))
            )
        )
        self.core.turns.hurry(1)
        return True

    def _how_many(self) -> tuple[int, int]:
        """How many calls of each candidate go before its samples, and how many of those are taken."""
        if 0 < self._most_us <= SMALL_US:
            return LONG_WARM, MORE_AT_ONCE
        return WARM if self._least_us <= SMALL_US else 1, AT_ONCE

    def raised(self, turn: tuple[Any, Any, int], /, *args: Any, **kwargs: Any) -> Any:
        """Plain's answer, where it may give one, to a call at which a turn's candidate raised what is being handled."""
        error = sys.exc_info()[1]
        assert isinstance(error, Exception)
        name = next((name for name, run in self.runs.items() if run is turn[0]), "plain")
        if name == "plain" or not self.entries[name].retry:
            raise error
        answer = self.core.backend.plain(*args, **kwargs)  # if it raises too, that is the answer
        self.refused[name] = Refusal(name, (f"it raised {in_a_line(error)}",))
        self.turns.begin(())
        for pool in [*self.family.pools.values()]:
            pool.failed(name)
        return answer


@dataclass(slots=True, eq=False, kw_only=True)
class TakesTurns(Follows):
    """A key that takes turns: what leads in its pool runs at its other calls, and is never decided anew for that."""

    shared: SharedTurns

    def _is_outdated(self) -> bool:
        if self.shared.is_current():  # else it would let calls of keys that are left take turns
            self.shared.poll()
        return not self.shared.is_current()

    def _is_settled(self) -> bool:
        return Follows._is_settled(self) and self.pool.favourite in self.shared.runs

    def choice(self, begun: Choice) -> Choice:
        """See `turns.Learner`."""
        ran = self.shared.entries[self.shared.leads(self.pool)].choice
        refused = (*begun.refusals, *self.shared.refused.values())
        found = replace(begun, variant=ran.variant, config=ran.config, route=ran.route, refusals=refused)
        return Follows.choice(self, found)

    def pinned(self, begun: Choice) -> Entry:
        """See `turns.Learner`."""
        name = self.shared.leads(self.pool) if self._is_settled() else "plain"
        ran = self.shared.entries[name]
        if name == "plain" or ran.run is None:
            return Entry(self.core.backend.plain, None, replace(begun, variant="plain"), any_state=True)
        return Entry(ran.run, ran.check, self.choice(begun), ran.build, ran.retry, vouched=ran.vouched)
