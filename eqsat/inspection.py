"""What is in a model, and what the optimiser will not touch, and why."""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from eqsat.cost.model import work_of_node
from eqsat.ir.extents import symbols as symbols_of
from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import Kind, operator
from eqsat.ir.types import TensorType
from eqsat.lower.liveness import peak_memory_bytes


@dataclass(frozen=True)
class Inspection:
    """Counts of a model. ``flops`` and ``bytes`` take every symbolic extent as 32; bytes are those that operators read
    and write when each is a kernel of its own. ``nodes``: name (or first output), operator and
    outputs with their types of each, if asked for."""

    model: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    operators: dict[str, int]
    kernels: int
    flops: float
    bytes: float
    constant_bytes: int
    peak_memory_bytes: int
    symbols: tuple[str, ...]
    opaque: dict[str, int]
    untouched: dict[str, dict[str, int]]
    nodes: tuple[dict[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {**self.__dict__, "symbols": list(self.symbols), "nodes": list(self.nodes)}

    def __str__(self) -> str:
        lines = [
            self.model,
            *(f"  input      {name}: {type}" for name, type in self.inputs.items()),
            *(f"  output     {name}: {type}" for name, type in self.outputs.items()),
            f"  operators  {sum(self.operators.values())} in {len(self.operators)} types; {self.kernels} kernels when each "
            "operator that is no view is one",
            *(f"    {op:<28} {count:>6}" for op, count in self.operators.items()),
            f"  work       {self.flops / 1e9:.3f} G operations, {self.bytes / 1e6:.1f} MB read and written",
            f"  constants  {self.constant_bytes / 1e6:.1f} MB; peak of the rest {self.peak_memory_bytes / 1e6:.1f} MB",
        ]
        if self.symbols:
            lines.append(f"  symbols    {', '.join(self.symbols)} (fix one with --dim NAME=N)")
        for reason, counts in self.untouched.items():
            what = ", ".join(f"{op} x{n}" for op, n in counts.items())
            lines.append(f"  untouched  {what}: {reason}")
        width = max((len(n["name"]) for n in self.nodes), default=0)
        for node in self.nodes:
            computed = ", ".join(f"{value}: {type}" for value, type in node["outputs"].items())
            lines.append(f"  node       {node['name']:<{width}}  {node['operator']} -> {computed}")
        return "\n".join(lines)


def inspect_graph(graph: Graph, name: str, *, nodes: bool) -> Inspection:
    """Counts operators, kernels, work and bytes of ``graph``, and lists its nodes if asked to."""
    flops = moved = 0.0
    kernels = 0
    untouched: dict[str, Counter[str]] = {}
    for node in graph.nodes:
        reason = untouched_reason(node, graph)
        if reason:
            untouched.setdefault(reason, Counter())[node.key] += 1
        work = work_of_node(graph, node)
        flops += work.flops
        if work.kind is not Kind.VIEW:
            kernels += 1
            moved += work.bytes
    shapes = [graph.type_of(v) for v in graph.inputs]
    symbols = {
        s for t in shapes if isinstance(t, TensorType) for d in t.shape or () for s in symbols_of(d) if s[0] != "?"
    }
    distinct = {id(c): c for c in graph.constants.values()}
    return Inspection(
        model=name,
        inputs={v: str(graph.type_of(v)) for v in graph.inputs},
        outputs={v: str(graph.type_of(v)) for v in graph.outputs},
        operators=graph.operator_counts(),
        kernels=kernels,
        flops=flops,
        bytes=moved,
        constant_bytes=sum(c.bytes for c in distinct.values()),
        peak_memory_bytes=peak_memory_bytes(graph),
        symbols=tuple(sorted(symbols)),
        opaque=dict(sorted(Counter(n.key for n in graph.nodes if n.opaque).items())),
        nodes=tuple(map(partial(_described, graph), graph.nodes)) if nodes else (),
        untouched={k: dict(sorted(v.items())) for k, v in sorted(untouched.items())},
    )


def _described(graph: Graph, node: Node) -> dict[str, Any]:
    computed = {v: str(graph.type_of(v)) for v in node.outputs if v}
    return {"name": node.name or next(iter(computed), ""), "operator": node.key, "outputs": computed}


def untouched_reason(node: Node, graph: Graph) -> str:
    """Why no rule will look at a node; empty if rules may."""
    bodies = node.attributes.bodies
    if bodies:
        unread = next((b.unread for b in bodies if b.graph is None), "")
        return f"{node.opaque}, {unread}" if unread else f"{node.opaque}, whose bodies are optimised by themselves"
    if node.opaque:
        return node.opaque
    definition = operator(node.op, node.domain)
    if definition is None:
        return "no definition of the operator"
    if not definition.deterministic:
        return "not deterministic: two equal nodes are two values"
    for value in node.outputs:
        found = graph.type_of(value) if value else None
        if isinstance(found, TensorType) and found.shape is None:
            return "the rank of its output is unknown"
    return ""
