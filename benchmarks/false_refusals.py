"""Is any build refused that is as good as plain? Every operator of torch's own database, decorated, in four ways.

Each operator's sample calls run decorated in float32, bfloat16 and float16, and in float32 under autocast. Where the
build is refused for its numbers, this script runs the build, plain and the operator in float64 itself, on the sample
and on other values, and compares the largest and the mean error. It shares no code with the check that has refused. A
refusal is *false* where the build errs by no more than plain does.

`python benchmarks/false_refusals.py --jobs 16 --json FILE`; `--only softmax` shows one operator. Torch's database needs
the package expecttest.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WAYS = ("float32", "bfloat16", "float16", "autocast")
SAMPLES = 1
"""Sample calls of each operator and way."""
NUMBERS = ("where plain has", "differs in", "has nan", "other memory")
"""What the reasons of refusals for numbers hold."""


def asked(only: Sequence[str]) -> list[tuple[Any, str]]:
    """Every operator in every way that it runs in on the CPU."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = []
    for op, way in itertools.product(op_db, WAYS):
        if dtype_of(way) in op.supported_dtypes("cpu") and (not only or op.name in only):
            found.append((op, way))
    return found


def dtype_of(way: str) -> torch.dtype:
    """What the samples are made in."""
    return torch.float32 if way == "autocast" else getattr(torch, way)  # type: ignore[no-any-return]


def around(way: str) -> AbstractContextManager[Any]:
    """What the calls run in."""
    return torch.autocast("cpu", torch.bfloat16) if way == "autocast" else nullcontext()


def floats(value: Any) -> list[Tensor]:
    """The floating-point tensors of a result, in order."""
    leaves = torch.utils._pytree.tree_leaves(value)
    return [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def changed(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """The arguments with each floating-point tensor put through ``fn``, others copied."""
    return torch.utils._pytree.tree_map_only(
        Tensor, lambda t: fn(t.detach()) if t.is_floating_point() else t.detach().clone(), value
    )


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


def compared(op: Any, build: Callable[..., Any], way: str, args: Any, kwargs: Any) -> Iterator[tuple[float, ...]]:
    """The errors of the build and of plain, on the sample and on other values of its scale."""
    torch.manual_seed(3)
    for spread in (0.0, 0.3):
        given = changed((args, kwargs), lambda t, s=spread: t * (1 + s * torch.rand_like(t)))  # type: ignore[misc]
        with torch.no_grad():
            wide = changed(given, Tensor.double)
            right = floats(op.op(*wide[0], **wide[1]))
            with around(way):
                plain, again = changed(given, Tensor.clone), changed(given, Tensor.clone)
                yield (*errors(floats(build(*again[0])), right), *errors(floats(op.op(*plain[0], **plain[1])), right))


def refusals(op: Any, way: str) -> Iterator[dict[str, Any]]:
    """What is refused for its numbers, and whether it is worse than plain."""
    from shapedispatch import shapedispatch

    torch.manual_seed(0)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype_of(way), requires_grad=False), SAMPLES):
        kwargs = sample.kwargs
        f = shapedispatch(lambda *args, kw=kwargs: op.op(*args, **kw), exact=True, hints=(), store=False, mutates=())
        args = (sample.input, *sample.args)
        with around(way), torch.no_grad():
            f(*args)
            choices = f.choices()
        reasons = [
            reason for choice in choices for r in choice.refusals if r.variant == "exact" for reason in r.reasons
        ]
        told = next((reason for reason in reasons if any(part in reason for part in NUMBERS)), None)
        builds = list(f.core.table.builds())
        yield {"built": bool(builds), "refused": told}
        if told and builds:
            found = list(compared(op, builds[0].run, way, args, kwargs))
            worse = any(b > p for one in found for b, p in ((one[0], one[2]), (one[1], one[3])))
            yield {"operator": op.name, "way": way, "reason": told, "errors": found, "false": not worse}


def work(part: str, only: Sequence[str], skip: int) -> None:
    """Ask every n-th operator, a line of JSON each."""
    index, count = map(int, part.split("/"))
    for number, (op, way) in list(enumerate(asked(only)[index::count]))[skip:]:
        lines: list[dict[str, Any]] = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                lines = list(refusals(op, way))
        except Exception as error:  # noqa: BLE001 - a sample that does not run has nothing to show
            lines = [{"failed": f"{op.name} {way}: {type(error).__name__}"}]
        torch._dynamo.reset()
        print(json.dumps({"number": number, "lines": lines}), flush=True)


def gathered(jobs: int, only: Sequence[str], until: float) -> list[dict[str, Any]]:
    """What all processes tell; one that ends is started again after the operator that ended it."""
    files = [tempfile.TemporaryFile("w+") for _ in range(jobs)]  # noqa: SIM115 - they outlive this line
    running: dict[int, subprocess.Popen[Any]] = {}

    def start(i: int, skip: int) -> None:
        command = [sys.executable, __file__, "--part", f"{i}/{jobs}", "--skip", str(skip)]
        command += [part for name in only for part in ("--only", name)]
        running[i] = subprocess.Popen(command, stdout=files[i], stderr=subprocess.DEVNULL)

    def told(i: int) -> list[dict[str, Any]]:
        files[i].seek(0)
        return [json.loads(line) for line in files[i] if line.startswith("{") and line.endswith("\n")]

    for i in range(jobs):
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
    return [line for i in range(jobs) for one in told(i) for line in one["lines"]]


def main() -> None:
    """Ask all, write the list."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--seconds", type=float, default=math.inf, help="ask no more after so many")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.part:
        work(chosen.part, chosen.only, chosen.skip)
        return
    begun = time.monotonic()
    lines = gathered(chosen.jobs, chosen.only, begun + chosen.seconds)
    listed = sorted((line for line in lines if "operator" in line), key=lambda line: (line["operator"], line["way"]))
    document = {
        "torch": torch.__version__,
        "command": " ".join(["python", "benchmarks/false_refusals.py", *sys.argv[1:]]),
        "seconds": round(time.monotonic() - begun),
        "operators_and_ways": len(asked(chosen.only)),
        "calls": sum("built" in line for line in lines),
        "built": sum(bool(line.get("built")) for line in lines),
        "refused": len(listed),
        "false": sum(line["false"] for line in listed),
        "refusals": listed,
    }
    text = json.dumps(document, indent=1)
    if chosen.json:
        chosen.json.write_text(text + "\n", "utf-8")
    print(json.dumps({name: value for name, value in document.items() if name != "refusals"}, indent=1))


if __name__ == "__main__":
    main()
