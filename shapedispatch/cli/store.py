"""``shapedispatch store``: looking after the choices that are kept between processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from ..keys.identity import differences
from ..ranks.tables import merged
from ..settings.schema import TABLE
from ..store.rows import Row
from .console import (
    ID_DIGITS,
    Failed,
    as_json,
    counted,
    here,
    json_option,
    opened,
    row_of,
    rows_in,
    rows_or_fail,
    sound,
    store_option,
)
from .targets import target

__all__ = ["FILE", "store"]

KINDS = ("choice", "hint", "missed", "verdict")
FILE = click.Path(dir_okay=False, path_type=Path)
FILE_THAT_IS_THERE = click.Path(exists=True, dir_okay=False, path_type=Path)
OF_A_KERNEL = ("code", "candidates", "objective")
"""Soft parts that are the kernel's own: the others are the machine's and its libraries'."""


@click.group()
def store() -> None:
    """Look after the choices that are kept between processes."""


@store.command()
@store_option
def path(place: Path | None) -> None:
    """Print the store's folder."""
    click.echo(str(opened(place).path))


@store.command()
@store_option
@json_option
def stats(place: Path | None, wants_json: bool) -> None:
    """Say how many choices are kept, in what form, in how many bytes, and what went wrong."""
    kept = opened(place)
    with sound(kept):
        found = kept.stats()
    if wants_json:
        as_json(found)
    else:
        rows = ", ".join(f"{count} of kind {kind}" for kind, count in found["rows"].items()) or "none"
        rows += f"; {found['undecided']} undecided" if found["undecided"] else ""
        click.echo(f"folder  {found['path']}\nform    {found['form']}\nrows    {rows}\nbytes   {found['bytes']:,}")


@store.command()
@click.argument("file", type=FILE)
@click.option("--kernel", help="Only rows of kernels that have this in their names.")
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Which rows (default: choice and hint).")
@store_option
def export(file: Path, kernel: str | None, kinds: tuple[Any, ...], place: Path | None) -> None:
    """Write choices to one readable JSON FILE: sorted, so that it can be compared, to be shipped and imported."""
    kept = opened(place)
    names = sorted({row.kernel for row in rows_or_fail(kept, kernel)})
    if kernel is not None and kernel not in names and len(names) > 1:
        raise Failed(f"{kernel} is in the names of {', '.join(names)}: an export is of one kernel, or of all")
    count = kept.export(file, kinds=kinds or ("choice", "hint"), kernel=names[0] if kernel is not None else None)
    among = ": --kernel NAME writes those of one" if kernel is None and len(names) > 1 else ""
    click.echo(
        f"{counted(count, 'row')} of {len(names)} kernels written to {file}{among}"
        if among
        else f"{counted(count, 'row')} written to {file}"
    )


@store.command("import")
@click.argument("file", type=FILE_THAT_IS_THERE)
@json_option
@store_option
def import_(file: Path, wants_json: bool, place: Path | None) -> None:
    """Take in the choices of an exported FILE; what is here already stays as it is, unless it is undecided."""
    kept = opened(place, to_write=True)
    rows_in(file)
    with sound(kept):
        merged = kept.merge(file)
    if wants_json:
        as_json({"taken": merged.taken, "known": merged.known, "refused": list(merged.refused)})
    else:
        click.echo(f"{counted(merged.taken, 'row')} taken, {merged.known} known already, {len(merged.refused)} refused")
        for reason in merged.refused:
            click.echo(f"  {reason}", err=True)


@store.command()
@click.argument("files", nargs=-1, required=True, type=FILE_THAT_IS_THERE)
@json_option
@store_option
def merge(files: tuple[Path, ...], wants_json: bool, place: Path | None) -> None:
    """Take in the choices of exported FILES, of several machines or ranks: one for each key, instead of what is here.

    Of several choices for a key the mean of their times decides, as in shapedispatch.sync(). Those that were made by
    other code, another torch or on another device are told, and none of them is taken. What is here counts, too, if it
    is exported to one of the FILES.
    """
    kept = opened(place, to_write=True)
    tables = {str(file): rows_in(file) for file in files}
    with sound(kept):
        before = {row.identity: row for row in kept.rows()}
        found = merged(tables, TABLE["margin"].built_in)
        new = [row for row in found.rows if before.get(row.identity) != row and kept.put(row, instead=True) == row]
    if wants_json:
        as_json({"taken": len(new), "known": len(found.rows) - len(new), "refused": list(found.refused)})
    else:
        click.echo(
            f"{counted(len(new), 'row')} taken, {len(found.rows) - len(new)} as they were, {len(found.refused)} refused"
        )
        for reason in found.refused:
            click.echo(f"  {_shortened(reason)}", err=True)


