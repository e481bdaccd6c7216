"""A kernel's key that is learned in the background: it launches the first config meanwhile, and C takes most launches.

What a launch takes the device is seen by events around one in many; the host's clock shows nothing of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..background.account import Allowance
from ..choices.context import MissContext
from ..hit.native import launch_turns
from ..hit.turns import LaunchTurns
from .background import Waiting, account_of, published, remembered

__all__ = ["WaitingLaunches", "in_launches"]

MOST_IN_C = 1024
"""After so many launches it is looked at least whether there is something better."""


@dataclass(slots=True, eq=False)
class WaitingLaunches(Waiting):
    """What a kernel's key runs meanwhile; ``form`` is how its calls are written, beside their grid."""

    form: tuple[int, tuple[str, ...]] = (0, ())
    call_form: Callable[..., Any] = tuple
    launch_s: float = 0.0
    """What a launch takes the host or the device, whichever is longer."""
    turns: LaunchTurns | None = field(default=None, init=False)

    def at_hits(self) -> Callable[..., Any]:
        """See `Waiting.at_hits`."""
        self.turns = launch_turns(self, self.launch, [self.run])
        return self.turns or self

    def launch(self, grid: Any, values: tuple[Any, ...], raw: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """A hit: launch it once, having looked first whether there is something better, if that is due."""
        turns = self.turns
        if turns is not None:
            self._note(turns)
        call = (self.call_form(grid, *self.form), *raw)
        run = self._run_of(call, options)
        launch = getattr(run, "launch", None)
        began_s = self.clock_s()
        try:
            return run(*call, **options) if launch is None else launch(grid, values, raw, options)
        finally:
            took_s = self.clock_s() - began_s
            self._spent(max(took_s, self.launch_s))
            if turns is not None and turns.left == 0:
                self._go_on(turns, took_s)

    def _note(self, turns: LaunchTurns) -> None:
        """Take in what C has launched since the last time, and what one of those took."""
        for _, _, host_ns, device_us, _, _ in turns.collect():
            self.launch_s = max(host_ns * 1e-9, device_us * 1e-6)
        self._spent(turns.taken * self.launch_s)
        turns.begin(())

    def _go_on(self, turns: LaunchTurns, took_s: float) -> None:
        """Leave launches to C for about as long as no look is due; the last of them is a sample."""
        launcher = self.run.launcher  # type: ignore[attr-defined]  # a kernel's, without which there are no turns
        left_s = self.polls_s - self.spent_s
        count = max(0, min(MOST_IN_C, int(left_s / max(took_s, self.launch_s, 1e-9))))
        turns.begin((*(((launcher, None, count),) if count else ()), (launcher, self, 1)))


def in_launches(ctx: MissContext) -> MissContext:
    """A kernel's miss; in the background one that is decided among what there is at once: the rest is for later calls.

    Its first config is compiled in the call: without that nothing could run it.
    """
    core = ctx.core
    if not core.in_background():
        return ctx
    form = ctx.args[0]
    family, _, _ = core.backend.observed(ctx.args, ctx.kwargs, ctx.key, core.table)
    account = account_of(core, family)
    _, spent_s = remembered(ctx)
    account.spent_s, account.noted_s = account.spent_s + spent_s, account.noted_s + spent_s
    waiting = WaitingLaunches(core, ctx.key, account, core.backend.plain, ctx.device, spent_s=spent_s)
    waiting.form, waiting.call_form, waiting.news = tuple(form[1:]), type(form), account.news
    waiting.leave_alone()  # this call has had its share
    orders = core.orders()
    allowance = Allowance(core.table.log, orders, account, False, False, core.earn(), made_up=True)
    settings = replace(ctx.settings, judge="online")
    return replace(ctx, settings=settings, later=allowance, kept=functools.partial(published, waiting, allowance))
