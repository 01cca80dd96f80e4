"""What a graph says about its values before it runs: which depend on the inputs' data, which are whole numbers, and which
are rounded by the node that computes them."""

from collections.abc import Iterable, Sequence, Set

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import definition_of, traits_of
from eqsat.ir.traits import EVERY
from eqsat.ir.types import HALVES, DType

_SMALL_INTEGERS = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)


def copied(node: Node) -> Sequence[int]:
    """The inputs of which the outputs of a node are copies of elements (or zeros); none if it computes. Dropout: as in use."""
    traits = traits_of(node.key, node.attributes)
    return traits.sources if traits.moves else (0,) if node.op == "Dropout" else ()


def quantises(node: Node) -> bool:
    """Whether a node rounds real numbers to integers."""
    return node.key.startswith(("QLinear", "com.microsoft::QLinear")) or traits_of(node.key).quantises


def random_nodes(graph: Graph) -> tuple[Node, ...]:
    """The nodes that draw random numbers (also `Dropout` in training mode), those in bodies of control flow included."""
    found = [n for n in graph.nodes if not is_deterministic(n)]
    for node in graph.nodes:
        for body in node.attributes.bodies:
            found += random_nodes(body.graph) if body.graph is not None else ()
    return tuple(found)


def is_deterministic(node: Node) -> bool:
    """Whether the same operands give the same results."""
    if node.key == "Dropout":
        return len(node.inputs) < 3 or not node.inputs[2]
    definition = definition_of(node)
    return definition is None or definition.deterministic


def data_dependent(graph: Graph, inputs: Iterable[str] | None = None) -> frozenset[str]:
    """Values that depend on the elements of an input, or of one of these ``inputs``, not only on constants and shapes."""
    found = set(graph.inputs if inputs is None else inputs)
    for node in graph.nodes:
        if node.key not in ("Shape", "Size") and not found.isdisjoint(node.inputs):
            found.update(v for v in node.outputs if v)
    return frozenset(found)


def of_integers(graph: Graph) -> frozenset[str]:
    """Values that integers and truth values alone determine, so that nothing that is rounded moves them."""
    found = {v for v in (*graph.inputs, *graph.constants) if _is_discrete(graph, v)}
    for node in graph.nodes:
        if found.issuperset(v for v in node.inputs if v) and not any(node.attributes.bodies):
            found.update(v for v in node.outputs if v and _is_discrete(graph, v))
    return frozenset(found)


def whole_numbers(graph: Graph) -> frozenset[str]:
    """Values that hold whole numbers whatever the inputs are, in whichever dtype.

    Sums and products of whole numbers are exact in floats as long as they stay small, and rounding them to integers
    truncates: they must not be disturbed.
    """
    found = {v for v in (*graph.types, *graph.constants) if _is_discrete(graph, v)}
    checked: dict[str, bool] = {}

    def is_whole(value: str) -> bool:
        if not value or value in found:
            return True
        if value not in graph.constants:
            return False
        if value not in checked:
            checked[value] = holds_whole_numbers(graph.constants[value])
        return checked[value]

    for node in graph.nodes:
        traits = traits_of(node.key, node.attributes)
        scaled = any(node.attributes.get(k, 1.0) != 1.0 for k in ("alpha", "beta"))
        sources = copied(node) or traits.sources or (EVERY if traits.keeps_whole and not scaled else ())
        if node.key == "Clip" or traits.converts:
            sources = (0,)  # a Clip's bounds are as a rule whole when what it clips is
        if traits.whole or (sources and all(is_whole(v) for i, v in enumerate(node.inputs) if i in sources)):
            found.update(node.outputs)
    found.discard("")
    return frozenset(found)


def folds_inexactly(node: Node) -> bool:
    """Whether a node on constants may come out otherwise where it is folded: each implementation has its own Exp."""
    definition = None if node.opaque else definition_of(node)
    return definition is not None and definition.deterministic and not definition.folds_exactly(node.attributes)


