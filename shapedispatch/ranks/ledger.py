"""What is agreed of one dispatcher's keys, and what this rank has found since: a miss asks here what to run and do."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from .known import Known
from .report import KernelReport, News, Parts
from .rule import DEFAULT, Figures, share

__all__ = ["Adopted", "Ledger", "Task"]

MOST_KEYS = 4096
"""How many keys of a dispatcher are known to all ranks, and how many this rank remembers that it met."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a rank does at a miss: what it ``runs``, whether it is to ``learn`` the key, and what to ``prepare``.

    A key is ``unknown`` where no rank has told any figures of it, and this one has none to tell.
    ``configs`` are the texts of the configs that variants of kernels have, ``means`` what the figures of all ranks come
    to. ``sure`` says that this rank has run the checks of what it runs, and told the others so.
    """

    runs: str = DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)
    unknown: bool = False
    learn: bool = False
    prepare: str | None = None
    sure: bool = True
    means: Mapping[str, tuple[float, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Adopted:
    """What an exchange comes to on this rank: what runs from now on at the keys where that is another variant than
    before, and the keys at whose next call there is something to say, to learn or to prepare.
    """

    switched: Mapping[str, str]
    work: Collection[str]


@dataclass(eq=False)
class Ledger:
    """Of one dispatcher. ``known`` is the same on all ranks; the rest is this rank's own.

    Keys stand under their stored texts, which hold no index of a device.
    """

    name: str
    label: str
    identity: Parts
    margin: float
    rank: int
    ranks: tuple[int, ...]
    lock: threading.Lock
    known: dict[str, Known] = field(default_factory=dict)
    news: dict[str, News] = field(default_factory=dict)
    sent: dict[str, News] = field(default_factory=dict)
    own: bool = False
    """Whether this process has the dispatcher; else only others have."""

    # -- at a miss

    def meet(self, text: str) -> Task:
        """Note that a key was met; what to do about it."""
        with self.lock:
            known = self.known.get(text)
            if known is None and text not in self.news and len(self.news) >= MOST_KEYS:
                return Task()
            if known is None or self.rank not in known.met:
                self._of(text)
            return self._task(text, known or Known())

    def agreed(self, text: str) -> str:
        """What all ranks run."""
        with self.lock:
            return self._agreed(text)

    def _task(self, text: str, known: Known) -> Task:
        told = [news for news in (self.news.get(text), self.sent.get(text)) if news is not None]
        learned = bool(known.figures) or any(news.figures is not None for news in told)
        owner = share(self.label, text, self.ranks) if known.owner is None else known.owner
        wanted = known.elected if known.elected not in (DEFAULT, known.agreed) else None
        if wanted and (known.is_ready(self.rank, wanted) or any(wanted in (*n.codes, *n.failed) for n in told)):
            wanted = None
        sure = known.agreed == DEFAULT or known.is_ready(self.rank, known.agreed)
        lost = any(known.agreed in news.failed for news in told)
        runs = DEFAULT if lost else known.agreed
        return Task(runs, known.configs, not learned, owner == self.rank and not learned, wanted, sure, known.means())

    def propose(self, text: str, figures: Figures, configs: Mapping[str, str], codes: Mapping[str, str]) -> None:
        """What this rank has found of a key."""
        with self.lock:
            news = self._of(text)
            news.figures = dict(figures)
            news.configs.update(configs)
            news.codes.update(codes)

    def ready(self, text: str, variant: str, code: str) -> None:
        """This rank can run a variant, whose compiled code has this digest."""
        with self.lock:
            self._of(text).codes[variant] = code

    def fail(self, text: str, variant: str, why: str) -> None:
        """This rank cannot run a variant."""
        with self.lock:
            self._of(text).failed[variant] = why

    def _of(self, text: str) -> News:
        return self.news.setdefault(text, News())

    # -- at an exchange; called with the lock held

    def report(self) -> KernelReport:
        """What there is to tell, which counts as sent until it is `adopted` or `kept`."""
        self.sent, self.news = self.news, {}
        return KernelReport(self.name, self.identity, self.margin, self.sent)

    def kept(self) -> None:
        """Nobody has adopted anything: what was sent is to be told again."""
        for text, later in self.news.items():
            before = self.sent.setdefault(text, later)
            if before is not later:
                before.figures = before.figures if later.figures is None else later.figures
                for mine, new in ((before.configs, later.configs), (before.codes, later.codes)):
                    mine.update(new)
                before.failed.update(later.failed)
        self.news, self.sent = self.sent, {}

    def adopt(self, reports: Mapping[int, KernelReport]) -> Adopted:
        """Take in what each rank told, and decide."""
        self.sent = {}
        told = {text: known.agreed for text, known in self.known.items() if known.elected != known.agreed}
        undecided = {text for report in reports.values() for text in report.news if not self._means(text)}
        for rank, report in sorted(reports.items()):
            for text, news in sorted(report.news.items()):
                known = self.known.setdefault(text, Known())
                told.setdefault(text, known.agreed)
                known.take(rank, news)
        margin = max((report.margin for report in reports.values()), default=self.margin)
        for text in told:
            self.known[text].decide(self.label, text, margin)
        for text in list(self.known)[: max(0, len(self.known) - MOST_KEYS)]:
            told.setdefault(text, self.known.pop(text).agreed)
        switched = {text: self._agreed(text) for text, before in told.items() if self._agreed(text) != before}
        decided = {text for text in undecided if self._means(text)}
        return Adopted(switched, decided | {text for text in told if self._has_work(text)})

    def _means(self, text: str) -> Mapping[str, tuple[float, int]]:
        return self.known[text].means() if text in self.known else {}

    def _agreed(self, text: str) -> str:
        return self.known[text].agreed if text in self.known else DEFAULT

    def _has_work(self, text: str) -> bool:
        task = self._task(text, self.known.get(text, Known()))
        return task.learn or task.prepare is not None
