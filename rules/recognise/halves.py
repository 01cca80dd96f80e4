"""Half precision around what computes inside in single precision anyway: the casts before and behind it do nothing.

The statistics of a normalisation are in float32 (``stash_type``), whatever the type of what is normalised: squares of float16
neither overflow nor underflow there. So what was computed in float64 between two casts, as by PyTorch's older exporter, is the
same, but what is in float64 altogether is no such normalisation. Kernels of Softmax add up exponentials in float32, too. A sum
or product in float32 of two numbers in half precision, rounded to that, is the one in half precision: converters that leave some
operators in float32 write those between casts.
"""

from eqsat.conditions import constant, kernels, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import HALVES
from eqsat.rewrite import Ref
from eqsat.rules.linear.alignment import largest, limit
from eqsat.rules.recognise.norms import EPSILON, OVER_LAST, RMS, functions


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
        drawn=(
            """x: float16[A, K] | bfloat16[A, K] | float32[A, K]; g = d.floats([K]); b = d.floats([K]); n.axis = -1
               p.to = 1; q.to = 10 | 16""",
            "g = d.floats([K]) * 1e6",
            "b = d.floats([K]) * 1e6",
            "q.to = 1",
        ),
    )


equation(
    "soften_half_precision",
    "Cast(Softmax(Cast(x, **p), **n), to=to, **q) == Softmax(x, **n)",
    kernels("x", *HALVES),
    BACK,
    source="softmax(x, dtype=torch.float32).to(x.dtype) of PyTorch, and Hugging Face's eager attention",
)


for op, name in (("+", "add"), ("*", "multiply")):
    equation(
        f"{name}_in_half_precision",
        f"Cast(Cast(x, **p) {op} Cast(y, **r), to=to, **q) == x {op} y",
        kernels("x", *HALVES),
        "one type: y.dtype is x.dtype",
        BACK,
        exactness=Exactness.EXACT,
        source="Figueroa 1995, When is double rounding innocuous?: 24 digits are more than twice 11, and 2",
        drawn=(
            "x: float16[*ANY, N]; y: float16[N] | float16[*ANY, N] | float16[A, 1]; p.to = 1 | 11; r.to = 1 | 11; q.to = 10 | 1",
            "x: bfloat16[*ANY, N]; y: bfloat16[N]; q.to = 16",
            "x: float32[*ANY, N]; y: float32[N]; p.to = 11; r.to = 11; q.to = 1",
            "y: bfloat16[N]",
        ),
    )


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
    drawn=(
        'x: float16[A, *ANY, K]; eps = fixed(1e-5 | 0.5, "float64"); p.to = 11 | 1; q.to = 10 | 1',
        "x: float16[3, 3]; a = [1]",
        "x: float32[A, K]; q.to = 1",
        'eps = fixed(d.positive([K]), "float64")',
        'eps = fixed([[[[[0.5]]]]], "float64")',
        'x = d.floats([A, K], "float16") * 1e-5; eps = fixed(0.0 | 1e-12, "float64")',
    ),
    source="PyTorch's export of layer_norm on float16",
)
