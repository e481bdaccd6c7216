"""What every test gets is what it should be, whatever ran before."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from tests.conftest import FOR_TESTS, SLOW

ROOT = Path(__file__).parent.parent


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


def test_what_is_called_slow_is_there() -> None:
    """By file and function: a line of a test that went would be nobody's."""
    named = {line.split("[")[0] for line in SLOW if line and not line.startswith("#")}
    files = {name.split("::")[0] for name in named}
    defined = {
        f"{file}::{node.name}"
        for file in files
        for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert {"::".join([name.split("::")[0], name.split("::")[-1]]) for name in named} <= defined
