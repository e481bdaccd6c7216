"""Records that pass between the packages: frozen, with no tensor in them."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

__all__ = [
    "CHOSEN_AT",
    "MORE_TO_COME",
    "STATE_CHANGED",
    "STORED_NEAR",
    "STORED_UNDECIDED",
    "UNDECIDED",
    "CacheInfo",
    "Choice",
    "Choices",
    "Origin",
    "Refusal",
    "Timing",
    "Variant",
    "awaits_more",
    "choices_html",
    "compared",
    "doubt_of",
    "spelled",
    "without_doubt",
]

Origin = Literal[
    "timed", "learning", "stored", "shipped", "agreed", "only", "nearest", "bucket", "unseen", "bypass", "pinned"
]


CHOSEN_AT, STORED_NEAR = "chosen at ", "stored for the call nearest to this one"
"""How the note begins of what was taken over from another call."""
UNDECIDED, STORED_UNDECIDED = "undecided: ", "stored, though undecided there: "
"""How the note begins that says why the times of a choice do not bear it out: of one made here, and of a stored one."""
STATE_CHANGED = "what it reads beside its arguments has changed"
"""How the reason begins for which no build is made where calls have found more states of that than there are builds."""
MORE_TO_COME = "more may be built for it"
"""The doubt of a choice that is made of less than there may be: it runs, and what is built later is judged as well."""


@dataclass(frozen=True, slots=True)
class Variant:
    """An alternative that the user supplies: ``fn`` takes the call as it is, and is never compiled.

    ``name`` is how timings, refusals and the store call it (default: the function's own name).
    ``when(*args, **kwargs)`` returns None, or a sentence saying why the variant cannot run this call; it may
    read only what the key holds (types, dtypes, sizes, strides, devices, numbers), never a tensor's values.
    ``trusted`` says that its numbers and all that it does are the function's: where a call may not be run twice to see
    (it appends to a list, say), it takes real calls all the same, each once. Else nothing takes them but the function.
    """

    fn: Callable[..., Any]
    name: str | None = None
    when: Callable[..., str | None] | None = None
    trusted: bool = False


@dataclass(frozen=True, slots=True)
class Timing:
    """What one variant cost at one key.

    ``median_us`` and ``spread_us`` (half the distance between the quartiles) are microseconds a call over
    ``repeats`` samples; ``bytes`` is the peak memory of one call above what was allocated before it, or None
    where it was not measured; ``least_us`` the least sample, or None in what was read from a store.
    Of what was timed on the calls themselves, ``host_us`` and ``device_us`` are what a call took the host and the
    device, None where that was not seen; ``dry`` and ``busy`` are how many samples found the stream without work, and
    with some (on a CPU, which has none, all are dry).
    """

    variant: str
    median_us: float
    spread_us: float
    repeats: int
    bytes: int | None = None
    least_us: float | None = field(default=None, compare=False, repr=False)
    host_us: float | None = field(default=None, compare=False, repr=False)
    device_us: float | None = field(default=None, compare=False, repr=False)
    dry: int = field(default=0, compare=False, repr=False)
    busy: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a variant does not compete for a call: one sentence a reason."""

    variant: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The winner for a key, with every timing and every refusal; ``str()`` of it is a small table.

    ``origin`` says how it was found: ``timed``; ``learning``, not settled: calls are samples yet, or a build is on its
    way; ``stored``/``shipped`` from disk; ``agreed`` by the ranks of a job in `sync`; ``only`` candidate left;
    ``nearest``, what won at sizes near it, alone or found out together; ``bucket`` shared with a timed neighbour;
    ``unseen`` (nothing is known: ``explain`` never times); ``bypass`` (plain, because dispatching would be unsound);
    ``pinned`` by a setting.
    ``route`` is how the chosen build is reached, with the reason where it is not the direct one.
    ``notes`` are further sentences for a person: equal builds, views, what was not measured. ``graph_bytes`` is what
    the CUDA graphs hold by which it runs.
    """

    variant: str
    origin: Origin
    sizes: Mapping[str, int] = field(default_factory=dict)
    key: Any = None
    config: Any = None
    timings: tuple[Timing, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    new_because: tuple[str, ...] = ()
    route: str = "the function as written"
    notes: tuple[str, ...] = ()
    graph_bytes: int = 0

    def __str__(self) -> str:
        lines = [_title(self), *(f"  {_timing_line(*one)}" for one in compared(self.timings, self.variant))]
        lines += [f"    {refusal.variant}: refused, {'; '.join(refusal.reasons)}" for refusal in self.refusals]
        lines.append(f"  runs: {self.route}")
        if self.config is not None:
            lines.append(f"  config: {self.config}")
        if self.new_because:
            lines.append(f"  new because of {', '.join(self.new_because)}")
        return "\n".join([*lines, *[f"  note: {note}" for note in self.notes]])

    def _repr_html_(self) -> str:
        """What a notebook shows: the timings as a table, and below it what ``str()`` says besides."""
        rows = [
            ("▶" if chosen else "", one.variant, f"{one.median_us:.2f}", f"{one.spread_us:.2f}", f"{ratio:.2f}")
            for one, ratio, chosen in compared(self.timings, self.variant)
        ]
        refused = [f"{refusal.variant} was refused: {'; '.join(refusal.reasons)}" for refusal in self.refusals]
        lines = [f"runs: {self.route}", *refused, *self.notes]
        table = _html_table(("", "variant", "µs a call", "±", "× the best"), rows) if rows else ""
        return f"<b>{html.escape(_title(self))}</b>{table}<br>{'<br>'.join(map(html.escape, lines))}"


def doubt_of(choice: Choice) -> str:
    """Why its times do not bear it out, as its notes say; empty where they do."""
    doubts = (note.partition(": ")[2] for note in choice.notes if note.startswith((UNDECIDED, STORED_UNDECIDED)))
    return next(doubts, "")


def without_doubt(choice: Choice) -> Choice:
    """The same, which by now its times do bear out; of what may be built yet they say nothing."""
    doubts = tuple(n for n in choice.notes if n.startswith((UNDECIDED, STORED_UNDECIDED)))
    return replace(choice, notes=tuple(n for n in choice.notes if n not in doubts or n.endswith(MORE_TO_COME)))


def awaits_more(choice: Choice) -> bool:
    """Whether it was made of less than there may be."""
    return doubt_of(choice) == MORE_TO_COME


class Choices(list[Choice]):
    """A list of choices that shows as a line each: variant, origin, sizes, and what each variant takes."""

    def __str__(self) -> str:
        return "\n".join(map(_in_a_line, self)) or "nothing is chosen yet"

    __repr__ = __str__


def _in_a_line(choice: Choice) -> str:
    times = [
        f"{timing.variant} {timing.median_us:.2f} us" + (f" ({ratio:.2f} x)" if ratio > 1 else "")
        for timing, ratio, _ in compared(sorted(choice.timings, key=lambda one: one.median_us), choice.variant)
    ]
    return f"{_title(choice)}{': ' if times else ''}{', '.join(times)}"


def compared(timings: Sequence[Timing], chosen: str) -> Iterator[tuple[Timing, float, bool]]:
    """Each timing, as how many times the best one's time it is, and whether it is the chosen variant's."""
    best_us = min((timing.median_us for timing in timings), default=0.0)
    for timing in timings:
        yield timing, timing.median_us / best_us if best_us > 0 else 1.0, timing.variant == chosen


def _timing_line(timing: Timing, ratio: float, chosen: bool) -> str:
    memory = "" if timing.bytes is None else f"  {timing.bytes:,} bytes"
    return (
        f"{'>' if chosen else ' '} {timing.variant:<24} {timing.median_us:>12.2f} us "
        f"± {timing.spread_us:<8.2f} {ratio:>6.2f} x{memory}{_parts(timing)}"
    )


def _parts(timing: Timing) -> str:
    """What was seen on the calls themselves: the host's and the device's time, and how many samples found which."""
    count = timing.dry + timing.busy
    if not count:
        return ""
    shown = (("host", timing.host_us), ("device", timing.device_us))
    times = [f"{name} {us:.2f} us" for name, us in shown if us is not None]
    idle = "" if timing.device_us is None else f", {timing.dry / count:.0%} found the device idle"
    return "  " + ", ".join((*times, f"{count} sample{'s' if count > 1 else ''}{idle}"))


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Counters of one dispatcher since it was made or cleared.

    ``misses`` counts calls whose key had no choice, ``bypasses`` calls that ran plain because dispatching would
    be unsound (or, beside the hit, since a build raised where plain answered), ``builds`` compilations, ``timings``
    contests, ``builds_held`` builds alive now, ``graph_bytes`` what the CUDA graphs hold by which its choices run.
    """

    hits: int
    misses: int
    bypasses: int
    evictions: int
    builds: int
    timings: int
    currsize: int
    maxsize: int
    builds_held: int
    misses_by_reason: Mapping[str, int]
    bypasses_by_reason: Mapping[str, int]
    graph_bytes: int = 0


def _title(choice: Choice) -> str:
    sizes = spelled(choice.sizes)
    return f"{choice.variant} ({_how(choice)}){' at ' + sizes if sizes else ''}"


def _how(choice: Choice) -> str:
    """The origin for a person: where nothing is near, plain is not the nearest of anything."""
    taken = bool(choice.timings) or any(note.startswith((CHOSEN_AT, STORED_NEAR)) for note in choice.notes)
    return choice.origin if choice.origin != "nearest" or choice.variant != "plain" or taken else "not timed"


def spelled(sizes: Mapping[str, int]) -> str:
    """Sizes for a person: ``M=64, K=8``."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


# What a notebook shows.


def choices_html(name: str, choices: Iterable[Choice]) -> str:
    """The choices of the dispatcher called ``name`` as an HTML table, one a row."""
    columns = ("sizes", "variant", "origin", "µs a call", "faster than plain")
    rows = [_choice_cells(choice) for choice in choices]
    title = f"<b>{html.escape(name)}</b>"
    return title + _html_table(columns, rows) if rows else f"{title}: nothing is chosen yet"


def _choice_cells(choice: Choice) -> tuple[str, ...]:
    times = {timing.variant: timing.median_us for timing in choice.timings}
    time, plain = times.get(choice.variant), times.get("plain")
    shown = "" if time is None else f"{time:.2f}"
    gain = f"{plain / time:.2f} ×" if plain and time else ""
    return (spelled(choice.sizes), choice.variant, _how(choice), shown, gain)


def _html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
