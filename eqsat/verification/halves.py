"""Half precision that is rounded after every operator, whatever runs it.

ONNX Runtime has next to no half-precision kernels on the CPU, and for bfloat16 not even a way around: it computes float16 in
single precision between casts of its own, and leaves out those between neighbours. What an operator returns then depends on
its neighbours, and no two programs can be compared bit by bit. Casts that a graph spells out are kept. So a graph that
computes in half precision is run as one that computes each operator in single precision and rounds its result: the meaning
that the reference interpreter gives it, too.
"""

from dataclasses import replace

from eqsat.backends.onnx_form import in_form
from eqsat.ir.graph import Attributes, Graph, Node, Subgraph
from eqsat.ir.operator import definition_of, traits_of
from eqsat.ir.types import DType, TensorType, Type
from eqsat.verification.values import copied, is_half, quantises

_CASTS = frozenset({"Cast", "CastLike"})
_NAMING_A_DTYPE = frozenset({"dtype", "output_dtype", "value"})


def computes_in_half(graph: Graph) -> bool:
    """Whether an operator of ``graph`` rounds what it computes to half precision."""
    return any(_rounds(node) and any(is_half(graph, v) for v in node.outputs) for node in graph.nodes)


def in_single(graph: Graph) -> Graph:
    """``graph`` with every operator in single precision and a rounding after each that computes in half precision.

    Inputs and outputs keep their types. Operators of which we do not know what they do stay as they are.
    """
    if not computes_in_half(graph):
        return graph
    written = in_form(graph, "onnxruntime")  # operators that are spelled out when they run are rounded part by part
    writer = _Writer(written)
    for node in written.nodes:
        writer.write(node)
    for value in written.outputs:
        writer.read_half(value)
    return replace(written.with_nodes(writer.nodes, writer.types), devices={})


class _Writer:
    """Appends nodes. A value of half precision exists under its own name, in single precision (``:single``), or both."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.types: dict[str, Type] = {}
        self._halves = {v for v in (*graph.inputs, *graph.constants) if is_half(graph, v)}

    def write(self, node: Node) -> None:
        if _keeps_its_types(self.graph, node):
            for value in node.inputs:
                self.read_half(value)
            self._keep(node)
            return
        inputs = tuple(map(self._read_single, node.inputs))
        form = ":unrounded" if _rounds(node) else ":single"
        halves = [v for v in node.outputs if is_half(self.graph, v)]
        outputs = tuple(self._declare(v, form) if v in halves else v for v in node.outputs)
        self.nodes.append(replace(node, inputs=inputs, outputs=outputs))
        for value in halves if _rounds(node) else ():
            self._round(f"{value}:unrounded", value)

    def _keep(self, node: Node) -> None:
        halves = [v for v in node.outputs if is_half(self.graph, v)]
        self._halves.update(halves)
        if not _rounds(node):
            self.nodes.append(node)
            return
        # The runtime leaves out a cast of its own before one of ours, but not before an operator that takes what it makes.
        self.nodes.append(replace(node, outputs=tuple(f"{v}:kept" if v in halves else v for v in node.outputs)))
        for value in halves:
            self.types[f"{value}:kept"] = self.graph.type_of(value)
            self.nodes.append(Node("Identity", (f"{value}:kept",), (value,)))

    def read_half(self, value: str) -> None:
        """Makes ``value`` available under its own name."""
        if is_half(self.graph, value) and value not in self._halves:
            self._round(f"{value}:single", value)

    def _read_single(self, value: str) -> str:
        if not is_half(self.graph, value):
            return value
        name = f"{value}:single"
        if name not in self.types:
            self._declare(value, ":single")
            self._cast(value, name, DType.FLOAT)
        return name

    def _round(self, source: str, value: str) -> None:
        self._cast(source, value, self.graph.type_of(value).dtype)
        self._halves.add(value)

    def _cast(self, source: str, target: str, dtype: DType) -> None:
        self.nodes.append(Node("Cast", (source,), (target,), Attributes({"to": int(dtype)})))

    def _declare(self, value: str, form: str) -> str:
        self.types[value + form] = TensorType(DType.FLOAT, self.graph.type_of(value).shape)
        return value + form


def _rounds(node: Node) -> bool:
    """Whether ``node`` computes something, rather than copying elements or changing their type."""
    copies = bool(copied(node)) and not node.opaque
    return node.op not in _CASTS and not copies


def _keeps_its_types(graph: Graph, node: Node) -> bool:
    """Whether ``node`` is a cast, names its own element type, or is nothing we could ask for in single precision: quotients in
    float16 that are quantised (in bfloat16 there is no kernel for them).

    Nor is a product by packed weights: its kernel reads constants when it is loaded, and casts in front of them are none.
    """
    product = traits_of(node.key).product
    if node.op in _CASTS or node.opaque or definition_of(node) is None or (product is not None and product.packed):
        return True
    if (
        quantises(node)
        and len(node.inputs) > 1
        and not node.attributes.get("precision")
        and graph.type_of(node.inputs[1]).dtype is DType.FLOAT16
    ):
        return True
    if any(k in _NAMING_A_DTYPE or isinstance(v, Subgraph) for k, v in node.attributes.items()):
        return True
    return any(not isinstance(graph.type_of(v), TensorType) for v in (*node.inputs, *node.outputs) if v)
