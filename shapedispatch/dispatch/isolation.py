"""Candidates that must survive in a worker before they run here, and what is remembered of those that were tried."""

from __future__ import annotations

from collections.abc import Callable

from ..backend import Errand
from .context import Case

__all__ = ["judge"]


def judge(case: Case) -> Callable[[str, Errand | None], str | None] | None:
    """What tries a variant in a worker first, and says why it is not to run here, if so; None where none is tried.

    One that took the worker with it is not tried anew. What has no address in a module cannot be tried and is refused:
    nothing runs here that did not survive there.
    """
    where = case.where
    if where is None:
        return None

    def why_not(variant: str, errand: Errand | None = None) -> str | None:
        if isinstance(where, str):
            return where
        name = errand.variant if errand is not None else variant
        for fact in (("deadly", name), ("tried", name, case.key)):
            known = case.table.recall(fact)
            if known is not None:
                return known or None
        names, limit = tuple(case.backend.arguments(case.args, case.kwargs)), case.settings.copy_limit
        errand = errand or Errand(variant, None, case.args, case.kwargs)
        reason, deadly = case.worker().why_not(where, errand, names, limit)
        case.table.remember(("deadly", name) if deadly else ("tried", name, case.key), reason or "")
        return reason

    return why_not
