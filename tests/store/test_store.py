"""The store as the dispatcher meets it: finding, keeping, adopting, shipping, reasons."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shapedispatch.errors import DeclarationError
from shapedispatch.keys.identity import Environment
from shapedispatch.records import Timing
from shapedispatch.store import disk, key_text
from shapedispatch.store.store import Found, Merged, Missing, Row, Store, may_hold

ROOT = Path(__file__).parent.parent.parent
HERE = Environment({"family": "cuda", "capability": "9.0"}, {"torch": "2.13", "code": "c"})
NEWER = Environment(HERE.hard, {**HERE.soft, "torch": "2.14"})
OLDER_GPU = Environment({"family": "cuda", "capability": "8.0"}, HERE.soft)


def a_row(key: str = "[1]", variant: str = "exact", environment: Environment = HERE, **changes: Any) -> Row:
    """A choice, with changes."""
    parts = {"kernel": "mine.kernel", "hard": environment.hard, "soft": environment.soft, **changes}
    return Row.make(parts.pop("kernel"), key, variant=variant, timings=[Timing(variant, 2.0, 0.1, 9)], **parts)


@pytest.fixture(params=["sqlite", "files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store in each of its forms: as on a local file system, a network's, and one that cannot be written."""
    if request.param == "files":
        monkeypatch.setattr(disk, "on_network", lambda path: True)
    return Store(tmp_path / "store", readonly=request.param == "memory")


def found(store: Store, key: str = "[1]", environment: Environment = HERE) -> Found:
    """What the store has for a key that it must have."""
    result = store.get("mine.kernel", key, environment)
    assert isinstance(result, Found), result
    return result


def test_what_is_put_is_found(store: Store) -> None:
    """The same row, from this store, with nothing that differs."""
    row = a_row()
    assert store.put(row) == row
    assert found(store) == Found(row, "stored", ())


def test_the_next_process_finds_it(tmp_path: Path) -> None:
    """A store opened anew has what the last one was given."""
    store = Store(tmp_path / "store")
    store.put(a_row())
    store.close()
    assert found(Store(tmp_path / "store")).row == a_row()


@pytest.mark.parametrize(
    ("kernel", "key", "environment"),
    [("other.kernel", "[1]", HERE), ("mine.kernel", "[2]", HERE), ("mine.kernel", "[1]", OLDER_GPU)],
)
def test_a_hard_difference_is_a_miss(store: Store, kernel: str, key: str, environment: Environment) -> None:
    """Another kernel, another key, another kind of device."""
    store.put(a_row())
    missing = store.get(kernel, key, environment)
    assert missing == Missing((f"no choice is stored for this key of {kernel}",))


def test_a_soft_difference_is_found_with_a_sentence(store: Store) -> None:
    """The row answers, and says what has changed since."""
    store.put(a_row())
    assert found(store, environment=NEWER).soft_differences == ("torch was 2.13 when this was stored and is 2.14 here",)


def test_the_first_of_two_choices_stands(store: Store) -> None:
    """Under equal soft parts the later one adopts the earlier."""
    first = store.put(a_row(variant="exact"))
    assert store.put(a_row(variant="plain")) == first
    assert found(store).row.variant == "exact"


def test_a_stale_choice_is_replaced(store: Store) -> None:
    """Under other soft parts the new timing counts."""
    store.put(a_row(variant="exact"))
    newer = a_row(variant="plain", environment=NEWER)
    assert store.put(newer) == newer
    assert found(store, environment=NEWER) == Found(newer, "stored", ())


def doubtful(variant: str = "plain", environment: Environment = HERE, **changes: Any) -> Row:
    """A choice that its times do not bear out."""
    return a_row(variant=variant, environment=environment, **{"undecided": "2 samples", **changes})


def test_an_undecided_choice_is_found_as_one(store: Store) -> None:
    """That it is undecided is no difference of the place where it was made."""
    store.put(doubtful())
    assert found(store).soft_differences == ()
    assert found(store).row.undecided == "2 samples"


def test_a_decided_choice_replaces_an_undecided_one(store: Store) -> None:
    """Nobody has to ask for it."""
    store.put(doubtful())
    decided = a_row(variant="exact")
    assert store.put(decided) == decided
    assert found(store).row == decided


@pytest.mark.parametrize("instead", [False, True])
def test_an_undecided_choice_replaces_no_decided_one(store: Store, instead: bool) -> None:
    """Not even where it is asked for: what is decided stands."""
    decided = store.put(a_row(variant="exact"))
    assert store.put(doubtful(), instead=instead) == decided
    assert found(store).row == decided


