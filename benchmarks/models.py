"""What does the dispatcher make of a whole model: time a forward, host time a call, first calls, memory?

A decoder as Llama's (`llama.py`; with --hf that of transformers), 1.2 billion parameters in bfloat16 on a GPU: decoding
at four batches, prefill at five lengths, a training step at mixed lengths. Contenders, in turn on the same weights:
eager; torch.compile(dynamic=True) of RMSNorm.forward, MLP.forward and apply_rotary, and of the whole model;
shapedispatch as it is without a word, or with the settings named (--setting judge=online), at the same places and of
the whole model. Before a time is taken the logits, in training the loss and gradients, are compared with those of a
wider dtype. Bar: a training step of ours at most 1.00 of eager's.
"""

from __future__ import annotations

import argparse
import copy
import gc
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from common import (
    CONSOLE,
    Measured,
    banner,
    host_contest,
    options,
    print_table,
    ratio,
    rotated,
    summary,
    verdict,
    write,
)
from programs import EAGER, FULL, ON_CPU, PLACES, SMALL, Call, Contender, Program, Size, in_place, program_of, ways
from programs import contenders as contenders_of
from torch import Tensor

ROUNDS, ROUNDS_ON_CPU, FEWEST_ROUNDS = 7, 41, 3
SAMPLE_S, SMALL_SAMPLE_S = 0.06, 0.02  # about as long is a sample: so many forwards, then the device is waited for
MOST_FORWARDS = 20
LIMIT_S, SMALL_LIMIT_S = 420.0, 200.0
FOR_ROUNDS = 0.3  # of the limit: first calls that would take longer are left out
LATE_MS = 50.0
FOR_SETTLING = 0.4  # of what is left after first calls
SETTLING_PASSES, SETTLING_FORWARDS = 3, 20
WAIT_S = 15.0  # for other processes' builds, at most, between two passes: what calls show may order more of them
TRAIN_BAR = 1.0
KINDS = ("decode", "prefill", "train")
TIMES_EAGER = 2.0  # how much farther than eager's answer from that of the wider dtype one may be
WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}
RECOMPILES = 64
HOST_CALLS, HOST_LOOPS = 4, 31  # whole forwards' worth of calls in a loop: few, so that no launch waits for the device

Answer = tuple[Tensor, ...]


