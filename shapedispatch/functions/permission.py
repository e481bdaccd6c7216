"""What a function's effects leave open: whether it may be timed, whether it may be built, what ranks do."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import torch

from ..effects import Effects
from ..keys.tree import overlap, overlaps_itself, tensors

__all__ = ["may_involve_ranks", "what_timing_may_touch", "why_no_builds"]

_ARGUMENT = re.compile(r"[.\[]")
"""What ends the name of an argument where one names a part of it."""


def may_involve_ranks(effects: Effects) -> bool:
    """Whether other ranks may take part in it: then which variant runs is not for one of them to choose."""
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    return bool(effects.collectives) or (several and bool(effects.unknown))


def what_timing_may_touch(
    effects: Effects, mutates: Collection[str] | None
) -> tuple[Collection[str] | None, str | None]:
    """Which arguments plain writes, and why it may not be run for timing, if so; ``mutates`` is the decoration's."""
    if effects.collectives:
        return None, f"it performs collectives ({effects.collectives[0]}), which other ranks may not be timing"
    if mutates is not None:
        return mutates, None
    if effects.mutated is None or effects.unknown:
        unknown = "what it does beside returning a value is unknown (name what it writes with mutates=)"
        return effects.mutated, f"{unknown}: {effects.unknown}"
    if effects.other_writes:
        return None, f"running it again would be seen: {effects.other_writes[0]}"
    return effects.mutated, None


def why_no_builds(
    effects: Effects, args: tuple[Any, ...], kwargs: Mapping[str, Any], named: Mapping[str, Any]
) -> str | None:
    """A build is made from arguments that share no memory, and may reorder what the function does.

    Of a tensor two of whose elements are one, what was written last stays, which on a GPU is another for other code.
    """
    if (why := effects.why_no_builds()) is not None:
        return why
    assert effects.mutated is not None
    if effects.mutated and overlap(args, kwargs):
        return f"it writes {sorted(effects.mutated)[0]}, and arguments share memory"
    for name in sorted(effects.mutated):
        if any(map(overlaps_itself, tensors(named.get(_ARGUMENT.split(name, 1)[0])))):
            return f"it writes {name}, and elements of it share memory"
    return None
