"""Which operators does compiled code get wrong at special values? Every operator of torch's own database, asked once.

What goes wrong at nan, at infinities, at large or tiny values or in the sign of a zero is a property of the operator,
its dtype, the device and the version of torch, and not of a call. So it is found out here, ahead of time: each operator
runs as written and compiled on the same values, and both are held against the operator in float64. Compiled code may
err by `FACTOR` times what plain errs by, and by `ULPS`. Each runs in a process of its own, since some end it.

`python benchmarks/operator_faults.py --only acosh` shows one operator; all take hours on two cores. Torch's database
needs the package expecttest. Nothing reads the table yet: the dispatcher still goes by one look at a call's numbers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SECONDS = 60
"""How long one operator may take before its process is ended."""
SAMPLES = 2
"""How many of an operator's sample calls are compiled."""
FACTOR = 4
"""How many times plain's own error a compiled result may have."""
ULPS = 2
"""An error of so many units in the last place is nobody's fault."""


def value_sets(dtype: torch.dtype) -> dict[str, list[float]]:
    """The kinds of values that an operator is tried with, by what they are called in the table."""
    info = torch.finfo(dtype)
    large = [1e8, -1e8, 1e4, 3e7, info.max, info.max / 2, -info.max]
    return {
        "ordinary": [],
        "nan": [float("nan")],
        "inf": [float("inf"), float("-inf")],
        "large": [value for value in large if abs(value) <= info.max],
        "small": [1e-7, -1e-7, 1e-6, 3e-6, info.tiny, info.tiny / 4, -info.tiny / 4],
        "zero": [0.0, -0.0],
        "negative": [-0.3, -1.0, -2.5, -7.0],
    }


def sprinkled(tensor: Tensor, values: Sequence[float], number: random.Random) -> Tensor:
    """A copy with the values at a third of its places, or at all of a tensor of one element."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or not values or tensor.numel() == 0:
        return tensor.clone()
    flat = tensor.detach().clone().reshape(-1)
    places = list(range(flat.numel()))
    for place in number.sample(places, max(1, len(places) // 3)):
        flat[place] = number.choice(list(values))
    return flat.reshape(tensor.shape)


def mapped(fn: Callable[[Tensor], Any], value: Any) -> Any:
    """The value with every tensor in it put through ``fn``."""
    return torch.utils._pytree.tree_map_only(Tensor, fn, value)


def widened(value: Any) -> Any:
    """Every floating tensor in double precision."""
    wide = {torch.complex64: torch.complex128}

    def one(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(wide.get(tensor.dtype, tensor.dtype))
        return tensor.double() if tensor.is_floating_point() else tensor.clone()

    return mapped(one, value)


def tensors(result: Any) -> list[Tensor]:
    """The tensors of a result, in order."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


@dataclass(frozen=True)
class Difference:
    """One place where compiled code is wrong and plain is not."""

    plain: float
    compiled: float
    right: float

    def text(self) -> str:
        """For the table."""
        return f"{self.compiled!r} where plain has {self.plain!r} and float64 {self.right!r}"


def first_difference(plain: Tensor, compiled: Tensor, right: Tensor) -> Difference | None:
    """The first place at which the compiled result is wrong and plain is not, or None."""
    if plain.is_complex():
        parts = zip(
            *(torch.view_as_real(one.resolve_conj()).unbind(-1) for one in (plain, compiled, right)), strict=True
        )
        return next((found for part in parts if (found := first_difference(*part)) is not None), None)
    if plain.shape != compiled.shape or plain.dtype != compiled.dtype:
        return Difference(float("nan"), float("nan"), float("nan"))
    if not plain.is_floating_point():
        bad = plain != compiled
    else:
        bad = wrong_floats(plain, compiled, right.to(torch.float64) if right.shape == plain.shape else plain.double())
    if not bool(bad.any()):
        return None
    place = bad.reshape(-1).nonzero()[0, 0]
    return Difference(*(float(one.reshape(-1)[place]) for one in (plain, compiled, right)))


def wrong_floats(plain: Tensor, compiled: Tensor, right: Tensor) -> Tensor:
    """Where a compiled float is none that plain's accuracy excuses."""
    p, c = plain.double(), compiled.double()
    special = ~torch.isfinite(p) | ~torch.isfinite(right)
    same = (p == c) | (p.isnan() & c.isnan()) | (c == right) | (c.isnan() & right.isnan())
    zero = (p == 0) & (c == 0) & (right == 0)
    sign = zero & (torch.signbit(p) != torch.signbit(c)) & (torch.signbit(p) == torch.signbit(right))
    info = torch.finfo(plain.dtype)
    ulp = torch.clamp(right.abs() * info.eps, min=info.tiny * info.eps)
    own = (p - right).abs()
    usual = torch.where(special, torch.zeros_like(own), own / ulp)
    finite = usual[~special]
    p99 = torch.quantile(finite.reshape(-1)[:100_000], 0.99) if finite.numel() else torch.tensor(0.0, dtype=own.dtype)
    allowed = FACTOR * torch.maximum(torch.maximum(own, p99 * ulp), ULPS * ulp)
    far = (c - right).abs() > allowed
    return sign | (~same & (special | far | ~torch.isfinite(c)))


