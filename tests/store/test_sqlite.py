"""One SQLite file: damage of every kind, and what becomes of it."""

from __future__ import annotations

import gc
import os
import random
import shutil
import sqlite3
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shapedispatch.keys.identity import Environment
from shapedispatch.store import disk, sqlite
from shapedispatch.store.folder import Damaged
from shapedispatch.store.store import Found, Row, Store, may_hold

FLIPS = 10_000
HERE = Environment({"family": "cpu", "capability": "x"}, {"torch": "2"})


def a_row(n: int = 0, variant: str = "exact") -> Row:
    """The n-th row."""
    return Row.make("kernel", f"[{n}]", hard=HERE.hard, soft=HERE.soft, variant=variant)


ROWS = [a_row(n) for n in range(3)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place for a store; in memory where there is such a place, since thousands of stores are made here."""
    memory = Path("/dev/shm")
    place = tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)
    yield Path(place) / "store"
    shutil.rmtree(place)


def filled(folder: Path, rows: list[Row]) -> dict[str, bytes]:
    """The files of a store with these rows: of one that is closed, so that all is in the database."""
    store = Store(folder)
    for row in rows:
        store.put(row)
    store.close()
    return {file.name: file.read_bytes() for file in folder.glob("choices-*")}


def killed(folder: Path, rows: list[Row]) -> dict[str, bytes]:
    """The files of a store whose process was killed: rows are in the write-ahead log."""
    store = Store(folder)
    for row in rows:
        store.put(row)
    files = {file.name: file.read_bytes() for file in folder.glob("choices-*") if not file.name.endswith("-shm")}
    store.close()
    return files


def lay(folder: Path, files: dict[str, bytes]) -> None:
    """Make the folder hold just these files."""
    for file in folder.iterdir():
        file.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def put_all(store: Store, rows: list[Row]) -> None:
    """Store each."""
    for row in rows:
        store.put(row)


def check_damaged(folder: Path, rows: list[Row]) -> bool:
    """Use the store as a process would, and once more as the next: True if anything was amiss in the first."""
    store = Store(folder)
    sound = {row.identity: row for row in rows}
    assert all(sound.get(row.identity) == row for row in store.rows()), "a damaged row was accepted"
    amiss = False
    for row in rows:
        found = store.get("kernel", row.key, HERE)
        amiss |= not isinstance(found, Found)
        assert not isinstance(found, Found) or found.row == row, "a damaged row was accepted"
        assert store.put(row) == row
    amiss |= bool(store.trouble)
    store.close()
    if amiss:
        healed = Store(folder)
        assert [healed.get("kernel", row.key, HERE) for row in rows] == [Found(row, "stored") for row in rows]
        assert healed.trouble == (), "the next run has not found it healed"
        healed.close()
    return amiss


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("make", [filled, killed])
def test_a_store_cut_at_any_length_heals(
    folder: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path, list[Row]], dict[str, bytes]], step: int
) -> None:
    """Each of its files, cut at every length: no exception, nothing damaged accepted, whole at the next run."""
    monkeypatch.setattr(sqlite, "PAGE_BYTES", 512)  # small pages make a small file: every length is tried
    files = make(folder, ROWS[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for name, content in files.items():
            for length in range(0, len(content), step):
                lay(folder, {**files, name: content[:length]})
                check_damaged(folder, ROWS[:1])


@pytest.mark.parametrize("flips", [150, pytest.param(FLIPS, marks=pytest.mark.soak)])
def test_random_flipped_bits_are_refused_and_healed(folder: Path, flips: int) -> None:
    """A bit anywhere in a real store's files: no exception, nothing damaged accepted, whole at the next run."""
    choose = random.Random(0)
    rows = [a_row(n) for n in range(3)]
    kinds = [filled(folder, rows)]
    lay(folder, {})
    kinds.append(killed(folder, rows))
    amiss = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(flips):
            files = dict(choose.choice(kinds))
            name = choose.choice(sorted(files))
            content = bytearray(files[name])
            content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
            lay(folder, {**files, name: bytes(content)})
            amiss += check_damaged(folder, rows)
    assert amiss > flips / 20, "the flips were not where it hurts"


def test_what_is_sound_in_a_damaged_store_is_saved(folder: Path) -> None:
    """One page is damaged: the rows of the others are still there, the old file is beside it, one warning says so."""
    rows = [a_row(n) for n in range(60)]
    ((name, content),) = filled(folder, rows).items()
    leaves = [place for place in range(4096, len(content), 4096) if content[place] == 0x0D]
    middle = leaves[len(leaves) // 2]
    lay(folder, {name: content[:middle] + b"\xff" * 4096 + content[middle + 4096 :]})
    store = Store(folder)
    with pytest.warns(RuntimeWarning, match=rf"was damaged .* is now {name}.damaged-1 and was made anew"):
        found = {row.key for row in store.rows()}
    assert 40 < len(found) < 60
    assert {rows[0].key, rows[-1].key} < found
    assert (folder / f"{name}.damaged-1").exists()
    assert [store.put(row) for row in rows] == rows


def meddle(folder: Path, statement: str, *values: object) -> None:
    """Change the database behind the store's back."""
    (file,) = folder.glob("*.sqlite3")
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute(statement, values)
    connection.close()


def test_a_damaged_row_is_refused_alone(folder: Path) -> None:
    """Its neighbours are saved, and it can be stored again."""
    filled(folder, ROWS)
    meddle(folder, "UPDATE entries SET body = replace(body, 'exact', 'plain') WHERE identity = ?", ROWS[1].identity)
    store = Store(folder)
    with pytest.warns(RuntimeWarning, match=r"was damaged \(an entry is not as it was written\)"):
        assert not isinstance(store.get("kernel", "[1]", HERE), Found)
    assert store.rows() == [ROWS[0], ROWS[2]]
    store.put(ROWS[1])
    assert store.rows() == ROWS


def test_a_damaged_row_is_replaced(folder: Path) -> None:
    """It is never adopted, by a writer that had not looked for it either."""
    filled(folder, ROWS)
    meddle(folder, "UPDATE entries SET body = 'not bytes'")
    store = Store(folder)
    with pytest.warns(RuntimeWarning, match="an entry is not as it was written"):
        assert store.put(ROWS[1]) == ROWS[1]
    assert store.rows() == [ROWS[1]]


def test_a_damaged_row_in_a_readonly_store_is_a_miss(folder: Path) -> None:
    """There nothing can be healed, and the other rows stay in use."""
    filled(folder, ROWS)
    meddle(folder, "UPDATE entries SET body = 'x' WHERE identity = ?", ROWS[1].identity)
    store = Store(folder, readonly=True)
    with pytest.warns(RuntimeWarning, match="a damaged row in .* was refused"):
        assert not isinstance(store.get("kernel", "[1]", HERE), Found)
    assert isinstance(store.get("kernel", "[2]", HERE), Found)


def test_a_row_under_anothers_name_is_refused(folder: Path) -> None:
    """A sound row that was moved to another key is no row there, and goes back to its own."""
    filled(folder, ROWS[:1])
    meddle(folder, "UPDATE entries SET identity = ?", ROWS[1].identity)
    store = Store(folder)
    with pytest.warns(RuntimeWarning, match="an entry is not as it was written"):
        assert not isinstance(store.get("kernel", "[1]", HERE), Found)
    assert isinstance(store.get("kernel", "[0]", HERE), Found)


def test_an_index_that_disagrees_with_its_table_is_made_anew(folder: Path) -> None:
    """A row that only the index has lost is found again."""
    ((name, content),) = filled(folder, ROWS).items()
    identity = ROWS[1].identity.encode()
    place = next(
        at for at in range(0, len(content), 4096) if identity in (page := content[at : at + 4096]) and page[0] == 0x0A
    )
    page = content[place : place + 4096].replace(identity, identity[:-1] + b"g")
    lay(folder, {name: content[:place] + page + content[place + 4096 :]})
    store = Store(folder)
    with pytest.warns(RuntimeWarning, match="was damaged"):
        assert isinstance(store.get("kernel", "[1]", HERE), Found)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_CORRUPT, Damaged),
        (sqlite3.SQLITE_NOTADB, Damaged),
        (sqlite3.SQLITE_IOERR_SHORT_READ, Damaged),
        (None, Damaged),
        (sqlite3.SQLITE_FULL, OSError),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, OSError),
        (sqlite3.SQLITE_IOERR_READ, OSError),
        (sqlite3.SQLITE_READONLY_DBMOVED, OSError),
    ],
)
def test_damage_is_told_from_a_fault_of_the_place(code: int | None, kind: type[Exception]) -> None:
    """A damaged file is set aside; a full disk or a lock is no reason to."""
    error = sqlite3.DatabaseError("what SQLite says")
    if code is not None:
        error.sqlite_errorcode = code
    with pytest.raises(kind, match="what SQLite says"), sqlite._Judged():
        raise error


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW more AS SELECT 1",
        "CREATE TRIGGER act AFTER INSERT ON entries BEGIN DELETE FROM entries; END",
        "CREATE TABLE more (x)",
        "CREATE INDEX more ON entries (body)",
        "DROP INDEX entries_by_kernel",
        "ALTER TABLE entries ADD COLUMN more",
        "ALTER TABLE entries RENAME COLUMN body TO corpse",
        "DROP TABLE entries",
    ],
)
def test_other_tables_than_ours_are_refused(folder: Path, statement: str) -> None:
    """Views and triggers would run somebody's SQL: such a file is set aside, and nothing is taken from it."""
    filled(folder, ROWS)
    meddle(folder, statement)
    store = Store(folder)
    if statement == "DROP TABLE entries":
        assert store.rows() == []  # an empty file is as good as new
    else:
        with pytest.warns(RuntimeWarning, match="its tables are not those of a store"):
            assert store.rows() == []
    store.put(ROWS[0])
    assert store.rows() == ROWS[:1]


