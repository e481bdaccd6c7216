"""The decorator: what was written above a function is checked, settled with the settings, and given a backend."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch.nn import Module

from .. import private
from ..dispatch.dispatcher import Core
from ..errors import DeclarationError
from ..kernels.runtime.wrappers import is_kernel, unwrap
from ..records import CacheInfo, Choice
from .arguments import (
    UNSET,
    DecoratorArguments,
    checked_mutates,
    checked_settings,
    checked_variants,
    given,
    naming,
    qualified_name,
    refuse_twice,
    unknown_argument,
)
from .function_object import function_dispatcher, settings_of
from .module_object import dispatched_module
from .registry import register

__all__ = ["Dispatcher", "shapedispatch"]


class Dispatcher(Protocol):
    """What `shapedispatch` returns: called like the thing it decorates, and asked by these methods.

    Of a function it is a real function (a method in a class, too). Of a module it is the module's ``forward``. Of a
    Triton kernel it is an object that is launched as kernels are, ``d[grid](...)``, or like a function where the
    decorator has ``grid=``; ``d[grid]`` has `explain`, `tune` and `prepare`, too. Arguments are those of a call, in any
    of its forms; every method but the call itself leaves them as they are. In a notebook it shows its choices as a
    table.
    """

    __name__: str
    __wrapped__: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the variant that is fastest for this call; at a new shape, decide which that is.

        Raises what the function as written raises for these arguments, and `MissError` where the mode is frozen or
        sealed, the shape is unknown and ``on_miss`` is ``"error"``.
        """

    def explain(self, *args: Any, **kwargs: Any) -> Choice:
        """Say what runs for this call and why. Never runs, builds or times anything.

        The `Choice`'s ``origin`` is ``unseen`` where nothing is decided yet, ``bypass`` where the call runs plain
        because dispatching it would be unsound; its ``notes`` say why.
        """

    def tune(self, *args: Any, exhaustive: bool = False, **kwargs: Any) -> Choice:
        """Decide for this call now, whatever was known, in every mode; return what was decided.

        ``exhaustive`` (kernels) searches all configs at this very shape. Raises what the function itself raises.
        """

    def prepare(self, sizes: Any = (), *args: Any, **kwargs: Any) -> list[Choice]:
        """Build and decide ahead: this call with the named dims set to each of ``sizes``; the choices, in that order.

        ``sizes`` is a mapping of dim to size or to sizes (every combination), or a list of mappings of dim to size.
        Without arguments the calls are made by the decorator's ``inputs``.
        """

    def load(self, *args: Any, **kwargs: Any) -> list[Choice]:
        """Build what the store or a shipped table names for this, and nothing else; the choices that are ready then.

        For a process that is to be sealed from its start. Calls are made anew from the stored keys, and nothing is run.
        What no key holds, such as a method's ``self``, is taken from the call that is given here, as in
        ``Layer.forward.load(layer)``, or from the decorator's ``inputs``. What cannot be built is told in one warning.
        """

    def wait(self, timeout: float | None = None, force: bool = False) -> bool:
        """Wait until no build of this is queued or being made by other processes, or ``timeout`` seconds at most.

        True where none is: the next calls load what was built. With ``force`` all that may be made for the shapes that
        were met is ordered first, earned or not; of a method, whose ``self`` no key holds, by the next call at each.
        With ``learn = "now"`` there is nothing to wait for.
        """

    def progress(self) -> dict[str, str]:
        """What is queued or being built by other processes, by variant, and how far it is."""

    def variant(self, name: str) -> Callable[..., Any]:
        """That variant as a callable, for bisecting: ``"plain"``, ``"hint[M=64]"``, ``"exact"``, a supplied one's name.

        Calling it builds it if need be; NoVariantError at a call that it cannot run, with the reasons.
        """

    def choices(self) -> list[Choice]:
        """Every choice held, at most the setting ``maxsize``."""

    def cache_info(self) -> CacheInfo:
        """Counters since the start or the last `cache_clear`."""

    def cache_clear(self) -> None:
        """Forget every choice and let every build go. The store keeps what it has."""


