"""Rows as data, and the strict reading of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shapedispatch.keys.identity import differences
from shapedispatch.records import Timing
from shapedispatch.store import rows as store_rows
from shapedispatch.store.key_text import canonical, numbers
from shapedispatch.store.rows import (
    BODY_LIMIT,
    SCHEMA,
    BadRow,
    Row,
    identity_of,
    key_in,
    rows_from_file,
    rows_to_file,
)

HARD = {"family": "cuda", "capability": "9.0"}
PARTS = st.dictionaries(st.text(max_size=8), st.text(max_size=8) | st.integers(), max_size=4)
TIMES = st.floats(0, 1e12)
TIMINGS = st.builds(Timing, st.text(max_size=8), TIMES, TIMES, st.integers(0), st.none() | st.integers(0))
ROWS = st.builds(
    Row.make,
    st.text(max_size=20),
    st.text(max_size=50),
    hard=PARTS,
    soft=PARTS,
    variant=st.text(max_size=20),
    config=st.none() | st.just('{"num_warps":4}'),
    timings=st.lists(TIMINGS, max_size=3),
    kind=st.sampled_from(["choice", "hint", "missed"]),
)


def a_row(**changes: Any) -> Row:
    """An ordinary row, with changes."""
    parts: dict[str, Any] = {"hard": HARD, "soft": {"torch": "2"}, "variant": "exact", **changes}
    return Row.make("kernel", "[1,2]", timings=[Timing("plain", 2.0, 0.1, 9), Timing("exact", 1, 0, 9, 64)], **parts)


@given(ROWS)
def test_a_row_survives_the_way_there_and_back(row: Row) -> None:
    """Bytes and files give back the very row."""
    assert Row.from_bytes(row.to_bytes()) == row
    assert rows_from_file(rows_to_file([row]).encode()) == ([row], ())


@given(ROWS, st.data())
def test_a_changed_byte_is_refused(row: Row, data: st.DataObject) -> None:
    """Wherever a byte changes, the row is no row."""
    body = bytearray(row.to_bytes())
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadRow):
        Row.from_bytes(bytes(body))


@given(st.data())
def test_a_cut_row_is_refused(data: st.DataObject) -> None:
    """A row that ends early is no row."""
    body = a_row().to_bytes()
    with pytest.raises(BadRow):
        Row.from_bytes(body[: data.draw(st.integers(0, len(body) - 1))])


@given(st.none() | st.integers() | st.text() | st.binary() | st.lists(st.integers()) | st.floats())
def test_anything_else_is_refused(body: object) -> None:
    """What is no row is a BadRow and no other error."""
    with pytest.raises(BadRow):
        Row.from_bytes(body)
    with pytest.raises(BadRow):
        Row.from_json(body)


FORGED: list[tuple[str, object]] = [
    ("schema", SCHEMA + 1),
    ("schema", True),
    ("kind", "code"),
    ("kind", ["choice"]),
    ("kernel", 1),
    ("kernel", "k" * 2000),
    ("key", None),
    ("key_sha256", "0" * 64),
    ("checksum", "0" * 64),
    ("hard", []),
    ("hard", {"a": 1.5}),
    ("hard", {"a": True}),
    ("hard", {"a": None}),
    ("soft", {str(n): n for n in range(100)}),
    ("variant", None),
    ("config", 3),
    ("config", "not json"),
    ("config", "NaN"),
    ("timings", {}),
    ("timings", [["plain", 1.0, 0.0, 1]]),
    ("timings", [["plain", -1.0, 0.0, 1, None]]),
    ("timings", [["plain", "1", 0.0, 1, None]]),
    ("timings", [["plain", 1.0, 0.0, 1.5, None]]),
    ("timings", [["plain", 1.0, 0.0, 1, -4]]),
    ("timings", [[None, 1.0, 0.0, 1, None]]),
    ("timings", [["plain", True, 0.0, 1, None]]),
    ("timings", [["plain", 1.0, 0.0, 1, None]] * 2000),
]


@pytest.mark.parametrize(("part", "value"), FORGED)
def test_a_forged_part_is_refused_even_with_a_right_checksum(part: str, value: object) -> None:
    """Types, sizes and ranges are checked beside the checksum, which anybody can compute."""
    parts = {**a_row().to_json(), part: value}
    if part != "checksum":
        unsigned = {name: part for name, part in parts.items() if name != "checksum"}
        parts["checksum"] = store_rows._sha256(store_rows._dump(unsigned))
    with pytest.raises(BadRow):
        Row.from_json(parts)


def test_missing_and_unknown_parts_are_refused() -> None:
    """A row has its parts, no fewer and no more."""
    parts = a_row().to_json()
    with pytest.raises(BadRow, match="parts"):
        Row.from_json({**parts, "import": "os"})
    del parts["variant"]
    with pytest.raises(BadRow, match="parts"):
        Row.from_json(parts)


def test_a_time_that_is_no_number_cannot_be_stored() -> None:
    """Neither nan nor infinity is a timing."""
    for time in (float("nan"), float("inf")):
        with pytest.raises(BadRow):
            Row.make("k", "1", hard={}, soft={}, variant="v", timings=[Timing("v", time, 0.0, 1)])


def test_a_row_that_is_too_large_cannot_be_made() -> None:
    """The bound on a row holds when it is made, not only when it is read."""
    with pytest.raises(BadRow, match="bytes"):
        Row.make("k", "1" * BODY_LIMIT, hard={}, soft={}, variant="v")


def test_a_row_that_is_too_large_is_refused_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no store takes is not taken from a file either."""
    text = rows_to_file([a_row()])
    monkeypatch.setattr(store_rows, "BODY_LIMIT", 100)
    rows, refused = rows_from_file(text.encode())
    assert rows == []
    assert len(refused) == 1
    assert "a store takes 100" in refused[0]


