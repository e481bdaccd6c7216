"""Processes of our own that do jobs."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shapedispatch.background import children as module
from shapedispatch.background.children import CannotStart, Children, NoChild, Task
from shapedispatch.background.host_slots import HostSlots

SCRIPT = """
import sys, pathlib
while line := sys.stdin.readline().rstrip("\\n"):
    job = pathlib.Path(line).read_bytes()
    if job == b"die":
        sys.exit(3)
    if job == b"hang":
        sys.stdin.readline()
    if job != b"nothing":
        pathlib.Path(line + ".answer").write_bytes(job.upper())
    import os
    told = {b"counted": b"1.50\\n", b"last": b"2.50 last\\n"}
    os.write(int(sys.argv[1]), told.get(job, b"done\\n"))
"""
"""A child that needs no import: it answers with what it is sent, in capitals."""


def start(handler: str) -> tuple[subprocess.Popen[bytes], int]:
    """As the real one, without torch."""
    replies, theirs = os.pipe()
    command = [sys.executable, "-S", "-c", SCRIPT, str(theirs)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(theirs,), start_new_session=True)
    os.close(theirs)
    return process, replies


class Clock:
    """Seconds that a test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Its time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The clock of the children."""
    return Clock()


@pytest.fixture
def places(tmp_path: Path) -> HostSlots:
    """Those of the host, of which two may work at a time."""
    return HostSlots(2, tmp_path / "places")


@pytest.fixture
def children(clock: Clock, places: HostSlots) -> Iterator[Children]:
    """Two at most."""
    made = Children("nothing", 2, limit_s=10.0, clock_s=clock, start=start, places=places)
    yield made
    made.close()


def done(children: Children, task: Task) -> Task:
    """The task, when it is over."""
    while not task.over:
        children.wait(10.0)
        children.poll()
    return task


def processes(children: Children) -> list[int]:
    """Their numbers."""
    return [child.process.pid for child in children._family.members]


def test_a_job_is_answered(children: Children) -> None:
    """By a process that stays for the next one."""
    assert done(children, children.begin(b"one")).answer == b"ONE"
    before = processes(children)
    assert done(children, children.begin(b"two")).answer == b"TWO"
    assert processes(children) == before
    assert len(before) == 1


def test_what_a_job_took_of_a_processor_is_told(children: Children) -> None:
    """By who did it; where that is not known it is left open."""
    assert done(children, children.begin(b"counted")).spent_s == 1.5
    assert done(children, children.begin(b"one")).spent_s is None


def test_one_that_can_do_no_more_is_ended(children: Children) -> None:
    """Once it has answered, and another is started for the next."""
    last = done(children, children.begin(b"last"))
    assert (last.answer, last.spent_s) == (b"LAST", 2.5)
    assert processes(children) == []
    assert done(children, children.begin(b"a")).answer == b"A"


def test_one_that_was_killed_before_costs_no_job(children: Children) -> None:
    """Somebody has ended it while it had none: another is started."""
    done(children, children.begin(b"a"))
    (child,) = children._family.members
    os.kill(child.process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
    assert done(children, children.begin(b"b")).answer == b"B"
    assert child not in children._family.members


def test_as_many_as_may_be_work_at_a_time(children: Children) -> None:
    """And then none is free."""
    assert children.free()
    first, second = children.begin(b"hang"), children.begin(b"b")
    assert done(children, second).answer == b"B"
    assert not first.over
    children.begin(b"hang")
    assert not children.free()


def test_one_that_ends_itself_costs_its_job(children: Children) -> None:
    """With the reason, and another is started for the next."""
    assert done(children, children.begin(b"die")).failed.endswith("ended by itself, with status 3")
    assert processes(children) == []
    assert done(children, children.begin(b"a")).answer == b"A"


def test_one_that_is_killed_costs_its_job(children: Children) -> None:
    """By whoever it was."""
    task = children.begin(b"hang")
    os.kill(processes(children)[0], signal.SIGKILL)
    assert done(children, task).failed.endswith("ended by SIGKILL")


def test_one_that_hangs_is_ended(children: Children, clock: Clock) -> None:
    """After as long as a job may take."""
    task = children.begin(b"hang")
    children.poll()
    assert not task.over
    clock.now = 11.0
    children.poll()
    assert task.failed == "it was not built after 10 s"
    assert processes(children) == []


def test_an_answer_that_is_not_there_is_a_reason(children: Children) -> None:
    """A full disk, say."""
    assert "cannot be read" in done(children, children.begin(b"nothing")).failed


def test_after_many_jobs_another_is_started(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiles does not give all its memory back."""
    monkeypatch.setattr(module, "JOBS_A_CHILD", 1)
    done(children, children.begin(b"a"))
    assert processes(children) == []