def test_an_undecided_choice_replaces_no_stale_one(store: Store) -> None:
    """Another program may have use for that; who was in doubt runs his own."""
    stale = store.put(a_row(variant="exact", environment=NEWER))
    row = doubtful()
    assert store.put(row) == row
    assert found(store, environment=NEWER).row == stale


def test_the_last_of_two_undecided_choices_stands(store: Store) -> None:
    """Neither is better known, and the newer one was made by what is here now."""
    store.put(doubtful("plain"))
    last = doubtful("exact")
    assert store.put(last) == last
    assert found(store).row == last


def test_two_kinds_of_device_have_a_row_each(store: Store) -> None:
    """One folder serves a home that two machines share."""
    store.put(a_row(variant="exact"))
    store.put(a_row(variant="plain", environment=OLDER_GPU))
    assert found(store).row.variant == "exact"
    assert found(store, environment=OLDER_GPU).row.variant == "plain"


def test_hints_are_kept_apart_from_choices(store: Store) -> None:
    """A hint's winner is no choice, and is listed for its kernel."""
    hint = a_row(variant="hint[M=256]", kind="hint", config='{"num_warps":4}')
    for row in (hint, a_row(kind="hint", environment=OLDER_GPU), a_row(kind="hint", kernel="other")):
        store.put(row)
    assert isinstance(store.get("mine.kernel", "[1]", HERE), Missing)
    assert isinstance(store.get("mine.kernel", "[1]", HERE, kind="hint"), Found)
    assert store.choices("mine.kernel") == []
    assert hint in store.rows("mine.kernel", "hint")
    assert len(store.rows("mine.kernel", "hint")) == 2


def test_a_miss_is_recorded_until_it_is_tuned(store: Store) -> None:
    """A frozen server leaves the keys it met; a choice for one takes it off the list."""
    store.missed("mine.kernel", "[1]", HERE)
    store.missed("mine.kernel", "[1]", NEWER)
    assert [row.key for row in store.rows(kind="missed")] == ["[1]"]
    assert isinstance(store.get("mine.kernel", "[1]", HERE), Missing)
    store.put(a_row())
    assert store.rows(kind="missed") == []


def test_rows_are_sorted_and_selected(store: Store) -> None:
    """All, of one kernel, of one kind."""
    rows = [a_row("[2]"), a_row("[1]"), a_row("[1]", kernel="a"), a_row(kind="hint")]
    for row in rows:
        store.put(row)
    assert [(row.kernel, row.kind, row.key) for row in store.rows()] == [
        ("a", "choice", "[1]"),
        ("mine.kernel", "choice", "[1]"),
        ("mine.kernel", "choice", "[2]"),
        ("mine.kernel", "hint", "[1]"),
    ]
    assert len(store.rows("mine.kernel")) == 3
    assert store.rows("mine.kernel", "hint") == [rows[3]]


def test_clear_removes_everything(store: Store) -> None:
    """Afterwards the store is empty and works."""
    store.put(a_row())
    store.clear()
    assert store.rows() == []
    store.put(a_row(variant="plain"))
    assert found(store).row.variant == "plain"


def test_prune_removes_what_was_asked_for(store: Store) -> None:
    """One kernel's rows, or those of another environment."""
    rows = [a_row("[1]"), a_row("[2]", environment=NEWER), a_row("[3]", kernel="other")]
    for row in rows:
        store.put(row)
    assert store.prune(unlike=Environment(HERE.hard, {"torch": "2.13"})) == 1
    assert store.prune(kernel="other") == 1
    assert store.rows() == [rows[0]]
    with pytest.raises(TypeError, match="clear"):
        store.prune()


def test_stats_count_and_name(store: Store) -> None:
    """Where, how, how many, how large, what happened."""
    store.put(a_row())
    store.missed("mine.kernel", "[9]", HERE)
    found(store)
    store.get("mine.kernel", "[7]", HERE)
    stats = store.stats()
    assert stats["rows"] == {"choice": 1, "missed": 1}
    assert stats["counts"] == {"found": 1, "missing": 1, "put": 1}
    assert stats["path"] == str(store.path)
    assert (stats["bytes"] > 0) == (stats["form"] in ("sqlite", "files"))
    json.dumps(stats)


