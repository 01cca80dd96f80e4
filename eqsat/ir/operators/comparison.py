"""Comparisons, logic, selection and tests of single values: booleans in or out."""

from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application
from eqsat.ir.operators.dims import broadcast, common_dtype
from eqsat.ir.operators.elementwise import comparison, define_elementwise, function, infer_comparison, narrow, wide
from eqsat.ir.traits import Traits
from eqsat.ir.types import DType, TensorType, Type


def _infer_test(app: Application) -> tuple[Type, ...]:
    return (TensorType(DType.BOOL, app.tensor(0).shape),)


def _infer_where(app: Application) -> tuple[Type, ...]:
    condition, x, y = app.tensor(0), app.tensor(1), app.tensor(2)
    if condition.dtype not in (DType.BOOL, DType.UNDEFINED):
        raise app.fail("the condition must be boolean")
    shape = x.shape if x.shape == y.shape else broadcast(app, x.shape, y.shape)
    return (TensorType(common_dtype(app, 1, 2), broadcast(app, condition.shape, shape)),)


def _where(attributes: Attributes, condition: Any, x: Any, y: Any) -> Any:
    """``x`` where the condition holds, else ``y``"""
    return narrow(np.where(condition, x, y), x)


def _is_inf(attributes: Attributes, x: Any) -> Any:
    x, up, down = wide(x), attributes.get("detect_positive", 1), attributes.get("detect_negative", 1)
    return np.asarray((np.equal(x, np.inf) & bool(up)) | (np.equal(x, -np.inf) & bool(down)))


def _is_nan(attributes: Attributes, x: Any) -> Any:
    return np.asarray(np.isnan(wide(x)))


def _not(attributes: Attributes, x: Any) -> Any:
    return np.asarray(np.logical_not(x))


_compared = Traits(operands=2, truth=True)
_ordered = replace(_compared, orders=True)
_joined = Traits(operands=2, truth=True, truths=(0, 1))

for _name, _compute, _commutes, _traits in (
    ("Equal", np.equal, True, _compared),
    ("Greater", np.greater, False, _ordered),
    ("GreaterOrEqual", np.greater_equal, False, _ordered),
    ("Less", np.less, False, _ordered),
    ("LessOrEqual", np.less_equal, False, _ordered),
    ("And", np.logical_and, True, replace(_joined, idempotent=True, neutral=True)),
    ("Or", np.logical_or, True, replace(_joined, idempotent=True, neutral=False)),
    ("Xor", np.logical_xor, True, replace(_joined, neutral=False)),
):
    define_elementwise(
        _name, comparison(_compute), infer=infer_comparison, bit_exact=True, commutative=_commutes, traits=_traits
    )

define_elementwise("Not", _not, infer=_infer_test, bit_exact=True, traits=function(truth=True, truths=(0,)))
define_elementwise("IsNaN", _is_nan, infer=_infer_test, bit_exact=True, traits=function(truth=True))
define_elementwise("IsInf", _is_inf, infer=_infer_test, bit_exact=True, traits=function(truth=True))
define_elementwise(
    "Where", _where, infer=_infer_where, bit_exact=True, traits=Traits(operands=3, sources=(1, 2), truths=(0,))
)