@store.command()
@click.option("--kernel", help="Of this kernel, by its full name.")
@click.option("--unlike-here", is_flag=True, help="Made under other versions or on another machine than this one.")
@click.option("--device", default=None, type=click.Choice(("cpu", "cuda")), help="What --unlike-here compares with.")
@store_option
def prune(kernel: str | None, unlike_here: bool, device: str | None, place: Path | None) -> None:
    """Remove some choices: of one kernel, those that were not made here, or both."""
    if kernel is None and not unlike_here:
        raise click.UsageError("say which: --kernel NAME, --unlike-here, or both; `store clear` removes everything")
    kept = opened(place)
    rows_or_fail(kept)
    with sound(kept):
        count = kept.prune(kernel=kernel, unlike=here(device) if unlike_here else None)
    click.echo(f"{counted(count, 'row')} removed")


@store.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
def clear(yes: bool, place: Path | None) -> None:
    """Remove everything that is kept."""
    kept = opened(place)
    if not yes:
        click.confirm(f"Remove everything in {kept.path}?", abort=True)
    with sound(kept):
        kept.clear()
    click.echo(f"{kept.path} is empty")


@store.command()
@click.argument("row_id", metavar="ID")
@click.option("--target", "name", help="The dispatcher, as module:dispatcher: then its code is compared, too.")
@json_option
@store_option
def why(row_id: str, name: str | None, wants_json: bool, place: Path | None) -> None:
    """Say whether the row ID (see `show`) answers calls here, or what makes them be timed again."""
    row = row_of(opened(place), row_id)
    ours = here("cuda" if row.hard.get("family") == "cuda" else "cpu")
    hard = differences(row.hard, ours.hard)
    own = target(name).core.identity() if name else _own(row)
    soft = differences(row.conditions, ours.extended(**own).soft)
    verdict = _verdict(bool(hard), bool(soft), bool(name))
    if wants_json:
        said = {"row": row.identity, "variant": row.variant, "kernel": row.kernel, "hard": hard, "soft": soft}
        as_json({**said, "undecided": row.undecided, "compared with a target": bool(name), "verdict": verdict})
    else:
        click.echo(f"{row.identity[:ID_DIGITS]} is {row.variant} for {row.kernel}")
        for difference in (*hard, *soft):
            click.echo(f"  {_shortened(difference)}")
        click.echo(verdict)
        if row.undecided:
            click.echo(f"later calls verify it: it is undecided, {row.undecided}; a contest does not take it over")


def _verdict(hard: bool, soft: bool, compared: bool) -> str:
    if hard:
        return "it is not used on this machine"
    if soft:
        return "in the mode tune its calls are timed again; frozen and sealed processes use it"
    return "it is used" + ("" if compared else ", if the kernel is still the same: --target compares")


@store.command()
@click.argument("file", type=FILE_THAT_IS_THERE)
@click.argument("name", metavar="TARGET")
@json_option
@click.pass_context
def check(context: click.Context, file: Path, name: str, wants_json: bool) -> None:
    """Compare an exported FILE with the dispatcher TARGET (module:dispatcher): exit code 1 where the table is old.

    It is old when the function's code or its candidates are others than when the choices were timed, or when it holds
    none of this kernel.
    """
    dispatcher = target(name)
    kernel = dispatcher.core.backend.name
    rows = [row for row in rows_in(file) if row.kernel == kernel and row.kind in ("choice", "hint")]
    identity = dispatcher.core.identity()
    changed = list(dict.fromkeys(sentence for row in rows for sentence in differences(_own(row), identity)))
    if wants_json:
        as_json({"kernel": kernel, "rows": len(rows), "current": bool(rows) and not changed, "reasons": changed})
    elif not rows:
        click.echo(f"{file} holds no choice of {kernel}")
    else:
        for reason in changed:
            click.echo(f"{kernel}: {_shortened(reason)}")
        when = "before the kernel changed" if changed else "with the kernel as it is"
        click.echo(f"{file}: {counted(len(rows), 'choice')}, timed {when}")
    context.exit(0 if rows and not changed else 1)


def _own(row: Row) -> dict[str, Any]:
    return {part: row.soft[part] for part in OF_A_KERNEL if part in row.soft}


def _shortened(sentence: str) -> str:
    """Digests as a person compares them, by their first digits."""
    return re.sub(r"\b([0-9a-f]{8})[0-9a-f]{56}\b", r"\1", sentence)
