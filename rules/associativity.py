"""Associativity (E18), guarded: constants in a chain of products, or of sums, become one constant.

Free associativity never ends. Constants rounded to floats make it worse: a value that is a multiple of itself by a factor one
unit in the last place off 1 has a new spelling in every iteration. So constants only move together, or outwards, a class gets
few such spellings, and the constants must be of ordinary size: ``(x + c) - c`` with a huge ``c`` is how one rounds, not the
identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import (
    Apply,
    GroupView,
    Match,
    Merge,
    Ref,
    Term,
    Unmet,
    apply,
    group_rule,
    rule,
    variables,
)
from eqsat.rules.alignment import FLOATS
from eqsat.rules.sampling import Drawing, Fixed, Instance, Sampler, fixed
from eqsat.rules.terms import condition, constant, mul

x, y, c = variables("x y c")

_SPELLINGS = 4
"""Products (or sums) with a constant that one class may contain."""

Chain = tuple[Ref, Ref]
"""The variable and the constant operand."""


def _extremes(c: Ref) -> tuple[float, float]:
    """Least and greatest magnitude among the elements of a constant."""
    low, high = c.interval
    if low > 0 or high < 0:
        return min(abs(low), abs(high)), max(abs(low), abs(high))
    return float(np.abs(c.value.astype(np.float64)).min(initial=math.inf)), max(abs(low), abs(high))


def is_ordinary_factor(c: Ref) -> bool:
    """Far from overflow and underflow, even as a product of two."""
    least, greatest = _extremes(c)
    limit = float(ml_dtypes.finfo(c.dtype.numpy).max) ** 0.25
    return 1 / limit <= least and greatest <= limit


def is_ordinary_summand(c: Ref) -> bool:
    """So small that it cannot have been chosen to round off what it is added to."""
    return max(map(abs, c.interval)) * float(ml_dtypes.finfo(c.dtype.numpy).eps) < 1e-3


def _chains(view: GroupView, op: str) -> Iterator[tuple[Ref, Chain]]:
    for node, (p, q) in view.nodes(op):
        assert p is not None
        assert q is not None
        if p.is_constant != q.is_constant and node.type.dtype.is_float:
            yield node, ((q, p) if p.is_constant else (p, q))


def _merged(view: GroupView, op: str, is_ordinary: Callable[[Ref], bool]) -> Iterator[Merge]:
    chains: dict[int, list[Chain]] = {}
    for node, chain in _chains(view, op):
        chains.setdefault(node.handle, []).append(chain)
    spellings = {handle: len(found) for handle, found in chains.items()}
    for node, (middle, outer) in list(_chains(view, op)):
        for x, inner in chains.get(middle.handle, ()):
            if x.handle in (node.handle, middle.handle) or spellings[node.handle] >= _SPELLINGS:
                continue
            try:
                if is_ordinary(inner) and is_ordinary(outer) and _stays_small(inner, outer):
                    spellings[node.handle] += 1
                    yield node, Apply(op, (x, apply(op, inner, outer)))
            except Unmet:
                continue


def _stays_small(p: Ref, q: Ref) -> bool:
    """Whether the two constants together are no larger than the larger one: no outer product of a row and a column."""
    together = math.prod(np.broadcast_shapes(p.static_shape, q.static_shape))
    return together <= max(math.prod(p.static_shape), math.prod(q.static_shape))


def _draw(d: Sampler, op: str) -> Instance:
    drawing = Drawing()
    shape = d.shape()
    dtype = d.choose(("float32", "float32", "float16"))
    value = drawing.value(d.floats(shape, dtype))
    inner: list[str] = []
    for _ in range(d.integer(2, 3)):
        form = d.broadcast_with(shape) if d.chance(0.3) else ()
        array = d.scale(form, dtype) if op == "Mul" else d.floats(form, dtype)
        if d.chance(0.15):
            with np.errstate(over="ignore"):
                array = array * np.asarray(60000.0 if dtype == "float16" else 12582912.0, dtype)
        operands = [value, drawing.value(Fixed(array) if d.chance(0.9) else array)]
        value = drawing.op(op, *(operands if d.chance() else operands[::-1]))
        inner.append(value)
    if d.chance(0.2):
        value = drawing.op(op, value, drawing.value(fixed(1.0, dtype)))
    return drawing.finish(value, *d.subset(inner[:-1], 0.3))


_SOURCE = "associativity over the reals"


@group_rule(exactness=Exactness.ROUNDING, source=_SOURCE, family="E18", sample=lambda d: _draw(d, "Mul"))
def merge_constant_factors(view: GroupView) -> Iterator[Merge]:
    """``(x * c1) * c2 == x * (c1 * c2)`` for constants of ordinary size."""
    return _merged(view, "Mul", is_ordinary_factor)


@group_rule(exactness=Exactness.ROUNDING, source=_SOURCE, family="E18", sample=lambda d: _draw(d, "Add"))
def merge_constant_summands(view: GroupView) -> Iterator[Merge]:
    """``(x + c1) + c2 == x + (c1 + c2)`` for constants of ordinary size."""
    return _merged(view, "Add", is_ordinary_summand)


def _inner_number(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    dtype = d.choose(("float32", "float32", "float16", "int32"))
    draw = d.integers if dtype == "int32" else d.floats
    number = np.asarray(d.choose((0.5, 3.0, -2.0, 0.0)), dtype)
    if dtype == "float32" and d.chance(0.15):  # x * y alone underflows, and this brings it back
        number = np.asarray(1e30, dtype)
        return {"x": d.floats(shape) * number.dtype.type(1e-25), "y": d.floats(shape) * 1e-25, "c": fixed(number)}
    form = d.broadcast_with(shape) if d.chance(0.2) else d.choose(((), (1,)))
    return {"x": draw(d.broadcast_with(shape), dtype), "y": draw(shape, dtype), "c": fixed(np.full(form, number))}


@condition("c one number of ordinary size")
def _one_ordinary_number(m: Match) -> bool:
    return m.c.type.is_static and math.prod(m.c.static_shape) == 1 and is_ordinary_factor(m.c)


@condition("floats, none of them constant")
def _floats_vary(m: Match) -> bool:
    return m.x.dtype in FLOATS and not m.x.is_constant and not m.y.is_constant


@rule(
    mul(x, mul(y, c)),
    where=[constant("c"), _floats_vary, _one_ordinary_number],
    exactness=Exactness.ROUNDING,
    source=_SOURCE,
    family="E18",
    sample=_inner_number,
)
def move_number_out_of_product(m: Match) -> Term:
    """``x * (y * c) == (x * y) * c`` for a number ``c`` of ordinary size."""
    return mul(mul(m.x, m.y), m.c)
