"""The list of mutations: what each of them takes out is there."""

from __future__ import annotations

from tests.mutations import MUTATIONS, ROOT


def test_each_text_stands_once_in_its_file() -> None:
    """Where code has moved, its mutation would take nothing out, and nobody would see that no test is red."""
    texts = {one.file: (ROOT / "shapedispatch" / one.file).read_text("utf-8") for one in MUTATIONS}
    assert [(one.file, one.text) for one in MUTATIONS if texts[one.file].count(one.text) != 1] == []
