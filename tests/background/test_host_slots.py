"""Places for processes that build, counted over all programs of a host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shapedispatch.background.host_slots import UNCOUNTED, HostSlots


@pytest.fixture
def places(tmp_path: Path) -> HostSlots:
    """Two of them."""
    return HostSlots(2, tmp_path / "places")


def taken(places: HostSlots) -> int:
    """One that is there."""
    place = places.take()
    assert place is not None
    return place


def test_so_many_are_there(places: HostSlots) -> None:
    """And one that is given back is there again."""
    one = taken(places)
    taken(places)
    assert places.take() is None
    places.give_back(one)
    assert places.take() is not None


def test_a_file_of_each_lies_in_a_private_folder(places: HostSlots) -> None:
    """Nobody else may hold them."""
    taken(places)
    assert places.folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in places.folder.iterdir()] == ["builder-0"]


@pytest.mark.parametrize("bits", [0o720, 0o702, 0o1777])
def test_in_a_folder_that_others_may_write_none_is_counted(places: HostSlots, bits: int) -> None:
    """They could hold all of them for ever."""
    places.folder.mkdir()
    places.folder.chmod(bits)
    assert [places.take() for _ in range(3)] == [UNCOUNTED] * 3
    places.give_back(UNCOUNTED)
    assert list(places.folder.iterdir()) == []


def test_a_link_is_not_followed(places: HostSlots, tmp_path: Path) -> None:
    """Wherever it leads."""
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    places.folder.symlink_to(tmp_path / "elsewhere")
    assert places.take() == UNCOUNTED


def test_where_nothing_can_be_written_none_is_counted(tmp_path: Path) -> None:
    """A file stands there, say."""
    (tmp_path / "places").write_text("")
    assert HostSlots(1, tmp_path / "places").take() == UNCOUNTED


SCRIPT = """
import sys, pathlib
from shapedispatch.background.host_slots import HostSlots
place = HostSlots(2, pathlib.Path(sys.argv[1])).take()
print(place is not None, flush=True)
sys.stdin.read()
"""


def test_one_of_a_process_that_was_killed_is_free(places: HostSlots) -> None:
    """However it has ended."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT, str(places.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "True"
        taken(places)
        assert places.take() is None
        process.kill()
        process.wait()
        assert places.take() is not None


def test_a_fork_of_who_has_one_neither_keeps_it_nor_gives_it_back(places: HostSlots) -> None:
    """The fork drops its copy; the place is its parent's as before."""
    one, _ = taken(places), taken(places)
    if not (child := os.fork()):
        places.drop(one)
        os._exit(0 if places.take() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert places.take() is None
