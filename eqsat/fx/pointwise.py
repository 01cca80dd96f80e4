"""Operators of torch, element by element: arithmetic, functions of one variable, comparisons, selection, conversions."""

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F

from eqsat.fx.site import WRITERS, Site, Unwritten, writes

_UNARY: dict[str, Callable[..., Any]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": F.hardswish,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": F.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softsign": F.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}
_BINARY: dict[str, Callable[..., Any]] = {
    "And": torch.logical_and,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Sub": operator.sub,
}
"""Those that take numbers on either side."""

_BENT: dict[str, Callable[..., Any]] = {"Celu": F.celu, "Elu": F.elu, "LeakyRelu": F.leaky_relu}
"""Those that are bent as much as ``alpha`` says."""

WRITERS.update({name: lambda site, f=f: site.call(f, site.operands[0]) for name, f in _UNARY.items()})
WRITERS.update({name: lambda site, f=f: site.call(f, *site.operands) for name, f in _BINARY.items()})
WRITERS.update({name: lambda site, f=f: site.call(f, *site.scalars()) for name, f in _ARITHMETIC.items()})
WRITERS.update(
    {name: lambda site, f=f: site.call(f, site.operands[0], site.attr("alpha")) for name, f in _BENT.items()}
)
WRITERS["Cast"] = WRITERS["CastLike"] = lambda site: site.operands[0].to(site.dtype)
WRITERS["Identity"] = lambda site: site.operands[0]
WRITERS["Sum"] = lambda site: reduce(operator.add, site.operands)
WRITERS["Mean"] = lambda site: WRITERS["Sum"](site) / len(site.operands)


# --- arithmetic


@writes("Mul")
def _mul(site: Site) -> Any:
    """What is converted stands behind a factor for each column: Inductor takes a first factor of sums for that of rows, and does
    not look at its shape (torch 2.13, ``_register_smooth_quant_int_mm_pattern``)."""
    producer = site.scope.producers.get(site.node.inputs[0])
    converted = producer is not None and producer.key == "Cast"
    factors = site.scalars()
    columns = (site.type(1).shape or (1,))[-1] != 1
    return site.call(operator.mul, *(reversed(factors) if converted and columns else factors))


@writes("Div")
def _div(site: Site) -> Any:
    a, b = site.scalars()
    if site.result.dtype.is_float:
        return site.call(operator.truediv, a, b)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return site.call(torch.div, *site.operands, rounding_mode="trunc")


@writes("Pow")
def _pow(site: Site) -> Any:
    x, y = site.operands
    if site.result.dtype.is_integer:
        known = site.value(1)
        if known is not None and known.dtype.kind in "iu" and (known >= 0).all():
            return site.call(torch.pow, x, y.to(site.dtype))
        return site.call(torch.pow, x.to(torch.float64), y.to(torch.float64)).to(site.dtype)
    exponent = site.scalars()[1]
    return site.call(
        torch.pow, x, exponent.to(site.dtype) if exponent is y and site.type(1) != site.type(0) else exponent
    )


@writes("Mod")
def _mod(site: Site) -> Any:
    return site.call(torch.fmod if site.attr("fmod") else torch.remainder, *site.operands)


@writes("BitShift")
def _bit_shift(site: Site) -> Any:
    left = site.attr("direction") == "LEFT"
    return site.call(torch.bitwise_left_shift if left else torch.bitwise_right_shift, *site.operands)


@writes("Max", "Min")
def _extremum(site: Site) -> Any:
    largest = site.node.op == "Max"
    function, bound = (torch.maximum, "min") if largest else (torch.minimum, "max")

    def join(a: Any, b: Any) -> Any:
        if isinstance(a, int | float):
            a, b = b, a
        return site.call(torch.clamp, a, **{bound: b}) if isinstance(b, int | float) else site.call(function, a, b)

    return reduce(join, site.scalars()) if len(site.operands) > 1 else site.operands[0]


@writes("Clip")
def _clip(site: Site) -> Any:
    x = site.operands[0]
    bounds = {"min": site.operand(1), "max": site.operand(2)}
    for i, name in ((1, "min"), (2, "max")):
        if site.has(i) and site.value(i) is not None:
            bounds[name] = site.number(i)
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    if all(isinstance(bound, int | float) for bound in given.values()):
        return site.call(torch.clamp, x, **given) if given else x
    low, high = site.operand(1), site.operand(2)
    x = site.call(torch.maximum, x, low) if low is not None else x
    return site.call(torch.minimum, x, high) if high is not None else x


# --- activations


@writes("Gelu")
def _gelu(site: Site) -> Any:
    return site.call(F.gelu, site.operands[0], approximate=site.attr("approximate"))


@writes("Swish", "SwiGLU")
def _swish(site: Site) -> Any:
    (x, *factors), alpha = site.operands, site.attr("alpha")
    found = site.call(F.silu, x) if alpha == 1 else x * site.call(torch.sigmoid, x * alpha)
    return found * factors[0] if factors else found


@writes("Softplus")
def _softplus(site: Site) -> Any:
    return site.call(F.softplus, site.operands[0], beta=1.0, threshold=40.0)


@writes("PRelu")
def _prelu(site: Site) -> Any:
    x, slope = site.operands
    return site.call(torch.where, x >= 0, x, x * slope)


@writes("ThresholdedRelu")
def _thresholded_relu(site: Site) -> Any:
    x = site.operands[0]
    return site.call(torch.where, x > site.attr("alpha"), x, 0.0)


@writes("Shrink")
def _shrink(site: Site) -> Any:
    x, bias, limit = site.operands[0], site.attr("bias"), site.attr("lambd")
    inner = site.call(torch.where, x > limit, x - bias, x * 0 if site.result.dtype.is_integer else 0.0)
    return site.call(torch.where, x < -limit, x + bias, inner).to(site.dtype)


@writes("Selu")
def _selu(site: Site) -> Any:
    return WRITERS["Elu"](site) * site.attr("gamma")


@writes("HardSigmoid")
def _hard_sigmoid(site: Site) -> Any:
    return site.call(torch.clamp, site.operands[0] * site.attr("alpha") + site.attr("beta"), min=0, max=1)


# --- selection, tests, conversions


@writes("Where")
def _where(site: Site) -> Any:
    condition, x, y = site.scalars(1, 2)
    if not isinstance(y, int | float) or not isinstance(x, int | float):
        return site.call(torch.where, condition, x, y)
    return site.call(torch.where, *site.operands)


@writes("IsInf")
def _is_inf(site: Site) -> Any:
    x, above, below = site.operands[0], site.attr("detect_positive"), site.attr("detect_negative")
    if above and below:
        return site.call(torch.isinf, x)
    if not above and not below:
        return site.call(torch.zeros_like, x, dtype=torch.bool)
    return site.call(torch.isposinf if above else torch.isneginf, x)


@writes("Dropout")
def _dropout(site: Site) -> Any:
    """An identity at inference, and a mask of ones."""
    x = site.operands[0]
    if site.has(2) and (site.value(2) is None or site.number(2)):
        raise Unwritten("it trains")
    return x, site.call(torch.ones_like, x, dtype=torch.bool)


@writes("Add")
def _add(site: Site) -> Any:
    """A sum, or a linear layer where it adds a vector to the columns of a product that nobody else reads."""
    for product, bias in ((0, 1), (1, 0)):
        found = site.scope.producers.get(site.node.inputs[product])
        if found is None or found.key != "MatMul" or site.scope.readers[found.outputs[0]] != 1:
            continue
        data, weight = (Site(site.scope, found, []).type(i) for i in range(2))
        if weight.rank == 2 and (data.rank or 0) > 1 and site.type(bias).shape == (weight.shape or ())[1:]:
            x, w = (site.scope.values[v] for v in found.inputs)
            return site.call(F.linear, x, w.t(), site.operands[bias])
    return site.call(operator.add, *site.scalars())
