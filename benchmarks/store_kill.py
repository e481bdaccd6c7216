"""Does the store keep what it acknowledged when its writers are killed at random moments?

    python benchmarks/store_kill.py --seconds 600

Processes write rows into one store and note each that was acknowledged; they are killed with SIGKILL and replaced all
the time, while a reader reads. Then every acknowledged row must be there as it was acknowledged. Counted: rows lost,
rows read that are not as written, exceptions and warnings in the reader, and in the writers.

Writers are forked from this process, which has imported the library and opened no store: importing takes longer
than a writer lives. Each round has a fresh store, with the store's bound on its rows lifted.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from common import CONSOLE, banner, options, print_table
from common import write as write_result

from shapedispatch.keys.identity import Environment
from shapedispatch.records import Timing
from shapedispatch.store import disk, sqlite
from shapedispatch.store.store import Found, Row, Store

KERNEL = "benchmark.kernel"
HERE = Environment({"family": "cpu", "capability": "none"}, {"code": "1"})
SECONDS, SMALL_SECONDS = 20.0, 2.0
BAD = ("lost", "changed", "corrupt", "reader_exceptions", "writer_exceptions")
SHARED_KEYS = 5  # one row in so many has a key that all writers write, so that they race to be first


def write(folder: Path, notes: Path, seed: int) -> None:
    """Write rows for ever; note each that was acknowledged as a line "key checksum"."""
    choose = random.Random(seed)
    fd = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    store = Store(folder)
    for count in range(10**9):
        shared = choose.randrange(SHARED_KEYS) == 0
        key = f'["shared",{choose.randrange(10_000)}]' if shared else f'["own",{seed},{count}]'
        timing = Timing("plain", choose.random(), 0.0, 1)
        row = Row.make(KERNEL, key, hard=HERE.hard, soft=HERE.soft, variant="plain", timings=[timing])
        kept = store.put(row)
        assert not store.trouble, store.trouble
        os.write(fd, f"{kept.key} {kept.checksum}\n".encode())
        if choose.randrange(500) == 0:
            store.close()


def read(folder: Path, notes: Path, seed: int) -> None:
    """Read acknowledged rows for ever; each must be there, and sound."""
    choose = random.Random(seed)
    store = Store(folder)
    while True:
        files = sorted(notes.glob("acknowledged-*"))
        known = acknowledged(choose.choice(files)) if files else {}
        for key, checksum in choose.sample(sorted(known.items()), min(100, len(known))):
            found = store.get(KERNEL, key, HERE)
            assert isinstance(found, Found), f"{key} is missing: {found}"
            assert found.row.checksum == checksum, f"{key} was changed"
        assert not store.trouble, store.trouble
        if choose.randrange(10) == 0:
            assert all(row.kernel == KERNEL for row in store.rows())
            store.close()


def acknowledged(notes: Path) -> dict[str, str]:
    """What a writer noted: key to checksum; a last line that was cut off does not count."""
    lines = notes.read_text().split("\n")[:-1]
    return dict(line.split(" ") for line in lines)


def forked(work: Callable[[Path, Path, int], None], folder: Path, notes: Path, errors: Path, seed: int) -> int:
    """Run ``work`` in a child; an exception there becomes a file beside ``errors``."""
    pid = os.fork()
    if pid:
        return pid
    try:
        warnings.simplefilter("error")
        work(folder, notes, seed)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what is being counted
        errors.with_name(f"{errors.name}-{work.__name__}-{seed}").write_text(repr(error))
    finally:
        os._exit(0)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def round_of(place: Path, seconds: float, writers: int, choose: random.Random) -> Counter[str]:
    """One round in an empty ``place``: the counts, and the exceptions that were met under ``"error: ..."``."""
    folder, notes, errors = place / "store", place / "notes", place / "error"
    notes.mkdir()
    seed = 0

    def writer() -> int:
        nonlocal seed
        seed += 1
        return forked(write, folder, notes / f"acknowledged-{seed}", errors, seed)

    reader = forked(read, folder, notes, errors, 0)
    running = [writer() for _ in range(writers)]
    kills, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(choose.uniform(0.005, 0.06))
        victim = choose.randrange(writers)
        kill(running[victim])
        running[victim] = writer()
        kills += 1
    for pid in (*running, reader):
        kill(pid)
    counts = judged(folder, notes)
    counts["kills"] = kills + writers
    for error in place.glob("error-*"):
        who = "reader" if error.name.startswith("error-read") else "writer"
        counts[f"{who}_exceptions"] += 1
        print(f"{error.name}: {error.read_text()}", file=sys.stderr)
    return counts


def judged(folder: Path, notes: Path) -> Counter[str]:
    """Compare what was acknowledged with what a new process finds."""
    counts: Counter[str] = Counter()
    store = Store(folder)
    there = {row.key: row.checksum for row in store.rows()}
    for file in notes.glob("acknowledged-*"):
        for key, checksum in acknowledged(file).items():
            counts["acknowledged"] += 1
            counts["lost"] += key not in there
            counts["changed"] += key in there and there[key] != checksum
    counts["rows"] = len(there)
    counts["corrupt"] = len(store.trouble)
    store.close()
    for file in folder.glob("*.sqlite3"):
        counts["corrupt"] += sqlite3.connect(file).execute("PRAGMA integrity_check").fetchall() != [("ok",)]
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; the exit code is 1 where anything went wrong."""
    chosen = options(__doc__, arguments, devices=("cpu",), more=own_options)
    ran_on = banner("cpu") | {"sqlite": sqlite3.sqlite_version, "cpus": os.cpu_count()}
    sqlite.ENTRIES_LIMIT, sqlite.SIZE_LIMIT = 10**7, 2**32
    if chosen.form == "files":
        disk.on_network = lambda path: True
    seconds = chosen.seconds or (SMALL_SECONDS if chosen.small else SECONDS)
    total = rounds(seconds, chosen.round, chosen.writers, random.Random(chosen.seed))
    print_table("what the store lost", ("what", "how many"), sorted(total.items()))
    asked = {"form": chosen.form, "seconds": seconds, "writers": chosen.writers, "seed": chosen.seed}
    write_result(__file__, {**asked, **dict(sorted(total.items()))}, ran_on, chosen, part=chosen.form)
    bad = [name for name in BAD if total[name]]
    CONSOLE.print(f"MISSED: {', '.join(bad)}" if bad else "nothing acknowledged was lost", highlight=False)
    return int(bool(bad))


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--seconds", type=float, help=f"how long (default: {SECONDS}, small {SMALL_SECONDS})")
    parser.add_argument("--round", type=float, default=10, help="seconds in one store")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    forms = ("sqlite", "files")
    parser.add_argument("--form", choices=forms, default="sqlite", help="files: as on network file systems")


def rounds(seconds: float, each: float, writers: int, choose: random.Random) -> Counter[str]:
    """The counts of all rounds, each in a store of its own."""
    total: Counter[str] = Counter(dict.fromkeys(BAD, 0))
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0.5:
        with tempfile.TemporaryDirectory() as place:
            total.update(round_of(Path(place), min(each, left), writers, choose))
    return total


if __name__ == "__main__":
    sys.exit(main())
