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

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.enable()


def _make_many() -> list[list[int]]:
    return [[one] for one in range(10 * gc.get_threshold()[0])]


def test_nothing_is_looked_through_inside(looks: list[int]) -> None:
    """However much is made there; afterwards as before."""
    with no_collections():
        _make_many()
        assert looks == []
    _make_many()
    assert looks


def test_all_is_looked_through_once_behind_it(looks: list[int]) -> None:
    """Else the first call that makes enough would do it."""
    with no_collections(then_all=True):
        _make_many()
    assert looks == [2]


def test_an_error_leaves_it_on(looks: list[int]) -> None:
    """It is raised, and what comes then is looked through again."""
    with pytest.raises(KeyError), no_collections():
        raise KeyError
    assert gc.isenabled()


def test_a_program_that_looks_for_itself_goes_on_so(looks: list[int]) -> None:
    """It stays off, and nothing is looked through."""
    gc.disable()
    with no_collections(then_all=True):
        pass
    assert not gc.isenabled()
    assert looks == []


def test_imports_are_looked_through_once(looks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """They make some hundred thousand objects that stay."""
    monkeypatch.setattr("importlib.import_module", lambda name: _make_many())
    Imports(["a", "b"]).begin()
    assert looks == [2]


def test_the_last_who_holds_them_back_lets_them_come(looks: list[int]) -> None:
    """Another thread may have begun in between, and records a graph, say."""
    one, other = no_collections(then_all=True), no_collections()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert not gc.isenabled()
    assert looks == []
    other.__exit__(None, None, None)
    assert gc.isenabled()
    assert looks == [2]