@pytest.mark.parametrize("what", ["link", "folder", "pipe", "large", "text"])
def test_a_file_that_is_no_database_is_set_aside(folder: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Whatever lies under the database's name."""
    ((name, content),) = filled(folder, [a_row(n) for n in range(200)]).items()
    (folder / name).unlink()
    (folder.parent / "elsewhere").write_bytes(content)
    if what == "link":
        (folder / name).symlink_to(folder.parent / "elsewhere")
    elif what == "folder":
        (folder / name).mkdir()
    elif what == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).write_bytes(content if what == "large" else b"not a database" * 999)
        monkeypatch.setattr(sqlite, "SIZE_LIMIT", len(content) - 1 if what == "large" else 10**6)
    store = Store(folder)
    with pytest.warns(RuntimeWarning, match="was damaged"):
        assert store.rows() == []
    assert store.put(ROWS[0]) == ROWS[0]
    assert Store(folder).rows() == ROWS[:1]
    assert (folder.parent / "elsewhere").read_bytes() == content


def test_the_number_of_files_set_aside_is_bounded(folder: Path) -> None:
    """A disk that keeps damaging the store is not filled with it."""
    for _ in range(sqlite.DAMAGED_LIMIT + 3):
        filled(folder, ROWS)
        for file in folder.glob("*.sqlite3"):
            file.write_bytes(b"damaged" * 1000)
        with pytest.warns(RuntimeWarning, match="was damaged"):
            Store(folder).rows()
    names = [file.name for file in folder.glob("*damaged*") if not file.name.endswith(("-wal", "-shm"))]
    assert len(names) == sqlite.DAMAGED_LIMIT
    Store(folder).clear()
    assert [file.name for file in folder.iterdir()] == ["lock"]


