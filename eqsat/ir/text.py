"""Short text form of a graph, for people and for golden tests."""

from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node, RawAttribute, Subgraph
from eqsat.ir.types import is_sequence


def graph_to_text(graph: Graph) -> str:
    """One line per input, node and output; small constants are written out.

    >>> from eqsat.ir.build import GraphBuilder
    >>> b = GraphBuilder("double")
    >>> x = b.input("x", "float32", (2,))
    >>> print(b.finish({"y": b.op("Mul", x, b.constant(2.0, "float32"))}))
    graph double(x: float32[2]) -> (y: float32[2])
      y: float32[2] = Mul(x, 2.0)
    """
    head = ", ".join(f"{v}: {graph.type_of(v)}" for v in graph.inputs)
    tail = ", ".join(f"{v}: {graph.type_of(v)}" for v in graph.outputs)
    return "\n".join([f"graph {graph.name}({head}) -> ({tail})", *(f"  {node_to_text(n, graph)}" for n in graph.nodes)])


def node_to_text(node: Node, graph: Graph) -> str:
    """``y: float32[2] = Op(inputs; attribute=value)``."""
    results = ", ".join(f"{v}: {graph.type_of(v)}" if v else "_" for v in node.outputs)
    operands = ", ".join(_operand(v, graph) for v in node.inputs)
    attributes = ", ".join(f"{k}={_attribute(v)}" for k, v in node.attributes.items())
    body = operands + (f"; {attributes}" if attributes else "")
    return f"{results} = {node.key}({body})"


def _operand(value: str, graph: Graph) -> str:
    if not value:
        return "_"
    constant = graph.constants.get(value)
    if constant is None or constant.size > 8:
        return value
    array = constant.numpy()
    return str(array.item()) if array.ndim == 0 else str(array.tolist())


def _attribute(value: object) -> str:
    if is_sequence(value):
        return "[" + ", ".join(_attribute(v) for v in value) + "]"
    if isinstance(value, Subgraph):
        return "<body>"
    if isinstance(value, RawAttribute):
        return "<raw>"
    if isinstance(value, Constant):
        return str(value.type)
    return str(value)
