"""What a backend is: it knows the calls of one kind of decorated thing, and makes the variants that may run one.

The dispatcher asks a backend for the key of a call on each hit, and for an offer at a miss; it does the rest
(timing, choosing, remembering) without knowing what was decorated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from .background.account import Later
from .background.orders import Compiler
from .errors import in_a_line
from .hit.call import Signer
from .hit.table import Entry, Table
from .interpreter.failures import what_fails
from .keys.key import Key
from .records import Choice, Origin, Refusal, Timing, Variant
from .shapes.buckets import Rule
from .shapes.dims import distance

__all__ = [
    "ALL", "Backend", "Call", "Candidate", "Check", "Observed", "Offer", "OfferBuilder", "OfferRequest", "Program",
    "Search", "TrialRequest", "TunedConfigs", "Verdicts",
]  # fmt: skip

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""The arguments of a call, by position and by name."""
Check = Callable[[tuple[Any, ...], Mapping[str, Any]], bool]
"""A guard: whether what it guards may run a call."""
Observed = tuple[Hashable, bool, tuple[tuple[int, ...], ...]]
"""What calls have in common that differ in sizes, strides and numbers; whether more varies; the first one's sizes."""


class Program(Protocol):
    """What a program does with what calls were given and have made, and with their backwards."""

    def unseen(self) -> str:
        """How far it is until that has been seen, for a person; empty where others than plain may run."""

    def plain_ran(self, call: Call, answer: Any) -> None:
        """Plain has run this call."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run the call at hand. ``check`` and ``build`` are as in `table.Entry`."""

    name: str
    run: Callable[..., Any]
    check: Check | None = None
    build: Hashable | None = None
    route: str = "the function as written"
    notes: tuple[str, ...] = ()
    config: Any = None
    point: Mapping[str, int] | None = None
    """Of a hint's build: the hint."""
    supplied: bool = False
    """Whether a user wrote it: then nothing is known of what it writes."""
    trusted: bool = False
    """Whether that user says that it does what plain does: it need not be seen where it cannot."""
    judged: bool = False
    """Whether its numbers have been judged by its graph, on other values than the call's, too."""
    digits: int = 53
    """The binary digits of its coarsest arithmetic, where that is known: its numbers are no finer."""
    missed: Callable[[], int] | None = None
    """Of a CUDA graph: how many calls were no replay of it. Such a call says nothing of what it costs."""
    program: Program | None = None
    """What calls this, where its backward may need what that writes, or cannot give what that asks for."""
    records: str | None = None
    """Of a CUDA graph: the variant whose code it is of, which runs until there is a recording."""
    vouched: bool = False
    """Whether the code that it runs has been judged by its graph: a recording of such code is compared all the same."""

    @property
    def numbers(self) -> Hashable | None:
        """What it is known by, once its numbers have been compared with plain's; None where other calls say nothing.

        A recording is of one key's calls, whatever is known of the build.
        """
        return self.build if self.missed is None else None

    def entry(self, choice: Choice, offer: Offer) -> Entry:
        """The entry that runs this for a choice made before."""
        retry = self.build is not None and offer.written is not None and not offer.written
        choice = replace(choice, route=self.route, config=self.config)
        any_state = self.name == "plain" and (self.check is not None or choice.origin == "only")
        vouched = self.build is not None and self.judged
        return Entry(self.run, self.check, choice, self.build, retry, any_state, vouched=vouched)

    def wins(
        self,
        origin: Origin,
        offer: Offer,
        timings: Sequence[Timing] = (),
        refusals: Sequence[Refusal] = (),
        notes: Sequence[str] = (),
    ) -> Entry:
        """The entry that runs this because it has won, or stands in where nothing may be timed."""
        refused, said = (*offer.refusals, *refusals), (*self.notes, *offer.notes, *notes)
        return self.entry(Choice(self.name, origin, timings=tuple(timings), refusals=refused, notes=said), offer)


