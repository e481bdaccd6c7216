"""The hit path in C: gives `_native` what it needs of torch, and says why it is not in use where it is not.

Both paths follow one law, which stands in `keys`: the functions that C asks are the ones that `keys` asks. Where the C
module is missing, or torch is not as it must be for it, every call takes the Python path, to the same answers.

``hotpath_available`` and ``hotpath_reason`` (None, or why not) are read from here.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import inspect
import struct
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Module, Parameter

from .. import private
from ..keys import key as keys
from ..keys.autocast import DEVICES, any_autocast
from ..keys.instances import holds_all_in_its_dict
from ..settings.resolve import settings
from . import profiling, symbols
from .fast_path import FastPath
from .turns import CallTurns, LaunchTurns, PoolLeader, TimedCalls
from .watchers import watchers_are_reliable

__all__ = [
    "CudaLauncher",
    "all_checks",
    "call_turns",
    "cuda_launcher",
    "fast_path",
    "launch_turns",
    "module",
    "pool_leader",
    "pooled_calls",
    "reason",
    "tell_news",
    "timed_calls",
]

CudaLauncher: TypeAlias = Callable[[tuple[int, ...], tuple[Any, ...]], bool]
"""A launch in C: ``launcher(grid, values)``. False means that this thread has no CUDA context: nothing was launched."""


def fast_path(
    cache_miss: Callable[..., Any], fallback: Callable[..., Any], receiver: bool, plain: Callable[..., Any]
) -> FastPath | None:
    """A dispatcher's hit path in C, or None where C is not in use.

    ``cache_miss(args, kwargs, node)`` is asked where C cannot answer; ``fallback(*args, **kwargs)`` where a build has
    raised that may be retried; ``plain`` runs what is spared. ``receiver`` is as in `key.key`.
    """
    return None if (c := module()) is None else c.FastPath(cache_miss, fallback, receiver, plain)  # type: ignore[no-any-return]  # in C


in_use: Any = None
"""`module`, as the last decoration found it: a call need not ask the settings."""


def module() -> Any:
    """The C module, where it is in use; else None. Decorations ask, and what they find is kept in `in_use`."""
    global in_use
    in_use = _loaded()[0] if reason() is None else None
    return in_use


def cuda_launcher(
    name: str,
    function: int,
    threads: int,
    shared_bytes: int,
    device: int,
    parameters: Sequence[tuple[str, int, int]],
    grid: Sequence[int] | None = None,
    meta: Mapping[str, Any] | None = None,
    answer: Any = None,
) -> CudaLauncher | str:
    """The launch of a loaded CUDA kernel in C, or why there is none.

    ``function`` is the driver's handle. ``parameters`` are all that the kernel takes, each as (kind, bytes, place of
    its value in a call): of kind ``p`` for an address, a tensor or None, ``i`` and ``u`` for integers, ``f`` for floats
    of 4 or 8 bytes, ``0`` for zeros. A `KernelFastPath` launches it over ``grid`` where a call gives none, with
    ``meta`` for the parameters that configs and heuristics give, and returns ``answer``. It is only for kernels that
    need nothing more of the driver than this; a driver that knows the parameters otherwise is a reason. The launcher
    raises RuntimeError, naming kernel and call, where the driver refuses a launch.
    """
    c = in_use or module()  # each config that is loaded asks, and to look at all private names takes longer than it
    if (why := reason() if c is None else _no_driver(c)) is not None:
        return why
    try:
        return c.CudaLauncher(  # type: ignore[no-any-return]  # in C
            name, function, threads, shared_bytes, device, tuple(parameters),
            None if grid is None else tuple(grid), dict(meta or {}), answer,
        )  # fmt: skip
    except (RuntimeError, ValueError, TypeError, OverflowError) as error:  # the last two: of a grid
        return str(error)


def launch_turns(
    call: Callable[..., Any], launch: Callable[..., Any], runs: Sequence[Callable[..., Any]]
) -> LaunchTurns | None:
    """Turns of these runs of a kernel, where C launches all of them and the driver has events; else None."""
    if not all(getattr(run, "launcher", None) for run in runs):
        return None
    try:
        return module().LaunchTurns(call, launch)  # type: ignore[no-any-return]  # in C
    except RuntimeError:  # the driver has none
        return None


def call_turns(
    call: Callable[..., Any],
    unsampled: Callable[..., Any],
    raised: Callable[..., Any],
    path: FastPath | None,
    device: torch.device,
) -> CallTurns | None:
    """Turns of a function's calls, which run on this device; None where C cannot take them, or not on that device now.

    ``call(*args, **kwargs)`` is Python's, where no turn is left; ``unsampled`` runs a call while another is on, and
    ``raised(turn, *args, **kwargs)`` one at which a turn's candidate has raised what is being handled.
    """
    c = module()
    if c is None or path is None:
        return None
    index = -1
    if device.type == "cuda":
        index = torch.cuda.current_device()
        if _no_driver(c) is not None or device.index not in (None, index):
            return None
    try:
        return c.CallTurns(call, unsampled, raised, path, index)  # type: ignore[no-any-return]  # in C
    except (RuntimeError, TypeError):  # the driver has no events; a path of a test's is not C's
        return None


def timed_calls(run: Callable[..., Any], ask: Callable[..., Any]) -> TimedCalls | None:
    """What runs calls by ``run``, and by ``ask`` where so much is spent, or there is news; None without C."""
    c = in_use or module()  # each new key asks
    return None if c is None else c.TimedCalls(run, ask)  # type: ignore[no-any-return]  # in C


def tell_news() -> None:
    """Have the next call of all `timed_calls` ask."""
    if (c := in_use or module()) is not None:
        c.tell_news()


def pool_leader(run: Callable[..., Any]) -> PoolLeader:
    """One by which this leads."""
    return module().PoolLeader(run)  # type: ignore[no-any-return]  # in C


def pooled_calls(turns: CallTurns) -> Callable[[PoolLeader, Any, Any], Callable[..., Any]]:
    """What makes what a key runs that finds out together with others: these turns, which all share, or what leads.

    It takes (leader, beside_new, among_known): for whose a sample is `collect` gives (whose, beside_new) at a key's
    first call or soon after, else (whose, among_known). Keep it: whether C is in use is longer to see than to make one.
    """
    return functools.partial(module().PooledCall, turns)


def all_checks(checks: Sequence[Callable[..., bool]]) -> Callable[[tuple[Any, ...], Mapping[str, Any]], bool]:
    """Several builds' guards as one function of the call, in C where that is in use."""
    first, *others = dict.fromkeys(checks)
    if not others:
        return first
    c = module()
    if c is not None:
        in_c: Callable[[tuple[Any, ...], Mapping[str, Any]], bool] = c.AllChecks((first, *others))
        return in_c
    return lambda args, kwargs: all(check(args, kwargs) for check in checks)


