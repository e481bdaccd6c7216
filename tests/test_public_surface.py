from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any, get_type_hints

import pytest

import shapedispatch as package

NAMES = [
    "shapedispatch",
    "Dispatcher",
    "Variant",
    "Choice",
    "Timing",
    "Refusal",
    "CacheInfo",
    "Store",
    "set_mode",
    "dispatchers",
    "load",
    "sync",
    "wait",
    "ShapeDispatchError",
    "NoVariantError",
    "MissError",
    "SettingsError",
    "DeclarationError",
    "SyncError",
]


def test_the_public_names_are_these() -> None:
    """No more and no less."""
    assert sorted(package.__all__) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_exists_and_says_what_it_is(name: str) -> None:
    """With a docstring."""
    assert (inspect.getdoc(getattr(package, name)) or "").strip()


def test_the_package_says_whether_hits_are_answered_in_c() -> None:
    """And why not, where they are not."""
    assert package.hotpath_available is (package.hotpath_reason is None)
    with pytest.raises(AttributeError, match="hotpath_speed"):
        package.hotpath_speed


def test_the_package_has_a_version() -> None:
    """For error reports."""
    assert package.__version__.count(".") >= 2


def test_the_decorator_has_the_documented_arguments() -> None:
    """One positional-only argument, all others by keyword, each described."""
    parameters = inspect.signature(package.shapedispatch).parameters
    documented = [
        "fn",
        "dims",
        "hints",
        "static",
        "exact",
        "buckets",
        "variants",
        "configs",
        "grid",
        "inputs",
        "mutates",
        "objective",
        "maxsize",
        "store",
        "graphs",
        "name",
        "options",
    ]
    assert [name for name in parameters if parameters[name].kind is not inspect.Parameter.VAR_KEYWORD] == documented
    assert parameters["fn"].kind is inspect.Parameter.POSITIONAL_ONLY
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in documented[1:])
    text = inspect.getdoc(package.shapedispatch) or ""
    for name in set(documented) - {"fn"}:
        assert f"{name}:" in text, f"{name} is not described"


def public_things() -> list[Any]:
    """Every public function and class, and the public methods of the classes."""
    found: list[Any] = []
    for name in package.__all__:
        thing = getattr(package, name)
        found.append(pytest.param(thing, id=name))
        if inspect.isclass(thing):
            found += [
                pytest.param(member, id=f"{name}.{label}")
                for label, member in vars(thing).items()
                if inspect.isfunction(member) and not label.startswith("_")
            ]
    return found


@pytest.mark.parametrize("thing", public_things())
def test_what_is_public_is_typed_and_described(thing: Any) -> None:
    """Each parameter and each result."""
    assert inspect.getdoc(thing)
    if inspect.isfunction(thing):
        hints = thing.__annotations__
        missing = [name for name in inspect.signature(thing).parameters if name not in (*hints, "self", "cls")]
        assert missing == []
        assert "return" in hints


MODULES = [
    module.name
    for module in pkgutil.walk_packages(package.__path__, "shapedispatch.")
    if not module.name.endswith(("__main__", "_native"))  # one runs when it is imported, one is C
]


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is_for(name: str) -> None:
    """And what it lists as its own is there."""
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip()
    for public in getattr(module, "__all__", ()):
        assert hasattr(module, public), f"{name}.{public}"


def test_records_resolve_their_annotations() -> None:
    """At run time, for tools that ask."""
    for name in ("Choice", "Timing", "Refusal", "CacheInfo", "Variant"):
        assert get_type_hints(getattr(package, name))
