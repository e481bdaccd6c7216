"""Is any build refused that is as good as plain? Every operator of torch's own database, decorated, in eight ways.

Each operator's first sample runs decorated in float32, bfloat16 and float16, and in float32 under autocast, with and
without gradients. Where the build is refused for its numbers, this script runs the build, plain and the operator in
float64 itself, forward and backward, on the sample and on other values, and compares the largest and the mean error. It
shares no code with the check that has refused. A refusal is *false* where the build errs by no more than plain does.

`python benchmarks/false_refusals.py --jobs 16`; `--only softmax` shows one operator. Torch's database needs the package
expecttest.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from common import banner, options, write
from torch import Tensor

UNDETERMINED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Operators whose values are whatever the memory held: plain is not equal to itself."""
NUMBERS = ("where plain has", "differs in", "has nan", "other memory")
"""What the reasons of refusals for numbers hold."""


@dataclass(frozen=True)
class Way:
    """How an operator is called: the dtype of its sample, or ``autocast``; whether gradients are asked for."""

    kind: str
    grad: bool
    device: str

    @property
    def dtype(self) -> torch.dtype:
        """What the sample is made in."""
        return torch.float32 if self.kind == "autocast" else getattr(torch, self.kind)  # type: ignore[no-any-return]

    def around(self) -> AbstractContextManager[Any]:
        """What the calls run in."""
        return torch.autocast(self.device, torch.bfloat16) if self.kind == "autocast" else nullcontext()

    def serves(self, op: Any) -> bool:
        """Whether the operator can be called so."""
        known = op.supported_backward_dtypes(self.device) if self.grad else op.supported_dtypes(self.device)
        return self.dtype in known and (op.supports_autograd or not self.grad)

    def __str__(self) -> str:
        return self.kind + (" with gradients" if self.grad else "")


def asked(only: Sequence[str], device: str) -> list[tuple[Any, Way]]:
    """Every operator in every way that it runs in on the device."""
    from torch.testing._internal.common_methods_invocations import op_db

    kinds = ("float32", "bfloat16", "float16", "autocast")
    ways = [Way(kind, grad, device) for grad in (False, True) for kind in kinds]
    chosen = [op for op in op_db if (op.name in only if only else op.name not in UNDETERMINED)]
    return [(op, way) for op, way in itertools.product(chosen, ways) if way.serves(op)]


