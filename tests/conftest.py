"""What every test gets: one thread, no settings and no store but its own, and no GPU tests without a GPU."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings

# Before anything imports torch: times and sums that depend on the number of threads are not steady.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# And before a test file decorates anything: its store would be the user's.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="shapedispatch-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

# Most tests are told at the first call what is best. Those that are about learning from calls ask for that.
BY_CONTEST = {"SHAPEDISPATCH_JUDGE": "contest", "SHAPEDISPATCH_REGIME": "stream"}
# Nor does a table of the package answer, on the machines that it is for: what is chosen is what tests are about.
FOR_TESTS = {**BY_CONTEST, "SHAPEDISPATCH_TABLES": "false"}
os.environ |= FOR_TESTS

# No deadline: an example may compile. On CI the examples are the same on every run, so that a red run can be repeated.
hypothesis_settings.register_profile("shapedispatch", deadline=None, derandomize="CI" in os.environ, print_blob=True)
hypothesis_settings.load_profile("shapedispatch")

GPU_TESTS = Path(__file__).parent / "gpu"
SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text("utf-8").splitlines())


def cuda_is_available() -> bool:
    """True where torch can run something on a CUDA device."""
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies under tests/gpu, and skip what is marked where there is no device; mark what slow.txt names."""
    for item in items:
        if GPU_TESTS in item.path.parents:
            item.add_marker(pytest.mark.gpu)
        if item.nodeid in SLOW:
            item.add_marker(pytest.mark.slow)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not cuda_is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Torch's own pool too, if a test has torch at all."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _bare_traces() -> None:
    """Dynamo measures nothing for its logs, and writes none for pytest, if a test file has imported it.

    For one line of a log it empties the processor's cache after each trace, which is half of a small function's trace;
    and pytest listens to loggers that do not propagate, so that all that a trace could tell is put into JSON.
    """
    if guards := sys.modules.get("torch._dynamo.guards"):
        vars(guards)["profile_guard_manager"] = lambda *_: 0.0
        traces = logging.getLogger("torch.__trace")
        traces.handlers.clear()
        traces.propagate = True


RARELY = (5_000, 20, 50)
"""How often the collector looks by itself. By Python's own numbers it took a sixth of the time of tests that trace."""


@pytest.fixture(scope="module", autouse=True)
def _own_objects() -> None:
    """The collector looks at what this file makes, not at the millions of objects of torch and the files before.

    A test that collects to see something die would look through all of them, most of a second each time.
    """
    gc.set_threshold(*RARELY)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_settings_and_store(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """No setting from the environment or from a file above, and a store of this test's own.

    Inductor's and Triton's caches stay where they are: they hold compiled code by its content, and
    without them every test would compile again. TESTS_STORE names one folder for the stores of all tests, to run the
    suite twice over it, cold and then, with TESTS_WARM set, warm: what is timed then, unasked, is an error. Tests that
    are about choosing ask for ``store=False``, those about the store have a mark.
    """
    for name in _set_for_us():
        monkeypatch.delenv(name)
    for name, value in FOR_TESTS.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "working directory"
    folder.mkdir()
    monkeypatch.chdir(folder)
    shared = None if request.node.get_closest_marker("own_store") else os.environ.get("TESTS_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", shared or str(tmp_path / "cache"))
    if shared and os.environ.get("TESTS_WARM"):
        _let_nothing_new_be_stored(monkeypatch, shared)
    # Matplotlib's list of fonts takes seconds to make and is no state of ours: one for the session.
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path_factory.getbasetemp() / "matplotlib"))
    _forget()
    _refresh()
    yield
    for name in _set_for_us():  # by the test: a fixture of the next file's, made before this one, would have it
        del os.environ[name]
    os.environ |= FOR_TESTS
    _forget()


@pytest.fixture(autouse=True)
def _no_generated_code(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the mark ``operators_called``, C++ is neither generated nor compiled, most of a second a build.

    What Inductor makes of a graph calls torch's operators then, one after the other. Tracing, guards, keys, autograd
    and Inductor's own wrappers are as ever; a test of such a file that is about numbers has the mark ``generated``.
    """
    if request.node.get_closest_marker("operators_called") is None or request.node.get_closest_marker("generated"):
        yield
        return
    import torch._inductor.config

    known = hasattr(torch._inductor.config, "fallback_by_default")  # an older torch writes and compiles its code
    with torch._inductor.config.patch({"fallback_by_default": True} if known else {}):
        yield


@pytest.fixture(autouse=True)
def _looks_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests call a function some times, and programs for milliseconds, before it is asked whether a look is due."""
    if background := sys.modules.get("shapedispatch.dispatch.background"):
        monkeypatch.setattr(background, "POLL_AFTER_S", 0.0)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch, _own_settings_and_store: None) -> None:
    """No contest is cut short, and undecided then, because the machine paused: for tests whose times are made up."""
    monkeypatch.setenv("SHAPEDISPATCH_BUDGET_MS", "60000")


@pytest.fixture
def by_calls(monkeypatch: pytest.MonkeyPatch, _own_settings_and_store: None) -> None:
    """As it is built in: what is best is seen on the calls themselves."""
    for name in BY_CONTEST:
        monkeypatch.delenv(name)


def _set_for_us() -> list[str]:
    """The names of the settings in the environment."""
    return [name for name in os.environ if name.startswith("SHAPEDISPATCH_")]


@pytest.fixture(autouse=True)
def _own_builds() -> None:
    """Nothing shared with a function of the same source that an earlier test decorated: tests count builds."""
    builder = sys.modules.get("shapedispatch.functions.builder")
    if builder is not None:
        builder.made.clear()


def _let_nothing_new_be_stored(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """A choice that comes to the store at ``place`` was timed, although the run before has timed it."""
    from shapedispatch.store.kernel_store import KernelStore

    keep = KernelStore.keep

    def kept(kernel_store: KernelStore, key: Any, device: Any, choice: Any, instead: bool = False) -> Any:
        known = instead or choice.origin != "timed" or Path(place) not in kernel_store.store.path.parents
        assert known, f"timed in a warm run: {choice}"
        return keep(kernel_store, key, device, choice, instead)

    monkeypatch.setattr(KernelStore, "keep", kept)


def _forget() -> None:
    """Let the next decoration read settings and store anew; nothing to forget where nothing has imported them."""
    settings, kernel_store = (
        sys.modules.get("shapedispatch.settings.resolve"),
        sys.modules.get("shapedispatch.store.kernel_store"),
    )
    if settings is not None:
        settings.reset()
    if kernel_store is not None:
        kernel_store._stores.clear()
        kernel_store._kernel_stores.clear()  # one that awaits collection would keep its name from the next test's


_read_under: Any = None
"""What `set_mode` had set when all dispatchers read their settings last; another object after each `set_mode`."""


def _refresh() -> None:
    """Let dispatchers read their settings anew where a mode was set in the test before, which had its own environment.

    `set_mode` lets all of them read, also those that stand in another test file and are used later.
    """
    global _read_under
    registry, modes = (sys.modules.get(f"shapedispatch.{name}") for name in ("api.registry", "settings.modes"))
    if registry is not None and modes is not None and modes.current() is not _read_under:
        registry._refresh_all()
        _read_under = modes.current()
        _forget()  # what was read for them: a test may set more
