"""What a kernel writes: which of its pointer arguments, and whether anything besides.

Read off the Triton IR of a compiled variant: each value of pointer type is traced to what it is made from, back to
the arguments, and an operation that may write marks all that its pointers come from. Unknown operations write. A
pointer made from an integer or loaded from memory leads to memory that is no argument's: then the kernel writes, or
may write, `beyond` its arguments, and nothing that is done on copies protects the caller.

The bindings of `libtriton.ir` are private, and are used here alone. Where one is missing, or the IR has been thrown
away, every pointer counts as written.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...effects import Effects

__all__ = ["effects_of"]

READS = frozenset({
    "tt.load", "tt.descriptor_load", "tt.descriptor_gather", "tt.experimental_descriptor_load",
    "tt.experimental_descriptor_gather", "tt.ptr_to_int", "tt.print", "tt.assert", "tt.return", "arith.cmpi",
})  # fmt: skip
CARRIES = frozenset({
    "tt.splat", "tt.unsplat", "tt.addptr", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.bitcast",
    "tt.join", "tt.split", "tt.cat", "tt.gather", "tt.make_tensor_ptr", "tt.advance", "tt.make_tensor_descriptor",
    "arith.select",
})  # fmt: skip
YIELDS = frozenset(["scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return", "tt.map_elementwise.return"])
JUMPS = frozenset(["cf.br", "cf.cond_br"])
OPAQUE = frozenset(["tt.elementwise_inline_asm", "tt.extern_elementwise"])


def effects_of(compiled: Any) -> Effects:
    """What a ``CompiledKernel`` writes; all its pointers, where that cannot be told."""
    signature: dict[str, Any] = compiled.src.signature
    leaves = [(name, leaf) for name, kind in signature.items() for leaf in _leaves(kind)]
    pointers = frozenset(name for name, leaf in leaves if leaf.startswith("*") or _is_descriptor(leaf))
    owners = [name for name, leaf in leaves if leaf != "constexpr"]
    if any(_is_descriptor(leaf) for _, leaf in leaves):
        return Effects(pointers)  # one descriptor is several arguments in the IR
    program = _program(compiled)
    if program is None or len(program.arguments) != len(owners):
        return Effects(pointers)
    reached = program.written()
    written = {owners[i] for i, value in enumerate(program.arguments) if value in reached}
    return Effects(frozenset(written) & pointers, tuple(sorted(program.beyond(reached))))


def _leaves(kind: Any) -> Iterator[str]:
    if isinstance(kind, tuple):
        for item in kind:
            yield from _leaves(item)
    else:
        yield kind


def _is_descriptor(kind: str) -> bool:
    return kind.startswith("tensordesc") or kind == "nvTmaDesc"


# ---------------------------------------------------------------------------------------------------- the IR as a graph


@dataclass(slots=True)
class _Operation:
    name: str
    operands: list[int]
    results: list[int]
    block: int
    regions: list[int]
    pure: bool = True


@dataclass(slots=True)
class _Program:
    """Operations over values, which are numbers; ``pointers`` are those that are or hold addresses."""

    operations: list[_Operation] = field(default_factory=list)
    pointers: set[int] = field(default_factory=set)
    words: set[int] = field(default_factory=set)
    blocks: dict[int, list[int]] = field(default_factory=dict)
    region_of: dict[int, int] = field(default_factory=dict)
    arguments: list[int] = field(default_factory=list)

    def written(self) -> set[int]:
        """All values that a write may go through."""
        sources = self._sources()
        reached: set[int] = set()
        left = [value for operation in self.operations for value in self._writes(operation)]
        while left:
            value = left.pop()
            if value not in reached:
                reached.add(value)
                left += sources[value]
        return reached

    def beyond(self, reached: set[int]) -> set[str]:
        """Why memory that is no argument's may be written."""
        reasons = set()
        for operation in self.operations:
            unsupported = operation.name not in CARRIES and not operation.regions
            if unsupported and reached & self.pointers & set(operation.results):
                reasons.add(f"the kernel may write through an address that {operation.name} made, not an argument")
            if operation.name in OPAQUE and not operation.pure and self.words & set(operation.operands):
                reasons.add("the kernel holds foreign code that may write through an address")
        return reasons

    def _writes(self, operation: _Operation) -> Iterable[int]:
        known = operation.name in READS | CARRIES | YIELDS | JUMPS or operation.regions
        return () if known else self.pointers & set(operation.operands)

    def _sources(self) -> dict[int, list[int]]:
        """What each value may be made from."""
        sources: dict[int, list[int]] = defaultdict(list)
        for operation in self.operations:
            if operation.regions:
                self._through_regions(operation, sources)
            elif operation.name in CARRIES:
                for result in operation.results:
                    sources[result] += operation.operands
            elif operation.name in JUMPS:
                self._through_jump(operation, sources)
        return sources

    def _through_regions(self, operation: _Operation, sources: dict[int, list[int]]) -> None:
        yields = [o for o in self.operations if o.name in YIELDS and self.region_of.get(o.block) in operation.regions]
        inner = [b for b in self.blocks if self.region_of.get(b) in operation.regions]
        if operation.name == "scf.for":
            # operands: lower, upper, step, then one for each carried value; the block's first argument is the counter
            carried = [operation.operands[3:], *[o.operands for o in yields]]
            for targets in (operation.results, *[self.blocks[b][1:] for b in inner]):
                _join(targets, carried, sources)
        elif operation.name == "scf.if":
            _join(operation.results, [o.operands for o in yields], sources)
        else:
            everything = [*operation.operands, *[value for o in yields for value in o.operands]]
            for value in [*operation.results, *[argument for b in inner for argument in self.blocks[b]]]:
                sources[value] += everything

    def _through_jump(self, operation: _Operation, sources: dict[int, list[int]]) -> None:
        # The bindings do not say where a jump goes: anywhere in its region.
        region = self.region_of.get(operation.block)
        for block, arguments in self.blocks.items():
            if self.region_of.get(block) == region and not set(arguments) & set(self.arguments):
                for value in arguments:
                    sources[value] += operation.operands


