"""TOML and environment to settings: the only reader of either.

All settings stand in one table, ``TABLE``. A file is ``shapedispatch.toml``, or ``[tool.shapedispatch]`` in
``pyproject.toml``, found upward from the working directory, or named by ``SHAPEDISPATCH_SETTINGS``. Who wins:
environment, then ``set_mode``, then the kernel's section, then the decorator, then ``[defaults]``, then the
built-in. A setting is a number, a word, a path or a name; no text in a file ever names code.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import threading
import tomllib
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .errors import SettingsError

__all__ = ["TABLE", "Resolved", "Setting", "Settings", "load", "reset", "settings"]

PREFIX = "SHAPEDISPATCH_"
FILE_VARIABLE = PREFIX + "SETTINGS"
OWN_FILE, PROJECT_FILE = "shapedispatch.toml", "pyproject.toml"


# What a value may be. Each form takes what was found and returns it in one form, or raises ValueError.

Form = Callable[[Any], Any]


def _one(*kinds: type, where: Callable[[Any], bool] = lambda value: True) -> Form:
    def form(value: Any) -> Any:
        if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds) or not where(value):
            raise ValueError
        return kinds[-1](value)

    return form


def _list(item: Form) -> Form:
    return lambda value: tuple(map(item, _one(list, tuple)(value)))


def _table(item: Form) -> Form:
    return lambda value: {_text(name): item(inner) for name, inner in _one(Mapping, dict)(value).items()}


def _either(*forms: Form) -> Form:
    def either(value: Any) -> Any:
        for form in forms:
            with contextlib.suppress(ValueError):
                return form(value)
        raise ValueError

    return either


def _number(where: Callable[[float], bool]) -> Form:
    return _one(int, float, where=lambda number: isfinite(number) and where(number))


def _word(*words: str) -> Form:
    return _one(str, where=lambda word: word in words)


_flag = _one(bool)
_text = _one(str, where=lambda text: bool(text.strip()))
_size = _one(int, where=lambda size: size >= 1)
_hint = _one(int, where=lambda size: size >= 2)
_bounds = _list(_size)
_hints = _either(_list(_hint), _table(_list(_hint)), _list(_table(_hint)))
_bucket = _either(_word("pow2"), _size, lambda value: _one(tuple, where=_rise)(_bounds(value)))
_never = _one(bool, where=lambda value: not value)
_tolerance = _either(_never, lambda value: _one(tuple, where=_is_pair)(_list(_number(lambda part: part >= 0))(value)))


def _rise(bounds: tuple[int, ...]) -> bool:
    return bool(bounds) and all(low < high for low, high in pairwise(bounds))


def _is_pair(value: tuple[Any, ...]) -> bool:
    return len(value) == 2


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its built-in value, what it may be, and where it may be set.

    ``clean(value)`` returns the value in its one form and raises ValueError for what is not allowed;
    ``allowed`` says in words what is. Where ``words`` is true, the environment's text is the value as it is;
    else it is read as a TOML value. A setting that is not ``per_kernel`` belongs to the process.
    """

    name: str
    built_in: Any
    clean: Form
    allowed: str
    words: bool = False
    per_kernel: bool = True

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.name.upper()


def _setting(name: str, built_in: Any, clean: Form, allowed: str, **more: bool) -> tuple[str, Setting]:
    return name, Setting(name, built_in, clean, allowed, **more)


def _choice(name: str, built_in: str, *others: str) -> tuple[str, Setting]:
    words = (built_in, *others)
    return _setting(name, built_in, _word(*words), "one of " + ", ".join(f'"{word}"' for word in words), words=True)


_FLAG, _COUNT = "true or false", "a whole number of at least 1"
_HINTS = "a list of sizes of at least 2, a table of dim = such a list, or a list of tables of dim = size"
_BUCKETS = 'a table of dim = "pow2", a step of at least 1, or a list of rising bounds'
_SHARE = _number(lambda share: 0 <= share <= 1)

