"""Products on which ONNX Runtime ends the process at its highest level.

As of 1.24 up to 1.32, on x86: its fusion of Transpose into MatMul first moves a Cast between the two before the Transpose, and
then leaves the graph half changed if it cannot fuse; what optimises layouts for convolutions next reads a null pointer
(microsoft/onnxruntime#28392). That is so if

- an operand of MatMul or FusedMatMul is a Cast of a Transpose, or a Transpose in half precision, which gets such a Cast for want
  of a kernel of the product,
- the Transpose moves the first axis behind all others but the last, or behind all others,
- and the operands differ in rank.

With operands of one rank it fuses, or leaves them alone. So where the ranks differ, the operand with fewer axes gets axes of one
place in front, which broadcasting would put there.
"""

from collections.abc import Mapping

from eqsat.backends.written import Written
from eqsat.ir.graph import Attributes, Graph, Node
from eqsat.ir.types import HALVES, TensorType

_PRODUCTS = frozenset({"MatMul", "com.microsoft::FusedMatMul"})
_LEAST_AXES = 3


def crashing_products(graph: Graph) -> tuple[int, ...]:
    """The nodes on which ONNX Runtime ends the process: see the head of the module."""
    makers = graph.producers()
    return tuple(index for index, node in enumerate(graph.nodes) if _crashes(graph, makers, node))


def give_one_rank(written: Written) -> None:
    """Operands of one rank where ONNX Runtime would end the process otherwise."""
    graph = written.old
    crashing = frozenset(crashing_products(graph))
    for index, node in enumerate(written.each()):
        if index not in crashing:
            continue
        which, widened = _shorter(graph, node)
        shorter = node.inputs[which]
        axes = range((widened.rank or 0) - (_tensor(graph, shorter).rank or 0))
        value = written.value("Unsqueeze", shorter, tuple(axes), type=widened)
        written.put(node, node, *(value if i == which else v for i, v in enumerate(node.inputs)))


def _shorter(graph: Graph, product: Node) -> tuple[int, TensorType]:
    """The operand with fewer axes, and its type with as many as the other has."""
    left, right = (_tensor(graph, v) for v in product.inputs[:2])
    which, shorter, rank = (0, left, right.rank) if (left.rank or 0) < (right.rank or 0) else (1, right, left.rank)
    shape = shorter.shape or ()
    return which, TensorType(shorter.dtype, ((1,) * ((rank or 0) - len(shape)) + shape))


def _tensor(graph: Graph, value: str) -> TensorType:
    found = graph.type_of(value)
    assert isinstance(found, TensorType)
    return found


def _crashes(graph: Graph, makers: Mapping[str, Node], node: Node) -> bool:
    if node.key not in _PRODUCTS or node.opaque:  # such as one without operands
        return False
    operands = node.inputs[:2]
    ranks = [graph.type_of(v).rank or 0 for v in operands]
    return min(ranks) > 1 and len(set(ranks)) > 1 and any(_is_moved(graph, makers, v) for v in operands)


def _is_moved(graph: Graph, makers: Mapping[str, Node], value: str) -> bool:
    maker = makers.get(value)
    if maker is not None and maker.key == "Cast":
        maker = makers.get(maker.inputs[0])
    elif _tensor(graph, value).dtype not in HALVES:
        return False
    return maker is not None and maker.key == "Transpose" and _first_axis_to_the_end(maker.attributes)


def _first_axis_to_the_end(attributes: Attributes) -> bool:
    perm: tuple[int, ...] = tuple(attributes.get("perm", ()))
    last = len(perm) - 1
    return len(perm) >= _LEAST_AXES and perm in ((*range(1, last), 0, last), (*range(1, last + 1), 0))
