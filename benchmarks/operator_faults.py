"""Which operators does compiled code get wrong at special values? Every operator of torch's own database, asked once.

What goes wrong at nan, at infinities, at large or tiny values, in the sign of a zero or at a bad index is a property of
the operator, its dtype, the device and the version of torch, and not of a call. So it is found out here, ahead of time.

1. Every call of the database runs as written, forward and backward, and the operators of ATen that it comes to are
   noted with their arguments: those are what is asked, since a captured graph consists of them.
2. Each runs as written, compiled, and in float64, on ordinary values and on values with one kind of special ones among
   them. Compiled code may err by `FACTOR` times the larger of what plain errs by there, of what plain errs by at 99 of
   100 places, and of `ULPS`. What is no pointwise operation may also err by what an error of one unit in its inputs
   makes: sums are taken in another order.
3. Integer tensors get indices out of range; where plain raises, compiled code must raise too (on the CPU: a GPU ends in
   a device assertion there).

Many operators are compiled as one graph; one that fails alone is told as unknown, and one that ends its process too.

`python benchmarks/operator_faults.py --out DIRECTORY` writes the table that ships with the package and a longer text of
what was seen. ``--break 50`` breaks so many operators on purpose and says how many of them the table then names.
``--mended`` compiles as the dispatcher does: what is named then is what its ways around the table leave wrong.
Torch's database needs the package expecttest.
"""

from __future__ import annotations

