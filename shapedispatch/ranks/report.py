"""What one rank tells the others in one exchange, as JSON: nothing in it names code, and nothing is evaluated.

A report has only what is new since the last one. It does not depend on what succeeded: a rank without news tells that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .rule import FAILED

__all__ = ["BadReport", "KernelReport", "News", "Parts", "Report"]

FORMAT = 1
Parts = Mapping[str, str | int]
"""What something is, by parts with names."""


class BadReport(ValueError):
    """A text that is no report; it says why."""


@dataclass(slots=True)
class News:
    """What is new of one key on one rank: that it was met; what was found there.

    ``figures`` are None where nobody has looked yet. ``codes`` says of each variant that is ready what its compiled
    code is, by a digest, empty where it has none of its own. ``failed`` says why variants cannot run here.
    """

    figures: dict[str, float] | None = None
    configs: dict[str, str] = field(default_factory=dict)
    codes: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> list[Any]:
        """Plain values; JSON has no infinity."""
        costs = None if self.figures is None else {name: _or_none(cost) for name, cost in self.figures.items()}
        return [costs, self.configs, self.codes, self.failed]

    @classmethod
    def of(cls, found: object) -> News:
        """What `to_json` made; raises BadReport."""
        if not isinstance(found, list) or len(found) != 4:
            raise BadReport("the news of a key has not its four parts")
        figures = None if found[0] is None else {name: _cost(cost) for name, cost in _mapping(found[0]).items()}
        return cls(figures, *(_texts(part) for part in found[1:]))


@dataclass(slots=True)
class KernelReport:
    """The news of one dispatcher: who it is, what margin it decides by, and its keys by their stored texts."""

    name: str
    identity: Parts
    margin: float
    news: Mapping[str, News]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        news = {text: one.to_json() for text, one in self.news.items()}
        return {"name": self.name, "identity": dict(self.identity), "margin": self.margin, "news": news}

    @classmethod
    def of(cls, found: object) -> KernelReport:
        """What `to_json` made; raises BadReport."""
        parts = _mapping(found)
        news = {text: News.of(one) for text, one in _mapping(parts.get("news")).items()}
        name, margin = parts.get("name"), parts.get("margin")
        if not isinstance(name, str) or not isinstance(margin, (int, float)):
            raise BadReport("a dispatcher has no name or no margin")
        return cls(name, _parts(parts.get("identity")), float(margin), news)


@dataclass(slots=True)
class Report:
    """One rank's: where it runs, what it has adopted so far (a digest), and its dispatchers."""

    place: Parts
    history: str
    kernels: Mapping[str, KernelReport]

    def to_text(self) -> str:
        """As JSON, the same for the same report."""
        kernels = {label: kernel.to_json() for label, kernel in self.kernels.items()}
        content = {"format": FORMAT, "place": dict(self.place), "history": self.history, "kernels": kernels}
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def of_text(cls, text: str) -> Report:
        """What `to_text` made; raises BadReport."""
        try:
            found = _mapping(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise BadReport(f"it is not JSON: {error}") from None
        if found.get("format") != FORMAT or not isinstance(found.get("history"), str):
            raise BadReport("it is of another release of shapedispatch")
        kernels = {label: KernelReport.of(one) for label, one in _mapping(found.get("kernels")).items()}
        return cls(_parts(found.get("place")), found["history"], kernels)


def _mapping(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise BadReport("a part is not a mapping")
    return found


def _or_none(cost: float) -> float | None:
    return cost if math.isfinite(cost) else None


def _cost(found: object) -> float:
    if found is None:
        return FAILED
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
        raise BadReport("a figure is not a number")
    return float(found)


def _checked(found: object, right: Callable[[object], bool]) -> dict[str, Any]:
    parts = _mapping(found)
    if not all(map(right, parts.values())):
        raise BadReport("a part is of another type than it should be")
    return parts


def _texts(found: object) -> dict[str, str]:
    return _checked(found, lambda value: isinstance(value, str))


def _parts(found: object) -> dict[str, str | int]:
    return _checked(found, lambda value: type(value) in (str, int))
