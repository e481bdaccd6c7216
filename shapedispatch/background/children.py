"""Processes of our own that do jobs, a job at a time: bytes in, bytes out, and no thread of ours waits for them.

Each is a fresh interpreter, never a fork, and leads a process group that is killed as a whole. Jobs and answers lie in
a private folder; a line on a pipe says which. Whoever wants to know what has come asks `Children.poll`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .child_main import LAST, answer_path
from .host_slots import UNCOUNTED, HostSlots
from .job_folder import JobFolder
from .process import end, ending, kill, leave, start, wait_for

__all__ = ["CannotStart", "Children", "NoChild", "Task", "why_no_children"]

LIMIT_S = 900.0
"""How long a job may take; one that hangs is ended with the process that does it."""
HOST_POLL_S = 0.05
"""How often who waits looks whether other programs' processes are done."""
JOBS_A_CHILD = 64
"""After so many a process is ended and another started: what compiles does not give all its memory back."""


class NoChild(Exception):
    """No process can be started; the message is why."""


class CannotStart(NoChild):
    """The system starts none: not now, and maybe never."""


@dataclass(eq=False)
class Task:
    """A job that is being done: ``answer`` when it is, ``failed`` with the reason where it never will be."""

    job: bytes
    answer: bytes | None = None
    failed: str = ""
    took_s: float = 0.0
    spent_s: float | None = None
    """How long processors were at it, where it was done: how nice its process is makes it take longer, not more."""

    @property
    def over(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.answer is not None or bool(self.failed)


@dataclass(eq=False)
class _Child:
    process: subprocess.Popen[bytes]
    replies: int
    task: Task | None = None
    path: str = ""
    began_s: float = 0.0
    jobs: int = 0
    place: int | None = None
    """Among those of the host, as long as it does a job."""


@dataclass(eq=False)
class _Family:
    """What is ended when nobody holds the children any more, at exit at the latest: it may not hold them itself."""

    owner: int = field(default_factory=os.getpid)
    members: list[_Child] = field(default_factory=list)
    folder: JobFolder | None = None
    places: HostSlots = field(default_factory=lambda: HostSlots(1))
    place: int | None = None
    """One that is taken for the job that comes next."""

    def end(self) -> None:
        """Kill each group, so that nothing is left of what a job has started."""
        members, self.members = self.members, []
        folder, self.folder = self.folder, None
        taken, self.place = [self.place, *(child.place for child in members)], None
        if self.owner != os.getpid():  # a fork's: they are its parent's
            for child in members:
                leave(child.process, child.replies)
            for place in taken:
                self.places.drop(UNCOUNTED if place is None else place)
            if folder is not None:
                folder.drop()
            return
        for child in members:
            kill(child.process)  # all at once: what each has in memory takes the system a while to take back
        for child in members:
            end(child.process, child.replies)
        for place in taken:
            self.places.give_back(UNCOUNTED if place is None else place)
        if folder is not None:
            folder.remove()


class Children:
    """At most ``most`` processes that do jobs by ``handler``, as `child_main.main` takes it; started when needed."""

    def __init__(
        self,
        handler: str,
        most: int,
        limit_s: float = LIMIT_S,
        clock_s: Callable[[], float] = time.monotonic,
        start: Callable[[str], tuple[subprocess.Popen[bytes], int]] | None = None,
        places: HostSlots | None = None,
    ) -> None:
        self.handler: str = handler
        self.most: int = most
        self.limit_s: float = limit_s
        self._clock_s, self._start = clock_s, start or _started
        self._family = _Family(places=places or HostSlots(most))
        self._numbers = 0
        weakref.finalize(self, self._family.end)

    def free(self) -> bool:
        """Whether a job would be begun now: by one of these, and as one of those that work on this host."""
        family = self._family
        if all(child.task is not None for child in family.members) and len(family.members) >= self.most:
            return False
        family.place = family.places.take() if family.place is None else family.place
        return family.place is not None

    def begin(self, job: bytes) -> Task:
        """Have a job done, if one is `free`; raises NoChild, or CannotStart."""
        try:
            return self._begun(job)
        except NoChild:
            place, self._family.place = self._family.place, None
            self._family.places.give_back(UNCOUNTED if place is None else place)
            raise

    def _begun(self, job: bytes) -> Task:
        if reason := why_no_children():
            raise NoChild(reason)
        idle = [one for one in self._family.members if one.task is None]
        for ended in [one for one in idle if one.process.poll() is not None]:  # that is no fault of this job
            idle.remove(ended)
            self._remove(ended)
        path = self._written(job)
        child = idle[0] if idle else self._another()
        try:
            child.path = path
            os.write(child.process.stdin.fileno(), f"{path}\n".encode())  # type: ignore[union-attr]  # it is a pipe
        except OSError as error:
            Path(path).unlink(missing_ok=True)
            self._remove(child)
            raise CannotStart(f"no process can be asked to build: {error}") from None
        child.place, self._family.place = self._family.place, None
        child.task, child.began_s, child.jobs = Task(job), self._clock_s(), child.jobs + 1
        return child.task

    def poll(self) -> bool:
        """Note what has come of jobs, without waiting; whether any has come to an end."""
        working = [child for child in self._family.members if child.task is not None]
        for child in working:
            self._look_at(child)
        return any(child.task is None for child in working)

    def wait(self, timeout_s: float) -> None:
        """Until something comes, or so long."""
        files = [child.replies for child in self._family.members if child.task is not None]
        # With none at work what is queued waits for other programs.
        wait_for(files, timeout_s if files else min(timeout_s, HOST_POLL_S))

    def close(self) -> None:
        """End all of them now."""
        for child in self._family.members:
            if child.task is not None:
                child.task.failed = "the process that built it was ended"
        self._family.end()

    def _another(self) -> _Child:
        try:
            process, replies = self._start(self.handler)
        except OSError as error:
            raise CannotStart(f"no process can be started: {error}") from None
        child = _Child(process, replies)
        self._family.members.append(child)
        return child

    def _written(self, job: bytes) -> str:
        """Where it was written down for another process; raises CannotStart where that cannot be, for now."""
        try:
            if self._family.folder is None:
                self._family.folder = JobFolder.made()
            self._numbers += 1
            path = self._family.folder.path / str(self._numbers)
            path.write_bytes(job)
        except OSError as error:
            raise CannotStart(f"no job can be written down: {error}") from None
        return str(path)

    def _look_at(self, child: _Child) -> None:
        """What has come of its job, if anything; one that is over, hangs or has ended gives its place free."""
        task = child.task
        assert task is not None
        task.took_s = self._clock_s() - child.began_s
        if wait_for([child.replies], 0.0):
            if said := os.read(child.replies, 1 << 12).rstrip():
                child.jobs = JOBS_A_CHILD if said.endswith(LAST) else child.jobs
                with contextlib.suppress(ValueError):
                    task.spent_s = float(said.removesuffix(LAST))
                self._take_answer(child, task)
            else:
                task.failed = f"the process that built it was ended by {_ending(child.process)}"
                self._remove(child)
        elif task.took_s > self.limit_s:
            task.failed = f"it was not built after {self.limit_s:g} s"
            self._remove(child)

    def _take_answer(self, child: _Child, task: Task) -> None:
        try:
            task.answer = Path(answer_path(child.path)).read_bytes()
        except OSError as error:
            task.failed = f"what was built cannot be read: {error}"
        for path in (child.path, answer_path(child.path)):
            with contextlib.suppress(OSError):
                Path(path).unlink()
        child.task = None
        self._give_back(child)
        if child.jobs >= JOBS_A_CHILD:
            self._remove(child)

    def _remove(self, child: _Child) -> None:
        child.task = None
        if child in self._family.members:
            self._family.members.remove(child)
        end(child.process, child.replies)
        self._give_back(child)

    def _give_back(self, child: _Child) -> None:
        place, child.place = child.place, None
        if place is not None:
            self._family.places.give_back(place)


def why_no_children() -> str:
    """Why this process may start none, if so."""
    if multiprocessing.current_process().daemon:
        return "a daemonic process, as one that loads data is, starts no others"
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        return "a process that loads data starts no others"
    if not sys.executable or getattr(sys, "frozen", False):
        return "there is no Python here that could be started"
    return ""


NICENESS = 10
"""The caller's own threads come first, and a build has little beside them, but something. At 7 two threads that
keep two cores busy were found waiting for each other on one of them.
"""
# Behind them from the start: what is imported takes seconds, and of threads that wait for each other all wait for the
# one whose processor that takes; a batch takes none from one that has just become ready. One process is one thread's
# work; and what is decorated, and imported there, runs as written.
_START = f"""
import contextlib, os
with contextlib.suppress(OSError):
    os.nice({NICENESS})
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
os.environ.update(TORCHINDUCTOR_COMPILE_THREADS="1", SHAPEDISPATCH_MODE="off")
from shapedispatch.background.child_main import main
main(pipes, sys.argv[3])
"""


def _started(handler: str) -> tuple[subprocess.Popen[bytes], int]:
    """A process that is starting, and where it says what it has done."""
    return start(_START, handler)


def _ending(process: subprocess.Popen[Any]) -> str:
    """How a process ended that has closed its pipe."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    status = process.poll()
    return "itself" if status is None else ending(status)