def test_a_spelling_that_json_allows_is_refused() -> None:
    """One row has one sequence of bytes: spaces and other orders are not ours."""
    parts = a_row().to_json()
    with pytest.raises(BadRow, match="canonical"):
        Row.from_bytes(json.dumps(parts).encode())


def test_identity_leaves_the_soft_parts_out() -> None:
    """There is one row for a key on a kind of device, whatever the driver."""
    row = a_row()
    assert row.identity == a_row(soft={"torch": "3"}).identity == identity_of("choice", "kernel", "[1,2]", HARD)
    others = [a_row(kind="hint"), a_row(hard={**HARD, "capability": "8.0"}), replace(row, kernel="k", key="ernel[1,2]")]
    assert len({row.identity, *(other.identity for other in others)}) == 4


def test_a_file_is_the_same_for_the_same_rows() -> None:
    """Sorted, one part a line: two exports can be compared."""
    rows = [a_row(), a_row(kind="hint"), a_row(hard={"family": "cpu"})]
    text = rows_to_file(rows)
    assert text == rows_to_file(reversed(rows))
    assert '"variant": "exact"' in {line.strip().rstrip(",") for line in text.splitlines()}


def test_a_bad_row_in_a_file_is_refused_with_its_place() -> None:
    """The others are taken."""
    rows = [a_row(), a_row(kind="hint")]
    content = json.loads(rows_to_file(rows))
    content["rows"][0]["variant"] = "other"
    good, refused = rows_from_file(json.dumps(content).encode())
    assert good == rows[1:]
    assert refused == ("row 1: a row's checksum does not fit its content",)


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"{}", b'{"format": "shapedispatch choices"}', b'{"format": 1, "rows": []}']
)
def test_another_file_is_refused(content: bytes) -> None:
    """What is no export is a BadRow."""
    with pytest.raises(BadRow):
        rows_from_file(content)


def test_a_file_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not even parsed."""
    monkeypatch.setattr(store_rows, "FILE_LIMIT", 10)
    with pytest.raises(BadRow, match="more than 10 bytes"):
        rows_from_file(rows_to_file([]).encode())


def test_an_undecided_row_is_one_of_other_conditions_to_earlier_releases() -> None:
    """They know its parts, read it, and time the call again as they do where a condition differs."""
    row = a_row(undecided="2 samples")
    assert row.to_json().keys() == a_row().to_json().keys()
    assert row.schema == SCHEMA
    assert differences(row.soft, a_row().soft) == (
        "undecided was 2 samples when this was stored and is not known here",
    )


def test_that_a_row_is_undecided_is_none_of_its_conditions() -> None:
    """Nor is it part of what there is one row of."""
    row = a_row(undecided="2 samples")
    assert (row.undecided, row.conditions, row.identity) == ("2 samples", a_row().soft, a_row().identity)
    assert (a_row().undecided, a_row().conditions) == ("", a_row().soft)


def test_the_numbers_of_a_key_are_read_without_the_row() -> None:
    """Those of no other part of it, whatever the texts in the key hold; nothing of what is no row."""
    text = canonical((('a "quoted" \\ text', 7), torch.Size([640, 64])))
    assert numbers(key_in(Row.make("kernel", text, hard=HARD, soft={"torch": "2"}, variant="99").to_bytes())) == {
        7,
        640,
        64,
    }
    assert [key_in(body) for body in (b"", b"{}", b'"key":"', None, "7")] == [""] * 5
