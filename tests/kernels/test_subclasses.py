"""Tests of subclasses of Triton's wrappers: whose place is taken, and whose cache is asked."""

# ruff: noqa: D101, D102, D103 - kernels, fixtures and stand-ins are named for what they are
from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction

from shapedispatch.hit.log import UNDECIDED
from shapedispatch.kernels import key_schema
from shapedispatch.kernels.runtime.wrappers import unwrap
from shapedispatch.settings.modes import set_mode
from tests.paths import NO_COMPILER, PATHS, taking
from tests.triton_core import dispatched, tensors
from tests.triton_recorder import Launched, Recorder, recording


@triton.jit
def adds(x, y, n, step, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


@triton.jit
def shifts(x, n, B: tl.constexpr, C: tl.constexpr = 1):
    tl.store(x + tl.arange(0, B) + C, n)


CONFIGS = [triton.Config({"B": block}, num_warps=1) for block in (16, 64, 256)]
CACHED = triton.Config({"B": 32}, num_warps=1)
X, Y = tensors(2)
DTYPES = ("torch.float32",) * 2


@pytest.fixture(params=PATHS)
def recorder(request: pytest.FixtureRequest) -> Iterator[Recorder]:
    if request.param == "c" and NO_COMPILER:
        pytest.skip(NO_COMPILER)
    with taking(request.param), recording(adds, shifts) as driver:
        yield driver


def tuner(cls: type = Autotuner, **options: Any) -> Any:
    return cls(
        adds, adds.arg_names, CONFIGS, ["n"], options.pop("reset", None), options.pop("restore", None), **options
    )


def cost(launched: Launched) -> float:
    """The largest block is the fastest."""
    return 1000.0 - float(launched.constants["B"])


def why_not(cls: type) -> tuple[str, ...]:
    """Why an autotuner of this class is called as it is."""
    return unwrap(tuner(cls)).unsupported


# --------------------------------------------------------------------------------------------------- what is overridden


class Measures(Autotuner):
    """Overrides what runs at decoration and what measures; the other names are its own."""

    mine = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen = []  # type: ignore[var-annotated]

    def __repr__(self) -> str:
        return "Measures"

    def warmup(self, *args: Any, **kwargs: Any) -> Any: ...

    def check_disk_cache(self, tuning_key: Any, configs: Any, bench_fn: Any) -> Any:
        return self.looked_up()

    @property
    def do_bench(self) -> Any:
        return None

    def looked_up(self) -> None: ...


def test_a_subclass_that_only_measures_is_taken_over(recorder: Recorder) -> None:
    """Its calls are dispatched: one launch at the second, and that of the fastest config."""
    kernel = dispatched(tuner(Measures), recorder, cost, margin=0.0)
    for _ in range(2):
        kernel[(1,)](X, Y, 60, 1)

    assert kernel.cache_info().hits == 1
    assert recorder.launches[-1].constants["B"] == 256


def overriding(name: str, value: Any = None, base: type = Autotuner) -> type:
    return type("Mine", (base,), {name: value or (lambda self, *args, **kwargs: None)})


@pytest.mark.parametrize(
    "name", ["run", "prune_configs", "_bench", "__getitem__", "__call__", "__getattr__", "__setattr__"]
)
def test_a_method_that_may_matter_keeps_its_class(name: str) -> None:
    """What a launch goes through, or what chooses its config in a way that nobody knows."""
    method = object.__setattr__ if name == "__setattr__" else None
    assert why_not(overriding(name, method)) == (f"Mine has a launch of its own: it overrides {name}",)


@pytest.mark.parametrize(
    "name", ["configs", "cache", "keys", "fn", "nargs", "pre_hook", "reset_to_zero", "best_config"]
)
def test_a_property_in_place_of_an_attribute_keeps_its_class(name: str) -> None:
    """What Triton's code reads of an instance may then be another thing at each call."""
    held: dict[str, Any] = {}
    both = property(lambda self: held.get(name), lambda self, value: held.update({name: value}))

    assert why_not(overriding(name, both)) == (f"Mine has a launch of its own: it overrides {name}",)


def test_a_base_beside_tritons_is_looked_at() -> None:
    """Before it in the order of methods, and behind it."""

    class Mixin:
        def run(self, *args: Any, **kwargs: Any) -> Any: ...

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    assert "__getattr__, run" in why_not(type("Before", (Mixin, Autotuner), {}))[0]
    assert "__getattr__" in why_not(type("Behind", (Autotuner, Mixin), {}))[0]


def test_a_method_that_is_set_on_the_object_is_seen() -> None:
    """``self.run = ...``, of a subclass or of Triton's own."""

    class Mine(Autotuner):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.run = lambda *args, **kwargs: None

    plain = tuner()
    plain.prune_configs = lambda kwargs: CONFIGS

    assert "overrides run" in why_not(Mine)[0]
    assert "overrides prune_configs" in unwrap(plain).unsupported[0]
    assert not unwrap(tuner()).unsupported


def test_the_other_classes_of_triton_are_looked_at_too() -> None:
    """Heuristics, and the kernel itself at the bottom, which an autotuner above it does not hide."""
    cls = overriding("run", base=Heuristics)
    kernel = overriding("run", base=JITFunction)(adds.fn)

    assert "overrides run" in unwrap(cls(adds, adds.arg_names, {})).unsupported[0]
    assert "overrides run" in unwrap(kernel).unsupported[0]
    assert "overrides run" in unwrap(triton.autotune(configs=CONFIGS, key=["n"])(kernel)).unsupported[0]


def test_what_is_lost_is_said_once(recorder: Recorder) -> None:
    """After ten calls that were its own, with the reason."""

    class Mine(Autotuner):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            return super().run(*args, **kwargs)

    kernel = dispatched(tuner(Mine), recorder)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2 * UNDECIDED):
            kernel[(1,)](X, Y, 60, 1)

    texts = [str(one.message) for one in said]
    assert len(texts) == 1
    assert "Mine has a launch of its own: it overrides run" in texts[0]
    assert "no launch is quicker than before" in texts[0]


