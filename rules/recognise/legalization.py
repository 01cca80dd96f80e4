"""Operators that a target has no kernel for, spelled out with those that every target has.

Each rule here runs only where the target's description lists its operator as unsupported: choosing kernels that exist is then
extraction like any other. The spellings are the stable ones: no exponential overflows, variances are means of squared distances.
Half precision is left alone: kernels compute inside in float32, which the spelling would not.
"""

from typing import Any

from eqsat.conditions import kernels
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Literal, Ref
from eqsat.rules.recognise.norms import full
from eqsat.rules.terms import int64s
from eqsat.samples import Sampler


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


def _rows(d: Sampler) -> dict[str, Any]:
    """The scale may have a type of its own."""
    x = d.floats(d.shape(2, 4, ones=0.05), d.choose(("float32", "float32", "float64")))
    axis = d.integer(-2, -1)
    scale = d.floats(x.shape[axis:], str(x.dtype) if d.chance(0.8) else "float32")
    return {"x": x, "s": scale, "n": {"axis": axis, "epsilon": d.choose((1e-5, 0.5))}}


equation(
    "spell_out_rms_normalization",
    f"RMSNormalization(x, s, axis=i, epsilon=e, **n) == {over_root('x')} * s",
    "the scale is of the type of x: s.dtype is x.dtype",
    source="ONNX RMSNormalization; Zhang and Sennrich 2019",
    sample=_rows,
    legalizes="RMSNormalization",
)
NORMAL = over_root("(x - ReduceMean(x, last_axes(i, x), keepdims=1))")
equation(
    "spell_out_layer_normalization",
    f"LayerNormalization(x, s, *c, axis=i, epsilon=e, **n) == ({NORMAL} * s if c is None else {NORMAL} * s + c)",
    source="ONNX LayerNormalization; Ba, Kiros and Hinton 2016",
    legalizes="LayerNormalization",
)


def _images(d: Sampler) -> dict[str, Any]:
    n, *positions = d.extents(d.integer(2, 3))
    groups, each = d.choose(((2, 3), (3, 2), (1, 4)))
    parts = {name: d.floats((groups * each,)) for name in ("s", "b")}
    attributes = {"num_groups": groups, "epsilon": d.choose((1e-5, 0.5))}
    return {"x": d.floats((n, groups * each, *positions)), **parts, "n": attributes}


equation(
    "spell_out_group_normalization",
    """GroupNormalization(x, s, b, num_groups=g, epsilon=e, **n)
       == Reshape(InstanceNormalization(Reshape(x, int64s([0, g, -1])), full(g, 1, x), full(g, 0, x), epsilon=e),
                  int64s(x.shape) if x.type.is_static else Shape(x)) * Reshape(s, column(x)) + Reshape(b, column(x))""",
    source="ONNX GroupNormalization; Wu and He 2018",
    sample=_images,
    legalizes="GroupNormalization",
)
