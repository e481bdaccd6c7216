"""Silence: whatever the system does, the store answers; and whatever lies on disk, nothing of it runs."""

from __future__ import annotations

import errno
import functools
import gc
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shapedispatch.keys.identity import Environment
from shapedispatch.store import disk
from shapedispatch.store.store import Found, Missing, Row, Store, may_hold
from tests import forked
from tests.faults import ERRORS, Faults, faulty

ROOT = Path(__file__).parent.parent.parent
HERE = Environment({"family": "cpu", "capability": "x"}, {"torch": "2"})
ROWS = [Row.make("kernel", f"[{n}]", hard=HERE.hard, soft=HERE.soft, variant="exact") for n in range(4)]

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="not a POSIX system")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place for a store; in memory where there is such a place, since thousands of stores are made here."""
    memory = Path("/dev/shm")
    place = tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)
    yield Path(place) / "store"
    shutil.rmtree(place)


# --- every error at every operation --------------------------------------------------------------------------------


def use(folder: Path) -> None:
    """Every operation once; each must answer with what it is there to answer with."""
    store = Store(folder)
    assert isinstance(store.get("kernel", "[0]", HERE), (Found, Missing))
    assert store.put(ROWS[0]) == ROWS[0]
    assert store.put(ROWS[1]) == ROWS[1]
    found = store.get("kernel", "[1]", HERE)
    assert isinstance(found, Missing) or found.row == ROWS[1]
    store.missed("kernel", "[2]", HERE)
    assert isinstance(may_hold(store, "kernel", {3}), bool)
    assert all(row.kernel == "kernel" for row in [*store.rows(), *store.choices("kernel")])
    store.why("kernel", "[3]", HERE)
    store.stats()
    store.prune(kernel="other")
    store.close()
    store.clear()
    store.put(ROWS[3])
    store.close()


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("form", ["sqlite", "files"])
@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_an_error_of_the_system_at_any_operation_is_at_most_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: int, form: str, existing: bool, lasting: bool, code: int
) -> None:
    """Fail the first operation, the second, ...; once, or from then on: each call answers, the next run is whole."""
    monkeypatch.setattr(disk, "on_network", lambda path: form == "files")
    before = folder.with_name("before")
    put_all(Store(before), ROWS[:2])
    number = count = 0  # at first nothing fails, so that all operations are counted
    while number <= count:
        if existing:
            shutil.copytree(before, folder)
        faults = Faults(code, lambda n, at=number: at > 0 and (n >= at if lasting else n == at))  # type: ignore[misc]
        with warnings.catch_warnings(record=True) as told, faulty(faults):
            warnings.simplefilter("always")
            use(folder)
        assert len(told) <= 1, [str(warning.message) for warning in told]
        count = max(count, faults.count)
        put_all(Store(folder), ROWS[:2])
        whole = Store(folder)
        assert [whole.get("kernel", row.key, HERE) for row in ROWS[:2]] == [Found(row, "stored") for row in ROWS[:2]]
        whole.close()
        shutil.rmtree(folder)
        number += step if number else 1
    assert count > 20


def put_all(store: Store, rows: list[Row]) -> None:
    """Store each, without trouble."""
    assert [store.put(row) for row in rows] == rows
    store.close()
    assert store.trouble == ()


def test_what_cannot_be_written_is_kept_in_memory(tmp_path: Path) -> None:
    """On a full disk the process still learns, and what was stored before stays known."""
    folder = tmp_path / "store"
    store = Store(folder)
    put_all(store, ROWS[:1])
    full = Faults(errno.ENOSPC, lambda n: True)
    with pytest.MonkeyPatch.context() as patch:
        assert isinstance(store.get("kernel", "[0]", HERE), Found)
        patch.setattr(store._disk._open[0], "adopt", full.system(lambda *args: None))
        with pytest.warns(RuntimeWarning, match="No space left on device"):
            assert store.put(ROWS[1]) == ROWS[1]
    assert [store.get("kernel", row.key, HERE) for row in ROWS[:2]] == [Found(row, "stored") for row in ROWS[:2]]
    assert Store(folder).rows() == ROWS[:1]


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no disk takes does not grow for ever either."""
    monkeypatch.setattr(disk, "MEMORY_LIMIT", 2)
    store = Store(tmp_path / "store", readonly=True)
    for row in ROWS:
        store.put(row)
    assert store.rows() == ROWS[2:]


