"""Conversions between element types."""

from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.elementwise import defines, function
from eqsat.ir.schema_operator import evaluate_by_reference
from eqsat.ir.traits import Traits
from eqsat.ir.types import DType, TensorType, Type

PLAIN = frozenset(
    d
    for d in DType
    if d.name.startswith(("INT", "UINT", "FLOAT", "DOUBLE", "BFLOAT", "BOOL", "COMPLEX")) and d.bits >= 8
) - {d for d in DType if d.name.startswith("FLOAT8")}
"""Element types between which numpy converts as ONNX does; the narrower ones saturate and need more care."""


def cast(x: np.ndarray, to: DType, attributes: Attributes) -> np.ndarray:
    """``x`` converted to ``to``: rounding to nearest even into floats, toward zero into integers."""
    if DType.of(x.dtype) in PLAIN and to in PLAIN:
        if to is DType.BOOL:
            return np.not_equal(x, np.zeros((), x.dtype))
        return x.astype(to.numpy)
    return evaluate_by_reference("Cast", attributes.updated(to=int(to)), [x])[0]


def _infer_cast(app: Application) -> tuple[Type, ...]:
    return (TensorType(DType(app.attr("to")), app.tensor(0).shape),)


@defines("Cast", infer=_infer_cast, kind=Kind.ELEMENTWISE, bit_exact=True, traits=function(converts=True, widens=True))
def _cast(attributes: Attributes, x: Any) -> Any:
    return cast(x, DType(attributes["to"]), attributes)


def _infer_cast_like(app: Application) -> tuple[Type, ...]:
    return (TensorType(app.tensor(1).dtype, app.tensor(0).shape),)


@defines("CastLike", infer=_infer_cast_like, kind=Kind.ELEMENTWISE, bit_exact=True, traits=Traits(converts=True))
def _cast_like(attributes: Attributes, x: Any, like: Any) -> Any:
    return cast(x, DType.of(like.dtype), attributes)
