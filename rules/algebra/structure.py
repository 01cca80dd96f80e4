"""Structure: operators that do nothing, and dropout at inference."""

from typing import Any

import numpy as np

from eqsat.conditions import condition, same_type, worthwhile
from eqsat.equations import Equations
from eqsat.ir.constants import Constant
from eqsat.ir.operator import Operator, operators_with
from eqsat.ir.traits import VARIADIC
from eqsat.ir.types import DType
from eqsat.rewrite import Condition, Match
from eqsat.samples import Sampler

SPEC = "ONNX operator specification"
equation = Equations(__name__, source=SPEC)

# --- operators that do nothing

equation("remove_identity", "Identity(x) == x")
equation("remove_cast", "Cast(x, **n) == x", same_type("x"))
equation(
    "normalise_cast_like",
    "CastLike(x, y, **n) == Cast(x, to=int(y.dtype), **n)",
    worthwhile(Condition("the element type is known", lambda m: m.y.dtype is not DType.UNDEFINED)),
)
equation("remove_transpose", "Transpose(x, perm=p) == x", "axes in order: list(p) == sorted(p)")
equation("remove_expand", "Expand(x, s) == x", same_type("x"))
equation("remove_tile", "Tile(x, s) == x", same_type("x"))
equation("remove_slice", "Slice(x, s, t, *a, *b) == x", same_type("x"), "steps positive: b is None or all(b.value > 0)")
equation("remove_pad", "Pad(x, s, *a, *b, **n) == x", "pads zero: not any(s.value)")
equation("remove_concat_of_one", "Concat(x, axis=a) == x")
equation("remove_split_into_one", "Split(x, *s, **n) == x")


def _is_variadic(op: Operator) -> bool:
    return op.traits.operands == VARIADIC


for op in operators_with(_is_variadic):
    equation(f"remove_{op.lower()}_of_one", f"{op}(x) == x")
equation("normalise_sum_of_two", "Sum(x, y) == x + y")


# --- dropout


@condition("not training")
def _inference(m: Match) -> bool:
    if m.t is None or (m.t.is_constant and not m.t.value.any()):
        return True
    return m.r is not None and m.r.is_constant and not m.r.value.any()


def _dropout(d: Sampler) -> dict[str, Any]:
    found: dict[str, Any] = {"x": d.array(d.shape(), "float32"), "n": {"seed": 1} if d.chance() else {}}
    if d.chance(0.7):
        found["r"] = d.either(np.array(d.choose((0.0, 0.5)), np.float32), 0.7)
        if d.chance(0.7):
            found["t"] = d.either(d.booleans(()), 0.7)
    return found


dropout = Equations(
    __name__,
    sample=_dropout,
    source="ONNX Dropout-22: without training_mode, or with ratio 0, the output is the input and the mask is true",
    functions={"true": Constant.of([True])},
)
dropout("remove_dropout", "Dropout(x, *r, *t, **n) == x", _inference)
dropout("remove_dropout_with_mask", "Dropout(x, *r, *t, outputs=2, **n)[0] == x", _inference)
dropout(
    "replace_dropout_mask", "Dropout(x, *r, *t, outputs=2, **n)[1] == ConstantOfShape(Shape(x), value=true)", _inference
)
