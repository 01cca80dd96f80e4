"""Variances taken in one pass, as the mean of squares less the square of the mean: recognised, never introduced.

The two forms are equal over the reals. The one with one pass loses digits where the mean is large and may come out negative,
which is why exporters clamp it at zero. The clamped one becomes no value of its own here, but all of the normalisation at once:
were it equal to the variance, the variance without its clamp could be chosen in its place.

jax2onnx takes two passes, the second one in double precision, and says that the distances of equal elements from their mean are
zero, as they are over the reals.
"""

from eqsat.conditions import constant, number, same_type
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.rules.recognise.norms import NARROW, RECOGNISED, RMS, SPELLED, functions

equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source="definition of the variance; Flax takes it in one pass",
    functions=functions,
)
SAME_AXES = "both means over the same axes: axes_of(r, a, x) == axes_of(mean, a, x)"
MEAN = "ReduceMean(x, *a, keepdims={0}, **mean)"
VARIANCE = f"ReduceMean(x * x, *a, keepdims={{0}}, **r) - {MEAN} * {MEAN}"

for name, kept, mean in (
    ("take_variance_in_two_passes", 1, "mean"),
    ("take_variance_of_dropped_axes_in_two_passes", 0, "ReduceMean(x, *a, **mean, keepdims=1)"),
):
    equation(
        name,
        f"{VARIANCE.format(kept)} == ReduceMean((x - {mean}) * (x - {mean}), *a, **r)",
        constant("a"),
        NARROW,
        SAME_AXES,
        drawn=SPELLED,
    )
equation(
    "recognise_clamped_rms_normalization",
    f"x / Sqrt(Relu(ReduceMean(x * x, *a, keepdims=1, **r)) + eps) == {RMS}",
    *RECOGNISED,
    drawn=SPELLED,
    structure="norm",
)


equation(
    "measure_distances_of_equal_elements",
    """Where(And(Equal(ReduceMin(x, *a, keepdims=1, **low), ReduceMax(x, *a, keepdims=1, **high)), z), k,
             x - ReduceMean(x, *a, keepdims=1, **mean))
       == x - ReduceMean(x, *a, keepdims=1, **mean)""",
    constant("a"),
    number("k", 0),
    "extremes and mean over the same axes: axes_of(low, a, x) == axes_of(high, a, x) == axes_of(mean, a, x)",
    same_type("x"),
    NARROW,
    drawn=(
        'x = d.rng.choice([0.1, 0.7], [3, 3] | [A, B, C], p=[0.5, 0.5]).astype("float32"); a = [1]',
        "x: [A, B]; a = [-1, 0]; z: bool[A, 1] | bool[2, A, B]",
        "a: None; low.noop_with_empty_axes = 0 | 1; high.noop_with_empty_axes = 0 | 1",
    ),
    source="the mean of equal numbers is that number",
)


equation(
    "take_mean_of_squares_in_their_precision",
    "Cast(ReduceMean(Cast(y * y, to=wide, **p), *a, **r), to=narrow, **q) == ReduceMean(y * y, *a, **r)",
    "squares in single precision: y.dtype == float32",
    "their mean in double precision: wide == float64",
    "and back: narrow == float32",
    source="squares are not negative: nothing cancels",
)
