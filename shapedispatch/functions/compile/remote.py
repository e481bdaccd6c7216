"""What a process of ours does that compiles for another: a job in, compiled code or the reason why not out.

It looks at the numbers of what it has compiled, too, where no value of the caller's can matter: no call waits for that.
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

from ...autotune.measure import free_memory
from ...errors import in_a_line
from ...keys.identity import environment
from ...store.artifacts import KeptJob, made_by
from .artifact import Artifact, Checked, ShapeConditions, loaded, recorded, saved
from .code import Code
from .graph import say_nothing_donated
from .graph_check import GraphCheck, NotJudged
from .inductor import compiler
from .parcel import Job, graph_of
from .tracer import compiler_config

__all__ = ["compiled"]

CHECK_SECONDS, CHECK_BYTES, CHECK_SHARE = 1.0, 1 << 25, 0.1
"""How long a run in double precision may take here, how many bytes inputs, and what share of free memory all of it."""
_SIZES = (53, 47, 59, 43, 61, 41, 37, 31)
"""Sizes for those that vary: small, unlike each other, and no multiples of what code does at a time."""
_CPU = torch.device("cpu")


def compiled(job: bytes) -> bytes:
    """An `Artifact` for a `parcel.Job`, or the sentence why there is none; both pickled.

    In a `KeptJob` it is kept as well, and in time: whoever has been answered may end this process.
    """
    try:
        asked = pickle.loads(job)
        answer = pickle.dumps(_artifact(asked.job if isinstance(asked, KeptJob) else job))
    except Exception as error:  # noqa: BLE001 - whatever stops the compiler is this build's refusal; it is told
        return pickle.dumps(in_a_line(error))
    if isinstance(asked, KeptJob):
        asked.keep(answer)
    return answer


def _artifact(sent: bytes) -> Artifact:
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
        where = made_by(environment(_CPU))
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
        made = _made_up(inputs, artifact.conditions)
        judge = GraphCheck(check.graph, loaded(artifact, code), seconds=CHECK_SECONDS)
        verdict = judge.verdict_for_any(made, int(CHECK_SHARE * free_memory(_CPU)))
    except Exception as error:  # noqa: BLE001 - a candidate is judged here, and the reason kept
        return in_a_line(error)
    finally:
        code.release()
    return verdict.wrong or verdict.unjudged or verdict.digits


def _made_up(inputs: Sequence[Any], conditions: ShapeConditions) -> list[Any]:
    """Inputs for the graph that look like these, on a CPU and of small sizes; raises NotJudged."""
    traced = {one.node.expr: int(one.node.hint) for one in inputs if isinstance(one, torch.SymInt)}
    small: dict[Any, int] = {}
    for symbol, size in traced.items():
        small[symbol] = next((one for one in _SIZES if one < size and one not in small.values()), size)
    for sizes in (small, traced):
        if conditions.hold([_size(one, sizes) if isinstance(one, torch.SymInt) else one for one in inputs]):
            return _of_sizes(inputs, sizes)
    raise NotJudged("no sizes are known that it is for")


def _of_sizes(inputs: Sequence[Any], sizes: Mapping[Any, int]) -> list[Any]:
    tensors = [one for one in inputs if isinstance(one, Tensor)]
    if any(one.device != _CPU for one in tensors):
        raise NotJudged("it runs on a device that is the caller's")
    # Meta first: what is too large is never allocated.
    made = [_like(one, sizes, "meta") for one in tensors]
    if sum(one.untyped_storage().nbytes() for one in made) > CHECK_BYTES:
        raise NotJudged("what it is given is too large")
    return [_like(one, sizes, "cpu") if isinstance(one, Tensor) else _size(one, sizes) for one in inputs]


def _like(fake: Tensor, sizes: Mapping[Any, int], device: str) -> Tensor:
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
