"""Associativity, guarded: constants in a chain of products, or of sums, become one constant.

Free associativity never ends. Constants rounded to floats make it worse: a value that is a multiple of itself by a factor one
unit in the last place off 1 has a new spelling in every iteration. So constants only move together, or outwards, a class gets
few such spellings, and the constants must be of ordinary size: ``(x + c) - c`` with a huge ``c`` is how one rounds, not the
identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import (
    Apply,
    GroupView,
    Merge,
    Ref,
    Unmet,
    apply,
    group_rule,
)
from eqsat.rules.linear.alignment import FLOATS
from eqsat.rules.terms import mul
from eqsat.samples import Drawing, Fixed, Instance, Sampler, fixed

_NEAR = 1e-3
"""How far from 1 the product of two factors is that undo each other."""

_SPELLINGS = 4
"""Values of which one class may be a multiple, or a sum with a constant."""

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
    chains: dict[int, dict[int, Chain]] = {}
    for node, (x, c) in _chains(view, op):
        chains.setdefault(node.handle, {}).setdefault(x.handle, (x, c))
    spelled = {handle: set(found) for handle, found in chains.items()}
    for node, (middle, outer) in list(_chains(view, op)):
        there = spelled[node.handle]
        for x, inner in chains.get(middle.handle, {}).values():
            if x.handle in (node.handle, middle.handle) or x.handle in there or len(there) >= _SPELLINGS:
                continue
            try:
                if is_ordinary(inner) and is_ordinary(outer) and _stays_small(inner, outer):
                    there.add(x.handle)
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


@group_rule(exactness=Exactness.ROUNDING, source=_SOURCE, sample=lambda d: _draw(d, "Mul"))
def merge_constant_factors(view: GroupView) -> Iterator[Merge]:
    """``(x * c1) * c2 == x * (c1 * c2)`` for constants of ordinary size."""
    return _merged(view, "Mul", is_ordinary_factor)


@group_rule(exactness=Exactness.ROUNDING, source=_SOURCE, sample=lambda d: _draw(d, "Add"))
def merge_constant_summands(view: GroupView) -> Iterator[Merge]:
    """``(x + c1) + c2 == x + (c1 + c2)`` for constants of ordinary size."""
    return _merged(view, "Add", is_ordinary_summand)


def _draw_inner_number(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.shape()
    dtype = d.choose(("float32", "float32", "float16", "int32"))
    draw = d.integers if dtype == "int32" else d.floats
    number = np.asarray(d.choose((0.5, 3.0, -2.0, 0.0)), dtype)
    x, y = draw(d.broadcast_with(shape), dtype), draw(shape, dtype)
    if dtype == "float32" and d.chance(0.15):  # x * y alone underflows, and this brings it back
        x, y, number = x * np.float32(1e-25), y * np.float32(1e-25), np.asarray(1e30, dtype)
    form = d.broadcast_with(shape) if d.chance(0.2) else d.choose(((), (1,)))
    left = drawing.value(x)
    if dtype == "float32" and d.chance(0.2):  # another factor, which may undo the first one
        left = drawing.op(d.choose(("Mul", "Div")), left, drawing.value(fixed(d.choose((3.0, 1 / 3, 2.0)), dtype)))
    inner = drawing.op("Mul", drawing.value(y), drawing.value(fixed(np.full(form, number), dtype)))
    return drawing.finish(drawing.op("Mul", *((left, inner) if d.chance() else (inner, left))))


def _number(c: Ref) -> float | None:
    """A constant of ordinary size that is one number."""
    try:
        return float(c.value.reshape(())) if math.prod(c.static_shape) == 1 and is_ordinary_factor(c) else None
    except Unmet:
        return None


@group_rule(exactness=Exactness.ROUNDING, source=_SOURCE, sample=_draw_inner_number)
def move_number_out_of_product(view: GroupView) -> Iterator[Merge]:
    """``x * (y * c) == (x * y) * c`` for a number ``c`` of ordinary size, and not about 1.

    Not where ``x`` is a multiple by about ``1 / c``: a value that is a multiple of its own multiple has ever new spellings,
    as weights that absorb the one factor and then the other. Nor where ``y * c`` is dequantised: ``c`` is a scale then, or
    part of one.
    """
    dequantised = {node.handle for node, _ in view.nodes("DequantizeLinear")}
    multiples: dict[int, list[tuple[Ref, Ref, float]]] = {}
    factors: dict[int, list[float]] = {}
    for node, (y, c) in _chains(view, "Mul"):
        number = _number(c)
        if number is None:
            continue
        if node.handle not in dequantised and abs(number - 1) >= _NEAR:
            multiples.setdefault(node.handle, []).append((y, c, number))
        factors.setdefault(node.handle, []).append(number)
    for node, (_, divisor) in view.nodes("Div"):
        number = _number(divisor) if divisor is not None and divisor.is_constant and node.dtype in FLOATS else None
        if number is not None:
            factors.setdefault(node.handle, []).append(1 / number)
    for node, (p, q) in view.nodes("Mul"):
        assert p is not None
        assert q is not None
        if p.is_constant or q.is_constant or node.type.dtype not in FLOATS:
            continue
        for x, middle in ((p, q), (q, p)):
            for y, c, number in multiples.get(middle.handle, ()):
                if not any(abs(number * other - 1) < _NEAR for other in factors.get(x.handle, ())):
                    yield node, mul(mul(x, y), c)
