"""Softmax and LogSoftmax that exporters spell out: always the stable form, which takes the maximum out first.

Not for any ``v`` in place of ``x - ReduceMax(x)``: where the exponentials overflow, the operator would be right and the original
is not.
"""

from eqsat.conditions import constant
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.rules.linear.alignment import FLOAT
from eqsat.rules.recognise.norms import axes_of

equation = Equations(__name__, exactness=Exactness.ROUNDING, functions={"along": axes_of}, drawn=("", "x: [3, 3]"))
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
