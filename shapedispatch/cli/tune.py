"""``tune``, deciding ahead, at sizes or for the calls that were missed; ``warm``, building what is stored."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch

from ..dispatch.loading import load_one, stored_here, to_load
from ..errors import in_a_line
from ..records import Choice
from ..store.kernel_store import store_at
from ..store.replay import in_words
from ..store.store import Store
from .console import Failed, as_json, here, json_option, progress, rows_in, rows_or_fail, screen
from .tables import choices_table, sweep_json, words
from .targets import Job, UsageError, jobs_at, jobs_of_missed, points_of, target
from .torchrun import Share, Worker, launched

__all__ = ["GRAD_MODES", "Outcome", "run_jobs", "tune", "under_option", "warm"]

GRAD_MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "grad": torch.enable_grad,
    "no-grad": torch.no_grad,
    "inference": torch.inference_mode,
}
INTERRUPTED = 128 + signal.SIGINT
MISSED = "Tune the calls that FILE says were missed."
RANDOM = "With --missed: tensors may be filled with small random numbers."


under_option: Callable[[Any], Any] = click.option(
    "--under", type=click.Choice(list(GRAD_MODES)), default="grad", show_default=True, help="The mode of the calls."
)


@click.command(short_help="Decide ahead at sizes, and keep it.")
@click.argument("name", metavar="TARGET")
@click.argument("sizes", nargs=-1, metavar="[SIZES]...")
@click.option("--missed", type=click.Path(exists=True, path_type=Path), help=MISSED)
@click.option("--random", is_flag=True, help=RANDOM)
@click.option("--exhaustive", is_flag=True, help="Kernels: search all configs at each of these very sizes.")
@under_option
@json_option
def tune(
    name: str,
    sizes: tuple[str, ...],
    missed: Path | None,
    random: bool,
    exhaustive: bool,
    under: str,
    wants_json: bool,
) -> None:
    """Decide ahead for the dispatcher TARGET (module:dispatcher) at SIZES, and keep it in its store.

    SIZES are M=16,64,256 or M=64:4096:64, both ends included; of several dims every combination. The calls are made by
    the dispatcher's inputs=. Ctrl-C keeps what is done. SHAPEDISPATCH_STORE names another folder to keep it in.

    --missed takes the place of SIZES: a FILE that `store export --kind missed` wrote, or a store's folder. Calls are
    made by inputs= at the missed sizes; without inputs= and only with --random, of random numbers: say it of functions
    for which any numbers will do, and never where tensors hold indices that could be out of bounds.

    Under torchrun (torchrun --nproc-per-node N -m shapedispatch tune ...) the calls are divided among its processes,
    each on a device of its own; one of them shows how far all are, and the table.
    """
    if bool(sizes) == (missed is not None):
        raise click.UsageError("give SIZES, such as M=16,64,256, or --missed FILE, and not both")
    points = points_of(sizes)
    worker = launched()
    dispatcher = target(name)
    if missed is None:
        found = _run_share(jobs_at(dispatcher, points, exhaustive=exhaustive), under, worker)
    else:
        found = _run_share(_missed_jobs(dispatcher, missed, random), None, worker)
    if worker is None or worker.shows:
        _report(dispatcher, found, wants_json)
    else:
        worker.wait_until_read()


def _run_share(jobs: Sequence[Job], under: str | None, worker: Worker | None) -> Outcome:
    """Run all jobs; of several processes each runs its share, and the one that shows has what came of all."""
    if worker is None:
        return run_jobs(jobs, under)
    if not worker.shows:
        found = Outcome()
        for job in worker.share(jobs):
            _do(job, found, under)
            worker.did_one()
        worker.tell(Share(found.choices, found.failures, found.interrupted))
        return found
    with progress() as bar:
        task = bar.add_task("tuning", total=len(jobs))
        return _shown(worker, jobs, under, lambda count: bar.update(task, completed=count))


def _shown(worker: Worker, jobs: Sequence[Job], under: str | None, show: Callable[[int], None]) -> Outcome:
    """This process's share, and then what came of all, in the order of their sizes."""
    found = Outcome()
    for job in worker.share(jobs):
        _do(job, found, under)
        worker.did_one()
    worker.tell(Share(found.choices, found.failures, found.interrupted))
    told = worker.all_shares(show)
    choices = sorted(
        (choice for one in told for choice in one.choices), key=lambda choice: sorted(choice.sizes.items())
    )
    return Outcome(choices, [failure for one in told for failure in one.failures], any(one.interrupted for one in told))


