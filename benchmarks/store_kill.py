"""Does the store keep what it acknowledged when its writers are killed at random moments?

    python benchmarks/store_kill.py --seconds 600 --json benchmarks/results/store_kill.json

Processes write rows into one store and note each that was acknowledged; they are killed with SIGKILL and replaced all
the time, while a reader reads. Then every acknowledged row must be there as it was acknowledged. Counted: rows lost,
rows read that are not as written, exceptions and warnings in the reader, and in the writers.

Writers are forked from this process, which has imported the library and opened no store: importing takes longer
than a writer lives. Each round has a fresh store, with the store's bound on its rows lifted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import sqlite3
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shapedispatch import store_database, store_disk
from shapedispatch.environment import Environment
from shapedispatch.records import Timing
from shapedispatch.store import Found, Row, Store

KERNEL = "benchmark.kernel"
HERE = Environment({"family": "cpu", "capability": "none"}, {"code": "1"})
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--round", type=float, default=10, help="seconds in one store")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--form", choices=("sqlite", "files"), default="sqlite", help="files: as on network file systems"
    )
    parser.add_argument("--json", type=Path, help="write the result there too")
    options = parser.parse_args()

    store_database.ENTRIES_LIMIT, store_database.SIZE_LIMIT = 10**7, 2**32
    if options.form == "files":
        store_disk.on_network = lambda path: True
    choose = random.Random(options.seed)
    total: Counter[str] = Counter(
        {"lost": 0, "changed": 0, "corrupt": 0, "reader_exceptions": 0, "writer_exceptions": 0}
    )
    end = time.monotonic() + options.seconds
    while (left := end - time.monotonic()) > 0.5:
        with tempfile.TemporaryDirectory() as place:
            total.update(round_of(Path(place), min(options.round, left), options.writers, choose))
    result = {
        "question": "what does the store lose when its writers are killed?",
        **{name: getattr(options, name) for name in ("form", "seconds", "writers", "seed")},
        **dict(sorted(total.items())),
        "versions": {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version},
        "cpus": os.cpu_count(),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text + "\n")
    sys.exit(any(total[name] for name in ("lost", "changed", "corrupt", "reader_exceptions", "writer_exceptions")))


if __name__ == "__main__":
    main()
