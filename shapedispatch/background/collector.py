"""When Python looks for cycles among its objects: not while a lot of them are made that stay.

A full look goes through all objects there are, a tenth of a second and more once a compiler is imported, and comes in
whatever call has made the last of so many. One comes sooner where what is made for a while is taken for what stays.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_collections"]


@contextmanager
def no_collections(then_all: bool = False) -> Iterator[None]:
    """Look for none inside, in any thread; ``then_all`` has all looked through at the end, once for all times.

    Where the program looks for itself when it likes, nothing is changed.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if then_all:
            gc.collect()