def tensors(value: Any) -> list[Tensor]:
    """The floating-point tensors of a call or a result, in order."""
    leaves = torch.utils._pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def changed(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """The arguments with each floating-point tensor put through ``fn``, others copied; with gradients as before."""

    def of(leaf: Tensor) -> Tensor:
        new = fn(leaf.detach()) if leaf.is_floating_point() else leaf.detach().clone()
        return new.requires_grad_(leaf.requires_grad)

    return torch.utils._pytree.tree_map_only(Tensor, of, value)


def answers(fn: Callable[..., Any], call: Any, way: Way, cotangents: int) -> list[Tensor]:
    """What the call gives: its results, and the gradients of its inputs for random cotangents."""
    with torch.set_grad_enabled(way.grad):
        results = tensors(fn(*call[0], **call[1]))
    differentiable = [result for result in results if result.requires_grad]
    inputs = [tensor for tensor in tensors(call) if tensor.requires_grad]
    found = [result.detach() for result in results]
    if differentiable and inputs:
        torch.manual_seed(cotangents)
        given = [torch.rand(one.shape, device=one.device, dtype=torch.bfloat16).to(one.dtype) for one in differentiable]
        found += [
            one for one in torch.autograd.grad(differentiable, inputs, given, allow_unused=True) if one is not None
        ]
    return found


def errors(results: Sequence[Tensor], right: Sequence[Tensor]) -> tuple[float, float]:
    """The largest and the mean error; infinite where one is no number and the other is."""
    if [t.shape for t in results] != [t.shape for t in right]:
        return math.inf, math.inf
    largest, total, count = 0.0, 0.0, 0
    for one, exact in zip(results, right, strict=True):
        off = (one.double() - exact.double()).abs()
        same = (one.double() == exact.double()) | (one.isnan() & exact.isnan())
        off = torch.where(same, 0.0, off.nan_to_num(math.inf, math.inf, math.inf))
        if off.numel():
            largest = max(largest, float(off.max()))
            total, count = total + float(off.sum()), count + off.numel()
    return largest, total / max(count, 1)


def compared(op: Any, build: Callable[..., Any], way: Way, call: Any) -> Iterator[tuple[float, ...]]:
    """The errors of the build and of plain, on the sample and on other values of its scale."""
    for seed, spread in enumerate((0.0, 0.3)):
        torch.manual_seed(seed)
        given = changed(call, lambda t, s=spread: t * (1 + s * torch.rand_like(t)))  # type: ignore[misc]
        right = answers(op.op, changed(given, Tensor.double), way, seed)
        with way.around():
            by_build = answers(build, changed(given, Tensor.clone), way, seed)
            by_plain = answers(op.op, changed(given, Tensor.clone), way, seed)
        yield (*errors(by_build, right), *errors(by_plain, right))


def asked_of(op: Any, way: Way) -> dict[str, Any]:
    """Whether a build was refused for its numbers, and whether it is worse than plain."""
    from shapedispatch import shapedispatch

    torch.manual_seed(0)
    sample = next(iter(op.sample_inputs(way.device, way.dtype, requires_grad=way.grad)))
    call = ((sample.input, *sample.args), sample.kwargs)

    def asked(*args: Any, **kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    f = shapedispatch(asked, exact=True, hints=(), store=False, mutates=())
    with way.around(), torch.set_grad_enabled(way.grad):
        f(*call[0], **call[1])
    choices = f.choices()
    reasons = [reason for choice in choices for r in choice.refusals if r.variant == "exact" for reason in r.reasons]
    told = next((reason for reason in reasons if any(part in reason for part in NUMBERS)), None)
    builds = list(f.core.table.builds())
    found: dict[str, Any] = {"operator": op.name, "way": str(way), "built": bool(builds), "refused": told}
    if told and builds:
        found["errors"] = list(compared(op, builds[0].run, way, call))
        found["false"] = not any(b > p for e in found["errors"] for b, p in ((e[0], e[2]), (e[1], e[3])))
    return found


def work(part: str, chosen: argparse.Namespace) -> None:
    """Ask every n-th operator, a line of JSON each."""
    index, count = map(int, part.split("/"))
    for number, (op, way) in list(enumerate(asked(chosen.only, chosen.device)[index::count]))[chosen.skip :]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = asked_of(op, way)
        except Exception as error:  # noqa: BLE001 - a sample that does not run has nothing to show
            found = {"operator": op.name, "way": str(way), "failed": f"{type(error).__name__}: {error}"[:200]}
        torch._dynamo.reset()
        print(json.dumps(found | {"number": number}), flush=True)


def gathered(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """What all processes tell; one that ends is started again after the operator that ended it."""
    files = [tempfile.TemporaryFile("w+") for _ in range(chosen.jobs)]  # noqa: SIM115 - they outlive this line
    running: dict[int, subprocess.Popen[Any]] = {}
    until = time.monotonic() + chosen.seconds

    def start(i: int, skip: int) -> None:
        command = [sys.executable, __file__, "--part", f"{i}/{chosen.jobs}", "--skip", str(skip)]
        command += ["--device", chosen.device, *(part for name in chosen.only for part in ("--only", name))]
        running[i] = subprocess.Popen(command, stdout=files[i], stderr=subprocess.DEVNULL)

    def told(i: int) -> list[dict[str, Any]]:
        files[i].seek(0)
        return [json.loads(line) for line in files[i] if line.startswith("{") and line.endswith("\n")]

    for i in range(chosen.jobs):
        start(i, 0)
    while running and time.monotonic() < until:
        time.sleep(1)
        for i, process in list(running.items()):
            if process.poll() is not None:
                del running[i]
                if process.returncode:
                    start(i, told(i)[-1]["number"] + 2 if told(i) else 1)
    for process in running.values():
        process.kill()
    return [line for i in range(chosen.jobs) for line in told(i)]


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--jobs", type=int, default=2, help="how many processes at a time")
    parser.add_argument("--only", action="append", default=[], help="ask this operator alone")
    parser.add_argument("--seconds", type=float, default=math.inf, help="ask no more after so many")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask all, print, write. Returns the exit code: 1 where a refusal is false."""
    chosen = options(__doc__, arguments, devices=("cpu", "cuda"), more=own_options)
    torch.set_num_threads(1)
    if chosen.part:
        work(chosen.part, chosen)
        return 0
    chosen.only = chosen.only or (["softmax", "exp"] if chosen.small else [])
    where = banner(chosen.device)
    begun = time.monotonic()
    lines = gathered(chosen)
    refused = sorted((one for one in lines if "errors" in one), key=lambda one: (one["operator"], one["way"]))
    found = {
        "seconds": round(time.monotonic() - begun),
        "jobs": chosen.jobs,
        "asked": len(asked(chosen.only, chosen.device)),
        "answered": len(lines),
        "built": sum(one.get("built", False) for one in lines),
        "failed": dict(Counter(one["failed"].split(":")[0] for one in lines if "failed" in one)),
        "refused": len(refused),
        "false": sum(one["false"] for one in refused),
        "refusals": refused,
    }
    for one in refused:
        print(f"{'FALSE' if one['false'] else 'worse'}  {one['operator']}, {one['way']}: {one['refused']}")
    print({name: value for name, value in found.items() if name != "refusals"})
    write(__file__, found, where, chosen)
    return int(bool(found["false"]))


if __name__ == "__main__":
    sys.exit(main())
