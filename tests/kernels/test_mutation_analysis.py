"""Tests of what a kernel is found to write: from IR compiled for a GPU that need not be there."""

# ruff: noqa: D103 - kernels, fixtures and stand-ins are named for what they are; every test has its sentence
from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from shapedispatch.effects import Effects
from shapedispatch.kernels.runtime.mutation_analysis import effects_of


def effects(kernel: Any, **signature: Any) -> Effects:
    """What the kernel writes, compiled for these types; a number makes a constant of a parameter."""
    constants = {name: kind for name, kind in signature.items() if not isinstance(kind, (str, tuple))}
    types = {name: "constexpr" if name in constants else kind for name, kind in signature.items()}
    return effects_of(compiled(kernel, types, constants))


def compiled(kernel: Any, types: dict[str, Any], constants: dict[str, Any]) -> Any:
    return triton.compile(ASTSource(kernel, types, constants, {}), target=GPUTarget("cuda", 90, 32))


@triton.jit
def copies(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def counts(x, bins, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(bins + tl.load(x + i, mask=i < n), 1, mask=i < n)


@triton.jit
def swaps(x, lock):
    tl.store(x, tl.atomic_cas(lock, 0, 1))


@triton.jit
def optional(x, y, z, W: tl.constexpr):
    value = tl.load(x)
    if W:
        tl.store(y, value)
    if z is not None:
        tl.store(z, value)


@triton.jit
def walks(x, y, z, n):
    source = x
    target = y
    other = z
    total = 0.0
    for _ in range(n):
        total += tl.load(source) + tl.load(other)
        tl.store(target, total)
        source += 1
        target += 1
        other += 1


@triton.jit
def chooses(x, y, z, n):
    target = y
    if n > 3:
        target = z
    tl.store(target, tl.load(x))


@triton.jit
def waits(x, y, n):
    target = y
    left = n
    while left > 0:
        tl.store(target, tl.load(x))
        target += 1
        left -= 1


@triton.jit
def returns_early(x, y, n):
    if n > 3:
        return
    tl.store(y, tl.load(x))


@triton.jit
def sums(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y, tl.sum(tl.load(x + i)) + tl.max(tl.cumsum(tl.load(x + i))))


@triton.jit
def describes(x, y, M, N, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [M, N], [N, 1], [B, B])
    target = tl.make_tensor_descriptor(y, [M, N], [N, 1], [B, B])
    target.store([0, 0], source.load([0, 0]))


@triton.jit
def two_dimensional(x, y, stride, B: tl.constexpr):
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    tl.store(y + i * stride + j, tl.trans(tl.load(x + i * stride + j)))


@triton.jit
def inlined(x, y):
    _put(y, tl.load(x))


@triton.jit
def _put(p, value):
    tl.store(p, value)


@triton.jit(noinline=True)
def _far_away(p, q):
    tl.store(p, tl.load(q))


@triton.jit
def calls(x, y, z):
    _far_away(x, y)
    tl.load(z)


@triton.jit
def prints(x, y):
    tl.device_print("value", tl.load(x))
    tl.store(y, 1.0)


@triton.jit
def table_of_addresses(table, y):
    target = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(target, tl.load(y))


@triton.jit
def reads_a_table(table, y):
    source = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(y, tl.load(source))


@triton.jit
def assembles(x, y, address):
    tl.inline_asm_elementwise(
        "st.global.u32 [$1], 0; mov.u32 $0, 0;", "=r,l", [address], tl.int32, is_pure=False, pack=1
    )
    tl.store(y, tl.load(x))


@triton.jit
def reads_the_clock(x, y):
    clock = tl.inline_asm_elementwise("mov.u32 $0, %clock;", "=r", [], tl.int32, is_pure=False, pack=1)
    tl.store(y, tl.load(x) + clock)


@triton.jit
def takes_tuples(pair, y):
    tl.store(pair[1], tl.load(pair[0]) + tl.load(y))


F, N = "*fp32", "i32"


@pytest.mark.parametrize(
    ("kernel", "signature", "written"),
    [
        (copies, {"x": F, "y": F, "n": N, "B": 16}, "y"),
        (counts, {"x": "*i32", "bins": "*i32", "n": N, "B": 16}, "bins"),
        (swaps, {"x": "*i32", "lock": "*i32"}, "x lock"),
        (optional, {"x": F, "y": F, "z": F, "W": 1}, "y z"),
        (optional, {"x": F, "y": F, "z": F, "W": 0}, "z"),
        (optional, {"x": F, "y": F, "z": None, "W": 1}, "y"),
        (walks, {"x": F, "y": F, "z": F, "n": N}, "y"),
        (chooses, {"x": F, "y": F, "z": F, "n": N}, "y z"),
        (waits, {"x": F, "y": F, "n": N}, "y"),
        (returns_early, {"x": F, "y": F, "n": N}, "y"),
        (sums, {"x": F, "y": F, "B": 16}, "y"),
        (describes, {"x": "*fp16", "y": "*fp16", "M": N, "N": N, "B": 16}, "y"),
        (two_dimensional, {"x": F, "y": F, "stride": N, "B": 16}, "y"),
        (inlined, {"x": F, "y": F}, "y"),
        (calls, {"x": F, "y": F, "z": F}, "x y"),
        (prints, {"x": F, "y": F}, "y"),
        (reads_the_clock, {"x": F, "y": F}, "y"),
        (takes_tuples, {"pair": (F, F), "y": F}, "pair"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_written_is_found(kernel: Any, signature: dict[str, Any], written: str) -> None:
    """Stores, atomics and descriptors are traced back to arguments, through loops, branches and calls."""
    assert effects(kernel, **signature) == Effects(frozenset(written.split()))


def test_memory_behind_an_address_in_memory_is_beyond() -> None:
    """A store through a loaded address reaches memory that no copy protects; a load does not."""
    assert effects(table_of_addresses, table="*i64", y=F).other_writes
    assert not effects(reads_a_table, table="*i64", y=F).other_writes


def test_foreign_code_with_an_address_is_beyond() -> None:
    """Inline assembly that is not pure and gets 64 bits may write anywhere."""
    found = effects(assembles, x=F, y=F, address="i64")

    assert found.other_writes
    assert "y" in found.mutated


def test_without_ir_every_pointer_counts_as_written() -> None:
    """Triton can be told to keep the binary alone."""
    kernel = compiled(copies, {"x": F, "y": F, "n": N, "B": "constexpr"}, {"B": 16})
    del kernel.asm["ttir"]

    assert effects_of(kernel) == Effects(frozenset({"x", "y"}))


def test_with_other_bindings_every_pointer_counts_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Triton whose IR cannot be read is a Triton of which nothing is known."""
    from triton._C.libtriton import ir

    kernel = compiled(copies, {"x": F, "y": F, "n": N, "B": "constexpr"}, {"B": 16})
    monkeypatch.delattr(ir, "parse_mlir_module")

    assert effects_of(kernel) == Effects(frozenset({"x", "y"}))


def test_ir_with_other_arguments_says_nothing() -> None:
    """Where the arguments of the IR are not those of the signature, nobody knows which is which."""
    kernel = compiled(copies, {"x": F, "y": F, "n": N, "B": "constexpr"}, {"B": 16})
    kernel.src.signature = {"w": F, **kernel.src.signature}

    assert effects_of(kernel) == Effects(frozenset({"w", "x", "y"}))


def test_broken_ir_counts_as_none(capfd: pytest.CaptureFixture[str]) -> None:
    """IR that does not parse says nothing."""
    kernel = compiled(copies, {"x": F, "y": F, "n": N, "B": "constexpr"}, {"B": 16})
    kernel.asm["ttir"] = "module { nonsense }"

    assert effects_of(kernel) == Effects(frozenset({"x", "y"}))
