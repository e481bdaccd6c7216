"""What the user holds: an object called as Triton kernels are, whose hits go past `JITFunction.run`.

It is an instance of the class of what it was put on, and shares its attributes: so a kernel can still be called from
another kernel, be asked for its parameters, and be taken for a kernel by Dynamo and ``wrap_triton``. To those it is a
``triton.autotune`` over the configs that have been found, with nothing left to prune.
"""

from __future__ import annotations

import functools
import importlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from ..hit.profiling import labelled
from ..hit.profiling import state as _profiler
from ..kernels import c_signature
from ..kernels.runtime.launch import capturing
from ..kernels.runtime.wrappers import WrappedKernel
from ..kernels.variants import CallForm
from ..keys.key import Bypass
from ..shapes.hints import every_point

__all__ = ["kernel_object"]


def kernel_object(core: Any) -> Any:
    """The object for a `dispatcher.Core` whose backend is a `backend.TritonKernel`."""
    shown = _shown(core.backend.wrapped)
    in_c = c_signature.bases()
    cls = _class_over(type(shown), in_c)  # type: ignore[arg-type]  # a class is hashable
    made: Any = cls.__new__(cls)
    made.__dict__ = shown.__dict__  # one and the same: what is set on either is seen on both
    made.core = core
    if in_c is not None:
        c_signature.attach(made, _grid_bound_over(in_c))
    return made


def _shown(wrapped: WrappedKernel) -> Any:
    """What others take the object for: what it was put on, and where that is ``Heuristics`` an autotuner over it."""
    if not wrapped.interpreted and not wrapped.unsupported and type(wrapped.original).__name__ == "Heuristics":
        from triton.runtime.autotuner import Autotuner

        return Autotuner(wrapped.original, wrapped.original.arg_names, None, [], None, None)
    return wrapped.original


@functools.cache
def _class_over(base: Any, in_c: Any) -> Any:
    """The class of such objects over a class of Triton's: made once. Calls go to ``in_c`` first, if there is one."""
    bases = [in_c.KernelObject] if in_c is not None else []
    bases += [_Tuned, _KernelObject, base] if hasattr(base, "prune_configs") else [_KernelObject, base]
    return type(f"Dispatched{base.__name__}", tuple(bases), {"__slots__": ("core",), "__doc__": _KernelObject.__doc__})


class _Asked:
    """What ``kernel[grid]`` is asked for, as a dispatcher is: the call is the kernel's, with this ``grid``."""

    __slots__ = ()
    kernel_object: Any
    grid: Any

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """See `decorator.Dispatcher.explain`."""
        return self.kernel_object.core.explain(self.grid, *args, **kwargs)

    def tune(self, *args: Any, **kwargs: Any) -> Any:
        """See `decorator.Dispatcher.tune`."""
        return self.kernel_object.core.tune(self.grid, *args, **kwargs)

    def prepare(self, sizes: Any = (), *args: Any, **kwargs: Any) -> Any:
        """See `decorator.Dispatcher.prepare`."""
        return _prepared(self.kernel_object.core, self.grid, sizes, args, kwargs)


class _GridBound(_Asked, functools.partial[Any]):
    """``kernel[grid]``: called with the kernel's arguments."""

    @property
    def kernel_object(self) -> Any:  # type: ignore[override]  # a field in C
        """The kernel."""
        return self.func.__self__  # type: ignore[attr-defined]  # what is called is a method of the object

    @property
    def grid(self) -> Any:  # type: ignore[override]  # a field in C
        """What stands between the brackets."""
        return self.args[1]


@functools.cache
def _grid_bound_over(in_c: Any) -> type:
    """The class of ``kernel[grid]`` where C answers calls."""
    return type("AtGrid", (in_c.GridBound, _Asked), {"__slots__": (), "__doc__": _GridBound.__doc__})


def _named(module: str, name: str) -> Any:
    """What a module has under a qualified name; None where it has nothing."""
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)  # type: ignore[assignment]  # a module first, then whatever it holds
    return found


class _Variant:
    """One variant: called as the kernel is."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return functools.partial(self._run, grid)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Over the grid that the decorator gave."""
        return self._run(None, *args, **kwargs)


