"""What runs in a worker: it makes the variant that it is asked for, runs it once, and says what came of it.

Left alone it ends itself: when the other end of its pipe closes, when nothing is asked for a while, and, by a timer of
the system's, when a try takes longer than it may.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import select
import signal
from collections.abc import Mapping
from typing import Any

import torch

from ..backend import OfferRequest
from ..errors import in_a_line
from ..keys.tree import tensors
from ..settings.modes import set_mode
from .measure import device_answers
from .trial import Trial

__all__ = ["IMPORT", "SPOILT", "attribute", "main"]

IDLE_S = 300.0
"""After how long without a try a worker ends itself."""

IMPORT = b"import\n"
"""A request of its own, before the first of those that compile."""

SPOILT = "its device answers no more"
"""A reason beside another: after an illegal access nothing runs on a device, in the process that made it."""


def attribute(holder: Any, name: str) -> Any:
    """What stands under a qualified name; None where nothing does."""
    for part in name.split("."):
        holder = getattr(holder, part, None)
    return holder


def main(pipes: tuple[int, int]) -> None:
    """Answer requests until there are no more; ``pipes`` are as `process.own_pipes` gives them."""
    replies, requests = pipes
    set_mode("off")  # what a candidate calls runs as written
    stream = os.fdopen(requests, "rb")  # nothing is sent before the answer: the buffer hides none from a poll
    _answer(replies, [])
    while _something_comes(requests):
        head = stream.readline()
        if not head.endswith(b"\n"):
            return
        if head == IMPORT:
            importlib.import_module("torch._dynamo")
            _answer(replies, [])
            continue
        request = json.loads(head)
        payload = stream.read(request["bytes"])
        signal.setitimer(signal.ITIMER_REAL, request["limit"] + 5)  # whose default action ends the process
        _answer(replies, _tried(request, payload))
        signal.setitimer(signal.ITIMER_REAL, 0)


def _tried(request: Mapping[str, Any], payload: bytes) -> list[str]:
    """The reasons why the variant that is asked for may not run."""
    try:
        return _run(request, payload)
    except Exception as error:  # noqa: BLE001 - the boundary where a candidate is judged; the reason is kept
        reason = f"in a worker it raised {in_a_line(error)}"
        return [reason] if device_answers() else [reason, SPOILT]


def _run(request: Mapping[str, Any], payload: bytes) -> list[str]:
    """Make the variant and run it once, backward too where a gradient is wanted; why it is none to run, if so."""
    if request["device"] is not None:
        torch.cuda.set_device(request["device"])
    core = attribute(importlib.import_module(request["module"]), request["name"]).core
    args, kwargs = core.backend.normal(*torch.load(io.BytesIO(payload), weights_only=False))  # of our own parent
    with torch.set_grad_enabled(request["grad"]):
        wanted = OfferRequest(only=request["variant"], config=request["config"], alone=True)
        offer = core.backend.offer(args, kwargs, core.backend.key(args, kwargs), core.table, wanted)
        candidate = next((c for c in offer.candidates if c.name == request["variant"]), None)
        if candidate is None:
            return [reason for refusal in offer.refusals for reason in refusal.reasons] or ["a worker has no such"]
        grad = request["grad"] and any(t.requires_grad for t in tensors((args, kwargs)))
        Trial(args, kwargs, tuple(core.backend.arguments(args, kwargs)), offer.written, grad).outcome(candidate.run)
    return []


def _answer(replies: int, reasons: list[str]) -> None:
    os.write(replies, json.dumps({"reasons": reasons}).encode() + b"\n")


def _something_comes(requests: int) -> bool:
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    return bool(poll.poll(IDLE_S * 1e3))