def test_a_store_that_met_damage_is_closed_when_it_is_dropped(folder: Path) -> None:
    """At once: the error that it met holds none of the frames that hold the store."""
    filled(folder, ROWS)
    for file in folder.glob("*.sqlite3"):
        file.write_bytes(b"damaged" * 1000)
    gc.disable()
    try:
        store = Store(folder)
        with pytest.warns(RuntimeWarning, match="was damaged"):
            store.rows()
        met = weakref.ref(store._disk)
        del store
        assert met() is None
    finally:
        gc.enable()


def test_another_process_follows_to_the_new_file(folder: Path) -> None:
    """One that still had the damaged file open finds the new one, and what it then stores is seen by all."""
    first, second = Store(folder), Store(folder)
    first.put(ROWS[0])
    assert second.rows() == ROWS[:1]
    (name,) = [file.name for file in folder.glob("*.sqlite3")]
    aside, bodies = disk._set_aside(folder, name)
    assert aside == f"{name}.damaged-1"
    assert bodies == [ROWS[0].to_bytes()]
    second.put(ROWS[1])
    first.put(ROWS[2])
    assert first.rows() == second.rows() == ROWS[1:]
    assert first.trouble == second.trouble == ()
    assert disk._set_aside(folder, name) == ("", []), "of two that met the damage one renames"


def test_a_row_written_to_a_file_just_set_aside_is_written_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledged means that the next process finds it, even if the file was swapped during the write."""
    store = Store(folder)
    store.put(ROWS[0])
    database = store._disk._open[0]
    real = database.adopt

    def adopt(*args: object) -> object:
        done = real(*args)  # type: ignore[arg-type]
        disk._set_aside(folder, database.name)
        return done

    monkeypatch.setattr(database, "adopt", adopt)
    assert store.put(ROWS[1]) == ROWS[1]
    assert [row.key for row in Store(folder).rows()] == ["[1]"]


def test_the_oldest_rows_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of rows is bounded."""
    monkeypatch.setattr(sqlite, "ENTRIES_LIMIT", 10)
    store = Store(folder)
    for n in range(25):
        store.put(a_row(n))
    assert {row.key for row in store.rows()} == {f"[{n}]" for n in range(15, 25)}


