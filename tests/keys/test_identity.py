"""Identity of code, candidates and environment."""

from __future__ import annotations

import functools
import importlib
import itertools
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from shapedispatch.keys import identity
from shapedispatch.keys.identity import (
    Environment,
    candidates_identity,
    code_identity,
    differences,
    environment,
    package_version,
)

ROOT = Path(__file__).parent.parent.parent


def made(source: str, name: str = "f", **names: Any) -> Any:
    """The function ``name`` that ``source`` defines in a module of its own with these globals."""
    module = types.ModuleType("a_user_module")
    vars(module).update(names)
    exec(compile(source, "a_user_module.py", "exec", dont_inherit=True), vars(module))
    return vars(module)[name]


def test_the_same_code_has_one_identity_wherever_it_stands() -> None:
    """Line numbers, comments and layout are no part of it."""
    assert code_identity(made("def f(x): return x + 1")) == code_identity(
        made("\n\n# words\ndef f(x):\n    # more\n    return x + 1")
    )


@pytest.mark.parametrize(
    "other",
    [
        "def f(x): return x + 2",
        "def f(x): return x - 1",
        "def f(x): return x + 1.0",
        "def f(x): return x + True",
        "def f(y, x): return x + 1",
        "def f(x, *, y=1): return x + 1",
        "def f(x=3): return x + 1",
        "def f(x):\n    def g(): return 1\n    return x + 1",
    ],
)
def test_other_code_has_another_identity(other: str) -> None:
    """Operations, constants, their types, parameters and defaults each count."""
    assert code_identity(made("def f(x): return x + 1")) != code_identity(made(other))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, 2),
        (1, True),
        (1.0, 1),
        (0.0, -0.0),
        ("a", "b"),
        (b"a", "a"),
        ((1, 2), (2, 1)),
        ([1], (1,)),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, {1, 3}),
        (torch.float16, torch.bfloat16),
        (torch.device("cpu"), torch.device("meta")),
        (torch.zeros(1), None),
    ],
)
def test_the_value_of_a_global_counts(before: object, after: object) -> None:
    """What a function reads from its module is part of it, by value and type."""
    source = "def f(x): return g(x, VALUE)"
    assert code_identity(made(source, VALUE=before)) != code_identity(made(source, VALUE=after))


def test_a_global_that_is_not_read_does_not_count() -> None:
    """Only names that the code loads matter."""
    assert code_identity(made("def f(x): return x", VALUE=1)) == code_identity(made("def f(x): return x", VALUE=2))


def test_a_global_read_by_an_inner_function_counts() -> None:
    """Lambdas and comprehensions inside the function read its globals too."""
    source = "def f(x): return [(lambda: VALUE)() for _ in x]"
    assert code_identity(made(source, VALUE=1)) != code_identity(made(source, VALUE=2))


def test_the_value_in_a_closure_counts() -> None:
    """Two closures over different values are different code."""
    make = made("def make(n):\n    def f(x): return x * n\n    return f", "make")
    assert code_identity(make(2)) != code_identity(make(3))
    assert code_identity(make(2)) == code_identity(make(2))


def test_an_empty_cell_is_no_error() -> None:
    """A function that refers to itself before it is bound can be identified."""
    make = made("def make():\n    def f(x): return late\n    kept = code_of(f)\n    late = 1\n    return kept", "make")
    make.__globals__["code_of"] = code_identity
    assert len(make()) == 64


def test_a_helpers_code_counts() -> None:
    """An edit two calls away is an edit."""
    source = "def h(x): return x * {}\ndef g(x): return h(x)\ndef f(x): return g(x)"
    assert code_identity(made(source.format(2))) != code_identity(made(source.format(3)))


def test_a_helper_reached_through_a_module_of_the_users_counts() -> None:
    """``helpers.scale(x)`` is read as code when the module states no version."""

    def with_helper(factor: int) -> str:
        helpers = types.ModuleType("users_helpers")
        exec(f"def scale(x): return x * {factor}", vars(helpers))
        return code_identity(made("def f(x): return helpers.scale(x)", helpers=helpers))

    assert with_helper(2) != with_helper(3)


