"""When Python looks for cycles among its objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from shapedispatch.background.imports import Imports
from shapedispatch.interpreter.collector import no_collections


@pytest.fixture
def looks() -> Iterator[list[int]]:
    """The generation of each look that begins."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.unfreeze()  # what the suite has frozen
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.enable()
    gc.freeze()


def _make_many() -> list[list[int]]:
    return [[one] for one in range(10 * gc.get_threshold()[0])]


def test_nothing_is_looked_through_inside(looks: list[int]) -> None:
    """However much is made there; afterwards as before."""
    with no_collections():
        _make_many()
        assert looks == []
    _make_many()
    assert looks


def test_what_stays_is_no_reason_to_look(looks: list[int]) -> None:
    """It is old from the start: the first call that makes enough would look through it all, else."""
    with no_collections(stays=True):
        made = _make_many()
    assert looks == []
    assert id(made) in map(id, gc.get_objects(generation=2))
    assert gc.get_count()[0] < gc.get_threshold()[0]


def test_what_does_not_stay_is_looked_through_as_ever(looks: list[int]) -> None:
    """As young."""
    with no_collections():
        made = _make_many()
    assert id(made) not in map(id, gc.get_objects(generation=2))
    _make_many()
    assert looks


def test_what_the_program_has_frozen_stays_so(looks: list[int]) -> None:
    """Nothing is put elsewhere."""
    gc.freeze()
    frozen = gc.get_freeze_count()
    with no_collections(stays=True):
        _make_many()
    assert gc.get_freeze_count() == frozen


def test_an_error_leaves_it_on(looks: list[int]) -> None:
    """It is raised, and what comes then is looked through again."""
    with pytest.raises(KeyError), no_collections():
        raise KeyError
    assert gc.isenabled()


def test_a_program_that_looks_for_itself_goes_on_so(looks: list[int]) -> None:
    """It stays off, and nothing is looked through."""
    gc.disable()
    with no_collections(stays=True):
        pass
    assert not gc.isenabled()
    assert looks == []


def test_imports_are_no_reason_to_look(looks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """They make some hundred thousand objects that stay."""
    monkeypatch.setattr("importlib.import_module", lambda name: _make_many())
    Imports(["a", "b"]).begin()
    assert looks == []
    assert gc.get_count()[0] < gc.get_threshold()[0]


def test_the_last_who_holds_them_back_lets_them_come(looks: list[int]) -> None:
    """Another thread may have begun in between, and records a graph, say."""
    one, other = no_collections(stays=True), no_collections()
    one.__enter__()
    other.__enter__()
    made = _make_many()
    one.__exit__(None, None, None)
    assert not gc.isenabled()
    assert looks == []
    other.__exit__(None, None, None)
    assert gc.isenabled()
    assert looks == []
    assert id(made) in map(id, gc.get_objects(generation=2))
