"""Gated activations that exporters spell out become one operator (E28): Swish, HardSwish, Mish.

A value times a bounded function of itself. Swish has a factor inside: with 1 it is SiLU, with 1.702 the quick GELU, which is
another function than Gelu. Few runtimes have all of these; where one has not, the target's description says so, and the
spelling with a Sigmoid or Tanh is chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Term, apply, rule, variables
from eqsat.rules.sampling import Sampler, fixed
from eqsat.rules.terms import about, add, constant, every_element, mul, same_type

ROUNDING = Exactness.ROUNDING
x, c, one, three, low, high, sixth = variables("x c one three low high sixth")


def _check(m: Match) -> None:
    m.require(m.x.dtype is DType.FLOAT, "no float32")


def _input(d: Sampler) -> dict[str, Any]:
    return {"x": d.floats(d.shape(), d.choose(("float32", "float32", "float32", "float16")), wild=d.chance(0.2))}


@rule(
    mul(x, apply("Sigmoid", x)),
    exactness=ROUNDING,
    source="ONNX Swish; Ramachandran et al. 2017",
    family="E28",
    sample=_input,
)
def recognise_silu(m: Match) -> Term:
    """``x * Sigmoid(x) == Swish(x)``."""
    _check(m)
    return apply("Swish", m.x, alpha=1.0)


def _logistic(d: Sampler) -> dict[str, Any]:
    drawn = _input(d)
    dtype = drawn["x"].dtype
    return drawn | {
        "c": fixed(np.asarray(d.choose((-1, -1, -1, -1, -2)), dtype)),
        "one": fixed(np.full(d.choose(((), (1,), (1,) * (drawn["x"].ndim + 1))), 1 if d.chance(0.85) else 2, dtype)),
    }


@rule(
    apply("Reciprocal", add(apply("Exp", mul(x, c)), one)),
    where=[constant("c", "one"), every_element("c", -1), every_element("one", 1), same_type("x")],
    exactness=ROUNDING,
    source="ONNX Sigmoid",
    family="E28",
    sample=_logistic,
)
def recognise_sigmoid(m: Match) -> Term:
    """``Reciprocal(Exp(-x) + 1) == Sigmoid(x)``; where the exponential overflows, both are 0."""
    _check(m)
    return apply("Sigmoid", m.x)


def _with_factor(d: Sampler) -> dict[str, Any]:
    drawn = _input(d)
    shape = (1,) * (drawn["x"].ndim + 1) if d.chance(0.1) else d.choose(((), (1,), (1,) * drawn["x"].ndim))
    factor = d.choose((1.702, 0.5, -1.0, 0.0)) if d.chance(0.9) else np.inf
    return drawn | {
        "c": fixed(np.full(shape, factor, drawn["x"].dtype)) if d.chance(0.9) else d.floats((1,), str(drawn["x"].dtype))
    }


@rule(
    mul(x, apply("Sigmoid", mul(x, c))),
    where=[constant("c"), same_type("x")],
    exactness=ROUNDING,
    source="ONNX Swish; Hendrycks and Gimpel 2016 for 1.702",
    family="E28",
    sample=_with_factor,
)
def recognise_swish(m: Match) -> Term:
    """``x * Sigmoid(x * c) == Swish(x, alpha=c)`` for a number ``c``."""
    _check(m)
    m.require(m.c.value.size == 1, "the factor is no number")
    alpha = float(m.c.value.reshape(()))
    m.require(np.isfinite(alpha), "the factor is not finite")
    return apply("Swish", m.x, alpha=alpha)


@rule(
    mul(x, apply("Tanh", apply("Softplus", x))),
    exactness=ROUNDING,
    source="ONNX Mish; Misra 2019",
    family="E28",
    sample=_input,
)
def recognise_mish(m: Match) -> Term:
    """``x * Tanh(Softplus(x)) == Mish(x)``."""
    _check(m)
    return apply("Mish", m.x)


def _gate(d: Sampler) -> dict[str, Any]:
    alpha = 1 / 6 if d.chance(0.8) else 0.2
    return _input(d) | {"gate": {"alpha": float(np.float32(alpha)), "beta": 0.5 if d.chance(0.9) else 0.4}}


@rule(
    mul(x, apply("HardSigmoid", x).named("gate")),
    exactness=ROUNDING,
    source="ONNX HardSwish; Howard et al. 2019",
    family="E28",
    sample=_gate,
)
def recognise_hard_swish(m: Match) -> Term:
    """``x * HardSigmoid(x, 1/6, 1/2) == HardSwish(x)``."""
    _check(m)
    alpha, beta = m.gate.attr("alpha", 0.2), m.gate.attr("beta", 0.5)
    m.require(np.float32(alpha) == np.float32(1 / 6) and beta == 0.5, "another slope or offset than 1/6 and 1/2")
    return apply("HardSwish", m.x)


def _ramp(d: Sampler) -> dict[str, Any]:
    drawn = _input(d)
    dtype = drawn["x"].dtype

    def number(value: float, other: float) -> Any:
        shape = (1,) * (drawn["x"].ndim + 1) if d.chance(0.1) else d.choose(((), (1,)))
        return fixed(np.full(shape, value if d.chance(0.9) else other, dtype))

    bounds = {"low": 0 if d.chance(0.9) else 1, "high": 6 if d.chance(0.85) else 5}
    ends = {name: fixed(np.array(value, dtype)) for name, value in bounds.items()}
    return drawn | ends | {"three": number(3, 2), "sixth": number(1 / 6, 0.2)}


_IS_RAMP = (
    constant("three", "low", "high", "sixth"),
    every_element("three", 3),
    every_element("low", 0),
    every_element("high", 6),
    about("sixth", 1 / 6),
    same_type("x"),
)


@rule(
    mul(apply("Clip", add(x, three), low, high), sixth),
    where=_IS_RAMP,
    exactness=ROUNDING,
    source="ONNX HardSigmoid",
    family="E28",
    sample=_ramp,
)
def recognise_hard_sigmoid(m: Match) -> Term:
    """``Clip(x + 3, 0, 6) * (1/6) == HardSigmoid(x, 1/6, 1/2)``."""
    _check(m)
    return apply("HardSigmoid", m.x, alpha=float(np.float32(1 / 6)), beta=0.5)


@rule(
    mul(mul(x, apply("Clip", add(x, three), low, high)), sixth),
    where=_IS_RAMP,
    exactness=ROUNDING,
    source="associativity over the reals",
    family="E28",
    sample=_ramp,
)
def move_sixth_into_gate(m: Match) -> Term:
    """``(x * Clip(x + 3, 0, 6)) * (1/6) == x * HardSigmoid(x, 1/6, 1/2)``, in which less overflows."""
    _check(m)
    return mul(m.x, apply("HardSigmoid", m.x, alpha=float(np.float32(1 / 6)), beta=0.5))