@functools.cache
def _no_driver(module: Any) -> str | None:
    try:
        module.use_driver()
    except OSError as error:
        return str(error)
    module.use_events()
    return None


def reason() -> str | None:
    """Why hits do not take the C path, or None."""
    if not settings().resolve("").hotpath:
        return f"the setting hotpath is false ({settings().resolve('').origin['hotpath']})"
    return private.why_off("hits in C") or _loaded()[1]


def __getattr__(name: str) -> Any:
    # Asked when read, since the settings are read at the first decoration and not at the import.
    if name in ("hotpath_available", "hotpath_reason"):
        why = reason()
        return why if name == "hotpath_reason" else why is None
    raise AttributeError(f"module {__name__} has no attribute {name}")


@functools.cache
def _loaded() -> tuple[Any, str | None]:
    """The C module, and why it cannot be used if so."""
    try:
        module = importlib.import_module("._native", __package__)
    except ImportError as error:
        return None, f"the C module is not there ({error}): it is built at installation, where there is a C compiler"
    return module, bind(module)


def bind(module: Any) -> str | None:
    """Give the C module what it needs of torch; why it cannot be used, or None."""
    try:
        module.bind(_names())
        samples = _samples()
    except (AttributeError, TypeError, ValueError) as error:
        return f"torch {torch.__version__} is not as the C module needs it: {error}"
    odd = torch.empty_strided((1, 3), (7, 2), dtype=torch.float16, device="cpu")
    words = module.sign_value(odd)
    if words is None or struct.unpack("4q", words[-32:]) != (1, 3, 7, 2):
        return f"torch {torch.__version__} does not show a tensor's sizes and strides as they are"
    if not _tells_dtypes(module):
        return f"torch {torch.__version__} has dtypes that the C module cannot tell from each other"
    module.calibrate(samples)
    module.compare_memory(_unlike())
    module.use_symbols([] if private.newer("torch") else symbols.agreeing(module.read_symbol))
    leave_out_autograd(module)
    use_watchers(module)
    return None


def leave_out_autograd(module: Any) -> None:
    """Let graphs that Inductor has written run beneath autograd, where it is found that C does so as torch does."""
    keys = 0 if private.newer("torch") else symbols.keys_of_autograd()
    if module.leave_out(keys) and not symbols.are_left_out(keys, module):
        module.leave_out(0)


def use_watchers(module: Any) -> None:
    """Let the C module rely on watchers of dicts, where this Python lets them see all changes."""
    if module.use_watchers(True) and not watchers_are_reliable(module.changed):
        module.use_watchers(False)


def _tells_dtypes(module: Any) -> bool:
    """Whether no two of torch's dtypes look alike to C; those that it leaves to Python do not matter."""
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that some are experimental
        for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
            try:
                seen.append(module.sign_value(torch.empty(0, dtype=dtype, device="cpu")))
            except (RuntimeError, NotImplementedError):  # there are no such tensors
                continue
    judged = [words for words in seen if words is not None]
    return len(set(judged)) == len(judged)


