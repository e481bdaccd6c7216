"""What may make a build invalid that no key holds: a guard, asked before a build serves a call, and at each hit."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Guard"]


class Guard(Protocol):
    """Something that was so when a build was made, and must be so when it runs."""

    def failed(self) -> str | None:
        """What is otherwise now, as a sentence for a person; None where nothing is."""

    def check(self) -> bool:
        """Whether all is as it was, for a hit."""
