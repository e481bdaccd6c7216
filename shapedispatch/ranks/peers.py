"""Whether the ranks of a job are one program on like devices: who differs is told by name, with what differs."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..keys.identity import compared, environment
from .report import Parts, Report

__all__ = ["differing", "place_here"]


def place_here() -> Parts:
    """Libraries and device of this process: a GPU's where the program has begun to use one, else the CPU's."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    here = environment(torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu"))
    return {**here.hard, **here.soft}


def differing(reports: Mapping[int, Report]) -> list[str]:
    """A sentence for each thing in which a rank differs from the first; none where all are alike."""
    (first, ours), *others = sorted(reports.items())
    found = []
    for rank, theirs in others:
        found += [_sentence(what, rank, there, first, here) for what, there, here in compared(theirs.place, ours.place)]
        found += _code_differing(rank, theirs, first, ours)
        if theirs.history != ours.history:
            found.append(f"rank {rank} has not adopted what rank {first} has: it left out an exchange, or began anew")
    return found


def _code_differing(rank: int, theirs: Report, first: int, ours: Report) -> list[str]:
    """Of dispatchers of one name none of which is the same; a rank that has none of that name differs in nothing."""
    found = []
    for name in sorted({kernel.name for kernel in theirs.kernels.values()}):
        there, here = ({label for label, k in one.kernels.items() if k.name == name} for one in (theirs, ours))
        if here and not here & there:
            pair = theirs.kernels[min(there)].identity, ours.kernels[min(here)].identity
            found += [_sentence(f"{name}: {what}", rank, a, first, b) for what, a, b in compared(*pair)]
    return found


def _sentence(what: str, rank: int, there: str, first: int, here: str) -> str:
    return f"{what} is {there} on rank {rank}, and {here} on rank {first}"
