"""What the commands share: how they fail, print and warn, and which store they mean."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from ..errors import ShapeDispatchError
from ..keys.identity import Environment, environment
from ..records import spelled
from ..settings.resolve import settings
from ..shapes.dims import DimsMismatch
from ..store.replay import axes_of, in_words, rebuilt
from ..store.rows import BadRow, Row, rows_from_file
from ..store.store import Store
from .doctor import store_in_use
from .sweeps import timing_json
from .tables import words
from .targets import UsageError

__all__ = [
    "ID_DIGITS",
    "Failed",
    "WrongInput",
    "as_json",
    "counted",
    "here",
    "json_option",
    "opened",
    "progress",
    "row_json",
    "row_of",
    "rows_in",
    "rows_or_fail",
    "screen",
    "sorted_rows",
    "sound",
    "store_option",
    "telling",
]

ID_DIGITS = 10
WIDTH_WITHOUT_A_TERMINAL = 140


def counted(count: int, noun: str) -> str:
    """How many of a thing, in words: ``1 row``, ``2 rows``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


json_option: Callable[[Any], Any] = click.option(
    "--json", "wants_json", is_flag=True, help="Print JSON, for a program."
)
store_option: Callable[[Any], Any] = click.option(
    "--store", "place", type=click.Path(path_type=Path), help="The store's folder (default: that of the settings)."
)


class Failed(click.ClickException):
    """It could not be done: exit code 1."""


class WrongInput(click.ClickException):
    """It was asked for wrongly: exit code 2."""

    exit_code = 2


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Errors as one sentence and an exit code, warnings as one line each on the standard error.

    A letter that the terminal's encoding lacks (the µ of µs) is a question mark and no error.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries, to those who write them
        warnings.showwarning = lambda message, *_, **__: click.echo(f"Warning: {message}", err=True)
        try:
            yield
        except UsageError as error:
            raise WrongInput(str(error)) from None
        except ShapeDispatchError as error:
            raise Failed(str(error)) from None
        except BrokenPipeError:
            raise  # click ends in silence where nobody reads on
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise Failed(f"{where}{error.strerror or error}") from None


def screen(*, err: bool = False) -> Console:
    """Where to print; made when it is needed, since tests and shells redirect the streams."""
    stream = sys.stderr if err else sys.stdout
    if stream is None:  # closed by who started this
        stream = io.StringIO()
    return Console(file=stream, width=None if stream.isatty() else WIDTH_WITHOUT_A_TERMINAL, highlight=False)


def progress() -> Progress:
    """A bar with the time left, on the standard error, so that the output can be piped."""
    out = screen(err=True)
    out.quiet = not out.is_terminal  # older releases of rich end a bar with an empty line, disabled or not
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )


def as_json(value: Any) -> None:
    """Print for a program."""
    click.echo(json.dumps(value, indent=1, ensure_ascii=False))


def here(device: str | None = None) -> Environment:
    """What choices are made in on this machine: on that device, or on its GPU if it has one."""
    wanted = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        return Environment({"family": "no such device"})
    return environment(torch.device(wanted))


# The store.


def opened(place: Path | None, *, to_write: bool = False) -> Store:
    """The store in that folder, or the one in use; one that is not there yet is made only ``to_write``."""
    if place is None and settings().resolve("").store is False:
        raise Failed("the setting store is false, so that nothing is kept: name a folder with --store")
    found = Store(place) if place is not None else store_in_use()
    return found if to_write or found.path.exists() else Store(found.path, readonly=True)


@contextlib.contextmanager
def sound(store: Store) -> Iterator[None]:
    """What the store only notes, so that a user's call goes on, is here a failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    if store.trouble:
        raise Failed(f"the store cannot be used: {store.trouble[0]}")


def rows_or_fail(store: Store, kernel: str | None = None, kind: str | None = None) -> list[Row]:
    """The rows of the kernels that have ``kernel`` in their names; a sentence where there is none."""
    with sound(store):
        rows = store.rows(kind=kind)  # type: ignore[arg-type]  # one of the words that the command takes
    found = [row for row in rows if kernel is None or kernel in row.kernel]
    if not rows:
        raise Failed(f"nothing is stored in {store.path}" + (f" of kind {kind}" if kind else ""))
    if not found:
        raise Failed(f"nothing is stored for {kernel}; there is {', '.join(sorted({row.kernel for row in rows}))}")
    return found


def rows_in(file: Path) -> list[Row]:
    """The rows of an exported file."""
    try:
        return rows_from_file(file.read_bytes())[0]
    except BadRow as reason:
        raise Failed(f"{file}: {reason}") from None


def row_of(store: Store, name: str) -> Row:
    """The row whose id begins with ``name``."""
    found = [row for row in rows_or_fail(store) if row.identity.startswith(name.lower())]
    if len(found) != 1:
        what = "no row" if not found else f"{len(found)} rows"
        raise WrongInput(f"{what} of {store.path} has an id that begins with {name}: `shapedispatch show` prints them")
    return found[0]


def row_json(row: Row, dispatcher: Any = None) -> dict[str, Any]:
    """A row for a program and for tables; with its dispatcher, sizes by the names of its dims."""
    sizes, named = _sizes(row, dispatcher)
    return {
        "id": row.identity[:ID_DIGITS],
        "kernel": row.kernel,
        "kind": row.kind,
        "call": spelled(sizes) if named else in_words(row.key),
        "sizes": sizes,
        "device": f"{row.hard.get('family')} {row.hard.get('capability')}",
        "variant": row.variant,
        "undecided": row.undecided,
        "config": None if row.config is None else json.loads(row.config),
        "timings": [timing_json(timing) for timing in row.timings],
        "ran_on": words(Environment(row.hard, row.soft)),
    }


def _sizes(row: Row, dispatcher: Any) -> tuple[dict[str, int], bool]:
    """The sizes in a key, and whether they are by the names of the dispatcher's dims."""
    if dispatcher is not None and dispatcher.core.backend.name == row.kernel:
        with contextlib.suppress(ShapeDispatchError, DimsMismatch, ValueError):
            return dict(dispatcher.core.backend.sizes(*rebuilt(row.key, device=torch.device("meta")))), True
    return axes_of(row.key), False


def sorted_rows(rows: Sequence[dict[str, Any]], by: str, reverse: bool) -> list[dict[str, Any]]:
    """Rows in the order of one column: ``time`` and ``gain`` by number, the others by text, calls by their sizes."""
    order: dict[str, Callable[[dict[str, Any]], Any]] = {
        "kernel": lambda row: (row["kernel"], list(row["sizes"].values())),
        "call": lambda row: list(row["sizes"].values()),
        "variant": lambda row: row["variant"],
        "device": lambda row: row["device"],
        "time": lambda row: _time(row),
        "gain": lambda row: -_gain(row),
    }
    return sorted(rows, key=order[by], reverse=reverse)


def _time(row: dict[str, Any], variant: str | None = None) -> float:
    wanted = variant or row["variant"]
    return next((one["median_us"] for one in row["timings"] if one["variant"] == wanted), float("inf"))


def _gain(row: dict[str, Any]) -> float:
    mine, plain = _time(row), _time(row, "plain")
    return plain / mine if plain < float("inf") else 0.0
