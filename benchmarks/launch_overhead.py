"""What does the host pay to launch a kernel whose shape is known, beside Triton and beside the driver itself?

An elementwise sum of 1, 2, 8 or 16 vectors of 4,096 floats, so that a call's time is the launch's. Contenders, in one
run: ``cuLaunchKernel`` in a loop of C (the floor), a CUDA graph's replay, ``CompiledKernel.run`` of a compiled kernel,
``triton.jit``, ``triton.autotune``, ``torch.compile``, Helion where it is installed, and the dispatcher over both, on
the Python path and (where it is built) on the C path; one shape again and again, two in turn, and 64. Then the same
call with one key in the table and with 10,000.

Bars, on the path in C: at most 1.45 × the bare launch with 2 tensors and 1.8 × with 16; at least 3.3 × as fast as
triton.jit and 5.5 × as triton.autotune with 2, 8 and 16; within 10 % from 1 to 10,000 keys; and a grid at the call
costs at most 0.5 µs more than one at the decorator.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from common import (
    CONSOLE,
    GridBound,
    Measured,
    banner,
    captured,
    excess_us,
    fresh,
    host_contest,
    host_loop,
    interleaved,
    options,
    print_table,
    ratio,
    write,
)
from kernels import vector_add

COUNTS, SMALL_COUNTS = (1, 2, 8, 16), (2,)
COMPILED_IN_TURN = 2  # with this many tensors, and once a run, torch.compile and Helion are called at all shapes, too
QUICK_MS = 2  # for each config of triton.autotune: which wins is not asked here, and 64 shapes are tuned
ELEMENTS, SHAPES = 4096, 64
ONE, TWO, MANY = "one shape", "2 shapes in turn", f"{SHAPES} shapes in turn"
KEYS, SMALL_KEYS = 10_000, 500
PATHS = {"Python": "false", "C": "true"}
BARE, RUN, JIT, AUTOTUNE = "cuLaunchKernel in C", "CompiledKernel.run", "triton.jit", "triton.autotune"
REPLAY, COMPILED, HELION = "CUDA graph replay", "torch.compile(dynamic=False)", "Helion"
BY_CALL, GIVEN, TUNED = "shapedispatch, d[grid]", "shapedispatch, grid= given", "shapedispatch over autotune"
Args = tuple[Any, ...]
Contenders = dict[str, Callable[..., Any]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write. One process a path, since the path is chosen once; contenders are in both."""
    chosen = options(__doc__, arguments)
    if chosen.device != "cuda":
        CONSOLE.print("launch_overhead.py launches kernels: it needs a GPU, and there is none here")
        return
    ran_on = banner("cuda")
    here = next(
        (fast_path for fast_path, setting in PATHS.items() if os.environ.get("SHAPEDISPATCH_HOTPATH") == setting), None
    )
    found = (
        {here: on_this_path(here, chosen)}
        if here
        else {fast_path: in_a_process(fast_path, chosen) for fast_path in PATHS}
    )
    if here is None:
        for fast_path, one in found.items():
            show(fast_path, one)
        found["bars"] = list(bars(found["C"]))
        show_bars(found["bars"])
    write(__file__, found, ran_on, chosen)


def in_a_process(fast_path: str, chosen: argparse.Namespace) -> Any:
    """The same script with the path set."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, __file__, "--json", str(path), *(["--small"] if chosen.small else [])]
        environment = {**os.environ, "SHAPEDISPATCH_HOTPATH": PATHS[fast_path]}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())[fast_path]


def on_this_path(fast_path: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Every number of tensors, with what the process says of its path; compilers build 64 times on that in C only."""
    from shapedispatch.hit import native

    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = SHAPES + 1
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # it would fall back to eager
    loops, calls = (5, 500) if chosen.small else (11, 1000)
    counts = SMALL_COUNTS if chosen.small else COUNTS
    compiled = {COMPILED_IN_TURN} if fast_path == "C" else set()
    tables = {str(count): of_count(count, calls, loops, in_turn=count in compiled) for count in counts}
    keys = by_keys(SMALL_KEYS if chosen.small else KEYS, calls, loops)
    return {"c_road": bool(native.hotpath_available), "why": native.hotpath_reason, "tensors": tables, "keys": keys}