import argparse
import copyreg
import functools
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SECONDS = 240
"""How long one process may take for its operators."""
SAMPLES = 6
"""How many of an operator's sample calls are run to see what they come to."""
KINDS_OF_CALL = 2
"""How many different calls of an operator and a dtype are asked."""
BATCH = 24
"""How many operators are compiled together."""
FACTOR = 4
"""How many times plain's own error a compiled result may have."""
ULPS = 2
"""An error of so many units in the last place is nobody's fault."""
WIDTH = 259
"""Elements of a pointwise operator's arguments: whole vectors and a rest."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


# ------------------------------------------------------------------------------------------------ what is to be asked


@dataclass
class Unit:
    """One operator with the arguments of one call."""

    operator: Any
    dtype: torch.dtype
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    broken: str = ""
    found: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.operator)

    @functools.cached_property
    def pointwise(self) -> bool:
        """Whether each value depends on the values at its place only; torch's tag leaves some out."""
        own = self.tensors()
        if torch.Tag.pointwise in self.operator.tags or not all(t.is_floating_point() for t in own):
            return torch.Tag.pointwise in self.operator.tags
        return self._keeps_places(own)

    def _keeps_places(self, own: list[Tensor]) -> bool:
        shapes = {tuple(t.shape) for t in own if t.dim()}
        before = tensors(self([t.clone() for t in own]))
        if len(shapes) != 1 or {tuple(t.shape) for t in before} != shapes or not before[0].numel():
            return False
        changed = [t.clone() for t in own]
        for t in changed:
            if t.dim() and t.numel():
                t.reshape(-1)[0] = 1
        after = tensors(self(changed))
        return all(torch.equal(a.reshape(-1)[1:], b.reshape(-1)[1:]) for a, b in zip(after, before, strict=True))

    def tensors(self) -> list[Tensor]:
        return tensors((self.args, self.kwargs))

    def __call__(self, given: Sequence[Tensor]) -> Any:
        """The operator on other tensors in the places of its own."""
        leaves, spec = torch.utils._pytree.tree_flatten((self.args, self.kwargs))
        rest = iter(given)
        args, kwargs = torch.utils._pytree.tree_unflatten(
            [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec
        )
        return self.operator(*args, **kwargs)


def tensors(result: Any) -> list[Tensor]:
    """The tensors of a value, in order."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


class Noted(TorchDispatchMode):
    """Notes every operator that is run, with its arguments."""

    def __init__(self, dtype: torch.dtype, seen: dict[tuple[str, torch.dtype], dict[str, Unit]]) -> None:
        super().__init__()
        self.dtype, self.seen = dtype, seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if written_by_inductor(func):
            place = self.seen.setdefault((str(func), self.dtype), {})
            like = sort_of_call(args, kwargs or {})
            if like not in place and len(place) < KINDS_OF_CALL and self.has_own(args, kwargs):
                copies = torch.utils._pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), (args, kwargs or {}))
                place[like] = Unit(func, self.dtype, *copies)
        return func(*args, **(kwargs or {}))

    def has_own(self, args: Any, kwargs: Any) -> bool:
        """Whether a tensor of the call has the dtype that is asked about, none is too large, and all are plain."""
        found = tensors((args, kwargs or {}))
        plain = all(t.layout is torch.strided and not t.is_complex() and t.numel() < 100_000 for t in found)
        leaves = torch.utils._pytree.tree_leaves((args, kwargs or {}))
        known = all(leaf is None or isinstance(leaf, _SIMPLE) for leaf in leaves)
        return plain and known and any(t.dtype is self.dtype and t.numel() for t in found)


_SIMPLE = (Tensor, int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def sort_of_call(args: Any, kwargs: Any) -> str:
    """Equal for calls whose differences are of no interest: sizes and numbers."""
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    told = [f"{leaf.dtype}{leaf.dim() > 0}" if isinstance(leaf, Tensor) else _told(leaf) for leaf in leaves]
    return " ".join(told)


def _told(leaf: Any) -> str:
    return type(leaf).__name__ if isinstance(leaf, (int, float)) and not isinstance(leaf, bool) else repr(leaf)


def written_by_inductor(func: Any) -> bool:
    """Whether compiled code may compute it in another way than by calling it."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.lowering import fallbacks, lowerings

    if func not in select_decomp_table() and (func in fallbacks or func not in lowerings):
        return False
    returns = func._schema.returns
    view = bool(returns) and all(one.alias_info is not None for one in returns)
    random_numbers = torch.Tag.nondeterministic_seeded in func.tags
    return not (view or random_numbers or func._schema.is_mutable or "empty" in str(func) or "fill" in str(func))


def units(only: Sequence[str]) -> list[Unit]:
    """What torch's database comes to, forward and backward, in each dtype."""
    from torch.testing._internal.common_methods_invocations import op_db

    seen: dict[tuple[str, torch.dtype], dict[str, Unit]] = {}
    for op, dtype in itertools.product(op_db, DTYPES):
        if dtype in op.supported_dtypes("cpu"):
            torch.manual_seed(0)
            try:
                note(op, dtype, seen)
            except Exception as error:  # noqa: BLE001 - a sample that does not run has nothing to show
                print(f"{op.name} {dtype}: {type(error).__name__}", file=sys.stderr)
    found = [unit for place in seen.values() for unit in place.values()]
    found += [
        by_number for unit in found for by_number in by_numbers(unit) if not seen.get((by_number.name, unit.dtype))
    ]
    for unit in found:
        widen(unit)
    return [unit for unit in found if not only or any(part in unit.name for part in only)]


NUMBERS = (0.1, 2 * math.pi, 3.0)
"""What the second tensor of an operator is replaced by where it also takes a number."""


def by_numbers(unit: Unit) -> Iterator[Unit]:
    """The same operator by numbers, of which the database has few samples."""
    packet, overload = unit.operator.overloadpacket, unit.operator._overloadname
    other = {"Tensor": "Scalar", "Tensor_Tensor": "Tensor_Scalar", "Tensor_mode": "Scalar_mode"}.get(overload, "")
    if other not in packet.overloads() or len(unit.args) < 2 or not isinstance(unit.args[1], Tensor):
        return
    if [str(argument.type) for argument in getattr(packet, other)._schema.arguments[:2]] == ["Tensor", "number"]:
        for number in NUMBERS:
            args = (unit.args[0].clone(), number, *unit.args[2:])
            yield Unit(getattr(packet, other), unit.dtype, args, dict(unit.kwargs))


def note(op: Any, dtype: torch.dtype, seen: dict[tuple[str, torch.dtype], dict[str, Unit]]) -> None:
    """Run an operator's sample calls, and backward where it has one."""
    grad = dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), SAMPLES):
        with Noted(dtype, seen):
            result = op.op(sample.input, *sample.args, **sample.kwargs)
            outputs = [t for t in tensors(result) if t.requires_grad and t.grad_fn is not None]
            if outputs:
                torch.autograd.backward(outputs, [torch.randn_like(t) for t in outputs])