def test_hooks_of_a_subclass_surround_what_is_timed(recorder: Recorder) -> None:
    """One that ``__init__`` puts there is run as the user's would be; a real call has none, as it had none before."""
    hooked = []

    class Mine(Autotuner):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.pre_hook = lambda kwargs, reset_only=False: hooked.append(kwargs["n"])

    kernel = dispatched(tuner(Mine), recorder, cost)
    kernel[(1,)](X, Y, 60, 1)
    times = len(hooked)
    kernel[(1,)](X, Y, 60, 1)

    assert times > 0
    assert len(hooked) == times


# ------------------------------------------------------------------------------------------------------------ its cache


def test_what_the_cache_names_is_the_first_candidate(recorder: Recorder) -> None:
    """A config that is none of the others is plain for the call that it is named for, and for no other."""
    kept = tuner(Measures)
    kept.cache[(60, *DTYPES)] = CACHED
    kernel = dispatched(kept, recorder, cost, pick="plain")
    for n in (60, 70):
        kernel[(1,)](X, Y, n, 1)

    assert [launched.constants["B"] for launched in recorder.launches] == [32, 16]


def test_nothing_is_compiled_but_what_the_cache_names_where_nothing_is_decided(recorder: Recorder) -> None:
    """In a mode that decides nothing its config is launched, by Triton's own launch."""
    kept = tuner()
    kept.cache[(60, *DTYPES)] = CACHED
    kernel = dispatched(kept, recorder, cost)
    with set_mode("sealed", on_miss="plain"):
        kernel.core.refresh()
        kernel[(1,)](X, Y, 60, 1)
    kernel.core.refresh()

    assert [launched.constants["B"] for launched in recorder.launches] == [32]


def test_what_the_cache_names_competes_like_another(recorder: Recorder) -> None:
    """It is timed with the others, and loses to one that is faster."""
    kept = tuner()
    kept.cache[(60, *DTYPES)] = CACHED
    kernel = dispatched(kept, recorder, cost, margin=0.0)
    kernel[(1,)](X, Y, 60, 1)

    assert {launched.constants["B"] for launched in kernel.core.timer.timed} == {16, 32, 64, 256}
    assert recorder.launches[-1].constants["B"] == 256


def test_what_the_cache_names_wins_where_it_is_fastest(recorder: Recorder) -> None:
    """And is launched at each hit."""
    kept = tuner()
    kept.cache[(60, *DTYPES)] = CACHED
    kernel = dispatched(kept, recorder, lambda launched: 1.0 + (launched.constants["B"] != 32), margin=0.0)
    for _ in range(3):
        kernel[(1,)](X, Y, 60, 1)

    choice = kernel.explain(X, Y, 60, 1)
    assert recorder.launches[-1].constants["B"] == 32
    assert kernel.cache_info().hits == 2
    assert (choice.variant, choice.config) == ("plain", CACHED)


