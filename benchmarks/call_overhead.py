"""What does a call cost on the host once its shape is known, beside eager and torch.compile?

Two small tensors, no gradients, a function of a few operations; 1, 8, 32 and 64 shapes called in turn; then the same
call with 1 and with 10,000 keys in the table. Where the hit path in C is in use, the one in Python stands beside it.
Bars: of torch.compile(dynamic=False), whose recompile limit is above the number of shapes, at most 0.65 with one shape
and 0.35 with 32 in turn on the path in Python, 0.6 and 0.25 on the one in C; 10,000 keys within 15 % of 1.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from common import CONSOLE, banner, fresh, host_contest, options, print_table, ratio, verdict, write

SHAPES_SEEN, SMALL_SHAPES_SEEN = (1, 8, 32, 64), (1, 4)
KEYS, SMALL_KEYS = 10_000, 500
BARS = {False: {1: 0.65, 32: 0.35}, True: {1: 0.6, 32: 0.25}}  # by whether the path in C is in use
KEYS_BAR = 1.15
PINNED = "benchmarks.call_overhead.pinned"
# The build is what is timed, also where plain happens to win at so small a size; nothing is read from earlier runs.
SETTINGS = f'[defaults]\nstore = false\n[kernels."{PINNED}"]\npick = "exact"\n'

Args = tuple[torch.Tensor, torch.Tensor]


def weighted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A few small operations: softmax of ``x`` (R, N) times ``y`` (R, N)."""
    return torch.softmax(x, dim=-1) * y


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments)
    ran_on = banner(chosen.device)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        settings = Path(folder) / "shapedispatch.toml"
        settings.write_text(SETTINGS)
        os.environ["SHAPEDISPATCH_SETTINGS"] = str(settings)  # read at the first decoration, below
        from shapedispatch.hit import native

        fast_path = {"c_road": native.reason() is None, "why": native.reason()}
        CONSOLE.print(f"on the path in {'C' if fast_path['c_road'] else f'Python: {native.reason()}'}", highlight=False)
        found = fast_path | {"keys": by_keys_in_table(chosen), "shapes": {}}
        for count, one in by_shapes_seen(chosen):
            found["shapes"][count] = one
            write(__file__, found | {"bars": bars(found)}, ran_on, chosen)  # a run that is cut off leaves what it has
    for name, one in bars(found).items():
        said = verdict(one["ratio"], one["bar"]) if one["bar"] else f"{one['ratio']:.3f}"
        CONSOLE.print(f"{name}: {said}", highlight=False)


def calls(count: int, device: str) -> list[Args]:
    """The arguments of ``count`` calls of different shapes."""
    shapes = [(8, 64 + 8 * index) for index in range(count)]
    return [(torch.randn(shape, device=device), torch.randn(shape, device=device)) for shape in shapes]


def by_shapes_seen(chosen: argparse.Namespace) -> Iterator[tuple[int, dict[str, Any]]]:
    """The contenders with one shape seen, then more, called in turn."""
    from shapedispatch import shapedispatch
    from shapedispatch.keys import key as keys

    seen = SMALL_SHAPES_SEEN if chosen.small else SHAPES_SEEN
    compiled = compiled_for(max(seen))
    dispatched = shapedispatch(exact=True, hints=(), name=PINNED)(fresh(weighted))
    for count in seen:
        turns = calls(count, chosen.device)
        with CONSOLE.status(f"compiling for {count} shapes"):
            check({"torch.compile": compiled, "shapedispatch": dispatched}, turns)
        contenders = {
            "eager": (weighted, turns),
            "torch.compile(dynamic=False)": (compiled, turns),
            "shapedispatch": (dispatched, turns),
            "its key alone, in Python": (keys.key, [(args, {}) for args in turns]),
        }
        if dispatched.core.fast_path is not None:
            contenders["shapedispatch, in Python"] = (in_python(dispatched), turns)
        measured = host_contest(contenders, loops=5 if chosen.small else 11)
        ran = sorted({dispatched.explain(*args).variant for args in turns})
        show(f"{named(count)} in turn; shapedispatch ran {', '.join(ran)}", measured)
        yield count, {"times": measured, "variants": ran, "routes": sorted(routes(dispatched, turns))}


