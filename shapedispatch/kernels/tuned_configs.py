"""What searching the configs has found: for each hint, and for shapes that were searched by themselves.

What is found for a hint holds for a class of calls: those with the same key but for the dynamic dims. It is a few
places in the list of configs, kept in the table's memory, and no tensor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from ..backend import Memory
from ..hit.table import FactMap
from ..keys.key import Key
from ..records import Choice
from ..shapes.hints import distance, hint_points, variant_name
from .key_schema import KeySchema
from .offer import CONSTANT, Making, Wanted, config_name
from .runtime.wrappers import config_text
from .spec import KernelSpec

__all__ = ["TunedConfigs", "wished"]

MOST_FOUND = 4
"""Configs kept for one hint: the best, and others that were nearly as good where they were searched."""
NEARLY = 1.25
"""How much slower than the best a config may be where it was searched, to be tried at other shapes too."""
NEAREST = 2
"""A call is offered what was found for so many of the hints nearest to it."""

FOUND = "found"
"""How the facts begin that are found for hints."""

Point = Mapping[str, int]
Fact = tuple[Any, ...]
_median = attrgetter("median_us")


class _Found(NamedTuple):
    """The places of configs, the best first, and how they were found."""

    places: tuple[int, ...] = ()
    how: str = ""


class TunedConfigs:
    """The finds of one kernel."""

    def __init__(self, spec: KernelSpec, key_schema: KeySchema) -> None:
        self.points = hint_points(spec.hints, spec.dynamic) or (({},) if spec.hints else ())
        self._spec = spec
        self._layout = key_schema

    def nearest(self, making: Making, count: int = 1) -> list[Point]:
        """The hints nearest to a call, over the dims that are integers in it."""
        sizes = making.sizes

        def far(point: Point) -> float:
            return distance(sizes, {name: size for name, size in point.items() if name in sizes})

        points: Iterable[Point] = self.points
        return sorted(points, key=far)[:count]

    def fact(self, making: Making, point: Point) -> Fact:
        """Under what is kept what is found for a hint and this call's class."""
        return (FOUND, self._layout.ready().class_of(making.call.key, self._spec.dynamic), variant_name(point))

    @staticmethod
    def fact_here(making: Making) -> Fact:
        """Under what is kept what is found for this call's key."""
        return ("found here", making.call.key)

    def survivors(self, making: Making, point: Point) -> list[int]:
        """What was found for a hint and may run this call."""
        return [place for place in self._found(making, point).places if place in making.left]

    def _found(self, making: Making, point: Point) -> _Found:
        """What was found for a hint: by this process or, where that has not searched, by another."""
        fact = self.fact(making, point)
        found = _recall(making.memory, fact)
        if not found.places and making.request.tuned_configs is not None:
            texts, _ = making.request.tuned_configs.recall(*_everywhere(fact))
            places = _places_of(making, texts)
            if places:
                _keep(making.memory, fact, places, "the config that another process has found for this hint")
                found = _recall(making.memory, fact)
        return found

    def best_first(self, making: Making) -> list[int]:
        """What was found for the nearest hint and may run this call."""
        return [place for point in self.nearest(making) for place in self.survivors(making, point)]

    def wanted(self, making: Making) -> list[Wanted]:
        """All that was found for this call: for the hints nearest to it, for its own shape, in another process."""
        found = [one for point in self.nearest(making, NEAREST) for one in self._wanted_for(making, point)]
        on_this_device = _recall(making.memory, self.fact_here(making))
        found += [
            Wanted(config_name(making, place), place, None, on_this_device.how) for place in on_this_device.places[:1]
        ]
        return [*found, *_wished(making, found)]

    def _wanted_for(self, making: Making, point: Point) -> list[Wanted]:
        found, name = self._found(making, point), variant_name(point)
        survivors = self.survivors(making, point)
        if found.places and not survivors:
            making.refuse(name, "prune_configs_by leaves out what was found for it")
        names = [name, *[f"{name} {config_text(making.config(place))}" for place in survivors[1:]]]
        return [Wanted(each, place, point, found.how) for each, place in zip(names, survivors, strict=False)]

    def search(self, making: Making, fact: Fact, static: Collection[str]) -> Callable[[Choice], None]:
        """Add every config to an offer that holds plain; returns what must be told the choice."""
        plain = next(place for place in making.left if making.config(place) is making.candidates[0].config)
        places = {config_name(making, place): place for place in making.left if static or place != plain}
        making.add([Wanted(name, place) for name, place in places.items()], static, hold=False)
        how = f"the best of {len(making.left)} configs at {_at(making.sizes)}{_why_again(making, fact)}"

        def found(choice: Choice) -> None:
            best = _nearly_best(choice) if choice.origin == "timed" else [choice.variant]
            making.let_go(but=best)
            if choice.origin == "timed" or len(making.candidates) == 1:  # all others were refused, and would be again
                won = [places.get(name, plain) for name in best]
                _keep(making.memory, fact, _shared(making, fact, choice, won), how)

        return found