@given(rows=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.sampled_from("12")), max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_a_store_is_a_mapping_with_adoption(store: Store, rows: list[tuple[str, str, str]]) -> None:
    """Whatever is put in whatever order: the first variant of a soft identity stands until the identity changes."""
    store.clear()
    model: dict[str, tuple[str, str]] = {}
    for key, variant, version in rows:
        if model.get(key, ("", ""))[1] != version:
            model[key] = variant, version
        store.put(a_row(key, variant, Environment(HERE.hard, {"torch": version})))
    assert {row.key: (row.variant, row.soft["torch"]) for row in store.rows()} == model


# --- shipping ------------------------------------------------------------------------------------------------------


def exported(tmp_path: Path, *rows: Row, name: str = "shipped.json") -> Path:
    """A file with these rows."""
    source = Store(tmp_path / f"source of {name}")
    for row in rows:
        source.put(row)
    assert source.export(tmp_path / name) == len(rows)
    return tmp_path / name


def test_what_is_exported_can_be_merged(tmp_path: Path, store: Store) -> None:
    """The other store has the same rows afterwards, and merging again changes nothing."""
    rows = [a_row("[1]"), a_row("[2]", kind="hint")]
    file = exported(tmp_path, *rows)
    assert store.merge(file) == Merged(2, 0)
    assert store.rows() == rows
    assert store.merge(file).refused == ()
    assert store.rows() == rows


def test_merging_gives_way_to_what_is_here(tmp_path: Path, store: Store) -> None:
    """Another machine's timing never replaces this one's, whatever its environment."""
    file = exported(tmp_path, a_row(variant="plain", environment=NEWER))
    store.put(a_row(variant="exact"))
    assert store.merge(file) == Merged(0, 1)
    assert found(store).row.variant == "exact"


@pytest.mark.parametrize(("environment", "taken"), [(HERE, 1), (NEWER, 0)])
def test_what_is_undecided_here_gives_way_to_what_was_decided_alike(
    tmp_path: Path, store: Store, environment: Environment, taken: int
) -> None:
    """Where it was decided elsewhere, that would be timed again here."""
    file = exported(tmp_path, a_row(variant="exact", environment=environment))
    store.put(doubtful("plain"))
    assert store.merge(file) == Merged(taken, 1 - taken)
    assert found(store).row.variant == ("exact" if taken else "plain")


def test_what_is_undecided_in_a_file_is_taken_where_nothing_is_known(tmp_path: Path, store: Store) -> None:
    """And no second time."""
    file = exported(tmp_path, doubtful())
    assert store.merge(file) == Merged(1, 0)
    assert store.merge(file) == Merged(0, 1)


def test_a_forged_row_in_a_file_is_refused_with_a_sentence(tmp_path: Path, store: Store) -> None:
    """The other rows of the file are taken."""
    file = exported(tmp_path, a_row("[1]"), a_row("[2]"))
    content = json.loads(file.read_text())
    content["rows"][0]["variant"] = "forged"
    file.write_text(json.dumps(content))
    assert store.merge(file) == Merged(1, 0, ("row 1: a row's checksum does not fit its content",))


def test_a_shipped_row_is_found_after_the_users_own(tmp_path: Path) -> None:
    """Files in their order, the user's store before all of them."""
    first = exported(tmp_path, a_row("[1]", "first"), a_row("[2]", "first"), name="1.json")
    second = exported(tmp_path, *(a_row(f"[{n}]", "second") for n in (1, 2, 3)), name="2.json")
    store = Store(tmp_path / "store", shipped=[first, second])
    store.put(a_row("[1]", "own"))
    assert [(found(store, key).row.variant, found(store, key).origin) for key in ("[1]", "[2]", "[3]")] == [
        ("own", "stored"),
        ("first", "shipped"),
        ("second", "shipped"),
    ]


def test_a_shipped_row_made_here_comes_before_a_stale_own_one(tmp_path: Path) -> None:
    """Without it a driver update would time again what the package has already timed."""
    file = exported(tmp_path, a_row(variant="shipped", environment=NEWER))
    store = Store(tmp_path / "store", shipped=[file])
    store.put(a_row(variant="own"))
    assert found(store, environment=NEWER).row.variant == "shipped"
    assert found(store, environment=HERE).row.variant == "own"


def test_a_shipped_decided_row_comes_before_an_own_undecided_one(tmp_path: Path) -> None:
    """Both were made under the conditions of this place."""
    own = Store(tmp_path / "own", shipped=[exported(tmp_path, a_row(variant="exact"))])
    own.put(doubtful("plain"))
    assert found(own).row.variant == "exact"


