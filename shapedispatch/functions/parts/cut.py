"""Where a graph is cut so that a backward may begin at any of its results.

Autograd calls a function's backward with a gradient for each of its results. Plain's operators pass over what nobody
asks of them, so that a backward may begin at any of a call's results, and at one after the other; and what comes back
to a result that another is made of can be seen there. A part may have several results (see `Way`), and there is a
`joint.Joint` around its code. Where each has one, parts do what plain's operators do. It is cut at each value, too,
that several parts need. What costs nothing, a view or a size, every part makes for itself; and what needs no gradient
is made by the first part, where all of it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import in_a_line
from ...interpreter.failures import what_fails
from ..checks.graph_check import state_kept
from .ends import leaf_of, reached
from .plan import MadeOf, Plan
from .regions import OUTSIDE, Mover, is_switch, regions
from .sources import behind, costs_nothing, has_gradient, is_item, maker, sources_of

__all__ = ["MOST_PARTS", "Cut", "Way", "Whole", "cut"]

MOST_PARTS = 64
"""Each is compiled by itself, and costs the host some microseconds a call."""
FIRST = 0
"""The part that needs no gradient, and nothing of another's."""


LARGE = 4
"""Results that others are made of are small where they are at most one part in so many of all that a part sees."""


class Way(Enum):
    """Which results have one backward: those made of the same inputs, of the same inputs and results, or none."""

    INPUTS = 1
    ALIKE = 2
    APART = 3


class Whole(Exception):
    """A graph cannot be cut; the message is why."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The parts as graphs, what the inputs of each look like, and how they run."""

    parts: tuple[GraphModule, ...]
    inputs: tuple[tuple[Any, ...], ...]
    plan: Plan
    made_of: tuple[MadeOf | None, ...]
    """Of each that makes several tensors that have a gradient."""


def cut(gm: GraphModule, examples: Sequence[Any], way: Way = Way.APART) -> Cut:
    """The parts of Dynamo's graph; raises `Whole`.

    ``examples`` are what it is called with: fake tensors, and sizes. Those that Dynamo has noted go first, of which it
    knows which sizes vary. What its results look like is noted as Dynamo does: another process has a bare graph.
    """
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    examples = [node.meta.get("example_value", one) for node, one in zip(inputs, examples, strict=True)]
    results: Any = gm.graph.output_node().args[0]
    if any(isinstance(module, GraphModule) for module in gm.modules() if module is not gm):
        raise Whole("there are graphs in its graph")
    values, ordered, written = _seen(gm, examples)
    for node in (*inputs, *results):
        if isinstance(node, Node):
            node.meta["example_value"] = values[node]
    values = {node: value for node, value in values.items() if not is_switch(node)}
    _refuse_what_is_not_cut(values, results, written)
    ends: Sequence[Node] = () if way is Way.INPUTS else results
    split = _Split(values, inputs, results, sources_of(values, {*ends}) if way is not Way.APART else None)
    if way is not Way.APART and ordered:
        raise Whole("its operators may have to run anew, and would draw other random numbers, or act once more")
    _refuse_another_order(ordered, split)
    return _in_parts(gm, split)


# ------------------------------------------------------------------------------------------------------ what it runs


