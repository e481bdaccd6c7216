"""What all ranks know of one key, and what becomes of it: the same on every rank, since each takes in the same news."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .report import News
from .rule import DEFAULT, FAILED, mean, share, winner

__all__ = ["Known"]


@dataclass(slots=True)
class Known:
    """One key of one dispatcher: which ranks have ``met`` it, what they found, and what is decided.

    ``elected`` is what the rule says, ``agreed`` what every rank runs. That is the elected variant from when all ranks
    that have met the key are ready for it; at the latest from the exchange after the one that elected it, since whoever
    has called it in between is ready or has failed. ``owner`` is who learns it, where nobody has.
    """

    met: set[int] = field(default_factory=set)
    figures: dict[int, dict[str, float]] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)
    codes: dict[str, dict[int, str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    owner: int | None = None
    elected: str = DEFAULT
    agreed: str = DEFAULT

    def take(self, rank: int, news: News) -> None:
        """What one rank tells; taken in the order of ranks."""
        self.met.add(rank)
        if news.figures is not None:
            self.figures[rank] = news.figures
        for variant, code in news.codes.items():
            self.codes.setdefault(variant, {})[rank] = code
        for variant, config in news.configs.items():
            self.configs.setdefault(variant, config)
        for variant, why in news.failed.items():
            self.failed.setdefault(variant, f"on rank {rank}: {why}")

    def decide(self, kernel: str, text: str, margin: float) -> None:
        """Elect, and agree where all are ready."""
        self._compare_codes()
        before, self.elected = self.elected, winner(map(self._with_failures, self.figures.values()), margin)
        if self.elected in (DEFAULT, before) or self._all_ready(self.elected):
            self.agreed = self.elected
        elif self.agreed in self.failed:
            self.agreed = DEFAULT
        self.owner = share(kernel, text, sorted(self.met)) if self.met and not self.figures else None

    def _compare_codes(self) -> None:
        """What is not the same code everywhere has failed."""
        for variant, codes in self.codes.items():
            if len(set(codes.values())) > 1:
                ranks = ", ".join(map(str, sorted(codes)))
                self.failed.setdefault(variant, f"its compiled code is not the same on ranks {ranks}")

    def _with_failures(self, figures: Mapping[str, float]) -> dict[str, float]:
        return {variant: FAILED if variant in self.failed else cost for variant, cost in figures.items()}

    def _all_ready(self, variant: str) -> bool:
        """Whether all that have met the key can run it: what has no code of its own is there as the function is."""
        codes = self.codes.get(variant, {})
        return self.met <= codes.keys() or "" in codes.values()

    def means(self) -> dict[str, tuple[float, int]]:
        """What each variant costs as the rule sees it, and how many ranks have told of it; but for what failed."""
        names = dict.fromkeys(name for figures in self.figures.values() for name in figures)
        told = {name: [figures[name] for figures in self.figures.values() if name in figures] for name in names}
        costs = {name: (mean(figures), len(figures)) for name, figures in told.items() if name not in self.failed}
        return {name: cost for name, cost in costs.items() if cost[0] < FAILED}

    def is_ready(self, rank: int, variant: str) -> bool:
        """Whether a rank has told that it can run a variant."""
        return rank in self.codes.get(variant, {})
