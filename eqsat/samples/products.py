"""Operands of products, convolutions and pools, from what their traits say of channels and windows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eqsat.errors import EqsatError
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import traits_of
from eqsat.ir.schema_operator import attributes_of_schema
from eqsat.ir.traits import Traits
from eqsat.samples import Drawing, Instance, Sampler, fixed
from eqsat.samples.packed import packed_products_of_one_value

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Operand:
    """What to draw for an operand: a shape, and either fixed elements or a kind of elements.

    ``kind``: ``data`` (of the instance's element type), ``other`` (of another one), ``bool``, ``positive``, or ``fixed`` (then
    ``value`` is a constant). ``whole``: one number in place of the shape would not do. ``terms``: of weights, how
    many products are summed up.
    """

    shape: Shape
    kind: str = "data"
    value: np.ndarray | None = None
    whole: bool = False
    terms: int = 0


def indices(values: Sequence[int]) -> Operand:
    """A constant vector of int64, as shapes, axes and bounds are given."""
    array = np.asarray(values, np.int64)
    return Operand(array.shape, "fixed", array)


def plan_product(
    traits: Traits, d: Sampler, wanted: Shape, count: int, attributes: dict[str, Any], known: Sequence[Shape | None]
) -> list[Operand]:
    """Data, weights and further operands, each with its channels where the operator's traits say."""
    product = traits.product
    assert product is not None
    assert product.axes is not None
    axes = product.axes(Attributes(attributes))
    data = known[product.data]
    stacks = axes.data < 0  # an operator of matrices, or of stacks of them
    rank = len(data) if data else max(len(wanted), 2) if stacks else d.choose((3, 4)) if product.slides else 2
    wanted = wanted if len(wanted) == rank else d.extents(rank)
    weights, terms = known[product.weights], 0
    inner = (
        data[axes.data]
        if data
        else weights[max(axes.inner, -len(weights))]
        if weights
        else axes.groups * d.integer(2, 5)
    )
    outer = weights[axes.outer] if weights else wanted[axes.result] * axes.groups
    kernel = tuple(d.integer(1, 3) for _ in range(rank - 2)) if product.slides else ()
    if data is None:
        rows = [n for i, n in enumerate(wanted) if i != axes.result % rank]
        rows = rows[:1] + [n + k - 1 for n, k in zip(rows[1:], kernel, strict=True)] if kernel else rows
        rows.insert(axes.data % rank, inner)
        data = tuple(rows)
    if weights is None:
        runs = [0, 0]
        runs[axes.inner], runs[axes.outer] = inner, outer
        runs[axes.inner if axes.grouped_inside else axes.outer] //= axes.groups
        weights, terms = (*runs, *kernel), runs[axes.inner] * math.prod(kernel)
        kind = d.rng.random() if stacks else 1.0
        if kind < 0.35:  # a stack of matrices, at times behind a vector
            weights = (*(data[:-2] if rank > 2 and d.chance(0.7) else (d.integer(2, 3),)), *weights)
            data = data if known[product.data] or d.chance(0.7) else (inner,)
        elif kind < 0.45:
            weights = (inner,)
    by_channel = product.bias in traits.vectors
    bias = (outer,) if by_channel else d.broadcast_of((*wanted[:-1], outer))
    parts = {product.data: Operand(data), product.weights: Operand(weights, whole=True, terms=terms)}
    parts[product.bias or 0] = Operand(bias, whole=by_channel) if product.bias else parts[0]
    planned = [parts.get(i, Operand(())) for i in range(count)]
    if product.slides:
        attributes |= _window(d, rank - 2)
    return [o if k is None else replace(o, shape=k) for o, k in zip(planned, known, strict=True)]


def _window(d: Sampler, rank: int) -> dict[str, Any]:
    """Attributes of what slides a window over axes, ``rank`` of them."""
    found: dict[str, Any] = {}
    if d.chance(0.4):
        found["pads"] = tuple(d.integer(0, 1) for _ in range(2 * rank))
    elif d.chance(0.4):
        found["auto_pad"] = d.choose(("VALID", "SAME_UPPER"))
    if d.chance(0.3):
        found["strides"] = tuple(d.integer(1, 2) for _ in range(rank))
    if d.chance(0.2):
        found["dilations"] = tuple(d.integer(1, 2) for _ in range(rank))
    return found


def plan_windows(
    op: str, d: Sampler, wanted: Shape, known: Sequence[Shape | None], attributes: dict[str, Any]
) -> list[Operand]:
    """What an operator slides windows over, channel by channel, and what it has of each channel."""
    shape = known[0] or (wanted if len(wanted) > 2 else d.extents(d.integer(3, 4), 0))
    stated = attributes_of_schema(op) or {}
    if "kernel_shape" in stated:
        attributes |= {"kernel_shape": (d.choose((2, 3)),) * (len(shape) - 2)} | _window(d, len(shape) - 2)
        if d.chance(0.3):
            attributes |= {"ceil_mode": 1, "strides": (2,) * (len(shape) - 2)}
    if "count_include_pad" in stated and d.chance():
        attributes["count_include_pad"] = 1
    return [Operand(shape), *(Operand(k or shape[1:2]) for k in known[1:])]


def products_of_one_value(d: Sampler, op: str) -> Instance:
    """Products of one value by weights that mostly differ in the number of channels alone; some scaled or with a bias."""
    drawing, traits = Drawing(), traits_of(op)
    assert traits.product is not None
    assert traits.product.axes is not None
    if traits.product.packed:
        return packed_products_of_one_value(d, op)
    attributes: dict[str, Any] = {"group": 2} if traits.product.slides and d.chance(0.3) else {}
    operands = plan_product(traits, d, d.shape(2, 4), 2, attributes, [None, None])
    outer = traits.product.axes(Attributes(attributes)).outer
    integers = bool(traits.differences)
    x = drawing.value(d.integers(operands[0].shape, "uint8") if integers else d.floats(operands[0].shape))
    zero = drawing.value(fixed(d.integers((), "uint8"))) if integers and d.chance() else ""
    values: list[str] = []
    for _ in range(d.integer(2, 4)):
        shape, own = list(operands[1].shape), dict(attributes)
        if d.chance(0.15):
            shape = list(plan_product(traits, d, (), 2, own, [operands[0].shape, None])[1].shape)
        elif len(shape) > 1:
            shape[outer] *= d.integer(1, 3)
        symbolic = shape[outer:][:1] if len(shape) > 1 and d.chance(0.15) else ()
        weights = drawing.value(d.either(d.integers(shape, "int8") if integers else d.floats(shape), 0.7), symbolic)
        channels = shape[outer] if len(shape) > 1 else 1
        more = [drawing.value(d.either(d.floats((channels,))))] if traits.product.bias and d.chance(0.6) else []
        if integers and (zero or d.chance(0.3)):
            points = d.choose(((), (1,), (channels,), (channels,)))
            more = [zero, drawing.value(fixed(d.integers(points, "int8")))]
        try:
            values.append(drawing.op(op, x, weights, *more, **own))
        except EqsatError:  # windows larger than the data, or vectors
            continue
        if d.chance(0.15) and not integers:
            values.append(drawing.op("Mul", values[-1], drawing.value(fixed(d.floats((1,))))))
    return drawing.finish(*(values or [drawing.op("Identity", x)]))