class _Ordered(TorchDispatchMode):
    """Notes which nodes run what must keep its order: what draws random numbers, and operators of whom nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.node: Node | None = None
        self.found: dict[Node, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = func.namespace in ("aten", "prim", "prims")
        if self.node is not None and (not known or torch.Tag.nondeterministic_seeded in func.tags):
            self.found[self.node] = None
        return func(*args, **(kwargs or {}))


class _Noting(Interpreter):
    """Runs a graph, notes the value of each node, and says which is running."""

    def __init__(self, gm: GraphModule, ordered: _Ordered) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.ordered, self.values = ordered, dict[Node, Any]()
        self.versions: dict[Node, list[int]] = {}
        """As each was made: an operator may write what it makes itself."""

    def run_node(self, n: Node) -> Any:
        """See `Interpreter.run_node`."""
        self.ordered.node = n
        self.values[n] = super().run_node(n)
        self.versions[n] = _versions(self.values[n])
        return self.values[n]

    def written(self) -> list[Node]:
        """Those whose values were written by others."""
        return [node for node, versions in self.versions.items() if _versions(self.values[node]) != versions]


def _versions(value: object) -> list[int]:
    return [one._version for one in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(one, Tensor)]


def _seen(gm: GraphModule, examples: Sequence[Any]) -> tuple[Mapping[Node, Any], Sequence[Node], Sequence[Node]]:
    """What each node of a graph gives, which of them must keep their order, and which are written."""
    ordered = _Ordered()
    noting = _Noting(gm, ordered)
    _run_on_fakes(noting.run, examples, ordered)
    return noting.values, [*ordered.found], noting.written()


def _run_on_fakes(run: Callable[..., Any], examples: Sequence[Any], seen_by: Any = None) -> Any:
    """With a mode, if that is given, that sees each operator before it is looked up what that gives of fake tensors."""
    modes = {id(mode): mode for one in examples if (mode := getattr(one, "fake_mode", None)) is not None}
    if len(modes) != 1:
        raise Whole("what it is called with cannot be made up")
    (mode,) = modes.values()
    try:
        with state_kept(), mode, seen_by or nullcontext():
            return run(*examples)
    except what_fails() as error:  # a graph is judged here, and the reason kept
        raise Whole(f"what it runs cannot be seen: {in_a_line(error)}") from None


# ------------------------------------------------------------------------------------------------ what belongs where


class _Split:
    """Which part makes each value, and which parts need it; with ``sources``, one makes all results of the same."""

    def __init__(
        self,
        values: Mapping[Node, Any],
        inputs: Sequence[Node],
        results: Sequence[Node],
        sources: Mapping[Node, frozenset[Node]] | None = None,
    ) -> None:
        self.values, self.inputs, self.results, self.sources = values, [*inputs], [*results], sources
        self.parts_of: dict[frozenset[Node], int] = {}
        """Which part makes the results of these sources."""
        self.part: dict[Node, int] = {}
        """Of what one part makes, which that is."""
        self.needed: dict[Node, set[int]] = {}
        """Which parts need what is made here, or is made by each of them."""
        self.cuts: dict[int, list[Node]] = {FIRST: []}
        """What each part makes for others, or as a result."""
        asked = {maker(node, values) for node in results}
        for node in reversed([*values]):
            if node.op not in ("placeholder", "output"):
                self._place(node, node in asked)
        self.place = {node: at for at, node in enumerate(values)}
        for made in self.cuts.values() if sources is not None else ():
            made.sort(key=self.place.__getitem__)  # as plain makes them: so do hooks of results run

    def _place(self, node: Node, is_result: bool) -> None:
        users = [{self.part[user]} if user in self.part else self.needed.get(user, set()) for user in node.users]
        needed = self.needed[node] = set[int]().union(*users)
        if not is_result and (costs_nothing(node, self.values) or is_item(node, self.values)):
            return
        if not is_result and len(needed) < 2:
            self.part.update(zip([node], needed, strict=False))  # nobody needs what has no users
            return
        self.part[node] = FIRST if self._needs_no_gradient(node) else self._part_of(node, is_result)
        made = [node] if isinstance(self.values[node], Tensor) else [one for one in node.users if self._is_asked(one)]
        if not all(one is node or is_item(one, self.values) for one in made):
            raise Whole(f"what {node.name} makes at once goes elsewhere together")
        if self.sources is None and sum(has_gradient(self.values[one]) for one in made) > 1:
            raise Whole(f"{node.name} makes several results that have a gradient at once")
        self.cuts.setdefault(self.part[node], []).extend(made)

    def _part_of(self, node: Node, is_result: bool) -> int:
        """Another one for each, or that of its sources: of a value that is no result, if that needs it."""
        another = len(self.cuts)
        if self.sources is None:
            return another
        if is_result:
            return self.parts_of.setdefault(self.sources[node], another)
        part = self.parts_of.get(self.sources[node])
        return another if part is None or part not in self.needed[node] else part

    def _is_asked(self, item: Node) -> bool:
        """Whether one of several values that a node makes at once is a result, or another part's."""
        return bool(self.needed[item]) or item in self.results

    def _needs_no_gradient(self, node: Node) -> bool:
        """Whether nothing of it is made of what has a gradient, but for inputs."""
        return not any(has_gradient(self.values[one]) for one in (node, *behind(node)) if one.op != "placeholder")

    def order(self) -> list[int]:
        """Parts as they run: each after those whose values it needs."""
        others = sorted((part for part in self.cuts if part != FIRST), key=lambda part: self.place[self.cuts[part][0]])
        order = [*([FIRST] if self.cuts[FIRST] else []), *others]
        if self.sources is None:
            return order
        sorter = TopologicalSorter[int](dict.fromkeys(order, ()))
        for part, made in self.cuts.items():
            for other in {one for node in made for one in self.needed[node]} - {part}:
                sorter.add(other, part)
        try:
            return [*sorter.static_order()]
        except CycleError:
            raise Whole("what some of its results are made of is made of others") from None

    def body(self, part: int, given: set[Node]) -> list[Node]:
        """What a part runs, in order; ``given`` are the values that it need not make."""
        mine = [node for node in self.values if self.part.get(node) == part]
        shared = [node for node, needed in self.needed.items() if node not in self.part and part in needed]
        asked = [node for node in self.cuts[part] if node not in self.part]
        chosen = {*mine, *(node for node in (*shared, *asked) if node not in given)}
        return [node for node in self.values if node in chosen]