def test_a_folder_removed_while_in_use_is_made_anew(tmp_path: Path) -> None:
    """Somebody cleans the cache: no error, no warning, and what comes next is stored."""
    store = Store(tmp_path / "store")
    store.put(ROWS[0])
    shutil.rmtree(tmp_path / "store")
    assert isinstance(store.get("kernel", "[0]", HERE), Missing)
    store.put(ROWS[1])
    shutil.rmtree(tmp_path / "store")
    store.put(ROWS[2])
    assert store.rows() == Store(tmp_path / "store").rows() == ROWS[2:3]
    assert store.trouble == ()


def test_a_refused_folder_is_neither_read_nor_written(tmp_path: Path) -> None:
    """One warning with the reason and what to do; rows stay in memory."""
    folder = tmp_path / "store"
    put_all(Store(folder), ROWS[:1])
    folder.chmod(0o777)
    before = sorted(folder.iterdir())
    store = Store(folder)
    with pytest.warns(RuntimeWarning, match=r"cannot be used .*writable by others .*chmod 700"):
        assert isinstance(store.get("kernel", "[0]", HERE), Missing)
    assert store.put(ROWS[1]) == ROWS[1]
    assert store.rows() == ROWS[1:2]
    assert store.stats()["form"] == "memory"
    assert sorted(folder.iterdir()) == before


def test_a_warning_made_an_error_leaves_the_store_in_order(tmp_path: Path) -> None:
    """Whoever turns warnings into errors gets this one, once, and a store that works."""
    (tmp_path / "store").write_text("in the way")
    store = Store(tmp_path / "store")
    with pytest.raises(RuntimeWarning, match="not a folder"):  # pytest's setting makes it one
        store.put(ROWS[0])
    assert store.put(ROWS[0]) == ROWS[0]
    assert isinstance(store.get("kernel", "[0]", HERE), Found)


def test_a_read_only_place_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store baked into an image answers; what is new stays in memory, with one warning."""
    put_all(Store(tmp_path / "store"), ROWS[:1])
    real = os.open

    def read_only(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "read-only file system")
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    store = Store(tmp_path / "store")
    with pytest.warns(RuntimeWarning, match="read-only file system"):
        assert isinstance(store.get("kernel", "[0]", HERE), Found)
    store.put(ROWS[1])
    assert store.rows() == ROWS[:2]
    store.close()
    assert list((tmp_path / "store").glob("*-shm")) == [], "nothing was written there"


def test_a_store_is_closed_when_it_is_dropped(tmp_path: Path) -> None:
    """Neither descriptors nor connections stay behind."""
    open_files = Path("/proc/self/fd")
    gc.collect()  # what tests before this one have dropped
    before = len(list(open_files.glob("*")))
    for _ in range(5):
        store = Store(tmp_path / "store")
        store.put(ROWS[0])
        del store
        gc.collect()
    assert len(list(open_files.glob("*"))) == before


# --- hostile files -------------------------------------------------------------------------------------------------

WATCHED = """
import json, sys, warnings
from pathlib import Path
from shapedispatch.store import disk as store_disk
from shapedispatch.keys.identity import Environment
from shapedispatch.store.kernel_store import StoredConfigs
from shapedispatch.store.store import Row, Store
from shapedispatch.store.key_text import parse

folder, shipped, form = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if form == "files":
    store_disk.on_network = lambda path: True
here = Environment({"family": "cpu", "capability": "x"}, {"torch": "2"})
Store(folder.parent / "warmed up", readonly=False).put(Row.make("k", "1", hard={}, soft={}, variant="v"))
warnings.simplefilter("ignore")
warnings.warn("loads what showing a warning loads", RuntimeWarning)
seen = []

