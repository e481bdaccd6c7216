"""What every test gets is what it should be, whatever ran before."""

from __future__ import annotations

import os

import pytest

from tests.conftest import FOR_TESTS


@pytest.fixture(scope="class")
def found() -> list[str]:
    """The settings in the environment of a fixture that is made before a test's own."""
    return [name for name in os.environ if name.startswith("SHAPEDISPATCH_")]


def test_a_test_may_set_what_it_wants() -> None:
    """As scripts do that are run within a test; and nobody takes it back."""
    os.environ["SHAPEDISPATCH_STORE"] = "false"


class TestAfterIt:
    """The next test, with a fixture of a wider scope."""

    def test_what_a_test_has_set_is_gone(self, found: list[str]) -> None:
        """From the environment, where other processes would inherit it."""
        assert set(found) == set(FOR_TESTS)
