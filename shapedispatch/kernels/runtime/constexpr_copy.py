"""A kernel with some of its integer parameters made ``tl.constexpr``, without a change to its source.

The function is copied with another annotation on those parameters, and jitted anew with the options it had; Triton
then treats the copy as if its author had written ``tl.constexpr`` there. The copy has caches of its own.

A constexpr integer is Python's: ``//`` and ``%`` round down, nothing wraps around at 32 bits; a runtime one is the
machine's. So a copy's results are to be compared with the kernel's own, and what does not compile is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from types import FunctionType
from typing import Any

__all__ = ["jit_options", "static_copy"]


def static_copy(kernel: Any, names: Collection[str]) -> Any:
    """``kernel`` (a ``triton.jit`` function) with the parameters ``names`` as constexprs.

    Raises LookupError for one whose source was replaced, on a Triton that cannot be told of it.
    """
    import triton.language as tl

    function = _copied(kernel.fn)
    function.__annotations__ = {**kernel.fn.__annotations__, **dict.fromkeys(names, tl.constexpr)}
    name = f"{kernel.module}:{function.__qualname__}"
    registered = _registry().get(name)
    copy = type(kernel)(function, **jit_options(kernel, names))
    if registered is not None:
        _registry()[name] = registered  # the copy must not be found by the kernel's name
    if copy.src != kernel.src:  # the author has replaced the source of the kernel after it was jitted
        if not hasattr(copy, "_unsafe_update_src"):
            raise LookupError("its source was replaced, and this Triton does not let a copy's be")
        copy._unsafe_update_src(kernel.src)
    return copy


def _copied(fn: FunctionType) -> FunctionType:
    copy = FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__, copy.__doc__ = fn.__kwdefaults__, fn.__doc__
    copy.__module__, copy.__qualname__ = fn.__module__, fn.__qualname__
    return copy


def jit_options(kernel: Any, names: Collection[str]) -> dict[str, Any]:
    """What ``triton.jit`` was told, less what it forbids for a constexpr."""
    options: dict[str, Any] = {
        name: getattr(kernel, name, None) for name in ("version", "debug", "noinline", "launch_metadata")
    }
    options["repr"] = getattr(kernel, "_repr", None)
    for name in ("do_not_specialize", "do_not_specialize_on_alignment"):
        listed = getattr(kernel, name, None) or ()
        by_name = [kernel.arg_names[p] if isinstance(p, int) else p for p in listed]
        options[name] = [parameter for parameter in by_name if parameter not in names]
    return options


def _registry() -> dict[str, Any]:
    """Where Triton (3.7 on) keeps each kernel by its name, for reading kernels back; empty where it does not."""
    from triton.runtime import jit

    return getattr(jit, "_triton_jit_function_registry", {})