@dataclass
class Found:
    """What is known so far; written after each part, so that a run that is cut off leaves what it has."""

    about: dict[str, Any]
    left_out: dict[str, str]
    not_reached: dict[str, list[str]] = field(default_factory=dict)
    first_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    late_ms: dict[str, list[float]] = field(default_factory=dict)
    """The forwards after the first, while they settle, that kept the host for `LATE_MS` and more."""
    errors: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    peak_bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    times: dict[str, dict[str, Measured]] = field(default_factory=dict)
    host: dict[str, dict[str, Measured]] = field(default_factory=dict)
    forwards: dict[str, int] = field(default_factory=dict)
    places: dict[str, dict[str, Any]] = field(default_factory=dict)
    dispatched: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As it is written: what was measured, and what follows from it."""
        found = {name: value for name, value in vars(self).items() if name != "about"}
        return self.about | found | {"stalls": stalls(self), "ratios": ratios(self), "means": means(self)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments, more=own_options, by_contest=False)
    os.environ |= {"SHAPEDISPATCH_STORE": "false", **dict(chosen.setting)}  # nothing is read from earlier runs
    if chosen.device == "cpu":
        torch.set_num_threads(1)  # forwards this short are the host's work: threads that wait would be what is timed
    ran_on = banner(chosen.device)
    size = SMALL if chosen.small else FULL if chosen.device == "cuda" else ON_CPU
    if chosen.kind:
        size = replace(size, calls=tuple(call for call in size.calls if call.kind in chosen.kind))
    if chosen.batch:
        size = replace(size, calls=tuple(call for call in size.calls if call.batch in chosen.batch))
    with tempfile.TemporaryDirectory(prefix="models-") as folder:
        found = measure(chosen, size, Path(folder), lambda one: write(__file__, one.document(), ran_on, chosen))
    show(found)


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--hf", action="store_true", help="the Llama of transformers in place of this folder's")
    parser.add_argument("--contender", action="append", help="this one beside eager; may be repeated", metavar="NAME")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="about how long it may take")
    help_ = "how long they may go on learning before the rounds, where that is not a share of what is left"
    parser.add_argument("--settle", type=float, metavar="SECONDS", help=help_)
    help_ = "how often they go on learning at each call in turn, if there is time"
    parser.add_argument("--passes", type=int, default=SETTLING_PASSES, metavar="N", help=help_)
    parser.add_argument("--kind", action="append", choices=KINDS, help="calls of this kind alone; may be repeated")
    parser.add_argument("--batch", action="append", type=int, help="calls of this batch alone; may be repeated")
    parser.add_argument("--rounds", type=int, metavar="N")
    help_ = "of shapedispatch, as in the environment: judge=online; may be repeated"
    parser.add_argument("--setting", action="append", default=[], type=setting, help=help_, metavar="NAME=VALUE")


def setting(text: str) -> tuple[str, str]:
    """``name=value``, taken apart."""
    name, _, value = text.partition("=")
    return f"SHAPEDISPATCH_{name.upper()}", value


def measure(chosen: argparse.Namespace, size: Size, folder: Path, keep: Callable[[Found], Any]) -> Found:
    """All parts in turn."""
    clock = Clock(chosen.limit or (SMALL_LIMIT_S if chosen.small else LIMIT_S))
    program, about = program_of(chosen.hf, size, chosen.device)
    names = [EAGER, *(name for name in chosen.contender or ways() if name != EAGER)]
    if len(names) > 1:
        prepare_compilers(folder)
    made, left_out = contenders_of(program, names, folder)
    about |= {
        "settings": dict(chosen.setting),
        "config": asdict(size.config),
        "dtype": str(size.dtype),
        "limit_s": clock.limit_s,
    }
    about |= {"parameters": sum(parameter.numel() for parameter in program.model.parameters())}
    found = Found(about | {"calls": [str(call) for call in size.calls], "contenders": list(made)}, left_out)
    found.seconds["models"] = clock.lap()
    judge = Judge(program, size)
    found.about["tolerance"] = judge.said
    found.seconds["reference"] = clock.lap()
    until_rounds = clock.limit_s * FOR_ROUNDS + (chosen.settle or 0.0)
    steps = first_calls(program, made, judge, found, clock, until_rounds)
    found.seconds["first calls"] = clock.lap()
    keep(found)
    seconds = chosen.settle if chosen.settle is not None else FOR_SETTLING * clock.left()
    settle(made, steps, found, clock, seconds, chosen.passes)
    found.seconds["settling"] = clock.lap()
    rounds = chosen.rounds or (ROUNDS if chosen.device == "cuda" else ROUNDS_ON_CPU)
    found.about["rounds"] = in_rounds(steps, rounds, SMALL_SAMPLE_S if chosen.small else SAMPLE_S, found, clock)
    found.seconds["rounds"] = clock.lap()
    keep(found)
    by_place(program, made, found, chosen.small)
    found.seconds["places"] = clock.lap()
    keep(found)
    return found


class Clock:
    """How long it has been, and how long it may be."""

    def __init__(self, limit_s: float) -> None:
        self.start = self.last = time.monotonic()
        self.limit_s = limit_s

    def lap(self) -> float:
        """Seconds since the last."""
        now = time.monotonic()
        lap, self.last = now - self.last, now
        return lap

    def left(self) -> float:
        """Seconds until the limit; below nought after it."""
        return self.start + self.limit_s - time.monotonic()


def prepare_compilers(folder: Path) -> None:
    """Import the compiler and start its workers, which is no contender's own time; room for every shape."""
    torch._dynamo.config.recompile_limit = RECOMPILES
    torch._dynamo.config.accumulated_recompile_limit = 16 * RECOMPILES
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # it would fall back to eager
    contender = Contender("", None, None, None, folder / "first")  # type: ignore[arg-type]
    with contender.compiling():
        device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.compile(lambda x: (x.sin() * 2).sum())(torch.ones(8, device=device))


# --- one call of the model ---


