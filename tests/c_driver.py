"""A CUDA driver for the C path that launches nothing: launches go to a `Recorder`, as Triton's own do."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shapedispatch.hit import native

Facts = Callable[[int], tuple[str, dict[str, Any], dict[str, Any], int]]
"""Of a function's handle: its kernel's name, signature, constants by name, warps."""

FORMS = {
    f"{sign}{8 * size}": form
    for sign, forms in (("i", "bhiq"), ("u", "BHIQ"))
    for size, form in zip((1, 2, 4, 8), forms, strict=True)
}
FORMS |= {"i1": "b", "u1": "B", "fp32": "f", "fp64": "d"}
HIDDEN = 2
"""Pointers to scratch memory behind a kernel's own parameters."""

_pointer, _out = ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, *[ctypes.c_uint] * 7, _pointer, ctypes.POINTER(_pointer), _pointer)
_INFO = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, ctypes.c_size_t, _out, _out)
_TEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
_STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(_pointer))
_CAPTURING = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, ctypes.POINTER(ctypes.c_int))
_CONTEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_pointer))


class CDriver:
    """``error`` is what a launch answers, ``in_c`` how many there were; ``launched`` is told of each.

    ``used`` is whether this thread has used CUDA.
    """

    def __init__(
        self, facts: Facts, stream: Callable[[], int], device: Callable[[], int], launched: Callable[..., None]
    ) -> None:
        self.facts = facts
        self.stream = stream
        self.device = device
        self.launched = launched
        self.error = 0
        self.capturing = False
        self.used = True
        self.in_c = 0
        self._functions = (
            _LAUNCH(self._launch), _INFO(self._info), _TEXT(self._text), _STREAM(self._stream), _CAPTURING(self._ask),
            _CONTEXT(self._context),
        )  # fmt: skip
        self.addresses = tuple(ctypes.cast(function, _pointer).value for function in self._functions)

    def _parameters(self, function: int) -> list[tuple[int, str]]:
        """Offset and form of each."""
        kinds = [str(kind) for kind in self.facts(function)[1].values() if kind != "constexpr"]
        forms = [*("P" if kind.startswith("*") else FORMS[kind] for kind in kinds), *"P" * HIDDEN]
        places, end = [], 0
        for form in forms:
            size = struct.calcsize(form)
            start = -(-end // size) * size
            places.append((start, form))
            end = start + size
        return places

    def _info(self, function: int, index: int, offset: Any, size: Any) -> int:
        parameters = self._parameters(function)
        if index >= len(parameters):
            return 1
        offset[0], size[0] = parameters[index][0], struct.calcsize(parameters[index][1])
        return 0

    def _launch(self, function: int, *rest: Any) -> int:
        x, y, z, threads, _, _, _, stream, places, _ = rest
        if self.error:
            return self.error
        name, signature, constants, warps = self.facts(function)
        assert threads == 32 * warps
        sizes = [struct.calcsize(form) for _, form in self._parameters(function)]
        forms = [form for _, form in self._parameters(function)]
        given = [struct.unpack(f, ctypes.string_at(places[i], sizes[i]))[0] for i, f in enumerate(forms)]
        assert given[-HIDDEN:] == [0] * HIDDEN
        left = iter(given)
        arguments = tuple(constants.get(n) if k == "constexpr" else next(left) for n, k in signature.items())
        self.in_c += 1
        self.launched(name, (x, y, z), stream or 0, function, arguments, constants, warps)
        return 0

    def _text(self, error: int, text: Any) -> int:
        text[0] = b"the driver's words"
        return 0

    def _stream(self, kind: int, device: int, stream: Any) -> int:
        stream[0] = self.stream()
        return 0

    def _context(self, context: Any) -> int:
        context[0] = 1000 + self.device() if self.used else None
        return 0

    def _ask(self, stream: int, status: Any) -> int:
        status[0] = int(self.capturing)
        return 0


_CREATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_pointer), ctypes.c_uint)
_EVENT = ctypes.CFUNCTYPE(ctypes.c_int, _pointer)
_RECORD = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, _pointer)
_ELAPSED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_float), _pointer, _pointer)
_MODE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
_CLOCK = ctypes.CFUNCTYPE(ctypes.c_int64)
NOT_READY = 600


class CEvents:
    """Events of a device whose time is ``now_us``, which a test moves; so is the host's.

    With ``busy`` no event has come to pass, and no stream is dry; with ``ends`` no stream is.
    ``asked`` has the mode of captures at each question.
    """

    def __init__(self) -> None:
        self.now_us = 0.0
        self.busy = False
        self.ends = False
        self.made = 0
        self.mode = 0
        self.asked: list[int] = []
        self.recorded: dict[int, float] = {}
        self._functions = (
            _CREATE(self._create), _EVENT(self._destroy), _RECORD(self._record), _EVENT(self._ask),
            _ELAPSED(self._elapsed), _EVENT(self._is_dry), _MODE(self._exchange),
            _CLOCK(lambda: int(self.now_us * 1e3)),
        )  # fmt: skip
        self.addresses = tuple(ctypes.cast(function, _pointer).value for function in self._functions)

    def _create(self, event: Any, flags: int) -> int:
        self.made += 1
        event[0] = self.made
        return 0

    def _destroy(self, event: int) -> int:
        return 0

    def _record(self, event: int, stream: int) -> int:
        self.recorded[event] = self.now_us
        return 0

    def _ask(self, of: int) -> int:
        self.asked.append(self.mode)
        return NOT_READY if self.busy else 0

    def _is_dry(self, stream: int) -> int:
        return self._ask(stream) or (NOT_READY if self.ends else 0)

    def _elapsed(self, milliseconds: Any, start: int, end: int) -> int:
        milliseconds[0] = (self.recorded[end] - self.recorded[start]) / 1e3
        return 0

    def _exchange(self, mode: Any) -> int:
        mode[0], self.mode = self.mode, mode[0]
        return 0


@contextmanager
def with_events(events: CEvents) -> Iterator[None]:
    """The driver of C has these events inside, where C is in use."""
    module = native.module()
    if module is None:
        yield
        return
    module.use_events(events.addresses)
    try:
        yield
    finally:
        module.use_events((0,) * 8)


@contextmanager
def driving(driver: CDriver) -> Iterator[None]:
    """C launches by this driver inside, where C is in use."""
    module, before = native.module(), native._no_driver
    if module is None:
        yield
        return
    module.use_driver(driver.addresses)
    native._no_driver = lambda module: None  # type: ignore[assignment]  # a cached function, replaced by a plain one
    try:
        yield
    finally:
        native._no_driver = before
        module.use_driver((0,) * 6)
