"""Tests of kernels that are learned in the background: the first config runs while others are compiled elsewhere."""

# ruff: noqa: D103 - kernels, fixtures and stand-ins are named for what they are; every test has its sentence
from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

from shapedispatch import MissError, set_mode
from shapedispatch.autotune.warmup import Warmup
from shapedispatch.background.children import CannotStart
from shapedispatch.choices import learning
from shapedispatch.choices.neighbours import Neighbours
from shapedispatch.dispatch.launches import WaitingLaunches
from shapedispatch.kernels import remote_configs
from shapedispatch.kernels.remote_configs import RemoteConfigs
from shapedispatch.kernels.runtime import loaded
from shapedispatch.kernels.runtime.remote_compile import COMPILER, RequestResult
from shapedispatch.kernels.runtime.sent_kernel import Untransportable
from shapedispatch.kernels.tuned_configs import ConfigSearch
from shapedispatch.online import real_calls, repeats
from shapedispatch.online.repeats import LOOKED_THROUGH
from shapedispatch.records import Refusal
from tests.built_here import BuiltHere, learning_here
from tests.paths import NO_COMPILER, PATHS, taking
from tests.triton_core import dispatched, tensors
from tests.triton_recorder import Launched, Recorder, recording


@triton.jit
def adds(x, y, n, step, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


CONFIGS = [triton.Config({"B": block}, num_warps=1) for block in (16, 64, 256)]
X, Y = tensors(2)
TOO_LARGE = RequestResult("too large")


def cost(launched: Launched) -> float:
    """The block nearest to the size wins."""
    size = next(value for value in launched.arguments if type(value) is int and value < 2**20)  # others are addresses
    return 10 + abs(launched.constants["B"] - size)


@pytest.fixture(params=PATHS)
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Recorder]:
    """The driver, whose launches take the host what they cost, and a cache of Triton's for this test."""
    if request.param == "c" and NO_COMPILER:
        pytest.skip(NO_COMPILER)
    now_us = [0.0]
    with taking(request.param), recording(adds) as found, knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "triton")

        def effect(launched: Launched) -> None:
            now_us[0] += cost(launched)

        found.effect = effect
        found.now_us = now_us  # type: ignore[attr-defined]  # of this file's tests
        yield found


@pytest.fixture
def here(driver: Recorder, monkeypatch: pytest.MonkeyPatch) -> BuiltHere:
    """Whoever compiles; all is worth it at once."""
    made = learning_here(monkeypatch, COMPILER.handler)
    sampler = real_calls.HostSampler(lambda: int(driver.now_us[0] * 1e3))  # type: ignore[attr-defined]  # as above
    monkeypatch.setattr("shapedispatch.choices.learning.sampler", lambda device: (sampler, None))
    monkeypatch.setattr("shapedispatch.choices.watch.sampler", lambda device: (sampler, None))
    return made


