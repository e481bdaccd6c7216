"""A kernel, a call and a config to a compiled kernel: by Triton's own compilation, without a launch.

``JITFunction.run`` with ``warmup`` compiles for the arguments given and launches nothing. It finds out itself what it
specializes on, so nothing of that is repeated here; several are compiled at once in Triton's ``AsyncCompileMode``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from ...interpreter.cores import usable_cores

__all__ = [
    "async_compile",
    "compile_all",
    "compile_one",
    "compiled_already",
    "compiling_elsewhere",
    "forget",
    "started",
]

MOST_WORKERS = 16


def compile_one(kernel: Any, arguments: Mapping[str, Any], device: int) -> Any:
    """The ``CompiledKernel`` of a ``triton.jit`` function for arguments and options by name, on the current device.

    Raises what Triton's compiler raises, and RuntimeError where a hook of the user's keeps Triton from compiling.
    """
    return _finished(kernel, started(kernel, arguments, device))


def compile_all(kernel: Any, variants: Sequence[Mapping[str, Any]], device: int) -> list[Any]:
    """`compile_one` for each of several variants, at the same time; an exception stands where one failed.

    Python's parser counts its depth in one place for all threads (until 3.13, gh-106905), and a compilation that meets
    another there may end in a SystemError, which says nothing about the kernel: it is made once more, alone.
    """
    with _workers(len(variants)):
        begun = [_or_error(lambda v=variant: started(kernel, v, device)) for variant in variants]
        made = _all_finished(kernel, begun)
    return [
        _or_error(lambda v=variant: compile_one(kernel, v, device)) if isinstance(one, SystemError) else one
        for variant, one in zip(variants, made, strict=True)
    ]


def compiled_already(kernel: Any, arguments: Mapping[str, Any], device: int) -> Any:
    """What `compile_one` would give, if it has been compiled in this process; else None. Compiles nothing.

    Asked as Triton asks its own cache. Where this Triton asks in another way, nothing is found.
    """
    try:
        from triton.runtime.jit import compute_cache_key

        cache, keys, _, _, binder = kernel.device_caches[device]
        _, specialization, options = binder(**_as_run_does(kernel, arguments))
        _clear_memory_of_keys(kernel, device)
        found = cache.get(compute_cache_key(keys, specialization, options))
    except (AttributeError, ImportError, TypeError, ValueError):
        return None
    return None if hasattr(found, "result") else found


def _as_run_does(kernel: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with the options that ``JITFunction.run`` adds, in its order: it is part of Triton's key."""
    from triton import knobs

    more = {
        "debug": arguments.get("debug", kernel.debug) or knobs.runtime.debug,
        "instrumentation_mode": knobs.compilation.instrumentation_mode,
    }
    if hasattr(knobs.compilation, "fpsan_homomorphic_casts"):
        more["fpsan_homomorphic_casts"] = knobs.compilation.fpsan_homomorphic_casts
    return {**arguments, **more}


def compiling_elsewhere() -> bool:
    """Whether the caller has an ``AsyncCompileMode`` open: then what is compiled belongs to it."""
    mode = async_compile()
    return mode is not None and mode.active_mode.get() is not None


def forget(kernel: Any, compiled: Any) -> None:
    """Take a compiled kernel out of Triton's own caches, by identity."""
    for caches in list(kernel.device_caches.values()):
        for cache in _dicts(caches):
            for key in [key for key, held in list(cache.items()) if held is compiled]:
                cache.pop(key, None)


def started(kernel: Any, arguments: Mapping[str, Any], device: int) -> Any:
    """A compiled kernel, or Triton's future of one where its parallel compilation is on."""
    _clear_memory_of_keys(kernel, device)
    started = kernel.run(grid=None, warmup=True, **arguments)
    if started is None:
        raise RuntimeError("a hook (triton.knobs.runtime.jit_cache_hook) kept Triton from compiling")
    return started


def _finished(kernel: Any, started: Any) -> Any:
    """A compiled kernel, waited for where Triton has given a future of one."""
    if not hasattr(started, "result"):
        return started
    try:
        return started.result()
    except Exception:
        forget(kernel, started)  # else Triton would answer the next call with the failed future
        raise


def _all_finished(kernel: Any, started: Sequence[Any]) -> list[Any]:
    """Each compiled kernel, or the exception that stands in its place.

    Each future is asked once, and before the mode ends, which asks again: from Triton 3.9 on a future gives its error
    to the first who asks and to no other. Equal variants have one future.
    """
    ends: dict[int, Any] = {}
    for one in started:
        if id(one) not in ends:
            failed = isinstance(one, Exception)
            ends[id(one)] = one if failed else _or_error(lambda one=one: _finished(kernel, one))
    return [ends[id(one)] for one in started]


def _or_error(make: Callable[..., Any], *args: Any) -> Any:
    try:
        return make(*args)
    except Exception as error:  # noqa: BLE001 - a candidate is judged here, and the reason kept by the caller
        return error.with_traceback(None)


def _clear_memory_of_keys(kernel: Any, device: int) -> None:
    """Empty Triton's memory of keys (not its kernels): in it, constants that are equal but differ in type are one."""
    for cache in _dicts(kernel.device_caches[device]):
        if all(isinstance(value, str) for value in cache.values()):
            cache.clear()


def _dicts(caches: Any) -> Iterator[dict[Any, Any]]:
    return (cache for cache in caches if isinstance(cache, dict))


@contextmanager
def _workers(count: int) -> Iterator[None]:
    """Compilations begun inside run in threads of their own, and are done at the end; failures are kept for later."""
    mode = async_compile()
    if count < 2 or mode is None:
        yield
        return
    workers = ThreadPoolExecutor(min(count, usable_cores(), MOST_WORKERS))
    with workers, mode.AsyncCompileMode(workers, ignore_errors=True):
        yield


def async_compile() -> Any:
    """The module of Triton's parallel compilation, or None where this Triton has none."""
    try:
        from triton.runtime import _async_compile as module
    except ImportError:
        return None
    return module if hasattr(module, "AsyncCompileMode") and hasattr(module, "active_mode") else None
