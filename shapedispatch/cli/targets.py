"""What the command line names: a dispatcher as ``module:dispatcher``, sizes as ``M=16,64`` or ``M=64:4096:64``."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..dispatch.loading import call_by_inputs, call_of_kernel
from ..errors import SettingsError, ShapeDispatchError, in_a_line
from ..keys.key import Bypass, storable
from ..records import Choice, spelled
from ..store.key_text import canonical, differing, parse
from ..store.replay import CannotReplay, laid_out_like, made_under, rebuilt, small_random
from ..store.rows import Row

__all__ = ["Job", "UsageError", "dispatchers_in", "imported", "jobs_at", "jobs_of_missed", "points_of", "target"]

POINTS_LIMIT = 100_000


class UsageError(ShapeDispatchError):
    """The command line names something that there is not, or sizes that are none; the text is a sentence."""


# Dispatchers.


def target(name: str) -> Any:
    """The dispatcher called ``module:dispatcher``, or the only one of ``module``. Imports the module.

    Raises UsageError where there is no such module, nothing of that name in it, or no dispatcher there.
    """
    module_name, _, path = name.partition(":")
    module = imported(module_name)
    if path:
        return _within(module, module_name, path)
    found = dispatchers_in(module)
    if len(found) != 1:
        none = f"{module_name} has no dispatcher: decorate a function in it with @shapedispatch"
        names = ", ".join(f"{module_name}:{label}" for label in found)
        raise UsageError(f"{module_name} has {len(found)} dispatchers: name one of {names}" if found else none)
    return next(iter(found.values()))


def is_dispatcher(value: Any) -> bool:
    """Whether this is what `shapedispatch` returned."""
    return hasattr(value, "core") and hasattr(value, "cache_info")


def dispatchers_in(module: Any) -> dict[str, Any]:
    """The dispatchers among a module's names, each once."""
    found: dict[str, Any] = {}
    for label, value in vars(module).items():
        if is_dispatcher(value) and all(value is not other for other in found.values()):
            found[label] = value
    return found


def imported(name: str) -> Any:
    """The module, looked for in the working directory too, as ``python -m`` does.

    Raises UsageError where there is none or it cannot be imported, SettingsError where it met wrong settings.
    """
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{name!r} is no module's name: write module:dispatcher, as in mypackage.ops:mlp")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        known = f"{name}.".startswith(f"{error.name}.")  # the module itself, or a package that it is in
        missing = "" if known else f" that can be imported: it imports {error.name}, which is not installed"
        hint = ". A target is module:dispatcher, as in mypackage.ops:mlp" if known and "." not in name else ""
        raise UsageError(f"there is no module {name}{missing}{hint}") from None
    except SettingsError:
        raise  # it names the file, and is no fault of the module's
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code, at the boundary; the reason is told
        raise UsageError(f"the module {name} cannot be imported: {in_a_line(error)}") from None


def _within(module: Any, module_name: str, path: str) -> Any:
    found = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{module_name} has no {path}{_there_are(module, module_name)}")
        found = getattr(found, part)
    if not is_dispatcher(found):
        raise UsageError(
            f"{module_name}:{path} is no dispatcher: decorate it with @shapedispatch{_there_are(module, '')}"
        )
    return found


def _there_are(module: Any, module_name: str) -> str:
    names = ", ".join(dispatchers_in(module))
    return f"; its dispatchers are {names}" if names else ", and no dispatcher" * bool(module_name)


# Sizes.


def points_of(texts: Sequence[str]) -> list[dict[str, int]]:
    """Every combination of the sizes that ``M=16,64`` and ``N=64:256:64`` (both ends included) name; raises
    UsageError."""
    columns: dict[str, list[int]] = {}
    for text in texts:
        name, equals, sizes = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{text!r} names no sizes: write M=16,64,256 or M=64:4096:64")
        if name.strip() in columns:
            raise UsageError(f"the sizes of {name.strip()} are given twice")
        columns[name.strip()] = list(dict.fromkeys(_sizes(text, sizes)))
    count = math.prod(map(len, columns.values()))
    if count > POINTS_LIMIT:
        raise UsageError(f"these are {count} combinations of sizes; at most {POINTS_LIMIT} are tuned at once")
    return [dict(zip(columns, row, strict=True)) for row in itertools.product(*columns.values())]


def _sizes(text: str, sizes: str) -> Iterator[int]:
    for item in sizes.split(","):
        numbers = item.strip().split(":")
        if not (len(numbers) <= 3 and all(number.strip().isdecimal() for number in numbers)):
            raise UsageError(
                f"{text!r} has {item.strip()!r} for a size: write whole numbers, as M=16,64 or M=64:4096:64"
            )
        start = int(numbers[0])
        end = int(numbers[1]) if len(numbers) > 1 else start
        step = int(numbers[2]) if len(numbers) > 2 else 1
        if step < 1 or end < start:
            raise UsageError(f"{item.strip()!r} in {text!r} is no range: start:end:step rises by a step of at least 1")
        if end - start >= step * POINTS_LIMIT:
            raise UsageError(
                f"{item.strip()!r} in {text!r} is too many sizes; at most {POINTS_LIMIT} are tuned at once"
            )
        yield from range(start, end + 1, step)