def test_in_a_full_database_the_oldest_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its largest size it takes what comes, without a word."""
    monkeypatch.setattr(sqlite, "SIZE_LIMIT", 20 * 4096)
    store = Store(folder)
    rows = [a_row(n) for n in range(200)]
    put_all(store, rows)
    kept = {row.key for row in store.rows()}
    assert 8 < len(kept) < 200
    assert kept == {row.key for row in rows[-len(kept) :]}


def test_on_a_full_disk_the_database_keeps_what_it_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite says the same of it. It is told once, and still answers."""
    monkeypatch.setattr(sqlite, "SIZE_LIMIT", 20 * 4096)
    monkeypatch.setattr(sqlite.Database, "_is_full", lambda self: False)
    store = Store(folder)
    rows = [a_row(n) for n in range(200)]
    with pytest.warns(RuntimeWarning, match=r"cannot be written \(SQLite: .*full"):
        put_all(store, rows)
    assert [store.get("kernel", row.key, HERE) for row in rows] == [Found(row, "stored") for row in rows]


def test_everything_is_private(folder: Path) -> None:
    """The database, its log, its index and the lock are 0600."""
    store = Store(folder)
    store.put(ROWS[0])
    modes = {file.name.rpartition("3")[2] or "main": file.stat().st_mode & 0o777 for file in folder.iterdir()}
    assert modes == {"lock": 0o600, "main": 0o600, "-wal": 0o600, "-shm": 0o600}


def test_a_store_of_another_version_is_left_alone(folder: Path) -> None:
    """Two versions of the library share the folder without harm."""
    filled(folder, ROWS)
    (folder / ("choices-2-" + "0" * 32 + ".sqlite3")).write_bytes(b"of the future")
    store = Store(folder)
    assert store.rows() == ROWS
    store.clear()
    assert [file.read_bytes() for file in folder.glob("choices-2-*")] == [b"of the future"]


def test_an_interrupted_write_is_rolled_back(folder: Path) -> None:
    """Ctrl-C passes, and the next write finds no transaction open."""
    store = Store(folder)
    store.put(ROWS[0])
    database = store._disk._open[0]

    def interrupt(body: object) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        database.adopt(ROWS[0].identity, "kernel", "choice", b"x", interrupt, ROWS[1].identity)
    assert store.put(ROWS[1]) == ROWS[1]
    assert store.rows() == ROWS[:2]


def test_what_is_newer_is_read_once(folder: Path) -> None:
    """But for the last there was, whose number may be another's by now; none of another kernel's."""
    store = Store(folder)
    put_all(store, ROWS[:2])
    kernel, (one, two, three) = ROWS[0].kernel, (row.to_bytes() for row in ROWS)
    mark, bodies, _ = newer = store._disk.newer(kernel, ("", 0)) or pytest.fail("nothing is told")
    assert bodies == [one, two]
    assert store._disk.newer(kernel, mark) == (mark, [two], True)
    store.put(ROWS[2])
    assert (store._disk.newer(kernel, mark) or newer)[1] == [two, three]
    assert store._disk.newer("other", ("", 0)) == ((mark[0], 0), [], True)


def test_what_is_newer_is_read_some_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call reads through a large store; until all is read any key may be there."""
    monkeypatch.setattr("shapedispatch.store.sqlite.NEWER_AT_ONCE", 3)
    store = Store(folder)
    put_all(store, [a_row(n) for n in range(10, 17)])
    told = [may_hold(store, ROWS[0].kernel, {9}) for _ in range(6)]
    assert told == [True, True, True, False, False, False]
    assert may_hold(store, ROWS[0].kernel, {16})


def test_what_others_write_is_looked_for_now_and_then(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is asked what is stored: to look takes longer than many calls do."""
    store, others = Store(folder), Store(folder)
    put_all(store, ROWS[:1])
    kernel, now_s = ROWS[0].kernel, [0.0]
    assert may_hold(store, kernel, {17}) is False
    known = store._numbers[kernel]
    known.clock_s, known.next_s = lambda: now_s[0], 1.0
    put_all(others, [a_row(17)])
    assert not any(may_hold(store, kernel, {17}) for _ in range(100))
    now_s[0] = 2.0
    assert may_hold(store, kernel, {17})


def test_of_a_store_that_was_made_anew_all_is_newer(folder: Path) -> None:
    """Its numbers begin anew."""
    store, others = Store(folder), Store(folder)
    put_all(others, ROWS)
    mark, *_ = store._disk.newer(ROWS[0].kernel, ("", 0)) or pytest.fail("nothing is told")
    others.clear()
    put_all(others, [*ROWS, a_row(4)])
    found = store._disk.newer(ROWS[0].kernel, mark)
    assert found is not None
    assert len(found[1]) == 4
