"""Convolutions, pools and resizing of images as ONNX Runtime computes them at its highest level: on blocks of channels.

It has such a kernel in a domain of its own, between kernels that rearrange the image. Convolutions that follow one another need
none of these between them, so what is timed is the kernel alone: with weights in blocks, and channels that fill the last one.
"""

from dataclasses import replace
from functools import cache

from eqsat.backends.onnxruntime import Session
from eqsat.calibrate.case import Case, Operand, data, weight
from eqsat.calibrate.copies import build
from eqsat.cost.model import static_shape
from eqsat.errors import ModelError
from eqsat.ir.graph import Attributes
from eqsat.ir.operators.onnxruntime_products import (
    BLOCK,
    FUSED_CONV,
    LEAST_BLOCK,
    POOLS,
    doubles,
    on_blocks,
    pools_blocks,
    resizes_blocks,
)
from eqsat.ir.types import DType, TensorType

_DOMAIN = "com.microsoft.nchwc"


def as_run(case: Case) -> Case:
    """The kernel that the runtime has for ``case`` at its highest level, where that is one on blocks; ``case`` otherwise."""
    image, filters, *rest = (*case.operands, None, None)
    if case.key in POOLS and image is not None and pools_blocks(_shape(image)) and _has_blocks():
        return replace(case, key=f"{_DOMAIN}::{case.key}")
    if case.key == "Resize" and image is not None and _has_blocks():
        return _resized(case, image)
    if case.key not in ("Conv", FUSED_CONV) or image is None or filters is None:
        return case
    group = int(case.attributes.get("group", 1))
    if image.type.dtype is not DType.FLOAT or not on_blocks(group, _shape(image), _shape(filters)) or not _has_blocks():
        return case
    return _on_blocks(case, group, image, filters, [o for o in rest if o is not None])


def _resized(case: Case, image: Operand) -> Case:
    """An image repeated or interpolated on blocks, but for those that are doubled, which takes as long outside."""
    shape, factors = _shape(image), case.operands[2]
    by = tuple(factors.value) if factors is not None and factors.value is not None else ()
    result = tuple(int(n * f) for n, f in zip(shape, by, strict=False))
    if not pools_blocks(shape) or not resizes_blocks(case.attributes, shape, result):
        return case
    if doubles(case.attributes, shape, result):
        return case
    stated = {"mode": case.attributes.get("mode", "nearest"), "scales": tuple(map(int, by))}
    stated["coordinate_transformation_mode"] = case.attributes.get("coordinate_transformation_mode", "half_pixel")
    return replace(case, key=f"{_DOMAIN}::Upsample", attributes=Attributes(stated), operands=(image,))


def _on_blocks(case: Case, group: int, image: Operand, filters: Operand, rest: list[Operand]) -> Case:
    (batch, channels, *sides), (count, own, *window) = _shape(image), _shape(filters)
    depthwise = group > 1 and own == 1
    filled = channels if channels < LEAST_BLOCK else _filled(channels)
    attributes = Attributes({**case.attributes, "group": filled if depthwise else group})
    operands = (
        data("float32", batch, filled, *sides),
        weight("float32", _filled(count), own if group > 1 else filled, *window),
        *(weight("float32", _filled(count)) for _ in rest),
    )
    return replace(case, key=f"{_DOMAIN}::Conv", attributes=attributes, operands=operands)


def written(case: Case, run: Case, results: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """The types of what ``case`` writes, by the ``results`` of the kernel ``run`` in its place."""
    filters = case.operands[1] if run is not case and len(case.operands) > 1 else None
    if filters is None:
        return results
    shapes = [static_shape(r) or () for r in results]
    return tuple(replace(r, shape=(*s[:1], *_shape(filters)[:1], *s[2:])) for r, s in zip(results, shapes, strict=True))


def _filled(channels: int) -> int:
    return -(-channels // BLOCK) * BLOCK


def _shape(operand: Operand) -> tuple[int, ...]:
    return static_shape(operand.type) or ()


@cache
def _has_blocks() -> bool:
    """Whether the runtime computes on blocks of channels on this processor."""
    case = Case(
        f"{_DOMAIN}::Conv",
        Attributes({"kernel_shape": (1, 1)}),
        (data("float32", 1, BLOCK, 1, 1), weight("float32", BLOCK, BLOCK, 1, 1)),
    )
    model = build(case, 1)
    try:
        Session(model.proto, weights=model.weights).run(model.feeds)
    except ModelError:
        return False
    return True
