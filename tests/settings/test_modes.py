from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import set_mode, shapedispatch
from shapedispatch.errors import DeclarationError
from shapedispatch.settings import modes
from tests.helpers import built


@pytest.fixture(autouse=True)
def _as_it_was() -> Any:
    """Whatever a test sets, the next finds the mode unset."""
    yield
    modes._layers.clear()
    modes._apply()
    modes._tell()


def ran_by(f: Any, x: Tensor) -> int:
    """How many hits and misses a call adds."""
    before = f.cache_info()
    f(x)
    after = f.cache_info()
    return (after.hits + after.misses) - (before.hits + before.misses)


X = torch.ones(3)


def test_a_mode_takes_effect_at_once() -> None:
    """For dispatchers that exist already, until the next is set."""
    f = shapedispatch(lambda x: x + 1, hints=(), store=False)
    assert ran_by(f, X) == 1
    set_mode("off")
    assert ran_by(f, X) == 0
    set_mode("tune")
    assert ran_by(f, X) == 1


def test_a_mode_holds_for_dispatchers_made_later() -> None:
    """Decorated under it."""
    with set_mode("off"):
        f = shapedispatch(lambda x: x + 1, hints=(), store=False)
        assert ran_by(f, X) == 0
    assert ran_by(f, X) == 1


def test_contexts_nest() -> None:
    """Each restores what was set before it, also after an error."""
    with set_mode("off"):
        with pytest.raises(RuntimeError, match="inside"), set_mode("frozen", on_miss="plain"):
            assert dict(modes.current()) == {"mode": "frozen", "on_miss": "plain"}
            raise RuntimeError("inside")
        assert dict(modes.current()) == {"mode": "off"}
    assert dict(modes.current()) == {}


def test_a_mode_without_on_miss_leaves_on_miss() -> None:
    """Only what is said is set."""
    set_mode("frozen", on_miss="error")
    set_mode("sealed")
    assert dict(modes.current()) == {"mode": "sealed", "on_miss": "error"}


@pytest.mark.parametrize("mode", ["on", "", "TUNE", None, 3, True])
def test_another_word_is_an_error(mode: Any) -> None:
    """Which names what is allowed, and sets nothing."""
    with pytest.raises(ValueError, match=r"mode=.*tune"):
        set_mode(mode)
    assert dict(modes.current()) == {}
    with pytest.raises(ValueError, match=r"on_miss=.*nearest"):
        set_mode("frozen", on_miss="ignore")


def test_the_environment_is_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations have the last word."""
    monkeypatch.setenv("SHAPEDISPATCH_MODE", "off")
    f = shapedispatch(lambda x: x + 1, hints=(), store=False)
    set_mode("tune")
    assert ran_by(f, X) == 0


def test_the_mode_is_stronger_than_the_decorator_and_files() -> None:
    """`set_mode` stands between the environment and a kernel's section."""
    Path("shapedispatch.toml").write_text('[kernels."tests.mode"]\nmode = "tune"\n[defaults]\nmode = "tune"\n', "utf-8")
    f = shapedispatch(lambda x: x + 1, hints=(), store=False, name="tests.mode")
    set_mode("off")
    assert ran_by(f, X) == 0


def test_what_was_known_is_known_after_off() -> None:
    """Going through off forgets nothing."""
    f = built(lambda x: x + 1, hints=(), variants=[lambda x: 1 + x])
    f(X)
    with set_mode("off"):
        f(X)
    hits = f.cache_info().hits
    f(X)
    assert f.cache_info().hits == hits + 1


def test_a_frozen_mode_times_nothing_new() -> None:
    """A known shape has its choice; an unknown one the nearest; tuning by hand still works."""
    f = built(lambda x: x + 1, hints=(), variants=[lambda x: 1 + x], dims={"x": "M"})
    f(X)
    for mode in ("frozen", "sealed"):
        with set_mode(mode):
            timed = f.cache_info().timings
            f(X)
            f(torch.ones(5))
            assert f.cache_info().timings == timed
            assert f.explain(X).origin == "timed"
            assert f.explain(torch.ones(5)).origin == "nearest"
            assert f.tune(torch.ones(6)).origin == "timed"
    f(torch.ones(5))
    assert f.explain(torch.ones(5)).origin == "timed"


STANDING = shapedispatch(lambda x: x + 1, hints=(), store=False)


def test_set_mode_lets_a_standing_dispatcher_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every live one reads its settings again, whoever made it."""
    monkeypatch.setenv("SHAPEDISPATCH_PICK", "plain")
    with set_mode("frozen"):
        assert STANDING.core.settings.pick == "plain"


def test_what_an_earlier_test_had_in_its_environment_is_read_no_more() -> None:
    """The test before this one had a pick; the fixture of all tests lets dispatchers read their settings anew."""
    assert STANDING.core.settings.pick is None


def test_any_setting_can_be_overridden_for_a_while() -> None:
    """As strong as a mode that was set, and gone behind the block; a wrong value is refused as there."""
    before = modes.current()
    with modes.overriding(learn="background", earn=0.5):
        assert {**modes.current()} == {**before, "learn": "background", "earn": 0.5}
    assert modes.current() == before
    with pytest.raises(DeclarationError, match="learn='never'"), modes.overriding(learn="never"):
        pass
    with pytest.raises(KeyError, match="lern"), modes.overriding(lern="now"):
        pass


def test_scopes_of_several_threads_may_end_in_any_order() -> None:
    """Each takes away what it has set itself, and nothing is left."""
    first = set_mode("off")
    with first:
        second = set_mode("sealed")
        second.__enter__()
    assert modes.current() == {"mode": "sealed"}
    second.__exit__(None, None, None)
    assert modes.current() == {}


def test_a_scope_can_be_entered_again() -> None:
    """After it was left, and within itself."""
    scope = set_mode("off")
    for _ in range(2):
        with scope, scope:
            assert modes.current() == {"mode": "off"}
        assert modes.current() == {}


def test_what_is_set_for_good_within_a_scope_goes_with_it() -> None:
    """It restores what was set before."""
    set_mode("frozen")
    with set_mode("off"):
        set_mode("sealed")
        assert modes.current() == {"mode": "sealed"}
    assert modes.current() == {"mode": "frozen"}


def test_what_is_set_for_good_again_and_again_takes_no_room() -> None:
    """A server that switches for years keeps as much as one that has done so once."""
    for _ in range(50):
        set_mode("frozen", on_miss="plain")
        set_mode("tune")
    assert modes.current() == {"mode": "tune", "on_miss": "plain"}
    assert len(modes._layers) <= 3
