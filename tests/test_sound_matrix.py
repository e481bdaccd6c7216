"""The pairwise matrix: no two calls that differ in an attribute, or in two, have one key."""

from __future__ import annotations

from itertools import combinations

from tests.attributes import ATTRIBUTES, Recipe, all_attributes

BASE = Recipe()

# The second argument being the first, nothing else can be said of it.
EXCLUDE = {("dtype of y", "identity"), ("alignment of y", "identity"), ("kind of y", "identity")}
NO_MEMORY = ("layout of x", "none")  # and so no alignment


def test_there_are_enough_attributes() -> None:
    """At least 40, of at least 15 kinds."""
    assert len(all_attributes()) >= 40
    assert len(ATTRIBUTES) >= 15


def test_no_attribute_is_ignored_and_no_two_are_confused() -> None:
    """Each alone makes a key of its own, other than the key of the call without it."""
    found = {BASE.key(): "the call without any"}
    for group, name, change in all_attributes():
        key = change(BASE).key()
        assert key not in found, f"{group}, {name}: the key of {found[key]}"
        found[key] = f"{group}, {name}"


def test_no_pair_of_attributes_is_confused() -> None:
    """Any two together make a key of their own, other than that of either alone and of every other pair."""
    found = {change(BASE).key(): f"{group}, {name}" for group, name, change in all_attributes()}
    pairs = 0
    for one, other in combinations(all_attributes(), 2):
        if one[0] == other[0] or (one[0], other[0]) in EXCLUDE:
            continue
        if one[:2] == NO_MEMORY and other[0] == "alignment of x":
            continue
        key = other[2](one[2](BASE)).key()
        name = f"{one[:2]} with {other[:2]}"
        assert key not in found, f"{name}: the key of {found[key]}"
        found[key] = name
        pairs += 1
    assert pairs > 2000


def test_the_matrix_is_not_vacuous() -> None:
    """The same attribute twice makes the same key: keys differ for what differs, not by accident."""
    for group, name, change in all_attributes():
        assert change(BASE).key() == change(BASE).key(), f"{group}, {name}"
    for one, other in combinations(all_attributes()[::7], 2):
        if one[0] != other[0]:
            assert other[2](one[2](BASE)).key() == other[2](one[2](BASE)).key()
