"""Variances taken in one pass, as the mean of squares less the square of the mean: recognised, never introduced.

The two forms are equal over the reals. The one with one pass loses digits where the mean is large and may come out negative,
which is why exporters clamp it at zero. The clamped one becomes no value of its own here, but all of the normalisation at once:
were it equal to the variance, the variance without its clamp could be chosen in its place.
"""

from functools import partial

from eqsat.conditions import constant, kernels, same_type
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rules.recognise.norms import EPSILON, axes_of, known, ones, reduces_last, spelled

equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source="definition of the variance; Flax takes it in one pass",
    functions={f.__name__: f for f in (axes_of, known, ones, reduces_last)},
)
FLOAT32 = kernels("x", DType.FLOAT)
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
        FLOAT32,
        SAME_AXES,
        sample=partial(spelled, kept=kept),
    )
equation(
    "recognise_clamped_rms_normalization",
    """x / Sqrt(Relu(ReduceMean(x * x, *a, keepdims=1, **r)) + eps)
        == RMSNormalization(x, ones(x, -reduces_last(r, a, x)), axis=-reduces_last(r, a, x), epsilon=eps.low)""",
    constant("a"),
    *EPSILON,
    same_type("x"),
    FLOAT32,
    "the mean is taken over the last axes: reduces_last(r, a, x) > 0",
    "normalised extents known: known(x.shape[-reduces_last(r, a, x):])",
    sample=spelled,
    structure="norm",
)
