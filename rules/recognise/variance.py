"""Variances taken in one pass, as the mean of squares less the square of the mean: recognised, never introduced.

The two forms are equal over the reals. The one with one pass loses digits where the mean is large and may come out negative,
which is why exporters clamp it at zero. The clamped one becomes no value of its own here, but all of the normalisation at once:
were it equal to the variance, the variance without its clamp could be chosen in its place.

jax2onnx takes two passes, the second one in double precision, and says that the distances of equal elements from their mean are
zero, as they are over the reals.
"""

from functools import partial
from typing import Any

import numpy as np

from eqsat.conditions import constant, number, same_type
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.rules.recognise.norms import NARROW, RECOGNISED, RMS, functions, spelled
from eqsat.samples import Sampler, fixed

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


_FAULTS = ("", "", "low", "low", "high", "high", "mean", "noop", "larger", "larger", "one")


def _equal_elements(d: Sampler) -> dict[str, Any]:
    """Rows of which many have equal elements, and a choice beside them; at times extremes or a mean of another shape or over
    other axes, a choice that is larger than the rows, or one of 1.
    """
    fault = d.choose(_FAULTS)
    shape = (3, 3) if fault in ("low", "high", "mean") else d.shape(2, 4, ones=0.05)
    x = (
        d.rng.choice(np.array((0.1, 0.7), np.float32), shape, p=d.choose(((0.3, 0.7), (0.7, 0.3))))
        if d.chance(0.8)
        else d.floats(shape)
    )
    found: dict[str, Any] = {"x": x, "k": fixed(np.float32(fault == "one")), "low": {}, "high": {}, "mean": {}}
    if fault == "noop":
        found[d.choose(("low", "high", "mean"))] = {"noop_with_empty_axes": 1}
    else:
        found |= {"a": fixed([-1 if fault in found else d.integer(-x.ndim, -1)], "int64")} | (
            {fault: {"keepdims": 0}} if fault in found else {}
        )
    kept = tuple(1 if d.chance() else extent for extent in shape)
    return found | {"z": d.rng.random((2, *kept) if fault == "larger" else kept) < 0.9}


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
    sample=_equal_elements,
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
