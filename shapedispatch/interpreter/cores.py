"""How many processors there are to use: a container or a job on a cluster is often given a few of the host's."""

from __future__ import annotations

import os

__all__ = ["usable_cores"]


def usable_cores() -> int:
    """Those that this process may run on, where the system tells; else all of the host's, and 1 if that is unknown."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
