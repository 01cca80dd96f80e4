"""Parts that do not fit together: ONNX Runtime's Concat passes over a part without elements, whatever its other extents are, and
leaves what that should have filled as it was in memory. Nothing can be compared of that.

``Concat(x[:, :, i : i + 1], state, axis=1)`` of a loop is such at an ``i`` beyond the end, as random inputs may have it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from eqsat.errors import EqsatError, ModelError
from eqsat.ir.graph import Graph, Node
from eqsat.ir.types import DType, Shape, TensorType
from eqsat.verification.pieces import Run, session_of

_SHAPE = ":shape"


class Joins:
    """The Concats of ``graph`` whose parts are not known to fit together."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        read = (node for node in graph.nodes if node.key == "Concat" and not node.opaque)
        self._nodes = [node for node in read if not _known_to_fit(graph, node)]

    @cached_property
    def _run(self) -> Run | None:
        """Computes the shapes of all parts."""
        if not self._nodes:
            return None
        parts = dict.fromkeys(v for node in self._nodes for v in node.inputs)
        shapes = {v + _SHAPE: TensorType(DType.INT64, None) for v in parts}
        nodes = [*self._graph.nodes, *(Node("Shape", (v,), (v + _SHAPE,)) for v in parts)]
        asked = replace(self._graph.with_nodes(nodes, shapes), outputs=tuple(shapes)).pruned()
        try:
            return session_of(asked).run
        except EqsatError:
            return None

    def check(self, feeds: Mapping[str, Any]) -> None:
        """Raises `ModelError` if parts do not fit together on ``feeds``."""
        if self._run is None:
            return
        try:
            found = self._run(feeds)
        except EqsatError:
            return  # whoever runs the original says so
        for node in self._nodes:
            shapes = [tuple(map(int, found[v + _SHAPE])) for v in node.inputs]
            if not _fit(node, shapes):
                raise ModelError(f"{node.op} {node.name or node.outputs[0]!r}: parts of {shapes} do not fit together")


def _known_to_fit(graph: Graph, node: Node) -> bool:
    shapes = [graph.type_of(v).shape for v in node.inputs]
    known = [s for s in shapes if s is not None]
    return len(known) == len(shapes) and _fit(node, known)


def _fit(node: Node, shapes: Sequence[Shape]) -> bool:
    """Whether shapes of the parts differ along the axis alone."""
    axis = int(node.attributes["axis"]) % len(shapes[0])  # type: ignore[arg-type]
    return all(a == b for a, b in pairwise((*shape[:axis], *shape[axis + 1 :]) for shape in shapes))
