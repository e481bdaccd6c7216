"""One dispatcher's side of the store: its keys to rows, rows to what they say of a call.

A row names a variant. Whether that exists, may run the call and is right is judged by whoever asks.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from ..interpreter.locks import fork_safe_lock
from ..keys.identity import Environment, environment
from ..keys.key import Key, storable
from ..records import Choice, doubt_of
from .artifacts import KeptBuilds
from .disk import writes
from .key_text import canonical, canonical_or_none, leaves, parse
from .rows import BadRow, Kind
from .store import Found, Missing, Row, Store, may_hold

__all__ = ["KernelStore", "StoredConfigs", "StoredVerdicts", "store_at", "stored_text"]

_MOST_CONFIGS = 16
"""How many of a row's configs are looked at."""


class KernelStore:
    """What is stored of one kernel. ``identity`` gives the soft parts that are the kernel's own: code, candidates.

    ``with_tables`` says whether the tables of the package are asked now, where the user has nothing that fits.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        identity: Callable[[], Mapping[str, str]],
        with_tables: Callable[[], bool] = lambda: True,
    ) -> None:
        self.store = store
        self._name = name
        self._with_tables = with_tables
        self._in_tables: dict[str, set[int]] = {}
        # Read at the first call: by then its globals are there.
        self._identity = functools.cache(lambda: tuple(sorted(identity().items())))
        with _lock:
            _kernel_stores[:] = [ref for ref in _kernel_stores if ref() is not None]
            _kernel_stores.append(weakref.ref(self))
            self._same_name = [ref for ref in _kernel_stores if (one := ref()) is not None and one._name == name]

    @functools.cached_property
    def kernel(self) -> str:
        """The name in the store: where dispatchers of other code have the same name, the second one's has a number.

        Without it, they would take each other's place, and time again in each process.
        """
        known = dict.fromkeys(other._identity() for ref in self._same_name if (other := ref()) is not None)
        place = list(known).index(self._identity())
        return f"{self._name}#{place + 1}" if place else self._name

    def find(self, key: Key, device: torch.device) -> Found | None:
        """The stored row for this key on this kind of device."""
        return self._found(stored_text(key), self._here(device))

    def _found(self, text: str | None, here: Environment) -> Found | None:
        found = self._get(text, here, "choice") if text is not None else None
        return found if isinstance(found, Found) else None

    def _get(self, text: str, here: Environment, kind: Kind) -> Found | Missing:
        """What the user has, if it fits and is decided; else a row of the package's tables, else what the user has."""
        found = self.store.get(self.kernel, text, here, kind=kind)
        fits = isinstance(found, Found) and not found.soft_differences and not found.row.undecided
        if fits or not self._with_tables():
            return found
        row = self.store.tables.find(kind, self.kernel, text, here)
        return Found(row, "shipped") if row is not None else found

    def may_hold(self, shapes: Iterable[Sequence[int]], device: torch.device) -> bool:
        """Whether anything may be stored for a key of tensors of these shapes; a thing of few microseconds."""
        sizes = {size for shape in shapes for size in shape}
        return may_hold(self.store, self.kernel, sizes) or (self._with_tables() and sizes <= self._numbers(device))

    def _numbers(self, device: torch.device) -> set[int]:
        """Those in the keys that the package's tables have of the kernel."""
        if device.type not in self._in_tables:
            self._in_tables[device.type] = self.store.tables.numbers(self.kernel, self._here(device))
        return self._in_tables[device.type]

    def found_here(self) -> list[Found]:
        """What stands for each stored or shipped key, on the kinds of device that are here.

        But for keys that only a table of the package has: of its many sizes this program may never meet one.
        """
        rows = self.store.choices(self.kernel)
        found: list[Found | None] = []
        for device in (torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])):
            here = self._here(device) if any(_on(row, device) for row in rows) else None
            keys = dict.fromkeys(row.key for row in rows if here is not None and row.hard == here.hard)
            found += [self._found(key, here) for key in keys if here is not None]
        return [one for one in found if one is not None]

    def nearest(self, key: Key, device: torch.device) -> Found | None:
        """Of the rows for calls that differ in sizes and whole numbers only, the one nearest by log distance.

        An exact build serves one call, so that it is no answer for another.
        """
        text = stored_text(key)
        if text is None:
            return None
        here = self._here(device)
        tables = self.store.tables.choices(self.kernel, here) if self._with_tables() else []
        rows = [row for row in (*self.store.choices(self.kernel), *tables) if row.hard == here.hard]
        rows = [row for row in rows if row.variant != "exact"]
        known = [(far, row.key) for row in rows if (far := _far(row.key, text)) is not None]
        return self._found(min(known, key=itemgetter(0), default=(0.0, None))[1], here)

    def keep(self, key: Key, device: torch.device, choice: Choice, instead: bool = False) -> Row | None:
        """Store what was timed and return it; or, if not ``instead``, the row of another process that came first.

        What is undecided is stored as such, so that the next process need not begin anew; see `Store.put`.
        """
        return self._keep(key, self._here(device), choice, instead)

    def keep_later(self, key: Key, device: torch.device, choice: Choice, instead: bool = False) -> None:
        """As `keep`, where nobody asks what stands: no call waits for it."""
        here = self._here(device)  # a thread may find other settings
        writes.add(lambda: self._keep(key, here, choice, instead))

    def _keep(self, key: Key, here: Environment, choice: Choice, instead: bool) -> Row | None:
        config = None if choice.config is None else str(choice.config)
        row = _row(self.kernel, stored_text(key), here, choice.variant, config, choice, "choice")
        return self.store.put(row, instead=instead) if row is not None else None

    def tuned_configs(self, device: torch.device) -> StoredConfigs:
        """What processes have found for the hints of this kernel on this kind of device, as it stands now."""
        here = self._here(device)
        return StoredConfigs(self.store, self.kernel, here, lambda text: self._get(text, here, "hint"))

    def verdicts(self, device: torch.device) -> StoredVerdicts:
        """What processes have found of the numbers of builds on this kind of device."""
        return StoredVerdicts(self.store, self.kernel, self._here(device))

    def kept_builds(self, device: torch.device) -> KeptBuilds:
        """What processes have had built on this kind of device."""
        return KeptBuilds(self.store.artifacts, lambda: environment(device))

    def missed(self, key: Key, device: torch.device, spent_s: float | None = None) -> None:
        """Note a key that was met where nothing may be timed, or nothing was yet, and what was spent there."""
        text = stored_text(key)
        if text is not None:
            self.store.missed(self.kernel, text, self._here(device), spent_s)

    def spent_s(self, key: Key, device: torch.device) -> float:
        """What was noted of a key that is like this one in all respects, in seconds; else 0."""
        text = stored_text(key)
        if text is None:
            return 0.0
        found = self.store.get(self.kernel, text, self._here(device), kind="missed")
        if isinstance(found, Missing) or found.soft_differences:
            return 0.0
        spent: Any = json.loads(found.row.config or "null")
        well = isinstance(spent, (int, float)) and not isinstance(spent, bool) and 0 <= spent < math.inf
        return float(spent) if well else 0.0

    def why(self, key: Key, device: torch.device) -> tuple[str, ...]:
        """Why a key is stored, stored with differences, or not stored."""
        text = stored_text(key)
        return ("this key cannot be stored",) if text is None else self.store.why(self.kernel, text, self._here(device))

    def _here(self, device: torch.device) -> Environment:
        return environment(device).extended(**dict(self._identity()))