def test_nothing_of_a_job_is_left(children: Children) -> None:
    """Neither what was sent nor what came."""
    done(children, children.begin(b"a"))
    assert children._family.folder is not None
    assert [path.name for path in children._family.folder.path.iterdir()] == ["owner"]


def test_closing_ends_all_and_says_so(children: Children) -> None:
    """And the folder goes."""
    task = children.begin(b"hang")
    assert children._family.folder is not None
    child, folder = children._family.members[0].process, children._family.folder.path
    children.close()
    assert task.failed
    assert child.poll() == -signal.SIGKILL
    assert not folder.exists()


def test_where_no_process_can_be_started_there_is_a_reason(clock: Clock, places: HostSlots) -> None:
    """As an error of the system's."""

    def fail(handler: str) -> tuple[subprocess.Popen[bytes], int]:
        raise OSError("no more processes")

    one = Children("nothing", 1, clock_s=clock, start=fail, places=places)
    assert one.free()
    with pytest.raises(CannotStart, match="no more processes"):
        one.begin(b"a")
    assert len({places.take(), places.take()} - {None}) == 2  # none is kept


def test_a_full_disk_is_of_a_moment(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for work stays, and has the job when there is room."""
    done(children, children.begin(b"a"))
    before = processes(children)

    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(CannotStart, match="No space left"):
            children.begin(b"b")
    assert done(children, children.begin(b"b")).answer == b"B"
    assert processes(children) == before


def test_a_daemonic_process_starts_none(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that loads data has others to wait for."""
    daemon = type("Process", (), {"daemon": True})()
    monkeypatch.setattr(module.multiprocessing, "current_process", lambda: daemon)
    with pytest.raises(NoChild, match="daemonic"):
        children.begin(b"a")


def test_a_forked_process_leaves_its_parents_children_alone(children: Children) -> None:
    """They are not its own to end; it keeps none of their pipes."""
    task = children.begin(b"hang")
    if not (child := os.fork()):
        replies = children._family.members[0].replies
        children._family.end()
        with contextlib.suppress(OSError):
            os.fstat(replies)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    children.poll()
    assert (os.waitstatus_to_exitcode(status), task.over) == (0, False)


def test_programs_share_the_places_of_a_host(children: Children, places: HostSlots, clock: Clock) -> None:
    """Each holds one as long as a job of its own is done."""
    other = Children("nothing", 2, limit_s=10.0, clock_s=clock, start=start, places=HostSlots(2, places.folder))
    try:
        assert children.free()
        task = children.begin(b"hang")
        assert other.free()
        waiting = other.begin(b"a")
        assert not children.free()  # a process of its own would be, and none of the host
        assert done(other, waiting).answer == b"A"
        assert children.free()
        assert not other.free()  # the place is children's now, for the job that comes next
        children.close()
        assert task.failed
        assert other.free()
    finally:
        other.close()


def test_one_that_dies_gives_its_place_back(children: Children, places: HostSlots) -> None:
    """As one that is done."""
    for job in (b"die", b"nothing", b"a"):
        assert children.free()
        done(children, children.begin(job))
        taken = [places.take(), places.take()]
        assert None not in taken
        for place in taken:
            places.give_back(place or 0)


def test_waiting_for_other_programs_takes_no_processor(children: Children) -> None:
    """A little while, and then it is looked again."""
    before = time.process_time()
    children.wait(10.0)
    assert time.process_time() - before < 0.05


def test_a_process_that_loads_data_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it was started."""
    import torch.utils.data

    assert module.why_no_children() == ""
    monkeypatch.setattr(torch.utils.data, "get_worker_info", object)
    assert "loads data" in module.why_no_children()


@pytest.mark.parametrize(("name", "value"), [("executable", ""), ("frozen", True)])
def test_without_a_python_to_start_none_is_started(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    """Of a frozen program that would be the program itself."""
    monkeypatch.setattr(sys, name, value, raising=False)
    assert "no Python" in module.why_no_children()


def test_a_process_is_behind_all_others_before_it_imports_anything_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it imports takes seconds of a processor: a program whose threads wait for each other would wait for that."""
    seen = tmp_path / "seen"
    (tmp_path / "shapedispatch").mkdir()
    (tmp_path / "shapedispatch" / "__init__.py").write_text(
        f"import os, pathlib\npathlib.Path({str(seen)!r}).write_text(f'{{os.nice(0)}} {{os.sched_getscheduler(0)}}')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    process, replies = module._started("handler")
    try:
        process.wait(60)
    finally:
        os.close(replies)
        process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
    assert seen.read_text() == f"{os.nice(0) + module.NICENESS} {os.SCHED_BATCH}"