@dataclass(frozen=True, slots=True)
class Offer:
    """What may run a call: plain first, then the others in the order that ties are broken in.

    ``written`` names the arguments that plain writes, None where that is unknown. ``untimed`` says why nothing may be
    run for timing, if so. ``notes`` are for a person. ``aliases`` name, for a variant that is the same code as another,
    that other. ``failures`` are those refusals that are no matter of this call's sizes, ``faults`` those in which what
    the user wrote is at fault. ``reproducible`` says that where plain is all that is offered, the reasons would hold in
    another process too. A ``search`` is to be made first, if there is one: then only plain is offered.
    """

    candidates: tuple[Candidate, ...]
    refusals: tuple[Refusal, ...] = ()
    written: Collection[str] | None = None
    untimed: str | None = None
    notes: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    failures: tuple[Refusal, ...] = ()
    faults: tuple[Refusal, ...] = ()
    reproducible: bool = False
    search: Search | None = None

    def nearest(self, sizes: Mapping[str, int], why: str, is_right: Callable[[Candidate], bool]) -> Entry:
        """Without timing, and ``why``: the build of the hint nearest to the sizes, if it may be used; else plain.

        ``is_right`` says whether the numbers of a build have been seen to be: nobody compares them now.
        """
        right = [c for c in self.candidates if c.point and self.untimed is None and is_right(c)]
        hinted = [c for c in right if c.point and c.point.keys() <= sizes.keys()]
        winner = min(hinted, key=lambda c: distance(sizes, c.point or {}), default=self.candidates[0])
        return winner.wins("nearest" if winner.point else "only", self, notes=(f"not timed: {why}",))


