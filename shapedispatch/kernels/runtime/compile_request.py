"""What Triton would compile for a call of a kernel, found out without compiling it.

``JITFunction.run`` with ``warmup`` hands each compilation to the open ``AsyncCompileMode``, with the key under which
its cache on disk keeps what comes of it. One of ours is handed them here, and compiles nothing.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ...errors import in_a_line
from ...interpreter.failures import what_fails
from .compile import async_compile, forget, started
from .sent_kernel import Untransportable

__all__ = ["CompileRequest", "requested"]


@dataclass(frozen=True)
class CompileRequest:
    """One compilation: ``cached_as`` says under which digest, and which name, Triton's cache has it when it is done.

    ``signature``, ``constants`` and ``attributes`` are what Triton calls a source, beside the function.
    """

    cached_as: tuple[str, str]
    target: Any
    signature: Mapping[str, Any]
    constants: Mapping[Any, Any]
    attributes: Mapping[Any, Any]
    options: Mapping[str, Any]

    def is_cached(self) -> bool:
        """Whether Triton's cache on disk has it: then it is loaded, and not compiled."""
        from triton import knobs
        from triton.runtime.cache import get_cache_manager

        digest, name = self.cached_as
        return not knobs.compilation.always_compile and name in (get_cache_manager(digest).get_group(name) or {})


def requested(kernel: Any, arguments: Mapping[str, Any], device: int) -> CompileRequest | None:
    """What Triton would compile for these arguments, on the current device; None where it has that in this process.

    Raises what Triton raises of the arguments, and Untransportable where it cannot be told or sent.
    """
    with _asked() as asked:
        future = started(kernel, arguments, device)
    if not asked:
        return None
    forget(kernel, future)
    request = _request(*asked[0])
    try:
        pickle.dumps(request)
    except what_fails() as error:  # whatever the values' own pickling raises
        raise Untransportable(f"what it is compiled for cannot be sent: {in_a_line(error)}") from None
    return request


def _request(key: str, compile_it: Callable[[], Any]) -> CompileRequest:
    from triton import knobs

    if getattr(knobs.runtime, "add_stages_inspection_hook", None) is not None:
        raise Untransportable("a hook (triton.knobs.runtime.add_stages_inspection_hook) changes how it is compiled")
    given = inspect.getclosurevars(compile_it).nonlocals
    source: Any = given.get("src")
    target, options = given.get("target"), given.get("options")
    try:
        name = f"{source.name[:MOST_OF_NAME]}.json"
        facts = (dict(source.signature), dict(source.constants), dict(source.attrs), dict(vars(options)))
    except (AttributeError, TypeError):
        raise Untransportable("this Triton does not say what it would compile") from None
    return CompileRequest((sha256(key.encode()).hexdigest(), name), target, *facts)


MOST_OF_NAME = 150
"""Characters of a function's name in those of Triton's files."""


class _Later:
    """As a future: what it is to give is made when it is asked for, since another thread may come by it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.result = make


class _Asked(list[tuple[str, Callable[[], Any]]]):
    """As an ``AsyncCompileMode``: it notes what it is handed."""

    def submit(self, key: str, compile_it: Callable[[], Any], *done: Callable[[Any], None]) -> Any:
        """Note a compilation; what stands for the kernel meanwhile compiles it for whoever cannot wait.

        ``done`` are Triton's functions for what has been compiled and, from 3.9 on, what could not be.
        """
        self.append((key, compile_it))
        return async_compile().FutureKernel(*done, _Later(compile_it))


@contextmanager
def _asked() -> Iterator[_Asked]:
    """What would be compiled inside is noted, and not compiled."""
    mode, asked = async_compile(), _Asked()
    if mode is None or not hasattr(mode, "FutureKernel"):
        raise Untransportable("this Triton does not say what it would compile")
    token = mode.active_mode.set(asked)
    try:
        yield asked
    finally:
        mode.active_mode.reset(token)
