"""Softmax and LogSoftmax that exporters spell out: always the stable form, which takes the maximum out first.

Not for any ``v`` in place of ``x - ReduceMax(x)``: where the exponentials overflow, the operator would be right and the original
is not.
"""

from __future__ import annotations

from eqsat.conditions import constant, kernels
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref
from eqsat.rules.recognise.norms import reduced_axes


def along(node: Ref, axes: Ref | None, x: Ref) -> tuple[int, ...]:
    """The axes of ``x`` that a reduction reduces, counted from the end."""
    return tuple(a - x.rank for a in reduced_axes(node, axes, x.rank)) if x.rank else ()


equation = Equations(__name__, exactness=Exactness.ROUNDING, functions={"along": along})
KERNELS = kernels("x", DType.FLOAT, DType.DOUBLE)

ONE_AXIS = (
    KERNELS,
    constant("a", "b"),
    "one axis is reduced: len(along(r, b, x)) == 1",
    "the maximum of the same axis: along(l, a, x) == along(r, b, x)",
)
equation(
    "recognise_softmax",
    """Exp(x - ReduceMax(x, *a, **l)) / ReduceSum(Exp(x - ReduceMax(x, *a, **l)), *b, **r)
       == Softmax(x, axis=along(r, b, x)[0])""",
    *ONE_AXIS,
    source="ONNX Softmax",
)
equation(
    "recognise_log_softmax",
    """(x - ReduceMax(x, *a, **l)) - Log(ReduceSum(Exp(x - ReduceMax(x, *a, **l)), *b, **r))
       == LogSoftmax(x, axis=along(r, b, x)[0])""",
    *ONE_AXIS,
    source="ONNX LogSoftmax",
)
for op, name in (("Softmax", "softmax"), ("LogSoftmax", "log_softmax")):
    equation(
        f"remove_shift_before_{name}",
        f"{op}(x - ReduceMax(x, *a, **l), axis=i, **s) == {op}(x, **s)",
        constant("a"),
        "the maximum of the same axis: along(l, a, x) == (i % x.rank - x.rank,)",
        source="the operator takes the maximum out itself",
    )
