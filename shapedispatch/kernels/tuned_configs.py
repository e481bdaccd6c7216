"""What searching the configs has found: for each hint, and for shapes that were searched by themselves.

What is found for a hint holds for a class of calls: those with the same key but for the dynamic dims. It is a few
places in the list of configs, kept in the table's memory, and no tensor.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple

from ..backend import Call, Offer, OfferRequest
from ..hit.facts import FactMap
from ..keys.key import Key
from ..records import Choice, spelled
from ..shapes.dims import distance, variant_name
from .offer import CONSTANT, KernelOfferBuilder, Wanted
from .runtime.wrappers import config_text

__all__ = ["ConfigSearch", "TunedConfigs"]

MOST_FOUND = 4
"""Configs kept for one hint: the best, and others that were nearly as good where they were searched."""
NEARLY = 1.25
"""How much slower than the best a config may be where it was searched, to be tried at other shapes too."""
NEAREST = 2
"""A call is offered what was found for so many of the hints nearest to it."""

Point = Mapping[str, int]


class KeyAlone(NamedTuple):
    """Of a call what remains when it is over."""

    key: Key


class _Found(NamedTuple):
    """The places of configs, the best first, and how they were found."""

    places: tuple[int, ...] = ()
    how: str = ""


@dataclass(frozen=True, slots=True)
class TunedConfigs:
    """What was found for one call, whose offer is in the making. ``points`` are the kernel's hints.

    Where a hint is asked for, None stands for this very key, which was searched by itself.
    """

    builder: KernelOfferBuilder
    points: Sequence[Point]

    def nearest(self, count: int = 1) -> list[Point]:
        """The hints nearest to the call, over the dims that are integers in it."""
        sizes = self.builder.sizes
        return sorted(
            self.points,
            key=lambda point: distance(sizes, {name: size for name, size in point.items() if name in sizes}),
        )[:count]

    def survivors(self, point: Point) -> list[int]:
        """What was found for a hint and may run this call."""
        return [place for place in self._found(point).places if place in self.builder.left]

    def best_first(self) -> list[int]:
        """What was found for the nearest hint and may run this call."""
        return [place for point in self.nearest() for place in self.survivors(point)]

    def asked_for(self) -> list[int]:
        """The place of the config that is asked for with a variant, if it may run this call."""
        config = self.builder.request.config
        places = [] if config is None else self.builder.left
        return [place for place in places if _is_config(self.builder.config(place), config)][:1]

    def wanted(self) -> list[Wanted]:
        """All that was found for this call: for the hints nearest to it, for its own shape, in another process."""
        found = [one for point in self.nearest(NEAREST) for one in self._wanted_for(point)]
        here = self._remembered(None)
        found += [Wanted(self.builder.config_name(place), place, None, here.how) for place in here.places[:1]]
        name = self.builder.request.only
        if name is None or name in CONSTANT or any(one.name == name for one in found):
            return found
        return [*found, *[Wanted(name, place, None, "the config that was found before") for place in self.asked_for()]]

    def _wanted_for(self, point: Point) -> list[Wanted]:
        found, name, survivors = self._found(point), variant_name(point), self.survivors(point)
        if found.places and not survivors:
            self.builder.refuse(name, "prune_configs_by leaves out what was found for it")
        names = [name, *[f"{name} {config_text(self.builder.config(place))}" for place in survivors[1:]]]
        return [Wanted(each, place, point, found.how) for each, place in zip(names, survivors, strict=False)]

    # -- what is kept

    def _found(self, point: Point) -> _Found:
        """What was found for a hint: by this process or, where that has not searched, by another."""
        found, stored = self._remembered(point), self.builder.request.tuned_configs
        if found.places or stored is None:
            return found
        texts, _ = stored.look_up(*self._everywhere(point))
        places = self._places_of(texts)
        if places:
            self._remember(point, places, "the config that another process has found for this hint")
        return self._remembered(point)

    def keep(self, point: Point | None, choice: Choice, places: Sequence[int], how: str) -> None:
        """Keep what a search has found, a hint's for all processes: there stands another's if that was first."""
        stored = self.builder.request.tuned_configs
        if stored is not None and point is not None:
            where = self._everywhere(point)
            useless, changed = stored.look_up(*where)  # no candidates, else nothing would have been searched for
            how += f", searched again: {'; '.join(changed)}" if changed else ""
            texts = [config_text(self.builder.config(place)) for place in places]
            places = self._places_of(stored.keep(*where, choice, texts, instead=bool(useless))) or places
        self._remember(point, places, how)

    def _remember(self, point: Point | None, places: Sequence[int], how: str) -> None:
        """Remember the configs at ``places`` as the newest that were found."""
        every = dict.fromkeys([*places, *self._remembered(point).places])
        facts, of = self._facts(point)
        facts[of] = _Found(tuple(every)[:MOST_FOUND], how)

    def _remembered(self, point: Point | None) -> _Found:
        facts, of = self._facts(point)
        return facts.get(of) or _Found()

    def _facts(self, point: Point | None) -> tuple[FactMap[Hashable, Any], Hashable]:
        """Where it is remembered: the map, and the key in it."""
        facts = self.builder.memory.facts
        if point is None:
            return facts.tuned_here, self.builder.call.key
        return facts.tuned_for_hint, (self.builder.of_class, variant_name(point))

    def _everywhere(self, point: Point) -> tuple[Key, str]:
        """What says the same in every process: the class of calls but for the device's number, and the hint."""
        return self.builder.of_class[1:], variant_name(point)

    def _places_of(self, texts: Iterable[str]) -> list[int]:
        """Where configs with these texts stand among the candidates; what stands nowhere is passed over."""
        places = {config_text(config): place for place, config in reversed([*enumerate(self.builder.configs)])}
        return [places[text] for text in dict.fromkeys(texts) if text in places][:MOST_FOUND]


