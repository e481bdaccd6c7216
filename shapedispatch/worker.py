"""Candidates tried in a process of their own first: a hang, a crash or an abort costs one candidate.

The worker is a fresh interpreter, never a fork. It imports the dispatcher by its name, makes the variant, runs it once
on copies of the arguments, and answers with a line of JSON on a pipe of its own; nothing else is read from it. It leads
a process group, which is killed as a whole. Left alone it ends itself: when the other end of its pipe closes, when
nothing is asked for a while, and, by a timer of the system's, when a try takes longer than it may.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .backends import Errand, Wish
from .copies import bytes_to_copy, copy_call
from .keys import tensors
from .memory import free_memory
from .modes import set_mode
from .trial import Trial

__all__ = ["Address", "Worker", "address", "shared"]

LIMIT_S = 60.0
"""How long a try may take, compiling included."""
START_S = 120.0
"""How long a worker may take to start, importing torch included."""
IDLE_S = 300.0
"""After how long without a try a worker ends itself."""
_LONGEST_REPLY = 1 << 16
_SPOILT = "its device answers no more"
"""A reason beside another: after an illegal access nothing runs on a device, in the process that made it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a worker finds a dispatcher: module and qualified name."""

    module: str
    name: str


def address(fn: Any, core: Any) -> Address | str:
    """Where a worker finds the dispatcher of ``fn`` whose core this is; or why it can't."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return "a worker cannot import it: it has no name in a module"
    if module == "__main__":
        return "a worker cannot import it: it stands in the program that was started, and not in a module"
    if "<" in name:
        return f"a worker cannot import it: {name} is no name at a module's top level"
    found = _at(sys.modules.get(module), name)
    if getattr(found, "core", None) is not core:
        return f"a worker cannot import it: {module}.{name} is another object"
    return Address(module, name)


def _at(holder: Any, name: str) -> Any:
    for part in name.split("."):
        holder = getattr(holder, part, None)
    return holder


# ------------------------------------------------------------------------------------------------- the asking process


@dataclass(slots=True)
class _Child:
    """A running worker: what is written to it, and what is read from it."""

    process: subprocess.Popen[bytes]
    requests: int
    replies: int
    owner: int


class _Ended(Exception):
    """The worker has closed its pipe."""


class _NoWorker(Exception):
    """No worker can be started; the message is why."""