_ARGUMENTS = """
    Args:
        dims: which axes of which argument are which dim: ``{"x": "M K", "w": "K N", "start": "P"}``; ``_`` for an
            axis without a name, ``...`` for any further axes, a list of strings for a list of tensors, one name for
            a number. Arguments annotated with jaxtyping need none. For kernels a string that names integer
            parameters, ``"M N K"``: what ``triton.autotune`` calls its key. Default: the axes seen to vary.
        hints: sizes (at least 2) that are expected of the dynamic dims. A tuple sets all of them together, one
            build a size; a mapping of dim to sizes makes their product (at most 16); a list of mappings is taken
            as it is; ``()`` makes no such build. Default: (64, 256, 4096).
        static: dims that are constants in every build; for kernels integer parameters that become ``tl.constexpr``.
        exact: one more build per observed shape, with all sizes constant. Default: False.
        buckets: dim to ``"pow2"``, a step or bounds: calls of one bucket share one timing. Default: none.
        variants: alternatives as they are, never compiled: callables of the same arguments, or `Variant`. One whose
            numbers are not those of the function as written is never chosen.
        configs: for Triton kernels: `triton.Config`s, or a callable ``configs(device) -> list``.
        grid: for Triton kernels: ``grid(meta) -> tuple``, given once, so that the kernel is called like a function.
        inputs: ``inputs(sizes, like) -> (args, kwargs)`` makes a call of given sizes, for `Dispatcher.prepare`.
        mutates: names of the arguments that the function writes; inferred where left out.
        objective: ``"time"``; ``"memory"``, the least peak bytes of a call, ties by time; or a callable that makes a
            number of a `Timing`, the smaller the better; what it has no finite number for does not win.
        maxsize: most choices kept (default 4096).
        store: where choices are kept between processes: True, False, a path or a `Store`.
        graphs: for functions on a CUDA device: whether plain and each build come as CUDA graphs, too, ``graph[exact]``,
            recorded at their first calls and launched as one from then on. ``"auto"``: where choices are judged on the
            calls themselves (``judge = "online"``), once the host is seen to hold the device back. Default: "auto".
        name: what settings and messages call it (default: module and qualified name).
        options: for the compiler, as in torch.compile. Default: on a GPU a build made in the call (``learn = "now"``)
            has its products autotuned, an exact one all of its kernels; ``{}`` leaves that out.

    Raises:
        DeclarationError: an argument that cannot mean anything; it is a TypeError and a ValueError.
"""


def shapedispatch(
    fn: Any = None,
    /,
    *,
    dims: Any = None,
    hints: Any = UNSET,
    static: Any = UNSET,
    exact: Any = UNSET,
    buckets: Any = UNSET,
    variants: Any = (),
    configs: Any = UNSET,
    grid: Any = UNSET,
    inputs: Callable[..., Any] | None = None,
    mutates: Any = None,
    objective: Any = "time",
    maxsize: Any = UNSET,
    store: Any = UNSET,
    graphs: Any = UNSET,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    **unknown: Any,
) -> Any:
    """Run each call of a function by the build that is fastest for its exact shape.

    Used bare or with arguments, above a function, method, lambda, partial or builtin, or above a ``triton.jit`` kernel
    with or without ``triton.autotune`` and ``triton.heuristics``. What comes back has the methods of `Dispatcher`: of a
    function a real function, of a kernel an object that is launched as before. A module comes back itself, its calls
    dispatched; where its ``forward`` has no key or is no graph, its children are dispatched in its place. What is left
    out of the arguments, or None, the settings decide, then the default named in ``help(shapedispatch)``, which says
    what each argument means.
    """
    with naming(name, fn):
        if unknown:
            raise DeclarationError(unknown_argument(unknown, list(inspect.signature(shapedispatch).parameters)[1:-1]))
        kernel = given(configs=configs, grid=grid)
        overrides = given(hints=hints, static=static, exact=exact, buckets=buckets, maxsize=maxsize, store=store)
        overrides |= given(graphs=graphs)
        variants, objective = () if variants is None else variants, "time" if objective is None else objective
        said = DecoratorArguments(dims, variants, inputs, mutates, objective, name, options, kernel, overrides)
    return functools.partial(_dispatcher, said) if fn is None else _dispatcher(said, fn)


# Each by itself: from Python 3.13 on the docstring comes without its indentation, and what is added would keep its own.
shapedispatch.__doc__ = "\n\n".join(inspect.cleandoc(part) for part in (shapedispatch.__doc__ or "", _ARGUMENTS))


def _dispatcher(said: DecoratorArguments, target: Any) -> Any:
    private.tell()
    with naming(said.name, target):
        if isinstance(target, Module):
            return dispatched_module(target, said)
        refuse_twice(target)
        return _kernel_dispatcher(target, said) if is_kernel(target) else function_dispatcher(target, said)


def _kernel_dispatcher(target: Any, said: DecoratorArguments) -> Any:
    """A Triton kernel's dispatcher: an object called as Triton kernels are."""
    from ..kernels.backend import TritonKernel
    from ..kernels.spec import spec_of
    from .kernel_object import kernel_object  # Triton takes a while to import, and may not be there

    variants = checked_variants(said.variants)
    wrapped = unwrap(target)
    label = said.name or qualified_name(wrapped.kernel.fn)
    parameters = tuple(wrapped.kernel.arg_names)
    mutates = checked_mutates(said.mutates, parameters)
    resolve = functools.partial(settings_of, label, checked_settings(said.settings, parameters, parameters))
    told = {"dims": said.dims, "inputs": said.inputs, "mutates": mutates, **said.kernel}
    spec = spec_of(wrapped, resolve(), variants=variants, **told)
    core = Core(TritonKernel(wrapped, label, spec), resolve, said.inputs, objective=said.objective)
    return register(label, kernel_object(core))
