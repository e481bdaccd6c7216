"""The command line: ``shapedispatch``, or ``python -m shapedispatch``.

Exit codes: 0 done; 1 it could not be done; 2 it was asked for wrongly; 130 interrupted. What went wrong is one sentence
on the standard error. Stored names are never imported: a module is imported only where the command line names it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .. import __version__
from ..records import Choice, Timing, spelled
from ..store.rows import Row
from . import demo as demo_room
from .console import (
    Failed,
    as_json,
    here,
    json_option,
    opened,
    row_json,
    row_of,
    rows_or_fail,
    screen,
    sorted_rows,
    store_option,
    telling,
)
from .doctor import Finding, examine
from .store import FILE, store
from .tables import (
    GROUPS,
    Sweep,
    choice_json,
    draw,
    draw_times,
    read_json,
    refusals_table,
    refuse_without_matplotlib,
    rows_table,
    save,
    timings_table,
    words,
)
from .targets import UsageError, imported, jobs_at, points_of, target
from .tune import run_jobs, tune, under_option, warm

__all__ = ["main"]

KINDS = ("times", "ratio", "heat", *GROUPS)


class _Commands(click.Group):
    """Every command's errors are sentences."""

    def invoke(self, context: click.Context) -> Any:
        with telling():
            return super().invoke(context)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Run each call of a function by the build that is fastest for its exact shape."""


main.add_command(tune)
main.add_command(warm)
main.add_command(store)


@main.command(short_help="Show it on this machine, in tables.")
@click.option("--plot", "picture", type=FILE, help="Also draw the first table, to a .png or .svg FILE.")
def demo(picture: Path | None) -> None:
    """Show it on this machine: three functions at random shapes, learned while they run; then every variant timed."""
    if picture is not None:
        _refuse_picture(picture)
    shown, found = demo_room.main()
    if picture is not None:
        sweep = Sweep.of_choices(shown[0].name, found[0].values(), words(here()))
        save(draw_times(sweep, shown[0].dim), picture)
        click.echo(f"drawn: {picture}")


@main.command(short_help="Look at what is here, and what is missing.")
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@json_option
def doctor(modules: tuple[str, ...], wants_json: bool) -> None:
    """Look at what is here, and say what to do about what is missing; exit code 1 where something cannot work.

    MODULEs are imported first, so that settings for dispatchers that do not exist can be told.
    """
    for name in modules:
        imported(name)
    found = examine()
    if wants_json:
        as_json([{"what": f.what, "state": f.state, "found": f.found, "advice": f.advice} for f in found])
    else:
        _print_findings(found)
    click.get_current_context().exit(1 if any(finding.state == "bad" for finding in found) else 0)


def _print_findings(found: Sequence[Finding]) -> None:
    out = screen()
    marks = {"ok": "[green]ok  [/green]", "note": "[yellow]note[/yellow]", "bad": "[bold red]bad [/bold red]"}
    for finding in found:
        out.print(f"{marks[finding.state]} {finding.what:<14}", end=" ")
        out.print(finding.found, markup=False, soft_wrap=True)
        if finding.advice:
            out.print(f"{'':<19} {finding.advice}", markup=False, style="dim", soft_wrap=True)


# Asking.


@main.command(short_help="Print the choices of the store.")
@click.argument("kernel", required=False)
@click.option("--variant", help="Only where this variant was chosen.")
@click.option("--device", help="Only of devices that have this in their names: cpu, cuda, 9.0.")
@click.option("--kind", type=click.Choice(("choice", "hint", "missed", "verdict")), help="Only rows of this kind.")
@click.option(
    "--sort", "by", type=click.Choice(("kernel", "call", "variant", "device", "time", "gain")), default="kernel"
)
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option("--target", "name", help="The dispatcher, as module:dispatcher: then sizes have the names of its dims.")
@store_option
@json_option
def show(
    kernel: str | None,
    variant: str | None,
    device: str | None,
    kind: str | None,
    by: str,
    reverse: bool,
    name: str | None,
    place: Path | None,
    wants_json: bool,
) -> None:
    """Print the choices of the store: of all kernels, or of those that have KERNEL in their names."""
    dispatcher = target(name) if name else None
    rows = [row_json(row, dispatcher) for row in rows_or_fail(opened(place), kernel, kind)]
    wanted = [row for row in rows if variant in (None, row["variant"]) and (device or "") in row["device"]]
    if not wanted:
        raise Failed(f"none of the {len(rows)} rows is of that variant on that device")
    ordered = sorted_rows(wanted, by, reverse)
    if wants_json:
        as_json(ordered)
    else:
        screen().print(rows_table(ordered))


@main.command(short_help="Say of one call what runs and why.")
@click.argument("what", metavar="ID|TARGET")
@click.argument("sizes", nargs=-1, metavar="[SIZES]...")
@click.option("--tune", "retune", is_flag=True, help="Build and time now, for refusals and routes as well.")
@under_option
@store_option
@json_option
def why(what: str, sizes: tuple[str, ...], retune: bool, under: str, place: Path | None, wants_json: bool) -> None:
    """Say of one call what runs and why: every candidate with its time, every refusal, the key.

    ID is a row's, as `show` prints it. A TARGET (module:dispatcher) with one size of each dim, M=64 N=256, is asked
    what it knows of that call, made by its inputs=; with --tune it decides there and then.
    """
    if ":" in what or sizes:
        _why_call(what, sizes, retune, under, wants_json)
    else:
        _why_row(row_of(opened(place), what), wants_json)


def _why_row(row: Row, wants_json: bool) -> None:
    shown = row_json(row)
    if wants_json:
        as_json({**shown, "key": row.key, "hard": dict(row.hard), "soft": dict(row.soft)})
        return
    out = screen()
    out.print(f"{shown['id']}  {row.kernel}({shown['call']})", markup=False, style="bold")
    out.print(f"{row.variant} ({row.kind})" + (f", config {shown['config']}" if row.config else ""), markup=False)
    if row.timings:
        out.print(timings_table([Timing(**timing) for timing in shown["timings"]], row.variant))
    out.print(f"key: {row.key}", markup=False, soft_wrap=True)
    for name, value in {**row.hard, **row.soft}.items():
        out.print(f"  {name}: {value}", markup=False, soft_wrap=True)
    out.print("refusals are not stored: `shapedispatch why TARGET SIZES --tune` finds them anew", style="dim")


def _why_call(name: str, sizes: Sequence[str], retune: bool, under: str, wants_json: bool) -> None:
    points = points_of(sizes)
    if len(points) != 1 or not sizes:
        raise UsageError(
            f"one call has one size of each dim, as in M=64 N=256; these are {len(points) if sizes else 0}"
        )
    dispatcher = target(name)
    (job,) = jobs_at(dispatcher, points, "tune" if retune else "explain")
    found = run_jobs([job], under)
    if found.failures or not found.choices:
        raise Failed(found.failures[0] if found.failures else "interrupted")
    choice = found.choices[0]
    if wants_json:
        as_json({"kernel": dispatcher.core.backend.name, **choice_json(choice), "key": repr(choice.key)})
    else:
        _print_choice(dispatcher.core.backend.name, choice)


def _print_choice(kernel: str, choice: Choice) -> None:
    out = screen()
    out.print(f"{kernel} at {spelled(choice.sizes)}: {choice.variant} ({choice.origin})", markup=False, style="bold")
    if choice.timings:
        out.print(timings_table(choice.timings, choice.variant))
    if choice.refusals:
        out.print(refusals_table(choice))
    if choice.origin == "unseen":
        out.print("nothing is decided for this call in this process: --tune decides now")
    else:
        out.print(f"runs: {choice.route}", markup=False)
    for line in (*(f"note: {note}" for note in choice.notes), f"key: {choice.key!r}"):
        out.print(line, markup=False, soft_wrap=True)


# Drawing.


@main.command(short_help="Draw choices or a benchmark, as PNG or SVG.")
@click.argument("source")
@click.option(
    "-o", "--out", type=FILE, default=Path("shapedispatch.png"), help="A .png or .svg file.", show_default=True
)
@click.option("--kind", type=click.Choice(KINDS), default="times", show_default=True, help="What to draw.")
@click.option("--dim", "dims", multiple=True, help="The dim to draw along; twice for a heat map.")
@click.option("--kernel", help="Where SOURCE is a file with several: the one to draw.")
@click.option("--target", "name", help="The dispatcher, as module:dispatcher: then sizes have the names of its dims.")
@store_option
def plot(
    source: str, out: Path, kind: str, dims: tuple[str, ...], kernel: str | None, name: str | None, place: Path | None
) -> None:
    """Draw SOURCE: a JSON file (of `tune --json`, `show --json` or a benchmark), or a kernel's name in the store.

    times: time against size, a line a variant, the chosen one ringed, shaded where each wins. ratio: each variant's
    time as a multiple of the best one's. heat: for two dims, what is chosen and how much faster than plain it is.
    shapes, tensors: a benchmark's call overhead by their number.
    """
    _refuse_picture(out)
    file = Path(source)
    if file.is_file():
        document = read_json(file)
    else:
        if file.suffix == ".json":
            raise UsageError(f"there is no file {file}")
        dispatcher = target(name) if name else None
        document = [row_json(row, dispatcher) for row in rows_or_fail(opened(place), source, "choice")]
    save(draw(document, kind, dims, kernel), out)
    click.echo(f"drawn: {out}")


def _refuse_picture(path: Path) -> None:
    """Before any work is done for it: a picture that can be neither drawn nor written there."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise UsageError(f"{path}: a picture is written as .png or .svg")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Failed(f"{path}: it cannot be written there")
    refuse_without_matplotlib()
