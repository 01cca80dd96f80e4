"""Random products of one value, for what puts them side by side."""

from typing import Any

from eqsat.errors import EqsatError
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import traits_of
from eqsat.samples import Drawing, Instance, Sampler, fixed
from eqsat.samples.packed import packed_products_of_one_value
from eqsat.samples.products import plan_product


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
