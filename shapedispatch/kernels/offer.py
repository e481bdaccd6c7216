"""One offer in the making: configs become candidates, resolved, compiled and loaded; or refused with reasons."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..backend import Candidate, Offer, OfferBuilder, Search, TrialRequest
from ..effects import Effects
from ..errors import in_a_line
from ..hit import native
from ..hit.table import Table
from ..interpreter.failures import what_fails
from ..keys.key import Key
from .c_launch import c_launcher_of
from .call import KernelCall
from .remote_configs import NotNow, RemoteConfigs
from .runtime.loaded import Build, Builds, build_key
from .runtime.wrappers import config_text
from .spec import KernelSpec
from .variants import Direct, ResolvedConfig, Run, Supplied, TritonsOwn

__all__ = ["CONSTANT", "KernelOfferBuilder", "Wanted"]

DIRECT = "the compiled kernel, launched directly"
TRITONS_OWN = "Triton's own launch"


WITHIN = "configs are compiled within calls: "
"""How a note begins about what no other process could be asked to compile."""
CONSTANT = ("exact", "static")
"""Variants that are no config's, but have constants beside it."""


class Wanted(NamedTuple):
    """A candidate to be: its name, the place of its config (None without configs), the hint it stands for."""

    name: str
    place: int | None
    point: Mapping[str, int] | None = None
    note: str = ""