def widen(unit: Unit) -> None:
    """Give a pointwise operator enough elements for whole vectors and a rest."""
    found = unit.tensors()
    shapes = {tuple(t.shape) for t in found if t.dim()}
    if not unit.pointwise or len(shapes) > 1 or any(not t.numel() for t in found):
        return

    def wide(tensor: Tensor) -> Tensor:
        flat = tensor.reshape(-1)
        return flat[torch.arange(WIDTH, device=flat.device) % flat.numel()].clone() if tensor.dim() else tensor

    unit.args, unit.kwargs = torch.utils._pytree.tree_map_only(Tensor, wide, (unit.args, unit.kwargs))


# ------------------------------------------------------------------------------------------------- the special values


def value_sets(dtype: torch.dtype, pointwise: bool) -> dict[str, list[float]]:
    """The kinds of values that an operator is tried with, by what they are called in the table."""
    info = torch.finfo(dtype)
    extremes = [info.max, info.max / 2, -info.max] if pointwise else []
    large = [1e8, -1e8, 1e4, -2e4, 3e7, 1e20, *extremes] if pointwise else [1e8, -1e8, 1e4, 3e7]
    return {
        "ordinary": [i / 19.4 for i in range(-97, 98)] if pointwise else [],
        "nan": [math.nan],
        "infinite": [math.inf, -math.inf],
        "large": [value for value in large if abs(value) <= info.max],
        "small": [1e-7, -1e-7, 1e-6, 3e-6, 1e-3, -1e-4, info.tiny, info.tiny / 4, -info.tiny / 4],
        "zero": [0.0, -0.0, 1.0],
        "multiples": [0.1 * i for i in (1, 2, 3, 4, 6, 7, 9, 12, 25, 30, 63, 99)] + [0.1, 0.3, 1e5, 3e4],
        "negative": [-0.3, -1.0, -2.5, -7.0, -30.0],
    }


