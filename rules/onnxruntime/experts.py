"""Mixtures of experts: rows that are each multiplied by the weights of an expert of their own.

Exporters look the weights up, a matrix for each row, which copies all of them; the kernel sorts rows by expert instead, and
multiplies those of one together. Which expert it is it is told as by a router: 0 for that one and minus infinity for the others,
of which the softmax is 1 and 0. So whatever chose the experts, and weighs what they make, is left as it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.conditions import kernels, worthwhile
from eqsat.equations import group_rule
from eqsat.exactness import Exactness
from eqsat.ir.operator import operators_with
from eqsat.ir.operators.onnxruntime_activations import QUICK_GELU_ALPHA
from eqsat.ir.operators.onnxruntime_experts import MOE
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Match, Ref, Term, apply, literal
from eqsat.rules.cuts import Cut, cuts
from eqsat.rules.terms import by_class, complete_nodes, established, int64s, last_axes_exchanged, reshape, transpose
from eqsat.rules.views.counting import is_view
from eqsat.samples import Drawing, Instance, Sampler

QUICK_GELU = "com.microsoft::QuickGelu"
_LARGEST_TABLE = 1 << 20


@dataclass(frozen=True)
class Chosen:
    """Vectors, each by a matrix that ``op`` looks up in ``weights`` by ``index``. ``axis``: where vectors and results have their
    extent of 1, which is 2 if they are columns, and 1 if they are rows."""

    product: Ref
    vectors: Ref
    weights: Ref
    op: str
    index: Ref
    axis: int

    @property
    def choice(self) -> tuple[str, int]:
        return self.op, self.index.handle

    @property
    def extents(self) -> tuple[int, int, int]:
        """Experts, elements of a result, elements of a vector."""
        experts, *matrix = self.weights.static_shape
        return experts, matrix[2 - self.axis], matrix[self.axis - 1]

    @property
    def matrices(self) -> Term:
        """The weights as ``[experts, out, in]``."""
        return self.weights if self.axis == 2 else transpose(self.weights, last_axes_exchanged(3))


@dataclass(frozen=True)
class Expert:
    """Two products by one choice. ``gate``: which half of what ``up`` makes is activated, and gates the other one."""

    up: Chosen
    down: Chosen
    gate: int
    alpha: float

    @property
    def pairs(self) -> Term:
        """The weights of the first product, rows of gate and gated in turn."""
        experts, rows, width = self.up.extents
        halves = reshape(self.up.matrices, (experts, 2, rows // 2, width))
        if self.gate:
            halves = apply("Gather", halves, int64s((1, 0)), axis=1)
        return reshape(transpose(halves, (0, 2, 1, 3)), (experts, rows, width))

    @property
    def router(self) -> Term:
        """A row for each choice: 0 for the expert that is chosen, minus infinity for the others."""
        table = np.full((self.up.extents[0],) * 2, -np.inf, np.float32)
        np.fill_diagonal(table, 0.0)
        return apply(self.up.op, literal(table), self.up.index)


# --- reading them ----------------------------------------------------------------------------------------------------


class _Reader:
    """The e-nodes that experts are made of, by class."""

    def __init__(self, view: GroupView, looked_up: dict[int, list[tuple[str, Ref, Ref]]]) -> None:
        self.chosen = by_class((c.product, c) for c in established(_chosen, _products(view, looked_up)))
        self.views = by_class((node, x) for node, (x, *_) in complete_nodes(view, *operators_with(is_view)))
        self.factors = by_class(complete_nodes(view, "Mul"))
        self.activated = by_class(
            (n, (x, n.attr("alpha", QUICK_GELU_ALPHA))) for n, (x,) in complete_nodes(view, QUICK_GELU)
        )
        self.halves = {part.handle: (cut, i) for cut in cuts(view) for i, part in enumerate(cut.parts) if _halves(cut)}

    def behind(self, value: Ref) -> Iterator[Ref]:
        """``value``, and what it is a view of."""
        found = {value.handle: value}
        waiting = [value]
        while waiting:
            yield (seen := waiting.pop())
            new = {x.handle: x for x in self.views.get(seen.handle, ()) if x.handle not in found}
            found |= new
            waiting.extend(new.values())

    def experts(self) -> Iterator[Expert]:
        for down in (c for found in self.chosen.values() for c in found):
            for value in self.behind(down.vectors):
                for factors in self.factors.get(value.handle, ()):
                    yield from established(self._gated, ((down, value, *pair) for pair in (factors, factors[::-1])))

    def _gated(self, down: Chosen, product: Ref, activated: Ref, gated: Ref) -> Expert | None:
        """``activated * gated`` as the halves of a product by the same choice. Raises `Unmet`."""
        other = self.halves.get(gated.handle)
        if other is None or activated.type != gated.type or product.type != gated.type:
            return None
        for gate, alpha in self.activated.get(activated.handle, ()):
            half = self.halves.get(gate.handle)
            if half is None or half[0] is not other[0] or half[1] == other[1]:
                continue
            found = (c for value in self.behind(half[0].value) for c in self.chosen.get(value.handle, ()))
            up = next((c for c in found if _fits(c, down, half[0].sizes[0])), None)
            if up is not None:
                return Expert(up, down, half[1], float(alpha))
        return None


def _halves(cut: Cut) -> bool:
    """Whether a Split makes two halves of vectors, whatever axes of 1 they have beside that of their elements."""
    rest = [extent for axis, extent in enumerate(cut.value.shape) if axis not in (0, cut.axis)]
    return cut.axis > 0 and len(cut.sizes) == 2 and len(set(cut.sizes)) == 1 and set(rest) <= {1}


def _fits(up: Chosen, down: Chosen, half: int) -> bool:
    """Whether both products take the same expert, and the second one what half of the first one's results are gated to."""
    return up.choice == down.choice and up.extents[:2] == (down.extents[0], 2 * half) and down.extents[2] == half


