"""Structure (E39, E40): operators that do nothing, dropout at inference, and one normal form for views of a tensor.

Reshape, Squeeze, Unsqueeze and Flatten of a value to one shape are one computation: each becomes a Reshape to a constant
target, so that equal views are one e-node and chains of views collapse (`eqsat.rules.views`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.constants import Constant
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Match, Term, apply, rule, variables
from eqsat.rules.sampling import Sampler, fixed
from eqsat.rules.terms import condition, permutation_of, same_type

EXACT = Exactness.EXACT
TRUE = Constant.of([True])
x, y, s, t, u, v = variables("x y s t u v")
a, b, c = variables("a? b? c?")
SPEC = "ONNX operator specification"


def _array(d: Sampler) -> dict[str, Any]:
    return {"x": d.array(d.shape())}


# --- operators that do nothing -------------------------------------------------------------------------------------------


@rule(apply("Identity", x), exactness=EXACT, source=SPEC, family="E40", sample=_array)
def remove_identity(m: Match) -> Term:
    """``Identity(x) == x``."""
    return m.x


def _cast(d: Sampler) -> dict[str, Any]:
    dtype = d.choose(("float32", "float16", "int64", "int32", "bool"))
    to = dtype if d.chance(0.7) else d.choose(("float32", "int32"))
    return {
        "x": d.floats(d.shape(), dtype) if dtype.startswith("f") else d.integers(d.shape(), dtype),
        "n": {"to": int(DType.of(to))},
    }


@rule(apply("Cast", x).named("n"), where=[same_type("x")], exactness=EXACT, source=SPEC, family="E40", sample=_cast)
def remove_cast(m: Match) -> Term:
    """``Cast(x, to) == x`` where ``x`` has the element type ``to``."""
    return m.x


def _cast_like(d: Sampler) -> dict[str, Any]:
    return {"x": d.floats(d.shape()), "y": d.array(d.shape(), d.choose(("float16", "float32", "float64")))}


@rule(apply("CastLike", x, y).named("n"), exactness=EXACT, source=SPEC, family="E40", sample=_cast_like)
def normalise_cast_like(m: Match) -> Term:
    """``CastLike(x, y) == Cast(x, to)`` for the element type of ``y``."""
    m.require(m.y.dtype is not DType.UNDEFINED, "the element type is unknown")
    return Apply("Cast", (m.x,), m.n.attributes.updated(to=int(m.y.dtype)))


@condition("axes in order")
def _in_order(m: Match) -> bool:
    perm = permutation_of(m.n)
    return list(perm) == sorted(perm)


def _transpose(d: Sampler) -> dict[str, Any]:
    shape = d.shape(1, 3)
    perm = tuple(range(len(shape))) if d.chance() else d.permutation(len(shape))
    return {"x": d.array(shape), "n": {"perm": perm} if d.chance(0.8) else {}}


@rule(
    apply("Transpose", x).named("n"), where=[_in_order], exactness=EXACT, source=SPEC, family="E40", sample=_transpose
)
def remove_transpose(m: Match) -> Term:
    """``Transpose(x, perm) == x`` where ``perm`` leaves every axis in place."""
    return m.x


def _expand(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    return {"x": d.array(shape), "s": fixed(d.broadcast_with(shape), "int64")}


@rule(apply("Expand", x, s), where=[same_type("x")], exactness=EXACT, source=SPEC, family="E40", sample=_expand)
def remove_expand(m: Match) -> Term:
    """``Expand(x, s) == x`` where no extent grows."""
    return m.x


def _tile(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    return {"x": d.array(shape), "s": fixed([1 if d.chance(0.8) else 2 for _ in shape], "int64")}


@rule(apply("Tile", x, s), where=[same_type("x")], exactness=EXACT, source=SPEC, family="E40", sample=_tile)
def remove_tile(m: Match) -> Term:
    """``Tile(x, s) == x`` where no extent grows."""
    return m.x


@condition("steps positive")
def _steps_positive(m: Match) -> bool:
    return m.b is None or bool((m.b.value > 0).all())


def _slice(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    axes = [i for i in range(len(shape)) if d.chance(0.7)] or [0]
    backward = [d.chance(0.15) for _ in axes]
    starts = [-1 if back else 0 if d.chance(0.8) else 1 for back in backward]
    ends = [
        -(2**63) if back else d.choose((shape[i], 2**31 - 1, 2**63 - 1)) for i, back in zip(axes, backward, strict=True)
    ]
    steps = [-1 if back else 1 for back in backward]
    found: dict[str, Any] = {"x": d.array(shape), "s": fixed(starts, "int64"), "t": fixed(ends, "int64")}
    found["a"] = fixed(axes, "int64")
    if any(backward) or d.chance():
        found["b"] = fixed(steps, "int64")
    elif d.chance() and axes == list(range(len(axes))):
        del found["a"]
    return found


@rule(
    apply("Slice", x, s, t, a, b),
    where=[same_type("x"), _steps_positive],
    exactness=EXACT,
    source=SPEC,
    family="E40",
    sample=_slice,
)
def remove_slice(m: Match) -> Term:
    """``Slice(x, s, t, a, b) == x`` where every element is kept, in order."""
    return m.x


@condition("pads zero")
def _pads_zero(m: Match) -> bool:
    return not m.s.value.any()


def _pad(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    pads = [0] * (2 * len(shape))
    if d.chance(0.3):
        pads[0], pads[len(shape)] = 1, -1
    return {"x": d.array(shape, "float32"), "s": fixed(pads, "int64"), "n": {"mode": d.choose(("constant", "edge"))}}


@rule(apply("Pad", x, s, a, b).named("n"), where=[_pads_zero], exactness=EXACT, source=SPEC, family="E40", sample=_pad)
def remove_pad(m: Match) -> Term:
    """``Pad(x, 0) == x``."""
    return m.x


def _axis(d: Sampler) -> dict[str, Any]:
    return {"x": d.array(d.shape()), "n": {"axis": 0}}


@rule(apply("Concat", x).named("n"), exactness=EXACT, source=SPEC, family="E40", sample=_axis)
def remove_concat_of_one(m: Match) -> Term:
    """``Concat(x) == x``."""
    return m.x


@rule(
    apply("Split", x, a).named("n"),
    exactness=EXACT,
    source=SPEC,
    family="E40",
    sample=lambda d: {"x": d.array(d.shape()), "n": {"axis": 0, "num_outputs": 1}},
)
def remove_split_into_one(m: Match) -> Term:
    """``Split(x, 1) == x``."""
    return m.x


def _floats(d: Sampler) -> dict[str, Any]:
    return {"x": d.floats(d.shape(), wild=True, infinite=d.chance(0.3))}


@rule(apply("Sum", x), exactness=EXACT, source=SPEC, family="E40", sample=_floats)
def remove_sum_of_one(m: Match) -> Term:
    """``Sum(x) == x``."""
    return m.x


@rule(apply("Mean", x), exactness=EXACT, source=SPEC, family="E40", sample=_floats)
def remove_mean_of_one(m: Match) -> Term:
    """``Mean(x) == x``."""
    return m.x


@rule(apply("Max", x), exactness=EXACT, source=SPEC, family="E40", sample=_floats)
def remove_max_of_one(m: Match) -> Term:
    """``Max(x) == x``."""
    return m.x


@rule(apply("Min", x), exactness=EXACT, source=SPEC, family="E40", sample=_floats)
def remove_min_of_one(m: Match) -> Term:
    """``Min(x) == x``."""
    return m.x


def _two(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    return {"x": d.floats(shape, wild=True), "y": d.floats(d.broadcast_with(shape), wild=True)}


@rule(apply("Sum", x, y), exactness=EXACT, source=SPEC, family="E40", sample=_two)
def normalise_sum_of_two(m: Match) -> Term:
    """``Sum(x, y) == x + y``."""
    return apply("Add", m.x, m.y)


# --- dropout -------------------------------------------------------------------------------------------------------------


@condition("not training")
def _inference(m: Match) -> bool:
    if m.b is None or (m.b.is_constant and not m.b.value.any()):
        return True
    return m.a is not None and m.a.is_constant and not m.a.value.any()


def _dropout(d: Sampler) -> dict[str, Any]:
    found: dict[str, Any] = {"x": d.array(d.shape(), "float32"), "n": {"seed": 1} if d.chance() else {}}
    if d.chance(0.7):
        found["a"] = d.either(np.array(d.choose((0.0, 0.5)), np.float32), 0.7)
        if d.chance(0.7):
            found["b"] = d.either(d.booleans(()), 0.7)
    return found


_DROPOUT = "ONNX Dropout-22: without training_mode, or with ratio 0, the output is the input and the mask is true"


@rule(
    apply("Dropout", x, a, b).named("n"),
    where=[_inference],
    exactness=EXACT,
    source=_DROPOUT,
    family="E11",
    sample=_dropout,
)
def remove_dropout(m: Match) -> Term:
    """``Dropout(x) == x`` at inference."""
    return m.x


_WITH_MASK = apply("Dropout", x, a, b, outputs=2).named("n")


@rule(_WITH_MASK.output(0), where=[_inference], exactness=EXACT, source=_DROPOUT, family="E11", sample=_dropout)
def remove_dropout_with_mask(m: Match) -> Term:
    """``Dropout(x)[0] == x`` at inference."""
    return m.x


@rule(_WITH_MASK.output(1), where=[_inference], exactness=EXACT, source=_DROPOUT, family="E11", sample=_dropout)
def replace_dropout_mask(m: Match) -> Term:
    """``Dropout(x)[1] == ConstantOfShape(Shape(x), true)`` at inference."""
    return apply("ConstantOfShape", apply("Shape", m.x), value=TRUE)