def test_what_the_caches_key_reads_is_keyed(recorder: Recorder) -> None:
    """With other dims than the autotuner's key, calls that differ in that key are still two keys."""
    kept = triton.autotune(configs=CONFIGS, key=["step"])(adds)
    kept.cache[(7, *DTYPES)] = CACHED
    kernel = dispatched(kept, recorder, lambda launched: 1.0 + (launched.constants["B"] != 32), dims="n", margin=0.0)
    for step in (7, 9):
        kernel[(1,)](X, Y, 60, step)

    assert kernel.explain(X, Y, 60, 7).config == CACHED
    assert kernel.explain(X, Y, 60, 9).config != CACHED


def test_a_config_that_fills_in_more_leaves_the_call_to_its_class(recorder: Recorder) -> None:
    """A parameter that the other configs leave at its default, as every other call does."""
    kept = triton.autotune(configs=[triton.Config({"B": 16}), triton.Config({"B": 64})], key=["n"])(shifts)
    kept.cache[(60, *DTYPES[:1])] = triton.Config({"B": 64, "C": 5})
    kernel = dispatched(kept, recorder, pick="plain")
    for n in (60, 70):
        kernel[(1,)](X, n)

    assert [launched.constants["C"] for launched in recorder.launches] == [5, 1]
    assert "other configs do not" in next(iter(kernel.cache_info().bypasses_by_reason))


def test_configs_of_the_decorator_stand_alone(recorder: Recorder) -> None:
    """Where the decorator gives configs, those are all."""
    kept = tuner()
    kept.cache[(60, *DTYPES)] = CACHED
    kernel = dispatched(kept, recorder, cost, configs=CONFIGS[:2], margin=0.0)
    kernel[(1,)](X, Y, 60, 1)

    assert {launched.constants["B"] for launched in recorder.launches} == {16, 64}


class Broken(dict[Any, Any]):
    def __contains__(self, key: object) -> bool:
        raise OSError("no disk")


def test_a_cache_that_raises_leaves_the_call_to_its_class(recorder: Recorder) -> None:
    """So its own error is the answer."""
    kept = tuner()
    kept.cache = Broken({0: CACHED})
    kernel = dispatched(kept, recorder, cost)

    with pytest.raises(OSError, match="no disk"):
        kernel[(1,)](X, Y, 60, 1)
    assert "the autotuner's cache raised OSError" in kernel.explain(X, Y, 60, 1).notes[0]


def test_a_config_that_gives_what_the_call_gives_leaves_it_to_its_class(recorder: Recorder) -> None:
    """Triton refuses such a call, and does so still; other calls are dispatched."""
    kept = tuner()
    kept.cache[(60, *DTYPES)] = triton.Config({"B": 32, "step": 2}, num_warps=1)
    kernel = dispatched(kept, recorder, cost)

    with pytest.raises(TypeError, match="step"):
        kernel[(1,)](X, Y, 60, 1)
    assert "gives what the call gives" in kernel.explain(X, Y, 60, 1).notes[0]
    kernel[(1,)](X, Y, 70, 1)
    assert kernel.explain(X, Y, 70, 1).origin == "timed"