class Step:
    """One contender at one call: a forward, or a step of training. Made once; called as often as one likes."""

    def __init__(self, program: Program, contender: Contender, call: Call) -> None:
        self.call, self.program = call, program
        self.run, self.model = contender.run, contender.model
        self.told = program.arguments(call, contender.model)
        tokens = next(iter(self.told.values()))
        self.next_tokens = tokens.roll(-1, dims=1).flatten()
        # A step of no length: each contender starts each step from the same weights, which are shared.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)

    def __call__(self) -> None:
        """Once, as it is timed."""
        if self.call.kind == "train":
            self.loss().backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        else:
            with torch.no_grad():
                self.run(**self.told)

    def loss(self) -> Tensor:
        """Cross entropy of the next tokens."""
        logits = self.program.logits(self.run(**self.told))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.next_tokens)

    def rewind(self) -> None:
        """As at first, for the next calls."""
        self.program.rewind(self.told)

    def answer(self) -> Answer:
        """What is compared: logits; of a step of training the loss and the gradients of all norms, which pass through
        everything that is behind them.
        """
        self.rewind()
        if self.call.kind != "train":
            with torch.no_grad():
                return (self.program.logits(self.run(**self.told)).clone(),)
        loss = self.loss()
        loss.backward()
        norms = [parameter.grad for parameter in self.model.parameters() if parameter.dim() == 1]
        found = loss.detach(), torch.cat([grad.flatten() for grad in norms if grad is not None])
        self.optimizer.zero_grad(set_to_none=True)
        return found


class Judge:
    """Whether an answer is right: how far it is from that of eager code in a wider dtype, beside eager's own distance.

    Compiled code keeps in float32 what eager rounds after each operation, and sums in other orders: either may be the
    closer one. So a contender may be twice as far away as eager, and one unit of the dtype.
    """

    def __init__(self, program: Program, size: Size) -> None:
        self.unit = torch.finfo(size.dtype).eps
        self.said = f"at most {TIMES_EAGER:g} × eager's distance + {self.unit:.3g}, of norms, from {WIDER[size.dtype]}"
        self.answers, self.eager = {}, {}
        plain = Contender(EAGER, None, program.model, program.model, Path())  # type: ignore[arg-type]
        wide_model = copy.deepcopy(program.model).to(WIDER[size.dtype])
        wide = Contender("", None, wide_model, wide_model, Path())  # type: ignore[arg-type]
        for call in size.calls:
            near, far = Step(program, plain, call), Step(program, wide, call)
            self.answers[call] = far.answer()
            self.eager[call] = distances(near.answer(), self.answers[call])

    def errors(self, name: str, step: Step) -> list[float]:
        """How far it is; raises AssertionError where that is too far."""
        found = distances(step.answer(), self.answers[step.call])
        allowed = [TIMES_EAGER * one + self.unit for one in self.eager[step.call]]
        if not all(one <= most for one, most in zip(found, allowed, strict=True)):  # which a NaN is not, either
            raise AssertionError(f"{name}, {step.call}: {found} from the wider dtype's, allowed are {allowed}")
        return found


def distances(answer: Answer, reference: Answer) -> list[float]:
    """Norm of the difference over norm, of each part."""
    parts = zip(answer, reference, strict=True)
    return [float((one.to(other.dtype) - other).norm() / other.norm()) for one, other in parts]


# --- the parts ---


def first_calls(
    program: Program, made: Mapping[str, Contender], judge: Judge, found: Found, clock: Clock, until_rounds: float
) -> dict[str, dict[str, Step]]:
    """Each contender at each call for the first time, then checked; what is ready for the rounds, by call.

    A contender whose share of the time is used up is not started at further calls; eager is at all.
    """
    from shapedispatch import wait

    steps: dict[str, dict[str, Step]] = {str(call): {} for call in judge.answers}
    for index, (name, contender) in enumerate(made.items()):
        ends = clock.left() - max(0.0, clock.left() - until_rounds) / (len(made) - index)
        for call in judge.answers:
            if name != EAGER and clock.left() < ends:
                found.not_reached.setdefault(name, []).append(str(call))
                continue
            with CONSOLE.status(f"{name}: {call}"):
                steps[str(call)][name] = first_call(program, contender, call, judge, found)
        if name.startswith("shapedispatch"):
            with contender.compiling():  # other processes begin to build; meanwhile come the next one's first calls
                wait(0.0, force=True)
        spent = sum(found.first_ms.get(name, {}).values()) / 1e3
        CONSOLE.print(f"{name}: first calls {spent:.1f} s", highlight=False)
    return steps