@pytest.fixture
def compiled_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The blocks that calls themselves had compiled, or loaded from the cache."""
    blocks: list[int] = []
    before: Callable[..., Any] = loaded.compile_all

    def noted(kernel: Any, variants: Any, device: int) -> Any:
        blocks.extend(one["B"] for one in variants)
        return before(kernel, variants, device)

    monkeypatch.setattr(loaded, "compile_all", noted)
    return blocks


def kernel_of(driver: Recorder, **said: Any) -> Any:
    said = {"margin": 0.0, "learn": "background", "earn": 0.0, **said}
    return dispatched(triton.autotune(configs=CONFIGS, key=["n"])(adds), driver, cost, **said)


def called(kernel: Any, n: int, count: int = 1, **options: Any) -> None:
    for _ in range(count):
        kernel[lambda meta: (triton.cdiv(n, meta["B"]),)](X, Y, n, 1, **options)


def waiting(kernel: Any) -> WaitingLaunches | None:
    (learner,) = {id(e.learner): e.learner for _, e in kernel.core.table.entries()}.values()
    return learner if isinstance(learner, WaitingLaunches) else None


def blocks_of(driver: Recorder, since: int = 0) -> list[int]:
    return [launched.constants["B"] for launched in driver.launches[since:]]


def test_the_first_config_runs_while_others_are_compiled(
    driver: Recorder, here: BuiltHere, compiled_here: list[int]
) -> None:
    """No call compiles another, or makes a launch that is not its own."""
    here.paused = True
    kernel = kernel_of(driver)
    called(kernel, 60, 50)
    assert set(compiled_here) == {16}
    assert blocks_of(driver) == [16] * 50
    assert len(here.tasks) == 2
    assert set(kernel.progress()) == {f"config[B={b}, num_warps=1, num_ctas=1, num_stages=3]" for b in (64, 256)}
    shown = kernel.explain(X, Y, 60, 1)
    assert shown.variant == "plain"
    assert "it was being built" in str(shown)


def test_what_was_compiled_is_learned_from_the_launches(driver: Recorder, here: BuiltHere) -> None:
    """Each call launches once, but for what is compared with plain on copies; nothing is timed there."""
    kernel = kernel_of(driver)
    called(kernel, 60, 400)
    assert kernel.core.timer.timed == []
    choice = kernel.explain(X, Y, 60, 1)
    assert (choice.variant, choice.origin, choice.config.kwargs["B"]) == ("hint[n=64]", "timed", 64)
    before = len(driver.launches)
    called(kernel, 60, 50)
    assert blocks_of(driver, before) == [64] * 50


@pytest.mark.parametrize(("most_s", "loaded_in_each"), [(100.0, [2]), (0.0, [1, 1])])
def test_what_was_compiled_is_loaded_few_in_a_call(
    most_s: float,
    loaded_in_each: list[int],
    driver: Recorder,
    here: BuiltHere,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of many sizes may land at once; and what they write is known where they were compiled."""
    loads, reads = RemoteConfigs._load, loaded.effects_of
    loaded_at, read = list[int](), list[Any]()
    monkeypatch.setattr(remote_configs, "LOAD_S", most_s)
    monkeypatch.setattr(RemoteConfigs, "_load", lambda *given: loaded_at.append(len(driver.launches)) or loads(*given))
    monkeypatch.setattr(loaded, "effects_of", lambda one: read.append(one) or reads(one))
    kernel = kernel_of(driver)
    called(kernel, 60, 100)
    assert [*Counter(loaded_at).values()] == loaded_in_each
    assert len(read) == 1  # of the first config, which a call has compiled


