"""How long until a model runs as fast as it will: forwards from the first one on, at shapes drawn at random?

The decoder of `models.py`, decoding and prefill, each contender in a process of its own with empty caches; 500
forwards, each waited for: eager, torch.compile(dynamic=True) of the three places, shapedispatch there as it is, and
with learn="background". Then as many more as fit the time, so that the final time of each shape is known. The calls of
the three places are timed on the host, too, and of the longest it is told what the dispatcher says of them. Bars for
the background: a forward within 1.05 of its final time after 120 s; the first 500 in no more time than compile's; over
plain's, 5 ms in a thousandth of the calls, 50 ms where nothing was traced, and a second where something was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from common import CONSOLE, banner, options, print_table, verdict, write
from programs import EAGER, FULL, ON_CPU, PLACES, SMALL, Call, Own, Size, ways
from said import COLUMNS, TRACED, Said, by_cause, by_time, cause

FORWARDS = 500
MOST_S, SMALL_MOST_S = 150.0, 8.0
BESIDE, NEAR_BAR_S = 1.05, 120.0
LATER_BAR_MS = 5.0
LONGEST, LONG_MS, TRACE_MS = 40, 50.0, 1000.0
NOTED_MS = 5.0
WINDOW = 9  # forwards of one shape, whose median is compared with that shape's final one
OURS, BEHIND, COMPILED = (
    f"shapedispatch, {PLACES}",
    f"shapedispatch in the background, {PLACES}",
    f"torch.compile, {PLACES}",
)
CONTENDERS = (EAGER, COMPILED, OURS, BEHIND)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    chosen = options(__doc__, arguments, more=own_options, by_contest=False)
    most_s = chosen.seconds or (SMALL_MOST_S if chosen.small else MOST_S)
    size = SMALL if chosen.small else FULL if chosen.device == "cuda" else ON_CPU
    if chosen.only:
        print(json.dumps(one(chosen.only, chosen.device, size, most_s)))
        return 0
    where = banner(chosen.device)
    found = {}
    for name in chosen.contender or CONTENDERS:
        found[name] = in_a_process(name, chosen, most_s)
        write(__file__, {"seconds": most_s, "forwards": FORWARDS, "contenders": found}, where, chosen)
    show(found)
    return 0


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--seconds", type=float, help="about how long each contender is run")
    parser.add_argument("--contender", action="append", choices=CONTENDERS, help="this one; may be repeated")
    parser.add_argument("--only", choices=CONTENDERS, help="this one, in this process")


def in_a_process(name: str, chosen: argparse.Namespace, most_s: float) -> dict[str, Any]:
    """What one contender comes to, from nothing."""
    learn = "background" if name == BEHIND else "now"
    with tempfile.TemporaryDirectory() as folder:
        caches = dict.fromkeys(("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"), folder)
        env = {**os.environ, **caches, "SHAPEDISPATCH_STORE": "false", "SHAPEDISPATCH_LEARN": learn}
        command = [sys.executable, __file__, "--only", name, "--device", chosen.device, "--seconds", str(most_s)]
        command += ["--small"] if chosen.small else []
        done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]  # what `one` has written


def one(name: str, device: str, size: Size, most_s: float) -> dict[str, Any]:
    """Its forwards: how long each took, and when it ended."""
    if device == "cpu":
        torch.set_num_threads(1)
    program = Own(size, device)
    place, whole = ways()[OURS if name == BEHIND else name]
    clock = CallClock(name)
    _, model = program.twin(name, lambda target: clock.around(target if place is None else place(target)))
    run = model if whole is None else whole(model)
    calls = [call for call in size.calls if call.kind != "train"]
    told = {call: program.arguments(call, model) for call in calls}
    plain = {call: program.model(**program.arguments(call, program.model)) for call in calls}
    drawn, times, started = random.Random(0), {call: [] for call in calls}, time.perf_counter()
    first_s = 0.0
    with torch.no_grad():
        for index in count():
            if index >= FORWARDS and time.perf_counter() - started > most_s:
                break
            call = drawn.choice(calls)
            times[call].append(timed(lambda call=call: run(**told[call]), device, started))  # type: ignore[misc]
            first_s = times[call][-1][1] if index < FORWARDS else first_s
        calls_made = clock.summed()
        for call in calls:
            close(run(**told[call]), plain[call], size)
    return {"forwards": sum(map(len, times.values())), "first_s": first_s, **summed(times), "calls": calls_made}


class CallClock:
    """What each call of a place takes on the host, and of the longest ones what the dispatcher says in them."""

    def __init__(self, name: str) -> None:
        self.took, self.started = array("d"), time.perf_counter()
        self.noted: list[dict[str, Any]] = []
        self.said: Said | None = Said(alone=True) if name in (OURS, BEHIND) else None

    def around(self, target: Callable[..., Any]) -> Callable[..., Any]:
        """The same, timed; wherever contenders differ, this is the same for all."""

        def clocked(*args: Any) -> Any:
            began = time.perf_counter()
            answer = target(*args)
            took = time.perf_counter() - began
            self.took.append(took)
            said = self.said.taken() if self.said is not None else []
            if took > NOTED_MS / 1e3:
                self.note(target.__qualname__, took, said)
            return answer

        return clocked

    def note(self, place: str, took: float, said: list[str]) -> None:
        """A call that took long, and what was said in it."""
        at_s = time.perf_counter() - self.started
        self.noted.append({"ms": 1e3 * took, "place": place, "at_s": at_s, "cause": cause(said), "said": said})

    def summed(self) -> dict[str, Any]:
        """Of all calls: how they are spread, what the long ones were for, the longest."""
        each = sorted(self.took)
        return {
            "count": len(each), "p50_ms": 1e3 * each[len(each) // 2], "p999_ms": 1e3 * each[-1 - len(each) // 1000],
            "worst_ms": 1e3 * each[-1], "noted_from_ms": NOTED_MS,
            "by_cause": by_cause((one["cause"], one["ms"]) for one in self.noted),
            "longest": sorted(self.noted, key=lambda one: -one["ms"])[:LONGEST],
        }  # fmt: skip


def timed(forward: Callable[[], Any], device: str, started: float) -> tuple[float, float]:
    """How long it took, and how long after the start it ended, in seconds."""
    began = time.perf_counter()
    forward()
    if device == "cuda":
        torch.cuda.synchronize()
    ended = time.perf_counter()
    return ended - began, ended - started


def close(answer: torch.Tensor, plain: torch.Tensor, size: Size) -> None:
    """Raise AssertionError where logits are not plain's, but for what a dtype of that width loses in so many layers."""
    distance = float((answer.float() - plain.float()).norm() / plain.float().norm())
    assert distance < 8 * torch.finfo(size.dtype).eps, distance


