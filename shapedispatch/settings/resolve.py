"""TOML and environment to settings: the only reader of either.

Which there are stands in `schema`. A file is ``shapedispatch.toml``, or ``[tool.shapedispatch]`` in
``pyproject.toml``, found upward from the working directory, or named by ``SHAPEDISPATCH_SETTINGS``. Who wins:
environment, then ``set_mode``, then the kernel's section, then the decorator, then ``[defaults]``, then the
built-in.
"""

from __future__ import annotations

import difflib
import os
import tomllib
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from ..errors import DeclarationError, SettingsError
from ..interpreter.locks import fork_safe_lock
from .schema import PREFIX, TABLE, Setting

__all__ = ["TABLE", "Resolved", "Setting", "Settings", "load", "reset", "settings"]

FILE_VARIABLE = PREFIX + "SETTINGS"
OWN_FILE, PROJECT_FILE = "shapedispatch.toml", "pyproject.toml"


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings of one kernel, each in its one form; ``origin[name]`` says where each came from.

    ``check`` None means the default tolerance of the dtype; ``pick`` None means that the fastest wins.
    """

    hints: Any
    static: tuple[str, ...]
    exact: bool
    buckets: Mapping[str, Any]
    maxsize: int
    max_builds: int
    mode: str
    on_miss: str
    store: Any
    tables: bool
    budget_ms: float
    margin: float
    check: Any
    copy_limit: float
    isolate: bool
    judge: str
    learn: str
    earn: float
    builders: int
    regime: str
    retime: float
    ranks: str
    graphs: bool | str
    max_graph_bytes: int | None
    pick: str | None
    hotpath: bool
    trust_newer: bool
    origin: Mapping[str, str]
    nearly_named: bool = False
    """Whether a section of the file has nearly the kernel's name, and none has it."""
    of_all: frozenset[str] = frozenset()
    """The settings that were said of all functions, in the defaults of a file or in the environment."""
    was_found: bool = False
    """Whether nobody has named the file, if there is one."""

    def about(self, name: str, is_dim: Callable[[Any], bool]) -> Any:
        """Hints or static dims, where they are said of all functions those alone that are about dims of this one.

        A default that fits one function is no error of another. Where nothing is left, the built-in value is meant.
        """
        said = getattr(self, name)
        left = _about(said, is_dim) if name in self.of_all else said
        return left if left or not said else TABLE[name].built_in

    def checked(self, name: str, said: Any, check: Callable[[Any], _T]) -> _T:
        """What is said of dims, as ``check`` has it; a DeclarationError says where it comes from, if elsewhere.

        Of a file that was only found what is wrong is a warning, and the built-in value is meant.
        """
        try:
            return check(said)
        except DeclarationError as error:
            if self.origin[name] == "decorator":
                raise
            if not self.was_found or self.origin[name].startswith("environment"):
                raise DeclarationError(f"{self.origin[name]}: {error}") from None
            warnings.warn(f"{self.origin[name]}: {error}\nThis line is left out.", UserWarning, stacklevel=2)
            return check(TABLE[name].built_in)


def _about(said: Any, is_dim: Callable[[Any], bool]) -> Any:
    """What of it is about such dims, or about none in particular."""
    if isinstance(said, Mapping):
        return {dim: sizes for dim, sizes in said.items() if is_dim(dim)}
    named = [(one, [one] if isinstance(one, str) else one if isinstance(one, Mapping) else ()) for one in said]
    return [one for one, dims in named if all(map(is_dim, dims))]


