"""How much memory is free on a device, and the most that one call holds of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["free_memory", "peak_bytes", "recorded_bytes"]


# What is free.


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on the device without taking them from anyone.

    On CUDA what the driver has free and what torch's allocator holds unused. On the CPU what the system calls
    available, or what the process's control group leaves of it; half of all memory where the system doesn't say.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return min(_memory_available(), _memory_left_to_group())


def _memory_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:  # not Linux
        pass
    if not hasattr(os, "sysconf"):
        return sys.maxsize  # not POSIX either: nothing is known, so nothing is refused
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _memory_left_to_group(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """What a container may still take before the kernel kills it; no bound where no group sets one."""
    try:
        limit = (folder / "memory.max").read_text("ascii").strip()
        used = (folder / "memory.current").read_text("ascii").strip()
    except OSError:
        return sys.maxsize
    return sys.maxsize if limit == "max" else max(0, int(limit) - int(used))


# What a call holds.


def peak_bytes(fn: Callable[[], object], device: torch.device) -> int | None:
    """The most memory that one call holds above what was allocated before it, in bytes; None if it can't be told.

    On CUDA the allocator is asked, and its peak has to be reset: where a user's own peak lay above what is allocated
    at the time, ``torch.cuda.max_memory_allocated`` starts anew. On the CPU the allocations of one call are recorded
    and added up; memory that does not come from torch's allocator (an extension's, a vendor library's) is missed,
    and nothing is measured while a profiler is running on this thread.
    """
    if device.type != "cuda":
        return recorded_bytes(fn, device)
    before = torch.cuda.memory_allocated(device)
    if torch.cuda.max_memory_allocated(device) > before:
        torch.cuda.reset_peak_memory_stats(device)
    fn()
    return max(0, torch.cuda.max_memory_allocated(device) - before)


def recorded_bytes(fn: Callable[[], object], device: torch.device) -> int | None:
    """`peak_bytes` from a record of what torch's allocators do in one call, which leaves no trace on CUDA either."""
    events = _allocations(fn, device)
    if events is None:
        return None
    held = peak = 0
    for change in events:
        held += change
        peak = max(peak, held)
    return peak


def _allocations(fn: Callable[[], object], device: torch.device) -> list[int] | None:
    """Bytes allocated (or, negative, freed) on CUDA devices, or else on the host, during a call, in order.

    From the recorder of ``torch.autograd.profiler_legacy``: today's profiler sees the same, but writes to the
    user's standard error each time. Its functions are private; without them nothing is measured.
    """
    enable: Any = getattr(torch.autograd, "_enable_profiler_legacy", None)
    disable: Any = getattr(torch.autograd, "_disable_profiler_legacy", None)
    recording = getattr(torch.autograd, "_profiler_enabled", lambda: False)
    if enable is None or disable is None or recording():
        return None
    from torch.autograd.profiler_legacy import profile

    config = profile(profile_memory=True).config()
    try:
        enable(config)  # in here: an interrupt may come as soon as it is done
        fn()
    finally:
        records = [event for thread in disable() for event in thread]
    begin = records[0]
    events = [event for event in records if event.kind() == "memory_alloc"]
    events.sort(key=begin.cpu_elapsed_us)  # each thread has a list of its own
    on_cuda = device.type == "cuda"
    return [event.cuda_memory_usage() if on_cuda else event.cpu_memory_usage() for event in events]