def faults(op: Any, device: str, dtype: torch.dtype) -> dict[str, str]:
    """What is wrong with the operator, by kind of value; the text shows one place."""
    found: dict[str, str] = {}
    torch.manual_seed(0)
    for sample in itertools.islice(op.sample_inputs(device, dtype, requires_grad=False), SAMPLES):
        call = lambda *args, **kwargs: op.op(*args, **kwargs)  # noqa: E731 - a function of its own for each sample
        compiled = torch.compile(call, fullgraph=True, dynamic=False, options={"fallback_random": True})
        for kind, values in value_sets(dtype).items():
            if kind in found:
                continue
            number = random.Random(f"{op.name} {kind}")
            args = mapped(lambda tensor: sprinkled(tensor, values, number), (sample.input, *sample.args))  # noqa: B023
            told = judged(op, compiled, args, sample.kwargs)
            if told:
                found[kind] = told
    return found


def judged(op: Any, compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """What is wrong with one call, or None; a call that plain refuses must be refused by compiled code too."""
    try:
        with torch.no_grad():
            plain = op.op(*mapped(torch.clone, args), **mapped(torch.clone, dict(kwargs)))
    except Exception as error:  # noqa: BLE001 - any error of an operator's is what is to be compared
        try:
            compiled(*mapped(torch.clone, args), **mapped(torch.clone, dict(kwargs)))
        except Exception:  # noqa: BLE001 - as plain
            return None
        return f"it answers where plain raises {type(error).__name__}"
    try:
        with torch.no_grad():
            right = op.op(*widened(args), **widened(dict(kwargs)))
    except Exception:  # noqa: BLE001 - an operator without float64: plain's answer is all there is
        right = plain
    with torch.no_grad():
        got = compiled(*mapped(torch.clone, args), **mapped(torch.clone, dict(kwargs)))
    if len(tensors(right)) != len(tensors(plain)):
        right = plain
    for one, two, three in zip(tensors(plain), tensors(got), tensors(right), strict=False):
        if three.shape == one.shape and (difference := first_difference(one, two, three)) is not None:
            return difference.text()
    return None


# ------------------------------------------------------------------------------------------------------- the processes


def operators(dtypes: Sequence[torch.dtype], device: str) -> list[tuple[Any, torch.dtype]]:
    """Every operator of torch's database with each dtype that it takes, those left out that draw random numbers."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = []
    for op in op_db:
        if "random" in op.name or op.name in ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"):
            continue
        taken = op.supported_dtypes("cuda" if device == "cuda" else "cpu")
        found += [(op, dtype) for dtype in dtypes if dtype in taken]
    return found


def in_a_process(op: Any, device: str, dtype: torch.dtype) -> tuple[int, int]:
    """Start a process that writes what is wrong with the operator; its number and the end of a pipe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        os.close(reading)
        signal.alarm(SECONDS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            told: Any = faults(op, device, dtype)
    except BaseException as error:  # noqa: BLE001 - whatever stops it is the answer: nothing was found out
        told = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}"
    with os.fdopen(writing, "w") as pipe:
        json.dump(told, pipe)
    os._exit(0)


def answers(todo: Sequence[tuple[Any, torch.dtype]], device: str, jobs: int) -> Iterator[tuple[Any, torch.dtype, Any]]:
    """What each process told: kinds of values, or a text where it could not; so many run at once."""
    waiting, running = list(todo), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            op, dtype = waiting.pop(0)
            child, pipe = in_a_process(op, device, dtype)
            running[child] = (op, dtype, pipe)
        child, status = os.wait()
        op, dtype, pipe = running.pop(child)
        with os.fdopen(pipe) as reading:
            told = reading.read()
        yield op, dtype, json.loads(told) if told else f"its process ended with {status & 127 or status >> 8}"


def main() -> None:
    """Ask all, write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", help="an operator; may be repeated")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--first", type=int, help="only so many operators, drawn by a fixed seed")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    from torch import _dynamo  # noqa: F401 - once, before the processes are made
    from torch._inductor import compile_fx  # noqa: F401 - the same

    todo = operators((torch.float32, torch.bfloat16, torch.float16), chosen.device)
    if chosen.only:
        todo = [(op, dtype) for op, dtype in todo if op.name in chosen.only]
    if chosen.first:
        todo = random.Random(0).sample(todo, chosen.first)
    table: dict[str, dict[str, Any]] = {}
    unknown: dict[str, str] = {}
    start = time.monotonic()
    for count, (op, dtype, told) in enumerate(answers(todo, chosen.device, chosen.jobs), 1):
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        short = str(dtype).removeprefix("torch.")
        if isinstance(told, str):
            unknown[f"{name} {short}"] = told
        elif told:
            table.setdefault(name, {})[short] = told
        if count % 50 == 0 or chosen.only:
            took = time.monotonic() - start
            print(f"{count} of {len(todo)}, {took:.0f} s, {len(table)} in the table", file=sys.stderr, flush=True)
    document = {
        "torch": torch.__version__,
        "device": chosen.device,
        "asked": len(todo),
        "operators": dict(sorted(table.items())),
        "unknown": dict(sorted(unknown.items())),
    }
    text = json.dumps(document, indent=1)
    if chosen.out:
        chosen.out.write_text(text + "\n", "utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
