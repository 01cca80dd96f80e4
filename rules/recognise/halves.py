"""Half precision around what computes inside in single precision anyway: the casts before and behind it do nothing.

The statistics of a normalisation are in float32 (``stash_type``), whatever the type of what is normalised.
"""

from typing import Any

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref
from eqsat.samples import Sampler, fixed

LARGEST = 65504


def _normalised(d: Sampler) -> dict[str, Any]:
    """What is normalised in half precision and with casts around, with a gain, now and then one that is too large for it."""
    x = d.floats(d.shape(2, 4, ones=0.05), d.choose(("float16", "float16", "float16", "float32")))
    axis = d.integer(-2, -1)
    extents = x.shape[axis:]
    wide = DType.FLOAT if x.dtype == "float16" else DType.DOUBLE
    found: dict[str, Any] = {"x": x, "n": {"axis": axis, "epsilon": d.choose((1e-5, 0.5))}}
    for name in "gb":
        found[name] = fixed(d.floats(extents).astype(wide.numpy) * d.choose((1, 1, 1, 1e6)))
    if d.chance(0.5):
        del found["b"]
    narrow = DType.of(x.dtype.name) if d.chance(0.9) else DType.FLOAT
    return found | {"p": {"to": int(wide)}, "q": {"to": int(narrow)}}


def fit(*values: Ref | None) -> bool:
    """Whether constants are finite in half precision."""
    return all(v is None or -LARGEST <= v.low <= v.high <= LARGEST for v in values)


equation = Equations(
    __name__, exactness=Exactness.ROUNDING, source="ONNX: stash_type", sample=_normalised, functions={"fit": fit}
)
BACK = "back to the precision of x: to == x.dtype"
for op, parameters, shift, back in (
    ("RMSNormalization", "g", "", worthwhile(BACK)),  # whose result is as precise as the gain
    ("LayerNormalization", "g, *b", ", None if b is None else Cast(b, to=to)", BACK),
):
    equation(
        f"normalise_half_precision_by_{op.removesuffix('Normalization').lower()}",
        f"Cast({op}(Cast(x, **p), {parameters}, **n), to=to, **q) == {op}(x, Cast(g, to=to){shift}, **n)",
        worthwhile("half precision: x.dtype is float16"),
        constant(*("gb" if shift else "g")),
        f"gain and shift are finite in half precision: fit({parameters.replace('*', '')})",
        back,
    )
