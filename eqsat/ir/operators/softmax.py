"""Softmax and LogSoftmax, in the stable form: the maximum of the axis is taken out first."""

from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import axis_of
from eqsat.ir.operators.elementwise import defines, narrow, wide
from eqsat.ir.traits import Rows, Traits
from eqsat.ir.types import Type

_CHANCES = Traits(rows=Rows.ALONG, bounds=(0.0, 1.0), structure="softmax")
_LOGARITHMS = Traits(rows=Rows.ALONG, structure="log_softmax")


def _infer(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is not None:
        axis_of(app, app.attr("axis", -1), len(x.shape))
    return (x,)


@defines("Softmax", infer=_infer, kind=Kind.REDUCTION, flops=5, traits=_CHANCES)
def _softmax(attributes: Attributes, x: Any) -> Any:
    """``exp(x - max x) / sum exp(x - max x)`` along the axis."""
    if x.size == 0:
        return x
    axis, data = attributes.get("axis", -1), wide(x)
    e = np.exp(data - data.max(axis=axis, keepdims=True))
    return narrow(e / e.sum(axis=axis, keepdims=True), x)


@defines("LogSoftmax", infer=_infer, kind=Kind.REDUCTION, flops=6, traits=_LOGARITHMS)
def _log_softmax(attributes: Attributes, x: Any) -> Any:
    """``x - max x - log(sum exp(x - max x))`` along the axis."""
    if x.size == 0:
        return x
    axis, data = attributes.get("axis", -1), wide(x)
    shifted = data - data.max(axis=axis, keepdims=True)
    return narrow(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)), x)
