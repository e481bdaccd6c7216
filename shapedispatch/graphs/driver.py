"""What the CUDA driver itself is asked, by its names in C: a stream that nobody shares, the nodes of a recording."""

from __future__ import annotations

import contextlib
import ctypes

import torch

__all__ = ["nodes_recorded", "own_stream"]

_NON_BLOCKING = 1
"""Of CUDA's flags of a stream: what is launched on the default stream does not wait for it."""
_DONE = 0


def own_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream that is nobody else's: torch's own come from a few, in turn, and what another thread launches on one
    while it records would be recorded, too. One of torch's where the driver cannot be asked.
    """
    with contextlib.suppress(OSError, AttributeError), torch.cuda.device(device):
        torch.cuda.current_stream(device).synchronize()  # so that there is a context
        stream = ctypes.c_void_p()
        if _driver().cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING) == _DONE and stream.value:
            return torch.cuda.ExternalStream(stream.value, device)
    return torch.cuda.Stream(device)


def nodes_recorded(stream: torch.cuda.Stream) -> int | None:
    """How many nodes the graph has that a stream is recording; None where the driver does not say."""
    status, graph, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t()
    with contextlib.suppress(OSError, AttributeError):
        driver, of = _driver(), ctypes.c_void_p(stream.cuda_stream)
        asked = driver.cuStreamGetCaptureInfo_v2(of, ctypes.byref(status), None, ctypes.byref(graph), None, None)
        if asked == _DONE and graph.value and driver.cuGraphGetNodes(graph, None, ctypes.byref(count)) == _DONE:
            return count.value
    return None


def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
