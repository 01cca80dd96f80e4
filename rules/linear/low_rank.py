"""Products by constants one after the other, and side by side in a sum, as one product.

An adapter of low rank merges with the weights beside it: ``x @ w + (x @ a) @ b == x @ (w + a @ b)``. Alone, ``(x @ a) @ b`` is
one product only where that is no larger: two small factors in place of a large matrix are there to save memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import Match, Ref, Term, rule, variables
from eqsat.rules.linear.alignment import finite_sum, floating, largest, limit
from eqsat.rules.terms import add, condition, constant, matmul
from eqsat.samples import Sampler

x, w, v, a, b, c = variables("x w v a b c")


def _product_bound(a: Ref, b: Ref) -> float:
    """What no partial sum of the elements of ``a @ b`` exceeds."""
    return largest(a) * largest(b) * b.static_shape[0]


@condition("a @ b finite")
def _product_finite(m: Match) -> bool:
    return _product_bound(m.a, m.b) < limit(m.a)


@condition("w + a @ b finite")
def _sum_finite(m: Match) -> bool:
    return largest(m.w) + _product_bound(m.a, m.b) < limit(m.w)


def _require_matrices(m: Match) -> None:
    m.require(m.a.rank == m.b.rank == 2, "a factor is a vector or a batch")
    m.require(not m.x.is_constant, "the product is constant")


def _left(d: Sampler, rows: int, inner: int) -> np.ndarray:
    return d.floats(d.choose(((rows, inner), (2, rows, inner), (inner,))))


def _drawn(d: Sampler, arrays: dict[str, np.ndarray], *large: str) -> dict[str, Any]:
    """Mostly as drawn; else integers, or factors ``large`` that overflow among themselves on a small ``x``."""
    kind = d.rng.random()
    if kind < 0.1:
        arrays = {name: np.clip(np.rint(array), -9, 9).astype(np.int32) for name, array in arrays.items()}
    elif kind < 0.25:
        arrays = {name: d.positive(v.shape) * np.float32(1e20) if name in large else v for name, v in arrays.items()}
        arrays["x"] = arrays["x"] * np.float32(1e-30)
    elif kind < 0.35 and "w" in arrays:
        arrays["w"] = np.full_like(arrays["w"], 3e38)
        arrays |= {"a": np.full_like(arrays["a"], 1e19), "b": np.full_like(arrays["b"], 1e19)}
        arrays["x"] = arrays["x"] * np.float32(1e-30)
    return {name: array if name == "x" else d.either(array, 0.9) for name, array in arrays.items()}


def _chain(d: Sampler) -> dict[str, Any]:
    rows, inner, between, columns = d.extents(4, ones=0.2)
    second = d.floats(d.choose(((between, columns), (between, columns), (between,), (2, between, columns))))
    return _drawn(d, {"x": _left(d, rows, inner), "a": d.floats((inner, between)), "b": second}, "a", "b")


@rule(
    matmul(matmul(x, a), b),
    where=[constant("a", "b"), floating("x", "a", "b"), _product_finite],
    exactness=Exactness.ROUNDING,
    source="associativity of the matrix product",
    sample=_chain,
)
def multiply_constant_factors_first(m: Match) -> Term:
    """``(x @ a) @ b == x @ (a @ b)`` for constant matrices, where ``a @ b`` has no more elements than both together."""
    _require_matrices(m)
    (inner, between), columns = m.a.static_shape, m.b.static_shape[1]
    m.require(inner * columns <= (inner + columns) * between, "the product is larger than its factors")
    return matmul(m.x, matmul(m.a, m.b))


def _sum(d: Sampler) -> dict[str, Any]:
    rows, inner, columns = d.extents(3, ones=0.2)
    shape = d.choose(((inner, columns), (inner, columns), (2, inner, columns), (inner,)))
    other = shape if len(shape) < 2 else d.choose((shape, shape, shape, (inner, 1), (2, inner, columns)))
    found = {"x": _left(d, rows, inner), "w": d.floats(shape), "v": d.floats(other)}
    if d.chance(0.15):  # ``w + v`` overflows, the two products do not
        found |= {name: np.full_like(found[name], 2.5e38) for name in "wv"} | {"x": found["x"] * np.float32(1e-30)}
    shift = d.floats(d.broadcast_with((found["x"] @ found["w"] + found["x"] @ found["v"]).shape))
    if d.chance(0.1):
        found = {name: np.clip(np.rint(array), -9, 9).astype(np.int32) for name, array in found.items()}
    return (
        found
        | {name: d.either(found[name], 0.9) for name in "wv"}
        | {"c": d.either(shift.astype(found["x"].dtype), 0.9)}
    )


def _adapter(d: Sampler) -> dict[str, Any]:
    rows, inner, between, columns = d.extents(4, ones=0.2)
    columns = 1 if d.chance(0.1) else columns
    wide = d.choose((columns, columns, columns, columns, 1))
    shape = d.choose(((inner, wide), (inner, wide), (inner, wide), (2, inner, wide)))
    found = {
        "x": _left(d, rows, inner),
        "w": d.floats(shape),
        "a": d.floats((inner, between)),
        "b": d.floats((between, columns)),
    }
    result = (found["x"] @ found["w"] + found["x"] @ found["a"] @ found["b"]).shape
    drawn = _drawn(d, found, "a", "b")
    shift = d.floats(d.broadcast_with(result)).astype(drawn["x"].dtype)
    return drawn | {"c": d.either(shift, 0.9)}


_SUM: dict[str, Any] = {
    "where": [constant("w", "v"), floating("x", "w", "v"), finite_sum("w", "v")],
    "exactness": Exactness.ROUNDING,
    "source": "distributivity",
    "sample": _sum,
}


def _sum_of_factors(m: Match) -> Term:
    m.require(not m.x.is_constant, "the product is constant")
    m.require(m.w.rank >= 2 and m.w.static_shape == m.v.static_shape, "vectors, or of different shapes")
    return add(m.w, m.v)


@rule(add(matmul(x, w), matmul(x, v)), **_SUM)
def add_constant_factors_first(m: Match) -> Term:
    """``x @ w + x @ v == x @ (w + v)`` for constants ``w`` and ``v`` of one shape."""
    m.require(m.w.handle <= m.v.handle, "the other way round")
    return matmul(m.x, _sum_of_factors(m))


@rule(add(add(matmul(x, w), c), matmul(x, v)), **_SUM)
def add_constant_factors_beside_bias(m: Match) -> Term:
    """``(x @ w + c) + x @ v == x @ (w + v) + c`` for constants, ``w`` and ``v`` of one shape."""
    m.require(m.c.is_constant, "the other summand varies")
    return add(matmul(m.x, _sum_of_factors(m)), m.c)


_ADAPTER: dict[str, Any] = {
    "where": [constant("w", "a", "b"), floating("x", "w", "a", "b"), _sum_finite],
    "exactness": Exactness.ROUNDING,
    "source": "linearity of the matrix product; Hu et al. 2021",
    "sample": _adapter,
}


def _adapted_weights(m: Match) -> Term:
    _require_matrices(m)
    m.require(m.w.static_shape == (m.a.static_shape[0], m.b.static_shape[1]), "the products are of different shapes")
    return add(m.w, matmul(m.a, m.b))


@rule(add(matmul(x, w), matmul(matmul(x, a), b)), **_ADAPTER)
def merge_adapter_into_weights(m: Match) -> Term:
    """``x @ w + (x @ a) @ b == x @ (w + a @ b)`` for constant matrices."""
    return matmul(m.x, _adapted_weights(m))


@rule(add(add(matmul(x, w), c), matmul(matmul(x, a), b)), **_ADAPTER)
def merge_adapter_into_weights_beside_bias(m: Match) -> Term:
    """``(x @ w + c) + (x @ a) @ b == x @ (w + a @ b) + c`` for constant matrices and a constant ``c``."""
    m.require(m.c.is_constant, "the other summand varies")
    return add(matmul(m.x, _adapted_weights(m)), m.c)