def _prepared(core: Any, grid: Any, sizes: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """See `decorator.Dispatcher.prepare`: with a call, that call; without, those that ``inputs`` makes."""
    inputs = core.backend.spec.inputs
    if inputs is None or args or kwargs:
        return core.prepare(sizes, grid, *args, **kwargs)  # type: ignore[no-any-return]  # the core is known by use
    made = [inputs(point, None) for point in every_point(sizes)]
    return [core.tune(grid, *made_args, **made_kwargs) for made_args, made_kwargs in made]


class _KernelObject:
    """A Triton kernel whose calls are dispatched: ``kernel[grid](...)``, or ``kernel(...)`` with a decorator's grid."""

    __slots__ = ()
    core: Any

    def __getitem__(self, grid: Any) -> _GridBound:
        return _GridBound(self._launched, None, grid)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Launch over the grid that the decorator gave."""
        return self._called(None, None, *args, **kwargs)

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        """As Triton's ``run``: by the choice for this call, or with ``warmup`` Triton's own compilation."""
        if warmup:
            return self.core.backend.wrapped.original.run(*args, grid=grid, warmup=warmup, **kwargs)
        return self._launched(None, grid, *args, **kwargs)

    def warmup(self, *args: Any, **kwargs: Any) -> Any:
        """Triton's own."""
        return self.core.backend.wrapped.original.warmup(*args, **kwargs)

    # -- the hit

    def _called(self, node: Any, grid: None, /, *args: Any, **kwargs: Any) -> Any:
        if self.core.backend.spec.grid is None:
            # Called by another kernel under the interpreter; or wrongly, and Triton says how.
            return self.core.backend.wrapped.original(*args, **kwargs)
        return self._launched(node, grid, *args, **kwargs)

    def _launched(self, node: Any, grid: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The hit, with a ``node`` where C has asked: see `Table.node`."""
        core = self.core
        backend = core.backend
        reason = "" if core.off else backend.why_bypassed()
        if reason is None:
            try:
                keys = backend.key_schema.keys or backend.scouted(grid, args, kwargs)
                key, values, raw, options = keys.of(*args, **kwargs)
            except Bypass as bypass:
                reason = str(bypass)
            except TypeError:  # Triton says how to call it, or takes the call after all
                reason = "the call does not bind"
        if reason is not None:  # outside of any except: Triton's errors are not ours in another dress
            return self._bypass(reason, grid, args, kwargs)
        entry = core.table.find(key, raw, options)
        if entry is None:
            return self._miss(key, (CallForm(grid, len(args), tuple(kwargs)), *raw), options)
        if node is not None:
            core.table.insert(node, key, args, kwargs, False)
        run = entry.run
        if run is None:  # another thread let the build go between finding the entry and this line
            return self._bypass("", grid, args, kwargs)
        launch = run.launch
        if _profiler._is_profiler_enabled:
            launch = labelled(f"{backend.name}: {entry.choice.variant}", launch)
        return launch(grid, values, raw, options)

    def _miss(self, key: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        if capturing():
            return self.core.backend.loaded(args, options, self.core.table).run(*args, **options)
        return self.core.miss(key, args, options)

    def _bypass(self, reason: str, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Triton's own call, as the caller wrote it; without a reason nothing is counted."""
        backend = self.core.backend
        if reason:
            self.core.table.count("bypasses", reason)
        if self.core.frozen and not backend.wrapped.unsupported:
            return backend.first.called(grid, args, kwargs)  # as written it might be timed
        return backend.plain.called(grid, args, kwargs)

    # -- what a user may ask; a call is the kernel's, without a grid

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """See `decorator.Dispatcher.explain`."""
        return self.core.explain(None, *args, **kwargs)

    def tune(self, *args: Any, **kwargs: Any) -> Any:
        """See `decorator.Dispatcher.tune`."""
        return self.core.tune(None, *args, **kwargs)

    def prepare(self, sizes: Any = (), *args: Any, **kwargs: Any) -> Any:
        """See `decorator.Dispatcher.prepare`."""
        return _prepared(self.core, None, sizes, args, kwargs)

    def variant(self, name: str) -> _Variant:
        """See `decorator.Dispatcher.variant`."""
        return _Variant(self.core.variant(name))

    def choices(self) -> Any:
        """See `decorator.Dispatcher.choices`."""
        return self.core.choices()

    def cache_info(self) -> Any:
        """See `decorator.Dispatcher.cache_info`."""
        return self.core.cache_info()

    def cache_clear(self) -> None:
        """See `decorator.Dispatcher.cache_clear`."""
        self.core.cache_clear()

    def _repr_html_(self) -> str:
        return self.core._repr_html_()  # type: ignore[no-any-return]  # a notebook asks for it

    # -- a kernel is a function of the process: its copy is itself, and a pickle leads to it by name

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        fn = self.core.backend.wrapped.kernel.fn
        if _named(fn.__module__, fn.__qualname__) is not self:
            raise pickle.PicklingError(
                f"{fn.__module__}.{fn.__qualname__} is not this kernel: it is pickled by its name"
            )
        return _named, (fn.__module__, fn.__qualname__)

    @property
    def __wrapped__(self) -> Any:
        return self.core.backend.wrapped.original


class _Tuned:
    """What is asked of an autotuner: it has the configs that were found, once there are any, and prunes none."""

    __slots__ = ()
    core: Any

    @property
    def configs(self) -> list[Any]:
        """The configs that were found for hints; all of them, where none was."""
        return self._found() or self.__dict__["configs"]

    @property
    def early_config_prune(self) -> Any:
        """None where only what was found is left."""
        return None if self._found() else self.__dict__["early_config_prune"]

    @property
    def perf_model(self) -> Any:
        """None where only what was found is left."""
        return None if self._found() else self.__dict__["perf_model"]

    @property
    def best_config(self) -> Any:
        """The config of the newest choice."""
        choices = [choice for choice in self.core.choices() if choice.config is not None]
        return choices[-1].config if choices else self.__dict__.get("best_config")

    @property
    def __name__(self) -> str:
        return self.core.backend.wrapped.kernel.__name__

    def _found(self) -> list[Any]:
        seen: list[Any] = []
        for choice in self.core.choices():
            if choice.config is not None and not any(choice.config is other for other in seen):
                seen.append(choice.config)
        return seen
