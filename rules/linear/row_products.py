"""Products of the rows of a value, spelled as the product of one matrix, are products of the value itself.

Converters flatten the leading axes, multiply, and restore them; beside another product of the same value that hides what both
have in common.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Term, apply, rule, variables
from eqsat.rules.terms import add, matmul
from eqsat.samples import Sampler, fixed

x, w, c, s, t = variables("x w c s t")
_product = matmul(apply("Reshape", x, s), w)


def _flattened(d: Sampler) -> dict[str, Any]:
    lead, inner, columns = d.extents(3), d.integer(2, 5), d.integer(2, 5)
    x = d.floats((*lead[: d.integer(2, 3)], inner))
    rows = int(np.prod(x.shape[:-1]))
    result = [*x.shape[:-1], columns]
    if d.chance(0.15):
        result = [*x.shape[:-1][::-1], columns]
    shapes = {"s": fixed([rows, inner], "int64"), "t": fixed(result, "int64")}
    return {"x": x, "w": d.either(d.floats((inner, columns))), "c": d.either(d.floats((columns,))), **shapes}


def _check(m: Match) -> None:
    m.require(m.x.dtype is DType.FLOAT and m.w.rank == 2, "no float32, or no matrix of weights")
    m.require(m.x.rank >= 3 and m.x.shape[-1] == m.w.shape[0], "the view does not keep the rows")
    m.require(m.root.shape == (*m.x.shape[:-1], m.w.shape[1]), "the leading axes are not restored")


@rule(
    apply("Reshape", _product, t),
    exactness=Exactness.ROUNDING,
    source="the product acts on each row",
    sample=lambda d: {k: v for k, v in _flattened(d).items() if k != "c"},
)
def multiply_rows_in_place(m: Match) -> Term:
    """``Reshape(Reshape(x) @ w) == x @ w`` where the views flatten the leading axes and restore them."""
    _check(m)
    return matmul(m.x, m.w)


@rule(
    apply("Reshape", add(_product, c), t),
    exactness=Exactness.ROUNDING,
    source="product and sum act on each row",
    sample=_flattened,
)
def multiply_and_add_rows_in_place(m: Match) -> Term:
    """``Reshape(Reshape(x) @ w + c) == x @ w + c`` for a vector ``c``."""
    _check(m)
    m.require(m.c.shape in ((), (1,), m.w.shape[1:]), "the summand is not one for each column")
    return add(matmul(m.x, m.w), m.c)