def _missed_jobs(dispatcher: Any, missed: Path, random: bool) -> list[Job]:
    kernel = dispatcher.core.backend.name
    stored = rows_or_fail(Store(missed, readonly=True), kind="missed") if missed.is_dir() else rows_in(missed)
    rows = [row for row in stored if row.kind == "missed" and row.kernel == kernel]
    if not rows:
        raise Failed(f"{missed} holds no missed call of {kernel}")
    jobs, refused = jobs_of_missed(dispatcher, rows, random=random)
    for reason in dict.fromkeys(refused):
        click.echo(f"{refused.count(reason)} of {len(rows)} missed calls not tuned: {reason}", err=True)
    if not jobs:
        raise Failed(f"none of the {len(rows)} missed calls of {kernel} could be made again")
    return jobs


@click.command(short_help="Build what the store names, and nothing else.")
@click.argument("name", metavar="TARGET")
@json_option
def warm(name: str, wants_json: bool) -> None:
    """Build what the store or a shipped table names for the dispatcher TARGET (module:dispatcher), and nothing else.

    It fills the compilers' caches on disk: a process that serves and calls load() before set_mode("sealed") is ready in
    a fraction of the time. Nothing is timed and nothing is run. What no key holds, such as a method's self, comes from
    the dispatcher's inputs=.
    """
    dispatcher = target(name)
    core, kernel = dispatcher.core, dispatcher.core.backend.name
    jobs = [
        Job(f"{one.row.variant} of {in_words(one.row.key)}", functools.partial(load_one, core, one))
        for one in to_load(core)
    ]
    if not jobs and not stored_here(core):
        raise Failed(f"nothing that is to be built is stored for {kernel} on this machine")
    if not jobs:
        click.echo(f"nothing is to be built for {kernel}: it is best as written wherever it was tuned", err=wants_json)
    found = run_jobs(jobs, None, "loading")
    _show(kernel, found, wants_json, "loaded")
    click.get_current_context().exit(INTERRUPTED if found.interrupted else 1 if found.failures else 0)


@dataclass
class Outcome:
    """What came of a list of jobs."""

    choices: list[Choice] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    interrupted: bool = False


def run_jobs(jobs: Sequence[Job], under: str | None, doing: str = "tuning") -> Outcome:
    """One job after the other, under a bar; what is decided is kept at once: Ctrl-C loses the current one only."""
    found = Outcome()
    with progress() as bar:
        task = bar.add_task(doing, total=len(jobs))
        try:
            for job in jobs:
                bar.update(task, description=job.label)
                _do(job, found, under)
                bar.advance(task)
        except KeyboardInterrupt:
            found.interrupted = True
    return found


def _do(job: Job, found: Outcome, under: str | None) -> None:
    try:
        # Without a mode the job sets its own.
        with contextlib.nullcontext() if under is None else GRAD_MODES[under]():
            found.choices.append(job.run())
    except Exception as error:  # noqa: BLE001 - the user's functions, at the boundary; the reason is told
        found.failures.append(f"{job.label}: {error if isinstance(error, UsageError) else in_a_line(error)}")


def _show(kernel: str, found: Outcome, wants_json: bool, done: str) -> None:
    """What was found, as a table or JSON, and what could not be ``done``."""
    if wants_json:
        as_json(sweep_json(kernel, found.choices, words(here())))
    elif found.choices:
        screen().print(choices_table(kernel, found.choices))
    for failure in found.failures:
        click.echo(f"not {done}: {failure}", err=True)


def _report(dispatcher: Any, found: Outcome, wants_json: bool) -> None:
    _show(dispatcher.core.backend.name, found, wants_json, "tuned")
    persist = _not_kept(dispatcher) if found.choices else None
    if persist:
        click.echo(f"not kept: {persist}", err=True)
    if found.interrupted:
        click.echo(f"interrupted: {len(found.choices)} choices were made before", err=True)
    code = INTERRUPTED if found.interrupted else 1 if found.failures or persist else 0
    click.get_current_context().exit(code)


def _not_kept(dispatcher: Any) -> str | None:
    """Why what was decided is not in a store, or None."""
    store = store_at(dispatcher.core.settings.store)
    if store is None:
        return f"{dispatcher.core.backend.name} has no store (store=False)"
    return store.trouble[0] if store.trouble else None
