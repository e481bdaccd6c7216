"""What a process of ours does that compiles for another: a job in, compiled code or the reason why not out.

It looks at the numbers of what it has compiled, too, where no value of the caller's can matter: no call waits for that.
On a GPU it has run once by then, at the sizes that it was compiled for, where Inductor tries the configs of kernels.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import sympy  # type: ignore[import-untyped]  # it has no types
import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode

from ...autotune.measure import device_answers, free_memory
from ...background.child_main import LastAnswer
from ...errors import in_a_line
from ...keys.identity import environment
from ...keys.tree import device_of, tensors
from ...private import why_off
from ...store.artifacts import KeptJob, made_by
from ..checks.graph_check import GraphCheck, NotJudged, Verdict
from .artifact import Artifact, Checked, ShapeConditions, loaded, recorded, saved
from .autograd import say_nothing_donated
from .code import Code
from .inductor import compiler
from .parcel import Job, graph_of
from .tracer import compiler_config

__all__ = ["compiled"]

CHECK_SECONDS, CHECK_BYTES, CHECK_SHARE = 5.0, {"cpu": 1 << 25, "cuda": 1 << 29}, 0.1
"""How long a run in double precision may take here, how many bytes inputs, and what share of free memory all of it.

Nobody waits for it: seconds go by where a GPU loads each kernel from a slow disk. What is not known here, a call finds.
"""
TOO_LARGE, NO_SIZES = "what it is given is too large", "no sizes are known that it is for"
_SIZES = (53, 47, 59, 43, 61, 41, 37, 31)
"""Sizes for those that vary: small, unlike each other, and no multiples of what code does at a time."""


def compiled(job: bytes) -> bytes:
    """An `Artifact` for a `parcel.Job`, or the sentence why there is none; both pickled.

    In a `KeptJob` it is kept as well, and in time: whoever has been answered may end this process. Raises LastAnswer
    where no other can be made here.
    """
    try:
        asked = pickle.loads(job)
        answer = pickle.dumps(_artifact(asked.job if isinstance(asked, KeptJob) else job))
    except Exception as error:  # noqa: BLE001 - whatever stops the compiler is this build's refusal; it is told
        return pickle.dumps(in_a_line(error))
    if isinstance(asked, KeptJob):
        asked.keep(answer)
    if not device_answers():
        raise LastAnswer(answer)
    return answer


def _artifact(sent: bytes) -> Artifact:
    if why := why_off("compiling"):
        raise RuntimeError(why)
    job: Job = pickle.loads(sent)
    job.operators.define()
    gm, inputs, mode = graph_of(job)
    code = Code()
    with job.state.entered():
        with compiler_config(job.tag, job.number_inputs), recorded(), tracing(TracingContext(mode)):
            compiler(job.options, code)(gm, inputs)
            say_nothing_donated()
            artifact = replace(saved(code, inputs), tag=job.tag)
        digits = _digits_where_right(job, artifact, code.check, inputs)
        if isinstance(digits, str):
            return replace(artifact, unchecked=digits)
        where = made_by(environment(device_of(tensors(inputs))))
        return replace(artifact, checked=Checked(digits, artifact.digest(), sha256(sent).hexdigest(), where))


def _digits_where_right(job: Job, artifact: Artifact, check: GraphCheck | None, inputs: Sequence[Any]) -> int | str:
    """The digits of its arithmetic, where its numbers are right whatever the caller's; in any doubt, why not.

    What is run is what the other process will load. No operator of the user's is run on values that are made up, and
    numbers among the inputs are the caller's.
    """
    if check is None or job.operators.schemas or job.number_inputs:
        return "it has no graph to be held against, operators of the user's, or numbers of the caller's"
    code = Code()
    try:
        verdict = _verdict(
            GraphCheck(check.graph, loaded(artifact, code), seconds=CHECK_SECONDS, draws=code.draws), artifact, inputs
        )
    except Exception as error:  # noqa: BLE001 - a candidate is judged here, and the reason kept
        return in_a_line(error)
    finally:
        code.release()
    return verdict.wrong or verdict.unjudged or verdict.digits


def _verdict(judge: GraphCheck, artifact: Artifact, inputs: Sequence[Any]) -> Verdict:
    """Whether it is right; raises NotJudged, and whatever running it raises."""
    device = device_of(tensors(inputs))
    room = int(CHECK_SHARE * free_memory(device))
    small, traced = _sizes(inputs, artifact.conditions)
    if device.type == "cpu":
        return judge.verdict_for_any(_made_up(inputs, small), room)
    try:
        _refuse_reads(judge, inputs, traced)
        ran = _made_up(inputs, _fitting(inputs, traced, artifact.conditions))
        return judge.first_run(ran, room) or judge.verdict_for_any(_made_up(inputs, small), room)
    finally:
        torch.cuda.empty_cache()  # what this process holds the program cannot have


def _refuse_reads(judge: GraphCheck, inputs: Sequence[Any], sizes: Mapping[Any, int]) -> None:
    """Raise NotJudged where an operator looks at values: one of those that are made up may stop a GPU for good."""
    with FakeTensorMode():
        if name := judge.value_read([_filled(one, sizes) for one in inputs]):
            raise NotJudged(f"{name} reads values")


def _sizes(inputs: Sequence[Any], conditions: ShapeConditions) -> tuple[Mapping[Any, int], Mapping[Any, int]]:
    """Small sizes for those that vary, where it takes such, and those that it was compiled for; raises NotJudged."""
    traced = {one.node.expr: int(one.node.hint) for one in inputs if isinstance(one, torch.SymInt)}
    small: dict[Any, int] = {}
    for symbol, size in traced.items():
        small[symbol] = next((one for one in _SIZES if one < size and one not in small.values()), size)
    for sizes in (small, traced):
        if _hold(conditions, inputs, sizes):
            return sizes, traced
    raise NotJudged(NO_SIZES)


def _fitting(inputs: Sequence[Any], sizes: Mapping[Any, int], conditions: ShapeConditions) -> Mapping[Any, int]:
    """These sizes, halved until what is given fits: a kernel's best config is sought on what fills a GPU as they do."""
    halved = sizes
    while _bytes(inputs, halved) > CHECK_BYTES["cuda"]:
        before, halved = halved, {symbol: max(size // 2, 2) for symbol, size in halved.items()}
        if before == halved:
            raise NotJudged(TOO_LARGE)
    if halved is not sizes and not _hold(conditions, inputs, halved):
        raise NotJudged(NO_SIZES)
    return halved


def _hold(conditions: ShapeConditions, inputs: Sequence[Any], sizes: Mapping[Any, int]) -> bool:
    return conditions.hold([_size(one, sizes) if isinstance(one, torch.SymInt) else one for one in inputs])


def _bytes(inputs: Sequence[Any], sizes: Mapping[Any, int]) -> int:
    """How many the tensors take: they are meta, so that what is too large is never allocated."""
    meta = torch.device("meta")
    return sum(_like(one, sizes, meta).untyped_storage().nbytes() for one in tensors(inputs))


def _made_up(inputs: Sequence[Any], sizes: Mapping[Any, int]) -> list[Any]:
    """Inputs for the graph that look like these; raises NotJudged."""
    device, given = device_of(tensors(inputs)), [*tensors(inputs)]
    if any(one.device not in (device, torch.device("cpu")) for one in given):
        raise NotJudged("it runs on several devices")
    if _bytes(inputs, sizes) > CHECK_BYTES.get(device.type, 0):
        raise NotJudged(TOO_LARGE)
    return [_filled(one, sizes) for one in inputs]


def _filled(one: Any, sizes: Mapping[Any, int]) -> Any:
    return _like(one, sizes, one.device) if isinstance(one, Tensor) else _size(one, sizes)


def _like(fake: Tensor, sizes: Mapping[Any, int], device: torch.device) -> Tensor:
    size, stride = ([_size(one, sizes) for one in each] for each in (fake.size(), fake.stride()))
    made = torch.empty_strided(size, stride, dtype=fake.dtype, device=device)
    return made.requires_grad_() if fake.requires_grad else made


def _size(one: Any, sizes: Mapping[Any, int]) -> int:
    """A size, where those that vary are so large; raises NotJudged."""
    if not isinstance(one, torch.SymInt):
        return int(one)
    found = one.node.expr.xreplace({symbol: sympy.Integer(size) for symbol, size in sizes.items()})
    if not found.is_Integer:
        raise NotJudged("its sizes are made of others than it is given")
    return int(found)
