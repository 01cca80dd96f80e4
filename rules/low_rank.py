"""Products by constants one after the other, and side by side in a sum, as one product (E25).

Together they merge an adapter of low rank into the weights beside it: ``x @ w + (x @ a) @ b == x @ (w + a @ b)``. Alone the
first one may cost more arithmetic than it saves launches, where few columns lie between: cost decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import Match, Term, rule, variables
from eqsat.rules.alignment import finite_sum, floating, largest, limit
from eqsat.rules.sampling import Sampler
from eqsat.rules.terms import add, condition, constant, matmul

x, a, b, c = variables("x a b c")


@condition("a @ b finite")
def _finite(m: Match) -> bool:
    return largest(m.a) * largest(m.b) * m.b.static_shape[0] < limit(m.a)


def _left(d: Sampler, rows: int, inner: int) -> np.ndarray:
    return d.floats(d.choose(((rows, inner), (2, rows, inner), (inner,))))


def _chain(d: Sampler) -> dict[str, Any]:
    rows, inner, between, columns = d.extents(4, ones=0.2)
    found = {"x": _left(d, rows, inner), "a": d.floats((inner, between)), "b": d.floats((between, columns))}
    kind = d.rng.random()
    if kind < 0.1:
        found = {name: np.clip(np.rint(array), -9, 9).astype(np.int32) for name, array in found.items()}
    elif kind < 0.25:  # ``a @ b`` overflows, ``x @ a`` and the whole do not
        found["a"], found["b"] = found["a"] * np.float32(1e20), d.positive(found["b"].shape) * np.float32(1e20)
        found["x"] *= np.float32(1e-30)
    elif kind < 0.4:
        found["b"] = d.floats(d.choose(((between,), (2, between, columns))))
    return found | {"a": d.either(found["a"], 0.9), "b": d.either(found["b"], 0.9)}


@rule(
    matmul(matmul(x, a), b),
    where=[constant("a", "b"), floating("x", "a", "b"), _finite],
    exactness=Exactness.ROUNDING,
    source="associativity of the matrix product",
    family="E25",
    sample=_chain,
)
def multiply_constant_factors_first(m: Match) -> Term:
    """``(x @ a) @ b == x @ (a @ b)`` for constant matrices ``a`` and ``b``."""
    m.require(m.a.rank == m.b.rank == 2, "an operand is a vector or a batch")
    m.require(not m.x.is_constant, "the product is constant")
    return matmul(m.x, matmul(m.a, m.b))


def _sum(d: Sampler) -> dict[str, Any]:
    rows, inner, columns = d.extents(3, ones=0.2)
    left = _left(d, rows, inner)
    shape = d.choose(((inner, columns), (inner, columns), (2, inner, columns), (inner,)))
    other = d.choose((shape, shape, shape, (inner, 1), (2, inner, columns)))
    if len(shape) < 2:
        other = shape
    first, second = d.floats(shape), d.floats(other)
    result = np.matmul(left, first) + np.matmul(left, second)
    kind = d.rng.random()
    if kind < 0.1:
        left, first, second = (np.clip(np.rint(v), -9, 9).astype(np.int32) for v in (left, first, second))
    elif kind < 0.25:  # ``a + b`` overflows, the two products do not
        first, second = np.full_like(first, 2.5e38), np.full_like(second, 2.5e38)
        left = left * np.float32(1e-30)
    shift = d.floats(d.broadcast_with(result.shape)).astype(left.dtype)
    return {"x": left, "a": d.either(first, 0.9), "b": d.either(second, 0.9), "c": d.either(shift, 0.9)}


_SUM: dict[str, Any] = {
    "where": [constant("a", "b"), floating("x", "a", "b"), finite_sum("a", "b")],
    "exactness": Exactness.ROUNDING,
    "source": "distributivity",
    "family": "E25",
    "sample": _sum,
}


@rule(add(matmul(x, a), matmul(x, b)), **_SUM)
def add_constant_factors_first(m: Match) -> Term:
    """``x @ a + x @ b == x @ (a + b)`` for constants ``a`` and ``b`` of one shape."""
    m.require(m.a.handle <= m.b.handle, "the other way round")
    return matmul(m.x, _sum_of_factors(m))


@rule(add(add(matmul(x, a), c), matmul(x, b)), **_SUM)
def add_constant_factors_beside_bias(m: Match) -> Term:
    """``(x @ a + c) + x @ b == x @ (a + b) + c`` for constants ``a`` and ``b`` of one shape."""
    m.require(m.c.is_constant, "the other summand varies")
    return add(matmul(m.x, _sum_of_factors(m)), m.c)


def _sum_of_factors(m: Match) -> Term:
    m.require(not m.x.is_constant, "the product is constant")
    m.require(m.a.rank >= 2 and m.a.static_shape == m.b.static_shape, "vectors, or of different shapes")
    return add(m.a, m.b)