@dataclass(frozen=True, slots=True)
class Settings:
    """What one file and one environment say.

    ``left_out`` is why lines of a file that ``was_found`` are not used, or (where ``path`` is None) why it is not.
    """

    path: Path | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    left_out: str | None = None
    was_found: bool = False

    def resolve(
        self,
        kernel: str,
        decorator: Mapping[str, Any] = MappingProxyType({}),
        *,
        override: Mapping[str, Any] | None = None,
    ) -> Resolved:
        """The settings of the kernel of that qualified name.

        ``decorator`` holds what was given at the decoration and nothing else, already checked there; ``override`` what
        ``set_mode`` set. Both may name settings only (KeyError).
        """
        for name in {*decorator, *(override or {})} - TABLE.keys():
            raise KeyError(f"{name} is not a setting")
        if kernel in self.kernels:
            _matched.add(kernel)
        layers = {  # the weakest first, each with its name in ``origin``
            "built-in": {name: setting.built_in for name, setting in TABLE.items()},
            _place(self.path, "defaults"): self.defaults,
            "decorator": decorator,
            _place(self.path, _kernel_section(kernel)): self.kernels.get(kernel, {}),
            "set_mode": override or {},
            "environment": self.environment,
        }
        values = {name: value for layer in layers.values() for name, value in layer.items()}
        origin = {name: said for said, layer in layers.items() for name in layer}
        named = {name: f"{origin[name]} {TABLE[name].variable}" for name in self.environment}
        if origin["store"] != "decorator" and hasattr(decorator.get("store"), "elsewhere"):
            values["store"] = decorator["store"].elsewhere(values["store"])
        near, of_all = bool(self._near(kernel)), {_place(self.path, "defaults"), "environment"}
        said = frozenset(name for name, place in origin.items() if place in of_all)
        return Resolved(**values, origin={**origin, **named}, nearly_named=near, of_all=said, was_found=self.was_found)

    def sections_unmatched(self, names: Collection[str]) -> tuple[str, ...]:
        """The kernels' sections that match none of the dispatchers' names, in the file's order."""
        return tuple(section for section in self.kernels if section not in names)

    def _near(self, kernel: str) -> list[str]:
        return [one for one in self.kernels if kernel not in self.kernels and _seems_to_name(one, kernel)]

    def meant_for(self, kernel: str) -> tuple[str, ...]:
        """Sections that no dispatcher has asked for, and that seem to be this one's: a sentence each, each once."""
        found = [section for section in self._near(kernel) if section not in _matched]
        _matched.update(found)
        here = self.path.name if self.path else ""
        return tuple(
            f"{here}, {_bracketed(self.path, _kernel_section(section))} names no dispatcher and has no effect. "
            f"Did you mean {_bracketed(self.path, _kernel_section(kernel))}?"
            for section in found
        )


# Reading.


def load(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    start: str | os.PathLike[str] | None = None,
) -> Settings:
    """Read the environment, and the file at ``path``, or named by the environment, or found upward from ``start``.

    Raises SettingsError for what is not allowed in the environment or in a file that was named. What is
    wrong in a file that was only found is one UserWarning: its line is left out; of what is no TOML, the whole file.
    """
    environ = os.environ if environ is None else environ
    environment = MappingProxyType(dict(_read_environment(environ)))
    named = path or environ.get(FILE_VARIABLE)
    if named:
        return _read_file(Path(named).expanduser(), environment, _raised)
    found = _find(start)
    return Settings(environment=environment) if found is None else _read_what_is_right(found, environment)


def _read_what_is_right(path: Path, environment: Mapping[str, Any]) -> Settings:
    """What a file that was found says, without what is wrong in it; and one warning of that."""
    wrong: list[str] = []
    what = "The file is"
    try:
        read = _read_file(path, environment, lambda error: wrong.append(str(error)))
        what = "This line is" if len(wrong) == 1 else "These lines are"
    except SettingsError as error:
        wrong, read = [str(error)], Settings(environment=environment)
    read = replace(read, was_found=True)
    if not wrong:
        return read
    rest = "" if read.path is None else "; the rest of the file holds"
    warnings.warn("\n".join([*wrong, f"{what} left out{rest}."]), UserWarning, stacklevel=3)
    return replace(read, left_out="\n".join(wrong))


def _read_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Each setting that the environment names; a variable that is set to nothing is not set."""
    variables = {setting.variable: setting for setting in TABLE.values()}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE or not text.strip():
            continue
        if variable not in variables:
            raise SettingsError(_unknown("environment", "variable", variable, [*variables, FILE_VARIABLE]))
        setting = variables[variable]
        value = text.strip() if setting.words else _toml_value(text)
        yield setting.name, _cleaned(setting, value, f"environment, {variable}")


def _toml_value(text: str) -> Any:
    """The text as a TOML value, or as it is: a path needs no quotes."""
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # A line break could have smuggled in a second key.
    return document["value"] if len(document) == 1 else text


def _find(start: str | os.PathLike[str] | None) -> Path | None:
    """The nearest file upward that is ours; in one folder our own file wins."""
    try:
        folder = Path(start or ".").resolve()
    except OSError:  # the working directory is gone
        return None
    for place in (folder, *folder.parents):
        if (place / OWN_FILE).is_file():
            return place / OWN_FILE
        if _project_file_is_ours(place / PROJECT_FILE):
            return place / PROJECT_FILE
    return None


def _project_file_is_ours(path: Path) -> bool:
    """Whether a pyproject.toml speaks to us. What cannot be read does not; what is no TOML does if it names us."""
    try:
        text = path.read_text("utf-8")
        return "shapedispatch" in tomllib.loads(text).get("tool", {})
    except tomllib.TOMLDecodeError:
        return "[tool.shapedispatch" in text
    except (OSError, UnicodeDecodeError):
        return False


Tell = Callable[[SettingsError], None]
"""What is done with something that is wrong: it is raised, or noted and left out."""


def _raised(error: SettingsError) -> None:
    raise error


def _read_file(path: Path, environment: Mapping[str, Any], tell: Tell) -> Settings:
    try:
        document: Any = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: the settings file cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # no TOML, or no UTF-8
        raise SettingsError(f"{path}: the settings file is no TOML: {error}") from error
    if path.name == PROJECT_FILE:
        document = document.get("tool", {}).get("shapedispatch", {})
    top = _mapping(path, None, document)
    for name in top.keys() - {"defaults", "kernels"}:
        text = _unknown(str(path), "section", name, ["defaults", "kernels"])
        hint = ". A setting for all kernels belongs under [defaults]" if name in TABLE else ""
        tell(SettingsError(text + hint))
    defaults = _read_section(path, "defaults", top.get("defaults", {}), tell)
    sections = _table_at(path, "kernels", top.get("kernels", {}), tell)
    kernels = {name: _read_section(path, _kernel_section(name), values, tell) for name, values in sections.items()}
    return Settings(path, environment, defaults, MappingProxyType(kernels))


def _read_section(path: Path, section: str, found: Any, tell: Tell) -> Mapping[str, Any]:
    """The settings of one section, each in its one form; a relative path starts at the file's folder."""
    where = f"{path}, {_bracketed(path, section)}"
    values: dict[str, Any] = {}
    for name, value in _table_at(path, section, found, tell).items():
        try:
            values[name] = _cleaned(_allowed(name, value, section, where), value, f"{where}, {name}")
        except SettingsError as error:
            tell(error)
    if isinstance(values.get("store"), str):
        values["store"] = str(path.absolute().parent / Path(values["store"]).expanduser())
    return MappingProxyType(values)


