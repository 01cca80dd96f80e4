"""A constant scale passes rectifiers (if positive), pools and sums on its way to the weights that absorb it.

Both directions are offered: forwards to the operator that follows, backwards to the one before. Each passes one operator at a
time and adds one product at most, which is chosen only where it meets weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.operator import Operator, operators_with, traits_of
from eqsat.rewrite import Apply, GroupView, Match, Merge, Ref, Rule, Term, Unmet, apply, group_rule, rule, variables
from eqsat.rules.linear.alignment import FLOATS, elements_along, floating, largest, not_all
from eqsat.rules.terms import add, condition, constant, mul
from eqsat.samples import Drawing, Instance, Sampler, fixed
from eqsat.samples.linear import kept_shape_along

x, s = variables("x s")

SOURCE = "positive homogeneity of the operator; TVM FoldScaleAxis"


def _passable(op: Operator) -> bool:
    """Pools and rectifiers. Neg and Abs have rules of their own; reductions drop axes."""
    return op.traits.homogeneous and op.traits.rising and (op.traits.operands == 1 or op.traits.spatial)


PASSABLE = {op: Exactness.EXACT if traits_of(op).sources else Exactness.ROUNDING for op in operators_with(_passable)}
"""Operators with ``op(x * s) == op(x) * s`` for a positive ``s``, and how exactly it holds: rounding is monotone."""

LINEAR = tuple(op for op in PASSABLE if traits_of(op).affine)
"""Those of them for which ``s`` may have any sign."""

PRODUCTS = operators_with(lambda op: op.traits.product and op.traits.affine)
"""Operators that are linear in weights."""


def _is_positive(value: Ref) -> bool:
    low, high = value.interval
    return low > 0 and math.isfinite(high)


@condition("s positive and finite")
def _positive(m: Match) -> bool:
    return _is_positive(m.s)


@condition("s finite")
def _finite(m: Match) -> bool:
    return math.isfinite(largest(m.s))


def _require_channels(m: Match, op: str, value: Ref) -> None:
    """Windows span the spatial axes, along which ``s`` must not vary."""
    if traits_of(op).spatial:
        m.require(value.rank >= 3, "the value has no spatial axes")
        elements_along(m.s, value, 1)


def _sample(op: str) -> Callable[[Sampler], dict[str, Any]]:
    def draw(d: Sampler) -> dict[str, Any]:
        if not op.endswith("Pool"):
            x = d.floats(d.shape(), infinite=d.chance(0.2))
            scale = d.scale(d.broadcast_with(x.shape))
            found = {"x": x, "s": d.either(scale, 0.9), "n": {"alpha": 0.25} if op == "LeakyRelu" else {}}
            return found | _wrapping(d, x.shape, "int32") if d.chance(0.1) else found
        batch, channels = d.extents(2)
        x = d.floats((batch, channels, d.integer(3, 5), d.integer(4, 6)))
        scale = d.scale(kept_shape_along(d, x.shape, 1))
        if d.chance(0.1):
            scale = np.where(scale == 1, scale, np.float32(np.inf))
        attributes: dict[str, Any] = {}
        if not op.startswith("Global"):
            attributes = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
        if d.chance(0.1):
            return _wrapping(d, x.shape, "int8") | {"n": attributes}
        return {"x": x, "s": d.either(scale, 0.9), "n": attributes}

    return draw


def _wrapping(d: Sampler, shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    """Integers of which products leave the range, and come back with another sign."""
    return {"x": d.integers(shape, dtype), "s": fixed(3, dtype)}


def _define(op: str, exactness: Exactness) -> tuple[Rule, Rule]:
    """The two rules of one operator."""
    sign, words = (_finite, "a finite") if op in LINEAR else (_positive, "a positive")
    conditions = [constant("s"), floating("x", "s"), not_all("s", 1), sign]
    options: dict[str, Any] = {"where": conditions, "exactness": exactness, "source": SOURCE}

    def behind(m: Match) -> Term:
        _require_channels(m, op, m.x)
        return mul(Apply(op, (m.x,), m.n.attributes), m.s)

    behind.__name__ = f"move_scale_behind_{op.lower()}"
    behind.__doc__ = f"""``{op}(x * s) == {op}(x) * s`` for {words} ``s``{_ALONG if op.endswith("Pool") else ""}."""
    first = rule(apply(op, mul(x, s)).named("n"), sample=_sample(op), **options)(behind)

    def before(m: Match) -> Term:
        _require_channels(m, op, m.n)
        return Apply(op, (mul(m.x, m.s),), m.n.attributes)

    before.__name__ = f"move_scale_before_{op.lower()}"
    before.__doc__ = f"""``{op}(x) * s == {op}(x * s)`` for {words} ``s``{_ALONG if op.endswith("Pool") else ""}."""
    second = rule(mul(apply(op, x).named("n"), s), sample=_sample(op), **options)(before)
    return first, second


_ALONG = " along the channels"

for _op, _exactness in PASSABLE.items():
    _define(_op, _exactness)


# --- sums ----------------------------------------------------------------------------------------------------------------


def absorbing(view: GroupView) -> set[int]:
    """Classes that a scale can enter: linear operators with constant weights, rectified or not, and sums of such."""
    found = {
        node.handle
        for op in PRODUCTS
        for node, inputs in view.nodes(op)
        if inputs[1] is not None and inputs[1].is_constant
    }
    size = -1
    while size < len(found):
        size = len(found)
        for op in ("Add", *(p for p in PASSABLE if traits_of(p).operands)):
            for node, inputs in view.nodes(op):
                if all(i is not None and (i.handle in found or (op == "Add" and i.is_constant)) for i in inputs):
                    found.add(node.handle)
    return found


def _draw_sum(d: Sampler) -> Instance:
    drawing = Drawing()
    m, k, n = d.extents(3)
    parts = []
    for _ in range(2):
        part = drawing.op("MatMul", drawing.value(d.floats((m, k))), drawing.value(d.either(d.floats((k, n)), 0.9)))
        parts.append(drawing.op("Relu", part) if d.chance() else part)
    total = drawing.op("Add", *parts)
    scale = d.either(d.scale(d.broadcast_with((m, n))), 0.9)
    return drawing.finish(drawing.op("Mul", total, drawing.value(scale)), *d.subset(parts, 0.2))


@group_rule(exactness=Exactness.ROUNDING, source="distributivity; TVM FoldScaleAxis", sample=_draw_sum)
def distribute_scale_over_absorbing_sum(view: GroupView) -> Iterator[Merge]:
    """``(a + b) * s == a * s + b * s`` for a positive constant ``s`` where weights absorb it in both ``a`` and ``b``."""
    reached = absorbing(view)
    sums: dict[int, list[tuple[Ref, Ref]]] = {}
    for node, (p, q) in view.nodes("Add"):
        if p is not None and q is not None and p.handle in reached and q.handle in reached:
            sums.setdefault(node.handle, []).append((p, q))
    for node, (p, q) in view.nodes("Mul"):
        if p is None or q is None or p.is_constant == q.is_constant:
            continue
        value, scale = (q, p) if p.is_constant else (p, q)
        for a, b in sums.get(value.handle, ()):
            try:
                if value.handle != node.handle and scale.dtype in FLOATS and _is_positive(scale):
                    yield node, add(mul(a, scale), mul(b, scale))
            except Unmet:
                continue


__all__ = ["PASSABLE", "absorbing", "distribute_scale_over_absorbing_sum"]