def test_an_installed_library_counts_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with a version is its name and version."""
    library = types.ModuleType("some_library")
    library.__version__ = "1.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_library", library)
    before = code_identity(made("def f(x): return lib.g(x)", lib=library))
    library.g = 1  # type: ignore[attr-defined]
    assert code_identity(made("def f(x): return lib.g(x)", lib=library)) == before
    library.__version__ = "2.0"  # type: ignore[attr-defined]
    assert code_identity(made("def f(x): return lib.g(x)", lib=library)) != before


def test_a_function_of_an_installed_library_counts_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported by name, it is the library's name and version; the function's own package is read as code."""
    library = types.ModuleType("some_library")
    library.__version__ = "1.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_library", library)

    def identity(helper: str, package: str) -> str:
        g = made(helper, "g")
        g.__module__ = "some_library.inner"
        f = made("def f(x): return g(x)", g=g)
        f.__module__ = package
        return code_identity(f)

    one, other = "def g(x): return x", "def g(x): return -x"
    assert identity(one, "mine") == identity(other, "mine")
    assert identity(one, "some_library.kernels") != identity(other, "some_library.kernels")


def test_many_functions_that_share_helpers_are_each_read_once() -> None:
    """A constant at the end of a chain of functions that also call back still counts."""

    def identity(constant: int) -> str:
        chain = [f"def g{n}(x): return g{n + 1}(x) + g{n // 2}(x) + g{n // 3}(x)\n" for n in range(40)]
        return code_identity(made("".join(chain) + f"def g40(x): return {constant}\ndef f(x): return g0(x)"))

    assert identity(1) != identity(2)


def test_functions_that_call_each_other_end() -> None:
    """Recursion, direct and mutual, is walked once."""
    source = "def f(x): return g(x)\ndef g(x): return f(x) + f(x)"
    assert code_identity(made(source)) == code_identity(made(source))


def test_a_large_or_endless_global_is_cut() -> None:
    """The walk is bounded, whatever it meets."""
    endless: list[Any] = []
    endless.append(endless)
    source = "def f(x): return VALUE"
    assert len(code_identity(made(source, VALUE=endless))) == 64
    assert len(code_identity(made(source, VALUE=list(range(100_000))))) == 64


@pytest.mark.parametrize("fn", [torch.softmax, torch.nn.functional.gelu, len, int, print, object(), 3, None])
def test_anything_can_be_identified(fn: object) -> None:
    """Builtins, types and odd objects do not raise, and are themselves."""
    assert code_identity(fn) == code_identity(fn)


def test_wrappers_count_with_what_they_wrap() -> None:
    """Partial arguments and methods are read through."""
    f, g = made("def f(x, y): return x + y"), made("def f(x, y): return x - y")
    assert len({code_identity(functools.partial(fn, n)) for fn in (f, g) for n in (1, 2)}) == 4

    class Thing:
        pass

    assert code_identity(types.MethodType(f, Thing())) != code_identity(types.MethodType(g, Thing()))


def test_a_wrapped_function_counts() -> None:
    """A decorator that hides its function behind ``__wrapped__`` does not hide it here."""

    def hidden(fn: Any) -> Any:
        @functools.wraps(fn)
        def call(*args: Any) -> Any:
            return call.__wrapped__(*args)  # type: ignore[attr-defined]

        return call

    assert code_identity(hidden(made("def f(x): return x"))) != code_identity(hidden(made("def f(x): return -x")))


KERNELS = """
import triton, triton.language as tl

C = tl.constexpr({constant})

@triton.jit
def helper(x):
    return x {operator} C

@triton.autotune(configs=[triton.Config({{}}, num_warps={warps})], key=[])
@triton.jit
def kernel(p, B: tl.constexpr):
    tl.store(p, helper(B))
"""


