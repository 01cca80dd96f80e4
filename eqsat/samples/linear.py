"""What the samples of linear operators share: random convolutions and products, and constants that may lie along an axis."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import EqsatError
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import traits_of
from eqsat.samples import Drawing, Instance, Sampler, fixed
from eqsat.samples.products import plan_product


def shape_along(d: Sampler, shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """Mostly a shape with the extent of ``axis`` and ones; else one number, or any shape that broadcasts with ``shape``."""
    kind = d.rng.random()
    if kind < 0.2:
        return d.choose(((), (1,), (1,) * len(shape)))
    if kind < 0.4:
        return d.broadcast_with(shape)
    axis %= len(shape)
    full = tuple(n if i == axis else 1 for i, n in enumerate(shape))
    return full[d.integer(0, axis) :]


def convolution(d: Sampler, *, transposed: bool = False, square: bool = False) -> dict[str, Any]:
    """Input, weights, maybe a bias and the attributes of a Conv or ConvTranspose, and the shape of its result.

    ``square``: the last extent of the result is often the number of output channels, so that a vector along the width
    looks like one along the channels.
    """
    group = d.choose((1, 1, 2, 3))
    each_in, each_out, batch = d.extents(3, ones=0.2)
    rank = d.choose((1, 2))
    kernel = [d.integer(1, 3) for _ in range(rank)]
    attributes: dict[str, Any] = {"group": group} if group > 1 or d.chance() else {}
    if d.chance():
        attributes["pads"] = tuple(d.integer(0, 1) for _ in range(2 * rank))
    if d.chance(0.3):
        attributes["strides"] = tuple(d.integer(1, 2) for _ in range(rank))
    if d.chance(0.2):
        attributes["dilations"] = tuple(d.integer(1, 2) for _ in range(rank))
    if d.chance(0.3):
        attributes["kernel_shape"] = tuple(kernel)
    inputs, outputs = group * each_in, group * each_out
    extents = [d.integer(5, 7) for _ in range(rank)]
    if square and d.chance():
        attributes = {"group": group}
        extents[-1] = outputs + kernel[-1] - 1 if not transposed else max(outputs - kernel[-1] + 1, 1)
    x = d.floats((batch, inputs, *extents))
    w = d.floats((inputs, each_out, *kernel) if transposed else (outputs, each_in, *kernel))
    b = d.floats((outputs,)) if d.chance() else None
    return {"x": x, "w": w, "b": b, "attributes": attributes, "result": _result(x, w, attributes, transposed)}


def _result(x: np.ndarray, w: np.ndarray, attributes: dict[str, Any], transposed: bool) -> tuple[int, ...]:
    from eqsat.ir.interpret import evaluate_operator

    op = "ConvTranspose" if transposed else "Conv"
    return evaluate_operator(op, Attributes(attributes), (x, w))[0].shape


def products_of_one_value(d: Sampler, op: str) -> Instance:
    """Products of one value by weights that mostly differ in the number of channels alone; some scaled or with a bias."""
    drawing, traits = Drawing(), traits_of(op)
    assert traits.product is not None
    assert traits.product.axes is not None
    attributes: dict[str, Any] = {"group": 2} if traits.product.slides and d.chance(0.3) else {}
    operands = plan_product(traits, d, d.shape(2, 4), 2, attributes, [None, None])
    outer = traits.product.axes(Attributes(attributes)).outer
    x = drawing.value(d.floats(operands[0].shape))
    values: list[str] = []
    for _ in range(d.integer(2, 4)):
        shape, own = list(operands[1].shape), dict(attributes)
        if d.chance(0.15):
            shape = list(plan_product(traits, d, (), 2, own, [operands[0].shape, None])[1].shape)
        elif len(shape) > 1:
            shape[outer] *= d.integer(1, 3)
        symbolic = shape[outer:][:1] if len(shape) > 1 and d.chance(0.15) else ()
        weights = drawing.value(d.either(d.floats(shape), 0.7), symbolic)
        channels = shape[outer] if len(shape) > 1 else 1
        bias = [drawing.value(d.either(d.floats((channels,))))] if traits.product.bias and d.chance(0.6) else []
        try:
            values.append(drawing.op(op, x, weights, *bias, **own))
        except EqsatError:  # windows larger than the data, or vectors
            continue
        if d.chance(0.15):
            values.append(drawing.op("Mul", values[-1], drawing.value(fixed(d.floats((1,))))))
    return drawing.finish(*(values or [drawing.op("Identity", x)]))