def summed(times: dict[Call, list[tuple[float, float]]]) -> dict[str, Any]:
    """Of each shape the final time and when forwards were first near it; of all the worst forward."""
    final_ms, near_s = {}, {}
    for call, each in times.items():
        final = statistics.median(took for took, _ in each[len(each) * 3 // 4 :])
        final_ms[str(call)] = 1e3 * final
        windows = [each[at : at + WINDOW] for at in range(len(each) - WINDOW + 1)]
        near = (window[-1][1] for window in windows if statistics.median(took for took, _ in window) <= BESIDE * final)
        near_s[str(call)] = next(near, each[-1][1])
    longest = sorted((took for each in times.values() for took, _ in each), reverse=True)
    p999_ms = 1e3 * longest[len(longest) // 1000]
    return {
        "final_ms": final_ms, "near_s": near_s, "worst_s": longest[0], "p999_ms": p999_ms,
        "longest_ms": [1e3 * took for took in longest[:LONGEST]],
    }  # fmt: skip


def show(found: dict[str, dict[str, Any]]) -> None:
    """A table, and the bars."""
    rows = [
        (
            name,
            *(f"{value:.2f}" for value in (one["first_s"], one["worst_s"], max(one["near_s"].values()))),
            *(f"{value:.2f}" for value in one["final_ms"].values()),
        )
        for name, one in found.items()
    ]
    calls = next(iter(found.values()))["final_ms"]
    columns = ("", f"{FORWARDS} forwards, s", "worst, s", "near final after, s", *(f"{call}, ms" for call in calls))
    print_table("from cold", columns, rows)
    if BEHIND in found and COMPILED in found:
        ours, compiled = found[BEHIND], found[COMPILED]
        CONSOLE.print(f"a forward near its final time, s: {verdict(max(ours['near_s'].values()), NEAR_BAR_S)}")
        CONSOLE.print(f"first forwards, over compile's: {verdict(ours['first_s'] / compiled['first_s'], 1.0)}")
    if BEHIND in found and EAGER in found:
        ours, eager = found[BEHIND], found[EAGER]
        more = ours["p999_ms"] - eager["p999_ms"]
        CONSOLE.print(f"the longest of a thousand forwards, ms over eager's: {verdict(more, LATER_BAR_MS)}")
        long = sum(took > LONG_MS for took in ours["longest_ms"])
        CONSOLE.print(f"forwards of more than {LONG_MS:g} ms: {long} (of the {LONGEST} longest)")
        show_calls(ours["calls"], eager["calls"])


def show_calls(ours: Mapping[str, Any], eager: Mapping[str, Any]) -> None:
    """What the long calls were for, and the bars of calls."""
    print_table(f"calls of more than {NOTED_MS:g} ms", COLUMNS, by_time(ours["by_cause"]))
    more = ours["p999_ms"] - eager["p999_ms"]
    CONSOLE.print(f"the longest of a thousand calls, ms over eager's: {verdict(more, LATER_BAR_MS)}")
    worst = {why: one["worst_ms"] - eager["worst_ms"] for why, one in ours["by_cause"].items()}
    traces = worst.pop(TRACED, 0.0)
    CONSOLE.print(f"the longest call with a trace, ms over eager's longest: {verdict(traces, TRACE_MS)}")
    rest = max(worst.values(), default=0.0)
    CONSOLE.print(f"the longest other call, ms over eager's longest: {verdict(rest, LONG_MS)}")
    over = sum(one["ms"] > LONG_MS and one["cause"] != TRACED for one in ours["longest"])
    CONSOLE.print(f"calls of more than {LONG_MS:g} ms without a trace: {over} (of the {LONGEST} longest)")


if __name__ == "__main__":
    raise SystemExit(main())
