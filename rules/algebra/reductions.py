"""Reductions in one form: the reduced axes kept, a mean as a mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.operator import Operator, operators_with
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Match, Merge, Ref, Term, Unmet, apply, group_rule, rule, variables
from eqsat.rules.terms import constant, mul, same_type
from eqsat.samples import Drawing, Instance, Sampler, fixed


def _reduces(op: Operator) -> bool:
    return op.traits.reduces


x, c = variables("x c")
(axes,) = variables("axes?")


def _chosen_axes(d: Sampler, rank: int) -> list[int]:
    chosen = [i - rank if d.chance() else i for i in range(rank) if d.chance(0.4)]
    return chosen or [d.integer(-rank, rank - 1)]


def _dropped(d: Sampler) -> Instance:
    drawing = Drawing()
    array = d.floats(d.shape(1, 4, ones=0.05))
    chosen = _chosen_axes(d, array.ndim)
    value = drawing.value(array)
    op = d.choose(operators_with(_reduces))
    kept = [1 if i in chosen or i - array.ndim in chosen else n for i, n in enumerate(array.shape)]
    reduced = drawing.op(op, value, drawing.value(fixed(chosen, "int64")), keepdims=0)
    if d.chance(0.2):
        d.rng.shuffle(kept)
    return drawing.finish(drawing.op("Reshape", reduced, drawing.value(fixed(kept, "int64"))))


@group_rule(exactness=Exactness.EXACT, source="ONNX reductions", sample=_dropped)
def keep_reduced_axes(view: GroupView) -> Iterator[Merge]:
    """``Reshape(ReduceMean(x, axes, keepdims=0), shape) == ReduceMean(x, axes, keepdims=1)``; others likewise."""
    reduced: dict[int, list[tuple[str, Ref, tuple[Ref | None, ...]]]] = {}
    for op in operators_with(_reduces):
        for node, inputs in view.nodes(op):
            if not node.attr("keepdims", 1) and not node.attr("noop_with_empty_axes", 0):
                reduced.setdefault(node.handle, []).append((op, node, inputs))
    if not reduced:
        return
    for node, (source, _) in view.nodes("Reshape"):
        for op, _, inputs in () if source is None else reduced.get(source.handle, ()):
            try:
                if node.shape == _kept_shape(inputs):
                    yield node, apply(op, *inputs, keepdims=1)
            except Unmet:
                continue


def _kept_shape(inputs: tuple[Ref | None, ...]) -> tuple[Any, ...]:
    """Shape of a reduction that keeps its axes with the extent 1."""
    value, axes = inputs[0], inputs[1] if len(inputs) > 1 else None
    assert value is not None
    rank = value.rank
    chosen = set(range(rank)) if axes is None else {int(a) % rank for a in axes.value.reshape(-1)}
    return tuple(1 if i in chosen else d for i, d in enumerate(value.shape))


def _averaged(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(1, 4, ones=0.05), d.choose(("float32", "float32", "float32", "float16")))
    chosen = _chosen_axes(d, x.ndim)
    count = int(np.prod([x.shape[a] for a in chosen]))
    count += 1 if d.chance(0.15) else 0
    found = {"x": x, "c": fixed(np.full(d.choose(((), (1,), (1,) * (x.ndim + 1))), 1 / count, x.dtype))}
    return found | {"axes": fixed(chosen, "int64"), "sum": {"keepdims": d.integer(0, 1)}}


@rule(
    mul(apply("ReduceSum", x, axes).named("sum"), c),
    where=[constant("axes", "c"), same_type("sum")],
    exactness=Exactness.ROUNDING,
    source="the mean is the sum divided by the number of elements",
    sample=_averaged,
)
def take_mean_instead_of_sum(m: Match) -> Term:
    """``ReduceSum(x, axes) * (1 / n) == ReduceMean(x, axes)`` for the number ``n`` of elements in each sum."""
    m.require(
        m.x.dtype is DType.FLOAT and not m.sum.attr("noop_with_empty_axes", 0), "no float32, or nothing is reduced"
    )
    rank = m.x.rank
    chosen = range(rank) if m.axes is None else {int(a) % rank for a in m.axes.value.reshape(-1)}
    extents = [m.x.shape[a] for a in chosen]
    m.require(all(isinstance(n, int) and n > 0 for n in extents), "the number of elements is unknown, or 0")
    mean = 1 / float(np.prod(extents))
    m.require(all(abs(b - mean) <= 2.4e-7 * mean for b in m.c.interval), "another factor than one over their number")
    return apply("ReduceMean", m.x, m.axes, keepdims=m.sum.attr("keepdims", 1))