def _allowed(name: str, value: Any, section: str, where: str) -> Setting:
    """The setting of that name, if the section may have it; raises SettingsError."""
    allowed = [name for name, setting in TABLE.items() if setting.per_kernel or section == "defaults"]
    if name in TABLE and name not in allowed:
        raise SettingsError(f"{where}: {name} belongs to the process, not to a kernel. Put it under [defaults]")
    if name not in TABLE:
        quotes = '. A name with dots needs quotes, such as [kernels."package.module.function"]'
        dotted = section != "defaults" and isinstance(value, Mapping)
        raise SettingsError(_unknown(where, "setting", name, allowed) + (quotes if dotted else ""))
    return TABLE[name]


def _table_at(path: Path, section: str, found: Any, tell: Tell) -> Mapping[str, Any]:
    """A section, or none where it is no table."""
    try:
        return _mapping(path, section, found)
    except SettingsError as error:
        tell(error)
        return {}


def _mapping(path: Path, section: str | None, found: Any) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        where = f"{path}, {_bracketed(path, section)}" if section else str(path)
        hint = ' such as [kernels."package.module.function"]' if section == "kernels" else ""
        raise SettingsError(f"{where}: found {_shown(found)}; allowed is a table of settings{hint}")
    return found


def _cleaned(setting: Setting, value: Any, where: str) -> Any:
    try:
        return setting.clean(value)
    except ValueError:
        raise SettingsError(f"{where}: found {_shown(value)}; allowed is {setting.allowed}") from None


# Words for messages.


def _shown(value: Any) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _unknown(where: str, kind: str, name: str, allowed: Iterable[str]) -> str:
    allowed = list(allowed)
    # What all have in front says nothing of which one was meant.
    short = {each.removeprefix(PREFIX): each for each in allowed}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), short, n=1)
    meant = f" Did you mean {short[near[0]]}?" if near else ""
    return f"{where}: found the unknown {kind} {name}.{meant} Allowed are {', '.join(allowed)}"


def _kernel_section(kernel: str) -> str:
    return f'kernels."{kernel}"'


def _seems_to_name(section: str, kernel: str) -> bool:
    """Whether it is the name without its module, or nearly a name of the same module."""
    (module, _, name), (own_module, _, own) = section.rpartition("."), kernel.rpartition(".")
    same = module == own_module and bool(difflib.get_close_matches(name, [own], cutoff=0.6))
    return same or kernel.endswith(f".{section}")


def _bracketed(path: Path | None, section: str | None) -> str:
    return f"[tool.shapedispatch.{section}]" if path and path.name == PROJECT_FILE else f"[{section}]"


def _place(path: Path | None, section: str) -> str:
    return f"{path.name} {_bracketed(path, section)}" if path else _bracketed(path, section)


# The process's settings: read at the first decoration, once.

_lock = fork_safe_lock()
_loaded: Settings | None = None
_matched: set[str] = set()
"""The kernels' sections that a dispatcher has asked for, or that were told."""


def settings() -> Settings:
    """The settings of this process: read when first asked for, then never again. Raises SettingsError as ``load``."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = load()
        return _loaded


def reset() -> None:
    """Forget what was read, for tests: the next decoration reads again."""
    global _loaded
    with _lock:
        _loaded = None
        _matched.clear()
