"""What does the host pay to launch a kernel whose shape is known, beside Triton and beside the driver itself?

An elementwise sum of 2, 8 or 16 vectors of 4,096 floats, so that a call's time is the launch's. Contenders, in one run:
``cuLaunchKernel`` in a loop of C (the floor), ``CompiledKernel.run`` of a compiled kernel, ``triton.jit``,
``triton.autotune``, and the dispatcher over both, on the Python road and (where it is built) on the C road; one shape
again and again, and 64 in turn.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import CONSOLE, Measured, banner, host_contest, options, print_table, ratio, summary, write
from kernels import vector_add

COUNTS = (2, 8, 16)
ELEMENTS, SHAPES = 4096, 64
ROADS = {"Python": "false", "C": "true"}
BARE, RUN, JIT, AUTOTUNE = "cuLaunchKernel in C", "CompiledKernel.run", "triton.jit", "triton.autotune"
Args = tuple[Any, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write. One process a road, since the road is chosen once; contenders are in both."""
    chosen = options(__doc__, arguments)
    if chosen.device != "cuda":
        CONSOLE.print("launch_overhead.py launches kernels: it needs a GPU, and there is none here")
        return
    ran_on = banner("cuda")
    here = next((road for road, setting in ROADS.items() if os.environ.get("SHAPEDISPATCH_HOTPATH") == setting), None)
    found = {here: on_this_road(chosen)} if here else {road: in_a_process(road, chosen) for road in ROADS}
    if here is None:
        for road, one in found.items():
            show(road, one)
    write(__file__, found, ran_on, chosen)


def in_a_process(road: str, chosen: argparse.Namespace) -> Any:
    """The same script with the road set."""
    import json

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, __file__, "--json", str(path), *(["--small"] if chosen.small else [])]
        environment = {**os.environ, "SHAPEDISPATCH_HOTPATH": ROADS[road]}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())[road]


def on_this_road(chosen: argparse.Namespace) -> dict[str, Any]:
    """Every number of tensors, with what the process says of its road."""
    from shapedispatch import hotpath

    loops, calls = (5, 500) if chosen.small else (11, 3000)
    tables = {str(count): of_count(count, calls, loops) for count in COUNTS}
    return {"c_road": bool(hotpath.hotpath_available), "why": hotpath.hotpath_reason, "tensors": tables}


def of_count(count: int, calls: int, loops: int) -> dict[str, Any]:
    """One number of tensors: results first, then the times of one shape and of 64 in turn."""
    import triton

    kernel = getattr(vector_add, f"add_{count}")
    tuned = triton.autotune([triton.Config({}, num_warps=warps) for warps in (4, 8)], key=["n"])(kernel)
    contenders = dispatchers(kernel, tuned) | {JIT: by_grid(kernel), AUTOTUNE: by_grid(tuned)}
    turns = [inputs(count, ELEMENTS - 16 * index) for index in range(SHAPES)]
    for name, fn in contenders.items():
        check(name, fn, turns)
    compiled = kernel.warmup(*turns[0], BLOCK=vector_add.BLOCK, grid=(4,))
    one = host_contest({name: (fn, turns[:1]) for name, fn in contenders.items()}, calls=calls, loops=loops)
    many = host_contest({name: (fn, turns) for name, fn in contenders.items()}, calls=calls, loops=loops)
    run = host_contest({RUN: (compiled_run(compiled), turns[:1])}, calls=calls, loops=loops)
    bare = {BARE: bare_launch(compiled, turns[0], calls, loops)}
    torch.cuda.synchronize()
    return {"one shape": {**bare, **run, **one}, "64 shapes in turn": {**bare, **many}}


