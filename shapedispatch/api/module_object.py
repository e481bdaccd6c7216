"""What the user holds of a module: the same module, whose ``forward`` dispatches, or whose children's do.

The instance gets a class of its own: a subclass of its class, of the same name, whose ``forward`` is the dispatcher.
That is how torch's parametrizations and ``fully_shard`` change one instance, and what keeps a call right: whichever
module is called is ``self``, be it a deep copy, a shallow one or a replica. A function in the instance's dict would go
on calling the module that it was made for, and would keep it alive.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from ..errors import DeclarationError, ShapeDispatchError, in_a_line
from ..interpreter.failures import what_fails
from ..interpreter.locks import fork_safe_rlock
from .arguments import DecoratorArguments, refuse_twice
from .function_object import function_dispatcher, names_dims
from .registry import TARGET

__all__ = ["dispatched_module"]

_log = logging.getLogger("shapedispatch")

_HANDED_DOWN = ("hints", "exact", "maxsize", "store", "graphs")
"""The decorator's settings that name nothing of the module that it was given."""


def dispatched_module(module: Module, said: DecoratorArguments) -> Module:
    """The same module, dispatched; or what is in it, where it has no forward of its class's.

    Raises DeclarationError.
    """
    if said.kernel:
        raise DeclarationError("configs= and grid= are for Triton kernels")
    if _is_compiled(module):
        raise DeclarationError(f"{type(module).__name__}: a compiled module. Hand over the module as it was written")
    refuse_twice(module.forward)
    target = _of_others(module, said) or ModuleTarget(said, type(module))
    why_not = target.join(module)
    if why_not and not target.dispatch_below([module]):
        raise DeclarationError(f"{type(module).__name__} cannot be dispatched: {why_not}")
    with _targets_lock:
        _targets.add(target)
    return module


_targets: weakref.WeakSet[ModuleTarget] = weakref.WeakSet()
"""Those that more modules may be handed over to: not what has set one apart, nor what came from a pickle."""
_targets_lock = fork_safe_rlock()


def _of_others(module: Module, said: DecoratorArguments) -> ModuleTarget | None:
    """What dispatches modules that live, are like this one, and were handed over with the same arguments.

    The layers of a model, handed over one by one, learn together, and a build for one is there for all.
    """
    with _targets_lock:
        return next((target for target in _targets if target.takes(module, said)), None)


class ModuleTarget:
    """One ``shapedispatch(module, ...)``: a class with a dispatcher for each class of modules in it that is dispatched.

    ``root`` is the class of the module that was handed over, and of others that were with the same arguments.
    """

    def __init__(self, said: DecoratorArguments, root: type) -> None:
        self._said, self._root = said, root
        self._lock = fork_safe_rlock()
        self._classes: dict[type, type] = {}
        self._modules: weakref.WeakValueDictionary[int, Module] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()

    def takes(self, module: Module, said: DecoratorArguments) -> bool:
        """Whether a module that is handed over with these arguments may be one more of this."""
        if type(module) is not self._root or said != self._said or not (others := self._of(self._root)):
            return False
        core = vars(self._classes[self._root])["forward"].core
        return _tensors_in(others[0]) == _tensors_in(module) and bool(core.resolve() == core.settings)

    def join(self, module: Module) -> str | None:
        """As `dispatch`; what was left to the children of others before is to this one's."""
        why_not = self.dispatch(module)
        for child in [] if why_not else module.modules():
            if type(child) in self._classes and not _is_left_as_it_is(child):
                self.dispatch(child)
        return why_not

    def dispatch(self, module: Module) -> str | None:
        """Let the module's calls be dispatched; or say why that cannot be."""
        with self._lock:
            cls = _why_not(module) or self._class_for(type(module))
            if isinstance(cls, str):
                return cls
            object.__setattr__(module, "__class__", cls)
            self._modules[next(self._numbers)] = module
        return None

    def _class_for(self, base: type) -> type | str:
        """The class of instances of ``base`` that are dispatched, or why there is none."""
        if base not in self._classes:
            try:
                made = self._classes[base] = _subclass(base, self, self._dispatcher(base))
            except ShapeDispatchError as error:
                if base is self._root:
                    raise
                return str(error)
            except what_fails() as error:  # what a class says to having a subclass is its own affair
                return in_a_line(error)
            core = vars(made)["forward"].core
            core.with_receiver = lambda args: self._with_receiver(args, base)
            core.hand_on = lambda called: self._hand_on(base, called)
            core.set_apart = lambda called: self._set_apart(base, called)
            core.stays = base is self._root
        return self._classes[base]

    def _dispatcher(self, base: type) -> Any:
        return function_dispatcher(_forward_of(base), self._said if base is self._root else _for_children(self._said))

    def _with_receiver(self, args: tuple[Any, ...], base: type) -> tuple[Any, ...]:
        """A call's arguments with a module in front, where none is named: the first of its class that lives."""
        modules = [] if args and isinstance(args[0], base) else self._of(base)
        return (*modules[:1], *args)

    def _of(self, base: type) -> list[Module]:
        """The modules of a class that are dispatched, the copies of them too."""
        with self._lock:
            return [module for module in self._modules.values() if isinstance(module, base)]

    def _set_apart(self, base: type, called: Module) -> bool:
        """Give a module a dispatcher of its own, if others share this one; whether that was done.

        Where every call waits for what is learned, one that was not handed over itself stays: its builds come on top of
        those that the others have waited for. So does a replica, which is gone after its call.
        """
        core = vars(self._classes[base])["forward"].core
        with self._lock:
            numbers = [number for number, module in self._modules.items() if module is called]
            if not numbers or len(self._of(base)) == 1 or not (base is self._root or core.in_background()):
                return False
            apart = ModuleTarget(self._said if base is self._root else _for_children(self._said), base)
            for number in numbers:
                del self._modules[number]
            object.__setattr__(called, "__class__", base)
            apart.dispatch(called)
        return True

    # -- from a module to its children

    def _hand_on(self, base: type, called: Module) -> str:
        """Dispatch what is below all modules of a class; what that is, for a person."""
        found = self.dispatch_below([*self._of(base), called])
        return ", ".join(f"{count} {name}.forward" for name, count in found.items()) or "nothing, and plain runs"

    def dispatch_below(self, modules: Iterable[Module]) -> Counter[str]:
        """Dispatch the next modules below these that can be; how many of each class are."""
        with self._lock:
            found = {one for module in modules for one in self._below(module)}
        return Counter(sorted(type(one).__name__ for one in found))

    def _below(self, module: Module) -> Iterator[Module]:
        for child in module.children():
            if getattr(type(child), TARGET, None) is self:
                yield child
            elif not _is_left_as_it_is(child):
                if self.dispatch(child) is None:
                    yield child
                else:
                    yield from self._below(child)

    def dispatch_stored(self, module: Module) -> None:
        """Dispatch what is below a module and has stored choices: another process has left its calls to these."""
        with self._lock:
            below = [child for child in module.modules() if not _is_left_as_it_is(child) and _why_not(child) is None]
            classes = {cls for cls in map(type, below) if self._has_stored(cls)}
            for child in below:
                if type(child) in classes:
                    self.dispatch(child)

    def _has_stored(self, base: type) -> bool:
        """Whether anything is stored for a class; one of which nothing is gets no dispatcher for this question."""
        known = base in self._classes
        cls = self._class_for(base)
        stored = not isinstance(cls, str) and vars(cls)["forward"].core.has_stored()
        if not known and not stored:
            self._classes.pop(base, None)
        return stored

    # -- copies and pickles

    def __deepcopy__(self, memo: Any) -> ModuleTarget:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """By its arguments; where they cannot be pickled, the module's pickle is that of the module as it was."""
        try:
            pickle.dumps(self._said)
        except what_fails() as error:  # whatever the user's objects raise; the module is pickled without them
            _log.debug("a module is pickled without its dispatcher: %s", in_a_line(error))
            return _no_target, ()
        return ModuleTarget, (self._said, self._root)


