"""Whether functions of torch's libraries say what Python's functions say, found out by trying.

Python's take twenty to a hundred nanoseconds for what they ask of those, and a hit asks a dozen. C finds those by what
the linker calls them (`csrc/torch_questions.c`), which does not tell what they return.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

from ..keys import key as keys
from ..keys.autocast import DEVICES, any_autocast
from ..private import find

__all__ = ["QUESTIONS", "Read", "agreeing", "are_left_out", "keys_of_autograd"]

_included = find("torch._C._dispatch_tls_local_include_set")
_excluded = find("torch._C._dispatch_tls_local_exclude_set")
_function_enabled = find("torch._C._is_torch_function_enabled")
_function_disabled = find("torch._C._is_torch_function_all_disabled")
_below_autograd = find("torch._C._AutoDispatchBelowAutograd", None)


def _keys_added() -> int | None:
    """Which dispatch keys this thread adds to those of a tensor, a bit each; None where torch does not tell."""
    return None if (keys := _included()) is None else int(keys.raw_repr())


def _keys_left_out() -> int | None:
    """Which of them it leaves out."""
    return None if (keys := _excluded()) is None else int(keys.raw_repr())


def _function_state() -> int:
    """Whether `__torch_function__` is called: 0 always, 1 of modes alone, 2 never."""
    return 0 if _function_enabled() else 2 if _function_disabled() else 1


Question: TypeAlias = tuple[Any, ...]
"""A function of Python's, and what it is called with."""
Read: TypeAlias = Callable[[str, int], int | None]
"""What the function of a name answers, given a number where it takes one; None where there is no such function."""

QUESTIONS: Mapping[str, Question] = MappingProxyType(
    {
        "function modes": (keys._function_modes,),
        "dispatch modes": (keys._dispatch_modes,),
        "transforms": (keys._functorch_level,),
        "tracing": (keys._tracing,),
        "grad mode": (keys._grad_mode,),
        "inference mode": (keys._inference_mode,),
        "autocast": (any_autocast,),
        "default dtype": (keys._default_dtype,),
        "threads": (keys._threads,),
        "determinism": (keys._deterministic,),
        "precision of cuda": (keys._precision, "cuda", "matmul"),
        "precision of mkldnn": (keys._precision, "mkldnn", "matmul"),
        "saved-tensor hooks": (keys.saved_tensor_hooks, True),
        "anomaly": (keys._anomaly,),
        "function state": (_function_state,),
        "keys added": (_keys_added,),
        "keys left out": (_keys_left_out,),
    }
)
"""By what C calls the function that answers them."""

_BY_NUMBER = frozenset({"default dtype", "precision of cuda", "precision of mkldnn"})
"""What has a small number there, and a name in Python."""
_MOST_NUMBERS = 128
_DEVICES = (*DEVICES, "privateuseone")


@contextlib.contextmanager
def _casting(device: str) -> Iterator[None]:
    """Autocast for a device, in this thread; nothing where there is none."""
    before = None
    try:
        with contextlib.suppress(RuntimeError):
            before = torch.is_autocast_enabled(device)
            torch.set_autocast_enabled(device, not before)
        yield
    finally:
        if before is not None:
            torch.set_autocast_enabled(device, before)


@contextlib.contextmanager
def _saving() -> Iterator[None]:
    """Hooks on what is saved for a backward; nothing where they are refused."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(RuntimeError):
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved))
        yield


_FUNCTIONS_UNSEEN = tuple(
    guard
    for guard in (find(f"torch._C.{name}", None) for name in ("DisableTorchFunctionSubclass", "DisableTorchFunction"))
    if guard is not None
)

_STATES: tuple[Callable[[], contextlib.AbstractContextManager[Any]], ...] = (
    contextlib.nullcontext,
    torch.no_grad,
    torch.enable_grad,
    torch.inference_mode,
    lambda: torch.device("cpu"),
    _saving,
    *_FUNCTIONS_UNSEEN,
    *(lambda device=device: _casting(device) for device in _DEVICES),  # type: ignore[misc]  # mypy guesses its type
)
"""States of this thread alone. What other threads would see is only compared as it is."""


def agreeing(read: Read) -> list[tuple[Question, str, int]]:
    """The questions that may be asked so, each with the function that answers it and what that is given."""
    given = dict.fromkeys(QUESTIONS, 0) | {"autocast": _keys_of_autocast(read)}
    given |= {name: _first(name, read) for name in ("keys added", "keys left out")}
    names = list(QUESTIONS)
    for state in _STATES:
        with state():
            names = [name for name in names if _agree(name, read, given[name])]
    return [(QUESTIONS[name], name, given[name]) for name in names]


def _agree(name: str, read: Read, given: int) -> bool:
    """Whether both say the same now: a number, or whether there is anything."""
    question = QUESTIONS[name]
    said = question[0](*question[1:])  # first: where Python does not know a backend, C must not ask
    found = read(name, given)
    if found is None or name in _BY_NUMBER:
        return found is not None and found < _MOST_NUMBERS
    return found == (int(said) if isinstance(said, int) else said is not None)


def _first(name: str, read: Read) -> int:
    """The dispatch keys that a thread begins with: what is kept is how they differ from them. A word of bits."""
    said, kept = QUESTIONS[name][0](), read(name, 0)
    return 0 if said is None or kept is None else said ^ kept


def _keys_of_autocast(read: Read) -> int:
    """The dispatch keys that are left out while none of the devices casts that Python asks for: a word of bits."""
    found, before = 0, [read("autocast", 1 << bit) for bit in range(64)]
    for device in _DEVICES:
        with _casting(device):
            if any_autocast():
                found |= sum(1 << bit for bit in range(64) if read("autocast", 1 << bit) != before[bit])
    return found


def keys_of_autograd() -> int:
    """The dispatch keys that torch leaves out beneath autograd's kernels, a bit each; 0 where it does not tell."""
    before = _keys_left_out()
    if before is None or _below_autograd is None:
        return 0
    with _below_autograd():
        return (_keys_left_out() or 0) & ~before


def are_left_out(keys: int, module: Any) -> bool:
    """Whether the C module's graphs leave out these and no others, as long as their code runs, and only then."""

    def asked(*_: Any) -> int | None:  # with a list by the code alone, without by what stands in for it
        return _keys_left_out()

    before = _keys_left_out()
    with torch.no_grad():
        inside = [module.GraphCall(asked, [asked], written)() for written in (True, False)]
    return before is not None and [*inside, _keys_left_out()] == [before | keys, before, before]
