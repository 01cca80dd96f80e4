"""What a graph says about its values before it runs: which depend on the inputs' data, which are whole numbers, and which
are rounded by the node that computes them."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node, Subgraph, bodies_of
from eqsat.ir.types import DType, TensorType


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


MOVEMENT = _set(
    "Identity Reshape Flatten Squeeze Unsqueeze Transpose Slice Gather GatherElements GatherND Tile Expand Split Concat "
    "DepthToSpace SpaceToDepth Pad ReverseSequence CenterCropPad ScatterElements ScatterND Compress Trilu Dropout"
)
"""Operators whose outputs are copies of elements of their inputs (or zeros)."""

_SELECTION = _set("Max Min Clip Relu Where ReduceMax ReduceMin MaxPool GlobalMaxPool TopK Abs Neg Sign")
_WHOLE = _set("Round Floor Ceil OneHot")
_RING = _set("Add Sub Mul MatMul Gemm Sum ReduceSum Conv CumSum")
_EXACT_FLOAT = MOVEMENT | _SELECTION | _WHOLE | _set("Cast CastLike ConstantOfShape Range NonZero EyeLike If Loop Scan")
_QUANTISERS = _set("QuantizeLinear DynamicQuantizeLinear")
_ROUNDED_INTEGER = _QUANTISERS | _set(
    "QLinearMatMul QLinearConv QGemm QLinearAdd QLinearMul QLinearAveragePool QLinearGlobalAveragePool QLinearSigmoid "
    "QLinearSoftmax QLinearLeakyRelu QLinearReduceMean QLinearConcat QLinearWhere"
)
_RANDOM = _set("RandomNormal RandomUniform RandomNormalLike RandomUniformLike Multinomial Bernoulli")


def random_nodes(graph: Graph) -> tuple[Node, ...]:
    """The nodes that draw random numbers (also `Dropout` in training mode), those in bodies of control flow included."""
    found = [n for n in graph.nodes if n.op in _RANDOM or (n.op == "Dropout" and len(n.inputs) > 2 and n.inputs[2])]
    for node in graph.nodes:
        for body in bodies_of(node.attributes):
            found += random_nodes(body.graph) if body.graph is not None else ()
    return tuple(found)


def data_dependent(graph: Graph) -> frozenset[str]:
    """Values that depend on the elements of an input, not only on constants and shapes."""
    found = set(graph.inputs)
    for node in graph.nodes:
        if node.op not in ("Shape", "Size") and not found.isdisjoint(node.inputs):
            found.update(v for v in node.outputs if v)
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
            checked[value] = _holds_whole_numbers(graph.constants[value])
        return checked[value]

    for node in graph.nodes:
        if node.op in _WHOLE or (node.op == "Clip" and is_whole(node.inputs[0])):
            found.update(node.outputs)  # a Clip's bounds are as a rule whole when what it clips is
        elif node.op in (
            "Cast",
            "CastLike",
            "Gather",
            "GatherElements",
            "GatherND",
            "Slice",
            "Reshape",
            "Expand",
            "Tile",
        ):
            if is_whole(node.inputs[0]):
                found.update(node.outputs)
        elif node.op == "Where":
            if is_whole(node.inputs[1]) and is_whole(node.inputs[2]):
                found.update(node.outputs)
        elif node.op in MOVEMENT or node.op in _SELECTION or node.op in _RING:
            scaled = any(node.attributes.get(k, 1.0) != 1.0 for k in ("alpha", "beta"))
            if not scaled and all(map(is_whole, node.inputs)):
                found.update(node.outputs)
    found.discard("")
    return frozenset(found)


def rounded_floats(graph: Graph, whole: Set[str]) -> tuple[str, ...]:
    """Float values that depend on the inputs and that their node rounds, with the float inputs, in topological order:
    where a rewrite of class ``rounding`` may come out an ulp away."""
    live = data_dependent(graph)
    sites = [v for v in graph.inputs if v not in whole and _is_float(graph, v) and not _captured(graph, v)]
    for node in graph.nodes:
        if node.op in _EXACT_FLOAT and not node.opaque:
            continue
        sites += [v for v in node.outputs if v and v in live and v not in whole and _is_float(graph, v)]
    return tuple(sites)


def rounded_integers(graph: Graph, whole: Set[str], *, quantisers: bool) -> tuple[str, ...]:
    """Values that an inexact computation rounds to whole numbers of 8 or 16 bits: the outputs of quantised operators
    and, with ``quantisers``, of `QuantizeLinear` and of `Round` on data."""
    live = data_dependent(graph)
    sites: list[str] = []
    for node in graph.nodes:
        if node.op in _ROUNDED_INTEGER and (quantisers or node.op not in _QUANTISERS):
            sites += [v for v in node.outputs[:1] if v in live and _is_small_integer(graph, v)]
        elif node.op == "Round" and quantisers and node.inputs[0] not in whole:
            sites += [v for v in node.outputs if v in live]
    return tuple(sites)


def _is_float(graph: Graph, value: str) -> bool:
    found = graph.type_of(value)
    return isinstance(found, TensorType) and found.dtype in (DType.FLOAT, DType.FLOAT16, DType.BFLOAT16, DType.DOUBLE)


def _is_small_integer(graph: Graph, value: str) -> bool:
    found = graph.type_of(value)
    return isinstance(found, TensorType) and found.dtype in (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)


def _is_discrete(graph: Graph, value: str) -> bool:
    found = graph.type_of(value)
    return isinstance(found, TensorType) and (found.dtype.is_integer or found.dtype is DType.BOOL)


def _holds_whole_numbers(constant: Constant) -> bool:
    if not constant.dtype.is_float:
        return True
    array = constant.numpy().reshape(-1)
    head = array[:64].astype(np.float64)  # weights fail here, before anything large is read
    return bool(np.all(head == np.rint(head))) and bool(np.all(array == np.rint(array)))


def _captured(graph: Graph, value: str) -> bool:
    return any(
        isinstance(a, Subgraph) and value in a.captures for node in graph.nodes for a in node.attributes.values()
    )
