"""Variances taken in one pass, as the mean of squares less the square of the mean: recognised, never introduced.

The two forms are equal over the reals. The one with one pass loses digits where the mean is large and may come out negative,
which is why exporters clamp it at zero. The clamped one becomes no value of its own here, but all of the normalisation at once:
were it equal to the variance, the variance without its clamp could be chosen in its place.
"""

from functools import partial

from eqsat.conditions import constant
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.rules.recognise.norms import NARROW, RECOGNISED, RMS, functions, spelled

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
        sample=partial(spelled, kept=kept),
    )
equation(
    "recognise_clamped_rms_normalization",
    f"x / Sqrt(Relu(ReduceMean(x * x, *a, keepdims=1, **r)) + eps) == {RMS}",
    *RECOGNISED,
    sample=spelled,
    structure="norm",
)
