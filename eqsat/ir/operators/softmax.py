"""Softmax and LogSoftmax, in the stable form: the maximum of the axis is taken out first."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind, define
from eqsat.ir.operators.dims import axis_of
from eqsat.ir.operators.elementwise import flops_per_element, narrow, wide
from eqsat.ir.traits import Rows, Traits
from eqsat.ir.types import Type


def _infer(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is not None:
        axis_of(app, app.attr("axis", -1), len(x.shape))
    return (x,)


def _softmax(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
    """``exp(x - max x) / sum exp(x - max x)`` along the axis."""
    axis: Any = attributes.get("axis", -1)
    x = wide(inputs[0])
    if x.size == 0:
        return (inputs[0],)
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return (narrow(e / e.sum(axis=axis, keepdims=True), inputs[0]),)


def _log_softmax(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
    """``x - max x - log(sum exp(x - max x))`` along the axis."""
    axis: Any = attributes.get("axis", -1)
    x = wide(inputs[0])
    if x.size == 0:
        return (inputs[0],)
    shifted = x - x.max(axis=axis, keepdims=True)
    return (narrow(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)), inputs[0]),)


_CHANCES = Traits(rows=Rows.ALONG, bounds=(0.0, 1.0), structure="softmax")
_LOGARITHMS = Traits(rows=Rows.ALONG, structure="log_softmax")

define("Softmax", infer=_infer, evaluate=_softmax, kind=Kind.REDUCTION, flops=flops_per_element(5), traits=_CHANCES)
define(
    "LogSoftmax",
    infer=_infer,
    evaluate=_log_softmax,
    kind=Kind.REDUCTION,
    flops=flops_per_element(6),
    traits=_LOGARITHMS,
)
