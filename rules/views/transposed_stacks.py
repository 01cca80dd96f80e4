"""Transposes around stacks of products and around softmax, as the transpose of the usual form.

Attention may be computed the other way up: keys by queries, softmax along the rows, values by probabilities.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Ref, Term, apply, rule, variables
from eqsat.rules.terms import last_axes_exchanged, matmul, permutation_of, transpose
from eqsat.samples import Sampler

x, y = variables("x y")


def _stack(side: str) -> Any:
    def draw(d: Sampler) -> dict[str, Any]:
        rows, inner, columns, batch, heads = d.extents(5)
        lead = (batch, heads)[: d.integer(1, 2)]
        shapes = {"x": (*lead, rows, inner), "y": (*lead, inner, columns)}
        rank = len(lead) + 2
        perm: Any = last_axes_exchanged(rank) if d.chance(0.8) else tuple(range(rank))
        shape = shapes[side]
        shapes[side] = tuple(shape[i] for i in perm)
        found: dict[str, Any] = {name: d.floats(shape) for name, shape in shapes.items()}
        return found | {"p": {"perm": perm}}

    return draw


def _turned(m: Match, operand: Ref, other: Ref) -> None:
    rank = operand.rank
    m.require(rank >= 3 and other.rank == rank, "no stacks of matrices of one rank")
    m.require(permutation_of(m.p) == last_axes_exchanged(rank), "not the last two axes are exchanged")
    m.require(operand.dtype is DType.FLOAT and not m.x.is_constant and not m.y.is_constant, "no float32, or a constant")


@rule(
    matmul(x, apply("Transpose", y).named("p")),
    exactness=Exactness.ROUNDING,
    source="(x y)' = y' x'",
    sample=_stack("y"),
)
def exchange_operands_of_product_by_transposed(m: Match) -> Term:
    """``x @ y' == (y @ x')'`` for stacks of matrices."""
    _turned(m, m.y, m.x)
    perm = last_axes_exchanged(m.y.rank)
    return transpose(matmul(m.y, transpose(m.x, perm)), perm)


@rule(
    matmul(apply("Transpose", x).named("p"), y),
    exactness=Exactness.ROUNDING,
    source="(x y)' = y' x'",
    sample=_stack("x"),
)
def exchange_operands_of_transposed_product(m: Match) -> Term:
    """``x' @ y == (y' @ x)'`` for stacks of matrices."""
    _turned(m, m.x, m.y)
    perm = last_axes_exchanged(m.x.rank)
    return transpose(matmul(transpose(m.y, perm), m.x), perm)


def _product(d: Sampler) -> dict[str, Any]:
    found = _stack("x")(d)
    x, y, perm = found["x"], found["y"], found["p"]["perm"]
    return {"x": np.transpose(x, perm), "y": y, "p": {"perm": last_axes_exchanged(x.ndim) if d.chance(0.8) else perm}}


@rule(
    apply("Transpose", matmul(x, y)).named("p"),
    exactness=Exactness.ROUNDING,
    source="(x y)' = y' x'",
    sample=_product,
)
def turn_product_instead_of_result(m: Match) -> Term:
    """``(x @ y)' == y' @ x'`` for stacks of matrices."""
    _turned(m, m.x, m.y)
    perm = last_axes_exchanged(m.x.rank)
    return matmul(transpose(m.y, perm), transpose(m.x, perm))


def _moved(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(2, 4, ones=0.05))
    return {"x": x, "p": {"perm": d.permutation(x.ndim)}, "softmax": {"axis": d.integer(-x.ndim, x.ndim - 1)}}


@rule(
    apply("Softmax", apply("Transpose", x).named("p")).named("softmax"),
    exactness=Exactness.ROUNDING,
    source="softmax along an axis, wherever it is",
    sample=_moved,
)
def transpose_behind_softmax(m: Match) -> Term:
    """``Softmax(Transpose(x, p), axis) == Transpose(Softmax(x, p[axis]), p)``."""
    m.require(not m.x.is_constant, "constant")
    p = permutation_of(m.p)
    axis = p[int(m.softmax.attr("axis", -1))]
    return transpose(apply("Softmax", m.x, axis=axis - m.x.rank), p)
