"""Transposes of matrices disappear into the flags of Gemm (E18)."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Match, Ref, Term, apply, rule, variables
from eqsat.rules.drawing import or_integers
from eqsat.rules.sampling import Sampler
from eqsat.rules.terms import condition, permutation_of

ROUNDING = Exactness.ROUNDING
x, y = variables("x y")
(c,) = variables("c?")


@condition("floats")
def _floats(m: Match) -> bool:
    return m.x.dtype in (DType.FLOAT, DType.FLOAT16, DType.DOUBLE)


@condition("matrices")
def _matrices(m: Match) -> bool:
    return m.x.rank == 2 and m.y.rank == 2


@condition("the axes are exchanged")
def _exchanged(m: Match) -> bool:
    return permutation_of(m.p) == (1, 0)


@condition("the transposed operand varies")
def _left_varies(m: Match) -> bool:
    return not m.x.is_constant  # the Transpose of a constant is a constant


@condition("the transposed operand varies")
def _right_varies(m: Match) -> bool:
    return not m.y.is_constant


def _product(d: Sampler, straight: float = 0.1) -> dict[str, Any]:
    rows, inner, columns = d.extents(3)
    batch = d.extents(1) if d.chance(0.2) else ()
    perm = (*range(len(batch)), len(batch) + 1, len(batch))
    if d.chance(straight):
        perm = tuple(range(len(perm)))  # nothing is exchanged
    if straight and d.chance(0.1):  # a vector by a stack of matrices gives a matrix, too
        return {"x": d.floats((inner,)), "y": d.floats((rows, inner, columns)), "p": {"perm": (1, 0)}}
    x, y = d.floats((*batch, rows, inner)), d.floats((*batch, inner, columns))
    return or_integers(d, {"x": x, "y": d.either(y, 0.2), "p": {"perm": perm}})


def _operand_transposed(side: str) -> Any:
    """A product whose operand ``side`` is transposed, at times by a permutation that leaves the axes in place."""

    def draw(d: Sampler) -> dict[str, Any]:
        drawn = _product(d, straight=0.0)
        array = drawn[side] if isinstance(drawn[side], np.ndarray) else drawn[side].array
        if d.chance(0.15):
            return {**drawn, side: array, "p": {"perm": tuple(range(array.ndim))}}
        other = "x" if side == "y" else "y"
        if array.ndim == 2 and d.chance(0.15):  # a stack of matrices on the other side
            found = drawn[other] if isinstance(drawn[other], np.ndarray) else drawn[other].array
            drawn[other] = np.stack([found, -found])
        return or_integers(d, {**drawn, side: array.swapaxes(-1, -2).copy()})

    return draw


_LINEAR_ALGEBRA = "(x y)' = y' x'"


@rule(
    apply("MatMul", apply("Transpose", x).named("p"), y),
    where=[_floats, _matrices, _exchanged, _left_varies],
    exactness=ROUNDING,
    source=_LINEAR_ALGEBRA,
    family="E18",
    sample=_operand_transposed("x"),
)
def move_left_transpose_into_matmul(m: Match) -> Term:
    """``x' @ y == Gemm(x, y, transA=1)`` for matrices."""
    return apply("Gemm", m.x, m.y, transA=1)


@rule(
    apply("MatMul", x, apply("Transpose", y).named("p")),
    where=[_floats, _matrices, _exchanged, _right_varies],
    exactness=ROUNDING,
    source=_LINEAR_ALGEBRA,
    family="E18",
    sample=_operand_transposed("y"),
)
def move_right_transpose_into_matmul(m: Match) -> Term:
    """``x @ y' == Gemm(x, y, transB=1)`` for matrices."""
    return apply("Gemm", m.x, m.y, transB=1)


@rule(
    apply("Transpose", apply("MatMul", x, y)).named("p"),
    where=[_floats, _matrices, _exchanged],
    exactness=ROUNDING,
    source=_LINEAR_ALGEBRA,
    family="E18",
    sample=_product,
)
def move_transpose_of_matmul_inside(m: Match) -> Term:
    """``(x @ y)' == Gemm(y, x, transA=1, transB=1)`` for matrices."""
    return apply("Gemm", m.y, m.x, transA=1, transB=1)


def _gemm(d: Sampler, side: str) -> dict[str, Any]:
    rows, inner, columns = d.extents(3)
    straight = d.chance(0.1)
    flags = {"transA": d.integer(0, 1), "transB": d.integer(0, 1), "alpha": d.choose((1.0, 0.5)), "beta": 1.0}
    turned = {"x": bool(flags["transA"]) != (side == "x"), "y": bool(flags["transB"]) != (side == "y")}
    left = (inner, rows) if turned["x"] else (rows, inner)
    right = (columns, inner) if turned["y"] else (inner, columns)
    drawn: dict[str, Any] = {"x": d.floats(left), "y": d.floats(right), "g": flags, "p": {"perm": (1, 0)}}
    if straight:  # a Transpose that transposes nothing
        drawn[side], drawn["p"] = drawn[side].T.copy(), {"perm": (0, 1)}
    if d.chance():
        drawn["c"] = d.floats(d.choose(((columns,), (rows, 1), (rows, columns), ())))
    return drawn


def _flipped(node: Ref, *names: str) -> Any:
    changes: dict[str, Any] = {name: 1 - node.attr(name, 0) for name in names}
    return node.attributes.updated(**changes)


@rule(
    apply("Gemm", apply("Transpose", x).named("p"), y, c).named("g"),
    where=[_exchanged, _left_varies],
    exactness=ROUNDING,
    source=_LINEAR_ALGEBRA,
    family="E18",
    sample=lambda d: _gemm(d, "x"),
)
def move_left_transpose_into_gemm(m: Match) -> Term:
    """``Gemm(x', y, c, transA) == Gemm(x, y, c, 1 - transA)``."""
    return Apply("Gemm", _gemm_inputs(m), _flipped(m.g, "transA"))


@rule(
    apply("Gemm", x, apply("Transpose", y).named("p"), c).named("g"),
    where=[_exchanged, _right_varies],
    exactness=ROUNDING,
    source=_LINEAR_ALGEBRA,
    family="E18",
    sample=lambda d: _gemm(d, "y"),
)
def move_right_transpose_into_gemm(m: Match) -> Term:
    """``Gemm(x, y', c, transB) == Gemm(x, y, c, 1 - transB)``."""
    return Apply("Gemm", _gemm_inputs(m), _flipped(m.g, "transB"))


def _gemm_inputs(m: Match) -> tuple[Term, ...]:
    return (m.x, m.y) if m.c is None else (m.x, m.y, m.c)