class Worker:
    """A worker that is started when something is to be tried, and again after one that did not survive."""

    def __init__(
        self, limit_s: float = LIMIT_S, start_s: float = START_S, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit_s = limit_s
        self.start_s = start_s
        self._clock_s = clock_s
        self._none = ""  # why no worker can be started, once that is known
        self._children: list[_Child] = []  # none or one; shared with the finalizer, which may not hold the worker
        weakref.finalize(self, _end, self._children)
        _workers.add(self)

    def why_not(
        self,
        where: Address,
        errand: Errand,
        names: Sequence[str],
        limit: float,
    ) -> tuple[str | None, bool]:
        """Why a variant is not to be run in this process, or None; and whether it took the worker with it.

        ``limit`` is the share of the free memory that copies of the arguments may take, as for timing.
        """
        args, kwargs = errand.args, errand.kwargs
        needed = bytes_to_copy(args, kwargs, None, names)
        device = next((t.device for t in tensors((args, kwargs)) if t.device.type != "cpu"), torch.device("cpu"))
        if needed > limit * free_memory(device):
            return f"copies for a worker would take {needed} bytes, more than copy_limit={limit:g} allows", False
        try:
            payload = _saved(copy_call(args, kwargs, None, names, grad=torch.is_grad_enabled()))
        except Exception as error:  # noqa: BLE001 - whatever the arguments' own pickling raises is the reason
            return f"its arguments cannot be sent to a worker: {type(error).__name__}: {error}", False
        request = {
            "module": where.module,
            "name": where.name,
            "variant": errand.variant,
            "config": errand.config,
            "grad": torch.is_grad_enabled(),
            "device": torch.cuda.current_device() if torch.cuda.is_initialized() else None,
            "bytes": len(payload),
            "limit": self.limit_s,
        }
        return self._ask(json.dumps(request).encode() + b"\n" + payload)

    def close(self) -> None:
        """End the worker and all that it has started."""
        _end(self._children)

    def forget(self) -> None:
        """In a fork: the worker belongs to the parent."""
        self._children.clear()

    def _ask(self, message: bytes) -> tuple[str | None, bool]:
        try:
            child = self._running()
            deadline_s = self._clock_s() + self.limit_s
            self._send(child, message, deadline_s)
            reply = self._reply(child, deadline_s)
        except _NoWorker as error:
            self.close()
            return str(error), False
        except TimeoutError:
            self.close()
            return f"in a worker it was not done after {self.limit_s:g} s", True
        except (_Ended, OSError):
            return f"a worker did not survive it: {self._ending()}", True
        except BaseException:
            self.close()
            raise
        reasons = _reasons(reply)
        if reasons is None:
            self.close()
            return "a worker answered with what is no answer", True
        spoilt = _SPOILT in reasons
        if spoilt:
            self.close()
        return ("; ".join(reasons) or None), spoilt

    def _running(self) -> _Child:
        """The worker; started, and waited for, where there is none."""
        if self._children and self._children[0].process.poll() is not None:
            self.close()  # it has ended itself
        if not self._children:
            self._start()
        return self._children[0]

    def _start(self) -> None:
        try:
            if self._none:
                raise OSError(self._none)
            self._children.append(_started())
            self._reply(self._children[0], self._clock_s() + self.start_s)
        except (OSError, _Ended) as error:  # TimeoutError is an OSError
            self._none = str(error) or f"it was not ready after {self.start_s:g} s"
            raise _NoWorker(f"no worker could be started: {self._none}") from None

    def _send(self, child: _Child, message: bytes, deadline_s: float) -> None:
        rest = memoryview(message)
        while rest:
            self._wait(child.requests, select.POLLOUT, deadline_s)
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(child.requests, rest[: select.PIPE_BUF]) :]

    def _reply(self, child: _Child, deadline_s: float) -> bytes:
        """One line; raises TimeoutError, or _Ended where the pipe was closed first."""
        read = b""
        while not read.endswith(b"\n") and len(read) < _LONGEST_REPLY:
            self._wait(child.replies, select.POLLIN, deadline_s)
            piece = os.read(child.replies, _LONGEST_REPLY)
            if not piece:
                raise _Ended("it closed its pipe")
            read += piece
        return read

    def _wait(self, file: int, event: int, deadline_s: float) -> None:
        poll = select.poll()
        poll.register(file, event)
        left_s = deadline_s - self._clock_s()
        if left_s <= 0 or not poll.poll(left_s * 1e3):
            raise TimeoutError

    def _ending(self) -> str:
        """How the worker ended, or is ended now."""
        process = self._children[0].process if self._children else None
        self.close()
        status = process.returncode if process is not None else 0
        return f"it was ended by {signal.Signals(-status).name}" if status < 0 else f"it ended with status {status}"