# --------------------------------------------------------------------------------------------------- what is not cut


def _refuse_what_is_not_cut(values: Mapping[Node, Any], results: Sequence[object], written: Sequence[Node]) -> None:
    """Where the order of operations is more than that of the values that they make."""
    for node in written:
        raise Whole(f"what {node.name} makes is written")
    if not all(isinstance(node, Node) and isinstance(values[node], Tensor) for node in results):
        raise Whole("not all of its results are tensors")
    for node, value in values.items():
        made = [*value] if isinstance(value, (tuple, list)) else [value]
        if not all(isinstance(one, (Tensor, int, float, torch.SymInt, torch.SymFloat)) for one in made):
            raise Whole(f"{node.name} does something else than to compute tensors and sizes")
        if not all(_is_known(size) for one in made for size in (one.shape if isinstance(one, Tensor) else [one])):
            raise Whole(f"the sizes of {node.name} depend on values")


def _is_known(size: object) -> bool:
    """Whether it is made of sizes of the call."""
    return not isinstance(size, (torch.SymInt, torch.SymFloat)) or size.node.has_hint()


def _refuse_another_order(ordered: Sequence[Node], split: _Split) -> None:
    """Where parts would draw random numbers, or call an operator of the user's, in another order than the whole."""
    places = {part: at for at, part in enumerate(split.order())}
    found = [places.get(split.part.get(node, -1), -1) for node in ordered]
    if found != sorted(found) or -1 in found:
        raise Whole("its parts would draw random numbers, or call operators of the user's, in another order")


# ------------------------------------------------------------------------------------------------------ the parts


