"""Whether what a rule adds can be computed where what it started from can: without a kernel for its types an equation is idle."""

from collections.abc import Iterator

from eqsat.backends.onnxruntime_kernels import may_run
from eqsat.egraph.egraph import EGraph
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.ir.schema_operator import takes_types
from eqsat.ir.types import DType, TensorType, Type

_DEPENDS_ON_DEVICE = frozenset((DType.FLOAT16, DType.BFLOAT16, DType.DOUBLE))
"""Types with kernels on some devices only: one that lacks them says nothing about a rule."""


def missing_kernels(egraph: EGraph, given: int) -> Iterator[str]:
    """E-nodes, beside the first ``given`` ones, whose operator does not take the types of their operands.

    Nothing if that is so of one of the first, too.
    """
    if all(_runs(egraph, handle) for handle in range(given)):
        for handle in range(given, len(egraph.nodes)):
            if not _runs(egraph, handle):
                types = ", ".join(map(str, _operand_types(egraph, handle)))
                yield f"{egraph.nodes[handle].key} has no kernel for ({types})"


def _runs(egraph: EGraph, handle: int) -> bool:
    if egraph.definition(handle) is None:
        return True
    types = _operand_types(egraph, handle)
    if not takes_types(egraph.nodes[handle].key, types):
        return False
    known = [t for t in types if isinstance(t, TensorType)]
    if any(t.dtype in _DEPENDS_ON_DEVICE for t in known):
        return True
    return may_run(egraph.nodes[handle].key, types, computed_ahead=egraph.is_constant(handle))


def _operand_types(egraph: EGraph, handle: int) -> list[Type | None]:
    children = egraph.canonical_children(handle)
    return [None if child == ABSENT_INPUT else egraph.type_of(child) for child in children]
