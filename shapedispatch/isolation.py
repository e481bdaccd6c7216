"""Candidates that must survive in a worker before they run here, and what is remembered of those that were tried."""

from __future__ import annotations

from collections.abc import Callable

from .cases import Case

__all__ = ["judge"]


def judge(case: Case) -> Callable[[str], str | None] | None:
    """What tries a variant in a worker first, and says why it is not to run here, if so; None where none is tried.

    One that took the worker with it is not tried anew. What has no address in a module cannot be tried and is refused:
    nothing runs here that did not survive there.
    """
    where = case.where
    if where is None:
        return None

    def why_not(variant: str) -> str | None:
        if isinstance(where, str):
            return where
        for fact in (("deadly", variant), ("tried", variant, case.key)):
            known = case.table.recall(fact)
            if known is not None:
                return known or None
        names, limit = tuple(case.backend.arguments(case.args, case.kwargs)), case.settings.copy_limit
        reason, deadly = case.worker().why_not(where, variant, case.args, case.kwargs, names, limit)
        case.table.remember(("deadly", variant) if deadly else ("tried", variant, case.key), reason or "")
        return reason

    return why_not
