"""From the e-graph to one program: the extraction problem, its prices, and the choice."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from eqsat.cost.families import has_blocks
from eqsat.cost.model import VIEW_PRICE, CostModel, Work, at_load, work_of, work_of_node
from eqsat.cost.target import Target
from eqsat.egraph.egraph import EGraph
from eqsat.egraph.encode import Encoding
from eqsat.egraph.enode import LEAVES, TupleType
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.egraph.snapshot import Snapshot
from eqsat.extract import Effort, ExtractionProblem, WorkDone, extract, gap_of
from eqsat.ir.at_load import foldable
from eqsat.ir.operator import Application, traits_of
from eqsat.ir.types import Type
from eqsat.lower.rounded_products import works_of_pairs
from eqsat.rewrite import PROJECTION

Writable = Callable[[str, Sequence[Type | None]], bool]
"""Whether a program may use an operator: its key, and the types of its inputs (``None``: absent)."""


@dataclass(frozen=True)
class Selection:
    """One e-node for each e-class that the program computes; constant classes are not in ``choice``.

    ``choice``: class representative -> handle of the chosen e-node. ``cost_before``: price of the original program under
    the same cost model. ``work``: what the choice took.
    """

    choice: dict[int, int]
    cost: float
    cost_before: float
    lower_bound: float
    method: str
    work: WorkDone = field(default_factory=WorkDone)

    @property
    def gap(self) -> float:
        """How far the cost may be above that of the cheapest program."""
        return gap_of(self.cost, self.lower_bound)


def application_of_enode(egraph: EGraph, handle: int) -> tuple[Application, tuple[Type, ...]]:
    """An e-node as work formulas see it, and the types of its outputs."""
    node, own = egraph.nodes[handle], egraph.full_type_of(handle)
    types, values = input_types(egraph, handle), [egraph.value_of(c) for c in node.children]
    app = Application(node.key, node.attributes, types, values, node.outputs, opaque=node.opaque is not None)
    return app, own.items if isinstance(own, TupleType) else (own,)


def work_of_enode(egraph: EGraph, handle: int) -> Work:
    """The work of an e-node run as a kernel of its own."""
    return work_of(*application_of_enode(egraph, handle))


def input_types(egraph: EGraph, handle: int) -> list[Type | None]:
    """Types of the inputs of an e-node; ``None`` for an absent one and for a tuple."""
    found = [None if c == ABSENT_INPUT else egraph.full_type_of(c) for c in egraph.nodes[handle].children]
    return [None if isinstance(t, TupleType) else t for t in found]


NO_KERNEL = 1e9
"""Price of an operator of the original that the target has no kernel for: dearer than any program of kernels that exist, but
finite, for a graph that nobody can spell out is not lost."""


@dataclass
class Prices:
    """Prices of e-nodes, each as one kernel; leaves and projections cost nothing.

    An operator that a rule made and that is not ``writable``, or that the target has no kernel for, is infinitely dear.
    Operators on what is ``known_at_load`` are computed then, and ``fused`` e-nodes cost what the runtime makes of them. Of as
    many kernels those are better that do not move what is ``recomputed``, constants that the runtime computes at every call: a
    table of bytes is dequantised behind the look-up; and those that the runtime need not make of several operators. E-nodes of
    one operator with equal attributes and types have one price, which is computed once: repeated layers are free.
    """

    egraph: EGraph
    model: CostModel
    target: Target
    writable: Writable
    known_at_load: Collection[int] = frozenset()
    fused: Mapping[int, Work] = field(default_factory=dict[int, Work])
    recomputed: frozenset[int] = frozenset()
    _known: dict[tuple[object, ...], float] = field(default_factory=dict[tuple[object, ...], float])

    def __call__(self, handle: int) -> float:
        egraph = self.egraph
        node = egraph.nodes[handle]
        if node.op == PROJECTION or node.key in LEAVES:
            return 0.0
        if node.key in self.target.unsupported:
            return math.inf if node.rule else NO_KERNEL
        if handle in self.fused:
            return self.model.kernel_cost(self.fused[handle], self.target)
        types = input_types(egraph, handle)
        loaded, moves = self._is_computed_at_load(handle), self._moves_recomputed(handle)
        dequantised = has_blocks(node.key) and egraph.has_operator(node.children[0], "DequantizeLinear")
        key = (
            loaded,
            moves,
            dequantised,
            bool(node.rule),
            node.op,
            node.domain,
            node.attribute_number,
            egraph.full_type_of(handle),
            *types,
        )
        price = self._known.get(key)
        if price is None:
            if node.rule and not self.writable(node.key, types):
                price = self._known[key] = math.inf
                return price
            work = replace(work_of_enode(egraph, handle), dequantised=dequantised)
            price = self.model.kernel_cost(at_load(work) if loaded else work, self.target)
            dearer = moves or node.key in self.target.from_pairs
            price += VIEW_PRICE * (dearer and self.model.unit == "kernels")
            price = self._known[key] = price + self._iterations(handle)
        return price

    def _iterations(self, handle: int) -> float:
        """What a Loop takes for its iterations, where a rule knows what does without: else it is in no choice."""
        egraph, node = self.egraph, self.egraph.nodes[handle]
        bodies = node.attributes.bodies if node.opaque is not None and node.op == "Loop" else ()
        if not bodies or bodies[0].graph is None or node.children[0] == ABSENT_INPUT:
            return 0.0
        results = (handle, *(u for u in egraph.users_of(handle) if egraph.nodes[u].op == PROJECTION))
        limit, body = egraph.value_of(node.children[0]), bodies[0].graph
        if limit is None or limit.size != 1 or all(len(egraph.members(egraph.find(u))) == 1 for u in results):
            return 0.0
        return int(limit.reshape(())) * math.fsum(
            self.model.kernel_cost(work_of_node(body, n), self.target) for n in body.nodes
        )

    def _moves_recomputed(self, handle: int) -> bool:
        node = self.egraph.nodes[handle]
        if not self.recomputed or not traits_of(node.key, node.attributes).moves:
            return False
        return not self.recomputed.isdisjoint(self.egraph.canonical_children(handle))

    def _is_computed_at_load(self, handle: int) -> bool:
        children = [c for c in self.egraph.canonical_children(handle) if c != ABSENT_INPUT]
        return (
            bool(children)
            and all(c in self.known_at_load for c in children)
            and self.egraph.nodes[handle].key not in self.target.kept_at_load
            and foldable(self.egraph.definition(handle))
        )


def select(
    encoding: Encoding,
    snapshot: Snapshot,
    model: CostModel,
    target: Target,
    *,
    effort: Effort | None = None,
    writable: Writable = lambda op, types: True,
) -> Selection:
    """The cheapest program in the snapshot, never dearer than the original.

    ``writable`` says of an operator that the original does not have whether the file to be written may use it. Values
    known at compile time cost nothing: they are computed once, when the program is written.
    """
    egraph = snapshot.egraph
    pairs = works_of_pairs(encoding.graph, target)
    fused = {encoding.node_handles[index]: work for index, work in pairs.items()}
    known = snapshot.known_at_load(target.kept_at_load)
    recomputed = snapshot.known_at_load() - known
    price = Prices(egraph, model, target, writable, known, fused, recomputed)
    number = {cls: i for i, cls in enumerate(snapshot.classes)}
    representatives = list(snapshot.classes)
    node_class: list[int] = []
    node_children: list[tuple[int, ...]] = []
    node_cost: list[float] = []
    node_handle: list[int] = []
    original: dict[int, int] = {}
    for cls, nodes in snapshot.classes.items():
        # Of a class with several e-nodes of the original the first in the order of the program: its inputs were all computed
        # before it, so following first e-nodes never runs in a circle.
        if cls in snapshot.constants or not egraph.nodes[nodes[0].handle].rule:
            original[number[cls]] = len(node_class)
        if cls in snapshot.constants:
            node_class.append(number[cls])
            node_children.append(())
            node_cost.append(0.0)
            node_handle.append(-1)
            continue
        for item in nodes:
            node_class.append(number[cls])
            node_children.append(tuple(dict.fromkeys(number[c] for c in item.children)))
            node_cost.append(price(item.handle))
            node_handle.append(item.handle)
    outputs = [egraph.find(encoding.handles[v]) for v in encoding.graph.outputs]
    roots = tuple(dict.fromkeys(number[c] for c in outputs))
    problem = ExtractionProblem(len(number), node_class, node_children, node_cost, roots)
    result = extract(problem, effort=effort, incumbent=original)
    choice = {representatives[c]: node_handle[n] for c, n in result.choice.items() if node_handle[n] >= 0}
    before = math.fsum(price(handle) for handle in encoding.node_handles)
    return Selection(choice, result.cost, before, result.lower_bound, result.method, result.work)
