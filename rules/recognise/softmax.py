"""Softmax and LogSoftmax that exporters spell out: always the stable form, which takes the maximum out first.

Not for any ``v`` in place of ``x - ReduceMax(x)``: where the exponentials overflow, the operator would be right and the original
is not.
"""

from typing import Any

from eqsat.conditions import constant
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.rules.linear.alignment import FLOAT
from eqsat.rules.recognise.norms import axes_of
from eqsat.samples import Sampler, fixed


def _shifted(d: Sampler) -> dict[str, Any]:
    """Reductions that keep their axis, and at times one that does not, where a square has a shape for both."""
    shape = (3, 3) if d.chance(0.4) else d.shape(1, 4)
    x = d.floats(shape, d.choose(("float32", "float32", "float64", "float16")))
    axes = [d.integer(-x.ndim, x.ndim - 1)] * 2
    if d.chance(0.15):
        axes[1] = d.integer(-x.ndim, x.ndim - 1)
    nodes: dict[str, Any] = {name: {"keepdims": 1} if d.chance() else {} for name in "lr"}
    if shape == (3, 3):
        nodes[d.choose("lr")]["keepdims"] = 0
    several = d.chance(0.2)
    chosen = {name: fixed(range(x.ndim) if several else [axis], "int64") for name, axis in zip("ab", axes, strict=True)}
    return {"x": x, **chosen, **nodes, "s": {"axis": axes[1]}}


equation = Equations(__name__, exactness=Exactness.ROUNDING, functions={"along": axes_of}, sample=_shifted)
ONE_AXIS = (
    FLOAT,
    constant("a", "b"),
    "one axis is reduced: len(along(r, b, x)) == 1",
    "the maximum of the same axis: along(l, a, x) == along(r, b, x)",
)
equation(
    "recognise_softmax",
    """Exp(x - ReduceMax(x, *a, keepdims=1, **l)) / ReduceSum(Exp(x - ReduceMax(x, *a, keepdims=1, **l)), *b, keepdims=1, **r)
       == Softmax(x, axis=along(r, b, x)[0])""",
    *ONE_AXIS,
    source="ONNX Softmax",
)
equation(
    "recognise_log_softmax",
    """(x - ReduceMax(x, *a, keepdims=1, **l)) - Log(ReduceSum(Exp(x - ReduceMax(x, *a, keepdims=1, **l)), *b, keepdims=1, **r))
       == LogSoftmax(x, axis=along(r, b, x)[0])""",
    *ONE_AXIS,
    source="ONNX LogSoftmax",
)
for op, name in (("Softmax", "softmax"), ("LogSoftmax", "log_softmax")):
    equation(
        f"remove_shift_before_{name}",
        f"{op}(x - ReduceMax(x, *a, keepdims=1, **l), axis=i, **s) == {op}(x, **s)",
        constant("a"),
        "the maximum of the same axis: along(l, a, x) == (i % x.rank - x.rank,)",
        source="the operator takes the maximum out itself",
    )