# Calls to tune.


@dataclass(frozen=True, slots=True)
class Job:
    """One call to tune: how it is called, and what decides it."""

    label: str
    run: Callable[[], Choice]


def jobs_at(dispatcher: Any, points: Sequence[Mapping[str, int]], ask: str = "tune", **how: bool) -> list[Job]:
    """A job for each point, its call made by the dispatcher's ``inputs``. Raises UsageError.

    ``ask`` is the dispatcher's method that answers: ``tune`` or ``explain``; ``how`` goes to it.
    """
    core = dispatcher.core
    if core.inputs is None:
        raise UsageError(
            f"{core.backend.name} cannot be tuned at sizes alone, since nobody here knows its other arguments: "
            "give inputs=, a function inputs(sizes, like) -> (args, kwargs), to @shapedispatch"
        )
    _refuse_unknown_dims(core.backend, points)
    return [Job(spelled(point), functools.partial(_answer_at, point, dispatcher, ask, how)) for point in points]


def _answer_at(point: Mapping[str, int], dispatcher: Any, ask: str, how: Mapping[str, bool]) -> Choice:
    try:
        args, kwargs = dispatcher.core.inputs(dict(point), None)
    except Exception as error:  # noqa: BLE001 - the user's code, at the boundary; the reason is told
        raise UsageError(f"inputs= made no call of these sizes: {in_a_line(error)}") from None
    return getattr(dispatcher, ask)(*args, **how, **kwargs)  # type: ignore[no-any-return]


def _refuse_unknown_dims(backend: Any, points: Sequence[Mapping[str, int]]) -> None:
    known = backend.dims
    unknown = sorted({name for point in points for name in point} - set(known)) if known else []
    if unknown:
        raise UsageError(f"{backend.name} has no dim {unknown[0]}; it has {', '.join(known)}")


def jobs_of_missed(dispatcher: Any, rows: Sequence[Row], *, random: bool) -> tuple[list[Job], list[str]]:
    """A job for each missed call that can be made again, and a sentence for each that cannot.

    Made by the dispatcher's ``inputs`` at the sizes that the key holds; where that is another call, or there are none,
    and only if ``random``, of tensors as the key describes them, filled with small random numbers. A kernel's key
    describes none: its calls are made by ``inputs`` alone, over the decorator's grid.
    """
    jobs, refused = [], []
    for row in rows:
        try:
            call = _call_again(dispatcher.core, row.key, random)
        except (CannotReplay, ValueError) as reason:
            refused.append(str(reason))
        else:
            label = spelled(dispatcher.core.backend.sizes(*call)) or "one call"
            jobs.append(Job(label, functools.partial(_tuned_again, dispatcher.core, row.key, random)))
    return jobs, refused


Call = tuple[tuple[Any, ...], Mapping[str, Any]]


def _tuned_again(core: Any, key: str, random: bool) -> Choice:
    """The call is made a second time when its turn comes: all of them together may need more memory than there is."""
    args, kwargs = _call_again(core, key, random)
    with made_under(key) if core.backend.replayable else contextlib.nullcontext():
        return core.tune(*args, **kwargs)  # type: ignore[no-any-return]


def _call_again(core: Any, key: str, random: bool) -> Call:
    """The call of a key, made so that its key is this one; raises CannotReplay where it does not come out so."""
    backend = core.backend
    if not backend.replayable:
        call, other = _if_the_same(backend, key, call_of_kernel(core, key))
    elif core.inputs is None and not random:
        raise CannotReplay(
            f"{backend.name} has no inputs=, so its calls can only be made of random numbers: say --random if they may"
        )
    else:
        with made_under(key):
            if core.inputs is not None:
                like = rebuilt(key, other=lambda place, reason: None)
                call, other = _if_the_same(backend, key, call_by_inputs(core, *like))
                if other:  # in its layout, perhaps, of which inputs= may know nothing
                    call, other = _if_the_same(backend, key, laid_out_like(call, like))
            if core.inputs is None or (other and random):
                call, other = _if_the_same(backend, key, rebuilt(key, fill=small_random))
    if other:
        raise CannotReplay(f"the call that can be made is another one: {other}")
    return call


def _if_the_same(backend: Any, key: str, call: Call) -> tuple[Call, str | None]:
    """A call, and where its key is not this one, in what it differs; raises CannotReplay for one that has no key."""
    try:
        again = canonical(storable(backend.key(*call)))
    except (Bypass, TypeError) as reason:
        raise CannotReplay(f"the call cannot be made again: {reason}") from None
    return call, None if again == key else differing(parse(key), parse(again))[0]
