"""One offer in the making: configs become candidates, settled, compiled and loaded; or refused with reasons."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..backend import Candidate, Memory, OfferRequest, TrialRequest, why_not_supplied
from ..errors import in_a_line
from ..hit import native
from ..records import Refusal, Variant
from .c_launcher import c_launcher_of
from .call import KernelCall
from .runtime.loaded import Build, Builds, build_key
from .runtime.mutation_analysis import Effects
from .runtime.wrappers import config_text
from .variants import Direct, ResolvedConfig, Run, Supplied, TritonsOwn

__all__ = ["CONSTANT", "Making", "Wanted", "config_name", "why_no_constants"]

DIRECT = "the compiled kernel, launched directly"
TRITONS_OWN = "Triton's own launch"


CONSTANT = ("exact", "static")
"""Variants that are no config's, but have constants beside it."""


class Wanted(NamedTuple):
    """A candidate to be: its name, the place of its config (None without configs), the hint it stands for."""

    name: str
    place: int | None
    point: Mapping[str, int] | None = None
    note: str = ""


@dataclass(slots=True)
class Making:
    """The candidates for one call. ``left`` are the places of the configs that pruning leaves."""

    call: KernelCall
    configs: Sequence[Any]
    left: Sequence[int]
    builds: Builds
    memory: Memory
    stream_of: Callable[[int], int]
    request: OfferRequest
    sizes: Mapping[str, int]
    candidates: list[Candidate] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    made: dict[str, Build] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    effects: Effects = field(default_factory=lambda: Effects(frozenset()))
    unsearched: str | None = None
    """Why the configs are not searched for this call, though they may be for others."""
    foreign: bool = False
    """Whether a candidate runs host code of the user's, whose effects nobody knows."""

    def config(self, place: int | None) -> Any:
        """The config at a place."""
        return None if place is None else self.configs[place]

    def refuse(self, name: str, *reasons: str) -> None:
        """Say why a variant does not compete."""
        self.refusals.append(Refusal(name, reasons))

    def add(
        self, wanted: Sequence[Wanted], static: Collection[str] = (), hold: bool = True, judged: bool = True
    ) -> None:
        """Make candidates with the parameters ``static`` as constants, compiled at the same time.

        With ``hold`` the table holds their builds; without, `let_go` must be called. Where they are not ``judged``
        they need not have survived elsewhere.
        """
        resolved = {one.name: (one, self.resolve(one)) for one in wanted if self._may_be_made(one, judged)}
        ready = [(one, facts) for one, facts in resolved.values() if facts is not None]
        arguments = [self.call.arguments(facts) for _, facts in ready]
        compiled = self.builds.compiled(arguments, static, self.call.device, self.request.build)
        for (one, facts), kernel in zip(ready, compiled, strict=True):
            build = self._built(one, kernel, static)
            if build is not None:
                self._add(one, facts, build, static, hold)

    def _may_be_made(self, one: Wanted, judged: bool) -> bool:
        """Whether a variant is asked for and nothing is held against it; a refusal where something is.

        Of several configs the one that is to be plain is judged as well: it is no more the user's than the others.
        """
        plain = one.name == "plain"
        if not plain and not self.request.wants(one.name):
            return False
        if self.request.judge is None or not judged or (plain and len(self.left) < 2):
            return True
        name = config_name(self, one.place) if plain else one.name
        try:
            why = self.request.why_not(name, self._trial_request(one))
        except LookupError:  # it does not fit the call, which is said where it is made
            return True
        if why:
            self.refuse(name, why)
        return not why

    def _trial_request(self, one: Wanted) -> TrialRequest:
        """The call for a worker, over the grid that it comes to here: a function of the caller's cannot be sent."""
        call, config, grid = self.call, self.config(one.place), None
        if one.place is not None or one.name in CONSTANT:
            grid = tuple(call.resolve(config).sized(call.call_form.grid, call.raw))
        name = one.name if one.place is None or one.name in CONSTANT else config_name(self, one.place)
        text = None if config is None else config_text(config)
        return TrialRequest(name, text, (grid, *call.positional.values()), call.given)

    def resolve(self, one: Wanted) -> ResolvedConfig | None:
        """What the call and a config come to; None, and a refusal, where they do not fit. Raises Bypass."""
        try:
            return self.call.resolve(self.config(one.place))
        except LookupError as error:
            self._fail(one, error)
            return None

    def _built(self, one: Wanted, compiled: Any, static: Collection[str]) -> Build | None:
        if isinstance(compiled, Exception):
            self._fail(one, compiled)
            return None
        again = self.memory.why_not_again(build_key(compiled, self.call.device)) if one.name == "exact" else None
        if again:
            self._fail(one, LookupError(again))
            return None
        try:
            return self.builds.build(compiled, static, self.call.device, self.memory)
        except Exception as error:  # noqa: BLE001 - a candidate is judged here, and the reason kept
            self._fail(one, error)
            return None

    def _fail(self, one: Wanted, error: Exception) -> None:
        self.errors[one.name] = error
        self.refuse(one.name, in_a_line(error))

    def _add(self, one: Wanted, resolved: ResolvedConfig, build: Build, static: Collection[str], hold: bool) -> None:
        twin = next((c.name for c in self.candidates if c.build == build.slot and _alike(c.run, resolved)), None)
        if twin is not None:
            self.aliases[one.name] = twin
            return
        if hold and self.memory.build(build.slot) is None:
            self.memory.hold(build.slot, build)
        self.made[one.name] = build
        self.effects |= self.builds.effects(build.compiled, self.memory)
        self.foreign = self.foreign or (resolved.config is not None and resolved.config.pre_hook is not None)
        self.candidates.append(self._candidate(one, resolved, build, static))

    def _candidate(self, one: Wanted, resolved: ResolvedConfig, build: Build, static: Collection[str]) -> Candidate:
        run: Run
        if build.launch is None:
            run, route = (
                TritonsOwn(resolved, self.builds.function(static)),
                f"{TRITONS_OWN}: {'; '.join(build.reasons)}",
            )
        else:
            plan = c_launcher_of(build.compiled, resolved, build.device)
            launched = None if isinstance(plan, str) else plan
            run = Direct(resolved, build.launch, self.stream_of, build.device, launched)
            route = DIRECT if native.module() is None else f"{DIRECT} from {'C' if launched else f'Python: {plan}'}"
        constants = f"{', '.join(sorted(static))} are constants" if static else ""
        notes = tuple(note for note in (one.note, constants) if note)
        return Candidate(one.name, run, None, build.slot, route, notes, resolved.config, one.point)

    def add_supplied(self, variants: Sequence[Variant]) -> None:
        """Candidates of the user's own."""
        resolved = ResolvedConfig(self.call.names, None, {}, {}, None, None)
        for variant in variants:
            name = str(variant.name or getattr(variant.fn, "__name__", type(variant.fn).__name__))
            if not self.request.wants(name):
                continue
            own = why_not_supplied(variant, (), self.call.present())
            if own:  # first: what would try the variant elsewhere is not asked about one that is not to run
                self.refuse(name, own)
            elif self._may_be_made(Wanted(name, None), True):
                run = Supplied(resolved, variant.fn)
                self.candidates.append(Candidate(name, run, route="the function that was supplied", supplied=True))

    def let_go(self, but: Collection[str]) -> None:
        """Hold the builds of the candidates ``but``, and release what no table holds."""
        for name, build in self.made.items():
            if self.memory.build(build.slot) is None:
                if name in but:
                    self.memory.hold(build.slot, build)
                else:
                    build.release()

    def written(self, mutates: Collection[str] | None) -> Collection[str] | None:
        """The names of the arguments that may be written; None where that is unknown."""
        if mutates is not None:
            return mutates
        tuning = self.call.wrapped.tuning
        if self.foreign or (tuning is not None and (tuning.pre_hook or tuning.post_hook)):
            return None
        resets = (*tuning.reset_to_zero, *tuning.restore_value) if tuning is not None else ()
        return self.effects.written.union(resets)


def config_name(making: Making, place: int | None) -> str:
    """What a config is called where it stands for no hint."""
    return f"config[{config_text(making.config(place))}]"


def _alike(run: Any, resolved: ResolvedConfig) -> bool:
    """Whether a candidate of the same compiled kernel would be launched in the same way."""
    other: ResolvedConfig = run.resolved
    hooks = [getattr(one.config, "pre_hook", None) for one in (other, resolved)]
    return other.supplied == resolved.supplied and hooks[0] is hooks[1]


def why_no_constants(call: KernelCall, static: Collection[str]) -> list[str]:
    """Why these parameters cannot be constants in this call."""
    return [
        f"{name} is {'not given' if name in call.supplied else repr(call.value(name))}, not an integer"
        for name in static
        if name in call.supplied or type(call.value(name)) is not int
    ]
