"""A process of our own, from both ends."""

from __future__ import annotations

import os
import re
from pathlib import Path

from shapedispatch.background.process import end, start

SAYS = "import os; os.write(int(sys.argv[2]), f'{os.getpgid(0)} {os.getsid(0)}'.encode()); sys.stdin.read()"


def test_it_leads_a_group_in_this_session() -> None:
    """A group, to be ended as a whole; the session, so that how nice it is counts against what runs here."""
    process, replies = start(SAYS)
    try:
        assert os.read(replies, 100).decode() == f"{process.pid} {os.getsid(0)}"
    finally:
        end(process, replies)
    assert process.returncode == -9


LAST_ONE = """
import types
from shapedispatch.background.child_main import LastAnswer, main
def handle(job):
    raise LastAnswer(job.upper())
sys.modules["handlers"] = handlers = types.ModuleType("handlers")
handlers.handle = handle
main(sys.argv[2], "handlers:handle")
"""


def test_a_last_answer_is_told_as_such(tmp_path: Path) -> None:
    """With what it took of a processor."""
    process, replies = start(LAST_ONE)
    try:
        (tmp_path / "job").write_bytes(b"a")
        assert process.stdin is not None
        os.write(process.stdin.fileno(), f"{tmp_path / 'job'}\n".encode())
        assert re.fullmatch(rb"\d+\.\d\d last\n", os.read(replies, 100))
        assert (tmp_path / "job.answer").read_bytes() == b"A"
    finally:
        end(process, replies)