def _everywhere(fact: Fact) -> tuple[Key, str]:
    """What of a hint's fact holds in every process: the class of calls but for the device's number, and the hint."""
    _, its_class, hint = fact
    return (its_class[1:], hint)


def _places_of(making: Making, texts: Iterable[str]) -> list[int]:
    """Where configs with these texts stand among the candidates; what stands nowhere is passed over."""
    on_this_device = {config_text(config): place for place, config in reversed([*enumerate(making.configs)])}
    return [on_this_device[text] for text in dict.fromkeys(texts) if text in on_this_device][:MOST_FOUND]


def _why_again(making: Making, fact: Fact) -> str:
    """What has changed since another process searched for this hint, if one has."""
    if making.request.tuned_configs is None or fact[0] != FOUND:
        return ""
    _, changed = making.request.tuned_configs.recall(*_everywhere(fact))
    return f", searched again: {'; '.join(changed)}" if changed else ""


def _shared(making: Making, fact: Fact, choice: Choice, places: Sequence[int]) -> Sequence[int]:
    """Keep for all processes what was found for a hint; what stands is another's if that was first and is there."""
    tuned_configs = making.request.tuned_configs
    if tuned_configs is None or fact[0] != FOUND:
        return places
    of, hint = _everywhere(fact)
    useless, _ = tuned_configs.recall(
        of, hint
    )  # none of these is a candidate, else nothing would have been searched for
    texts = [config_text(making.config(place)) for place in places]
    stands = tuned_configs.keep(of, hint, choice, texts, instead=bool(useless))
    return _places_of(making, stands) or places


def wished(making: Making) -> list[int]:
    """The place of the config that is asked for with a variant, if it may run this call."""
    config = making.request.config
    if config is None:
        return []
    return [place for place in making.left if _is_config(making.config(place), config)][:1]


def _wished(making: Making, known: Sequence[Wanted]) -> list[Wanted]:
    """The one that is asked for by name and config, if this process has not found it itself."""
    name = making.request.only
    if name is None or name in CONSTANT or any(one.name == name for one in known):
        return []
    return [Wanted(name, place, None, "the config that was found before") for place in wished(making)]


def _is_config(config: Any, described: Any) -> bool:
    """Whether ``described``, a config or its text as a store holds it, is this config."""
    if isinstance(described, str):
        return described in (str(config), json.dumps(str(config)), config_text(config))
    return described is config or described == config  # type: ignore[no-any-return]  # Triton's own comparison


def _at(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "the first such call"


def _nearly_best(choice: Choice) -> list[str]:
    """The variant chosen, then those that were nearly as fast, the fastest first."""
    best = min((timing.median_us for timing in choice.timings), default=0.0)  # none where all but plain are wrong
    near = sorted((timing for timing in choice.timings if timing.median_us <= best * NEARLY), key=_median)
    return list(dict.fromkeys([choice.variant, *[timing.variant for timing in near]]))[:MOST_FOUND]


def _recall(memory: Memory, fact: Fact) -> _Found:
    return _facts(memory, fact).get(fact) or _Found()


def _keep(memory: Memory, fact: Fact, places: Sequence[int], how: str) -> None:
    """Remember the configs at ``places`` as the newest that were found."""
    every = dict.fromkeys([*places, *_recall(memory, fact).places])
    _facts(memory, fact)[fact] = _Found(tuple(every)[:MOST_FOUND], how)


def _facts(memory: Memory, fact: Fact) -> FactMap[Hashable, Any]:
    return memory.facts.tuned_for_hint if fact[0] == FOUND else memory.facts.tuned_here
