"""Half precision around what computes inside in single precision anyway: the casts before and behind it do nothing.

The statistics of a normalisation are in float32 (``stash_type``), whatever the type of what is normalised: squares of float16
neither overflow nor underflow there. So what was computed in float64 between two casts, as by PyTorch's older exporter, is the
same, but what is in float64 altogether is no such normalisation. Kernels of Softmax add up exponentials in float32, too. A sum
or product in float32 of two numbers in half precision, rounded to that, is the one in half precision: converters that leave some
operators in float32 write those between casts.
"""

import math
from typing import Any

import numpy as np

from eqsat.conditions import constant, kernels, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import HALVES, DType
from eqsat.rewrite import Ref
from eqsat.rules.linear.alignment import largest, limit
from eqsat.rules.recognise.norms import EPSILON, OVER_LAST, RMS, functions
from eqsat.samples import Sampler, fixed


def _normalised(d: Sampler) -> dict[str, Any]:
    """What is normalised in half precision and with casts around, with a gain, now and then one that is too large for it."""
    x = d.floats(d.shape(2, 4, ones=0.05), d.choose(("float16", "float16", "bfloat16", "float32")))
    axis = d.integer(-2, -1)
    extents = x.shape[axis:]
    wide = DType.DOUBLE if x.dtype == "float32" else DType.FLOAT
    found: dict[str, Any] = {"x": x, "n": {"axis": axis, "epsilon": d.choose((1e-5, 0.5))}}
    for name in "gb":
        found[name] = fixed(d.floats(extents).astype(wide.numpy) * d.choose((1, 1, 1, 1e6)))
    if d.chance(0.5):
        del found["b"]
    narrow = DType.of(x.dtype.name) if d.chance(0.9) else DType.FLOAT
    return found | {"p": {"to": int(wide)}, "q": {"to": int(narrow)}}


def fit(x: Ref, *values: Ref | None) -> bool:
    """Whether constants are finite in the precision of ``x``."""
    return all(v is None or largest(v) <= limit(x) for v in values)


equation = Equations(__name__, exactness=Exactness.ROUNDING, source="ONNX: stash_type")
BACK = "back to the precision of x: to == x.dtype"
for op, parameters, shift, back in (
    ("RMSNormalization", "g", "", worthwhile(BACK)),  # whose result is as precise as the gain
    ("LayerNormalization", "g, *b", ", None if b is None else Cast(b, to=to)", BACK),
):
    equation(
        f"normalise_half_precision_by_{op.removesuffix('Normalization').lower()}",
        f"Cast({op}(Cast(x, **p), {parameters}, **n), to=to, **q) == {op}(x, Cast(g, to=to){shift}, **n)",
        kernels("x", *HALVES),
        constant(*("gb" if shift else "g")),
        f"gain and shift are finite in the precision of x: fit(x, {parameters.replace('*', '')})",
        back,
        sample=_normalised,
    )


equation(
    "soften_half_precision",
    "Cast(Softmax(Cast(x, **p), **n), to=to, **q) == Softmax(x, **n)",
    kernels("x", *HALVES),
    BACK,
    source="softmax(x, dtype=torch.float32).to(x.dtype) of PyTorch, and Hugging Face's eager attention",
)


def _two_of_one_type(d: Sampler) -> dict[str, Any]:
    """Two values that are computed with between casts, mostly in half precision both, and back to it."""
    narrow = d.choose(("float16", "float16", "bfloat16", "float32"))
    x = d.floats(d.shape(), narrow)
    y = d.floats(d.broadcast_with(x.shape), narrow if d.chance(0.8) else d.choose(("float16", "bfloat16")))
    wide = DType.DOUBLE if narrow == "float32" or d.chance(0.1) else DType.FLOAT
    back = DType.of(narrow) if d.chance(0.9) else DType.FLOAT
    return {"x": x, "y": y, "p": {"to": int(wide)}, "r": {"to": int(wide)}, "q": {"to": int(back)}}


for op, name in (("+", "add"), ("*", "multiply")):
    equation(
        f"{name}_in_half_precision",
        f"Cast(Cast(x, **p) {op} Cast(y, **r), to=to, **q) == x {op} y",
        kernels("x", *HALVES),
        "one type: y.dtype is x.dtype",
        BACK,
        exactness=Exactness.EXACT,
        source="Figueroa 1995, When is double rounding innocuous?: 24 digits are more than twice 11, and 2",
        sample=_two_of_one_type,
    )


def _between_casts(d: Sampler) -> dict[str, Any]:
    """A root of the mean of squares, in float64 mostly, of what is float16 or has squares beyond float32, over the last axes or
    any, beside one epsilon, several, or one with an axis more."""
    shape = (3, 3) if d.chance(0.3) else d.shape(1, 4, ones=0.05)
    x = d.floats(shape, "float16") * np.float16(d.choose((1, 1, 1e-5, 300)))
    x = x if d.chance(0.7) else x.astype(np.float32) * np.float32(1e22)
    wide = DType.DOUBLE if d.chance(0.9) else DType.FLOAT
    form = d.choose(((), (), (1,), (1,) * (x.ndim + 1), x.shape[-1:]))
    epsilon = d.rng.permutation(np.resize((1e-12, 1e-5, 0.5), max(form, default=1)))[: math.prod(form)].reshape(form)
    found: dict[str, Any] = {"x": x, "eps": fixed(epsilon, wide), "p": {"to": int(wide)}}
    axes = list(range(d.integer(-x.ndim, -1), 0)) if d.chance(0.7) else [d.integer(-x.ndim, -1)]
    narrow = DType.of(x.dtype.name) if d.chance(0.85) else DType.FLOAT
    return found | {
        "a": fixed(axes, "int64"),
        "r": {"keepdims": d.choose((0, 1)) if shape == (3, 3) else 1},
        "q": {"to": int(narrow)},
    }


equation(
    "normalise_half_precision_in_double",
    f"""Cast(Cast(x, **p) / Sqrt(ReduceMean(Cast(x, **p) * Cast(x, **p), *a, keepdims=1, **r) + eps), to=to, **q)
       == {RMS}""",
    constant("a"),
    *EPSILON,
    "float16, of which float32 holds the squares: x.dtype is float16",
    worthwhile("in float64, else it is a normalisation between casts: p.attr('to') == float64"),
    BACK,
    "epsilon enlarges nothing: root.shape == x.shape",
    *OVER_LAST,
    functions=functions,
    sample=_between_casts,
    source="PyTorch's export of layer_norm on float16",
)