@dataclass(slots=True)
class ConfigSearch(AbstractContextManager["ConfigSearch"]):
    """All configs at one call; ``builder`` is that call's and has plain already. What is found is ``point``'s."""

    builder: KernelOfferBuilder
    tuned: TunedConfigs
    point: Point | None
    at: Call | None
    _places: dict[str, int] = field(default_factory=dict)

    def awaits(self) -> bool:
        """Whether configs are compiled elsewhere yet."""
        return self.builder.awaits(self._wanted(), self.builder.static())

    @property
    def many(self) -> int:
        """See `Search.many`."""
        return len(self.builder.left)

    @property
    def final(self) -> bool:
        """See `Search.final`."""
        return self.point is None

    def offer(self, hold: bool = False) -> Offer:
        """See `Search.offer`."""
        self.builder.add(self._wanted(), self.builder.static(), hold)
        return self.builder.finish()

    def _wanted(self) -> list[Wanted]:
        """All configs; plain is there already, but where it has other constants."""
        builder, static = self.builder, self.builder.static()
        plain = next(place for place in builder.left if builder.config(place) is builder.candidates[0].config)
        places = {builder.config_name(place): place for place in builder.left if static or place != plain}
        self._places = {**places, "plain": plain}
        return [Wanted(name, place) for name, place in places.items()]

    def without_call(self) -> ConfigSearch:
        """See `Search.without_call`."""
        self._wanted()
        builder = self.builder
        request = OfferRequest(tuned_configs=builder.request.tuned_configs)
        builder = replace(builder, request=request, call=KeyAlone(builder.call.key))  # type: ignore[arg-type]  # its key is all that is asked for
        return replace(self, builder=builder, tuned=replace(self.tuned, builder=builder), at=None)

    def keep(self, choice: Choice) -> None:
        """See `Search.keep`."""
        timed = choice.origin == "timed"
        best = _nearly_best(choice) if timed else [choice.variant]
        self.builder.hold(best)
        if timed or len(self.builder.candidates) == 1:  # all others were refused, and would be again
            sizes = spelled(self.builder.sizes) or "the first such call"
            how = f"the best of {len(self.builder.left)} configs at {sizes}"
            places = [self._places.get(name, self._places["plain"]) for name in best]
            self.tuned.keep(self.point, choice, places, how)

    def __exit__(self, *raised: object) -> None:
        self.builder.let_go()


def _is_config(config: Any, described: Any) -> bool:
    """Whether ``described``, a config or its text as a store holds it, is this config."""
    if isinstance(described, str):
        return described in (str(config), json.dumps(str(config)), config_text(config))
    return described is config or described == config  # type: ignore[no-any-return]  # Triton's own comparison


def _nearly_best(choice: Choice) -> list[str]:
    """The variant chosen, then those that were nearly as fast, the fastest first."""
    fastest = sorted(choice.timings, key=attrgetter("median_us"))  # none where all but plain are wrong
    near = [timing.variant for timing in fastest if timing.median_us <= fastest[0].median_us * NEARLY]
    return list(dict.fromkeys([choice.variant, *near]))[:MOST_FOUND]
