from __future__ import annotations

import gc
import threading
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shapedispatch.keys.identity import environment
from shapedispatch.records import Choice, Timing
from shapedispatch.store import disk
from shapedispatch.store.kernel_store import KernelStore, _far, store_at
from shapedispatch.store.key_text import canonical
from shapedispatch.store.store import Found, Store
from shapedispatch.store.tables import file_name

CPU = torch.device("cpu")
STATE = (None, True, False, False, False, torch.float32, "none", "none")


def key(*sizes: int, threads: int = 1, more: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """A key of one argument."""
    return ((*STATE, threads), (torch.Tensor, sizes), *more)


def kernel_store(store: Store, name: str = "kernel", code: str = "1") -> KernelStore:
    """The shelf of a kernel whose code is ``code``."""
    return KernelStore(store, name, lambda: MappingProxyType({"code": code}))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of this test's own."""
    return Store(tmp_path / "store")


def test_what_is_kept_is_found(store: Store) -> None:
    """With its variant, config and timings, by another shelf of the same name and code."""
    timing = Timing("fast", 1.0, 0.1, 3)
    row = kernel_store(store).keep(key(4), CPU, Choice("fast", "timed", config=7, timings=(timing,)))
    assert row is not None
    found = kernel_store(store).find(key(4), CPU)
    assert found == Found(row, "stored")
    assert (row.variant, row.config, row.timings) == ("fast", '"7"', (timing,))
    assert kernel_store(store).find(key(5), CPU) is None


def test_what_is_kept_later_is_found_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under what was set when it was kept, though the thread has not come to it."""
    monkeypatch.setattr(disk.writes, "_thread", threading.current_thread())  # no other is started
    shelf, before = kernel_store(store), torch.get_num_threads()
    shelf.keep_later(key(4), CPU, Choice("fast", "timed"))
    torch.set_num_threads(before + 1)
    try:
        other = shelf.find(key(4), CPU)
    finally:
        torch.set_num_threads(before)
    found = shelf.find(key(4), CPU)
    assert other is not None
    assert found is not None
    assert other.soft_differences
    assert (found.row.variant, found.soft_differences) == ("fast", ())


def test_a_timing_that_is_infinite_is_not_kept(store: Store) -> None:
    """It is that of a candidate which never ran, and no JSON number."""
    never = Timing("slow", float("inf"), 0.0, 0)
    row = kernel_store(store).keep(key(4), CPU, Choice("fast", "timed", timings=(never,)))
    assert row is not None
    assert row.timings == ()


def test_the_first_row_stands(store: Store) -> None:
    """Another process's choice is adopted; with ``instead`` it is replaced."""
    kernel_store(store).keep(key(4), CPU, Choice("first", "timed"))
    stands = kernel_store(store).keep(key(4), CPU, Choice("second", "timed"))
    assert stands is not None
    assert stands.variant == "first"
    stands = kernel_store(store).keep(key(4), CPU, Choice("second", "timed"), instead=True)
    assert stands is not None
    assert stands.variant == "second"
    found = kernel_store(store).find(key(4), CPU)
    assert found is not None
    assert found.row.variant == "second"


def doubtful(variant: str) -> Choice:
    """A choice that its times do not bear out."""
    return Choice(variant, "timed", timings=(Timing(variant, 1.0, 0.1, 3),), notes=("undecided: 2 samples",))


def test_what_is_undecided_is_kept_as_such(store: Store) -> None:
    """The note of the choice says why."""
    row = kernel_store(store).keep(key(4), CPU, doubtful("fast"))
    assert row is not None
    assert row.undecided == "2 samples"
    assert kernel_store(store).find(key(4), CPU) == Found(row, "stored")


def test_a_search_has_no_doubts(store: Store) -> None:
    """Its configs are a short list, of which no single one has to be the best."""
    kernel_store(store).tuned_configs(CPU).keep(key(4), "hint[M=64]", doubtful("plain"), ["a"], False)
    (row,) = store.rows()
    assert (row.kind, row.undecided) == ("hint", "")


def test_the_number_of_threads_is_a_soft_part(store: Store) -> None:
    """The key is the same, and the environment holds it."""
    kernel_store(store).keep(key(4, threads=1), CPU, Choice("fast", "timed"))
    found = kernel_store(store).find(key(4, threads=2), CPU)
    assert found is not None
    assert found.soft_differences == ()


def test_no_overlap_is_no_part_of_a_stored_key(store: Store) -> None:
    """A process that has not yet learned that the function writes finds what one has stored that had."""
    kernel_store(store).keep(key(4, more=((),)), CPU, Choice("fast", "timed"))
    assert kernel_store(store).find(key(4), CPU) is not None
    assert kernel_store(store).find(key(4, more=(((0, 1, 8),),)), CPU) is None


def test_other_code_is_a_soft_difference(store: Store) -> None:
    """The row is found, and says so."""
    first = kernel_store(store, code="1")
    first.keep(key(4), CPU, Choice("fast", "timed"))
    del first
    gc.collect()
    found = kernel_store(store, code="2").find(key(4), CPU)
    assert found is not None
    assert "the function's code" in found.soft_differences[0]


def test_a_key_without_a_text_is_not_stored(store: Store) -> None:
    """An object that has no name outside of this process: found nowhere, kept nowhere, and `why` says it."""
    odd = key(4, more=(object(),))
    one = kernel_store(store)
    assert one.keep(odd, CPU, Choice("fast", "timed")) is None
    assert one.find(odd, CPU) is None
    assert one.nearest(odd, CPU) is None
    one.missed(odd, CPU)
    assert one.why(odd, CPU) == ("this key cannot be stored",)
    assert store.rows() == []


def test_too_large_a_choice_is_not_stored(store: Store) -> None:
    """It is timed again in the next process."""
    timings = tuple(Timing(f"variant {i}", 1.0, 0.0, 1) for i in range(2000))
    assert kernel_store(store).keep(key(4), CPU, Choice("fast", "timed", timings=timings)) is None


def test_a_miss_is_noted_until_it_is_tuned(store: Store) -> None:
    """As a row without a variant, which a choice takes the place of."""
    one = kernel_store(store)
    one.missed(key(4), CPU)
    assert [(row.kind, row.variant) for row in store.rows()] == [("missed", "")]
    one.keep(key(4), CPU, Choice("fast", "timed"))
    assert [row.kind for row in store.rows()] == ["choice"]


def test_why_names_the_nearest(store: Store) -> None:
    """Nothing stored, another key stored, this key stored."""
    one = kernel_store(store)
    assert "nothing is stored for kernel" in one.why(key(4), CPU)[0]
    one.keep(key(8), CPU, Choice("fast", "timed"))
    said = one.why(key(4), CPU)
    assert "not this one" in said[0]
    assert "it has 8 and this call has 4" in said[1]
    assert "fast is stored for this key" in one.why(key(8), CPU)[0]


# -- the nearest


def test_the_nearest_differs_in_sizes_only(store: Store) -> None:
    """By log distance; a row of another dtype or rank, and an exact build, serve no other call."""
    one = kernel_store(store)
    for size, variant in ((10, "ten"), (100, "hundred"), (30, "exact")):
        one.keep(key(size), CPU, Choice(variant, "timed"))
    one.keep(key(29, 1), CPU, Choice("of another rank", "timed"))
    one.keep(key(29, more=("else",)), CPU, Choice("of another call", "timed"))
    found = one.nearest(key(29), CPU)
    assert found is not None
    assert found.row.variant == "ten"
    found = one.nearest(key(40), CPU)
    assert found is not None
    assert found.row.variant == "hundred"


def test_the_nearest_is_of_this_kind_of_device(store: Store) -> None:
    """What is stored for another kind of device is no row here."""
    kernel_store(store).keep(key(10), torch.device("meta"), Choice("ten", "timed"))
    assert kernel_store(store).nearest(key(10), CPU) is None


sizes = st.lists(st.integers(0, 2**40), min_size=1, max_size=4)


@given(sizes, sizes)
def test_far_is_a_distance(one: list[int], other: list[int]) -> None:
    """Nought for itself, the same both ways, and none between zero and a size, or between ranks."""
    a, b = canonical(tuple(one)), canonical(tuple(other))
    assert _far(a, a) == 0
    assert _far(a, b) == _far(b, a)
    comparable = len(one) == len(other) and all(x == y or (x and y) for x, y in zip(one, other, strict=True))
    assert (_far(a, b) is not None) == comparable


@pytest.mark.parametrize(("one", "other"), [(1, True), (1.0, 2.0), ("a", "b"), (1, None), (1, 1.0), (-1, 1)])
def test_only_sizes_have_a_distance(one: Any, other: Any) -> None:
    """Anything else is the same or another call."""
    assert _far(canonical((one,)), canonical((other,))) is None


def test_a_text_that_is_no_key_is_far() -> None:
    """Such as one of another release."""
    assert _far('{"new": 1}', canonical((1,))) is None


# -- names and stores


def test_dispatchers_of_one_name_and_other_code_have_rows_of_their_own(store: Store) -> None:
    """The second one's name has a number, by the order of decoration; the same code shares a name."""
    one, two, again, three = (kernel_store(store, code=code) for code in "1213")
    assert [each.kernel for each in (three, two, one, again)] == ["kernel#3", "kernel#2", "kernel", "kernel"]
    assert kernel_store(store, "other", "4").kernel == "other"


def test_a_dispatcher_that_is_gone_gives_its_name_back(store: Store) -> None:
    """A function that is written anew has the name of the old one."""
    one = kernel_store(store, code="1")
    assert one.kernel == "kernel"
    del one
    gc.collect()
    assert kernel_store(store, code="2").kernel == "kernel"


def test_one_store_for_each_place(tmp_path: Path) -> None:
    """True is the user's cache folder, false is none, a path is that place, a Store is itself."""
    assert store_at(False) is None
    assert store_at(str(tmp_path)) is store_at(str(tmp_path))
    assert store_at(True) is store_at(True)
    own = Store(tmp_path)
    assert store_at(own) is own


# -- the tables of the package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """What the package's table for this machine is made of; ``ship`` writes it."""
    (tmp_path / "package").mkdir()
    monkeypatch.setattr("shapedispatch.store.tables.FOLDER", tmp_path / "package")
    return Store(tmp_path / "source")


def ship(package: Store) -> None:
    """Let the package come with these rows."""
    name = file_name(environment(CPU))
    assert name is not None
    package.export(package.path.parent / "package" / name)


def test_a_table_of_the_package_answers_after_the_user(store: Store, package: Store) -> None:
    """His own rows come first, then the files that he named."""
    for size in (4, 5, 6):
        kernel_store(package).keep(key(size), CPU, Choice("package", "timed"))
    ship(package)
    named = Store(store.path.parent / "named")
    for size in (4, 5):
        kernel_store(named).keep(key(size), CPU, Choice("named", "timed"))
    named.export(store.path.parent / "named.json")
    own = Store(store.path, shipped=[store.path.parent / "named.json"])
    kernel_store(own).keep(key(4), CPU, Choice("own", "timed"))
    found = [kernel_store(own).find(key(size), CPU) for size in (4, 5, 6, 7)]
    assert [(one.row.variant, one.origin) if one else None for one in found] == [
        ("own", "stored"),
        ("named", "shipped"),
        ("package", "shipped"),
        None,
    ]


def test_a_table_of_the_package_comes_before_what_no_longer_fits(store: Store, package: Store) -> None:
    """The user's row of other code would be timed again."""
    first = kernel_store(store, code="0")
    first.keep(key(4), CPU, Choice("own", "timed"))
    del first
    gc.collect()
    kernel_store(package).keep(key(4), CPU, Choice("package", "timed"))
    ship(package)
    found = kernel_store(store).find(key(4), CPU)
    assert found is not None
    assert (found.row.variant, found.soft_differences) == ("package", ())


def test_a_table_of_the_package_comes_before_what_is_undecided(store: Store, package: Store) -> None:
    """Its rows are decided."""
    kernel_store(store).keep(key(4), CPU, doubtful("own"))
    kernel_store(package).keep(key(4), CPU, Choice("package", "timed"))
    ship(package)
    found = kernel_store(store).find(key(4), CPU)
    assert found is not None
    assert (found.row.variant, found.origin) == ("package", "shipped")


def test_a_table_of_other_code_says_nothing(store: Store, package: Store) -> None:
    """Nor that it was stored and is timed again: another release of a library is as if there were no table."""
    first = kernel_store(package, code="0")
    first.keep(key(4), CPU, Choice("package", "timed"))
    del first
    gc.collect()
    ship(package)
    assert kernel_store(store).find(key(4), CPU) is None
    assert kernel_store(store).nearest(key(5), CPU) is None


def test_the_nearest_may_be_a_tables(store: Store, package: Store) -> None:
    """Where nothing may be timed."""
    kernel_store(package).keep(key(4), CPU, Choice("package", "timed"))
    ship(package)
    found = kernel_store(store).nearest(key(5), CPU)
    assert found is not None
    assert (found.row.variant, found.origin) == ("package", "shipped")


def test_what_is_loaded_is_the_users(store: Store, package: Store) -> None:
    """A table of the package has many sizes that a program never meets."""
    kernel_store(package).keep(key(4), CPU, Choice("package", "timed"))
    ship(package)
    kernel_store(store).keep(key(5), CPU, Choice("own", "timed"))
    assert [one.row.variant for one in kernel_store(store).found_here()] == ["own"]


def test_configs_of_a_tables_hints_are_found(store: Store, package: Store) -> None:
    """A new size near a hint needs no search then."""
    timed = Choice("plain", "timed", timings=(Timing("plain", 1.0, 0.1, 3),))
    kernel_store(package).tuned_configs(CPU).keep(key(1), "hint[M=64]", timed, ["BLOCK: 64"], instead=False)
    ship(package)
    assert kernel_store(store).tuned_configs(CPU).look_up(key(1), "hint[M=64]") == (("BLOCK: 64",), ())
    without = KernelStore(store, "kernel", lambda: MappingProxyType({"code": "1"}), lambda: False)
    assert without.tuned_configs(CPU).look_up(key(1), "hint[M=64]") == ((), ())


def test_where_tables_are_off_none_is_opened(store: Store, package: Store) -> None:
    """Asked at each question, since a mode may change."""
    kernel_store(package).keep(key(4), CPU, Choice("package", "timed"))
    ship(package)
    wanted = [False]
    one = KernelStore(store, "kernel", lambda: MappingProxyType({"code": "1"}), lambda: wanted[0])
    assert one.find(key(4), CPU) is None
    assert one.nearest(key(5), CPU) is None
    assert not one.may_hold([(4,)], CPU)
    assert store.tables._files == {}
    wanted[0] = True
    assert one.find(key(4), CPU) is not None
    assert one.may_hold([(4,)], CPU)


def test_sizes_are_asked_for_by_all_tensors(store: Store, package: Store) -> None:
    """Of the user's own keys and of the package's, of rows that do not fit this machine today, too."""
    kernel_store(package, code="0").keep(key(4, 5), CPU, Choice("package", "timed"))
    ship(package)
    kernel_store(store).keep(key(6, 7), CPU, Choice("own", "timed"))
    one = kernel_store(store)
    asked = [[(4, 5)], [(5,), (4,)], [(6, 7), (7,)], [(4,), (6,)], [(4, 5), (8,)]]
    assert [one.may_hold(shapes, CPU) for shapes in asked] == [True, True, True, False, False]


def test_a_damaged_table_is_one_warning(store: Store, package: Store) -> None:
    """And the store works."""
    ship(package)
    (file,) = (package.path.parent / "package").iterdir()
    file.write_bytes(b"no table")
    with pytest.warns(RuntimeWarning, match=r"the table .* of the package was not read in full"):
        assert kernel_store(store).find(key(4), CPU) is None
    kernel_store(store).keep(key(4), CPU, Choice("own", "timed"))  # a second warning would be an error
    assert kernel_store(store).find(key(4), CPU) is not None