def _on(row: Row, device: torch.device) -> bool:
    """Whether a row may be of this kind of device: asked first, since to describe a GPU starts CUDA."""
    return (row.hard.get("family") == "cpu") == (device.type == "cpu")


@dataclass(frozen=True, slots=True)
class StoredVerdicts:
    """What checks of builds have found; see `backend.Verdicts`. A build is known by its code."""

    store: Store
    kernel: str
    here: Environment

    def look_up(self, code: str) -> tuple[str, int] | None:
        """See `backend.Verdicts`: what was found under other conditions is to be found anew."""
        found = self.store.get(self.kernel, _build_text(code), self.here, kind="verdict")
        if isinstance(found, Missing) or found.soft_differences:
            return None
        told: Any = json.loads(found.row.config or "null")
        well = isinstance(told, list) and len(told) == 2 and isinstance(told[0], str) and isinstance(told[1], int)
        return (told[0], told[1]) if well else None

    def keep(self, code: str, wrong: str, digits: int) -> None:
        """See `backend.Verdicts`."""
        variant = "wrong" if wrong else "right"
        nothing = Choice(variant, "only")
        row = _row(self.kernel, _build_text(code), self.here, variant, [wrong, digits], nothing, "verdict")
        if row is not None:
            self.store.put(row, instead=True)