def test_shipped_hints_are_found(tmp_path: Path) -> None:
    """A package can ship the configs that won at its hints."""
    hint = a_row(kind="hint")
    store = Store(tmp_path / "store", shipped=[exported(tmp_path, hint)])
    assert store.get(hint.kernel, hint.key, HERE, kind="hint") == Found(hint, "shipped", ())
    assert store.choices(hint.kernel) == []


@pytest.mark.parametrize("content", [None, b"", b"\xff\x00", b'{"format": "shapedispatch choices", "rows": [{}]}'])
def test_a_shipped_file_that_cannot_be_read_is_one_warning(tmp_path: Path, content: bytes | None) -> None:
    """Missing or damaged: told once, and the store works."""
    file = tmp_path / "shipped.json"
    if content is not None:
        file.write_bytes(content)
    store = Store(tmp_path / "store", shipped=[file])
    with pytest.warns(RuntimeWarning, match=r"the shipped file .* was not read in full"):
        assert isinstance(store.get("mine.kernel", "[1]", HERE), Missing)
    store.put(a_row())  # a second warning would be an error
    assert found(store).origin == "stored"


def test_a_file_named_by_the_user_must_be_there(tmp_path: Path, store: Store) -> None:
    """``export`` and ``merge`` are commands: an unreadable file is an error of the one who named it."""
    with pytest.raises(FileNotFoundError):
        store.merge(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError):
        store.export(tmp_path / "none" / "file.json")


def test_misses_can_be_exported(tmp_path: Path, store: Store) -> None:
    """The file from which another process tunes what this one missed; merged, it brings nothing."""
    store.missed("mine.kernel", "[1]", HERE)
    assert store.export(tmp_path / "missed.json", kinds=["missed"]) == 1
    assert '"missed"' in (tmp_path / "missed.json").read_text()
    assert Store(tmp_path / "other").merge(tmp_path / "missed.json") == Merged(0, 0)


# --- reasons -------------------------------------------------------------------------------------------------------


def test_why_says_that_nothing_is_stored(store: Store) -> None:
    """An unknown kernel."""
    assert store.why("mine.kernel", "[1]", HERE) == (f"nothing is stored for mine.kernel in {store.path}",)


def test_why_names_what_differs_from_the_nearest_key(store: Store) -> None:
    """The place in the key, the value there, the value here."""
    for key in ((1, 2, 3), (7, 8, 9)):
        store.put(a_row(key_text.canonical(key)))
    assert store.why("mine.kernel", key_text.canonical((1, 5, 3)), HERE) == (
        "2 keys are stored for mine.kernel, not this one; the nearest:",
        "at [1] it has 2 and this call has 5",
    )


def test_why_names_hard_and_soft_differences(store: Store) -> None:
    """Why a row for this very key is not used, or is timed again."""
    store.put(a_row())
    assert store.why("mine.kernel", "[1]", OLDER_GPU) == (
        "exact is stored for this key on cuda 9.0",
        "capability was 9.0 when this was stored and is 8.0 here",
    )
    assert "torch was 2.13" in store.why("mine.kernel", "[1]", NEWER)[1]
    assert len(store.why("mine.kernel", "[1]", HERE)) == 1


def test_why_says_that_a_choice_is_undecided(store: Store) -> None:
    """In the words of `explain`."""
    store.put(doubtful())
    assert store.why("mine.kernel", "[1]", HERE)[1] == "stored, though undecided there: 2 samples"
    assert len(store.why("mine.kernel", "[1]", HERE)) == 2 + len(store.trouble)


def test_stats_count_what_is_undecided(store: Store) -> None:
    """Beside the kinds, of which it is none."""
    store.put(doubtful())
    store.put(a_row("[2]"))
    assert (store.stats()["rows"], store.stats()["undecided"]) == ({"choice": 2}, 1)


def test_why_of_a_key_that_is_no_key(store: Store) -> None:
    """A question about anything gets an answer."""
    store.put(a_row())
    (said,) = store.why("mine.kernel", "no key", HERE)
    assert "none can be compared" in said


# --- processes, threads, places ------------------------------------------------------------------------------------