def _names() -> dict[str, Any]:
    """All that C takes, in the order of `taken` in csrc/torch_api.c, which refuses any other number of names."""
    return _types() | _state() | _thread() | {"exchange": Tensor.__dlpack_c_exchange_api__}  # type: ignore[attr-defined]  # new


def _types() -> dict[str, Any]:
    """What C knows values by, and what it asks of tensors."""
    return {
        "TensorBase": torch._C.TensorBase,
        "Tensor": Tensor,
        "Parameter": Parameter,
        "Module": Module,
        "Size": torch.Size,
        "device": torch.device,
        "dtype": torch.dtype,
        "layout": torch.layout,
        "memory_format": torch.memory_format,
        # Attributes. They must be what an exact tensor answers with, and are where a Parameter has none of its own.
        "requires_grad": inspect.getattr_static(Parameter, "requires_grad"),
        "is_leaf": inspect.getattr_static(Parameter, "is_leaf"),
        "dtype_of": inspect.getattr_static(Parameter, "dtype"),
        # Functions of a tensor.
        "dispatch_keys": torch._C._dispatch_keys,
        "storage_offset": torch._C.TensorBase.storage_offset,  # not what somebody may have put in its place
    }


def _state() -> dict[str, Any]:
    """What `key.ambient` asks. A question is a function and its arguments."""
    return {
        # Questions to which the answer must be "nothing", and what else must be empty or off.
        "no_modes": (
            (keys._dispatch_modes,),
            (keys._functorch_level,),
            (keys._tracing,),
            (keys.saved_tensor_hooks, True),
            (keys._anomaly,),
        ),
        "hook_tables": (keys._forward_pre_hooks, keys._forward_hooks, keys._backward_pre_hooks, keys._backward_hooks),
        "is_ordinary": holds_all_in_its_dict,
        "enumeration": enum.Enum,
        "compiler_names": vars(torch.compiler),
        "forward_names": vars(forward_ad),
        "profiler_names": vars(profiling.state),
        # Questions whose answers stand in the key.
        "keyed": (
            (keys._grad_mode,),
            (keys._inference_mode,),
            (keys._default_dtype,),
            (keys._precision, "cuda", "matmul"),
            (keys._precision, "mkldnn", "matmul"),
            (keys._threads,),
        ),
        "function_modes": (keys._function_modes,),
        "function_mode": (keys._function_mode, 0),
        "device_context": keys._DeviceContext,
        "any_autocast": (any_autocast,),
        "autocast_devices": DEVICES,
        "autocast_enabled": torch.is_autocast_enabled,
        "autocast_dtype": torch.get_autocast_dtype,
        "autocast_cache": (torch.is_autocast_cache_enabled,),
        "deterministic": (keys._deterministic,),
        "warn_only": (torch.is_deterministic_algorithms_warn_only_enabled,),
        "determinism": torch.utils.deterministic,
    }


def _thread() -> dict[str, Any]:
    """What a build's guards ask of the thread that no key holds."""
    return {
        "keys_added": symbols.QUESTIONS["keys added"],
        "keys_left_out": symbols.QUESTIONS["keys left out"],
        "function_state": symbols.QUESTIONS["function state"],
        "grad_mode": symbols.QUESTIONS["grad mode"],
    }


def _samples() -> list[tuple[Tensor, int, int]]:
    """Tensors of many kinds, each with its dispatch-key set and its address, for C to see where the set stands."""
    one = torch.empty(1, dtype=torch.complex64, device="cpu")
    with torch.inference_mode():
        inference = torch.empty((2, 3), device="cpu")
    kinds = [one, one.conj(), one.conj().imag, inference, torch.empty(0, dtype=torch.int8, device="cpu")]
    return [(t, torch._C._dispatch_keys(t).raw_repr(), t._cdata) for t in kinds if type(t) is Tensor]


def _unlike() -> list[Tensor]:
    """Tensors of at most five sizes, no two of which are alike in dtype, device, sizes, strides and dispatch keys.

    The first has five.
    """
    two, one, whole = (2,) * 5, (1,) * 5, torch.empty(64, device="cpu")
    forms = [
        (two, one),
        *(((*two[:i], 3, *two[i + 1 :]), one) for i in range(5)),
        *((two, (*one[:i], 2, *one[i + 1 :])) for i in range(5)),
        *((two[:ndim], one[:ndim]) for ndim in range(5)),
    ]
    found = [torch.as_strided(whole, *form) for form in forms]
    found += [torch.empty(3, device="cpu", requires_grad=True), torch.empty((3, 1), device="meta")]
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that some dtypes are experimental
        for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
            with contextlib.suppress(RuntimeError, NotImplementedError):  # there are no such tensors
                found.append(torch.empty(7, dtype=dtype, device="cpu"))
    return found
