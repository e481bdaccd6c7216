"""Candidates that must survive in a worker before they run here, and what is remembered of those that were tried."""

from __future__ import annotations

from collections.abc import Callable

from ..backend import TrialRequest
from .context import MissContext

__all__ = ["judge"]


def judge(ctx: MissContext) -> Callable[[str, TrialRequest | None], str | None] | None:
    """What tries a variant in a worker first, and says why it is not to run here, if so; None where none is tried.

    One that took the worker with it is not tried anew. What has no address in a module cannot be tried and is refused:
    nothing runs here that did not survive there.
    """
    where = ctx.where
    if where is None:
        return None

    def why_not(variant: str, trial_request: TrialRequest | None = None) -> str | None:
        if isinstance(where, str):
            return where
        name = trial_request.variant if trial_request is not None else variant
        deadly, survived = ctx.table.facts.deadly, ctx.table.facts.survived
        known = deadly.get(name) or survived.get((name, ctx.key))
        if known is not None:
            return known or None
        names, limit = tuple(ctx.backend.arguments(ctx.args, ctx.kwargs)), ctx.settings.copy_limit
        trial_request = trial_request or TrialRequest(variant, None, ctx.args, ctx.kwargs)
        reason, ended = ctx.worker().why_not(where, trial_request, names, limit)
        if ended and reason:
            deadly[name] = reason
        else:
            survived[name, ctx.key] = reason or ""
        return reason

    return why_not
