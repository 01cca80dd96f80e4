"""What the runtime of a target makes of a program when it loads it.

Operators on constants are computed then, and launch nothing. One is not: ONNX Runtime leaves DequantizeLinear where it is, for
products on integers. `eqsat.lower.rounded_products`, `requantised_weights` and `fused_pairs` say what it makes of such products,
and of others.

ONNX Runtime also makes one operator of an Add of two values of the same three axes and the LayerNormalization that alone reads
it: in 1.27 to 1.29 a faster one, from 1.30 on one that takes six times as long (510 us of 128 rows of 768, 75 apart). So the Add
becomes a Sum of two, which adds up the same, and which it leaves alone.
"""

from collections.abc import Collection
from dataclasses import replace

from eqsat.cost.target import Target
from eqsat.ir.at_load import computed_at_load, normalised_sums
from eqsat.ir.graph import Graph
from eqsat.ir.operator import Kind, kind_of
from eqsat.lower.fused_pairs import with_pairs_apart
from eqsat.lower.program import Program
from eqsat.lower.requantised_weights import with_weights_kept
from eqsat.lower.rounded_products import without_new_pairs

_DEQUANTIZE = "DequantizeLinear"
_NORM_OF_SUM = "com.microsoft::SkipLayerNormalization"


def as_loaded(program: Program, original: Graph, target: Target, fuses_slowly: Collection[str]) -> Program:
    """The program with nothing that the runtime would make another function of, or one of the operators that it
    ``fuses_slowly``, and with kernels that launch nothing, because they are computed when it is loaded, as views."""
    if _DEQUANTIZE in target.kept_at_load:
        program = with_weights_kept(without_new_pairs(program, original), original, target)
        program = with_pairs_apart(program, original, fuses_slowly)
    if _NORM_OF_SUM in fuses_slowly:
        program = replace(program, graph=_with_sums_apart(program.graph))
    known = computed_at_load(program.graph, target.kept_at_load)
    kernels = tuple(replace(k, template="view") if known.issuperset(k.nodes) else k for k in program.kernels)
    return replace(program, kernels=kernels)


def launches(graph: Graph, target: Target) -> int:
    """Operators of a graph that the target runs on every call, views aside: kernels, where each is one operator."""
    known = computed_at_load(graph, target.kept_at_load)
    return sum(kind_of(n) is not Kind.VIEW and i not in known for i, n in enumerate(graph.nodes))


def _with_sums_apart(graph: Graph) -> Graph:
    fused = normalised_sums(graph)
    if not fused:
        return graph
    return graph.with_nodes([replace(n, op="Sum") if n.outputs[0] in fused else n for n in graph.nodes])
