from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shapedispatch import private
from shapedispatch.hit import native, symbols
from shapedispatch.hit.symbols import QUESTIONS, agreeing
from tests.paths import NO_COMPILER, c_module

pytestmark = [
    pytest.mark.skipif(NO_COMPILER is not None, reason=NO_COMPILER or ""),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the linker is not asked"),
]


@contextlib.contextmanager
def vmapped() -> Iterator[None]:
    """Within a transform."""
    torch._C._functorch._vmap_increment_nesting(1, "error")
    try:
        yield
    finally:
        torch._C._functorch._vmap_decrement_nesting()


@contextlib.contextmanager
def changed(get: Callable[[], Any], set_to: Callable[[Any], object], value: Any) -> Iterator[None]:
    """A setting of torch's that all threads see."""
    before = get()
    set_to(value)
    try:
        yield
    finally:
        set_to(before)


def precision(backend: str) -> contextlib.AbstractContextManager[None]:
    """Another for products."""
    return changed(
        lambda: torch._C._get_fp32_precision_getter(backend, "matmul"),
        lambda value: torch._C._set_fp32_precision_setter(backend, "matmul", value),
        "tf32",
    )


STATES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "function modes": lambda: torch.device("meta"),
    "dispatch modes": TorchDispatchMode,
    "transforms": vmapped,
    "grad mode": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "default dtype": lambda: changed(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "threads": lambda: changed(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1),
    "determinism": lambda: changed(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "precision of cuda": lambda: precision("cuda"),
    "precision of mkldnn": lambda: precision("mkldnn"),
    "saved-tensor hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "keys added": torch.inference_mode,
    "keys left out": lambda: torch.autocast("cpu"),
}

SEEN_IN_ONE_THREAD = (
    "function modes", "function state", "grad mode", "inference mode", "autocast", "saved-tensor hooks", "keys added",
    "keys left out",
)  # fmt: skip


@pytest.fixture(autouse=True)
def left_as_found() -> Iterator[None]:
    """The module's symbols."""
    yield
    assert native.bind(c_module()) is None


def test_all_of_them_say_what_python_s_functions_say() -> None:
    """On the releases that this was tried on."""
    assert [name for _, name, _ in agreeing(c_module().read_symbol)] == list(QUESTIONS)


@pytest.mark.parametrize("name", STATES)
def test_a_change_is_seen_and_signed_as_without_symbols(name: str) -> None:
    """By the function alone; and a call is signed otherwise then, or not at all."""
    module = c_module()
    given = next(given for _, one, given in agreeing(module.read_symbol) if one == name)
    before, signed = module.read_symbol(name, given), sign()
    with STATES[name]():
        assert module.read_symbol(name, given) != before
        assert sign() != signed
        bypassed = sign() is None
    assert (module.read_symbol(name, given), sign()) == (before, signed)
    module.use_symbols([])
    with STATES[name]():
        assert (sign() is None) == bypassed


def sign() -> Any:
    """A call without arguments, in the state around it."""
    return c_module().sign_call((), {}, False, False)


def test_whether_functions_are_seen_is_no_call_s_business() -> None:
    """A call is signed as ever: plain tensors have none, and modes are asked by themselves."""
    module, signed = c_module(), sign()
    found = [module.read_symbol("function state", 0)]
    for unseen in (torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction):
        with unseen():
            found.append(module.read_symbol("function state", 0))
            assert sign() == signed
    assert found == [0, 1, 2]


def left_out_by(module: Any) -> int:
    """Which dispatch keys a graph leaves out that Inductor has written."""
    asked = symbols.QUESTIONS["keys left out"][0]
    with torch.no_grad():
        inside: int = module.GraphCall(asked, [lambda _: asked()], True)()
    return inside & ~asked()


def test_autograd_is_left_out_only_where_that_is_found_to_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does it; not on a release that is not known, nor where it is found otherwise."""
    module, keys = c_module(), symbols.keys_of_autograd()
    assert left_out_by(module) == keys != 0
    module.leave_out(keys << 1)
    assert not symbols.are_left_out(keys, module)
    for place, name in ((symbols, "are_left_out"), (symbols, "_keys_left_out")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, lambda *_: None)
            assert native.bind(module) is None
            patch.undo()
            assert left_out_by(module) == 0
    with monkeypatch.context() as patch:
        patch.setattr(private, "newer", lambda library: True)
        assert native.bind(module) is None
    assert left_out_by(module) == 0


def test_a_trace_is_seen() -> None:
    """While torch.jit traces a call."""
    module, seen = c_module(), []

    def traced(x: torch.Tensor) -> torch.Tensor:
        seen.append((module.read_symbol("tracing", 0), sign()))
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it is deprecated
        torch.jit.trace(traced, (torch.ones(2),), check_trace=False)
    assert seen[0] == (1, None)
    assert module.read_symbol("tracing", 0) == 0
    assert sign() is not None


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("answer", [None, 1000, "no change"])
def test_what_says_otherwise_is_not_asked(name: str, answer: Any) -> None:
    """It is not there, it says what Python does not, or it says the same in every state."""
    read = c_module().read_symbol
    if answer == "no change":
        if name not in SEEN_IN_ONE_THREAD:
            pytest.skip("in no state of one thread alone it would differ")
        answer = read(name, 0) if name != "autocast" else 0
    found = agreeing(lambda one, given: answer if one == name else read(one, given))
    assert [one for _, one, _ in found] == [one for one in QUESTIONS if one != name]


def test_none_is_asked_on_a_release_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a function returns may be another thing there, and reading that may end the process."""
    asked: list[Any] = []

    class Recorder:
        """The module, but for what it is told to ask."""

        use_symbols = staticmethod(asked.append)

        def __getattr__(self, name: str) -> Any:
            return getattr(c_module(), name)

    assert native.bind(Recorder()) is None
    monkeypatch.setattr(private, "newer", lambda library: f"{library} is new")
    assert native.bind(Recorder()) is None
    assert [len(one) for one in asked] == [len(QUESTIONS), 0]


def test_a_name_is_one_of_those() -> None:
    """C has a list."""
    with pytest.raises(ValueError, match="no symbol"):
        c_module().read_symbol("other", 0)
    with pytest.raises(ValueError, match="no symbol"):
        c_module().use_symbols([((len,), "other", 0)])
    with pytest.raises(TypeError, match="a list"):
        c_module().use_symbols(None)