def test_so_many_configs_of_a_cache_are_taken_up(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """More are passed over, and one that is equal to another is none more."""
    monkeypatch.setattr(key_schema, "MOST_ADOPTED", 1)
    kept = tuner()
    for n, block in ((60, 32), (70, 32), (80, 128)):
        kept.cache[(n, *DTYPES)] = triton.Config({"B": block}, num_warps=1)
    kernel = dispatched(kept, recorder, cost, margin=0.0, hints=())
    for n in (60, 70, 80):
        kernel[(1,)](X, Y, n, 1)

    assert {launched.constants["B"] for launched in recorder.launches} == {16, 32, 64, 256}
    assert len(kernel.core.backend.key_schema.configs_of(-1)) == len(CONFIGS) + 1


# -------------------------------------------------------------------------------------------------------- a known class

FLA = """
import dataclasses, enum
from triton.runtime.autotuner import Autotuner

class Mode(enum.Enum):
    DISABLED = "disabled"
    STRICT = "strict"
    ALWAYS = "always"

FLA_CACHE_MODE = Mode.STRICT
FILES = {}
asked = []

@dataclasses.dataclass(frozen=True)
class AutotuneKey:
    autotune_key: tuple

    @classmethod
    def build(cls, arg_names, key_names, args, kwargs):
        given = {**dict(zip(arg_names, args)), **kwargs}
        dtypes = [str(value.dtype) for name, value in given.items() if name in arg_names and hasattr(value, "dtype")]
        return cls((*[given[name] for name in key_names if name in given], *dtypes))

class CachedAutotuner(Autotuner):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        def hook(kwargs, reset_only=False):
            asked.append("hook")
        self.pre_hook = hook

    def should_check_fla_cache(self, key):
        return FLA_CACHE_MODE is not Mode.DISABLED and key.autotune_key not in self.cache

    def run(self, *args, **kwargs):
{run}

    def maybe_load_cached_config({takes}):
        asked.append(key.autotune_key)
        if key.autotune_key in FILES:
            self.cache[key.autotune_key] = FILES[key.autotune_key]
"""
RUN = """\
        "Its docstring."
        key = AutotuneKey.build(self.arg_names, self.keys, args, kwargs)
        if self.should_check_fla_cache(key):
            self.maybe_load_cached_config(key)
        return super().run(*args, **kwargs)"""
WITH_ARGUMENTS = RUN.replace(
    "_config(key)", "_config(key=key, nargs=dict(zip(self.arg_names, args)), runtime_kwargs=kwargs)"
)

Made = Callable[..., ModuleType]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Makes the module of a library, with that code of ``run``."""

    def make(run: str = RUN, name: str = "fla.ops.utils.cache") -> ModuleType:
        file = tmp_path / f"cache{len(list(tmp_path.iterdir()))}.py"
        takes = "self, key, nargs, runtime_kwargs" if "nargs" in run else "self, key"
        file.write_text(FLA.replace("{run}", run).replace("{takes}", takes))
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return make


@pytest.mark.parametrize("run", [RUN, WITH_ARGUMENTS], ids=["the key", "and the arguments"])
def test_a_known_class_is_taken_over_and_its_files_are_asked(recorder: Recorder, made: Made, run: str) -> None:
    """What its files name for a call comes first, and they are asked once a key and not once a call."""
    fla = made(run)
    fla.FILES[(60, *DTYPES)] = CACHED
    fast = lambda launched: 1.0 + (launched.constants["B"] != 32)  # noqa: E731 - one line
    kernel = dispatched(tuner(fla.CachedAutotuner), recorder, fast, margin=0.0)
    for n in (60, 60, 60, 70):
        kernel[(1,)](X, Y, n, 1)

    assert kernel.explain(X, Y, 60, 1).config == CACHED
    assert kernel.cache_info().hits == 2
    assert set(fla.asked) == {(60, *DTYPES), (70, *DTYPES)}


def test_files_that_are_not_used_are_not_asked(recorder: Recorder, made: Made) -> None:
    """What their key would read is no part of a call's key; and hooks that do what the two lists say are not run."""
    fla = made()
    fla.FLA_CACHE_MODE = fla.Mode.DISABLED
    kept = fla.CachedAutotuner(adds, adds.arg_names, CONFIGS, ["step"], None, None)
    kernel = dispatched(kept, recorder, cost, margin=0.0, dims="n")
    for step in (7, 9):
        kernel[(1,)](X, Y, 60, step)

    assert fla.asked == []
    assert kernel.cache_info().misses == 1
    assert recorder.launches[-1].constants["B"] == 256


def test_files_that_are_read_at_every_launch_keep_the_class(made: Made) -> None:
    """Whoever edits them wants the next launch to see it."""
    fla = made()
    fla.FLA_CACHE_MODE = fla.Mode.ALWAYS

    assert "FLA_CACHE_MODE=always" in why_not(fla.CachedAutotuner)[0]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("        if", "        args = zip(args)\n        if"),
        ("return super().run(*args, **kwargs)", "return super().run(*args[:4], **kwargs)"),
        ("return super().run(*args, **kwargs)", "super().run(*args, **kwargs)"),
        ("        return", "        args[0].zero_()\n        return"),
        ("        return", "        self.configs = key\n        return"),
        ("        return", "        kwargs['n'] = 3\n        return"),
        ("        return", "        for one in args:\n            dict()\n        return"),
    ],
)
def test_a_known_class_whose_run_does_more_is_not_known(made: Made, was: str, now: str) -> None:
    """Its name is not enough: a later version may do what nobody here has read."""
    assert why_not(made(RUN.replace(was, now)).CachedAutotuner) == (
        "CachedAutotuner has a launch of its own: it overrides run",
    )


def test_the_same_code_elsewhere_is_not_known(made: Made) -> None:
    """What its ``run`` calls is another's."""
    assert "overrides run" in why_not(made(name="other.cache").CachedAutotuner)[0]


def test_a_subclass_of_a_known_class_is_looked_at(made: Made) -> None:
    """One that overrides what the known ``run`` goes by, or what Triton's does; others are taken over."""
    base = made().CachedAutotuner

    assert "maybe_load_cached_config" in why_not(overriding("maybe_load_cached_config", base=base))[0]
    assert "prune_configs" in why_not(overriding("prune_configs", base=base))[0]
    assert why_not(overriding("other", base=base)) == ()