@dataclass(slots=True, kw_only=True)
class KernelOfferBuilder(OfferBuilder):
    """The candidates for one call. ``left`` are the places of the configs that pruning leaves.

    ``of_class`` is the call's class: its key less the dynamic dims.
    """

    call: KernelCall
    of_class: Key
    spec: KernelSpec
    configs: Sequence[Any]
    left: Sequence[int]
    builds: Builds
    memory: Table
    stream_of: Callable[[int], int]
    sizes: Mapping[str, int]
    reproducible: bool = False
    made: dict[str, Build] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    effects: Effects = field(default_factory=Effects)

    @property
    def places(self) -> Sequence[int | None]:
        """The places of the configs that are left; where there are none, that of none."""
        return self.left or [None]

    def config(self, place: int | None) -> Any:
        """The config at a place."""
        return None if place is None else self.configs[place]

    def config_name(self, place: int | None) -> str:
        """What a config is called where it stands for no hint."""
        return f"config[{config_text(self.config(place))}]"

    # -- candidates

    def add(
        self, wanted: Sequence[Wanted], static: Collection[str] = (), hold: bool = True, judged: bool = True
    ) -> None:
        """Make candidates with the parameters ``static`` as constants, compiled at the same time.

        With ``hold`` the table holds their builds; without, `let_go` must be called. Where they are not ``judged``
        they need not have survived elsewhere.
        """
        resolved = {one.name: (one, self._resolve(one)) for one in wanted if self._may_be_made(one, judged)}
        ready = self._to_be_had([(one, facts) for one, facts in resolved.values() if facts is not None], static)
        arguments = [self.call.arguments(facts) for _, facts in ready]
        compiled = self.builds.compiled(arguments, static, self.call.device, self.request.build)
        for (one, facts), kernel in zip(ready, compiled, strict=True):
            try:
                build = self._built(one, kernel, static)
            except what_fails() as error:  # a candidate is judged here, and the reason kept
                self._give_up(one, error)
            else:
                self._add(one, facts, build, static, hold)

    def awaits(self, wanted: Sequence[Wanted], static: Collection[str]) -> bool:
        """Whether any of these is compiled elsewhere yet, or to be loaded in later calls; how far each is, if so."""
        if self.request.later is None:
            return False
        if self.request.later.put_off():
            return True
        ready = [(one, facts) for one in wanted if not isinstance(facts := self._resolved(one), LookupError)]
        awaited = {name: reason.why for name, reason in self._not_now(ready, static).items() if reason.awaited}
        for name, why in awaited.items():
            self.put_off(name, why)
        return bool(awaited)

    def _to_be_had(
        self, ready: list[tuple[Wanted, ResolvedConfig]], static: Collection[str]
    ) -> list[tuple[Wanted, ResolvedConfig]]:
        """Those that need not be compiled within this call, with a refusal for each other."""
        not_now = self._not_now(ready, static)
        for name, reason in not_now.items():
            (self.put_off if reason.awaited else self.refuse)(name, reason.why)
        return [(one, facts) for one, facts in ready if one.name not in not_now]

    def _not_now(self, ready: list[tuple[Wanted, ResolvedConfig]], static: Collection[str]) -> dict[str, NotNow]:
        """Those that are not to be had; plain must run the call, and so must what is asked for by name."""
        later = self.request.later
        asked = {one.name: self.call.arguments(facts) for one, facts in ready if one.name != "plain"}
        if later is None or self.request.only is not None or not asked:
            return {}
        remote = RemoteConfigs(self.builds, static, self.call.device, self.of_class, self.memory, later)
        not_now = remote.not_now(asked)
        note = f"{WITHIN}{remote.here}"
        if remote.here and note not in self.notes:
            self.notes.append(note)
        return not_now

    def add_supplied(self) -> None:
        """Candidates of the user's own."""
        resolved = ResolvedConfig(self.call.names, None, {}, {}, None, None)
        for variant in self.spec.variants:
            trial = self._trial_request(Wanted(str(variant.name), None))
            self.supply(variant, Supplied(resolved, variant.fn), ((), self.call.present()), trial)

    def _may_be_made(self, one: Wanted, judged: bool) -> bool:
        """Whether a variant is asked for and nothing is held against it; a refusal where something is.

        Of several configs the one that is to be plain is judged as well: it is no more the user's than the others.
        """
        plain = one.name == "plain"
        if not plain and not self.request.wants(one.name):
            return False
        if self.request.judge is None or not judged or (plain and len(self.left) < 2):
            return True
        try:
            trial_request = self._trial_request(one)
        except LookupError:  # it does not fit the call, which is said where it is made
            return True
        return self.allows(self.config_name(one.place) if plain else one.name, trial_request)

    def _trial_request(self, one: Wanted) -> TrialRequest:
        """The call for a worker, over the grid that it comes to here: a function of the caller's cannot be sent."""
        call, config, grid = self.call, self.config(one.place), None
        if one.place is not None or one.name in CONSTANT:
            grid = tuple(call.resolve(config).sized(call.call_form.grid, call.raw))
        name = one.name if one.place is None or one.name in CONSTANT else self.config_name(one.place)
        text = None if config is None else config_text(config)
        return TrialRequest(name, text, (grid, *call.positional.values()), call.given)

    def _resolve(self, one: Wanted) -> ResolvedConfig | None:
        """What the call and a config come to; None, and a refusal, where they do not fit. Raises Bypass."""
        resolved = self._resolved(one)
        if isinstance(resolved, LookupError):
            self._give_up(one, resolved)
            return None
        return resolved

    def _resolved(self, one: Wanted) -> ResolvedConfig | LookupError:
        try:
            return self.call.resolve(self.config(one.place))
        except LookupError as error:
            return error

    def _built(self, one: Wanted, compiled: Any, static: Collection[str]) -> Build:
        """The build of what was compiled, which may be an error; raises why there is none."""
        if isinstance(compiled, Exception):
            raise compiled
        again = self.memory.why_not_again(build_key(compiled, self.call.device)) if one.name == "exact" else None
        if again:
            raise LookupError(again)
        return self.builds.build(compiled, static, self.call.device, self.memory)

    def _give_up(self, one: Wanted, error: Exception) -> None:
        self.errors[one.name] = error
        self.refuse(one.name, in_a_line(error))

    def _add(self, one: Wanted, resolved: ResolvedConfig, build: Build, static: Collection[str], hold: bool) -> None:
        twin = next((c.name for c in self.candidates if c.build == build.slot and _alike(c.run, resolved)), None)
        if twin is not None:
            self.aliases[one.name] = twin
            return
        self.made[one.name] = build
        if hold:
            self.hold([one.name])
        self.effects |= self.builds.effects(build.compiled, self.memory)
        if resolved.config is not None and resolved.config.pre_hook is not None:
            self.effects |= Effects(None)  # host code of the user's, of which nobody knows what it writes
        run, route = self._run(resolved, build, static)
        constants = f"{', '.join(sorted(static))} are constants" if static else ""
        notes = tuple(note for note in (one.note, constants) if note)
        self.candidates.append(Candidate(one.name, run, None, build.slot, route, notes, resolved.config, one.point))

    def _run(self, resolved: ResolvedConfig, build: Build, static: Collection[str]) -> tuple[Run, str]:
        """How a build is run, and what that is called."""
        if build.launch is None:
            return TritonsOwn(resolved, self.builds.function(static)), f"{TRITONS_OWN}: {'; '.join(build.reasons)}"
        launcher = c_launcher_of(build.compiled, resolved, build.device)
        why_not = launcher if isinstance(launcher, str) else None
        run = Direct(resolved, build.launch, self.stream_of, build.device, None if why_not else launcher)
        where = "C" if why_not is None else f"Python: {why_not}"
        return run, DIRECT if native.in_use is None else f"{DIRECT} from {where}"

    # -- what is known of all of them

    def hold(self, names: Collection[str]) -> None:
        """Let the table hold the builds of these candidates."""
        for name in names:
            build = self.made.get(name)
            if build is not None and self.memory.build(build.slot) is None:
                self.memory.hold(build.slot, build)

    def let_go(self) -> None:
        """Release the builds that the table does not hold."""
        for build in self.made.values():
            if self.memory.build(build.slot) is None:
                build.release()

    def static(self) -> Collection[str]:
        """The static parameters if they can be constants in this call, else none of them."""
        return () if self.why_no_constants(self.spec.static) else self.spec.static

    def why_no_constants(self, names: Collection[str]) -> list[str]:
        """Why these parameters cannot be constants in this call."""
        supplied = self.call.supplied
        return [
            f"{name} is {'not given' if name in supplied else repr(self.call.value(name))}, not an integer"
            for name in names
            if name in supplied or type(self.call.value(name)) is not int
        ]

    def why_untimed(self) -> str | None:
        """Why nothing may be run for timing, if so."""
        beyond = self.effects.other_writes if self.spec.mutates is None else ()
        return f"{beyond[0]}: name what it writes with mutates=" if beyond else None

    def unsearched(self, why: str) -> None:
        """Say that no config is searched for, where there is more than one."""
        if len(self.left) > 1 and not self.notes:
            self.notes.append(f"no config was searched for: {why}")

    def finish(self, search: Search | None = None) -> Offer:
        """The offer."""
        untimed = self.why_untimed()
        if untimed:
            self.unsearched(untimed)
        return self.offer(self._mutated(), untimed, search)

    def _mutated(self) -> Collection[str] | None:
        """The names of the arguments that may be written; None where that is unknown."""
        if self.spec.mutates is not None:
            return self.spec.mutates
        tuning = self.call.wrapped.tuning
        if tuning is None or self.effects.mutated is None:
            return self.effects.mutated
        hooks = tuning.pre_hook or tuning.post_hook
        return None if hooks else self.effects.mutated.union(tuning.reset_to_zero, tuning.restore_value)


def _alike(run: Any, resolved: ResolvedConfig) -> bool:
    """Whether a candidate of the same compiled kernel would be launched in the same way."""
    other: ResolvedConfig = run.resolved
    hooks = [getattr(one.config, "pre_hook", None) for one in (other, resolved)]
    return other.supplied == resolved.supplied and hooks[0] is hooks[1]