# --- by number of tensors ---


def of_count(count: int, calls: int, loops: int, *, in_turn: bool) -> dict[str, Any]:
    """One number of tensors: results first, then the times of one shape, of two in turn and of 64.

    ``in_turn``: whether compilers are called at all shapes.
    """
    import triton

    kernel = getattr(vector_add, f"add_{count}")
    configs = [triton.Config({}, num_warps=warps) for warps in (4, 8)]
    quick = functools.partial(triton.testing.do_bench, warmup=QUICK_MS, rep=QUICK_MS)
    tuned = triton.autotune(configs, key=["n"], do_bench=quick)(kernel)
    contenders = dispatchers(kernel, tuned) | {JIT: by_grid(kernel), AUTOTUNE: by_grid(tuned)}
    turns = [inputs(count, ELEMENTS - 16 * index) for index in range(SHAPES)]
    for name, fn in contenders.items():
        check(name, fn, turns)
    compiling, refused = compilers(count, turns if in_turn else turns[:1])
    samplers = launches(kernel, turns[0], calls)
    samplers |= {name: loop_of(fn, turns[:1], calls) for name, fn in (contenders | compiling).items()}
    found: dict[str, Any] = {ONE: interleaved(samplers, loops), "not measured": refused}
    repeated = contenders | (compiling if in_turn else {})
    for title, shapes in ((TWO, turns[:2]), (MANY, turns)):
        found[title] = host_contest({name: (fn, shapes) for name, fn in repeated.items()}, calls=calls, loops=loops)
    return found