def test_a_kernels_text_counts_and_its_place_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Triton kernel is its text, its configs, its constants and the kernels it calls; not the line it stands on."""
    pytest.importorskip("triton")
    monkeypatch.syspath_prepend(str(tmp_path))
    count = itertools.count()

    def identity(above: str = "", constant: int = 1, operator: str = "+", warps: int = 4) -> str:
        name = f"kernels_{next(count)}"
        (tmp_path / f"{name}.py").write_text(above + KERNELS.format(constant=constant, operator=operator, warps=warps))
        return code_identity(importlib.import_module(name).kernel)

    assert identity() == identity(above="# words\n\n\n")
    others = [identity(constant=2), identity(operator="-"), identity(warps=8)]
    assert len({identity(), *others}) == 4


def test_a_kernels_text_is_what_counts_when_it_was_changed() -> None:
    """Triton compiles ``src``, whatever the Python function under it says."""
    fn = made("def f(p): return p")

    def identity(src: str) -> str:
        return code_identity(type("Kernel", (), {"__module__": "triton.runtime", "fn": staticmethod(fn), "src": src})())

    assert identity("def f(p): return p") == identity("def f(p):  return p  # words")
    assert identity("def f(p): return p") != identity("def f(p): return p + 1")
    assert identity("not (Python") != identity("nor (this")


def test_a_kernel_without_known_attributes_is_its_cache_key() -> None:
    """What a later Triton may rename is used only where it is there."""
    kernel = type("Kernel", (), {"__module__": "triton.later", "cache_key": "a"})
    other = type("Kernel", (), {"__module__": "triton.later", "cache_key": "b"})
    assert code_identity(kernel()) == code_identity(kernel()) != code_identity(other())


def test_configs_count_in_a_candidate_list() -> None:
    """Two configs with different numbers of warps are different candidates."""
    triton = pytest.importorskip("triton")
    configs = [triton.Config({"BLOCK": 16}, num_warps=warps) for warps in (2, 4, 4)]
    a, b, c = (candidates_identity([("plain", config)]) for config in configs)
    assert a != b == c


def test_the_order_and_the_names_of_candidates_count() -> None:
    """Ties go to the earlier variant, so the order matters."""
    x, y = ("plain", 1), ("hint[M=64]", 1)
    lists = [[x], [x, y], [y, x], [("other", 1), y]]
    assert len({candidates_identity(candidates) for candidates in lists}) == len(lists)


def test_a_module_that_raises_states_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its own lookup of attributes does, as that of one that loads lazily."""

    def finds(name: str) -> Any:
        raise KeyError(name)

    lazy = types.ModuleType("lazy")
    vars(lazy)["__getattr__"] = finds
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    assert package_version("lazy.inside") is None


def test_identities_are_the_same_in_another_process() -> None:
    """Neither ``hash()`` nor an address takes part."""
    source = (
        "def h(s): return s in {'a', 'b', 'c'}\ndef g(s): return s\nSET = {g, h, len}\ndef f(x): return SET, VALUE\n"
    )
    program = (
        f"import types, torch\nfrom shapedispatch.keys.identity import code_identity\n"
        f"m = types.ModuleType('a_user_module'); m.VALUE = {{'x', 'y', 'z', torch.float16}}\n"
        f"exec({source!r}, vars(m)); print(code_identity(m.f))"
    )
    here = code_identity(made(source, VALUE={"x", "y", "z", torch.float16}))
    for seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        assert ran.stdout.strip() == here


def test_the_cpus_environment_names_processor_instructions_and_threads() -> None:
    """What a timing on the CPU depends on is in it; nothing of a GPU is."""
    here = environment(torch.device("cpu"))
    assert here.hard["family"] == "cpu"
    assert {"torch", "torch_git", "triton", "runtime", "cpu", "instructions", "threads", "shapedispatch"} == set(
        here.soft
    )


