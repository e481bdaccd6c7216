"""A variant of a kernel as it is run: by its own launch, by Triton's, or by a function that the user supplied.

Each is made for one key and holds what was settled for that key: the config, what heuristics came to, the grid where
the decorator gives one. None holds an argument of any call. ``launch`` is the hit's way in; calling it is the
dispatcher's, with a call in normal form: where it was called (`CallForm`), then one argument a parameter, then options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from ..shapes.dims import did_you_mean
from .runtime.launch import TritonLauncher
from .runtime.wrappers import Tuning, WrappedKernel
from .specialize import ABSENT

__all__ = [
    "AsWritten",
    "CallForm",
    "Direct",
    "FirstConfig",
    "ResolvedConfig",
    "Run",
    "Supplied",
    "TritonsOwn",
    "WhyNoCall",
]


WhyNoCall: TypeAlias = Callable[[Any, Sequence[Any], Mapping[str, Any]], str]
"""Why a kernel does not take a call, given as its grid, its arguments and its keywords; nothing where it may."""


class CallForm(NamedTuple):
    """How a call was written: its grid (None for the decorator's), how many arguments by position, which by name."""

    grid: Any
    by_position: int
    by_name: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """What one key and one config come to.

    ``supplied`` are the parameters that the config and the heuristics fill in, ``options`` what goes to the compiler
    beside them. ``grid`` is the decorator's. ``tuning`` holds the hooks that surround a launch on copies.
    """

    names: tuple[str, ...]
    config: Any
    supplied: Mapping[str, Any]
    options: Mapping[str, Any]
    grid: tuple[int, ...] | None
    tuning: Tuning | None

    def arguments(self, raw: Iterable[Any]) -> dict[str, Any]:
        """The kernel's arguments by name, as Triton shows them to a grid."""
        known = dict(zip(self.names, raw, strict=True))
        known.update(self.supplied)  # quicker than a third dict, and a hit may come by here
        return known

    def sized(self, grid: Any, raw: tuple[Any, ...]) -> Sequence[int]:
        """The grid of this very call."""
        if grid is None:
            if self.grid is None:
                raise TypeError("a kernel needs a grid: call kernel[grid](...), or give grid= to shapedispatch")
            return self.grid
        if not callable(grid):
            return grid  # type: ignore[no-any-return]  # the user's own
        try:
            return grid(self.arguments(raw))  # type: ignore[no-any-return]
        except KeyError as error:
            _note_what_was_meant(error, self.names)
            raise

    def before(self, grid: Any, raw: tuple[Any, ...]) -> None:
        """What a config asks for before every launch."""
        if self.config is not None and self.config.pre_hook is not None:
            given = {name: value for name, value in zip(self.names, raw, strict=True) if value is not ABSENT}
            self.config.pre_hook({**given, "grid": grid, "warmup": False, **self.config.all_kwargs()})


class Run:
    """The common part. ``run_on_copies`` is a call on copies: as Triton's autotuner would make it, with its resets."""

    launcher: Any = None
    """The launch in C, where there is one; see `c_launch.c_launcher_of`."""

    def __init__(self, resolved: ResolvedConfig) -> None:
        self.resolved = resolved

    def launch(self, grid: Any, values: tuple[Any, ...], raw: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Run on the caller's arguments; ``values`` are they as a launch takes them."""
        raise NotImplementedError

    def launch_on_copies(self, grid: Any, values: tuple[Any, ...], raw: tuple[Any, ...]) -> Any:
        """Run on copies."""
        return self.launch(grid, values, raw, {})

    def __call__(self, call_form: CallForm, *raw: Any, **options: Any) -> Any:
        """Run on the caller's arguments."""
        return self.launch(call_form.grid, _values(raw), raw, options)

    def run_on_copies(self, call_form: CallForm, *raw: Any, **options: Any) -> None:
        """Run on copies, again and again: reset before or restored after as the decorator below has said."""
        tuning = self.resolved.tuning
        arguments = self.resolved.arguments(raw) if tuning is not None else {}
        restored = tuning.restore_value if tuning is not None else ()
        kept = {name: arguments[name].clone() for name in restored if arguments.get(name) is not None}
        self.run_once_on_copies(call_form, *raw, **options)
        for name, value in kept.items():
            arguments[name].copy_(value)

    def run_once_on_copies(self, call_form: CallForm, *raw: Any, **options: Any) -> None:
        """Run on fresh copies, in which is left what was written, to be looked at. What is returned says nothing."""
        tuning = self.resolved.tuning
        if tuning is None:
            self.launch_on_copies(call_form.grid, _values(raw), raw)
            return
        arguments = self.resolved.arguments(raw)
        for name in tuning.reset_to_zero:
            if arguments.get(name) is not None:
                arguments[name].zero_()
        if tuning.pre_hook is not None:
            tuning.pre_hook(arguments)
        self.launch_on_copies(call_form.grid, _values(raw), raw)
        if tuning.post_hook is not None:
            tuning.post_hook(arguments, exception=None)


class Direct(Run):
    """By the kernel's own launch. ``stream_of`` gives the current stream of a device.

    Called in Python; hits in C take the ``launcher`` for the same launch, and this where that cannot do it.
    """

    __slots__ = ("launcher",)  # where C reads it

    def __init__(
        self,
        resolved: ResolvedConfig,
        launch: TritonLauncher,
        stream_of: Callable[[int], int],
        device: int,
        launcher: Any = None,
    ) -> None:
        super().__init__(resolved)
        self.launcher: Any = launcher
        self._launch = launch
        self._stream_of = stream_of
        self._device = device
        self._before = resolved.before if resolved.config is not None and resolved.config.pre_hook is not None else None
        constants = {path[0] for path in launch.compiled.src.constants if len(path) == 1}
        places = ((resolved.names.index(name), value) for name, value in resolved.supplied.items())
        # What is no constant is passed at the launch, and only the config or the heuristic knows it.
        self._filled = tuple((i, value) for i, value in places if i not in constants)

    def launch(self, grid: Any, values: tuple[Any, ...], raw: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """See `Run.launch`."""
        if self._before is not None:
            self._before(grid, raw)
        if type(grid) is not tuple:
            grid = self.resolved.sized(grid, raw)
        if self._filled:
            values = self._with_filled(values)
        return self._launch(grid, self._stream_of(self._device), values, raw)

    def launch_on_copies(self, grid: Any, values: tuple[Any, ...], raw: tuple[Any, ...]) -> Any:
        """See `Run.launch_on_copies`."""
        self.resolved.before(grid, raw)
        grid = self.resolved.sized(grid, raw)
        return self._launch(grid, self._stream_of(self._device), self._with_filled(values), raw, launch_on_copies=True)

    def _with_filled(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        filled = list(values)
        for place, value in self._filled:
            filled[place] = value
        return tuple(filled)


class TritonsOwn(Run):
    """By Triton's own launch of the function ``kernel``, with the config that was chosen."""

    def __init__(self, resolved: ResolvedConfig, kernel: Any) -> None:
        super().__init__(resolved)
        self._kernel = kernel

    def launch(self, grid: Any, values: tuple[Any, ...], raw: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """See `Run.launch`."""
        self.resolved.before(grid, raw)
        sized = tuple(self.resolved.sized(grid, raw))
        return self._kernel.run(grid=sized, warmup=False, **self.resolved.arguments(raw), **self.resolved.options)


class AsWritten:
    """Triton's own call of what stood below the decorator, its tuning included; ``grid`` is the decorator's.

    ``why_no_call`` says of a call, as its grid, its arguments and its keywords, why the kernel does not take it.
    """

    def __init__(
        self, original: Any, names: Sequence[str], grid: Any, why_no_call: WhyNoCall = lambda *call: ""
    ) -> None:
        self._original = original
        self._names = names
        self._grid = grid
        self._why_no_call = why_no_call

    def launch(self, grid: Any, values: tuple[Any, ...], raw: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """See `Run.launch`."""
        given = {name: value for name, value in zip(self._names, raw, strict=True) if value is not ABSENT}
        return self.called(grid, (), {**given, **options})

    def __call__(self, where: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The call as the caller wrote it: ``where`` is its grid, or its `CallForm` if it is in normal form."""
        if not isinstance(where, CallForm):
            return self.called(where, args, kwargs)
        known = {**dict(zip(self._names, args, strict=True)), **kwargs}
        return self.called(where.grid, args[: where.by_position], {name: known[name] for name in where.by_name})

    def called(self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The call as the caller wrote it; where Triton does not take it, the TypeError says why in our words."""
        sized = self._grid if grid is None else grid
        try:
            return self._run(sized, args, kwargs)
        except (TypeError, RuntimeError, AssertionError) as error:  # the second where there is no GPU to ask
            if said := self._why_no_call(sized, args, kwargs):
                raise TypeError(said) from error
            raise
        except KeyError as error:
            if callable(sized):
                _note_what_was_meant(error, self._names)
            raise

    def _run(self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._original.run(*args, grid=grid, warmup=False, **kwargs)


class FirstConfig(AsWritten):
    """Triton's own launch with the config that comes first for a call: it may compile, and never times.

    ``first`` gives that config, or None, of the arguments by position under their names and of the keywords.
    """

    def __init__(
        self,
        wrapped: WrappedKernel,
        first: Callable[[Mapping[str, Any], Mapping[str, Any]], Any],
        names: Sequence[str],
        grid: Any,
        why_no_call: WhyNoCall,
    ) -> None:
        super().__init__(wrapped.kernel, names, grid, why_no_call)
        self._wrapped = wrapped
        self._first = first

    def _run(self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        positional = dict(zip(self._names, args, strict=False))
        config = self._first(positional, kwargs)
        if config is not None and config.all_kwargs().keys() & (positional.keys() | kwargs.keys()):
            return self._wrapped.original.run(*args, grid=grid, warmup=False, **kwargs)  # which refuses it
        if config is not None and config.pre_hook is not None:
            config.pre_hook({**positional, **kwargs, "grid": grid, "warmup": False, **config.all_kwargs()})
        return super()._run(grid, args, self._wrapped.keywords(positional, kwargs, config))


class Supplied(Run):
    """By a function of the user's, called with the kernel's arguments by name and without a grid."""

    def __init__(self, resolved: ResolvedConfig, fn: Callable[..., Any]) -> None:
        super().__init__(resolved)
        self._fn = fn

    def launch(self, grid: Any, values: tuple[Any, ...], raw: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """See `Run.launch`."""
        given = zip(self.resolved.names, raw, strict=True)
        return self._fn(**{name: value for name, value in given if value is not ABSENT})


def _note_what_was_meant(error: KeyError, names: Sequence[str]) -> None:
    """A grid has read what the kernel does not have."""
    asked = error.args[0] if error.args else None
    if isinstance(asked, str) and asked not in names:
        error.add_note(f"The kernel has no parameter {asked!r}. {did_you_mean(asked, names)}")


def _values(raw: Iterable[Any]) -> tuple[Any, ...]:
    """The arguments as a launch takes them: tensors by their addresses."""
    return tuple(value.data_ptr() if isinstance(value, Tensor) else value for value in raw)