ADOPTER = """
import sys
from shapedispatch.keys.identity import Environment
from shapedispatch.store.store import Row, Store
store = Store(sys.argv[1])
environment = Environment({"family": "cuda", "capability": "9.0"}, {"torch": "2.13", "code": "c"})
print("ready", flush=True)
for key in sys.stdin:
    row = Row.make("mine.kernel", key.strip(), hard=environment.hard, soft=environment.soft, variant=sys.argv[2])
    print(store.put(row).variant, flush=True)
"""


def test_two_processes_agree_on_every_key(tmp_path: Path) -> None:
    """Each key is stored by one of two racing processes and adopted by the other."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", ADOPTER, str(tmp_path / "store"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for name in ("one", "two")
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    keys = "".join(f"[{n}]\n" for n in range(300))
    answers: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda i=i, p=process: answers.update({i: p.communicate(keys)[0]}))
        for i, process in enumerate(running)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers[0] == answers[1]
    assert len(answers[0].split()) == 300
    stored = {row.key: row.variant for row in Store(tmp_path / "store").rows()}
    assert [stored[f"[{n}]"] for n in range(300)] == answers[0].split()


def test_sizes_that_no_key_has_are_told_without_one(tmp_path: Path) -> None:
    """What this process puts is known at once, and of another kernel it says nothing."""
    store = Store(tmp_path / "store")
    assert not may_hold(store, "mine.kernel", {640})
    store.put(a_row("[[640,64],[64,1]]"))
    assert may_hold(store, "mine.kernel", {640, 64})
    assert not may_hold(store, "mine.kernel", {640, 65})
    assert not may_hold(store, "other.kernel", {640})
    store.missed("mine.kernel", "[[65,64]]", HERE)
    assert may_hold(store, "mine.kernel", {640, 65})


def test_what_others_store_is_known_before_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that takes another's place, too, and those of a store that was made anew."""
    monkeypatch.setattr("shapedispatch.store.store._SELDOM", 0)
    store, others = Store(tmp_path / "store"), Store(tmp_path / "store")
    assert not may_hold(store, "mine.kernel", {640})

    def is_seen(size: int) -> bool:
        return any(may_hold(store, "mine.kernel", {size}) for _ in range(40))

    for size in (638, 639, 640):
        others.put(a_row(f"[{size}]"))
    assert is_seen(640)
    others.prune(kernel="mine.kernel")
    others.put(a_row("[641]"))
    assert is_seen(641)
    others.clear()
    others.put(a_row("[642]"))
    assert is_seen(642)


def test_where_it_cannot_be_told_any_sizes_may_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In files of a network's file system, and in what is kept in memory."""
    with monkeypatch.context() as patch:
        patch.setattr(disk, "on_network", lambda path: True)
        assert may_hold(Store(tmp_path / "files"), "mine.kernel", {640})
    Store(tmp_path / "store").put(a_row("[1]"))
    readonly = Store(tmp_path / "store", readonly=True)
    assert not may_hold(readonly, "mine.kernel", {640})
    readonly.put(a_row("[640]"))
    assert may_hold(readonly, "mine.kernel", {640})


def test_sizes_of_shipped_keys_are_known(tmp_path: Path) -> None:
    """They are found as the user's own are."""
    shipped = exported(tmp_path, a_row("[[640,64]]"))
    assert may_hold(Store(tmp_path / "new", shipped=[shipped]), "mine.kernel", {640, 64})


