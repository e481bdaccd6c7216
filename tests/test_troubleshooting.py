"""The page of messages has each warning and error that the code can raise, and none that it cannot."""

from __future__ import annotations

import re
from pathlib import Path

from tests import messages
from tests.messages import VARIES, Told, fits

PAGE = Path(__file__).parent.parent / "docs" / "troubleshooting.md"
PATTERNS = [
    row.split(" | ")[0].removeprefix("| ").strip("`")
    for row in PAGE.read_text("utf-8").splitlines()
    if row.startswith("| `")
]

# What is told elsewhere than where it is made, or is no matter of a user's: the file, and why it is not on the page.
NOT_ON_THE_PAGE = {
    "store/rows.py": "what is wrong with a row is shown behind one of the sentences on the page",
    "store/key_text.py": "the same",
    "store/switches.py": "the same",
    "store/sqlite.py": "the same",
    "store/folder.py": "the same",
    "store/artifacts.py": "the same",
    "ranks/report.py": "the same, of what another rank has sent",
    "functions/checks/graph_check.py": "why a build is not judged by its graph: it is judged on the call",
    "functions/checks/given.py": "the same",
    "functions/compile/remote.py": "the same",
    "functions/checks/shadow.py": "the same",
    "functions/parts/cut.py": "why a graph is not cut is shown behind one of the sentences on the page",
}


def told() -> list[Told]:
    """What the page is to have: what is said in words of the package's own."""
    found = [one for one in messages.told() if messages.says_something(one.text)]
    return [one for one in found if one.place.split(":")[0] not in NOT_ON_THE_PAGE]


def test_each_message_is_on_the_page() -> None:
    """With what it means and what to do."""
    assert [one for one in told() if not any(fits(pattern, one.text) for pattern in PATTERNS)] == []


def test_each_message_on_the_page_is_one_of_the_code() -> None:
    """What was reworded in the code is reworded here."""
    assert [pattern for pattern in PATTERNS if not any(fits(pattern, text) for text in messages.literals())] == []


def test_each_file_that_is_left_out_tells_something() -> None:
    """And is there."""
    assert NOT_ON_THE_PAGE.keys() <= {one.place.split(":")[0] for one in messages.told()}


SHORTEST = 7  # letters


def test_patterns_are_no_few_letters() -> None:
    """One that fits everything would hide what is not there; of the shortest, each is known."""
    short = {pattern for pattern in PATTERNS if len(re.sub(r"\W", "", pattern.replace(VARIES, ""))) < SHORTEST}
    assert short == {"… has no …"}


def test_the_texts_of_the_code_are_seen() -> None:
    """Through names, in parts, and as the second of four."""
    places = [one.place for one in told()]
    assert len(places) > 150
    assert {"hit/log.py: warn_supplied", "settings/resolve.py: _allowed", "kernels/backend.py: at_once"} <= set(places)