def least_class(nodes: Iterable[Node]) -> Exactness:
    """The strictest class that nodes can be held to where elements lie elsewhere. Functions that are not exact are computed in
    vectors, and in another way for the last elements, which fill none: ONNX Runtime's Log, Sin and Softplus differ by an ulp."""
    by_place = any(traits_of(node.key, node.attributes).operands == 1 and folds_inexactly(node) for node in nodes)
    return Exactness.ROUNDING if by_place else Exactness.EXACT


def rounded_floats(graph: Graph, whole: Set[str]) -> tuple[str, ...]:
    """Float values that depend on the inputs and that their node rounds, with the float inputs, in topological order:
    where a rewrite of class ``rounding`` may come out an ulp away. Of those that are computed from constants alone the ones that
    come out otherwise when they are folded, in another implementation, or in more digits than half precision has, but for what
    extents and indices are cut off from. Nor are those disturbed that extents are made of and integers alone determine, as half
    of another one, rounded up: a part of a graph may begin behind the Shape.
    """
    live = data_dependent(graph)
    counted = _counted(graph, live, indices=True)
    extents = _counted(graph, data_dependent(graph, (v for v in graph.inputs if not _is_discrete(graph, v))))
    captured = {v for node in graph.nodes for body in node.attributes.bodies for v in body.captures}
    sites = [v for v in graph.inputs if v not in whole and v not in captured and _is_float(graph, v)]
    for node in graph.nodes:
        if not node.opaque and not _rounds(node):
            continue
        known = counted.isdisjoint(node.outputs)
        folded = {v for v in node.outputs if known and (folds_inexactly(node) or is_half(graph, v))}
        sites += [
            v
            for v in node.outputs
            if v and ((v in live and v not in extents) or v in folded) and v not in whole and _is_float(graph, v)
        ]
    return tuple(sites)


def is_half(graph: Graph, value: str) -> bool:
    return graph.type_of(value).dtype in HALVES


def _counted(graph: Graph, moved: Set[str], *, indices: bool = False) -> frozenset[str]:
    """Values not among those ``moved`` that extents and bounds are made of, or ``indices``, too: 16 ** 0.5 of 16 patches."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        traits = traits_of(node.key)
        counts = {*traits.counts, *(traits.indices if indices else ())}
        leads_on = node.key not in ("Shape", "Size") and not found.isdisjoint(node.outputs)
        found.update(v for i, v in enumerate(node.inputs) if v not in moved and (leads_on or i in counts))
    return frozenset(found)


def rounded_integers(graph: Graph, whole: Set[str], *, quantisers: bool) -> tuple[str, ...]:
    """Values that an inexact computation rounds to whole numbers of 8 or 16 bits: the outputs of quantised operators
    and, with ``quantisers``, of `QuantizeLinear` and of `Round` on data."""
    live = data_dependent(graph)
    sites: list[str] = []
    for node in graph.nodes:
        if quantises(node) and (quantisers or not node.key.endswith("QuantizeLinear")):
            sites += [v for v in node.outputs[:1] if v in live and graph.type_of(v).dtype in _SMALL_INTEGERS]
        elif node.key == "Round" and quantisers and node.inputs[0] not in whole:
            sites += [v for v in node.outputs if v in live]
    return tuple(sites)


def _rounds(node: Node) -> bool:
    """Whether a node computes floats that it rounds. Conversions do not count: what they make of a number they all make."""
    traits = traits_of(node.key, node.attributes)
    return not (copied(node) or traits.unrounded or traits.converts or node.attributes.bodies)


def _is_float(graph: Graph, value: str) -> bool:
    return graph.type_of(value).dtype in (DType.FLOAT, *HALVES, DType.DOUBLE)


def _is_discrete(graph: Graph, value: str) -> bool:
    dtype = graph.type_of(value).dtype
    return dtype.is_integer or dtype is DType.BOOL


def holds_whole_numbers(constant: Constant) -> bool:
    if not constant.dtype.is_float:
        return True
    array = constant.numpy().reshape(-1)
    head = array[:64].astype(np.float64)  # weights fail here, before anything large is read
    return bool(np.all(head == np.rint(head))) and bool(np.all(array == np.rint(array)))
