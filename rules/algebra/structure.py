"""Structure: operators and inputs that do nothing, and dropout at inference."""

from collections.abc import Iterator

import numpy as np

from eqsat.conditions import condition, every_element, same_type, worthwhile
from eqsat.equations import Equations, form, group_rule
from eqsat.ir.constants import Constant
from eqsat.ir.operator import Operator, having, operators_with, traits_of
from eqsat.ir.traits import VARIADIC
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Condition, GroupView, Match, Merge, Ref, Term, literal, present
from eqsat.rules.terms import outputs_of

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


dropout = Equations(
    __name__,
    drawn=("", "t = fixed(1, 'bool') | d.booleans([]); r = fixed(0.5, 'float32') | 0.5"),
    source="ONNX Dropout-22: without training_mode, or with ratio 0, the output is the input and the mask is true",
    functions={"true": Constant.of([True])},
)
dropout("remove_dropout", "Dropout(x, *r, *t, **n) == x", _inference)
dropout("remove_dropout_with_mask", "Dropout(x, *r, *t, outputs=2, **n)[0] == x", _inference)
dropout(
    "replace_dropout_mask", "Dropout(x, *r, *t, outputs=2, **n)[1] == ConstantOfShape(Shape(x), value=true)", _inference
)


# --- numbers along extents that are computed


def filling(node: Ref) -> Term:
    """The number that a ConstantOfShape repeats."""
    value = node.attributes.get("value")
    return literal(value.numpy().reshape(()) if isinstance(value, Constant) else np.float32(0))


# What is known of numbers that are repeated is known of it.
equation("expand_number_instead_of_filling", "ConstantOfShape(s, **n) == Expand(filling(n), s)")


# --- inputs that may as well be absent


ZEROS = (every_element("zeros", 0),)
_ZEROS = "z = fixed(d.floats([{0}]) * 0) | d.floats([{0}]) * 0 | fixed(d.floats([{0}]))"
_RECURRENT = f"""x: float32[T, B, K]; h = H; c: float32[1, B, H]; b = d.floats([1, 2 * G * H]) * (0 | 1)
                 {_ZEROS.format("1, B, H")}; w: float32[1, G * H, K]; r: float32[1, G * H, H]"""


@group_rule(
    where=ZEROS,
    source="ONNX LSTM-22 and others: an input that is not given is assumed to be 0",
    forms=[
        form("Gemm(x, w, z)", drawn=f"x: float32[T, K]; w: float32[K, H]; {_ZEROS.format('H')}"),
        form("Conv(x, w, z)", drawn=f"x: float32[2, 3, 5]; w: float32[H, 3, 2]; {_ZEROS.format('H')}"),
        form("ConvTranspose(x, w, z)", drawn=f"x: float32[2, 3, 5]; w: float32[3, H, 2]; {_ZEROS.format('H')}"),
        form("LayerNormalization(x, g, z)", drawn=f"x: float32[T, H]; g: float32[H]; {_ZEROS.format('H')}"),
        form("LSTM(x, w, r, *b, None, z, c, outputs=2, hidden_size=h)[1]", drawn=f"G = 4; {_RECURRENT}"),
        form("GRU(x, w, r, *b, None, z, outputs=2, hidden_size=h)[0]", drawn=f"G = 3; {_RECURRENT}"),
        form("RNN(x, w, r, *b, None, z, hidden_size=h)", drawn=f"G = 1; {_RECURRENT}"),
    ],
)
def leave_out_zeros(view: GroupView) -> Iterator[Merge]:
    """``f(x, zeros) == f(x)`` where ``f`` takes an absent input to be zeros: initial states, biases."""
    for op in operators_with(having("zero_if_absent"), domains=True):
        for node, inputs in view.nodes(op):
            given = [(i, inputs[i]) for i in traits_of(op).zero_if_absent if i < len(inputs)]
            absent = {i for i, x in given if x is not None and view.meets(ZEROS, zeros=x)}
            if absent:
                others = present(*(None if i in absent else x for i, x in enumerate(inputs)))
                results = outputs_of(view, node)
                made = Apply(op, others, node.attributes, "", max(results, default=0) + 1)
                yield from ((x, made.output(i)) for i, x in results.items()) if results else ((node, made),)