def test_threads_share_a_store(store: Store) -> None:
    """Many threads putting, finding and listing at once: every row is there and nothing is raised."""
    errors: list[BaseException] = []

    def work(mine: int) -> None:
        try:
            for n in range(40):
                store.put(a_row(f"[{mine},{n}]"))
                assert found(store, f"[{mine},{n}]").row.key == f"[{mine},{n}]"
                if n % 20 == 0:
                    store.rows()
                    store.close()
        except BaseException as error:  # noqa: BLE001 - a thread's error is this test's
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store.rows()) == 240


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_and_its_parent_both_go_on(tmp_path: Path) -> None:
    """Neither carries the other's connection; both see what both wrote."""
    store = Store(tmp_path / "store")
    store.put(a_row("[1]"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons advise against forking with threads
        pid = os.fork()
    if pid == 0:
        try:
            right = found(store, "[1]").row.key == "[1]" and store.put(a_row("[2]")).key == "[2]"
            os._exit(0 if right and not store.trouble else 1)
        finally:
            os._exit(2)
    store.put(a_row("[3]"))
    assert os.waitpid(pid, 0)[1] == 0
    assert [row.key for row in store.rows()] == ["[1]", "[2]", "[3]"]
    assert store.trouble == ()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_no_connection_is_carried_into_a_fork(tmp_path: Path) -> None:
    """SQLite's connections are closed before the process is forked, not after."""
    store = Store(tmp_path / "store")
    store.put(a_row())
    assert store._disk._open
    disk._before_fork()
    try:
        assert not store._disk._open
    finally:
        disk._after_fork()
    assert found(store)


def test_making_a_store_touches_no_file(tmp_path: Path) -> None:
    """A decorator makes one at import, where nothing may happen."""
    Store(tmp_path / "store", shipped=[tmp_path / "none.json"])
    assert not (tmp_path / "store").exists()


def test_the_default_place_is_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the platform names it, never a shared temporary folder."""
    assert Store().path == Path(os.environ["XDG_CACHE_HOME"]) / "shapedispatch"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert (tmp_path / "home") in Store().path.parents


def test_a_readonly_store_writes_nothing(tmp_path: Path) -> None:
    """What this process learns stays in its memory; what is on disk is found; no warning is due."""
    store = Store(tmp_path / "store")
    store.put(a_row("[1]"))
    store.close()
    before = {file: file.read_bytes() for file in (tmp_path / "store").glob("*.sqlite3")}
    readonly = Store(tmp_path / "store", readonly=True)
    assert found(readonly, "[1]").origin == "stored"
    readonly.put(a_row("[2]"))
    assert found(readonly, "[2]").row.key == "[2]"
    assert {row.key for row in readonly.rows()} == {"[1]", "[2]"}
    readonly.clear()
    readonly.close()
    assert before == {file: file.read_bytes() for file in (tmp_path / "store").glob("*.sqlite3")}
    assert readonly.trouble == ()


def test_a_readonly_store_sees_what_is_written_later(tmp_path: Path) -> None:
    """It need not exist when it is first asked."""
    readonly = Store(tmp_path / "store", readonly=True)
    assert isinstance(readonly.get("mine.kernel", "[1]", HERE), Missing)
    Store(tmp_path / "store").put(a_row())
    assert found(readonly).origin == "stored"


def test_a_readonly_store_meets_one_that_is_being_made(tmp_path: Path) -> None:
    """An empty database is no damage: another process is about to make its tables."""
    Store(tmp_path / "store").put(a_row())
    (file,) = (tmp_path / "store").glob("*.sqlite3")
    content = file.read_bytes()
    file.write_bytes(b"")
    readonly = Store(tmp_path / "store", readonly=True)
    assert isinstance(readonly.get("mine.kernel", "[1]", HERE), Missing)
    file.write_bytes(content)
    assert found(readonly).origin == "stored"
    assert readonly.trouble == ()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_threads_that_fork_at_once_take_turns(tmp_path: Path) -> None:
    """Each releases what it held and no more: afterwards the store can be used."""
    store = Store(tmp_path / "store")
    store.put(a_row())

    def fork() -> None:
        for _ in range(50):
            disk._before_fork()
            disk._after_fork()

    threads = [threading.Thread(target=fork) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert disk._HELD == []
    assert found(store)


def test_a_row_that_is_no_row_is_not_stored(store: Store) -> None:
    """A row put together by hand with a wrong checksum is returned and forgotten, with one warning."""
    wrong = Row(**{**vars(a_row()), "variant": "other"})
    with pytest.warns(RuntimeWarning, match="was not stored"):
        assert store.put(wrong) == wrong
    assert store.rows() == []


def test_a_key_that_is_too_long_is_not_recorded(store: Store) -> None:
    """One warning, no exception."""
    with pytest.warns(RuntimeWarning, match="was not recorded"):
        store.missed("mine.kernel", "1" * 10**6, HERE)
    assert store.rows() == []


def test_the_representation_says_where_and_how(tmp_path: Path) -> None:
    """For a person who prints it."""
    assert repr(Store(tmp_path / "s")) == f"Store({str(tmp_path / 's')!r}, unopened)"


def test_one_text_is_no_list_of_shipped_files() -> None:
    """Its letters would be files that are not there."""
    with pytest.raises(DeclarationError, match=r"shipped='layers.json': allowed is a list"):
        Store(shipped="layers.json")
    with pytest.raises(DeclarationError, match="shipped=5: allowed is a list"):
        Store(shipped=5)  # type: ignore[arg-type]  # as a user may