def settle(
    made: Mapping[str, Contender],
    steps: Mapping[str, Mapping[str, Step]],
    found: Found,
    clock: Clock,
    seconds: float,
    passes: int,
) -> None:
    """Let them learn from further forwards, of each call in turn, and from what other processes build for them.

    Which of them stopped their caller is noted.
    """
    from shapedispatch import wait

    until = clock.left() - seconds
    for name, contender in made.items():
        learns, late = name.startswith("shapedispatch"), found.late_ms.setdefault(name, [])
        for _ in range(passes if learns else SETTLING_PASSES):
            with contender.compiling():
                for step in (ready[name] for ready in steps.values() if name in ready and clock.left() > until):
                    late += [took for took in one_by_one(step, SETTLING_FORWARDS) if took >= LATE_MS]
                if learns:
                    wait(min(WAIT_S, max(0.0, clock.left() - until)), force=True)


def one_by_one(step: Step, forwards: int) -> list[float]:
    """Milliseconds that each of so many forwards in a row kept the host."""
    step.rewind()
    synchronize()
    took = []
    for _ in range(forwards):
        start = time.perf_counter()
        step()
        took.append((time.perf_counter() - start) * 1e3)
    synchronize()
    return took


def first_call(program: Program, contender: Contender, call: Call, judge: Judge, found: Found) -> Step:
    """One: how long it took, whether it is right, how much memory the next one takes."""
    step, name = Step(program, contender, call), contender.name
    with contender.compiling():
        synchronize()
        start = time.perf_counter()
        step()
        synchronize()
        found.first_ms.setdefault(name, {})[str(call)] = (time.perf_counter() - start) * 1e3
        found.errors.setdefault(name, {})[str(call)] = judge.errors(name, step)
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        found.peak_bytes.setdefault(name, {})[str(call)] = torch.cuda.max_memory_allocated() - before
    return step


def in_rounds(steps: Mapping[str, Mapping[str, Step]], rounds: int, sample_s: float, found: Found, clock: Clock) -> int:
    """Time each call with each contender in turn; how many rounds there were time for."""
    samples: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for call, ready in steps.items():
        once_us = min(timed(next(iter(ready.values())), 1)[0] for _ in range(5))
        found.forwards[call] = max(1, min(MOST_FORWARDS, int(sample_s * 1e6 / once_us)))
        for step in ready.values():
            timed(step, 2)
    done = 0
    while done < rounds and (done < FEWEST_ROUNDS or clock.left() > 0):
        for call, ready in steps.items():
            for name in rotated(ready, done):
                samples.setdefault((call, name), []).append(timed(ready[name], found.forwards[call]))
        done += 1
    for (call, name), pairs in samples.items():
        for kept, one in ((found.times, [whole for whole, _ in pairs]), (found.host, [host for _, host in pairs])):
            kept.setdefault(call, {})[name] = replace(summary(one), each_us=one)
    return done


def timed(step: Step, forwards: int) -> tuple[float, float]:
    """Microseconds a forward until all is done, and until the host was free again; no garbage collection.

    On a CPU all of it is this thread's, whose own time is taken: not what other processes had of the core meanwhile.
    """
    now = time.perf_counter_ns if torch.cuda.is_initialized() else time.thread_time_ns
    step.rewind()
    synchronize()
    collecting = gc.isenabled()
    gc.disable()
    start = now()
    for _ in range(forwards):
        step()
    free = now()
    synchronize()
    end = now()
    if collecting:
        gc.enable()
    return (end - start) / 1e3 / forwards, (free - start) / 1e3 / forwards