def test_triton_is_asked_once_at_a_key_what_it_would_compile(
    driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many looks need to know, and how often; of what was found for a hint once more."""
    asks: Callable[..., Any] = remote_configs.requested
    asked: list[int] = []
    monkeypatch.setattr(remote_configs, "requested", lambda *given: asked.append(given[1]["B"]) or asks(*given))
    monkeypatch.setattr(remote_configs, "LOAD_S", 0.0)
    called(kernel_of(driver), 60, 100)
    assert sorted(asked) == [64, 64, 256]


@pytest.mark.parametrize(("at_once", "most"), [(0, 1), (4, 2)])
def test_triton_is_asked_of_few_configs_in_a_call(
    at_once: int, most: int, driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are many; nothing is ordered before all are asked of."""
    asks: Callable[..., Any] = remote_configs.requested
    asked: list[int] = []
    monkeypatch.setattr(remote_configs, "requested", lambda *given: asked.append(given[1]["B"]) or asks(*given))
    monkeypatch.setattr(remote_configs, "LOAD_S", 0.0)
    monkeypatch.setattr(remote_configs, "ASKED_AT_ONCE", at_once)
    kernel, in_each = kernel_of(driver), list[int]()
    while not here.tasks:
        before = len(asked)
        called(kernel, 60)
        in_each.append(len(asked) - before)
    assert (sorted(asked), max(in_each)) == ([64, 256], most)
    called(kernel, 60, 400)
    assert kernel.explain(X, Y, 60, 1).config.kwargs["B"] == 64


@pytest.mark.parametrize("most", [("COMPARE_S", 0.0), ("COMPARE_BYTES", 1)])
def test_configs_are_compared_with_plain_few_in_a_call(
    most: tuple[str, float], driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be many, each takes the host as long as some launches, and of large tensors the device."""
    compared: list[str] = []
    before: Callable[..., Any] = learning.checked_one_by_one

    def noted(*given: Any) -> Any:
        for one, wrong in before(*given):
            compared.append(one.name)
            yield one, wrong

    monkeypatch.setattr(learning, "checked_one_by_one", noted)
    monkeypatch.setattr(learning, "COMPARE_S", 100.0)
    monkeypatch.setattr(learning, *most)
    launches: list[int] = []
    kernel = kernel_of(driver)
    for _ in range(400):
        before_it = len(compared)
        called(kernel, 60)
        launches.append(len(compared) - before_it)
    assert max(launches) == 1
    assert compared[:4] == 2 * [f"config[B={b}, num_warps=1, num_ctas=1, num_stages=3]" for b in (64, 256)]
    assert kernel.explain(X, Y, 60, 1).config.kwargs["B"] == 64


@pytest.mark.parametrize("changes", ["nothing", "a build has left", "a setting"])
def test_what_is_compared_in_several_looks_is_made_once(
    changes: str, driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To see what there is takes longer than to compare one. It is made again where it might be another."""
    monkeypatch.setattr(learning, "COMPARE_S", 0.0)
    made, before = list[Any](), ConfigSearch.offer
    monkeypatch.setattr(ConfigSearch, "offer", lambda *given, **named: made.append(before(*given, **named)) or made[-1])
    kernel = kernel_of(driver)
    while not made:
        called(kernel, 60)
    core, (_, _, last) = kernel.core, made[0].candidates
    if changes == "a build has left":
        core.table._builds.pop(last.build)
    elif changes == "a setting":
        said = replace(core.settings, budget_ms=1.0)
        monkeypatch.setattr(core, "settings", said)
    learner = waiting(kernel)
    assert learner is not None
    while learner.steps.search is not None:
        called(kernel, 60)
    assert len(made) == 1 + (changes != "nothing")
    called(kernel, 60, 300)
    assert kernel.explain(X, Y, 60, 1).config.kwargs["B"] == 64


def test_plain_runs_once_for_all_that_are_compared_in_a_look(
    driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each other config runs once on copies, too; in the next look all do with the values in another order."""
    monkeypatch.setattr(learning, "COMPARE_S", 100.0)
    kernel, looks = kernel_of(driver), list[list[int]]()
    while len(looks) < 2:
        before = len(driver.launches)
        called(kernel, 60)
        looks += [blocks[:-1]] if 64 in (blocks := blocks_of(driver, before)) else []
    assert looks == [[16, 64, 256]] * 2


@pytest.mark.parametrize("known", [False, True])
def test_what_was_right_at_another_size_is_compared_in_no_other_order(
    known: bool, driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though another was compared nowhere: that is half of the looks that many configs take at a new size."""
    kernel, timed = kernel_of(driver), Neighbours.timed
    orders: dict[bool, list[str]] = {False: [], True: []}
    before: Callable[..., Any] = learning.checked_one_by_one

    def noted(*given: Any) -> Any:
        for one, wrong in before(*given):
            orders[given[-1]].append(one.name)
            yield one, wrong

    of_64, of_256 = (f"config[B={b}, num_warps=1, num_ctas=1, num_stages=3]" for b in (64, 256))
    monkeypatch.setattr(learning, "checked_one_by_one", noted)
    monkeypatch.setattr(Neighbours, "timed", lambda self, name: (known and name == of_64) or timed(self, name))
    called(kernel, 60, 100)
    assert orders[False][:2] == [of_64, of_256]
    assert orders[True][:2] == ([of_256, "hint[n=64]"] if known else [of_64, of_256])


class Said:
    """What a device has said at once."""

    def __init__(self, flags: Any) -> None:
        self.flags = flags

    def ready(self) -> bool:
        """It has."""
        return True

    def wrong(self) -> bool:
        """Whether any flag is up."""
        return any(map(bool, self.flags))


def test_what_compares_is_loaded_in_looks_of_its_own(
    driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few operators in each: to load them all takes a call half a second on a GPU."""
    done: list[str] = []
    loads, compares, left = learning.checked, learning.checked_one_by_one, iter([None, None])
    warmup = Warmup(lambda: 0)
    go_on: Callable[..., Any] = warmup.go_on

    def loaded(candidates: Any, *more: Any) -> Any:
        done.append(candidates[1].name)
        return loads(candidates, *more)

    def compared(candidates: Any, *more: Any) -> Any:
        done.append(candidates[1].name)
        return compares(candidates, *more)

    def warmed_up(*given: Any) -> Any:
        return next(left, True) and go_on(*given)

    monkeypatch.setattr(learning, "WARMUP", warmup)
    monkeypatch.setattr(Warmup, "go_on", lambda self, *given: done.append("part") or warmed_up(*given))
    monkeypatch.setattr(learning, "checked", loaded)
    monkeypatch.setattr(learning, "checked_one_by_one", compared)
    monkeypatch.setattr(learning, "verdicts", lambda device: Said)
    kernel, calls = kernel_of(driver), list[int]()
    for _ in range(400):
        before_it = len(done)
        called(kernel, 60)
        calls.append(len(done) - before_it)
    assert done[:5] == ["part", "part", "part", "another", "config[B=64, num_warps=1, num_ctas=1, num_stages=3]"]
    assert done.count("part") == 3
    assert [count for count in calls if count][:4] == [1, 1, 2, 1]
    assert kernel.explain(X, Y, 60, 1).config.kwargs["B"] == 64


def test_one_that_is_wrong_is_left_out(driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason, whichever look has found it."""
    before: Callable[..., Any] = learning.checked_one_by_one

    def judged(*given: Any) -> Any:
        for one, wrong in before(*given):
            yield one, Refusal(one.name, ("it is wrong",)) if one.config.kwargs["B"] == 64 else wrong

    monkeypatch.setattr(learning, "checked_one_by_one", judged)
    kernel = kernel_of(driver)
    called(kernel, 60, 400)
    assert 64 not in blocks_of(driver, 100)
    assert "it is wrong" in str(kernel.explain(X, Y, 60, 1)) or "hint" not in kernel.explain(X, Y, 60, 1).variant


def test_what_is_wrong_in_another_order_is_left_out(
    driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is seen a look later; what is wrong at the call's own values is not run at others."""
    before: Callable[..., Any] = learning.checked_one_by_one
    seen: list[tuple[int, bool]] = []
    bad = {(256, False), (64, True)}

    def judged(*given: Any) -> Any:
        for one, _ in before(*given):
            block, permuted = one.config.kwargs["B"], given[-1]
            seen.append((block, permuted))
            yield one, Refusal(one.name, (f"wrong {permuted}",)) if (block, permuted) in bad else None

    monkeypatch.setattr(learning, "checked_one_by_one", judged)
    kernel = kernel_of(driver)
    called(kernel, 60, 400)
    assert seen == [(64, False), (256, False), (64, True)]
    assert set(blocks_of(driver, 100)) == {16}


def test_other_sizes_begin_with_what_was_found(driver: Recorder, here: BuiltHere, compiled_here: list[int]) -> None:
    """Nothing more is compiled for them, and few configs are samples."""
    kernel = kernel_of(driver)
    called(kernel, 60, 400)
    tasks, before = len(here.tasks), len(driver.launches)
    compiled_here.clear()
    called(kernel, 70, 60)
    assert len(here.tasks) == tasks
    assert set(compiled_here) <= {16, 64}
    assert blocks_of(driver, before)[-20:] == [64] * 20


def test_a_few_calls_order_nothing(driver: Recorder, here: BuiltHere) -> None:
    """A script that calls once starts no process."""
    kernel = kernel_of(driver, earn=1.0)
    called(kernel, 60, 20)
    assert here.tasks == []
    assert waiting(kernel) is not None
    assert blocks_of(driver) == [16] * 20


def test_what_a_launch_takes_the_device_earns_it(driver: Recorder, here: BuiltHere) -> None:
    """The host's clock shows nothing of it: samples of launches in C do."""
    kernel = kernel_of(driver, earn=1.0)
    called(kernel, 60, 3)
    one = waiting(kernel)
    assert one is not None
    spent_s, one.launch_s = one.spent_s, 0.5
    called(kernel, 60, 300)
    assert one.account.spent_s >= spent_s + 0.5


def test_one_that_does_not_compile_is_left_out(
    driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the compiler's reason; the others are learned, and no call compiles it to see."""
    monkeypatch.setattr("shapedispatch.kernels.runtime.remote_compile._compiled", lambda kernel, request: TOO_LARGE)
    kernel = kernel_of(driver)
    called(kernel, 60, 100)
    assert set(blocks_of(driver)) == {16}
    reasons = [why for refusal in kernel.explain(X, Y, 60, 1).refusals for why in refusal.reasons]
    assert reasons == ["another process could not compile it: too large"] * 2


def test_one_whose_compilation_ends_its_process_is_not_compiled_here(
    driver: Recorder, here: BuiltHere, compiled_here: list[int]
) -> None:
    """It would end this one, too."""
    here.paused = True
    kernel = kernel_of(driver)
    called(kernel, 60, 5)
    for task in here.tasks:
        task.failed = "the process that built it was ended by SIGSEGV"
    here.paused = False
    called(kernel, 60, 100)
    assert set(compiled_here) == {16}
    assert str(kernel.explain(X, Y, 60, 1)).count("could not compile it: the process that built it was ended") == 2


@pytest.mark.parametrize("where", ["sent", "requested"])
def test_what_cannot_be_sent_is_compiled_within_a_call(
    where: str, driver: Recorder, here: BuiltHere, compiled_here: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is worth it: with the first of its configs alone a kernel would be worse off than as it was written."""

    def refused(*_: Any) -> Any:
        raise Untransportable("it stands nowhere")

    monkeypatch.setattr(remote_configs, where, refused)
    kernel = kernel_of(driver)
    called(kernel, 60, 8)
    shown = str(kernel.explain(X, Y, 60, 1))
    called(kernel, 60, 400)
    assert here.tasks == []
    assert sorted(set(compiled_here)) == [16, 64, 256]
    assert kernel.explain(X, Y, 60, 1).config.kwargs["B"] == 64
    assert "configs are compiled within calls: it stands nowhere" in shown


def test_where_no_process_can_be_started_calls_compile(
    driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `learn = "now"`."""

    def none(job: bytes) -> Any:
        raise CannotStart("there is no room")

    monkeypatch.setattr(here, "begin", none)
    kernel = kernel_of(driver)
    called(kernel, 60, 400)
    assert kernel.core.orders().unable == "there is no room"
    assert kernel.explain(X, Y, 60, 1).config.kwargs["B"] == 64


def test_exact_builds_are_compiled_elsewhere_too(driver: Recorder, here: BuiltHere, compiled_here: list[int]) -> None:
    """A build for the very sizes, with these as constants."""
    kernel = kernel_of(driver, exact=True)
    called(kernel, 60, 600)
    assert {"B": 64, "n": 60, "step": 1} in [launched.constants for launched in driver.launches]
    assert len(here.tasks) == 3


def test_nothing_of_a_call_is_held_while_it_waits(driver: Recorder, here: BuiltHere) -> None:
    """Nor while its configs are learned: memory that a program has freed is free."""
    kernel = kernel_of(driver)
    x = torch.zeros(256)
    gone = weakref.ref(x)
    for _ in range(8):
        kernel[lambda meta: (triton.cdiv(60, meta["B"]),)](x, Y, 60, 1)
    assert kernel.explain(x, Y, 60, 1).origin == "learning"
    driver.launches.clear()
    del x
    gc.collect()
    assert gone() is None


def test_a_key_in_a_frozen_mode_orders_nothing(driver: Recorder, here: BuiltHere) -> None:
    """What runs stays."""
    here.paused = True
    kernel = kernel_of(driver)
    called(kernel, 60)
    tasks = len(here.tasks)
    try:
        set_mode("frozen")
        called(kernel, 60, 50)
    finally:
        set_mode("tune")
    assert len(here.tasks) == tasks


def test_waiting_for_it_has_all_compiled(driver: Recorder, here: BuiltHere) -> None:
    """With force, what was not earned yet as well: the next call orders it."""
    kernel = kernel_of(driver)
    called(kernel, 60)
    assert kernel.wait(force=True)
    called(kernel, 60, 3)
    assert len(here.tasks) == 2
    assert kernel.wait(timeout=0)


def test_sizes_that_triton_specializes_otherwise_are_compiled_elsewhere_too(
    driver: Recorder, here: BuiltHere, compiled_here: list[int]
) -> None:
    """One that is a multiple of 16 has other code than one that is not, though both are one class of calls."""
    kernel = kernel_of(driver)
    called(kernel, 60, 400)
    compiled_here.clear()
    here.paused = True
    called(kernel, 256, 50)
    assert set(compiled_here) == {16}
    assert len(here.tasks) == 4


def growing(kernel: Any, calls: int) -> None:
    """So many calls, each at a size of its own."""
    for n in range(2, 2 + calls):
        called(kernel, n)


def test_sizes_that_never_come_again_are_launched_and_not_decided(
    driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once, by the config that was best at the last that was entered; one that comes again is entered."""
    monkeypatch.setattr(repeats, "ENTERING", 0.0)
    here.paused = True
    kernel = kernel_of(driver)
    growing(kernel, 2 * LOOKED_THROUGH)
    sizes = [
        next(one for one in launched.arguments if type(one) is int and one < 2**20) for launched in driver.launches
    ]
    assert sizes == [*range(2, 2 + 2 * LOOKED_THROUGH)]
    info = kernel.cache_info()
    assert info.currsize == LOOKED_THROUGH
    assert info.misses_by_reason[repeats.SIZES_HARDLY_REPEAT] == LOOKED_THROUGH
    called(kernel, 1 + 2 * LOOKED_THROUGH)
    assert kernel.cache_info().currsize == LOOKED_THROUGH + 1
    hits = kernel.cache_info().hits
    called(kernel, 1 + 2 * LOOKED_THROUGH)
    assert kernel.cache_info().hits == hits + 1


def test_where_there_is_no_room_the_next_sizes_are_launched(
    driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though they come again, if not soon: to decide each would take a place from another that does, too."""
    monkeypatch.setattr(repeats, "ENTERING", 0.0)
    here.paused = True
    kernel = kernel_of(driver, maxsize=2)
    growing(kernel, 3 * LOOKED_THROUGH)
    evicted = kernel.cache_info().evictions
    for n in (300, 301, 300, 301):
        called(kernel, n)
    assert kernel.cache_info().evictions == evicted
    called(kernel, 301)
    assert kernel.cache_info().evictions == evicted + 1


def test_only_what_differs_in_sizes_alone_passes(
    driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other types, or other numbers, nobody has seen that the config is right there."""
    monkeypatch.setattr(repeats, "ENTERING", 0.0)
    here.paused = True
    kernel = kernel_of(driver)
    growing(kernel, LOOKED_THROUGH + 1)
    known = kernel.cache_info().currsize
    kernel[(4,)](X.double(), Y, 222, 1)
    kernel[(4,)](X, Y, 222, 1.5)
    assert kernel.cache_info().currsize == known + 2
    for step in (1, 1.5):
        kernel[(4,)](X, Y, 223, step)
    assert kernel.cache_info().currsize == known + 2


def test_a_turn_is_one_of_hits(driver: Recorder, here: BuiltHere) -> None:
    """A launch at a new size takes none."""
    kernel = kernel_of(driver)
    called(kernel, 60, 3)
    if kernel.core.fast_path is not None:
        kernel.core.fast_path.left = 2
        called(kernel, 61)
        assert kernel.core.fast_path.left == 2


@pytest.mark.parametrize("until", ["a mode", "clear", "bits"])
def test_no_size_passes_where_that_is_over(
    until: str, driver: Recorder, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mode that was set holds from the next call on; what is cleared is decided anew, and bits that repeat are."""
    monkeypatch.setattr(repeats, "ENTERING", 0.0)
    here.paused = True
    kernel = kernel_of(driver)
    growing(kernel, LOOKED_THROUGH + 1)
    assert kernel.core.new_sizes.left > 0
    if until == "bits":
        torch.use_deterministic_algorithms(True)
        try:
            called(kernel, 222)
        finally:
            torch.use_deterministic_algorithms(False)
        assert kernel.cache_info().currsize == LOOKED_THROUGH + 1
    elif until == "clear":
        kernel.cache_clear()
        called(kernel, 222)
        assert kernel.cache_info().currsize == 1
    else:
        with set_mode("frozen", on_miss="error"), pytest.raises(MissError):
            kernel.core.refresh()
            called(kernel, 222)


def test_what_passes_runs_by_the_config_of_another_key(driver: Recorder, here: BuiltHere) -> None:
    """If pruning leaves it, else by the first that is left."""
    kernel = kernel_of(driver)
    called(kernel, 60, 400)
    ((_, entry),) = kernel.core.table.entries()
    best = entry.run if entry.learner is None else entry.learner.pinned(entry.choice).run
    run = kernel.core.backend.as_kin(best)
    args, kwargs = kernel.core.backend.normal((lambda meta: (triton.cdiv(meta["n"], meta["B"]),), X, Y, 61, 1), {})
    before = len(driver.launches)
    run(*args, **kwargs)
    assert blocks_of(driver, before) == [64]
    tuning = kernel.core.backend.wrapped.tuning
    object.__setattr__(tuning, "early_config_prune", lambda configs, named, **given: configs[2:])
    run(*args, **kwargs)
    assert blocks_of(driver, before) == [64, 256]
