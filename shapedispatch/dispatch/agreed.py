"""The entry of a key where ranks agree: it runs what all ranks run, whatever is found out about it here.

What is found is written into the ledger, and told in the next exchange. A key that is this rank's share is judged on
copies at its first miss, as it would be alone; a variant that was elected is built, judged, and not run yet.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..autotune.choose import Objective, PlainRaised
from ..backend import OfferRequest
from ..choices.context import MissContext
from ..choices.known_choices import FROZEN_MODES, entry_for, missing, plain_entry, stored
from ..errors import MissError, in_a_line
from ..hit.table import Entry, Table
from ..interpreter.failures import what_fails
from ..ranks.ledger import Adopted, Ledger, Task
from ..ranks.rule import DEFAULT, FAILED
from ..records import Choice, Timing
from ..store.kernel_store import stored_text

__all__ = ["adopt", "agreed_choice", "agreed_entry", "captured_entry", "note_choices"]

_UNTIL = "ranks agree on what runs, and nothing changes between two calls of sync()"
_NOT_TOLD = "ranks agree on what runs, and the key of this call cannot be told to the others"
_DEVICE = re.compile(r"(?<=cuda:)\d+|(?<=stream)\d+|(?<=DeviceGuard\()\d+|(?<=set_device\()\d+")
"""The index of a device in compiled code: each rank has its own."""


def agreed_entry(ctx: MissContext, ledger: Ledger, tuned: Callable[[], Entry], asked: bool) -> tuple[Entry, Choice]:
    """The entry for a call, and what was decided for it here, as far as anything was.

    ``tuned`` decides on copies; ``asked`` says that the user wants that now. Raises MissError, PlainRaised.
    """
    text = stored_text(ctx.key)
    if text is None:
        entry = plain_entry(ctx, _NOT_TOLD)
        return entry, entry.choice
    task = ledger.meet(text)
    proposed = _tuned(ctx, ledger, text, tuned) if asked else None
    if not asked and task.unknown and not _stored(ctx, ledger, text) and task.learn:
        if ctx.settings.mode not in FROZEN_MODES:
            _tuned(ctx, ledger, text, tuned)
        elif ctx.settings.on_miss == "error":
            raise MissError(missing(ctx, ctx.sizes(), ()))
    if task.prepare is not None:
        _prepare(ctx, ledger, text, Choice(task.prepare, "agreed", config=task.configs.get(task.prepare)))
    entry = _running(ctx, ledger, text, task)
    return entry, proposed or entry.choice


def agreed_choice(ctx: MissContext, ledger: Ledger) -> Choice:
    """What runs a call that was not seen yet."""
    text = stored_text(ctx.key)
    if text is None:
        return Choice(DEFAULT, "unseen", notes=(_NOT_TOLD,))
    agreed = ledger.agreed(text)
    return Choice(agreed, "unseen" if agreed == DEFAULT else "agreed", notes=(_UNTIL,))


def captured_entry(ctx: MissContext, ledger: Ledger) -> Entry:
    """The entry for a call inside the capture of a CUDA graph: what all ranks run, if it is there; nothing is made."""
    text = stored_text(ctx.key)
    runs = ledger.meet(text).runs if text is not None else DEFAULT
    offer = ctx.offer(OfferRequest(runs, build=False))
    candidate = next((one for one in offer.candidates if one.name == runs), offer.candidates[0])
    return candidate.wins("agreed" if candidate.name == runs != DEFAULT else "nearest", offer, notes=(_UNTIL,))


def _running(ctx: MissContext, ledger: Ledger, text: str, task: Task) -> Entry:
    """What every rank runs for this key; the default where that cannot be had here, which the others are told."""
    choice = _agreed(ctx, task, len(ledger.ranks))
    if task.runs == DEFAULT:
        plain = plain_entry(ctx, _UNTIL)
        return plain if not task.means else replace(plain, choice=replace(choice, config=plain.choice.config))
    entry, why = _found(ctx, choice, anew=not task.sure)
    if entry is None:
        ledger.fail(text, task.runs, why)
        return plain_entry(ctx, f"{task.runs} is what the ranks agree on, and here {why}")
    if not task.sure:
        ledger.ready(text, task.runs, _code(ctx, entry))
    return entry


def _agreed(ctx: MissContext, task: Task, ranks: int) -> Choice:
    """What all run, as a choice with the means of their figures."""
    timings = tuple(Timing(name, cost, 0.0, count) for name, (cost, count) in task.means.items())
    notes = (f"agreed by {ranks} ranks; times are means over those that have timed it",)
    if ctx.core.objective != "time":
        timings, notes = (), (f"agreed by {ranks} ranks",)
    return Choice(task.runs, "agreed", config=task.configs.get(task.runs), timings=timings, notes=notes)


def _prepare(ctx: MissContext, ledger: Ledger, text: str, elected: Choice) -> None:
    """Build and judge what was elected, so that all ranks can switch to it together."""
    entry, why = _found(ctx, elected, anew=True)
    if entry is None:
        ledger.fail(text, elected.variant, why)
    else:
        ledger.ready(text, elected.variant, _code(ctx, entry))


def _found(ctx: MissContext, choice: Choice, anew: bool) -> tuple[Entry | None, str]:
    """The entry of a variant, or why there is none. Another rank may call by this name what is the same code here."""
    try:
        entry = entry_for(ctx, choice, anew=anew)
        if entry is None and (twin := ctx.offer(OfferRequest(choice.variant, build=False)).aliases.get(choice.variant)):
            entry = entry_for(ctx, replace(choice, variant=twin), anew=anew)
            entry = entry and entry.changed(variant=choice.variant)
        return entry, "it cannot run this call, or gives other numbers"
    except (MissError, PlainRaised, Warning):
        raise
    except what_fails() as error:  # the boundary where a candidate is judged; the reason is told
        return None, f"it raised {in_a_line(error)}"


def _code(ctx: MissContext, entry: Entry) -> str:
    """A digest of the compiled code that an entry runs; empty where it has none of its own."""
    build = ctx.core.table.build(entry.build) if entry.build is not None else None
    if build is None:
        return ""
    identity = getattr(build, "identity", None)
    text = str(entry.choice.config) if identity is None else identity()
    return hashlib.sha256(_DEVICE.sub("*", text).encode()).hexdigest()


def _tuned(ctx: MissContext, ledger: Ledger, text: str, tuned: Callable[[], Entry]) -> Choice:
    """What is best for the call as far as this rank can tell, by a contest; it is proposed."""
    entry = tuned()
    choice = entry.choice
    _propose(ctx, ledger, text, choice, {choice.variant: _code(ctx, entry)})
    return replace(choice, notes=(*choice.notes, _UNTIL))


def _stored(ctx: MissContext, ledger: Ledger, text: str) -> bool:
    """Propose what an earlier process has timed under the same conditions; whether there is anything."""
    found = ctx.core.kernel_store.find(ctx.key, ctx.device) if ctx.core.kernel_store is not None else None
    doubtful = found is not None and (found.soft_differences or found.row.undecided)
    if found is None or (doubtful and ctx.settings.mode not in FROZEN_MODES):
        return False
    _propose(ctx, ledger, text, stored(found), {})
    return True


def _propose(ctx: MissContext, ledger: Ledger, text: str, choice: Choice, codes: Mapping[str, str]) -> None:
    configs = {} if choice.config is None else {choice.variant: str(choice.config)}
    ledger.propose(text, _figures(choice, ctx.core.objective), configs, codes)


def note_choices(ledger: Ledger, entries: Iterable[tuple[Any, Entry]], objective: Objective) -> None:
    """Propose what was decided before there was a group."""
    for key, entry in entries:
        text, choice = stored_text(key), entry.now()
        if text is not None and choice.timings:
            ledger.propose(text, _figures(choice, objective), {}, {})


def adopt(adopted: Adopted, table: Table) -> list[Choice]:
    """Have the keys looked at anew that an exchange has changed something for; what the next calls of them run."""
    found: list[Choice] = []

    def doomed(choice: Choice) -> bool:
        text = stored_text(choice.key) if choice.key is not None else None
        if text is not None and text in adopted.switched:
            found.append(Choice(adopted.switched[text], "agreed", choice.sizes, choice.key))
        return text is not None and (text in adopted.switched or text in adopted.work)

    if adopted.switched or adopted.work:
        table.forget(doomed)
    return found


def _figures(choice: Choice, objective: Objective) -> dict[str, float]:
    """What each variant costs here; one that was refused has failed."""
    failed = {refusal.variant: FAILED for refusal in choice.refusals}
    return {**failed, **{timing.variant: _cost(timing, objective) for timing in choice.timings}}


def _cost(timing: Timing, objective: Objective) -> float:
    if objective == "time" or (objective == "memory" and timing.bytes is None):
        return timing.median_us
    if objective == "memory":
        return float(timing.bytes or 0)
    try:
        return float(objective(timing))  # type: ignore[operator]  # a callable, as it is no word
    except what_fails():  # the user's function judges a candidate, which then has no figure
        return FAILED
