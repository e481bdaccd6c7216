"""The launched Triton kernels of an installed package, put behind the dispatcher where they stand.

A kernel is replaced in every module of the package that has it: under each of its names, in a class, in a dict or a
list. Device functions, which other kernels call, stay as they are: they are part of those kernels' code.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any

from shapedispatch import shapedispatch
from shapedispatch.kernels.runtime.wrappers import is_kernel

__all__ = ["Wrapped", "import_all"]


def import_all(package: str) -> dict[str, str]:
    """Import a package with all that is below it; the modules that cannot be imported here, each with the reason."""
    failed: dict[str, str] = {}

    def note(name: str) -> None:
        failed[name] = _line(sys.exc_info()[1])

    root = importlib.import_module(package)
    for info in pkgutil.walk_packages(getattr(root, "__path__", ()), f"{package}.", note):
        if info.name.rpartition(".")[2] == "__main__":
            continue
        try:
            importlib.import_module(info.name)
        except (Exception, SystemExit):  # noqa: BLE001 - another's module may raise whatever it likes
            note(info.name)
    return failed


@dataclass
class Place:
    """One place where a kernel stands: what puts another thing there."""

    put: Callable[[Any], None]
    kernel: Any


@dataclass
class Wrapped:
    """The kernels of ``packages``; ``said`` is what the decorator is told of each.

    ``dispatchers`` are those that were made, by name, ``left`` the others with why they stay.
    """

    packages: Sequence[str]
    said: Mapping[str, Any] = field(default_factory=lambda: {"store": False})
    dispatchers: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    _made: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    _called: dict[int, Any] = field(default_factory=dict)
    _places: list[tuple[Place, Any]] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def update(self) -> None:
        """Wrap what is in modules that have been imported since."""
        modules = list(self._modules())
        if {module.__name__ for module in modules} == self._seen:
            return
        self._seen = {module.__name__ for module in modules}
        places = [place for module in modules for place in _places(module) if self._is_theirs(place.kernel)]
        # Held, so that an id stays one kernel's; those of an earlier look count too.
        self._called.update({id(one): one for place in places for one in _called_by(_bottom(place.kernel))})
        for place in places:
            kernel = place.kernel
            if id(_bottom(kernel)) in self._called:
                self.left[_name(kernel)] = "another kernel calls it"
            elif (dispatcher := self._dispatcher(kernel)) is not None:
                place.put(dispatcher)
                self._places.append((place, dispatcher))

    def take_off(self) -> None:
        """Put every kernel back where it stood."""
        for place, _ in self._places:
            place.put(place.kernel)

    def put_on(self) -> None:
        """Put the dispatchers there again."""
        for place, dispatcher in self._places:
            place.put(dispatcher)

    def counts(self) -> dict[str, dict[str, Any]]:
        """What became of each kernel's calls: dispatched (of these, hits and misses), bypassed, and why."""
        found = {}
        for name, dispatcher in self.dispatchers.items():
            info = dispatcher.cache_info()
            found[name] = {
                "hits": info.hits,
                "misses": info.misses,
                "bypasses": info.bypasses,
                "why": dict(info.bypasses_by_reason),
            }
        return found

    def _modules(self) -> Iterator[ModuleType]:
        for name, module in sorted(sys.modules.items()):
            if isinstance(module, ModuleType) and any(_is_in(name, package) for package in self.packages):
                yield module

    def _is_theirs(self, kernel: Any) -> bool:
        module = getattr(_bottom(kernel).fn, "__module__", None) or ""
        return any(_is_in(module, package) for package in self.packages)

    def _dispatcher(self, kernel: Any) -> Any:
        """The one dispatcher of a kernel, however many names it has."""
        if id(kernel) not in self._made:
            self._made[id(kernel)] = (kernel, self._wrapped(kernel))
        return self._made[id(kernel)][1]

    def _wrapped(self, kernel: Any) -> Any:
        name = _name(kernel)
        try:
            dispatcher = shapedispatch(kernel, **self.said)
        except Exception as error:  # noqa: BLE001 - why it cannot be wrapped is an answer
            self.left[name] = _line(error)
            return None
        same = sum(other == name or other.startswith(f"{name} #") for other in self.dispatchers)
        self.dispatchers[f"{name} #{same + 1}" if same else name] = dispatcher
        return dispatcher


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _line(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _name(kernel: Any) -> str:
    fn = _bottom(kernel).fn
    return f"{fn.__module__}.{fn.__qualname__}"


def _bottom(kernel: Any) -> Any:
    """The jitted function, below all that was put on it."""
    while not inspect.isfunction(kernel.fn):
        kernel = kernel.fn
    return kernel


def _is_free(value: Any) -> bool:
    """Whether a value is a kernel that no dispatcher stands for yet."""
    return is_kernel(value) and not hasattr(type(value), "cache_info")


def _places(module: ModuleType) -> Iterator[Place]:
    """Where kernels stand in a module: its names, the classes that it defines, its dicts and lists."""
    for name, value in list(vars(module).items()):
        if _is_free(value):
            yield Place(lambda new, name=name: setattr(module, name, new), value)
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            for attribute, held in list(vars(value).items()):
                if _is_free(held):
                    yield Place(lambda new, cls=value, name=attribute: setattr(cls, name, new), held)
        elif type(value) in (dict, list):
            for key, held in list(value.items() if isinstance(value, dict) else enumerate(value)):
                if _is_free(held):
                    yield Place(lambda new, into=value, key=key: into.__setitem__(key, new), held)


def _called_by(kernel: Any) -> Iterator[Any]:
    """The jitted functions that a kernel's code names, itself or in a module that it names."""
    code, scope = kernel.fn.__code__, kernel.fn.__globals__
    names = {name for part in _codes(code) for name in part.co_names}
    cells = [cell.cell_contents for cell in kernel.fn.__closure__ or () if _is_filled(cell)]
    for value in [*[scope[name] for name in names if name in scope], *cells]:
        if is_kernel(value):
            yield _bottom(value)
        elif isinstance(value, ModuleType):
            yield from (_bottom(held) for name in names if is_kernel(held := vars(value).get(name)))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - which raises where there is nothing in it
    except ValueError:
        return False
    return True