TABLE: Mapping[str, Setting] = MappingProxyType(
    dict(
        (
            _setting("hints", (64, 256, 4096), _hints, _HINTS),
            _setting("static", (), _list(_text), "a list of dim names"),
            _setting("exact", False, _flag, _FLAG),
            _setting("buckets", MappingProxyType({}), _table(_bucket), _BUCKETS),
            _setting("maxsize", 4096, _size, _COUNT),
            _setting("max_builds", 64, _size, _COUNT),
            _choice("mode", "tune", "frozen", "sealed", "off"),
            _choice("on_miss", "nearest", "plain", "error"),
            _setting("store", True, _either(_flag, _text), "true, false or a path"),
            _setting("budget_ms", 200.0, _number(lambda budget: budget > 0), "a number of milliseconds above 0"),
            _setting("margin", 0.02, _SHARE, "a share from 0 to 1"),
            _setting("check", None, _tolerance, "false, or [rtol, atol] of two numbers of at least 0"),
            _setting("copy_limit", 0.1, _SHARE, "a share from 0 to 1"),
            _setting("isolate", False, _flag, _FLAG),
            _choice("regime", "stream", "graph"),
            _setting("pick", None, _text, "the name of a variant", words=True),
            # The C module is loaded for the process or not at all.
            _setting("hotpath", True, _flag, _FLAG, per_kernel=False),
        )
    )
)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings of one kernel, each in its one form; ``origin[name]`` says where each came from.

    ``bare`` is true where nobody gave this kernel hints: ``hints`` are then sizes to try on the axes seen to vary.
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
    budget_ms: float
    margin: float
    check: Any
    copy_limit: float
    isolate: bool
    regime: str
    pick: str | None
    hotpath: bool
    bare: bool
    origin: Mapping[str, str]


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Settings:
    """What one file and one environment say; ``left_out`` is the reason why a file that was found is not used."""

    path: Path | None = None
    environment: Mapping[str, Any] = field(default_factory=_nothing)
    defaults: Mapping[str, Any] = field(default_factory=_nothing)
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=_nothing)
    left_out: str | None = None

    def resolve(
        self,
        kernel: str,
        decorator: Mapping[str, Any] = MappingProxyType({}),
        *,
        override: Mapping[str, Any] | None = None,
    ) -> Resolved:
        """The settings of the kernel of that qualified name.

        ``decorator`` holds what was given at the decoration and nothing else, already checked there;
        ``override`` what ``set_mode`` set. Both may name settings only (KeyError).
        """
        layers = self._layers(kernel, decorator, override or {})
        for name in {*decorator, *(override or {})} - TABLE.keys():
            raise KeyError(f"{name} is not a setting")
        values: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for name in TABLE:
            values[name], origin[name] = next((layer[name], said(name)) for said, layer in layers if name in layer)
        given = "hints" in decorator or "hints" in self.kernels.get(kernel, ())
        bare = not given and not _names_dims(values["hints"])
        return Resolved(**values, bare=bare, origin=MappingProxyType(origin))

    def _layers(
        self, kernel: str, decorator: Mapping[str, Any], override: Mapping[str, Any]
    ) -> list[tuple[Callable[[str], str], Mapping[str, Any]]]:
        """Who may say what a setting is, the strongest first, each with its name in ``origin``."""
        section = _place(self.path, _kernel_section(kernel))
        defaults = _place(self.path, "defaults")
        return [
            (lambda name: f"environment {TABLE[name].variable}", self.environment),
            (lambda name: "set_mode", override),
            (lambda name: section, self.kernels.get(kernel, {})),
            (lambda name: "decorator", decorator),
            (lambda name: defaults, self.defaults),
            (lambda name: "built-in", {name: setting.built_in for name, setting in TABLE.items()}),
        ]

    def sections_unmatched(self, names: Collection[str]) -> tuple[str, ...]:
        """The kernels' sections that match none of the dispatchers' names, in the file's order."""
        return tuple(section for section in self.kernels if section not in names)


def _names_dims(hints: Any) -> bool:
    return isinstance(hints, Mapping) or any(isinstance(point, Mapping) for point in hints)


# Reading.


def load(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    start: str | os.PathLike[str] | None = None,
) -> Settings:
    """Read the environment, and the file at ``path``, or named by the environment, or found upward from ``start``.

    Raises SettingsError for what is not allowed in the environment or in a file that was named. A bad file that
    was only found is one UserWarning, and is left out.
    """
    environ = os.environ if environ is None else environ
    environment = MappingProxyType(dict(_read_environment(environ)))
    named = path or environ.get(FILE_VARIABLE)
    if named:
        return _read_file(Path(named).expanduser(), environment)
    found = _find(start)
    if found is None:
        return Settings(environment=environment)
    try:
        return _read_file(found, environment)
    except SettingsError as error:
        warnings.warn(f"{error}\nThe file is left out.", UserWarning, stacklevel=2)
        return Settings(environment=environment, left_out=str(error))


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
    except (OSError, UnicodeDecodeError):
        return False
    try:
        return "shapedispatch" in tomllib.loads(text).get("tool", {})
    except tomllib.TOMLDecodeError:
        return "[tool.shapedispatch" in text


def _read_file(path: Path, environment: Mapping[str, Any]) -> Settings:
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
        raise SettingsError(text + (". A setting for all kernels belongs under [defaults]" if name in TABLE else ""))
    defaults = _read_section(path, "defaults", top.get("defaults", {}))
    sections = _mapping(path, "kernels", top.get("kernels", {}))
    kernels = {name: _read_section(path, _kernel_section(name), values) for name, values in sections.items()}
    return Settings(path, environment, defaults, MappingProxyType(kernels))


def _read_section(path: Path, section: str, found: Any) -> Mapping[str, Any]:
    """The settings of one section, each in its one form; a relative path starts at the file's folder."""
    where = f"{path}, {_bracketed(path, section)}"
    allowed = [name for name, setting in TABLE.items() if setting.per_kernel or section == "defaults"]
    values: dict[str, Any] = {}
    for name, value in _mapping(path, section, found).items():
        if name in TABLE and name not in allowed:
            raise SettingsError(f"{where}: {name} belongs to the process, not to a kernel. Put it under [defaults]")
        if name not in TABLE:
            quotes = '. A name with dots needs quotes, such as [kernels."package.module.function"]'
            dotted = section != "defaults" and isinstance(value, Mapping)
            raise SettingsError(_unknown(where, "setting", name, allowed) + (quotes if dotted else ""))
        values[name] = _cleaned(TABLE[name], value, f"{where}, {name}")
    if isinstance(values.get("store"), str):
        values["store"] = str(path.absolute().parent / Path(values["store"]).expanduser())
    return MappingProxyType(values)


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
    near = difflib.get_close_matches(name, allowed, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"{where}: found the unknown {kind} {name}.{meant} Allowed are {', '.join(allowed)}"


def _kernel_section(kernel: str) -> str:
    return f'kernels."{kernel}"'


def _bracketed(path: Path | None, section: str | None) -> str:
    return f"[tool.shapedispatch.{section}]" if path and path.name == PROJECT_FILE else f"[{section}]"


def _place(path: Path | None, section: str) -> str:
    return f"{path.name} {_bracketed(path, section)}" if path else _bracketed(path, section)


# The process's settings: read at the first decoration, once.

_lock = threading.Lock()
_loaded: Settings | None = None


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
