"""What the user holds: an object called as Triton kernels are, whose hits go past `JITFunction.run`.

It is an instance of the class of what it was put on, and shares its attributes: so a kernel can still be called from
another kernel, be asked for its parameters, and be taken for a kernel by Dynamo and ``wrap_triton``. To those it is a
``triton.autotune`` over the configs that have been found, with nothing left to prune.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import pickle
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from ..kernels import c_launch
from ..kernels.runtime.wrappers import WrappedKernel
from ..records import Choices
from ..shapes.dims import every_point

__all__ = ["kernel_object"]


def kernel_object(core: Any) -> Any:
    """The object for a `dispatcher.Core` whose backend is a `backend.TritonKernel`."""
    shown = _shown(core.backend.wrapped)
    in_c = c_launch.bases()
    cls = _class_over(type(shown), in_c)  # type: ignore[arg-type]  # a class is hashable
    made: Any = cls.__new__(cls)
    made.__dict__ = shown.__dict__  # one and the same: what is set on either is seen on both
    made.core = core
    if in_c is not None:
        c_launch.attach(made, _grid_bound_over(in_c))
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
    """What a dispatcher is asked about a call of a kernel: over ``grid``, None for the decorator's own."""

    __slots__ = ()
    kernel_object: Any
    grid: Any

    def _over(self) -> tuple[Any, Any]:
        return self.kernel_object.core, self.grid

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """See `decorator.Dispatcher.explain`."""
        core, grid = self._over()
        return core.explain(grid, *args, **kwargs)

    def tune(self, *args: Any, **kwargs: Any) -> Any:
        """See `decorator.Dispatcher.tune`."""
        core, grid = self._over()
        return core.tune(grid, *args, **kwargs)

    def prepare(self, sizes: Any = (), *args: Any, **kwargs: Any) -> Any:
        """See `decorator.Dispatcher.prepare`: with a call, that call; without, those that ``inputs`` makes."""
        core, grid = self._over()
        if core.inputs is None or args or kwargs:
            return core.prepare(sizes, grid, *args, **kwargs)
        made = [core.inputs(point, None) for point in every_point(sizes)]
        return Choices(core.tune(grid, *made_args, **made_kwargs) for made_args, made_kwargs in made)


class _GridBound(_Asked, functools.partial[Any]):
    """``kernel[grid]``: called with the kernel's arguments."""

    kernel_object = property(operator.attrgetter("func.__self__"))  # what is called is a method of the object
    grid = property(lambda self: self.args[1])


@functools.cache
def _grid_bound_over(in_c: Any) -> type:
    """The class of ``kernel[grid]`` where C answers calls."""
    return type("AtGrid", (in_c.GridBound, _Asked), {"__slots__": (), "__doc__": _GridBound.__doc__})


class _Variant:
    """One variant: called as the kernel is."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return functools.partial(self._run, grid)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Over the grid that the decorator gave."""
        return self._run(None, *args, **kwargs)


class _KernelObject(_Asked):
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
            return self.__wrapped__.run(*args, grid=grid, warmup=warmup, **kwargs)
        return self._launched(None, grid, *args, **kwargs)

    def warmup(self, *args: Any, **kwargs: Any) -> Any:
        """Triton's own."""
        return self.__wrapped__.warmup(*args, **kwargs)

    def _called(self, node: Any, grid: None, /, *args: Any, **kwargs: Any) -> Any:
        if self.core.backend.spec.grid is None:
            return self._without_grid(*args, **kwargs)
        return self._launched(node, grid, *args, **kwargs)

    def _without_grid(self, *args: Any, **kwargs: Any) -> Any:
        """Called by another kernel under the interpreter; or wrongly: plain's error, in our words."""
        try:
            return self.__wrapped__(*args, **kwargs)
        except (RuntimeError, TypeError) as error:
            backend = self.core.backend
            said = "" if backend.wrapped.interpreted else backend.why_no_call(None, args, kwargs)
            if not said or type(error) not in (RuntimeError, TypeError):
                raise
            raise type(error)(said) from error

    def _launched(self, node: Any, /, *call: Any, **kwargs: Any) -> Any:
        """A call that begins with its grid, with a ``node`` where C has asked: see `Table.insert`."""
        return self.core.call(call, kwargs, node)

    # -- what a user may ask

    def _over(self) -> tuple[Any, Any]:
        return self.core, None

    def variant(self, name: str) -> _Variant:
        """See `decorator.Dispatcher.variant`."""
        return _Variant(self.core.variant(name))

    load = property(operator.attrgetter("core.load"))
    wait = property(operator.attrgetter("core.wait"))
    progress = property(operator.attrgetter("core.progress"))
    choices = property(operator.attrgetter("core.choices"))
    cache_info = property(operator.attrgetter("core.cache_info"))
    cache_clear = property(operator.attrgetter("core.cache_clear"))
    _repr_html_ = property(operator.attrgetter("core._repr_html_"))
    __wrapped__ = property(operator.attrgetter("core.backend.wrapped.original"))

    def __str__(self) -> str:
        """As Triton shows it, and what was chosen."""
        return f"{self!r}, dispatched:\n{self.choices()}"

    # -- a kernel is a function of the process: its copy is itself, and a pickle leads to it by name

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        fn = self.core.backend.named
        name = f"{fn.__module__}:{fn.__qualname__}"
        with contextlib.suppress(ImportError, AttributeError, ValueError):  # the last: of a name within a function
            if pkgutil.resolve_name(name) is self:
                return pkgutil.resolve_name, (name,)
        raise pickle.PicklingError(f"{fn.__module__}.{fn.__qualname__} is not this kernel: it is pickled by its name")


class _Tuned:
    """What is asked of an autotuner: it has the configs that were found, once there are any, and prunes none."""

    __slots__ = ()
    core: Any

    @property
    def configs(self) -> list[Any]:
        """The configs that were found for hints; all of them, where none was."""
        return self._found() or self.__dict__["configs"]

    early_config_prune = property(lambda self: None if self._found() else self.__dict__["early_config_prune"])
    perf_model = property(lambda self: None if self._found() else self.__dict__["perf_model"])

    @property
    def best_config(self) -> Any:
        """The config of the newest choice."""
        found = [choice.config for choice in self.core.choices() if choice.config is not None]
        return found[-1] if found else self.__dict__.get("best_config")

    @property
    def __name__(self) -> str:
        return self.core.backend.wrapped.kernel.__name__

    def _found(self) -> list[Any]:
        seen: list[Any] = []
        for choice in self.core.choices():
            if choice.config is not None and not any(choice.config is other for other in seen):
                seen.append(choice.config)
        return seen
