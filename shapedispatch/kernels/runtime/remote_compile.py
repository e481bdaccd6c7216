"""What a process of ours does that compiles kernels for another: what Triton has compiled lies in its cache then.

No GPU is asked for anything: what is compiled for stands in the job.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...background.orders import Compiler
from ...effects import Effects
from ...errors import in_a_line
from ...interpreter.failures import what_fails
from .compile_request import CompileRequest
from .mutation_analysis import effects_of
from .sent_kernel import SentKernel, Untransportable

__all__ = ["COMPILER", "KernelJob", "RequestResult", "compiled", "result_of"]

COMPILER = Compiler("shapedispatch.kernels.runtime.remote_compile:compiled", here_s=0.005, child_s=1.0)


@dataclass(frozen=True)
class KernelJob:
    """Compilations of one kernel, with the parameters ``static`` as constants; ``cache`` is where Triton keeps them."""

    kernel: SentKernel
    static: Sequence[str]
    requests: Mapping[str, CompileRequest]
    cache: str


class RequestResult(NamedTuple):
    """What has come of a request: ``why`` it is not compiled, and whether that is for what the kernel is.

    With no such reason it is, and ``effects`` is what it writes, which a call would wait for where that is read.
    """

    why: str
    of_the_kernel: bool = True
    effects: Effects | None = None


def compiled(job: bytes) -> bytes:
    """What has come of each of a `KernelJob`'s requests, by name, as `RequestResult`; or why nothing has. Pickled."""
    try:
        return pickle.dumps(_all_compiled(pickle.loads(job)))
    except Exception as error:  # noqa: BLE001 - whatever keeps it from being made here is this job's refusal; it is told
        return pickle.dumps(in_a_line(error))


def result_of(answer: bytes, name: str) -> RequestResult:
    """Of an answer to a job: that of this request."""
    found = pickle.loads(answer)
    return RequestResult(found, False) if isinstance(found, str) else found[name]


def _all_compiled(job: KernelJob) -> dict[str, RequestResult]:
    from triton import knobs

    knobs.cache.dir = job.cache
    function = job.kernel.made(job.static)
    return {name: _compiled(function, request) for name, request in job.requests.items()}


def _compiled(kernel: Any, request: CompileRequest) -> RequestResult:
    from triton.compiler import ASTSource, compile

    source = ASTSource(kernel, dict(request.signature), dict(request.constants), dict(request.attributes))
    try:
        made = compile(source, target=request.target, options=dict(request.options))
    except what_fails() as error:  # the boundary where a candidate is judged; the reason is kept
        return RequestResult(in_a_line(error))
    if not request.is_cached():
        raise Untransportable("Triton's cache keeps it under another key in another process: its settings differ")
    return RequestResult("", effects=effects_of(made))