def _saved(call: tuple[tuple[Any, ...], Mapping[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    torch.save(call, buffer)
    return buffer.getvalue()


def _reasons(reply: bytes) -> list[str] | None:
    """The reasons in a reply, none for a candidate that may run; None for what is no reply."""
    try:
        reasons = json.loads(reply)["reasons"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    well = isinstance(reasons, list) and all(isinstance(reason, str) for reason in reasons)
    return [reason[:500] for reason in reasons] if well else None


_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from shapedispatch.worker import main
main(sys.argv[2])
"""


def _started() -> _Child:
    """A worker that is starting."""
    replies, theirs = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path), str(theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs,),
            start_new_session=True,
        )
    except BaseException:
        os.close(replies)
        raise
    finally:
        os.close(theirs)
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return _Child(process, process.stdin.fileno(), replies, os.getpid())


def _end(children: list[_Child]) -> None:
    """Kill the group, so that nothing is left of what a candidate has started; then wait for its leader."""
    while children:
        child = children.pop()
        if child.owner != os.getpid():
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()
        if child.process.stdin is not None:
            with contextlib.suppress(OSError):
                child.process.stdin.close()
        os.close(child.replies)


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
_shared: list[Worker] = []


def shared() -> Worker:
    """The worker of this process: tries are made one after the other anyway."""
    if not _shared:
        _shared.append(Worker())
    return _shared[0]


def _after_fork() -> None:
    for worker in list(_workers):
        worker.forget()


os.register_at_fork(after_in_child=_after_fork)


# ------------------------------------------------------------------------------------------------------ the worker


def main(reply_file: str) -> None:
    """Answer requests until there are no more."""
    replies, requests = int(reply_file), os.dup(0)
    os.set_inheritable(replies, False)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)  # a candidate that reads its input must not read requests
    threading.Thread(target=_die_with, args=(requests,), daemon=True).start()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a candidate that dies leaves no image of gigabytes behind
    importlib.import_module("torch._dynamo")  # seconds, which are not the first candidate's
    set_mode("off")  # what a candidate calls runs as written
    stream = os.fdopen(requests, "rb", buffering=0)
    _answer(replies, [])
    while _something_comes(requests):
        head = _line(stream)
        if not head:
            return
        request = json.loads(head)
        payload = _exactly(stream, request["bytes"])
        signal.setitimer(signal.ITIMER_REAL, request["limit"] + 5)  # whose default action ends the process
        _answer(replies, _tried(request, payload))
        signal.setitimer(signal.ITIMER_REAL, 0)


def _tried(request: Mapping[str, Any], payload: bytes) -> list[str]:
    """Make the variant and run it once, backward too where a gradient is wanted; the reasons why it may not run."""
    try:
        if request["device"] is not None:
            torch.cuda.set_device(request["device"])
        core = _at(importlib.import_module(request["module"]), request["name"]).core
        args, kwargs = core.backend.normal(*torch.load(io.BytesIO(payload), weights_only=False))  # of our own parent
        with torch.set_grad_enabled(request["grad"]):
            wish = Wish(only=request["variant"], config=request["config"], alone=True)
            offer = core.backend.offer(args, kwargs, core.backend.key(args, kwargs), core.table, wish)
            candidate = next((c for c in offer.candidates if c.name == request["variant"]), None)
            if candidate is None:
                return [reason for refusal in offer.refusals for reason in refusal.reasons] or ["a worker has no such"]
            grad = request["grad"] and any(t.requires_grad for t in tensors((args, kwargs)))
            Trial(args, kwargs, tuple(core.backend.arguments(args, kwargs)), offer.written, grad).outcome(candidate.run)
    except Exception as error:  # noqa: BLE001 - the boundary where a candidate is judged; the reason is kept
        reason = f"in a worker it raised {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return [reason] if _device_answers() else [reason, _SPOILT]
    return []


def _device_answers() -> bool:
    """Whether anything can still be run on the current device."""
    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _answer(replies: int, reasons: list[str]) -> None:
    os.write(replies, json.dumps({"reasons": reasons}).encode() + b"\n")


def _something_comes(requests: int) -> bool:
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    return bool(poll.poll(IDLE_S * 1e3))


def _line(stream: Any) -> bytes:
    read = b""
    while not read.endswith(b"\n"):
        piece = stream.read(1)
        if not piece:
            return b""
        read += piece
    return read


def _exactly(stream: Any, count: int) -> bytes:
    parts: list[bytes] = []
    while count > 0:
        piece = stream.read(count)
        if not piece:
            return b""
        parts.append(piece)
        count -= len(piece)
    return b"".join(parts)


def _die_with(requests: int) -> None:
    """End with the process that asks: only the hanging up of the pipe is waited for."""
    poll = select.poll()
    poll.register(requests, 0)
    while not poll.poll():
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
