"""A capture that another thread works beside."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch


def kept_beside(work: Callable[[], object]) -> None:
    """Capture in the mode that is strictest with other threads, while one of them does this; both must come out right.

    What the work needs for the first time, as a kernel that is to be loaded, is had before: CUDA refuses it in any
    case.
    """
    static, graph = torch.ones(16, device="cuda"), torch.cuda.CUDAGraph()
    out = static + 1
    begun, over, errors = threading.Event(), threading.Event(), list[BaseException]()

    def beside() -> None:
        begun.wait()
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - of another thread, told below
            errors.append(error)
        over.set()

    thread = threading.Thread(target=beside)
    thread.start()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        begun.set()
        over.wait()
        out = static + 1
    thread.join()
    assert errors == []
    graph.replay()
    torch.testing.assert_close(out, torch.full_like(out, 2))
