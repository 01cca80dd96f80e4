"""``eqsat::Recenter``: signed 8-bit integers as unsigned ones that are 128 greater, and back.

It has no kernel of its own on any runtime. It marks that a value may as well be computed unsigned, and disappears where it meets
another one or a quantisation; otherwise a program spells it out.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import ShapeError
from eqsat.ir.composite import define_composite
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind, Operator
from eqsat.ir.traits import Traits
from eqsat.ir.types import DType, TensorType, Type

RECENTER = "eqsat::Recenter"
OTHER_SIGN = {DType.INT8: DType.UINT8, DType.UINT8: DType.INT8}
"""The type that a recentred value has."""


def multiplies_bytes(op: Operator) -> bool:
    """Whether it is a product of integers with zero points, which may be recentred together."""
    return bool(op.traits.differences) and op.kind is Kind.ANCHOR


def _infer(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    _check(x)
    return (TensorType(OTHER_SIGN[x.dtype], x.shape),)


def _evaluate(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """Adding or taking off 128 exchanges the highest bit."""
    x = np.asarray(inputs[0])
    return ((x.view(np.uint8) ^ np.uint8(128)).view(OTHER_SIGN[DType.of(x.dtype)].numpy),)


def _check(found: Type) -> None:
    if found.dtype not in OTHER_SIGN:
        raise ShapeError(f"Recenter takes int8 or uint8, got {found}")


def _recenter(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    value = inputs[0]
    found = b.type_of(value)
    _check(found)
    signed, unsigned = b.constant(np.array(0, np.int8)), b.constant(np.array(128, np.uint8))
    first, second = (signed, unsigned) if found.dtype is DType.INT8 else (unsigned, signed)
    one = b.constant(np.array(1, np.float32))
    return [b.op("QuantizeLinear", b.op("DequantizeLinear", value, one, first), one, second)]


define_composite(RECENTER, _recenter, Kind.ELEMENTWISE, infer=_infer, evaluate=_evaluate, traits=Traits(operands=1))
