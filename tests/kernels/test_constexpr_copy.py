"""Tests of kernels whose integer parameters are made constants, compiled for a GPU that need not be there."""

# ruff: noqa: D103 - kernels, fixtures and stand-ins are named for what they are; every test has its sentence
from __future__ import annotations

import re
from typing import Any

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from shapedispatch.kernels.runtime.constexpr_copy import static_copy
from shapedispatch.kernels.runtime.loaded import Builds

OFFSET = tl.constexpr(2)


@triton.jit
def divides(x, out, N, K: tl.int64, B: tl.constexpr):
    """Heads of a group."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i + OFFSET, tl.load(x + i // K, mask=i < N) * ((0 - N) // K), mask=i < N)


@triton.jit
def loops(x, out, N, K):
    total = 0.0
    for i in range(K):
        total += tl.load(x + i * N)
    tl.store(out, total)


@triton.jit
def needs_a_power_of_two(x, N):
    tl.store(x + tl.arange(0, N), 0.0)


@triton.jit(do_not_specialize=["N"], do_not_specialize_on_alignment=[2], debug=True, noinline=True)
def has_options(x, N, K, B: tl.constexpr = 4):
    tl.store(x, N + K + B)


def parameters(kernel: Any, arch: int = 90, **facts: Any) -> list[str]:
    """The types of the runtime parameters in the compiled code, Triton's two scratch pointers left out."""
    return re.findall(r"\.param \.(\w+)(?: \.ptr| \w+_param)", entry(compiled(kernel, arch, **facts)))[:-2]


def entry(kernel: Any) -> str:
    return kernel.asm["ptx"].split(".entry")[1].split(")")[0]


def compiled(kernel: Any, arch: int = 90, **facts: Any) -> Any:
    constants = {name: fact for name, fact in facts.items() if not isinstance(fact, str)}
    types = {name: "constexpr" if name in constants else fact for name, fact in facts.items()}
    return triton.compile(ASTSource(kernel, types, constants, {}), target=GPUTarget("cuda", arch, 32))


FLOAT = {"x": "*fp32", "out": "*fp32"}


@pytest.mark.parametrize("arch", [80, 90])
def test_a_static_parameter_is_no_runtime_parameter(arch: int) -> None:
    """Each one leaves the compiled code, and what it divided by is folded."""
    plain = compiled(divides, arch, **FLOAT, N="i32", K="i64", B=16)
    static = compiled(static_copy(divides, ["N", "K"]), arch, **FLOAT, N=48, K=4, B=16)

    assert parameters(divides, arch, **FLOAT, N="i32", K="i64", B=16) == ["u64", "u64", "u32", "u64"]
    assert parameters(static_copy(divides, ["K"]), arch, **FLOAT, N="i32", K=4, B=16) == ["u64", "u64", "u32"]
    assert parameters(static_copy(divides, ["N", "K"]), arch, **FLOAT, N=48, K=4, B=16) == ["u64", "u64"]
    assert "div.s64" in plain.asm["ptx"]
    assert "div." not in static.asm["ptx"]


def test_each_value_is_another_build() -> None:
    """A constant's value is in the code."""
    copy = static_copy(divides, ["K"])
    one, other = (compiled(copy, **FLOAT, N="i32", K=k, B=16) for k in (4, 5))

    assert one.asm["ptx"] != other.asm["ptx"]


def test_a_loop_over_a_constant_may_be_unrolled_by_the_compiler() -> None:
    """A constant trip count needs no comparison with a parameter."""
    assert parameters(static_copy(loops, ["K"]), **FLOAT, N="i32", K=2) == ["u64", "u64", "u32"]


def test_a_parameter_becomes_usable_where_constants_are_needed() -> None:
    """What the author could only have written with tl.constexpr compiles."""
    with pytest.raises(triton.compiler.errors.CompilationError):
        compiled(needs_a_power_of_two, x="*fp32", N="i32")

    assert parameters(static_copy(needs_a_power_of_two, ["N"]), x="*fp32", N=16) == ["u64"]


def test_the_kernel_itself_is_as_it_was() -> None:
    """Source, annotations, caches and Triton's register of kernels are untouched; the copy has its own."""
    from triton.runtime import jit

    before = dict(getattr(jit, "_triton_jit_function_registry", {}))
    annotations = dict(divides.fn.__annotations__)
    copy = static_copy(divides, ["N"])

    assert dict(getattr(jit, "_triton_jit_function_registry", {})) == before
    assert divides.fn.__annotations__ == annotations
    assert [p.name for p in divides.params if p.is_constexpr] == ["B"]
    assert [p.name for p in copy.params if p.is_constexpr] == ["N", "B"]
    assert copy.device_caches is not divides.device_caches
    assert copy.__doc__ == divides.__doc__
    assert copy.arg_names == divides.arg_names


def test_options_of_the_kernel_are_kept() -> None:
    """What triton.jit was told holds for the copy, less what it forbids on a constant."""
    copy = static_copy(has_options, ["N", "K"])

    assert copy.debug is True
    assert copy.noinline is True
    assert [p.do_not_specialize for p in copy.params] == [False] * 4
    assert [p.do_not_specialize_on_alignment for p in copy.params] == [False] * 4
    assert static_copy(has_options, ["K"]).params[1].do_not_specialize
    assert copy.params[3].default == 4


def test_a_replaced_source_is_kept() -> None:
    """A kernel whose source was changed after it was jitted is copied as it is now."""
    kernel = static_copy(loops, [])
    kernel._unsafe_update_src(loops.src.replace("tl.store(out, total)", "tl.store(out, total + 1)"))

    assert static_copy(kernel, ["K"]).src == kernel.src


def test_a_replaced_source_that_a_copy_cannot_have_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Triton without the private name for it: of the builds with constants, and of no other."""
    kernel = static_copy(loops, [])
    kernel._unsafe_update_src(loops.src.replace("tl.store(out, total)", "tl.store(out, total + 1)"))
    owner = next(cls for cls in type(kernel).__mro__ if "_unsafe_update_src" in vars(cls))
    monkeypatch.delattr(owner, "_unsafe_update_src")

    with pytest.raises(LookupError, match="its source was replaced"):
        static_copy(kernel, ["K"])
    (refused,) = Builds(kernel, kernel.arg_names).compiled([{}], ["K"], 0)
    assert isinstance(refused, LookupError)
    assert static_copy(loops, ["K"]).src == loops.src