def _build_text(code: str) -> str:
    return canonical(("build", hashlib.sha256(code.encode()).hexdigest()))


class StoredConfigs:
    """The configs that won at hints, best first, by their texts; see `backend.TunedConfigs`. Made for one decision.

    A store is asked once when this is made, so that what it has to warn of is said outside of any offer, where it is
    heard. What is read once stays so: a row that comes later is met when something is kept.
    """

    def __init__(
        self, store: Store, kernel: str, here: Environment, get: Callable[[str], Found | Missing] | None = None
    ) -> None:
        self._store = store
        self._kernel = kernel
        self._here = here
        self._get = get or (lambda text: store.get(kernel, text, here, kind="hint"))
        self._known: dict[str, Found | Missing] = {"": self._get("")}

    def look_up(self, of: Key, hint: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `backend.TunedConfigs`: what was found under other conditions is to be found anew."""
        text = canonical_or_none((of, hint)) or ""
        if text not in self._known:
            self._known[text] = self._get(text)
        found = self._known[text]
        if isinstance(found, Missing):
            return (), ()
        return ((), found.soft_differences) if found.soft_differences else (_configs_in(found.row), ())

    def keep(self, of: Key, hint: str, choice: Choice, configs: Sequence[str], instead: bool) -> tuple[str, ...]:
        """See `backend.TunedConfigs`. ``choice`` is that of the search; one without timings says nothing."""
        text = canonical_or_none((of, hint)) if choice.timings else None
        row = _row(self._kernel, text, self._here, hint, list(configs), choice, "hint")
        if row is None:
            return tuple(configs)
        stands = self._store.put(row, instead=instead)
        return _configs_in(stands) or _configs_in(self._store.put(row, instead=True))


def _configs_in(row: Row) -> tuple[str, ...]:
    """The texts of configs that a hint's row holds; none where it holds anything else."""
    held: Any = json.loads(row.config) if row.config is not None else None
    well = isinstance(held, list) and all(isinstance(text, str) for text in held)
    return tuple(held[:_MOST_CONFIGS]) if well else ()


def _row(
    kernel: str, text: str | None, here: Environment, variant: str, config: Any, choice: Choice, kind: Kind
) -> Row | None:
    """The row of a choice; None for what cannot be stored, or is too large: the next process looks for it again."""
    if text is None:
        return None
    timings = [timing for timing in choice.timings if timing.median_us < math.inf]
    with contextlib.suppress(BadRow):
        return Row.make(
            kernel,
            text,
            hard=here.hard,
            soft=here.soft,
            variant=variant,
            config=None if config is None else json.dumps(config),
            timings=timings,
            kind=kind,
            undecided=doubt_of(choice) if kind == "choice" else "",
        )
    return None


def stored_text(key: Key) -> str | None:
    """The key in its canonical form; None for one that holds what has no name outside this process."""
    return canonical_or_none(storable(key))


def _far(one: str, other: str) -> float | None:
    """How far two calls are apart, by the logs of their whole numbers; None where they differ in anything else."""
    try:
        ours, theirs = list(leaves(parse(one))), list(leaves(parse(other)))
    except ValueError:  # a key of another release
        return None
    if [place for place, _ in ours] != [place for place, _ in theirs]:
        return None
    far = 0.0
    for (_, a), (_, b) in zip(ours, theirs, strict=True):
        if type(a) is int and type(b) is int and a > 0 and b > 0:
            far += abs(math.log2(a) - math.log2(b))
        elif type(a) is not type(b) or a != b:
            return None
    return far


_kernel_stores: list[weakref.ref[KernelStore]] = []
_stores: dict[Path | None, Store] = {}
_lock = fork_safe_lock()


def store_at(setting: Any) -> Store | None:
    """The store that a ``store`` setting means: one for each place in the process; None for false."""
    if isinstance(setting, Store):
        return setting
    if setting is False:
        return None
    place = None if setting is True else Path(setting)
    with _lock:
        if place not in _stores:
            _stores[place] = Store(place)
        return _stores[place]