def loop_of(fn: Callable[..., Any], turns: Sequence[Args], calls: int) -> Callable[[], float]:
    """Microseconds a call, as a sample."""
    host_loop(fn, turns, calls // 10)
    return lambda: host_loop(fn, turns, calls)


def dispatchers(kernel: Any, tuned: Any) -> Contenders:
    """The kernel and the autotuned kernel under the decorator, the grid given at the call or at the decorator."""
    from shapedispatch import shapedispatch

    return {
        BY_CALL: by_grid(shapedispatch(kernel, dims="n", store=False, name="launch.jit")),
        GIVEN: given_once(kernel),
        TUNED: by_grid(shapedispatch(tuned, store=False, name="launch.tuned")),
    }


def given_once(kernel: Any, **more: Any) -> Any:
    """The kernel with its grid at the decorator."""
    from shapedispatch import shapedispatch

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return ((meta["n"] + vector_add.BLOCK - 1) // vector_add.BLOCK,)

    return shapedispatch(kernel, dims="n", grid=grid, store=False, name="launch.grid", **more)


def by_grid(kernel: Any) -> GridBound:
    """The kernel called as Triton kernels are, with a tuple for a grid."""
    return GridBound(kernel, (4,))


def compilers(count: int, turns: Sequence[Args]) -> tuple[Contenders, dict[str, str]]:
    """torch.compile, and Helion where it is installed; and why one is not among them."""
    found: Contenders = {}
    refused: dict[str, str] = {}
    for name, make in {COMPILED: lambda: torch.compile(fresh(summed), dynamic=False), HELION: helion_of}.items():
        try:
            fn = make() if name == COMPILED or count == COMPILED_IN_TURN else None
            if fn is not None:
                check(name, fn, turns)
                found[name] = fn
        except ImportError as error:
            installed = error.name != "helion"
            refused[name] = f"it cannot be imported: {error}" if installed else "it is not installed"
        except Exception as error:  # noqa: BLE001 - another's compiler, and the run goes on without it; the reason is kept
            refused[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return found, refused


def summed(*args: Any) -> None:
    """The sum in PyTorch's words, into the result's vector."""
    *vectors, out, _, _ = args
    total = vectors[0]
    for vector in vectors[1:]:
        total = total + vector
    out.copy_(total)


def helion_of() -> Callable[..., Any]:
    """The sum of two in Helion's words, with the block that every contender has.

    Helion 1.5 imports the name of an error from torch that 2.11 does not have, for its log: it is given one.
    """
    from torch._inductor.runtime import triton_compat

    if not hasattr(triton_compat, "IntelGPUError"):
        triton_compat.IntelGPUError = type("IntelGPUError", (Exception,), {})  # type: ignore[attr-defined]
    from helion_add import add_2

    kernel: Any = add_2(vector_add.BLOCK)
    return lambda a, b, out, n, block: kernel(a, b, out)


def inputs(count: int, size: int) -> Args:
    """``count`` vectors, the result's, the size, and the block that every contender has."""
    vectors = [torch.randn(size, device="cuda") for _ in range(count)]
    return (*vectors, torch.empty(size, device="cuda"), size, vector_add.BLOCK)


def check(name: str, fn: Callable[..., Any], turns: Sequence[Args]) -> None:
    """The sum is right at every shape; the calls are hits from here on."""
    for *vectors, out, size, block in turns:
        out.zero_()
        fn(*vectors, out, size, block)
        wanted = torch.stack([vector[:size] for vector in vectors]).sum(0)
        torch.testing.assert_close(out[:size], wanted, msg=lambda text: f"{name}: {text}")


# --- what a launch costs without any of it ---


def launches(kernel: Any, args: Args, calls: int) -> dict[str, Callable[[], float]]:
    """Samples of the driver's launch in C, of a graph's replay, and of Triton's own last step."""
    compiled = kernel.warmup(*args, grid=(4,))
    check(RUN, compiled_run(compiled), [args])  # loads it, too
    graph = captured(lambda: by_grid(kernel)(*args), 1)
    return {
        BARE: bare_launches(compiled, args, calls),
        REPLAY: loop_of(graph.replay, [()], calls),
        RUN: loop_of(compiled_run(compiled), [args], calls),
    }


def compiled_run(compiled: Any) -> Callable[..., Any]:
    """A launch of a kernel that is compiled already, by the entry that Triton's own launch ends in."""
    run = compiled.run
    stream = torch.cuda.current_stream().cuda_stream

    def call(*args: Any) -> Any:
        run(4, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *args)

    return call


def bare_launches(compiled: Any, args: Args, calls: int) -> Callable[[], float]:
    """The driver's launch alone, in a loop of C."""
    library = built(Path(__file__).with_name("bare_launch.c"))
    library.bare_launches.restype = ctypes.c_int64
    words = [arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args[:-1]]  # a constant is none
    words += [0] * 2  # the scratch pointers that some versions append; the driver reads no more than the kernel has
    values = (ctypes.c_uint64 * len(words))(*words)
    threads, shared = compiled.metadata.num_warps * 32, compiled.metadata.shared
    stream = torch.cuda.current_stream().cuda_stream

    def sample() -> float:
        took = library.bare_launches(
            ctypes.c_uint64(compiled.function), 4, threads, shared, ctypes.c_uint64(stream), values, len(words), calls
        )
        if took < 0:
            raise RuntimeError("the driver refused a bare launch")
        return took / 1e3 / calls

    return sample


def built(source: Path) -> ctypes.CDLL:
    """The C file as a library, compiled with what stands for ``cc``."""
    folder = tempfile.mkdtemp()
    library = Path(folder) / "bare_launch.so"
    subprocess.run(
        [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"], check=True
    )
    return ctypes.CDLL(str(library))


# --- by number of keys ---


def by_keys(count: int, calls: int, loops: int) -> dict[str, Any]:
    """The same call with one key in the table and with many; and all of those in turn."""
    kernel = vector_add.add_2
    few, many = (given_once(kernel, maxsize=2 * count) for _ in range(2))
    *vectors, out, _, block = inputs(2, -(-count // ELEMENTS) * ELEMENTS)
    hot: Args = (*vectors, out, ELEMENTS, block)
    others = [(*vectors, out, 1 + index, block) for index in range(count)]
    check("few", few, [hot])
    check("many", many, [hot, *others])
    contenders = {
        "1 key": (few, [hot]),
        f"{count} keys": (many, [hot]),
        f"{count} keys, in turn": (many, others),
    }
    return {"count": count, "times": host_contest(contenders, calls=max(calls, count), loops=loops)}


# --- telling ---


def bars(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each bar with what was measured, from one path's part as JSON has it."""
    for count, part in found["tensors"].items():
        one, many = ({name: Measured(**time) for name, time in part[title].items()} for title in (ONE, MANY))
        if count in ("2", "16"):
            most = {"2": 1.45, "16": 1.8}[count]
            yield {"what": f"ours / {BARE}, {count} tensors", "measured": ratio(one[GIVEN], one[BARE]), "at most": most}
        for other, least in ((JIT, 3.3), (AUTOTUNE, 5.5)) if count != "1" else ():
            for times, title in ((one, ONE), (many, MANY)):
                said = f"{other} / ours, {count} tensors, {title}"
                yield {"what": said, "measured": ratio(times[other], times[GIVEN]), "at least": least}
        more_us = excess_us(one[BY_CALL], one[GIVEN])
        yield {"what": f"µs that a grid at the call takes more, {count} tensors", "measured": more_us, "at most": 0.5}
    times, count = {name: Measured(**time) for name, time in found["keys"]["times"].items()}, found["keys"]["count"]
    flat = ratio(times[f"{count} keys"], times["1 key"])
    yield {"what": f"{count} keys / 1 key", "measured": flat, "at most": 1.1}


def show_bars(found: Sequence[Mapping[str, Any]]) -> None:
    """Each, and whether it holds."""
    rows = []
    for bar in found:
        side = "at most" if "at most" in bar else "at least"
        holds = bar["measured"] <= bar[side] if side == "at most" else bar["measured"] >= bar[side]
        rows.append((bar["what"], f"{bar['measured']:.3f}", f"{side} {bar[side]:g}", "holds" if holds else "MISSED"))
    print_table("bars, on the path in C", ("", "measured", "bar", ""), rows)


def show(fast_path: str, found: dict[str, Any]) -> None:
    """A table a number of tensors: µs a call, and each as a multiple of triton.jit and of triton.autotune."""
    used = "C" if found["c_road"] else "Python"
    CONSOLE.print(f"asked for the {fast_path} path, on the {used} path ({found['why'] or 'it is built and in use'})")
    for count, shapes in found["tensors"].items():
        for title in (ONE, TWO, MANY):
            measured = {name: Measured(**time) for name, time in shapes[title].items()}
            rows = [(name, time, *compared(measured, name)) for name, time in measured.items()]
            columns = ("contender", "µs a call", "× faster than jit", "× faster than autotune", "× bare")
            print_table(f"{count} tensors, {title}, {used} path", columns, rows)
    times = {name: Measured(**time) for name, time in found["keys"]["times"].items()}
    print_table(f"keys in the table, {used} path", ("", "µs a call"), times.items())


def compared(measured: Mapping[str, Measured], name: str) -> list[str]:
    """How a contender stands to triton.jit, to triton.autotune and to the floor, where that was measured."""
    cells = [f"{ratio(measured[base], measured[name]):.2f}" for base in (JIT, AUTOTUNE)]
    return [*cells, f"{ratio(measured[name], measured[BARE]):.2f}" if BARE in measured else ""]


if __name__ == "__main__":
    main()