class Search(AbstractContextManager["Search"], Protocol):
    """A step before an offer: all configs are made and timed, and what the offer is then made of is kept.

    It is entered, asked for its `offer`, and told the winner; on exit the builds are released that nobody keeps.
    """

    at: Call | None
    """The call to be timed where that is another one: at the hint itself."""

    @property
    def final(self) -> bool:
        """Whether its winner is the choice for the key; else an offer is made of what was found."""

    @property
    def many(self) -> int:
        """How many configs there are."""

    def offer(self, hold: bool = False) -> Offer:
        """Every config that may run the call; with ``hold`` the table holds their builds."""

    def keep(self, choice: Choice) -> None:
        """Keep what was chosen, and what was nearly as good."""

    def without_call(self) -> Search:
        """The same, to be told the winner later: it holds none of the call's arguments, and makes no offer."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """What a worker is sent to try a variant with, where that is not the variant's name and the call at hand.

    ``variant`` and ``config`` are what the worker's own offer is asked for. The call is as it was written, and holds
    nothing that has no meaning in another process.
    """

    variant: str
    config: str | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def compiles(self) -> bool:
        """Whether a worker compiles a function for it, and needs what takes seconds to import."""
        return self.config is None and (self.variant == "exact" or self.variant.startswith("hint["))


class TunedConfigs(Protocol):
    """What processes have found for the hints of one thing; ``of`` is the class of calls, ``hint`` the hint's name."""

    def look_up(self, of: Key, hint: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The texts of the configs that were found, best first; or none, and sentences why they are found anew."""

    def keep(self, of: Key, hint: str, choice: Choice, configs: Sequence[str], instead: bool) -> tuple[str, ...]:
        """Keep what a search has found; returns what stands: another process's if it was first, and not ``instead``."""


class Verdicts(Protocol):
    """What processes have found of the numbers of builds, which are known by their code."""

    def look_up(self, code: str) -> tuple[str, int] | None:
        """What is wrong with a build (empty: nothing) and the digits of its arithmetic; None where nobody looked."""

    def keep(self, code: str, wrong: str, digits: int) -> None:
        """Keep what was found."""


@dataclass(frozen=True, slots=True)
class OfferRequest:
    """What an offer is asked for: every variant, or ``only`` plain and the one of that name.

    Without ``build`` nothing is made: what is held already is all there is. ``config`` is what the one of that name had
    for a config, or its text as a store holds it. ``exhaustive`` asks for all configs at this very call.
    ``judge(variant, trial_request)`` is asked before a variant is made or run, and says why it may not be, if so.
    ``tuned_configs`` are those of all processes, where they are kept. With ``alone`` the one that is asked for comes
    without plain. ``untimed(offer)`` says why nothing of an offer would be timed, if so: then nothing is searched; nor
    without ``search``, when the offer is made of what has been found. The numbers of a build are checked by its graph
    in ``room()`` bytes, or not at all where that is None; ``verdicts`` are those of all processes, where they are kept.
    With ``later`` no build is waited for: it is ordered.
    """

    only: str | None = None
    build: bool = True
    config: Any = None
    exhaustive: bool = False
    judge: Callable[[str, TrialRequest | None], str | None] | None = None
    tuned_configs: TunedConfigs | None = None
    alone: bool = False
    untimed: Callable[[Offer], str | None] | None = None
    search: bool = True
    room: Callable[[], int] | None = None
    state: bool = False
    """Whether plain comes with the check of the state that it is chosen in, though nothing else is asked for."""
    verdicts: Verdicts | None = None
    later: Later | None = None
    graphs: bool = False
    """Whether builds come as CUDA graphs, too, which hold ``graph_bytes`` together, or a share of the device's."""
    graph_bytes: int | None = None
    graphs_pay: Callable[[str], bool] | None = None
    """Asked with a variant before its graph is recorded, if not at once: they are for calls that come often."""

    def wants(self, variant: str) -> bool:
        """Whether a variant is asked for."""
        return self.only is None or self.only == variant

    def why_not(self, variant: str, trial_request: TrialRequest | None = None) -> str | None:
        """Why a variant may not be made or run here, or None."""
        return self.judge(variant, trial_request) if self.judge is not None else None


ALL = OfferRequest()


@dataclass(slots=True)
class OfferBuilder:
    """One offer in the making: who may run the call, and why the others may not; ``request`` is what was asked for."""

    request: OfferRequest = ALL
    candidates: list[Candidate] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    failures: list[Refusal] = field(default_factory=list)
    faults: list[Refusal] = field(default_factory=list)
    reproducible: bool = True
    """Whether another process would refuse the same."""
    holds: Check | None = None
    """Whether plain does yet what it does now, with which what is supplied is compared; it may be trusted instead."""

    def refuse(self, variant: str, *reasons: str) -> None:
        """Leave a variant out of this call."""
        self.refusals.append(Refusal(variant, reasons))

    def put_off(self, variant: str, reason: str) -> None:
        """Leave a variant out that may be there another time."""
        self.reproducible = False
        self.refuse(variant, reason)

    def fail(self, variant: str, reason: str) -> None:
        """Leave a variant out that could not be made, whatever the sizes of the call."""
        self.refuse(variant, reason)
        self.failures.append(self.refusals[-1])

    def allows(self, variant: str, trial_request: TrialRequest | None = None) -> bool:
        """Whether a variant may be made or run here; a refusal where it may not."""
        why_not = self.request.why_not(variant, trial_request)
        if why_not:
            self.put_off(variant, why_not)
        return not why_not

    def supply(self, variant: Variant, run: Callable[..., Any], call: Call, trial: TrialRequest | None = None) -> None:
        """Offer what the user has supplied, where it is asked for and may run this call."""
        name = str(variant.name)
        if not self.request.wants(name):
            return
        reason, at_fault = _why_not_supplied(variant, *call)
        if reason:  # first: what would try the variant elsewhere is not asked about one that is not to run
            self.refuse(name, reason)
            self.faults += self.refusals[-1:] if at_fault else ()
        elif self.allows(name, trial):
            route = "the function that was supplied"
            holds = None if variant.trusted else self.holds
            self.candidates.append(Candidate(name, run, holds, route=route, supplied=True, trusted=variant.trusted))

    def offer(
        self, written: Collection[str] | None = None, untimed: str | None = None, search: Search | None = None
    ) -> Offer:
        """The offer as it stands."""
        return Offer(
            tuple(self.candidates),
            tuple(self.refusals),
            written,
            untimed,
            tuple(self.notes),
            self.aliases,
            tuple(self.failures),
            tuple(self.faults),
            self.reproducible and bool(self.refusals) and not (self.failures or untimed),
            search,
        )


def _why_not_supplied(variant: Variant, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str | None, bool]:
    """What a supplied variant's ``when`` says of the call, and whether it is itself at fault."""
    try:
        answer: object = variant.when(*args, **kwargs) if variant.when is not None else None
    except what_fails() as error:  # a candidate is judged here, and the reason kept
        return f"its `when` raised {in_a_line(error)}", True
    if answer is None or (isinstance(answer, str) and answer):
        return answer, False
    said = "no word" if isinstance(answer, str) else f"a {type(answer).__name__}"
    return f"its `when` answered with {said}: allowed is a sentence why not, or None", True


class Backend(Signer, Protocol):
    """The calls of one decorated thing, and their variants. A call is always in normal form, but where it is signed."""

    searches: bool
    """Whether an offer may want a `Search`, so that it asks for `TunedConfigs`."""
    compiler: Compiler
    """What compiles its builds in another process."""
    replayable: bool
    """Whether a key describes its call in full: then one like it can be made of the key alone."""
    arity: int
    """A call of exactly this many positional arguments and no keywords is in normal form already."""
    named: Any
    """What has the decorated thing's name in a module, where a worker finds its dispatcher."""
    dims: tuple[str, ...]
    """The dims that were declared."""
    supplies: bool
    """Whether its user has supplied variants: what is known of them at some sizes says nothing of others."""

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """The key of a call; raises key.Bypass."""

    def at_once(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], memory: Table) -> Callable[..., Any] | None:
        """What must run the call where nothing may be decided, inside the capture of a CUDA graph; else None."""

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name."""

    def differences(self, key: Key, other: Key) -> tuple[str, ...]:
        """What differs between two keys of this backend, for a person."""

    def kin(self, key: Key) -> Hashable:
        """What keys have in common that differ in sizes alone; None where that cannot be told."""

    def serves(self, build: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a build that is held may run a call, of which it may run one that differs in sizes alone."""

    def as_kin(self, run: Callable[..., Any] | None) -> Callable[..., Any] | None:
        """What runs a kernel's other calls of a family as this runs one of it; None where C sees to that."""

    def sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
        """The size of each dim; raises dims.DimsMismatch."""

    def places(self, args: tuple[Any, ...]) -> Sequence[tuple[str, int, int]] | None:
        """Where the sizes of all calls that differ from this one in sizes alone stand; None where that is not known.

        Each with its name, the place of its tensor among the arguments, and the axis: two of one name must be equal.
        """

    def observed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, memory: Table) -> Observed:
        """Note the sizes of a call that is not decided yet; raises dims.DimsMismatch."""

    def resized(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], point: Mapping[str, int]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call with some dims set to other sizes, its values repeated or cut; raises dims.DimsMismatch."""

    def bucket(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, rules: Mapping[str, Rule], memory: Table
    ) -> Hashable | None:
        """What calls have in common that share one timing: all but the dims with rules, there the bucket; or None."""

    def identity(self) -> Mapping[str, str]:
        """What a stored choice depends on besides the key and the machine: the code, the candidates."""

    def offer(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, memory: Table, request: OfferRequest = ALL
    ) -> Offer:
        """What may run this call: builds what is missing. Called under the lock that building holds."""
