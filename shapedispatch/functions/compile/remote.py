"""What a process of ours does that compiles for another: a job in, compiled code or the reason why not out."""

from __future__ import annotations

import pickle

from torch._guards import TracingContext, tracing

from ...errors import in_a_line
from ...store.artifacts import KeptJob
from .artifact import Artifact, recorded, saved
from .code import Code
from .graph import say_nothing_donated
from .inductor import compiler
from .parcel import Job, graph_of
from .tracer import compiler_config

__all__ = ["compiled"]


def compiled(job: bytes) -> bytes:
    """An `Artifact` for a `parcel.Job`, or the sentence why there is none; both pickled.

    In a `KeptJob` it is kept as well, and in time: whoever has been answered may end this process.
    """
    try:
        asked = pickle.loads(job)
        answer = pickle.dumps(_artifact(pickle.loads(asked.job) if isinstance(asked, KeptJob) else asked))
    except Exception as error:  # noqa: BLE001 - whatever stops the compiler is this build's refusal; it is told
        return pickle.dumps(in_a_line(error))
    if isinstance(asked, KeptJob):
        asked.keep(answer)
    return answer


def _artifact(job: Job) -> Artifact:
    job.operators.define()
    gm, inputs, mode = graph_of(job)
    code = Code()
    with job.state.entered(), compiler_config(job.tag, job.number_inputs), recorded(), tracing(TracingContext(mode)):
        compiler(job.options, code)(gm, inputs)
        say_nothing_donated()
        return saved(code, inputs)
