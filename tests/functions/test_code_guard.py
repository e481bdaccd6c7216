from __future__ import annotations

import functools
import gc
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import Tensor, nn

from shapedispatch.functions.guards import code_guard
from shapedispatch.functions.guards.class_values import CLASSES_ARE_WATCHED
from shapedispatch.functions.guards.code_guard import CodeGuard, code_on
from shapedispatch.hit import native
from tests.paths import NO_COMPILER, PATHS, taking

Check = Callable[[], bool]


@pytest.fixture(params=PATHS, autouse=True)
def fast_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways of asking: in C, and in Python alone."""
    if request.param == "c" and NO_COMPILER:
        pytest.skip(NO_COMPILER)
    with taking(request.param):
        monkeypatch.setattr(native, "in_use", native.module())  # as a decoration does
        yield request.param


def functions() -> tuple[types.FunctionType, types.FunctionType]:
    """A function, and one of other code."""

    def one(x: int, k: int = 2, *, j: int = 3) -> int:
        return x + k + j

    def other(x: int, k: int = 2, *, j: int = 3) -> int:
        return x - k - j

    return one, other  # type: ignore[return-value]  # to mypy no function is a FunctionType


def classes() -> tuple[type, type]:
    """A class with code and a value, and one that derives from it."""

    class Base:
        value = 1
        none = None

        def method(self) -> int:
            return 1

        @property
        def shown(self) -> int:
            return 1

    class Derived(Base):
        pass

    return Base, Derived


def code(x: Any) -> Any:
    """What something is replaced by."""
    return x


def test_what_is_left_alone_stands() -> None:
    """Nothing is reported of functions, closures and classes that nobody touches."""
    (fn, _), held = functions(), classes()
    guard = CodeGuard(fn, [], held)
    check = guard.fast_check()
    assert [check(), check(), guard.failed()] == [True, True, None]


def new_code(fn: Any, other: Any) -> None:
    """As a reload does."""
    fn.__code__ = other.__code__


def new_defaults(fn: Any, _: Any) -> None:
    """Of parameters that may be positional."""
    fn.__defaults__ = (4,)


def no_keyword_defaults(fn: Any, _: Any) -> None:
    """None at all."""
    fn.__kwdefaults__ = None


def other_keyword_default(fn: Any, _: Any) -> None:
    """In place: the dict stays the same."""
    fn.__kwdefaults__["j"] = 4


def one_more_keyword_default(fn: Any, _: Any) -> None:
    """In place, too."""
    fn.__kwdefaults__["more"] = 4


@pytest.mark.parametrize("also", [False, True], ids=["own", "another"])
@pytest.mark.parametrize(
    "change", [new_code, new_defaults, no_keyword_defaults, other_keyword_default, one_more_keyword_default]
)
def test_a_changed_function_is_seen(change: Callable[[Any, Any], None], also: bool) -> None:
    """Its code, its defaults, those of keywords; whether it is the one that was traced or one that it calls."""
    fn, other = functions()
    guard = CodeGuard(code if also else fn, [fn] if also else [], [])  # type: ignore[arg-type]
    check = guard.fast_check()
    assert check()
    change(fn, other)
    assert not check()
    assert not check()
    assert guard.failed() == f"{fn.__qualname__} has other code or defaults now"


def set_method(base: Any, _: Any) -> None:
    """Where it stands."""
    base.method = code


def set_property(base: Any, _: Any) -> None:
    """A descriptor."""
    base.shown = property(code)


def set_setter(base: Any, _: Any) -> None:
    """A property that reads the same."""
    base.shown = property(base.shown.fget, code)


def shadow_method(_: Any, derived: Any) -> None:
    """By one of the derived class."""
    derived.method = code


def shadow_method_by_a_value(_: Any, derived: Any) -> None:
    """By none."""
    derived.method = 3


def delete_method(base: Any, _: Any) -> None:
    """There is none any more."""
    del base.method


def add_special_method(base: Any, _: Any) -> None:
    """Python looks for many."""
    base.__len__ = code


def add_method(base: Any, _: Any) -> None:
    """By a name that the code may compute."""
    base.more = code


def set_value_to_code(base: Any, _: Any) -> None:
    """A value that code replaces."""
    base.value = property(code)


def exchange_none_for_code(base: Any, _: Any) -> None:
    """As many names as before, one of another meaning."""
    del base.none
    base.more = code


def other_bases(base: Any, derived: Any) -> None:
    """What is inherited changes."""
    derived.__bases__ = (type("Other", (base,), {"method": code}),)


@pytest.mark.parametrize(
    "change",
    [
        set_method,
        set_property,
        set_setter,
        shadow_method,
        shadow_method_by_a_value,
        delete_method,
        add_special_method,
        add_method,
        set_value_to_code,
        exchange_none_for_code,
        other_bases,
    ],
)
def test_changed_code_on_a_class_is_seen(change: Callable[[Any, Any], None]) -> None:
    """By what Python would find, on the class or on a base of it."""
    base, derived = classes()
    guard = CodeGuard(code, [], [derived], names={"method"})  # type: ignore[arg-type]
    check = guard.fast_check()
    assert check()
    change(base, derived)
    assert not check()
    assert not check()
    assert str(guard.failed()).endswith("has been replaced")


def test_other_bases_of_one_of_torchs_classes_are_seen() -> None:
    """Those are asked in a shorter way."""
    base, derived = classes()
    derived.__module__ = "torch.made_up"
    check = CodeGuard(code, [], [derived]).fast_check()  # type: ignore[arg-type]
    assert check()
    other_bases(base, derived)
    assert not check()


def test_the_last_value_of_a_class_that_becomes_code_is_seen() -> None:
    """As many names as before, and one more that is code."""

    class Bare:
        __slots__ = ()
        last = 1

    check = CodeGuard(code, [], [Bare]).fast_check()  # type: ignore[arg-type]
    assert check()
    Bare.last = code  # type: ignore[assignment]
    assert not check()


def test_a_changed_value_of_a_class_is_let_pass() -> None:
    """Values have guards of their own, or code does not name them; a counter would have all built anew at each call."""
    base, derived = classes()
    base.value = 0  # type: ignore[attr-defined]
    named = {"value"} if CLASSES_ARE_WATCHED else set()
    guard = CodeGuard(code, [], [derived], names={"method", *named})  # type: ignore[arg-type]
    check = guard.fast_check()
    for count in range(3):
        base.value = count  # type: ignore[attr-defined]
        assert check()
    base.another = 4  # type: ignore[attr-defined]
    assert check()
    assert guard.failed() is None
    base.method = code  # type: ignore[attr-defined]
    assert not check()


@pytest.mark.skipif(CLASSES_ARE_WATCHED, reason="Dynamo guards it")
@pytest.mark.parametrize("names", [{"value"}, None])
def test_a_value_that_code_names_is_seen_to_change(names: set[str] | None) -> None:
    """On a base as well as where it is found; one that is hidden is no matter."""
    base, derived = classes()
    base.value, derived.hidden, base.hidden = 0, 1, 2  # type: ignore[attr-defined]
    check = CodeGuard(code, [], [derived], names).fast_check()  # type: ignore[arg-type]
    base.hidden = 3  # type: ignore[attr-defined]
    assert check()
    base.value = 1  # type: ignore[attr-defined]
    assert not check()
    base.value = 0  # type: ignore[attr-defined]
    assert check()


@pytest.mark.parametrize("names", [{"value"}, None])
def test_a_value_that_is_put_before_another_is_seen(names: set[str] | None) -> None:
    """The guard on it looks where it was found first."""
    base, derived = classes()
    base.value = 0  # type: ignore[attr-defined]
    guard = CodeGuard(code, [], [derived], names)  # type: ignore[arg-type]
    check = guard.fast_check()
    derived.value = 0  # type: ignore[attr-defined]
    assert not check()
    assert str(guard.failed()).endswith(".value has been replaced")
    del derived.value  # type: ignore[attr-defined]
    assert check()


def test_what_is_put_back_stands_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that replaces a method for a while does no harm."""
    base, derived = classes()
    check = CodeGuard(code, [], [derived]).fast_check()  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(base, "method", code)
        assert not check()
    assert check()


