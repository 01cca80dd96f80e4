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
from eqsat.ir.types import Dim
from eqsat.rewrite import Literal, Ref, Term, apply, literal
from eqsat.rules.terms import int64s, reshape


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


def positions(x: Ref) -> Term:
    """The axes behind batch and channels."""
    return int64s(range(2 - x.rank, 0))


functions = named(axes_of, reduces_last, known, full, outlives_underflow)
equation = Equations(__name__, exactness=Exactness.ROUNDING)
NARROW = single_or_half("x")

# --- as one operator


SPELLED = (
    "",
    "x: float32[3, 3]; a = [1]",
    "x: float32[A, K]; a = [1]; eps = d.positive([K]) | d.positive([1, 1, 1])",
    "a: None; r.noop_with_empty_axes = 0 | 1",
    'x = d.floats([A, K], "float16") * (1e-5 | 300); eps = fixed(0.0 | 1e-6, "float16")',
)
"""Means over the last axes, mostly; else those of a square, which has a shape for means of another kind; beside several epsilons,
or one with more axes; over no axes; of squares that underflow, or overflow."""

EPSILON = (
    constant("eps"),
    "epsilon is one number: eps.low == eps.high",
    worthwhile(between("eps", 0, float(np.finfo(np.float32).max)), "epsilon at least 0 and finite"),
)
UNDERFLOW = "epsilon is larger than squares that underflow: outlives_underflow(eps)"


GAINED = (
    "x: [A, *ANY, K]; s: [K]; g: [K] | [] | [A, *ANY, K] | [2, A, *ANY, K]",
    "g: [1, 1, 1, 1, 1]",
    "SYMBOLS = [K]",
)
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
    drawn=SPELLED,
    source="ONNX RMSNormalization; Zhang and Sennrich 2019",
    structure="norm",
)
equation(
    "recognise_rms_normalization_without_epsilon",
    f"x / Sqrt(ReduceMean(x * x, *a, keepdims=1, **r)) == {BY_ROOT.format(0.0)}",
    constant("a"),
    "the operator squares in the same precision: x.dtype is float32",
    *OVER_LAST,
    drawn=SPELLED,
    source="ONNX RMSNormalization; exporters of PyTorch drop an epsilon of 1e-8",
    structure="norm",
)
equation(
    "scale_rms_normalization",
    "RMSNormalization(x, s, axis=i, **n) * g == RMSNormalization(x, spread_out(g, x.shape[first_axis(i, x):]), **n)",
    number("s", 1),
    *ALONG,
    source="ONNX RMSNormalization",
    drawn=GAINED,
)
equation(
    "recognise_layer_normalization",
    "RMSNormalization(x - ReduceMean(x, *a, keepdims=1, **r), s, axis=i, **n) == LayerNormalization(x, s, **n)",
    constant("a"),
    same_type("x"),
    NARROW,
    "the mean is taken over the normalised axes: reduces_last(r, a, x) == -first_axis(i, x)",
    drawn=("", "x: [3, 3]; a = [1]", "x: float32[A, K]; s: float16[K]; a = [-1]"),
    source="ONNX LayerNormalization; Ba, Kiros and Hinton 2016",
)
equation(
    "shift_layer_normalization",
    "LayerNormalization(x, s, axis=i, **n) + g == LayerNormalization(x, s, spread_out(g, x.shape[first_axis(i, x):]), **n)",
    *ALONG,
    source="ONNX LayerNormalization",
    drawn=GAINED,
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

for name, left, shift in (
    ("factor", "x * y - {} * y", ""),
    ("factor_with_shift", "x * y + (c - {} * y)", " + c"),
    ("factor_behind_shift", "(x * y + c) - {} * y", " + c"),
):
    for kind, mean, where in (
        ("mean", "ReduceMean(x, *a, **mean)", [constant("a")]),
        ("pool", "GlobalAveragePool(x, **mean)", []),
    ):
        equation(
            f"subtract_{kind}_before_{name}",
            f"{left.format(mean)} == (x - mean) * y{shift}",
            *where,
            NARROW,
            source="distributivity; Keras folds its normalisation so",
        )
for name, text in (
    ("subtract_mean_instead_of_pool", "x - GlobalAveragePool(x) == x - ReduceMean(x, positions(x), keepdims=1)"),
    (
        "take_mean_of_squares_instead_of_pool",
        "GlobalAveragePool((q := x * x)) == ReduceMean(q, positions(x), keepdims=1)",
    ),
):  # as exporters of TensorFlow write the means of a norm
    equation(name, text, NARROW, "there are positions: x.rank > 2", source="ONNX GlobalAveragePool and ReduceMean")