def _no_target() -> None:
    return None


def _restored(target: ModuleTarget | None, make: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """An instance as its own class makes it, dispatched as what it is a copy or a pickle of. Its state comes after."""
    module = make(*args)
    if target is not None:
        target.dispatch(module)
    return module


def _subclass(base: type, target: ModuleTarget, dispatcher: Any) -> type:
    """A class for instances of ``base`` that are dispatched: it has its name, and is pickled as it."""

    def __reduce_ex__(self: Module, protocol: Any) -> Any:
        of_base: Any = super(made, self)
        reduced = of_base.__reduce_ex__(protocol)
        if isinstance(reduced, str):  # the name of a global
            return reduced
        make, args, *state = reduced
        return (_restored, (target, make, tuple(base if arg is made else arg for arg in args)), *state)

    names = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "forward": dispatcher,
        "__reduce_ex__": __reduce_ex__,
        TARGET: target,
    }
    made: Any = types.new_class(base.__name__, (base,), {}, lambda scope: scope.update(names))
    return made  # type: ignore[no-any-return]  # which to mypy is no class


def _for_children(said: DecoratorArguments) -> DecoratorArguments:
    """Without what names arguments, dims or the thing itself."""
    settings: Mapping[str, Any] = {
        name: value
        for name, value in said.settings.items()
        if name in _HANDED_DOWN and not (name == "hints" and names_dims(value))
    }
    return replace(said, dims=None, variants=(), inputs=None, mutates=None, name=None, settings=settings)


# -- which modules


def _why_not(module: Module) -> str | None:
    """Why this one cannot be dispatched itself, where its children may be."""
    if "forward" in vars(module):
        return "its forward is set on the instance"
    if _forward_of(type(module)) is Module.forward:
        return "it has no forward"
    if parametrize.is_parametrized(module):  # torch takes the topmost class off to undo that
        return "it is parametrized"
    return None


def _forward_of(cls: type) -> Any:
    return getattr(cls, "forward", Module.forward)


def _tensors_in(module: Module) -> list[tuple[Any, ...]]:
    """What parameters and buffers it has: layers of other widths have other calls."""
    named = itertools.chain(module.named_parameters(), module.named_buffers())
    return [(name, None if is_lazy(held) else held.shape, held.dtype, held.device) for name, held in named]


def _is_compiled(module: Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod")  # as torch.compile names it


def _is_left_as_it_is(module: Module) -> bool:
    """Whether neither it nor what is below it is dispatched: it is already, is compiled, or is one call of torch's."""
    already = hasattr(_forward_of(type(module)), "cache_info")
    of_torch = type(module).__module__.partition(".")[0] == "torch"
    return already or _is_compiled(module) or (of_torch and next(module.children(), None) is None)