def in_python(dispatched: Any) -> Callable[..., Any]:
    """The same dispatcher with its hit path in Python, behind a function as the user's is."""
    call = dispatched.core.call
    return lambda *args: call(args, {})


def compiled_for(count: int) -> Callable[..., Any]:
    """torch.compile with room for ``count`` shapes; a fall back to eager is an error."""
    torch._dynamo.config.recompile_limit = count + 1
    torch._dynamo.config.accumulated_recompile_limit = count + 1
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(fresh(weighted), dynamic=False)


def check(contenders: dict[str, Callable[..., Any]], turns: list[Args]) -> None:
    """Every contender is right at every shape; the calls are hits from here on."""
    for name, fn in contenders.items():
        for args in turns:
            torch.testing.assert_close(fn(*args), weighted(*args), msg=lambda text, name=name: f"{name}: {text}")


def routes(dispatched: Any, turns: list[Args]) -> set[str]:
    """How the builds are reached."""
    return {dispatched.explain(*args).route for args in turns}


def by_keys_in_table(chosen: argparse.Namespace) -> dict[str, Any]:
    """The same call with one key in the table and with many; plain is the only variant, so that nothing compiles."""
    from shapedispatch import shapedispatch

    count = SMALL_KEYS if chosen.small else KEYS
    few, many = (
        shapedispatch(hints=(), maxsize=2 * count, name=f"benchmarks.call_overhead.{name}")(fresh(weighted))
        for name in ("few", "many")
    )
    hot, others = calls(1, chosen.device), filler(count, chosen.device)  # the hot shape is one of them
    with CONSOLE.status(f"filling the table with {count} keys"):
        for args in others:
            many(*args)
        check({"few": few, "many": many}, hot)
    contenders = {
        "1 key": (few, hot),
        f"{count} keys": (many, hot),
        f"{count} keys, in turn": (many, others),
        "eager": (weighted, hot),
    }
    measured = host_contest(contenders, calls=3000, loops=5 if chosen.small else 11)
    show(f"keys in the table: {few.cache_info().currsize} and {many.cache_info().currsize}", measured)
    return {"count": count, "times": measured}


def filler(count: int, device: str) -> list[Args]:
    """Small calls of ``count`` different shapes."""
    shapes = [(1 + index % 50, 2 + index // 50) for index in range(count)]
    return [(torch.ones(shape, device=device), torch.ones(shape, device=device)) for shape in shapes]


def show(title: str, measured: dict[str, Any]) -> None:
    """One table: times, and each as a share of the eager call."""
    rows = [(name, time, f"{ratio(time, measured['eager']):.2f}") for name, time in measured.items()]
    print_table(title, ("contender", "µs a call (median ± half the quartile distance)", "× eager"), rows)


def named(count: int) -> str:
    """``1 shape``, ``8 shapes``."""
    return f"{count} shape{'s' * (count > 1)}"


def bars(found: dict[str, Any]) -> dict[str, Any]:
    """The ratios that the bars are about."""
    ratios = {}
    for count, one in found["shapes"].items():
        times = one["times"]
        ratios[f"shapedispatch / torch.compile, {named(count)}"] = (
            ratio(times["shapedispatch"], times["torch.compile(dynamic=False)"]),
            BARS[found["c_road"]].get(count),
        )
    times, count = found["keys"]["times"], found["keys"]["count"]
    ratios[f"{count} keys / 1 key"] = ratio(times[f"{count} keys"], times["1 key"]), KEYS_BAR
    return {name: {"ratio": value, "bar": bar} for name, (value, bar) in ratios.items()}


if __name__ == "__main__":
    main()