def synchronize() -> None:
    """Wait for the device, where there is one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def by_place(program: Program, made: Mapping[str, Contender], found: Found, small: bool) -> None:
    """Host time of a call at each place, over all its instances in turn; and what the dispatchers know by then."""
    kept = {name: one for name, one in made.items() if name == EAGER or name.endswith(PLACES)}
    for call in (Call("decode", 1, 1), Call("prefill", 1, 17)):
        calls = {name: program.place_calls(one.module, one.model, call) for name, one in kept.items()}
        for place in program.places:
            turns = {name: (called, [(one,) for one in calls[name][place]]) for name, one in kept.items()}
            with torch.no_grad():
                for name, (fn, arguments) in turns.items():
                    with kept[name].compiling():
                        for one in arguments:
                            fn(*one)
                count = len(calls[EAGER][place])
                times = host_contest(turns, calls=HOST_CALLS * count, loops=5 if small else HOST_LOOPS)
            found.places.setdefault(str(call), {})[place] = {"calls a forward": count, "times": times}
    for name, one in made.items():
        if name.startswith("shapedispatch"):
            found.dispatched[name] = known(program, one)


def called(pair: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    """A call of a place."""
    return pair[0](*pair[1])


def known(program: Program, contender: Contender) -> dict[str, Any]:
    """What each dispatcher of a contender has counted and chosen."""
    from shapedispatch import dispatchers

    prefix = contender.module.__name__
    found = {}
    for name, one in dispatchers().items():
        if name.startswith(prefix) or any(one is in_place(contender.module, place) for place in program.places):
            choices = [
                {
                    "sizes": dict(choice.sizes),
                    "variant": choice.variant,
                    "origin": choice.origin,
                    "own_timings": {timing.variant: timing.median_us for timing in choice.timings},
                    "refused": {one.variant: one.reasons[0] for one in choice.refusals},
                    "notes": choice.notes,
                }
                for choice in one.choices()
            ]
            found[name.removeprefix(prefix + ".")] = {"counts": asdict(one.cache_info()), "choices": choices}
    return found


# --- what follows from it ---


def stalls(found: Found) -> dict[str, dict[str, Any]]:
    """Of each contender's first calls the sum and the worst, in seconds, and at which call that was; and of later ones.

    Those are the slow ones alone, for all that they took beyond eager's slowest first call.
    """
    told: dict[str, dict[str, Any]] = {}
    usual_ms = max(found.first_ms.get(EAGER, {"": 0.0}).values())
    for name, each in found.first_ms.items():
        worst = max(each, key=lambda call: each[call])
        late_s = [max(0.0, ms - usual_ms) / 1e3 for ms in found.late_ms.get(name, ())]
        told[name] = {"sum_s": sum(each.values()) / 1e3, "worst_s": each[worst] / 1e3, "at": worst, "calls": len(each)}
        told[name] |= {"late_sum_s": sum(late_s), "late_worst_s": max(late_s, default=0.0), "late": len(late_s)}
    return told


def ratios(found: Found) -> dict[str, dict[str, float]]:
    """Each contender's time over eager's, by call."""
    return {
        call: {name: ratio(one, times[EAGER]) for name, one in times.items() if name != EAGER and EAGER in times}
        for call, times in found.times.items()
    }


def means(found: Found) -> dict[str, dict[str, float]]:
    """Geometric means of those ratios, by kind of call and of all; only of contenders that were at all those calls."""
    by_call = ratios(found)
    told: dict[str, dict[str, float]] = {}
    for kind in (*dict.fromkeys(call.partition(" ")[0] for call in by_call), "all"):
        rows = [row for call, row in by_call.items() if kind in ("all", call.partition(" ")[0])]
        for name in rows[0] if rows else ():
            if all(name in row for row in rows):
                logs = [math.log(row[name]) for row in rows]
                told.setdefault(kind, {})[name] = math.exp(statistics.fmean(logs))
    return told


def show(found: Found) -> None:
    """Tables: times, first calls, places; the bar; what is missing."""
    names = found.about["contenders"]
    rows = [
        [call, *(f"{times[name].median_us / 1e3:.2f}" if name in times else "-" for name in names)]
        for call, times in found.times.items()
    ]
    for kind, row in means(found).items():
        rows.append([f"mean × eager, {kind}", "1", *(cell(row.get(name)) for name in names[1:])])
    print_table("ms a forward, or a step of training", ("call", *names), rows)
    lost = [
        (name, *(f"{one[key]:.1f}" for key in ("sum_s", "worst_s")), one["at"],
         *(f"{one[key]:.1f}" for key in ("late_sum_s", "late_worst_s")))
        for name, one in stalls(found).items()
    ]  # fmt: skip
    print_table("first calls, and slow ones later, s", ("contender", "sum", "worst", "at", "later", "worst"), lost)
    for call, places in found.places.items():
        lines = [(place, *map(str, one["times"].values())) for place, one in places.items()]
        kept = next(iter(places.values()))["times"]
        print_table(f"host µs a call, as at {call}", ("place", *kept), lines)
    for name, value in means(found).get("train", {}).items():
        if name.startswith("shapedispatch"):
            CONSOLE.print(f"a step of training, {name} / eager: {verdict(value, TRAIN_BAR)}", highlight=False)
    for name, why in found.left_out.items():
        CONSOLE.print(f"left out: {name}: {why}", highlight=False)
    for name, calls in found.not_reached.items():
        CONSOLE.print(f"not reached in time: {name} at {', '.join(calls)}", highlight=False)


def cell(value: float | None) -> str:
    """A ratio, where there is one."""
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
