"""A process of our own, from both ends."""

from __future__ import annotations

import os

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
