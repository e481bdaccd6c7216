"""What others rely on is as it was: `docs/public_api.txt` has a line for all of it."""

from __future__ import annotations

from docs import draw_public_api as script

KNOWN = script.FILE.read_text("utf-8").splitlines()


def test_nothing_public_is_gone_or_other() -> None:
    """A name, a parameter, a default, a setting, an option: it stays, with a DeprecationWarning, for a release.

    Where it is to go, or was never released: ``python -m docs.draw_public_api``, and a line in the changelog.
    """
    assert [line for line in KNOWN if line not in set(script.lines())] == []


def test_what_is_new_is_public_on_purpose() -> None:
    """It is in the file, and so in what a reviewer reads: ``python -m docs.draw_public_api``."""
    assert [line for line in script.lines() if line not in KNOWN] == []


def test_all_kinds_of_things_are_in_the_file() -> None:
    """Functions, classes, fields, methods, properties, settings, variables, commands and their options."""
    assert "class MissError(ShapeDispatchError, Exception)" in KNOWN
    assert "Refusal.reasons: tuple[str, ...]" in KNOWN
    assert "Store.path: Path" in KNOWN
    assert "sync(group=None, timeout: float = 300.0) -> list[Choice]" in KNOWN
    assert any(line.startswith("shapedispatch(fn=None, /, *, dims=None, ") for line in KNOWN)
    assert "setting exact: true or false" in KNOWN
    assert "environment SHAPEDISPATCH_MODE" in KNOWN
    assert any(line.startswith("command shapedispatch store export FILE ") for line in KNOWN)