def watch(event, args):
    if event == "open":
        allowed = str(args[0]).startswith(str(folder)) or str(args[0]) in (str(shipped), "/proc/self/mountinfo")
        # Descriptors that are open already, and names relative to the folder's: links are not followed there.
        allowed = allowed or isinstance(args[0], int) or "/" not in str(args[0])
        if not allowed:
            seen.append([event, str(args[0])])
    elif event == "sqlite3.connect":
        if not str(args[0]).startswith(folder.as_uri()):
            seen.append([event, str(args[0])])
    elif event in ("exec", "compile", "import", "marshal.loads", "pickle.find_class", "subprocess.Popen", "os.system",
                   "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "ctypes.dlopen", "sqlite3.load_extension"):
        seen.append([event, str(args)])

sys.addaudithook(watch)
store = Store(folder, shipped=[shipped])
for key in ("[0]", "[1]", '{"type":"evil.system"}'):
    store.get("kernel", key, here)
    store.why("kernel", key, here)
    store.put(Row.make("kernel", key, hard=here.hard, soft=here.soft, variant="exact"))
    store.get("kernel", key, here)
for row in store.rows():
    try:
        parse(row.key)
    except ValueError:
        pass
found = StoredConfigs(store, "kernel", here).look_up(parse('{"type":"evil.system"}'), "evil")
assert form == "files" or found == (("evil.system",), ()), found
store.stats()
store.merge(shipped)
store.close()
print(json.dumps(seen))
"""

PICKLE = b"cos\nsystem\n(S'touch pwned'\ntR."
EVIL = "open('pwned', 'w').close()"  # a module where imports are looked for; one that is loaded is imported unseen
EVIL_KEYS = [
    '{"type":"evil.system"}', '{"enum":"evil.system"}', '{"type":"os.system"}',
    "__import__('os').system('touch pwned')", "[" * 9000,
]  # fmt: skip


def hostile_contents() -> dict[str, bytes]:
    """What somebody might put in the place of a row or a file."""
    texts = [
        json.dumps({"py/object": "os.system"}),
        "import os; os.system('touch pwned')",
        "[" * 100_000,
        "9" * 100_000,
    ]
    rows = [
        Row.make("kernel", key, hard=HERE.hard, soft=HERE.soft, variant="../../x.so", config='"eval"')
        for key in EVIL_KEYS
    ]
    rows += [
        Row.make("kernel", key, hard=HERE.hard, soft=HERE.soft, variant="evil", config='["evil.system"]', kind="hint")
        for key in (EVIL_KEYS[0], f'[{EVIL_KEYS[0]},"evil"]')
    ]
    contents = [PICKLE, b"\x80\x04\x95" + bytes(64), b"", b"\xff" * 99, *(text.encode() for text in texts)]
    contents += [row.to_bytes() for row in rows]
    contents.append(rows[0].to_bytes().replace(b'"schema":1', b'"schema":NaN'))
    return {str(n): content for n, content in enumerate(contents)}


def hostile_database(file: Path) -> None:
    """A database with triggers, views and rows of every kind that a store would not write."""
    connection = sqlite3.connect(file, isolation_level=None)
    for (statement,) in connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table'").fetchall():
        assert "entries" in statement
    for content in (*hostile_contents().values(), 7, 1.5, "text"):
        connection.execute("INSERT INTO entries VALUES (NULL, hex(randomblob(32)), 'kernel', 'choice', ?)", [content])
    connection.execute("UPDATE entries SET identity = ? WHERE number = 1", [ROWS[0].identity])
    connection.close()


@pytest.mark.parametrize("form", ["sqlite", "triggers", "files"])
def test_nothing_of_a_hostile_store_runs(tmp_path: Path, form: str) -> None:
    """Under an audit hook: no unpickling, exec, import or process, and no file opened outside of the folder."""
    folder, shipped = tmp_path / "store", tmp_path / "shipped.json"
    (tmp_path / "evil.py").write_text(EVIL)
    store = Store(folder)
    store.put(ROWS[1])
    store.close()
    (file,) = folder.glob("*.sqlite3")
    if form == "files":
        for n, (name, content) in enumerate(hostile_contents().items()):
            identity = ROWS[n].identity if n < len(ROWS) else name.rjust(64, "0")
            (folder / f"entry-1-{identity}.json").write_bytes(content)
        (folder / f"entry-1-{'e' * 64}.json").symlink_to("/etc/passwd")
    else:
        hostile_database(file)
    if form == "triggers":
        connection = sqlite3.connect(file)
        connection.execute("CREATE VIEW v AS SELECT load_extension('/tmp/evil.so')")
        connection.execute("CREATE TRIGGER t AFTER INSERT ON entries BEGIN SELECT load_extension('/tmp/evil.so'); END")
        connection.close()
    rows = ",".join(content.decode("latin-1") for content in hostile_contents().values() if content.startswith(b'{"'))
    shipped.write_text('{"format": "shapedispatch choices", "schema": 1, "rows": [' + rows.replace("NaN", "2") + "]}")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = forked.python("-c", WATCHED, folder, shipped, form, env=env, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == []
    assert list(tmp_path.rglob("pwned")) == []


# --- killed writers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "seconds"),
    [("sqlite", "2"), *(pytest.param(form, "20", marks=pytest.mark.soak) for form in ("files", "sqlite"))],
)
def test_killed_writers_lose_nothing_they_were_told_is_stored(form: str, seconds: str, tmp_path: Path) -> None:
    """Eight writers, killed at random moments: no acknowledged row lost or changed, no exception in a reader."""
    ran = subprocess.run(
        [
            sys.executable,
            "benchmarks/store_kill.py",
            "--seconds",
            seconds,
            "--form",
            form,
            "--json",
            tmp_path / "found",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads((tmp_path / "found").read_text())
    assert result["kills"] >= 10
    assert result["acknowledged"] > 100
    for count in ("lost", "changed", "corrupt", "reader_exceptions", "writer_exceptions"):
        assert result[count] == 0


# --- what no call waits for ----------------------------------------------------------------------------------------


def test_a_thread_writes_what_no_call_waits_for() -> None:
    """Without anybody asking; and another time, too."""
    waiting, written = disk.Writes(), threading.Event()
    for _ in range(2):
        written.clear()
        waiting.add(written.set)
        assert written.wait(60)


def test_whoever_asks_has_what_was_to_be_written_before() -> None:
    """In its order, whichever thread does it; one that writes now is waited for."""
    waiting, order, begun, go = disk.Writes(), list[int](), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert go.wait(60)
        order.append(0)

    waiting.add(slow)
    assert begun.wait(60)
    for number in (1, 2):
        waiting.add(functools.partial(order.append, number))
    threading.Timer(0.05, go.set).start()
    waiting.finish()
    assert order == [0, 1, 2]


def test_a_write_that_has_begun_is_waited_for() -> None:
    """Though nothing else is left."""
    waiting, order, begun, go = disk.Writes(), list[str](), threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        assert go.wait(60)
        order.append("written")

    waiting.add(write)
    assert begun.wait(60)
    threading.Timer(0.05, go.set).start()
    waiting.finish()
    assert order == ["written"]


def test_a_write_may_ask_the_store() -> None:
    """It does not wait for itself."""
    waiting, order = disk.Writes(), list[str]()

    def write() -> None:
        waiting.finish()
        order.append("written")

    waiting.add(write)
    waiting.finish()
    assert order == ["written"]


def test_a_handler_that_interrupts_may_ask_the_store() -> None:
    """Also where its thread has begun to write and nothing says so yet: handlers run between any two steps."""
    waiting, order = disk.Writes(), list[int]()
    waiting._left.append(functools.partial(order.append, 1))
    with waiting._lock:
        assert waiting._lock.acquire(blocking=False), "this thread would wait for itself"
        waiting.finish()
    assert order == [1]


def test_where_no_thread_can_be_started_it_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in what runs when the interpreter ends: the call that was to be learned from is answered."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    waiting, order = disk.Writes(), list[int]()
    waiting.add(functools.partial(order.append, 1))
    assert order == [1]


def test_what_a_write_raises_stops_no_other() -> None:
    """It ends the thread, which tells it; the next write has another thread."""
    waiting, told, written = disk.Writes(), list[BaseException | None](), threading.Event()
    before, threading.excepthook = threading.excepthook, lambda args: told.append(args.exc_value)
    try:
        waiting.add(lambda: 1 / 0)
        thread = waiting._thread
        assert thread is not None
        thread.join(60)
        waiting.add(written.set)
        assert written.wait(60)
    finally:
        threading.excepthook = before
    assert [type(error) for error in told] == [ZeroDivisionError]


def process(program: str, file: Path) -> subprocess.CompletedProcess[str]:
    """One of its own, since it forks, or ends."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, str(file)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_what_waits_when_the_process_is_forked_is_written_once(tmp_path: Path) -> None:
    """By the parent; the child writes what is its own."""
    told = process(FORKED, tmp_path / "written")
    assert told.returncode == 0, told.stderr
    assert sorted((tmp_path / "written").read_text("utf-8").split()) == ["before", "child", "parent"]


FORKED = """
import os, sys, threading
from shapedispatch.store.disk import writes
go, begun = threading.Event(), threading.Event()
def write(word):
    with open(sys.argv[1], "a") as file:
        file.write(word + "\\n")
def wait():
    begun.set()
    go.wait(60)
writes.add(wait)
begun.wait(60)
writes.add(lambda: write("before"))
pid = os.fork()
writes.add(lambda: write("parent" if pid else "child"))
go.set()
writes.finish()
if pid:
    sys.exit(os.waitpid(pid, 0)[1])
"""


def test_what_waits_when_the_process_ends_is_written(tmp_path: Path) -> None:
    """Though the thread has not come to it."""
    told = process(ENDED, tmp_path / "written")
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "written").read_text("utf-8") == "at last"


ENDED = """
import pathlib, sys, threading
from shapedispatch.store.disk import writes
writes._thread = threading.main_thread()  # no other is started
writes.add(lambda: pathlib.Path(sys.argv[1]).write_text("at last"))
"""
