"""Activations as ONNX Runtime has kernels: Gelu, BiasGelu, FastGelu, QuickGelu."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Term, apply, rule, variables
from eqsat.rules.terms import add, constant, mul, same_type
from eqsat.samples import Sampler, fixed

DOMAIN = "com.microsoft"
SOURCE = "contrib operators of ONNX Runtime"
x, b, c = variables("x b c")


def _value(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(1, 3), d.choose(("float32", "float32", "float16")), wild=d.chance(0.2))
    return {"x": x, "gelu": {"approximate": d.choose(("none", "tanh"))}}


def _biased(d: Sampler) -> dict[str, Any]:
    shape = d.shape(1, 3)
    x = d.floats(shape)
    vector = (shape[-1],) if d.chance(0.7) else d.broadcast_with(shape)
    return {"x": x, "b": d.either(d.floats(vector)), "gelu": {"approximate": d.choose(("none", "tanh"))}}


def _gate(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(1, 3))
    return {"x": x, "c": fixed(np.full(d.choose(((), (1,), (1,) * 4)), d.choose((1.702, 1.702, -0.5)), np.float32))}


def _name(m: Match, exact: str, approximate: str) -> str:
    m.require(m.x.dtype is DType.FLOAT, "kernels take float32 only")
    return f"{DOMAIN}::{approximate if m.gelu.attr('approximate', 'none') == 'tanh' else exact}"


@rule(
    apply("Gelu", x).named("gelu"),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_value,
    domain=DOMAIN,
)
def use_gelu_of_runtime(m: Match) -> Term:
    """``Gelu(x) == com.microsoft::Gelu(x)``, and ``FastGelu(x)`` for the approximate one: for files of old opsets, too."""
    return apply(_name(m, "Gelu", "FastGelu"), m.x)


@rule(
    apply("Gelu", add(x, b)).named("gelu"),
    where=[same_type("x")],
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_biased,
    domain=DOMAIN,
)
def fuse_bias_into_gelu(m: Match) -> Term:
    """``Gelu(x + b) == BiasGelu(x, b)`` for a vector ``b`` along the last axis; ``FastGelu(x, b)`` for the approximate one."""
    m.require(m.b.rank == 1 and m.b.static_shape[0] == m.x.shape[-1], "no vector along the last axis")
    return apply(_name(m, "BiasGelu", "FastGelu"), m.x, m.b)


@rule(
    mul(x, apply("Sigmoid", mul(x, c))),
    where=[constant("c"), same_type("x")],
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_gate,
    domain=DOMAIN,
)
def recognise_quick_gelu(m: Match) -> Term:
    """``x * Sigmoid(x * c) == QuickGelu(x, alpha=c)`` for a number ``c``."""
    m.require(m.x.dtype is DType.FLOAT, "the kernel takes float32 only")
    low, high = m.c.interval
    m.require(low == high and np.isfinite(low), "c is not one finite number")
    return apply(f"{DOMAIN}::QuickGelu", m.x, alpha=low)


@rule(
    mul(x, apply("Sigmoid", x)),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_value,
    domain=DOMAIN,
)
def recognise_swish_as_quick_gelu(m: Match) -> Term:
    """``x * Sigmoid(x) == QuickGelu(x, alpha=1)``."""
    m.require(m.x.dtype is DType.FLOAT, "the kernel takes float32 only")
    return apply(f"{DOMAIN}::QuickGelu", m.x, alpha=1.0)
