"""What runs in a process of ours: it reads where a job lies, does it, writes the answer beside it, and says so.

What it says is how many seconds of a processor that took, with what it has started for it; and whether it was the
last that it can do.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["LAST", "LastAnswer", "answer_path", "main"]

LAST = b" last"


class LastAnswer(Exception):
    """Raised by a handler with its answer, where this process is of no use after it."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer: bytes = answer


def answer_path(job: str) -> str:
    """Where the answer to the job in this file lies."""
    return f"{job}.answer"


def main(pipes: tuple[int, int], handler: str) -> None:
    """Answer until there are no more jobs; ``handler`` is ``module:name`` of a function from bytes to bytes.

    ``pipes`` are as `process.own_pipes` gives them.
    """
    replies, requests = pipes
    module, _, name = handler.partition(":")
    handle = getattr(importlib.import_module(module), name)
    told_s = 0.0
    with os.fdopen(requests, "rb", buffering=0) as stream:
        for line in iter(stream.readline, b""):
            goes_on = _answer(line.decode().rstrip("\n"), handle)
            spent_s = sum(os.times()[:4])
            os.write(replies, f"{spent_s - told_s:.2f}".encode() + (b"" if goes_on else LAST) + b"\n")
            told_s = spent_s


def _answer(job: str, handle: Callable[[bytes], bytes]) -> bool:
    """Write the answer to a job, whole or not at all; whether others can be done."""
    goes_on = True
    try:
        answer = handle(Path(job).read_bytes())
    except LastAnswer as last:
        answer, goes_on = last.answer, False
    unfinished = Path(f"{job}.part")
    unfinished.write_bytes(answer)
    unfinished.rename(answer_path(job))
    return goes_on