def _in_parts(gm: GraphModule, split: _Split) -> Cut:
    order = split.order()
    if len(order) > MOST_PARTS:
        raise Whole(f"it takes {len(order)} parts")
    numbers = [node for node in split.inputs if not isinstance(split.values[node], Tensor)]
    known, steps, parts, inputs, givens = [*split.inputs], [], [], [], list[list[Node]]()
    ends: list[list[frozenset[Node]]] = []
    for part in order:
        body = split.body(part, set(known))
        taken = {one for node in body for one in node.all_input_nodes if one not in body}
        taken |= {node for node in split.cuts[part] if node not in body}
        given = [*numbers, *(node for node in known if node in taken and node not in numbers)]
        steps.append(([known.index(node) for node in given], len(split.cuts[part])))
        parts.append(_graph(gm, given, body, split.cuts[part], split.values))
        givens.append(given)
        inputs.append(tuple(split.values[node] for node in given))
        ends.append(_reached(parts[-1], given, split.values) if split.sources is not None else [])
        known += split.cuts[part]
    plan = Plan.of(len(split.inputs), steps, [known.index(node) for node in split.results])
    nearest = sources_of(split.values, {*split.results}) if split.sources is not None else {}
    made_of = [
        _made_of(given, each, [nearest[node] for node in split.cuts[part]], split.cuts[part]) if len(each) > 1 else None
        for part, given, each in zip(order, givens, ends, strict=True)
    ]
    _refuse_what_has_no_one_backward(split, order, made_of, ends)
    for part, looks, each in zip(order, inputs, made_of, strict=True):
        if each is not None:
            _refuse_what_costs_zeros(each, looks, [split.values[node] for node in split.cuts[part]])
    return Cut(tuple(parts), tuple(inputs), plan, tuple(made_of))


def _reached(part: GraphModule, given: Sequence[Node], values: Mapping[Node, Any]) -> list[frozenset[Node]]:
    """Of each result of a part that has a gradient, the inputs to which a backward comes from there."""
    leaves = [leaf_of(values[node]) for node in given]
    return [frozenset(given[i] for i in each) for each in reached(_run_on_fakes(part.forward, leaves), leaves)]


def _made_of(
    given: Sequence[Node], ends: Sequence[frozenset[Node]], nearest: Sequence[frozenset[Node]], made: Sequence[Node]
) -> MadeOf:
    """Of what a part's results are made: a backward from each ends at these inputs, and comes to these first."""
    if any(one != ends[0] for one in ends):
        raise Whole("its results are made of different inputs")
    others = [tuple(place for place, node in enumerate(made) if node in each) for each in nearest]
    return MadeOf(tuple(node in ends[0] for node in given), tuple(others))


def _refuse_what_costs_zeros(made_of: MadeOf, given: Sequence[object], made: Sequence[object]) -> None:
    """Where a result that others are made of is large: code adds zeros where nothing but what they give comes to it."""
    inner = sum(_bytes(made[place]) for place in {*chain(*made_of.results)})
    if inner * LARGE > sum(map(_bytes, (*given, *made))):
        raise Whole("a result that others are made of is large")


def _bytes(value: object) -> int:
    if not isinstance(value, Tensor):
        return 0
    sizes: Sequence[Any] = value.shape
    return prod(int(getattr(getattr(one, "node", None), "hint", one)) for one in sizes) * value.element_size()


def _refuse_what_has_no_one_backward(
    split: _Split, order: Sequence[int], made_of: Sequence[MadeOf | None], ends: Sequence[Sequence[frozenset[Node]]]
) -> None:
    """Where a part makes a value with a gradient for others that take none for it, so that no backward begins at all.

    And where two threads of autograd's would see to its results.
    """
    taken = frozenset[Node]().union(*(each for part in ends for each in part))
    for part, several in zip(order, made_of, strict=True):
        made = split.cuts[part] if several is not None else ()
        if len({split.values[node].device for node in made}) > 1:
            raise Whole("its results are on several devices")
        for node in made:
            if node not in split.results and has_gradient(split.values[node]) and node not in taken:
                raise Whole(f"what takes {node.name} has no gradient for it")


def _graph(
    gm: GraphModule, given: Sequence[Node], body: Sequence[Node], made: Sequence[Node], values: Mapping[Node, Any]
) -> GraphModule:
    """A graph of its own of these nodes, which is called with what is ``given`` and gives what is ``made``."""
    graph, copies, where = Graph(), dict[Node, Node](), regions(gm)
    mover = Mover(graph)
    for node in given:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = {"example_value": values[node]}
    for node in body:
        mover.to(where[node])
        copies[node] = graph.node_copy(node, copies.__getitem__)
    mover.to(OUTSIDE)
    graph.output(tuple(copies[node] for node in made))
    return GraphModule(gm, graph)