def test_only_used_names_and_special_methods_matter_on_torchs_own_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries hang things on those; on its tensors, special methods do not matter either."""
    check = CodeGuard(code, [], [nn.ReLU, Tensor], names={"forward", "tanh"}).fast_check()  # type: ignore[arg-type]
    for owner, name, stands in [
        (nn.Module, "an_extension", True),
        (nn.Module, "__call__", False),
        (nn.ReLU, "forward", False),
        (nn.ReLU, "__len__", False),
        (Tensor, "an_extension", True),
        (Tensor, "tanh", False),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, code, raising=False)
            assert check() == stands, name
        assert check()


def test_all_names_matter_where_those_used_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release of torch that does not tell what it followed has everything watched."""
    check = CodeGuard(code, [], [nn.ReLU]).fast_check()  # type: ignore[arg-type]
    monkeypatch.setattr(nn.ReLU, "anything", code, raising=False)
    assert not check()


def test_another_function_of_the_same_code_needs_the_rest_as_it_was() -> None:
    """A build that is shared stands on what was there when it was made, and on the new function's own code."""
    (fn, other), (base, derived) = functions(), classes()
    guard = CodeGuard(fn, [], [derived])
    base.method = code  # type: ignore[attr-defined]
    assert not guard.moved_to(other).fast_check()()
    guard = CodeGuard(fn, [], [derived])
    shared = guard.moved_to(other)
    fn.__code__ = code.__code__
    assert (guard.fast_check()(), shared.fast_check()()) == (False, True)
    other.__code__ = code.__code__
    assert not shared.fast_check()()