def _looked_up(view: GroupView) -> Iterator[tuple[Ref, tuple[str, Ref, Ref]]]:
    """Matrices, each looked up by a number: with the operator, the stack of matrices and the numbers."""
    for node, (table, index) in complete_nodes(view, "Gather"):
        if table.type.rank == 3 and index.type.rank == 1 and node.attr("axis", 0) in (0, -3):
            yield node, ("Gather", table, index)
    for node, (table, index) in complete_nodes(view, "GatherND"):
        shape = index.type.shape
        if (
            table.type.rank == 3
            and shape is not None
            and len(shape) == 2
            and shape[1] == 1
            and not node.attr("batch_dims", 0)
        ):
            yield node, ("GatherND", table, index)


def _products(view: GroupView, looked_up: dict[int, list[tuple[str, Ref, Ref]]]) -> Iterator[tuple[Ref, Ref, int, Any]]:
    for node, (a, b) in complete_nodes(view, "MatMul"):
        yield from ((node, b, 2, found) for found in looked_up.get(a.handle, ()))
        yield from ((node, a, 1, found) for found in looked_up.get(b.handle, ()))


def _chosen(product: Ref, vectors: Ref, axis: int, found: tuple[str, Ref, Ref]) -> Chosen | None:
    """A matrix for each vector, unless it is one vector for all, or one matrix for several. Raises `Unmet`."""
    op, weights, index = found
    alone = vectors.rank == 3 and vectors.shape[axis] == 1 and vectors.shape[0] == index.shape[0]
    return Chosen(product, vectors, weights, op, index, axis) if alone and weights.type.is_static else None


def _found(view: GroupView) -> Iterator[Match]:
    looked_up = by_class(_looked_up(view))
    if looked_up:
        for expert in _Reader(view, looked_up).experts():
            up, down = expert.up, expert.down
            key = (
                *(r.handle for r in (up.vectors, up.weights, down.weights)),
                up.choice,
                up.axis,
                down.axis,
                expert.gate,
            )
            bound = {"expert": expert, "x": up.vectors, "u": up.weights, "d": down.weights}
            yield Match(bound, down.product, key=(*key, expert.alpha))


# --- the rule --------------------------------------------------------------------------------------------------------


def _draw(d: Sampler) -> Instance:
    """Rows or columns, looked up by either operator; at times another choice for the second product, or one vector for all."""
    drawing = Drawing()
    count, width, inner, experts = d.extents(4)
    index = drawing.value(d.integers((count,), "int64", -experts, experts - 1))
    other = drawing.op("Neg", index) if d.chance(0.1) else index
    gathers, axis = d.chance(), d.choose((1, 2))

    def multiply(vectors: str, weights: np.ndarray, by: str) -> str:
        table = drawing.value(d.either(weights if axis == 2 else weights.swapaxes(1, 2).copy(), 0.9))
        by = by if gathers else drawing.op("Unsqueeze", by, [1])
        matrices = drawing.op("Gather", table, by, axis=0) if gathers else drawing.op("GatherND", table, by)
        return drawing.op("MatMul", *((matrices, vectors) if axis == 2 else (vectors, matrices)))

    x = drawing.value(d.floats((1 if d.chance(0.1) else count, width)))
    hidden = multiply(drawing.op("Unsqueeze", x, [axis]), d.floats((experts, 2 * inner, width)), index)
    flat = d.chance()
    hidden = drawing.op("Squeeze", hidden, [axis]) if flat else hidden
    halves = drawing.op("Split", hidden, [inner, inner], axis=1 if flat else 3 - axis, outputs=2)
    gate, gated = halves if d.chance() else halves[::-1]
    factors = drawing.op(QUICK_GELU, gate, alpha=d.choose((1.0, 1.702))), gated
    product = drawing.op("Mul", *(factors if d.chance() else factors[::-1]))
    product = drawing.op("Unsqueeze", product, [axis]) if flat else product
    return drawing.finish(multiply(product, d.floats((experts, width, inner)), other))


@group_rule(
    find=_found,
    where=[
        kernels("x", DType.FLOAT),
        worthwhile("the weights are constant: u.is_constant and d.is_constant"),
        worthwhile(f"no table larger than a megabyte: expert.up.extents[0] ** 2 <= {_LARGEST_TABLE // 4}"),
    ],
    exactness=Exactness.ROUNDING,
    source="contrib operators of ONNX Runtime: moe_cpu.cc",
    sample=_draw,
    domain="com.microsoft",
)
def sort_rows_by_expert(m: Match) -> Term:
    """``d[i] @ gate(u[i] @ x) == MoE(x, eye[i], u, d)`` for one matrix of ``u`` and ``d`` for each vector of ``x``."""
    up, down = m.expert.up, m.expert.down
    rows = apply("Squeeze", m.x, int64s((up.axis,)))
    attributes: dict[str, Any] = {
        "k": 1,
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "activation_alpha": m.expert.alpha,
    }
    found = apply(MOE, rows, m.expert.router, m.expert.pairs, None, down.matrices, **attributes)
    return apply("Unsqueeze", found, int64s((down.axis,)))