def _join(targets: list[int], groups: list[list[int]], sources: dict[int, list[int]]) -> None:
    """Each target is made from the value at its place in any of the groups; from all, where the places differ."""
    for i, target in enumerate(targets):
        for group in groups:
            sources[target] += [group[i]] if len(group) == len(targets) else group


# ---------------------------------------------------------------------------------------------------- reading the IR


def _program(compiled: Any) -> _Program | None:
    """The graph of a compiled kernel's IR; None where it is gone, or this Triton has other bindings."""
    text = compiled.asm.get("ttir")
    if text is None:
        return None
    try:
        module, context = _parse(text, compiled.metadata.target)
        program = _Program()
        module.walk(lambda operation: _note(operation, program))
    except (AttributeError, ImportError, RuntimeError, TypeError):
        return None
    del module, context  # in this order
    return program


def _parse(text: str, target: Any) -> tuple[Any, Any]:
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    context = ir.context()
    ir.load_dialects(context)
    make_backend(target).load_dialects(context)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ttir"
        path.write_text(text, "utf-8")
        return ir.parse_mlir_module(str(path), context), context


def _note(operation: Any, program: _Program) -> None:
    name = operation.get_name()
    if name == "builtin.module":
        return
    operands = [_value(operation.get_operand(i), program) for i in range(operation.get_num_operands())]
    results = [_value(operation.get_result(i), program) for i in range(operation.get_num_results())]
    regions = [operation.get_region(i).id() for i in range(operation.get_num_regions())]
    block = _block(operation.get_block(), program)
    if name == "tt.func":
        _enter(operation, regions, program)
        return
    pure = name not in OPAQUE or bool(operation.get_bool_attr("pure"))
    program.operations.append(_Operation(name, operands, results, block, regions, pure))


def _value(value: Any, program: _Program) -> int:
    number, kind = int(value.id()), str(value.get_type())
    if "!tt.ptr" in kind or "tensordesc" in kind:
        program.pointers.add(number)
    if "i64" in kind or number in program.pointers:
        program.words.add(number)
    return number


def _block(block: Any, program: _Program) -> int:
    if block is None:
        return 0
    number = int(block.id())
    if number not in program.blocks:
        program.blocks[number] = [_value(block.get_argument(i), program) for i in range(block.get_num_arguments())]
        program.region_of[number] = block.get_parent().id()
    return number


def _enter(operation: Any, regions: list[int], program: _Program) -> None:
    """Take a function's arguments for the kernel's; functions that it calls are written through at the call."""
    entry = [arguments for block, arguments in program.blocks.items() if program.region_of[block] in regions]
    if "public" in (operation.get_str_attr("sym_visibility") or ""):
        program.arguments = entry[0] if entry else []
