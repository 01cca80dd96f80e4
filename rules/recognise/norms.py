"""Normalisations that exporters spell out become one operator.

The two-pass form only: the variance as the mean of squared distances, or of squares where no mean is subtracted. A layer
normalisation is found as what it is, the RMS normalisation of the distances from the mean. Where ``x`` and its mean are scaled
each by itself, as Keras folds its normalisation, the mean is subtracted first.
"""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from eqsat.conditions import another_value, between, constant, number, same_type, single_or_half, varies, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import Literal, Ref, Term, apply, literal
from eqsat.rules.terms import int64s, reshape
from eqsat.samples import SYMBOLIC, Sampler, fixed


def axes_of(node: Ref, axes: Ref | None, x: Ref) -> tuple[int, ...]:
    """The axes of ``x`` that a reduction reduces, ascending, counted from the end."""
    given = () if axes is None or not x.rank else axes.value.reshape(-1)
    absent = () if node.attr("noop_with_empty_axes", 0) else range(-x.rank, 0)
    return tuple(sorted({int(a) if a < 0 else int(a) - x.rank for a in given})) or tuple(absent)


def reduces_last(node: Ref, axes: Ref | None, x: Ref) -> int:
    """The number of axes that a reduction reduces, if those are the last ones of ``x``; otherwise 0."""
    found = axes_of(node, axes, x)
    return len(found) if found == tuple(range(-len(found), 0)) else 0


def first_axis(axis: int, x: Ref) -> int:
    """The first normalised axis, counted from the end."""
    return axis if axis < 0 else axis - x.rank


def known(shape: Sequence[Dim]) -> bool:
    """Whether all extents are."""
    return all(isinstance(d, int) for d in shape)


def full(shape: Any, value: float, x: Ref) -> Literal:
    """Equal numbers of the type of ``x``, such as gains of 1."""
    return literal(np.full(shape, value, x.dtype.numpy))


def beside(value: Ref, extents: Sequence[Dim]) -> tuple[Dim, ...]:
    """The extents of a gain or shift along the normalised axes, 1 where it has none."""
    shape = value.shape[-len(extents) :]
    return (1,) * (len(extents) - len(shape)) + tuple(shape)


def spread_out(value: Ref, extents: Sequence[Any]) -> Term:
    """A gain or shift in the shape of the normalised axes."""
    shape: Any = beside(value, extents)
    found = value if value.shape == shape else reshape(value, shape)
    return found if shape == tuple(extents) else apply("Expand", found, int64s(extents))


def outlives_underflow(eps: Ref) -> bool:
    """Whether squares that round to zero, or to the least number there is, leave the sum with epsilon as it is.

    In float16 they do so below 2.4e-4; from an epsilon of 2**-20 on they move a quotient by the root by 32 roundings at most.
    """
    info = ml_dtypes.finfo(eps.dtype.numpy)
    return eps.low >= float(info.smallest_subnormal) / (64 * float(info.eps))


functions = named(axes_of, reduces_last, known, full, outlives_underflow)
equation = Equations(__name__, exactness=Exactness.ROUNDING)
NARROW = single_or_half("x")

# --- as one operator


_FAULTS = ("", "", "", "keepdims", "keepdims", "axis", "axis", "noop", "noop", "epsilon", "range")


def spelled(d: Sampler, *, kept: int = 1) -> dict[str, Any]:
    """Means over the last axes, mostly. Else one of another kind, where a square has a shape for both; over any axis or, without
    axes, over none; beside several epsilons; or of float16 squares that underflow, beside an epsilon that is larger or not, or
    overflow.
    """
    fault = d.choose(_FAULTS)
    shape = (3, 3) if fault == "keepdims" else d.shape(1, 4, ones=0.05)
    means: dict[str, Any] = {"r": {"keepdims": kept}, "mean": {"keepdims": kept}}
    if fault in ("keepdims", "noop"):
        means[d.choose(("r", "mean"))] |= {"keepdims": 1 - kept} if fault == "keepdims" else {"noop_with_empty_axes": 1}
    dtype = "float16" if fault == "range" else d.choose(("float32", "float32", "float32", "float16", "bfloat16"))
    x = d.floats(shape) + d.choose((0, 0, 1))
    x = (x * (d.choose((1e-5, 1e-5, 300)) if fault == "range" else 1)).astype(DType.of(dtype).numpy)
    epsilon = np.full(d.choose(((), (1,), (1,) * x.ndim, (1,) * (x.ndim + 1))), d.choose((1e-2, 0.5, 0.1)))
    if fault in ("epsilon", "range"):
        epsilon = d.positive(shape[-1:]) if fault == "epsilon" else np.float32(d.choose((1e-6, 0.0, 0.0)))
    found = {"x": x, "eps": fixed(epsilon.astype(x.dtype)), **means}
    if fault == "noop":
        return found
    first = d.integer(max(x.ndim - 2, 0), x.ndim - 1)
    chosen = [d.integer(0, x.ndim - 1)] if fault == "axis" else list(range(first, x.ndim))
    return found | {"a": fixed([a - x.ndim if d.chance() else a for a in chosen], "int64")}


def without_epsilon(d: Sampler) -> dict[str, Any]:
    """The same; without an epsilon half precision has no squares of small numbers."""
    return {name: value for name, value in spelled(d).items() if name != "eps"}


EPSILON = (
    constant("eps"),
    "epsilon is one number: eps.low == eps.high",
    worthwhile(between("eps", 0, float(np.finfo(np.float32).max)), "epsilon at least 0 and finite"),
)
UNDERFLOW = "epsilon is larger than squares that underflow: outlives_underflow(eps)"