def test_the_number_of_threads_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of threads during the process is a change of the environment."""
    before = environment(torch.device("cpu"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 17)
    assert differences(before.soft, environment(torch.device("cpu")).soft) == (
        f"the number of threads was {before.soft['threads']} when this was stored and is 17 here",
    )


def test_a_gpus_environment_splits_capability_from_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Family and capability are hard; name, memory, multiprocessors and driver soft."""
    found = types.SimpleNamespace(name="GPU", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30)
    monkeypatch.setattr(identity, "_gpu_properties", lambda index: (found, f"driver of {index}"))
    here = environment(torch.device("cuda:1"))
    assert here.hard == {"family": "cuda", "capability": "9.0"}
    own = {"device": "GPU", "memory_bytes": 80 << 30, "multiprocessors": 132, "driver": "driver of 1"}
    assert own.items() <= here.soft.items()
    assert "threads" not in here.soft


def test_the_driver_describes_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kernel module's own line is taken; without one it is "unknown"."""
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX Kernel Module  550.1\nGCC version: 12\n")
    monkeypatch.setattr(identity, "_DRIVER_FILES", (tmp_path / "none", file))
    assert identity._driver() == "NVIDIA UNIX Kernel Module  550.1"
    monkeypatch.setattr(identity, "_DRIVER_FILES", ())
    assert identity._driver() == "unknown"


def test_a_processor_that_does_not_describe_itself_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without /proc the rest still makes an environment."""
    monkeypatch.setattr(identity, "_CPUINFO", tmp_path / "none")
    identity._cpu.cache_clear()
    try:
        assert all(identity._cpu().values())
    finally:
        identity._cpu.cache_clear()


def test_a_device_of_another_kind_has_an_environment() -> None:
    """What is not known of a device is "unknown", never an error."""
    assert environment(torch.device("meta")).hard == {"family": "meta", "capability": "unknown"}


def test_further_soft_parts_are_added() -> None:
    """Code and candidates join the machine's parts; the original stays as it is."""
    base = Environment({"family": "cpu"}, {"torch": "1"})
    assert base.extended(code="c").soft == {"torch": "1", "code": "c"}
    assert base.soft == {"torch": "1"}


def test_each_difference_is_a_sentence() -> None:
    """Changed, added and removed parts are each named with both values."""
    assert differences({"torch": "1", "gone": 2}, {"torch": "2", "new": 3}) == (
        "gone was 2 when this was stored and is not known here",
        "new was not recorded when this was stored and is 3 here",
        "torch was 1 when this was stored and is 2 here",
    )
    assert differences({"a": 1}, {"a": 1}) == ()


def test_long_values_that_differ_late_are_still_told_apart() -> None:
    """A cut value carries a digest of all of it."""
    ((before, after),) = [
        sentence.split(" when this was stored and is ")
        for sentence in differences({"instructions": "a" * 200}, {"instructions": "a" * 199 + "b"})
    ]
    assert before.partition(" was ")[2] != after.removesuffix(" here")


def test_the_digest_is_of_canonical_bytes() -> None:
    """The order of a mapping's names does not matter."""
    assert identity.digest({"a": 1, "b": 2}) == identity.digest({"b": 2, "a": 1})


def test_stored_digests_stay() -> None:
    """Rows hold them: with others, every stored choice would be timed again after an upgrade.

    Code counts by its bytecode, of which every Python has its own.
    """
    values = (1, 2.0, -0.0, True, None, "s", b"x", {2, 1}, {"k": [torch.float32, torch.device("cuda", 1)]})
    assert identity.digest({"a": [1, None, "x"]}) == "09eb9d670454768e474c17674ec55be20b5efc4d31ac0c58d1426a5c88b20b8e"
    assert code_identity(values) == "4646a9406d644f7b9eeefdf9569d3b5a0e002862b6a32101aae8d04d37b2bcb7"
    assert (
        candidates_identity([("plain", functools.partial(max, 1, key=None)), ("b", {"BLOCK": 64})])
        == "7db13ab6f9b995bfcbd5a9f9e07f786c23cc0a532688fe3cc75b541010bf0839"
    )
    if sys.version_info[:2] == (3, 11):
        fn = made("def f(x, y=2, *, z=3.5):\n    def g(a): return a * n\n    return g(x) + y + z", n=7)
        assert code_identity(fn) == "6a9be26714e0258060c5611811b6ae315bf2c2c4740febc599e625ab535dc94b"