def dispatchers(kernel: Any, tuned: Any) -> dict[str, Callable[..., Any]]:
    """The kernel and the autotuned kernel under the decorator, the grid given at the call or at the decorator."""
    from shapedispatch import shapedispatch

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return ((meta["n"] + vector_add.BLOCK - 1) // vector_add.BLOCK,)

    given_once = shapedispatch(kernel, dims="n", grid=grid, store=False, name="launch.grid")
    return {
        "shapedispatch, d[grid]": by_grid(shapedispatch(kernel, dims="n", store=False, name="launch.jit")),
        "shapedispatch, grid= given": lambda *args: given_once(*args, BLOCK=vector_add.BLOCK),
        "shapedispatch over autotune": by_grid(shapedispatch(tuned, store=False, name="launch.tuned")),
    }


def by_grid(kernel: Any) -> Callable[..., Any]:
    """The kernel called as Triton kernels are, with a tuple for a grid."""
    block = vector_add.BLOCK

    def call(*args: Any) -> Any:
        return kernel[(4,)](*args, BLOCK=block)

    return call


def inputs(count: int, size: int) -> Args:
    """``count`` vectors, the result's, and the size."""
    vectors = [torch.randn(size, device="cuda") for _ in range(count)]
    return (*vectors, torch.empty(size, device="cuda"), size)


def check(name: str, fn: Callable[..., Any], turns: Sequence[Args]) -> None:
    """The sum is right at every shape; the calls are hits from here on."""
    for *vectors, out, size in turns:
        out.zero_()
        fn(*vectors, out, size)
        torch.testing.assert_close(out, torch.stack(vectors).sum(0), msg=lambda text: f"{name}: {text}")


def compiled_run(compiled: Any) -> Callable[..., Any]:
    """A launch of a kernel that is compiled already, by the entry that Triton's own launch ends in."""
    run = compiled.run
    stream = torch.cuda.current_stream().cuda_stream

    def call(*args: Any) -> Any:
        run(4, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *args, vector_add.BLOCK)

    return call


def bare_launch(compiled: Any, args: Args, calls: int, loops: int) -> Measured:
    """The driver's launch alone, in a loop of C."""
    library = built(Path(__file__).with_name("bare_launch.c"))
    library.bare_launches.restype = ctypes.c_int64
    words = [arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args]
    words += [0] * 2  # the scratch pointers that some versions append; the driver reads no more than the kernel has
    values = (ctypes.c_uint64 * len(words))(*words)
    threads, shared = compiled.metadata.num_warps * 32, compiled.metadata.shared
    stream = torch.cuda.current_stream().cuda_stream
    samples = []
    for _ in range(loops):
        took = library.bare_launches(
            ctypes.c_uint64(compiled.function), 4, threads, shared, ctypes.c_uint64(stream), values, len(words), calls
        )
        if took < 0:
            raise RuntimeError("the driver refused a bare launch")
        samples.append(took / 1e3 / calls)
        torch.cuda.synchronize()
    return summary(samples)


def built(source: Path) -> ctypes.CDLL:
    """The C file as a library, compiled with what stands for ``cc``."""
    folder = tempfile.mkdtemp()
    library = Path(folder) / "bare_launch.so"
    subprocess.run(
        [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"], check=True
    )
    return ctypes.CDLL(str(library))


def show(road: str, found: dict[str, Any]) -> None:
    """A table a number of tensors: µs a call, and each as a multiple of triton.jit and of triton.autotune."""
    used = "C" if found["c_road"] else "Python"
    CONSOLE.print(f"asked for the {road} road, on the {used} road ({found['why'] or 'it is built and in use'})")
    for count, shapes in found["tensors"].items():
        for title, times in shapes.items():
            measured = {name: Measured(**time) if isinstance(time, dict) else time for name, time in times.items()}
            rows = [
                (
                    name,
                    time,
                    *(f"{ratio(measured[base], time):.2f}" for base in (JIT, AUTOTUNE)),
                    f"{ratio(time, measured[BARE]):.2f}",
                )
                for name, time in measured.items()
            ]
            columns = ("contender", "µs a call", "× faster than jit", "× faster than autotune", "× bare")
            print_table(f"{count} tensors, {title}, {used} road", columns, rows)


if __name__ == "__main__":
    main()
