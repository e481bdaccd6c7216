"""``shapedispatch demo``: three functions, each called at random among sizes that want different variants.

First a loop in which all is learned while it runs: what runs at each size, how many calls a second that is beside the
function as written, and the moment at which a winner takes over. Then for each the runtime size × variant table with
the winner marked, what one variant for all sizes would have cost, and one ``explain`` in full.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor
from torch.nn import functional

from ..api.decorator import shapedispatch
from ..records import Choice, Variant
from ..settings.modes import overriding
from .live import Loop, Show, finish_of, places_of, watch

__all__ = ["Show", "decide", "main", "shows", "table", "verdict"]

Call = tuple[Any, ...]


# The functions, each written as one writes it, and the alternatives that the CPU demo supplies.


def softmax(x: Tensor) -> Tensor:
    """Softmax of ``x`` (R, N) over N, in four steps."""
    weights = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return weights / weights.sum(dim=-1, keepdim=True)


def library_softmax(x: Tensor) -> Tensor:
    """The same by the library's own kernel."""
    return torch.softmax(x, dim=-1)


def matmul(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``relu(x @ a @ b)`` of ``x`` (M, K), ``a`` (K, L), ``b`` (L, N): two products as tall as ``x``."""
    return torch.relu((x @ a) @ b)


def merged_matmul(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The same with the weights multiplied first: one product of their size, one as tall as ``x``."""
    return torch.relu(x @ (a @ b))


def xsa(output: Tensor, xv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """XSA projection (pytorch#181108): ``output`` (B, T, HQ, D) without its part along ``xv`` (B, T, HKV, D).

    Returns that, and per query head (B, T, HKV, HQ / HKV) the part's size and its share of the whole.
    """
    batch, steps, kv_heads, width = xv.shape
    axis = functional.normalize(xv, dim=-1, eps=1e-6).unsqueeze(3)
    heads = output.view(batch, steps, kv_heads, output.shape[2] // kv_heads, width)
    along = (heads * axis).sum(dim=-1, keepdim=True)
    size = along.squeeze(-1).abs()
    share = size / heads.norm(dim=-1).clamp(min=1e-6)
    return (heads - along * axis).view_as(output), size, share


def batched_xsa(output: Tensor, xv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same by batched matrix products, a batch entry a value head."""
    batch, steps, kv_heads, width = xv.shape
    repeats = output.shape[2] // kv_heads
    axis = functional.normalize(xv, dim=-1, eps=1e-6).reshape(-1, width, 1)
    heads = output.view(-1, repeats, width)
    along = torch.bmm(heads, axis)
    rest = torch.baddbmm(heads, along, axis.transpose(1, 2), alpha=-1)
    shape = (batch, steps, kv_heads, repeats)
    size = along.view(shape).abs()
    return rest.view_as(output), size, size / heads.norm(dim=-1).view(shape).clamp(min=1e-6)


# What is shown.


SOFTMAX_DIMS = {"x": "R N"}
MATMUL_DIMS = {"x": "M K", "a": "K L", "b": "L N"}
XSA_DIMS = {"output": "B T HQ D", "xv": "B T HKV D"}


def shows(device: str, *, scale: int = 1, **more: Any) -> list[Show]:
    """The three shows for ``cpu`` or ``cuda``. ``scale`` divides the sizes; ``more`` goes to every decorator.

    Nothing is read from the store: choices of an earlier run would come without their timings.
    """
    return (gpu_shows if device == "cuda" else cpu_shows)(scale, **{"exact": True, "store": False, **more})


def cpu_shows(scale: int, **more: Any) -> list[Show]:
    """Exact builds against supplied variants, and no hints: Inductor's code for a CPU hardly depends on them.

    Nor does that of a product on anything: it is a call of the library.
    """
    said = "exact is plain compiled for that very shape"
    rows, products, heads = (
        shapedispatch(dims=dims, hints=(), variants=[supplied], **{**more, **own})
        for dims, supplied, own in (
            (SOFTMAX_DIMS, Variant(library_softmax, name="library"), {}),
            (MATMUL_DIMS, Variant(merged_matmul, name="merged"), {"exact": False}),
            (XSA_DIMS, Variant(batched_xsa, name="batched"), {}),
        )
    )
    return [
        Show(
            rows(softmax),
            f"plain is max, exp, sum, divide; library is torch.softmax; {said}",
            "N",
            softmax_calls(scaled((8, 64, 1024, 4096), scale), 128, "cpu"),
        ),
        Show(
            products(matmul),
            "plain is relu((x @ a) @ b); merged is relu(x @ (a @ b))",
            "M",
            matmul_calls(scaled((1, 64, 1024), scale), max(8, 256 // scale), "cpu", torch.float32),
        ),
        Show(
            heads(xsa),
            f"plain broadcasts; batched uses batched matrix products; {said}",
            "T",
            xsa_calls(scaled((1, 16, 128), scale), "cpu", torch.float32),
        ),
    ]


def gpu_shows(scale: int, **more: Any) -> list[Show]:
    """The same functions with one build per hint; exact builds beside them where they compile quickly."""
    said = "hint[...] is plain compiled for all sizes and tuned for that one"
    rows = shapedispatch(dims=SOFTMAX_DIMS, hints={"N": (64, 256, 4096)}, **more)
    products = shapedispatch(dims=MATMUL_DIMS, hints={"M": (64, 256, 4096)}, **{**more, "exact": False})
    heads = shapedispatch(dims=XSA_DIMS, static=("HQ", "HKV", "D"), hints={"T": (64, 1024, 8192)}, **more)
    return [
        Show(
            rows(softmax),
            f"{said}; exact is compiled for that very shape",
            "N",
            softmax_calls(scaled((64, 256, 4096, 65536), scale), 1024, "cuda"),
        ),
        Show(
            products(matmul),
            f"{said}, its products autotuned",
            "M",
            matmul_calls(scaled((16, 256, 1024, 4096), scale), max(16, 2048 // scale), "cuda", torch.bfloat16),
        ),
        Show(
            heads(xsa),
            f"{said}, with HQ, HKV and D constant; exact has T constant too",
            "T",
            xsa_calls(scaled((16, 256, 2048, 8192), scale), "cuda", torch.bfloat16),
        ),
    ]


def scaled(sizes: Iterable[int], scale: int) -> list[int]:
    """The sizes divided, at least 1, none twice."""
    return list(dict.fromkeys(max(1, size // scale) for size in sizes))


def softmax_calls(widths: Iterable[int], rows: int, device: str) -> dict[int, Call]:
    """``x`` (rows, N) for each width N."""
    return {width: (torch.randn(rows, width, device=device),) for width in widths}


def matmul_calls(heights: Iterable[int], width: int, device: str, dtype: torch.dtype) -> dict[int, Call]:
    """``x`` (M, width) for each height M, with the same two square weights."""
    weights = [(torch.randn(width, width, device=device) * width**-0.5).to(dtype) for _ in "ab"]
    return {height: (torch.randn(height, width, device=device).to(dtype), *weights) for height in heights}


def xsa_calls(lengths: Iterable[int], device: str, dtype: torch.dtype) -> dict[int, Call]:
    """``output`` (1, T, 32, 64) and ``xv`` (1, T, 4, 64) for each T: the heads of pytorch#181108."""
    return {
        length: tuple(torch.randn(1, length, heads, 64, device=device, dtype=dtype) for heads in (32, 4))
        for length in lengths
    }


# Running it.


LIMIT_S = 30.0
"""When the loop ends, counted from the start, if not all is learned before; half of it is the loop's in any case."""
DECIDED_S = 42.0
"""Counted from the start, when all that was not timed side by side is left as it was learned."""
AGAIN_S = 4.0
"""How long they are called once more at the end."""
LEARNING: Mapping[str, Any] = {"learn": "background", "judge": "online", "earn": 0.02}
"""No call waits for a compiler, and calls are the samples. A build is made early: a demo is shorter than a program."""


@contextlib.contextmanager
def one_core_left() -> Iterator[None]:
    """A thread less than there are cores: the process that compiles runs beside the loop."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, min(threads, (os.cpu_count() or 1) - 1)))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def decide(show: Show, until_s: float = math.inf) -> dict[int, Choice]:
    """Every variant that there is, timed side by side at every size; what is chosen.

    What would begin after ``until_s``, by `time.perf_counter`, is as it was learned: there may be much to compile.
    """
    return {
        size: (show.dispatcher.tune if time.perf_counter() < until_s else show.dispatcher.explain)(*call)
        for size, call in show.calls.items()
    }


# Telling it.


def medians(choice: Choice) -> dict[str, float]:
    """Microseconds by variant."""
    return {timing.variant: timing.median_us for timing in choice.timings}


def table(show: Show, choices: Mapping[int, Choice]) -> Table:
    """Runtime size × variant, in microseconds, the winner marked; at the foot what each would have cost alone."""
    names = list(dict.fromkeys(timing.variant for choice in choices.values() for timing in choice.timings))
    totals = fixed_totals(choices.values())
    found = Table(title=f"{show.name}: µs a call, * is what runs", title_justify="left", show_footer=True)
    found.add_column(f"size {show.dim}", footer="all sizes", justify="right")
    for name in names:
        found.add_column(name, footer=shown_us(totals[name]) if name in totals else "", justify="right")
    found.add_column("chosen", footer=shown_us(chosen_total(choices.values())), justify="right")
    for size, choice in choices.items():
        times = medians(choice)
        cells = [cell(times.get(name), name == choice.variant) for name in names]
        found.add_row(str(size), *cells, Text(choice.variant, "bold"))
    return found


def cell(time_us: float | None, wins: bool) -> Text:
    """One time; the winner's is marked, one that did not compete is a dash."""
    if time_us is None:
        return Text("-", "dim")
    return Text(f"{shown_us(time_us)} *", "bold green") if wins else Text(f"{shown_us(time_us)}  ")


def shown_us(time_us: float) -> str:
    """Microseconds, to three figures or whole."""
    return f"{time_us:.3g}" if time_us < 100 else f"{time_us:,.0f}"


def fixed_totals(choices: Iterable[Choice]) -> dict[str, float]:
    """What each variant would have cost at all sizes together; only those that ran at every size."""
    timed = [medians(choice) for choice in choices]
    everywhere = [name for name in timed[0] if all(name in times for times in timed)] if timed else []
    return {name: sum(times[name] for times in timed) for name in everywhere}


def chosen_total(choices: Iterable[Choice]) -> float:
    """What the choices cost together, where they were timed."""
    return sum(medians(choice).get(choice.variant, 0.0) for choice in choices)


def verdict(show: Show, choices: Mapping[int, Choice]) -> list[str]:
    """What the worst and the best single variant would have cost beside the choices, and the worst single call."""
    totals = fixed_totals(choices.values())
    if not totals:
        return [f"{show.name}: nothing was timed at every size, so there is nothing to compare"]
    chosen = chosen_total(choices.values())
    worst, best = max(totals, key=totals.__getitem__), min(totals, key=totals.__getitem__)
    slowest, name, size = max(slowdowns(choices))
    return [
        f"the worst fixed choice, always {worst}, costs {totals[worst] / chosen:.2f} × what was chosen; "
        f"the best, always {best}, {totals[best] / chosen:.2f} ×",
        f"the worst single call: {name} at {show.dim}={size}, {slowest:.1f} × the choice there",
    ]


def slowdowns(choices: Mapping[int, Choice]) -> list[tuple[float, str, int]]:
    """Every variant at every size: how many times the choice's time it took."""
    return [
        (time_us / medians(choice)[choice.variant], name, size)
        for size, choice in choices.items()
        for name, time_us in medians(choice).items()
        if choice.variant in medians(choice)
    ]


def refusals(choices: Mapping[int, Choice]) -> list[str]:
    """Each reason for which a variant did not compete, once, with the sizes."""
    sizes: dict[str, list[int]] = {}
    for size, choice in choices.items():
        for refusal in choice.refusals:
            for reason in refusal.reasons:
                sizes.setdefault(f"{refusal.variant} did not compete: {reason}", []).append(size)
    return [f"{reason} (size {', '.join(map(str, found))})" for reason, found in sizes.items()]


def ran_on(device: str) -> str:
    """Device and versions in a line."""
    threads = torch.get_num_threads()
    cpu = f"CPU ({platform.machine()}, {threads} thread{'s' * (threads > 1)})"
    name = torch.cuda.get_device_name() if device == "cuda" else cpu
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}"


def tell(shown: Sequence[Show], found: Sequence[Mapping[int, Choice]], console: Console) -> None:
    """The tables and what follows from them."""
    for show, choices in zip(shown, found, strict=True):
        console.print(table(show, choices))
        for line in (show.about, *verdict(show, choices), *refusals(choices)):
            console.print(f"  {line}", highlight=False)
        console.print()


def tell_explain(show: Show, console: Console) -> None:
    """One choice in its own words."""
    size, call = list(show.calls.items())[-1]
    console.print(f"[bold]print({show.name}.explain(...))[/bold] at {show.dim}={size}:\n", highlight=False)
    console.print(str(show.dispatcher.explain(*call)), highlight=False, markup=False)


def tell_again(shown: Sequence[Show], console: Console, finish: Callable[[], None]) -> None:
    """The loop once more, now that all is known: nothing is built or timed, and every call runs its winner."""
    console.print("\n[bold]The same loop again, with all known[/bold]\n", highlight=False)
    before = [show.dispatcher.cache_info() for show in shown]
    loop = Loop(places_of(shown), AGAIN_S, finish=finish)
    for _ in loop.steps():
        pass
    after = [show.dispatcher.cache_info() for show in shown]
    console.print(loop.table(states=False))
    console.print(loop.summary(), highlight=False, markup=False)
    counts = {
        name: sum(getattr(new, name) - getattr(old, name) for old, new in zip(before, after, strict=True))
        for name in ("hits", "misses", "builds", "timings")
    }
    told = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    console.print(f"Counted by cache_info() in this loop: {told}.", highlight=False)


def main() -> tuple[list[Show], list[dict[int, Choice]]]:
    """Run the demo and print it; what was shown, and what was chosen in each."""
    console = Console(width=None if Console().is_terminal else 120)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start, finish = time.perf_counter(), finish_of(device)
    with torch.no_grad(), one_core_left():
        console.print(f"[bold]shapedispatch[/bold] on {ran_on(device)}\n{INTRODUCTION[device]}\n", highlight=False)
        torch.manual_seed(0)
        with overriding(**LEARNING):
            shown = shows(device)
            left_s = max(LIMIT_S - (time.perf_counter() - start), LIMIT_S / 2)
            watch(Loop(places_of(shown), left_s, finish=finish), console)
        console.print("\n[bold]Every version, timed side by side[/bold]\n", highlight=False)
        found = [decide(show, start + DECIDED_S) for show in shown]
        if time.perf_counter() > start + DECIDED_S:
            console.print(SHORT, highlight=False)
        tell(shown, found, console)
        tell_explain(shown[0], console)
        tell_again(shown, console, finish)
    console.print(f"\n{time.perf_counter() - start:.0f} s in all.", highlight=False)
    return shown, found


_LOOP = (
    "Functions are called at random shapes. At first each runs as it was written; other processes compile,\n"
    "and the calls themselves show which version is fastest. One call of each function waits for its trace."
)
SHORT = (
    "Time is short here: the sizes that were left are shown as they were learned, and not all has competed at each.\n"
)
INTRODUCTION = {
    "cuda": _LOOP,
    "cpu": f"{_LOOP}\nThere is no GPU here: exact builds and supplied alternatives compete, and no hints.",
}
