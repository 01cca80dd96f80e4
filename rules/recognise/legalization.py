"""Operators that a target has no kernel for, spelled out with those that every target has.

Each rule here runs only where the target's description lists its operator as unsupported: choosing kernels that exist is then
extraction like any other. The spellings are the stable ones: no exponential overflows, variances are means of squared distances.
Half precision is left alone: kernels compute inside in float32, which the spelling would not.
"""

from eqsat.conditions import kernels
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Literal, Ref
from eqsat.rules.recognise.norms import full
from eqsat.rules.terms import int64s


def last_axes(axis: int, x: Ref) -> Literal:
    """The axes of ``x`` from ``axis`` on, counted from the end."""
    return int64s(range(axis % x.rank - x.rank, 0))


def column(x: Ref) -> Literal:
    """The shape in which a vector lies along the channels of ``x``."""
    return int64s([-1, *[1] * (x.rank - 2)])


equation = Equations(
    __name__,
    where=[kernels("x", DType.FLOAT, DType.DOUBLE)],
    exactness=Exactness.ROUNDING,
    functions=named(int64s, full),
)
SHIFTED = "(x - ReduceMax(x, int64s([i]), keepdims=1))"
SUM = f"ReduceSum(Exp({SHIFTED}), int64s([i]), keepdims=1)"
for op, name, right in (
    ("Softmax", "softmax", f"Exp({SHIFTED}) / {SUM}"),
    ("LogSoftmax", "log_softmax", f"{SHIFTED} - Log({SUM})"),
):
    equation(f"spell_out_{name}", f"{op}(x, axis=i, **n) == {right}", source=f"ONNX {op}", legalizes=op)


def over_root(value: str) -> str:
    """``value`` over the root of the mean of its squares."""
    return f"{value} / Sqrt(ReduceMean({value} * {value}, last_axes(i, x), keepdims=1) + number(e, x.dtype))"


equation(
    "spell_out_rms_normalization",
    f"RMSNormalization(x, s, axis=i, epsilon=e, **n) == {over_root('x')} * s",
    "the scale is of the type of x: s.dtype is x.dtype",
    source="ONNX RMSNormalization; Zhang and Sennrich 2019",
    drawn="x: float32[A, K] | float64[A, K]; s: float32[K] | float64[K]; n.axis = -1",
    legalizes="RMSNormalization",
)
NORMAL = over_root("(x - ReduceMean(x, last_axes(i, x), keepdims=1))")
equation(
    "spell_out_layer_normalization",
    f"LayerNormalization(x, s, *c, axis=i, epsilon=e, **n) == ({NORMAL} * s if c is None else {NORMAL} * s + c)",
    source="ONNX LayerNormalization; Ba, Kiros and Hinton 2016",
    legalizes="LayerNormalization",
)


equation(
    "spell_out_group_normalization",
    """GroupNormalization(x, s, b, num_groups=g, epsilon=e, **n)
       == Reshape(InstanceNormalization(Reshape(x, int64s([0, g, -1])), full(g, 1, x), full(g, 0, x), epsilon=e),
                  int64s(x.shape) if x.type.is_static else Shape(x)) * Reshape(s, column(x)) + Reshape(b, column(x))""",
    source="ONNX GroupNormalization; Wu and He 2018",
    drawn="n.num_groups = C; x: [N, C * E, *ANY, W]; s: [C * E]; b: [C * E]",
    legalizes="GroupNormalization",
)