def sprinkled(tensor: Tensor, values: Sequence[float], number: random.Random) -> Tensor:
    """A copy with the values at a third of its places, and close to them at others."""
    if not tensor.is_floating_point() or not values or tensor.numel() == 0:
        return tensor.clone()
    flat = tensor.detach().clone().reshape(-1).tolist()
    for place in number.sample(range(len(flat)), max(1, len(flat) // 3)):
        flat[place] = number.choice(list(values)) * number.choice((1.0, 1.0, 1.0, 0.87, 1.13))
    largest = torch.finfo(tensor.dtype).max
    flat = [value if not math.isfinite(value) else max(-largest, min(largest, value)) for value in flat]
    return torch.tensor(flat, dtype=tensor.dtype, device=tensor.device).reshape(tensor.shape)


def bad_indices(unit: Unit) -> Iterator[tuple[str, list[Tensor]]]:
    """The arguments with an integer tensor of them out of any range."""
    given = unit.tensors()
    for i, tensor in enumerate(given):
        if tensor.dtype in (torch.int64, torch.int32) and tensor.numel():
            for kind, value in (("index beyond", 10**6), ("index negative", -(10**6)), ("index of -1", -1)):
                other = tensor.clone()
                other.reshape(-1)[-1] = value
                yield kind, [*given[:i], other, *given[i + 1 :]]


# ------------------------------------------------------------------------------------------------------- the judgement


def in_float64(unit: Unit, given: Sequence[Tensor], like: Any) -> list[Tensor] | None:
    """What the operator has in double precision, of the same sizes as plain's; None where it has none."""
    wide = [t.double() if t.is_floating_point() else t.clone() for t in given]
    try:
        right = tensors(with_rounded_numbers(unit)(wide))
    except Exception:  # noqa: BLE001 - an operator without float64: plain's answer is all there is
        return None
    fits = len(right) == len(like) and all(a.shape == b.shape for a, b in zip(right, like, strict=True))
    return (
        [a.to(b.dtype).double() if not b.is_floating_point() else a.double() for a, b in zip(right, like, strict=True)]
        if fits
        else None
    )


def with_rounded_numbers(unit: Unit) -> Unit:
    """The same with its numbers as plain takes them, which computes in float32 at most."""
    rounded = torch.utils._pytree.tree_map_only(float, lambda x: float(torch.tensor(x)), (unit.args, unit.kwargs))
    return Unit(unit.operator, unit.dtype, *rounded)


def distance(one: Tensor, right: Tensor) -> Tensor:
    """How far each value is from what is right: 0 where both are the same infinity or no numbers."""
    same = (one == right) | (one.isnan() & right.isnan())
    numbers = one.isfinite() & right.isfinite()
    far = torch.full_like(right, math.inf)
    return torch.where(same, torch.zeros_like(far), torch.where(numbers, (one - right).abs(), far))


def differences(
    unit: Unit, given: Sequence[Tensor], plain: list[Tensor], compiled: list[Tensor], kind: str
) -> Iterator[tuple[str, str]]:
    """The first place at which a compiled result is wrong and plain is not, as a text; and where a zero's sign is."""
    right = in_float64(unit, given, plain)
    swayed = sway(unit, given, plain, right)
    for i, (p, c) in enumerate(zip(plain, compiled, strict=True)):
        if p.shape != c.shape or p.dtype != c.dtype:
            yield kind, f"{tuple(c.shape)} {c.dtype} where plain has {tuple(p.shape)} {p.dtype}"
            return
        r = p.double() if right is None else right[i]
        if not p.is_floating_point():
            yield from shown(kind, p != c, p, c, r)
            continue
        yield from shown(kind, wrong(p, c, r, swayed[i] if swayed else None), p, c, r)
        zero = (p == 0) & (c == 0) & (r == 0)
        signs = (torch.signbit(p) != torch.signbit(c)) & (torch.signbit(p) == torch.signbit(r))
        yield from shown(SIGN, zero & signs, p, c, r)


SIGN = "sign of zero"
"""What a difference in nothing else is called in the table."""


def shown(kind: str, bad: Tensor, plain: Tensor, compiled: Tensor, right: Tensor) -> Iterator[tuple[str, str]]:
    """The first bad place, if there is one."""
    if bool(bad.any()):
        place = bad.reshape(-1).nonzero()[0, 0]
        p, c, r = (float(one.reshape(-1)[place]) for one in (plain, compiled, right))
        yield kind, f"{c!r} where plain has {p!r} and float64 {r!r}"


def sway(unit: Unit, given: Sequence[Tensor], plain: list[Tensor], right: list[Tensor] | None) -> list[Tensor] | None:
    """How far an error of one unit in the last place of each input moves the right result; None for pointwise ones."""
    if unit.pointwise or right is None:
        return None
    torch.manual_seed(1)
    moved = [
        t.double() * (1 + torch.finfo(t.dtype).eps * (2 * torch.rand_like(t, dtype=torch.float64) - 1))
        if t.is_floating_point()
        else t
        for t in given
    ]
    other = in_float64(unit, moved, plain)
    if other is None:
        return None
    shifts = [distance(a, b) for a, b in zip(other, right, strict=True)]
    # What sums many values sways each of its results alike: one that chanced to stay is no steadier than the others.
    return [
        torch.clamp(s.nan_to_num(0, 0, 0), min=float(s[s.isfinite()].max()) if bool(s.isfinite().any()) else 0.0)
        for s in shifts
    ]


def wrong(plain: Tensor, compiled: Tensor, right: Tensor, swayed: Tensor | None) -> Tensor:
    """Where a compiled float is none that plain's accuracy excuses."""
    info = torch.finfo(plain.dtype)
    p, c = plain.double(), compiled.double()
    r = torch.where(right.abs() > info.max, right.to(plain.dtype).double(), right)
    # A result below the smallest normal number may be 0: of float32 a GPU has no such numbers in fast arithmetic.
    least = info.tiny if plain.dtype is not torch.float16 else info.tiny * info.eps
    ulp = torch.clamp(r.abs() * info.eps, min=least).nan_to_num(least, least, least)
    own, theirs = distance(p, r), distance(c, r)
    allowed = FACTOR * torch.maximum(own, torch.maximum(usual(own, r), ULPS * ulp))
    if swayed is not None:
        allowed = allowed + FACTOR * swayed
    same = (p == c) | (p.isnan() & c.isnan())
    return ~same & (theirs > allowed)


def usual(own: Tensor, right: Tensor) -> Tensor:
    """What plain errs by at 99 of 100 places of about the same magnitude as each."""
    sizes = torch.frexp(right.nan_to_num(0, 0, 0))[1]
    found = torch.zeros_like(own)
    for size in sizes.unique().tolist():
        near = own[((sizes - size).abs() <= 1) & own.isfinite()]
        if near.numel():
            found[sizes == size] = torch.quantile(near[:100_000], 0.99)
    return found


BROKEN: dict[str, Callable[[Tensor], Tensor]] = {
    "at nan": lambda x: x.isnan(),
    "beyond 1e6": lambda x: x.abs() > 1e6,
    "below 1e-5": lambda x: (x.abs() < 1e-5) & (x != 0),
    "in the sign of zero": lambda x: x == 0,
    "for negatives": lambda x: x < 0,
}
"""The ways in which an operator is broken on purpose, as the values at which it is."""


def break_result(unit: Unit, given: Sequence[Tensor], results: list[Tensor]) -> list[Tensor]:
    """The results with what a fault of that kind would make of the first one."""
    first, *rest = results
    own = next(t for t in given if t.is_floating_point() and t.numel())
    at = BROKEN[unit.broken](own)
    if at.shape != first.shape:
        at = at.any().expand(first.shape)
    if unit.broken == "in the sign of zero":
        spoiled = torch.where(first == 0, -first, first)
        return [spoiled, *rest]
    spoiled = torch.where(first.isnan(), torch.zeros_like(first), first * 1.5 + 0.25)
    return [torch.where(at, spoiled, first), *rest]


# ---------------------------------------------------------------------------------------------------- asking the units


MENDED = False
"""Whether graphs are compiled as the dispatcher does, which knows the tables."""


def as_mended(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """A backend of torch.compile with the dispatcher's ways around what the tables name."""
    from torch._inductor.compile_fx import compile_fx

    from shapedispatch.functions.compile.operators import decompositions

    options = {"fallback_random": True}
    return compile_fx(gm, examples, config_patches=options, decompositions=decompositions(options))


def compiled_together(asked: Sequence[Unit]) -> Callable[[Sequence[Sequence[Tensor]]], list[list[Tensor]]]:
    """One compiled function for all."""
    torch._dynamo.reset()

    def call(given: Sequence[Sequence[Tensor]]) -> list[Any]:
        return [unit(own) for unit, own in zip(asked, given, strict=True)]

    how: dict[str, Any] = {"backend": as_mended} if MENDED else {"options": {"fallback_random": True}}
    run = torch.compile(call, fullgraph=True, dynamic=False, **how)
    return lambda given: [tensors(one) for one in run([list(own) for own in given])]


def ask(asked: Sequence[Unit], device: str) -> None:
    """Fill in what is wrong with each; raises what compiling or running them raises."""
    run = compiled_together(asked)
    with torch.no_grad():
        for kind in value_sets(torch.float32, True):
            given, plain = [], []
            for unit in asked:
                number = random.Random(f"{unit.name} {kind}")
                values = value_sets(unit.dtype, unit.pointwise)[kind]
                own = [sprinkled(t, values, number) for t in unit.tensors()]
                try:
                    expected = tensors(unit([t.clone() for t in own]))
                except Exception:  # noqa: BLE001 - plain refuses such values: the ordinary ones again, for company
                    own = [t.clone() for t in unit.tensors()]
                    expected = tensors(unit([t.clone() for t in own]))
                given.append(own)
                plain.append(expected)
            got = run([[t.clone() for t in own] for own in given])
            for unit, own, expected, result in zip(asked, given, plain, got, strict=True):
                result = break_result(unit, own, result) if unit.broken else result
                for what, told in differences(unit, own, expected, result, kind):
                    unit.found.setdefault(what, told)


def ask_about_indices(unit: Unit) -> None:
    """Where plain raises at a bad index and compiled code answers, alone: it may end the process."""
    run = None
    for kind, given in bad_indices(unit):
        try:
            unit([t.clone() for t in given])
        except Exception as error:  # noqa: BLE001 - any error of an operator's is what is to be compared
            run = run or compiled_together([unit])
            try:
                run([[t.clone() for t in given]])
            except Exception:  # noqa: BLE001 - as plain
                continue
            unit.found.setdefault(kind, f"it answers where plain raises {type(error).__name__}")


# ------------------------------------------------------------------------------------------------------- the processes


Task = tuple[str, list[int]]
"""What to ask (values or indices), and the numbers of the units."""


def work(task: Task, all_units: Sequence[Unit], device: str) -> dict[int, dict[str, str] | str]:
    """What a process finds out; one that fails in company is asked alone, by halves."""
    what, numbers = task
    asked = [all_units[i] for i in numbers]
    for unit in asked:
        move(unit, device)
    try:
        if what == "values":
            ask(asked, device)
        else:
            ask_about_indices(asked[0])
        return {i: all_units[i].found for i in numbers}
    except Exception as error:  # noqa: BLE001 - whatever stops it is the answer: nothing was found out
        if "device-side assert" in str(error):
            os._exit(1)  # this process cannot use the GPU any more
        if len(numbers) == 1:
            return {numbers[0]: f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
        for unit in asked:
            unit.found.clear()
        half = len(numbers) // 2
        return work((what, numbers[:half]), all_units, device) | work((what, numbers[half:]), all_units, device)


def move(unit: Unit, device: str) -> None:
    """Put the arguments on the device; they are made on the CPU."""

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(device)
        return torch.device(device) if isinstance(leaf, torch.device) else leaf

    unit.args, unit.kwargs = torch.utils._pytree.tree_map(moved, (unit.args, unit.kwargs))


class Worker:
    """A process that is sent tasks. Not a fork of this one: torch's database has looked for a GPU here."""

    def __init__(self, units_file: str, device: str) -> None:
        self.command = [sys.executable, __file__, "--device", device, "--worker", units_file]
        self.command += ["--mended"] if MENDED else []
        self.process: subprocess.Popen[str] | None = None

    def tell(self, task: Task) -> str:
        """What it writes of a task, or how it ended."""
        process = self.process = self.process or subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        told = process.stdout.readline()
        if told:
            return told
        self.process = None
        return f"its process ended with {process.wait()}"

    def end(self) -> None:
        """Let it go."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def serve(units_file: str, device: str) -> None:
    """A worker's life: a task a line in, what was found out a line out."""
    all_units = [
        Unit(operator_of(name), dtype, args, kwargs, broken)
        for name, dtype, args, kwargs, broken in torch.load(units_file, weights_only=False)
    ]
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        signal.alarm(SECONDS)
        task = json.loads(line)
        answers_to.write(json.dumps(work((task[0], task[1]), all_units, device)) + "\n")
        answers_to.flush()


def by_name(value: Any) -> tuple[Any, tuple[str]]:
    """How a memory format is pickled, which torch leaves open."""
    return of_torch, (str(value).removeprefix("torch."),)


def of_torch(name: str) -> Any:
    """What torch has under this name."""
    return getattr(torch, name)


copyreg.pickle(torch.memory_format, by_name)
copyreg.pickle(torch.layout, by_name)


def operator_of(name: str) -> Any:
    """The operator of a name like aten.add.Tensor."""
    return functools.reduce(getattr, name.split("."), torch.ops)


def answers(
    tasks: Sequence[Task], all_units: Sequence[Unit], device: str, jobs: int, until: float
) -> Iterator[tuple[str, int, Any]]:
    """(what, unit, what was told) of each; those whose process ended are asked again by halves."""
    with tempfile.NamedTemporaryFile(suffix=".pt") as file, ThreadPoolExecutor(jobs) as threads:
        torch.save([(unit.name, unit.dtype, unit.args, unit.kwargs, unit.broken) for unit in all_units], file.name)
        idle = [Worker(file.name, device) for _ in range(jobs)]
        everyone = list(idle)
        waiting, running = list(tasks), {}
        while waiting or running:
            if time.monotonic() > until:
                yield from ((what, i, "there was no time to ask it") for what, numbers in waiting for i in numbers)
                waiting.clear()
            while waiting and idle:
                task, worker = waiting.pop(0), idle.pop()
                running[threads.submit(worker.tell, task)] = (task, worker)
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                (what, numbers), worker = running.pop(future)
                idle.append(worker)
                told = future.result()
                if told.startswith("{"):
                    yield from ((what, int(i), found) for i, found in json.loads(told).items())
                elif len(numbers) > 1:
                    half = len(numbers) // 2
                    waiting += [(what, numbers[:half]), (what, numbers[half:])]
                else:
                    yield what, numbers[0], told
        for worker in everyone:
            worker.end()


def prepare() -> None:
    """A core for each process."""
    import torch._inductor.config

    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1


def break_some(all_units: list[Unit], count: int) -> list[Unit]:
    """So many operators, drawn by a fixed seed among those with one float result, each broken in one of five ways."""

    def fits(unit: Unit) -> bool:
        try:
            results = tensors(unit([t.clone() for t in unit.tensors()]))
        except Exception:  # noqa: BLE001 - nothing to break
            return False
        return bool(results) and results[0].is_floating_point() and results[0].numel() > 0

    candidates = {unit.name: unit for unit in all_units if unit.dtype is torch.float32 and fits(unit)}
    number = random.Random(0)
    drawn = [candidates[name] for name in number.sample(sorted(candidates), count)]
    for unit, way in zip(drawn, itertools.cycle(BROKEN), strict=False):
        unit.broken = way
    return drawn


def main() -> None:
    """Ask all, write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", help="a part of an operator's name; may be repeated")
    parser.add_argument("--out", type=Path, help="a directory for the table and the text")
    parser.add_argument("--seconds", type=float, default=math.inf, help="ask no more after so many")
    parser.add_argument("--break", type=int, dest="broken", metavar="N", help="break so many on purpose")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--mended", action="store_true", help="compile as the dispatcher does, with its tables")
    chosen = parser.parse_args()
    global MENDED
    MENDED = chosen.mended
    prepare()
    if chosen.worker:
        serve(chosen.worker, chosen.device)
        return
    begun = time.monotonic()
    asked = units(chosen.only or ())
    if chosen.broken:
        asked = break_some(asked, chosen.broken)
    found, unknown = gathered(asked, chosen.device, chosen.jobs, begun, chosen.seconds)
    if chosen.broken:
        print(report_of_broken(asked, found))
        return
    table = document(
        chosen.device, asked, {name: {d: sorted(kinds) for d, kinds in per.items()} for name, per in found.items()}
    )
    told = document(chosen.device, asked, found) | {
        "unknown": dict(sorted(unknown.items())),
        "command": " ".join(["python", *sys.argv]),
        "seconds": round(time.monotonic() - begun),
    }
    if not chosen.out:
        print(json.dumps(told, indent=1))
        return
    name = f"{chosen.device}_{'_'.join(torch.__version__.split('+')[0].split('.')[:2])}.json"
    (chosen.out / name).write_text(compact(table), "utf-8")
    (chosen.out / f"seen_{name}").write_text(json.dumps(told, indent=1) + "\n", "utf-8")


def gathered(
    asked: list[Unit], device: str, jobs: int, begun: float, seconds: float
) -> tuple[dict[str, dict[str, dict[str, str]]], dict[str, str]]:
    """What is wrong, by operator, dtype and kind; and what could not be found out."""
    numbers = list(range(len(asked)))
    tasks: list[Task] = [("values", numbers[i : i + BATCH]) for i in range(0, len(numbers), BATCH)]
    if device == "cpu":
        first: dict[str, int] = {}
        for i, unit in enumerate(asked):
            if any(t.dtype in (torch.int64, torch.int32) for t in unit.tensors()):
                first.setdefault(unit.name, i)
        tasks += [("indices", [i]) for i in first.values()]
    found: dict[str, dict[str, dict[str, str]]] = {}
    unknown: dict[str, str] = {}
    for count, (what, i, told) in enumerate(answers(tasks, asked, device, jobs, begun + seconds), 1):
        unit = asked[i]
        dtype = str(unit.dtype).removeprefix("torch.") if what == "values" else "any"
        if isinstance(told, str):
            unknown[f"{unit.name} {dtype} {what}"] = told
        elif told:
            place = found.setdefault(unit.name, {}).setdefault(dtype, {})
            place.update({kind: text for kind, text in told.items() if kind not in place})
        if count % 100 == 0:
            print(f"{count}: {time.monotonic() - begun:.0f} s, {len(found)} in the table", file=sys.stderr, flush=True)
    return found, unknown


def document(device: str, asked: Sequence[Unit], operators: dict[str, Any]) -> dict[str, Any]:
    """The table with what it was made of."""
    return {
        "torch": torch.__version__,
        "device": device if device == "cpu" else torch.cuda.get_device_name(),
        "asked": len(asked),
        "operators": dict(sorted(operators.items())),
    }


def compact(table: dict[str, Any]) -> str:
    """An operator a line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(per)}" for name, per in table.pop("operators").items()]
    head = json.dumps(table, indent=1).removesuffix("\n}")
    return head + ',\n "operators": {\n' + ",\n".join(lines) + "\n }\n}\n"


def report_of_broken(asked: Sequence[Unit], found: dict[str, Any]) -> str:
    """How many of the broken ones the table names, and which it does not."""
    missed = [f"{unit.name} ({unit.broken})" for unit in asked if unit.name not in found]
    return f"{len(asked) - len(missed)} of {len(asked)} are named; not: {', '.join(missed) or 'none'}"


if __name__ == "__main__":
    main()