def test_classes_are_not_held() -> None:
    """Once one is gone nothing stands, and nobody looks at its memory; in a notebook a class is defined again."""

    def scope() -> tuple[CodeGuard, Check, list[weakref.ref[Any]]]:
        base, derived = classes()

        class Slotted(derived):  # type: ignore[misc,valid-type]
            __slots__ = ("slot",)

            @staticmethod
            def static() -> type:
                return __class__  # type: ignore[name-defined,no-any-return]  # of which a closure has the class

        guard = CodeGuard(code, [Slotted.static], [base, Slotted])  # type: ignore[arg-type,list-item]
        check = guard.fast_check()
        assert check()
        return guard, check, [weakref.ref(one) for one in (base, derived, Slotted)]

    guard, check, references = scope()
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert not check()
    assert guard.failed() == "a class that it uses is gone"
    assert not guard.fast_check()()


def test_a_function_that_is_gone_stands() -> None:
    """Where it was stands another, which is for guards to look at: one may be made anew for each call."""
    fn, other = functions()
    guard = CodeGuard(code, [fn, other], [])  # type: ignore[arg-type]
    check = guard.fast_check()
    assert check()
    del fn
    gc.collect()
    assert check()
    assert guard.fast_check()()
    new_defaults(other, None)
    assert not check()


def test_the_function_itself_is_held() -> None:
    """A build has its code, and asks it as long as there is one."""

    def scope() -> Check:
        fn, _ = functions()
        return CodeGuard(fn, [], []).fast_check()

    check = scope()
    gc.collect()
    assert check()


def test_a_shared_build_outlives_the_function_that_it_was_made_for() -> None:
    """It is another function's, too."""

    _, derived = classes()
    check = CodeGuard(functions()[0], [], [derived]).moved_to(functions()[1]).fast_check()
    gc.collect()
    assert check()
    del derived, _
    gc.collect()
    assert not check()


def test_code_is_what_can_be_called_or_described() -> None:
    """Functions, classes, partials and descriptors; not values, and nothing of classes that cannot change."""

    class Held:
        value = 1
        inner = int
        part = functools.partial(code)

        @classmethod
        def made(cls) -> int:
            return 1

    assert {name for name in code_on(Held, {"other"}) if not name.startswith("__")} == {"inner", "part", "made"}
    assert code_on(int, None) == {}


def test_c_refuses_what_it_cannot_watch(fast_path: str) -> None:
    """A mistake in what it is given is an error there and then."""
    if fast_path == "python":
        pytest.skip("Python takes what it is given")
    c = native.module()
    for given in [((1,), (), []), ((), (1,), [])]:
        with pytest.raises(TypeError, match="is no"):
            c.CodeGuard(*given, bool)
    with pytest.raises(TypeError, match="must be list"):
        c.CodeGuard((), (), (), bool)
    with pytest.raises(TypeError, match="takes no arguments"):
        c.CodeGuard((), (), [], bool)(1)


def test_c_has_python_look_once_something_is_dead(fast_path: str) -> None:
    """It reads no memory of what may be gone."""
    if fast_path == "python":
        pytest.skip("Python asks its weak references")
    watched, watched_functions = classes(), functions()  # which live on
    verdicts, dead = [True, False], list[int]()
    stands = native.module().CodeGuard(watched, watched_functions, dead, lambda: verdicts.pop(0))
    assert [stands(), stands(), verdicts] == [True, True, [False]]
    dead.append(1)
    assert not stands()


def test_an_error_of_the_look_is_not_swallowed(fast_path: str) -> None:
    """C hands it on."""
    if fast_path == "python":
        pytest.skip("there is nothing between")

    def look() -> bool:
        raise RuntimeError("no answer")

    with pytest.raises(RuntimeError, match="no answer"):
        native.module().CodeGuard((nn.ReLU,), (), [], look)()


def test_what_is_replaced_while_a_class_is_looked_through_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread: what is noted for the next time was read before the look."""
    base, derived = classes()
    guard = CodeGuard(code, [], [derived])  # type: ignore[arg-type]
    check = guard.fast_check()
    assert check()
    looked = code_guard._Class.failed

    def meanwhile(one: Any) -> str | None:
        found = looked(one)
        base.method = code  # type: ignore[attr-defined]
        return found

    base.another = 2  # type: ignore[attr-defined]  # which has the class looked through
    with monkeypatch.context() as patch:
        patch.setattr(code_guard._Class, "failed", meanwhile)
        check()
    assert not check()
