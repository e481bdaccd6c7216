"""Candidates tried in a process of their own first: a hang, a crash or an abort costs one candidate.

The worker is a fresh interpreter, never a fork. It imports the dispatcher by its name, makes the variant, runs it once
on copies of the arguments, and answers with a line of JSON on a pipe of its own; nothing else is read from it. It leads
a process group, which is killed as a whole. What runs there is `worker_main`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..backend import TrialRequest
from ..background.process import end, ending, start
from ..errors import in_a_line
from ..hit.facts import Facts
from ..interpreter.failures import what_fails
from ..keys.key import Key
from ..keys.tree import device_of, tensors
from .measure import free_memory
from .preserve_state import bytes_to_copy, copy_call
from .worker_main import IMPORT, SPOILT, attribute

__all__ = ["Address", "Isolation", "Worker", "address", "shared"]

LIMIT_S = 60.0
"""How long a try may take, compiling included."""
START_S = 120.0
"""How long a worker may take to start, importing torch included."""
_LONGEST_REPLY = 1 << 16


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
    found = attribute(sys.modules.get(module), name)
    if getattr(found, "core", None) is not core:
        return f"a worker cannot import it: {module}.{name} is another object"
    return Address(module, name)


@dataclass(slots=True)
class _Child:
    """A running worker: what is written to it, and what is read from it."""

    process: subprocess.Popen[bytes]
    requests: int
    replies: int
    owner: int
    has_compiler: bool = False


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
        trial_request: TrialRequest,
        names: Sequence[str],
        limit: float,
    ) -> tuple[str | None, bool]:
        """Why a variant is not to be run in this process, or None; and whether it took the worker with it.

        ``limit`` is the share of the free memory that copies of the arguments may take, as for timing.
        """
        payload = _payload(trial_request.args, trial_request.kwargs, names, limit)
        if isinstance(payload, str):
            return payload, False
        request = {
            "module": where.module,
            "name": where.name,
            "variant": trial_request.variant,
            "config": trial_request.config,
            "grad": torch.is_grad_enabled(),
            "device": torch.cuda.current_device() if torch.cuda.is_initialized() else None,
            "bytes": len(payload),
            "limit": self.limit_s,
        }
        return self._ask(json.dumps(request).encode() + b"\n" + payload, trial_request.compiles)

    def close(self) -> None:
        """End the worker and all that it has started."""
        _end(self._children)

    def _ask(self, message: bytes, compiles: bool) -> tuple[str | None, bool]:
        try:
            child = self._running()
            if compiles:
                self._import_compiler(child)
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
        spoilt = SPOILT in reasons
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

    def _import_compiler(self, child: _Child) -> None:
        """Once, and before the clock of the first candidate runs: it takes seconds."""
        if not child.has_compiler:
            deadline_s = self._clock_s() + self.start_s
            self._send(child, IMPORT, deadline_s)
            self._reply(child, deadline_s)
            child.has_compiler = True

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
        return f"it was ended by {ending(status)}" if status < 0 else f"it ended with status {status}"


@dataclass(frozen=True, slots=True)
class Isolation:
    """For one call: variants must survive in a worker before they run here.

    One that took the worker with it is not tried anew. What has no address in a module cannot be tried and is refused:
    nothing runs here that did not survive there. ``names`` and ``limit`` are as for `Worker.why_not`.
    """

    where: Address | str
    worker: Callable[[], Worker]
    facts: Facts
    key: Key
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: Sequence[str]
    limit: float

    def why_not(self, variant: str, trial_request: TrialRequest | None = None) -> str | None:
        """Why a variant is not to run here, or None."""
        if isinstance(self.where, str):
            return self.where
        request = trial_request or TrialRequest(variant, None, self.args, self.kwargs)
        of = (request.variant, self.key)
        known = self.facts.deadly.get(request.variant) or self.facts.survived.get(of)
        if known is not None:
            return known or None
        reason, deadly = self.worker().why_not(self.where, request, self.names, self.limit)
        if deadly and reason:
            self.facts.deadly[request.variant] = reason
        else:
            self.facts.survived[of] = reason or ""
        return reason


def _payload(args: tuple[Any, ...], kwargs: Mapping[str, Any], names: Sequence[str], limit: float) -> bytes | str:
    """A copy of the call as bytes, or why it cannot be sent."""
    needed = bytes_to_copy(args, kwargs, None, names)
    if needed > limit * free_memory(device_of(tensors((args, kwargs)))):
        return f"copies for a worker would take {needed} bytes, more than copy_limit={limit:g} allows"
    buffer = io.BytesIO()
    try:
        torch.save(copy_call(args, kwargs, None, names, grad=torch.is_grad_enabled()), buffer)
    except what_fails() as error:  # whatever the arguments' own pickling raises is the reason
        return f"its arguments cannot be sent to a worker: {in_a_line(error)}"
    return buffer.getvalue()


def _reasons(reply: bytes) -> list[str] | None:
    """The reasons in a reply, none for a candidate that may run; None for what is no reply."""
    try:
        reasons = json.loads(reply)["reasons"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    well = isinstance(reasons, list) and all(isinstance(reason, str) for reason in reasons)
    return [reason[:500] for reason in reasons] if well else None


_START = "from shapedispatch.autotune.worker_main import main; main(pipes)"


def _started() -> _Child:
    """A worker that is starting."""
    process, replies = start(_START)
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return _Child(process, process.stdin.fileno(), replies, os.getpid())


def _end(children: list[_Child]) -> None:
    """End those that are this process's own."""
    while children:
        child = children.pop()
        if child.owner == os.getpid():
            end(child.process, child.replies)


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
_shared: list[Worker] = []


def shared() -> Worker:
    """The worker of this process: tries are made one after the other anyway."""
    if not _shared:
        _shared.append(Worker())
    return _shared[0]


def _after_fork() -> None:
    for worker in list(_workers):
        worker._children.clear()  # they belong to the parent


os.register_at_fork(after_in_child=_after_fork)