def _normalised(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(2, 4, ones=0.05))
    axis = d.integer(-2, -1)
    extents = x.shape[axis:]
    options = (extents, extents, extents[1:], (), (1, *extents), (1,) * len(extents), d.broadcast_with(x.shape))
    options += ((1,) * (x.ndim + 1),)
    factor = d.either(d.floats(d.choose(options)))
    scale = d.floats(extents) if d.chance(0.15) else np.ones(extents, np.float32)
    attributes = {"axis": axis if d.chance() else axis + x.ndim, "epsilon": d.choose((1e-5, 0.5))}
    return {"x": x, "s": fixed(scale), "g": factor, "n": attributes, **({SYMBOLIC: extents} if d.chance(0.2) else {})}


def _centred(d: Sampler) -> dict[str, Any]:
    shape = d.shape(2, 4, ones=0.05) if d.chance(0.8) else (3, 3)
    x = d.floats(shape) + np.float32(d.choose((0, 0, 3)))
    axis = d.integer(-2, -1)
    chosen = range(axis, 0) if d.chance(0.8) else [d.integer(-x.ndim, -1)]
    mean = {"keepdims": 0} if shape == (3, 3) and d.chance() else {}
    scale = d.floats(shape[axis:], "float32" if d.chance(0.9) else "float16")
    attributes = {"axis": axis, "epsilon": d.choose((1e-5, 0.5))}
    return {"x": x, "a": fixed(list(chosen), "int64"), "r": mean, "s": d.either(scale), "n": attributes}


ALONG = (
    same_type("x"),
    NARROW,
    another_value("n"),
    "g varies over normalised axes only: all(d == 1 for d in g.shape[:first_axis(i, x)])",
    "normalised extents known: known(x.shape[first_axis(i, x):])",
    worthwhile(
        "constant where it is repeated: g.is_constant or beside(g, x.shape[first_axis(i, x):]) == x.shape[first_axis(i, x):]"
    ),
)
BY_ROOT = "RMSNormalization(x, full(x.shape[-reduces_last(r, a, x):], 1, x), axis=-reduces_last(r, a, x), epsilon={})"
RMS = BY_ROOT.format("eps.low")
OVER_LAST = (
    "the mean is taken over the last axes: reduces_last(r, a, x) > 0",
    "normalised extents known: known(x.shape[-reduces_last(r, a, x):])",
)
RECOGNISED = (constant("a"), *EPSILON, UNDERFLOW, same_type("x"), NARROW, *OVER_LAST)
equation(
    "recognise_rms_normalization",
    f"x / Sqrt(ReduceMean(x * x, *a, keepdims=1, **r) + eps) == {RMS}",
    *RECOGNISED,
    sample=spelled,
    source="ONNX RMSNormalization; Zhang and Sennrich 2019",
    structure="norm",
)
equation(
    "recognise_rms_normalization_without_epsilon",
    f"x / Sqrt(ReduceMean(x * x, *a, keepdims=1, **r)) == {BY_ROOT.format(0.0)}",
    constant("a"),
    "the operator squares in the same precision: x.dtype is float32",
    *OVER_LAST,
    sample=without_epsilon,
    source="ONNX RMSNormalization; exporters of PyTorch drop an epsilon of 1e-8",
    structure="norm",
)
equation(
    "scale_rms_normalization",
    "RMSNormalization(x, s, axis=i, **n) * g == RMSNormalization(x, spread_out(g, x.shape[first_axis(i, x):]), **n)",
    number("s", 1),
    *ALONG,
    source="ONNX RMSNormalization",
    sample=_normalised,
)
equation(
    "recognise_layer_normalization",
    "RMSNormalization(x - ReduceMean(x, *a, keepdims=1, **r), s, axis=i, **n) == LayerNormalization(x, s, **n)",
    constant("a"),
    same_type("x"),
    NARROW,
    "the mean is taken over the normalised axes: reduces_last(r, a, x) == -first_axis(i, x)",
    sample=_centred,
    source="ONNX LayerNormalization; Ba, Kiros and Hinton 2016",
)
equation(
    "shift_layer_normalization",
    "LayerNormalization(x, s, axis=i, **n) + g == LayerNormalization(x, s, spread_out(g, x.shape[first_axis(i, x):]), **n)",
    *ALONG,
    source="ONNX LayerNormalization",
    sample=_normalised,
)

# --- spellings

for name, exponent, right in (
    ("take_root_of_mean_square", 0.5, "Sqrt(m)"),
    ("take_reciprocal_root_of_mean_square", -0.5, "Reciprocal(Sqrt(m))"),
):
    equation(
        name,
        f"(m := ReduceMean(x * x, *a, **r) + eps) ** {exponent} == {right}",
        constant("a", "eps"),
        same_type("m"),
        NARROW,
        worthwhile(between("eps", low=0)),
        source="pow is within one unit in the last place; a mean of squares is not negative",
    )
for name, left in (
    ("divide_before_gain", "x * (Reciprocal(Sqrt(y)) * g)"),
    ("divide_product_before_gain", "(x * g) / Sqrt(y)"),
):
    equation(
        name, f"{left} == (x / Sqrt(y)) * g", constant("g"), varies("y"), NARROW, source="associativity over the reals"
    )

SCALED_MEAN = "ReduceMean(x, *a, **mean) * y"
for name, left, shift in (
    ("factor", f"x * y - {SCALED_MEAN}", ""),
    ("factor_with_shift", f"x * y + (c - {SCALED_MEAN})", " + c"),
    ("factor_behind_shift", f"(x * y + c) - {SCALED_MEAN}", " + c"),
):
    equation(
        f"subtract_mean_before_{name}",
        f"{left} == (x - mean) * y{shift}",
        constant("a"),
        NARROW,
        source="distributivity; Keras folds its normalisation so",
    )
