from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest

from shapedispatch.hit import watchers
from shapedispatch.hit.native import use_watchers
from shapedispatch.hit.watchers import watchers_are_reliable
from tests.paths import NO_COMPILER, c_module


class Teller:
    """Tells of every change of a dict by looking at it, but for those ``deaf`` to which it is."""

    def __init__(self, deaf: Any = lambda names, before: False) -> None:
        self.deaf = deaf
        self.count = 0
        self.known: dict[int, dict[str, Any]] = {}

    def __call__(self, names: Mapping[str, Any]) -> int:
        """See `watchers.Changed`."""
        before = self.known.get(id(names), {})
        if dict(names) != before and not self.deaf(dict(names), before):
            self.count += 1
        self.known[id(names)] = dict(names)
        return self.count


def test_where_all_is_told_it_is_found() -> None:
    """Of each kind of owner, by each way."""
    assert watchers_are_reliable(Teller())


@pytest.mark.parametrize(
    "deaf",
    [
        lambda names, before: "it" in names and "it" in before,
        lambda names, before: "it" in names and "it" not in before,
        lambda names, before: "it" not in names and "it" in before,
        lambda names, before: names.get("it") == 99,
        lambda names, before: len(names) > 64,
        lambda names, before: "__spec__" in names,
    ],
    ids=["changes", "additions", "deletions", "the last one", "many attributes", "modules"],
)
def test_where_one_way_is_not_told_none_is_relied_on(deaf: Any) -> None:
    """A value of which nobody is told would be a stale answer."""
    assert not watchers_are_reliable(Teller(deaf))


def test_nothing_is_left_in_this_module() -> None:
    """The ways are tried on owners made for it."""
    watchers_are_reliable(Teller())
    assert not hasattr(watchers, "it")


@pytest.mark.skipif(NO_COMPILER is not None, reason=NO_COMPILER or "")
def test_c_is_told_where_this_python_tells() -> None:
    """Each version but 3.13.0 tells of everything: up to 3.11 by a dict's version, then by a watcher."""
    module = c_module()
    try:
        assert module.use_watchers(True)
        names: dict[str, int] = {}
        before = module.changed(names)
        assert module.changed(names) == before
        names["x"] = 1
        assert module.changed(names) > before
        if sys.version_info[:3] != (3, 13, 0):
            assert watchers_are_reliable(module.changed)
    finally:
        use_watchers(module)


class Module:
    """A C module whose listener misses deletions, or nothing."""

    def __init__(self, deaf: bool) -> None:
        self.changed = Teller((lambda names, before: "it" not in names) if deaf else Teller().deaf)
        self.listening = False

    def use_watchers(self, on: bool) -> bool:
        """See `_native.use_watchers`."""
        self.listening = on
        return on


@pytest.mark.parametrize("deaf", [False, True])
def test_c_listens_only_where_all_is_told(deaf: bool) -> None:
    """Else it looks for changes at each hit."""
    module = Module(deaf)
    use_watchers(module)
    assert module.listening == (not deaf)
