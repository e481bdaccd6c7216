"""All settings in one table, ``TABLE``: what each may be, and what it is where nobody says.

A setting is a number, a word, a path or a name; no text in a file ever names code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from operator import lt
from types import MappingProxyType
from typing import Any

from ..interpreter.cores import usable_cores

__all__ = ["PREFIX", "TABLE", "Setting"]

_NO_PATHS = frozenset({"true", "false", "yes", "no", "on", "off", "none", "null"})
"""Whoever writes one of these means no folder of that name."""
PREFIX = "SHAPEDISPATCH_"
"""How the names of environment variables begin."""


# What a value may be. Each form takes what was found and returns it in one form, or raises ValueError.

Form = Callable[[Any], Any]


def _one(*kinds: type, where: Callable[[Any], bool] = lambda value: True) -> Form:
    def form(value: Any) -> Any:
        if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds) or not where(value):
            raise ValueError
        return kinds[-1](value)

    return form


def _list(item: Form, where: Callable[[Any], bool] = lambda items: True) -> Form:
    return lambda value: _one(tuple, where=where)(tuple(map(item, _one(list, tuple)(value))))


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
_hint = _one(int, where=lambda size: 2 <= size < 1 << 31)
_path = _one(str, where=lambda text: bool(text.strip()) and text.strip().lower() not in _NO_PATHS)
_hints = _either(_list(_hint), _table(_list(_hint)), _list(_table(_hint)))
_bucket = _either(
    _word("pow2"), _size, _list(_size, where=lambda bounds: bool(bounds) and all(map(lt, bounds, bounds[1:])))
)
_pair = _list(_number(lambda part: part >= 0), where=lambda pair: len(pair) == 2)
_tolerance = _either(_one(bool, where=lambda value: not value), _word("sample"), _pair)


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


def _quoted(word: str) -> str:
    return f'"{word}"'


def _choice(name: str, built_in: str, *others: str) -> Setting:
    words = (built_in, *others)
    return Setting(name, built_in, _word(*words), "one of " + ", ".join(map(_quoted, words)), words=True)


_FLAG, _COUNT = "true or false", "a whole number of at least 1"
_HINTS = "a list of sizes of at least 2 (below 2**31), a table of dim = such a list, or a list of tables of dim = size"
_BUCKETS = 'a table of dim = "pow2", a step of at least 1, or a list of rising bounds'
_LEARN, _RECORDING = ("now", "background", "record"), ".jsonl"
_SHARE = _number(lambda share: 0 <= share <= 1)
TABLE: Mapping[str, Setting] = MappingProxyType(
    {
        setting.name: setting
        for setting in (
            Setting("hints", (64, 256, 4096), _hints, _HINTS),
            Setting("static", (), _list(_text), "a list of dim names"),
            Setting("exact", False, _flag, _FLAG),
            Setting("buckets", MappingProxyType({}), _table(_bucket), _BUCKETS),
            Setting("maxsize", 4096, _size, _COUNT),
            Setting("max_builds", 64, _size, _COUNT),
            _choice("mode", "tune", "frozen", "sealed", "off"),
            _choice("on_miss", "nearest", "plain", "error"),
            Setting("store", True, _either(_flag, _path), "true, false or a path"),
            Setting("tables", True, _flag, _FLAG),
            Setting("budget_ms", 200.0, _number(lambda budget: budget > 0), "a number of milliseconds above 0"),
            Setting("margin", 0.02, _SHARE, "a share from 0 to 1"),
            Setting("check", None, _tolerance, '"sample", false, or [rtol, atol] of two numbers of at least 0'),
            Setting("copy_limit", 0.1, _SHARE, "a share from 0 to 1"),
            Setting("isolate", False, _flag, _FLAG),
            _choice("judge", "online", "contest"),
            Setting(
                "learn",
                "now",
                _either(_word(*_LEARN), _one(str, where=lambda path: path.endswith(_RECORDING))),
                f"one of {', '.join(map(_quoted, _LEARN))}, or the path of a record, which ends in {_RECORDING}",
                words=True,
            ),
            Setting("earn", 1.0, _number(lambda times: times >= 0), "a number of at least 0"),
            Setting("builders", max(1, min(8, usable_cores() // 4)), _size, _COUNT, per_kernel=False),
            _choice("regime", "auto", "stream", "graph", "device", "host", "sync"),
            Setting("retime", 0.001, _number(lambda share: 0 <= share <= 0.001), "a share from 0 to 0.001"),
            _choice("ranks", "agree", "alone"),
            Setting("graphs", "auto", _either(_flag, _word("auto")), 'true, false or "auto"'),
            Setting("max_graph_bytes", None, _size, "a whole number of bytes, at least 1", per_kernel=False),
            Setting("pick", None, _text, "the name of a variant", words=True),
            # The C module is loaded for the process or not at all.
            Setting("hotpath", True, _flag, _FLAG, per_kernel=False),
            Setting("trust_newer", False, _flag, _FLAG, per_kernel=False),
        )
    }
)
