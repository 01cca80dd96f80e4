"""Operands of QuantizeLinear and DequantizeLinear: a scale, or one for each slice or block of an axis, and integers or ties."""

from typing import Any

import numpy as np

from eqsat.rule_check.operand_shapes import Known, Operand, Shape, Stated, plan
from eqsat.samples import Sampler
from eqsat.samples.quantised import parameters, ties


def _scales(d: Sampler, shape: Shape, attributes: Stated, shared: Shape | None) -> dict[str, Any]:
    """Scale, zero point and their type; the axis among the attributes. ``shared``: the shape of a scale that is there already."""
    if shared:
        along = [axis for axis, extent in enumerate(shape) if extent == shared[0]]
        drawn = parameters(d, shape, per_axis=0, dtype=d.integer_type())
        return drawn | {"attributes": {"axis": d.choose(along)} if along and shared[0] != 1 else {}}
    drawn = parameters(d, shape, per_axis=0.4, dtype=d.integer_type())
    return drawn | {"scale": -np.abs(drawn["scale"])} if d.chance(0.1) else drawn


def _operand(d: Sampler, wanted: Shape, attributes: Stated, known: Known) -> tuple[Shape, dict[str, Any]]:
    """The shape of what is quantised or dequantised, and its `_scales`, whose axis is added to ``attributes``."""
    shape = wanted if known[0] is None else known[0]
    drawn = _scales(d, shape, attributes, known[1])
    attributes |= drawn["attributes"]
    return shape, drawn


@plan("QuantizeLinear")
def _quantize(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape, drawn = _operand(d, wanted, attributes, known)
    return [Operand(shape, "drawn", ties(d, shape, drawn)), *_constants(drawn)][:count]


@plan("DequantizeLinear")
def _dequantize(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape, drawn = _operand(d, wanted, attributes, known)
    attributes |= d.dequantises()
    integers = d.integers(shape, drawn["dtype"])
    if count == 2 and d.chance(0.5):  # large ones, which float32 cannot tell apart
        integers = d.integers(shape, "int32", 2**24, 2**24 + 3)
    elif drawn["dtype"] in ("int8", "uint8") and d.chance(0.2):  # those that dequantise to infinities
        integers = d.integers(shape, drawn["dtype"], 124, 127)
        drawn["scale"] = np.full_like(drawn["scale"], d.choose((3e36, 3e36, np.inf)))
    return [Operand(shape, "drawn", integers), *_constants(drawn)][:count]


def _constants(drawn: dict[str, Any]) -> list[Operand]:
    return [Operand(drawn[name].shape, "fixed", drawn[name]) for name in ("scale", "zero")]


@plan("eqsat::Recenter")
def _recenter(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = wanted if known[0] is None else known[0]
    return [Operand(shape, "drawn", d.integers(shape, d.choose(("int8", "uint8"))))]
