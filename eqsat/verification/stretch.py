"""Larger inputs for regions that saturate.

A clip that a rewrite has lost shows only where a value leaves the range, and with random inputs few do. So a region is
also run on a boundary value made `FACTOR` times larger, and compared with what the original's own nodes make of that. This
is fair only where nothing can be known about the value: it is the region's one input (two inputs could be related), and a
matrix product, a convolution, a normalisation or a sum with one of these computes it, on which no bound is proved. Regions of
class ``rounding`` that overflow then are left out.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import traits_of
from eqsat.ir.types import HALVES, DType
from eqsat.verification.counterparts import Counterpart
from eqsat.verification.regions import Region
from eqsat.verification.values import copied, quantises

FACTOR = 16
"""A power of two: whole numbers stay whole, and float roundings scale along."""

STRETCHED = f", on an input made {FACTOR} times larger"


class Stretch:
    """Which regions may be run on larger inputs."""

    def __init__(self, original: Graph, origin: Mapping[str, str]) -> None:
        self._graph = original
        self._origin = origin
        self._producers = original.producers()
        self._known: dict[str, bool] = {v: _is_plain_float(original, v) for v in original.inputs}

    def applies(self, region: Region, counterpart: Counterpart, result: Graph) -> bool:
        """Whether ``region`` has one input, the one that the original's own nodes read, about which nothing is known, and may
        saturate."""
        if len(counterpart.inputs) != 1 or not counterpart.outputs:
            return False
        if [self._origin[v] for v in region.inputs] != [*counterpart.inputs]:
            return False  # of equal values the region reads another one, which this is not made larger with
        nodes = [*counterpart.nodes, *(result.nodes[i] for i in region.nodes)]
        if not any(quantises(node) or traits_of(node.key).clamps for node in nodes):
            return False
        if not _is_plain_float(self._graph, counterpart.inputs[0]) or not self._casts_safely(counterpart):
            return False
        return self._is_unbounded(counterpart.inputs[0])

    def _is_unbounded(self, value: str) -> bool:
        chain: list[str] = []
        while value not in self._known:
            chain.append(value)
            node = self._producers.get(value)
            following = None if node is None else self._decided_by(node)
            if node is None or following is None:
                self._known[value] = node is not None and not node.domain and self._has_no_bound(node)
            else:
                value = following
        for passed in chain:
            self._known[passed] = self._known[value]
        return self._known[value]

    def _has_no_bound(self, node: Node) -> bool:
        """A sum has a bound if its operands have: what is dequantised has one, and rewrites make use of it."""
        sums = node.key in ("Add", "Sub") and not any(v in self._graph.constants for v in node.inputs)
        traits = traits_of(node.key)
        unbounded = bool(traits.product and traits.affine) or node.key == "LayerNormalization"
        return (sums and any(self._is_unbounded(v) for v in node.inputs)) or unbounded

    def _decided_by(self, node: Node) -> str | None:
        """The input of ``node`` that is unbounded exactly if its output is; ``None`` where there is no such input."""
        traits = traits_of(node.key, node.attributes)
        if node.key in ("Round", "Neg") or len(copied(node)) == 1:
            return node.inputs[0]
        if traits.operands == 2 and traits.affine:
            dynamic = [i for i, v in enumerate(node.inputs) if v not in self._graph.constants]
            return node.inputs[dynamic[0]] if len(dynamic) == 1 and dynamic[0] in traits.affine else None
        return None

    def _casts_safely(self, counterpart: Counterpart) -> bool:
        """Whether every cast to an integer comes straight after a clip: beyond the range it would be undefined."""
        clamped = {v for node in counterpart.nodes for v in node.outputs if traits_of(node.key).clamps}
        return all(
            node.inputs[0] in clamped
            for node in counterpart.nodes
            if node.key == "Cast" and not _is_plain_float(self._graph, node.outputs[0])
        )


def stretched(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` times `FACTOR`."""
    with np.errstate(over="ignore"):
        return {name: np.asarray(value * value.dtype.type(FACTOR)) for name, value in values.items()}


def _is_plain_float(graph: Graph, value: str) -> bool:
    dtype = getattr(graph.type_of(value), "dtype", None)
    return dtype in (DType.DOUBLE, DType.FLOAT, *HALVES)
