"""Norms over one axis that is not the last, as over the channels of an image, are norms of rows between two transposes.

NAFNet and SAM spell theirs so. Five or six operators go over the image then, and means over any axis but the last are slow in
ONNX Runtime: of (1, 64, 64, 64) the norm takes 1.9 ms step by step, 0.5 ms as an operator between transposes.
"""

from eqsat.conditions import constant, same_type
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.rewrite import Ref, Term
from eqsat.rules.linear.alignment import lies_along, lined_up
from eqsat.rules.recognise.norms import EPSILON, NARROW, UNDERFLOW, axes_of, full, known, outlives_underflow
from eqsat.rules.terms import transpose
from eqsat.rules.views.transposes import inverse


def inner_axis(node: Ref, axes: Ref | None, x: Ref) -> int:
    """The axis of ``x`` that a reduction reduces, counted from the end, if that is one and not the last; otherwise 0."""
    found = axes_of(node, axes, x)
    return found[0] if len(found) == 1 and found[0] < -1 else 0


def _order(axis: int, rank: int) -> tuple[int, ...]:
    """The axes of a value with one of them, which is counted from the end, behind the others."""
    return (*(i for i in range(rank) if i != axis + rank), axis + rank)


def at_end(axis: int, x: Ref) -> Term:
    return transpose(x, _order(axis, x.rank))


def back(axis: int, value: Term, x: Ref) -> Term:
    """The axes of ``value`` in the order of those of ``x`` again."""
    return transpose(value, inverse(_order(axis, x.rank)))


equation = Equations(
    __name__, exactness=Exactness.ROUNDING, functions=named(full, known, outlives_underflow, lies_along, lined_up)
)


INNER = (
    "the mean is taken over one axis, not the last: inner_axis(r, a, x) < 0",
    "the normalised extent is known: known(x.shape[inner_axis(r, a, x):][:1])",
)
equation(
    "recognise_rms_normalization_of_channels",
    """x / Sqrt(ReduceMean(x * x, *a, keepdims=1, **r) + eps)
       == back(inner_axis(r, a, x), RMSNormalization(at_end(inner_axis(r, a, x), x), full(x.shape[inner_axis(r, a, x)], 1, x),
               axis=-1, epsilon=eps.low), x)""",
    constant("a"),
    *EPSILON,
    UNDERFLOW,
    same_type("x"),
    NARROW,
    *INNER,
    drawn=(
        "x: [A, B, K]; a = [1] | [-2] | [2]",
        "x: float32[3, 3, 3]; a = [1]",
        "x: float32[B, K]; a = [0]; eps = d.positive([K]) | d.positive([1, 1, 1])",
        'x = d.floats([B, K], "float16") * 1e-5; a = [0]; eps = fixed(0.0 | 1e-6, "float16")',
        "SYMBOLS = [B]",
    ),
    source="ONNX RMSNormalization; Zhang and Sennrich 2019",
    structure="norm",
)
equation(
    "recognise_layer_normalization_of_channels",
    """RMSNormalization(Transpose(x - ReduceMean(x, *a, keepdims=1, **r), perm=p, **t), s, axis=i, **n)
       == LayerNormalization(Transpose(x, perm=p, **t), s, axis=i, **n)""",
    constant("a"),
    NARROW,
    "the mean is taken over the normalised axis: inner_axis(r, a, x) == p[-1] - x.rank",
    "which is the last: i in (-1, x.rank - 1)",
    source="ONNX LayerNormalization; Ba, Kiros and Hinton 2016",
)


for name, norm, op in (
    ("scale_layer", "LayerNormalization(x, s, *b, axis=i, **n)", "*"),
    ("shift_layer", "LayerNormalization(x, s, *b, axis=i, **n)", "+"),
    ("scale_rms", "RMSNormalization(x, s, axis=i, **n)", "*"),
):
    equation(
        f"{name}_normalization_of_channels",
        f"Transpose({norm}, perm=p, **t) {op} g == Transpose(n {op} lined_up(g), perm=p, **t)",
        constant("g"),
        "g varies along the normalised axis only: lies_along(g, t, p.index(x.rank - 1))",
        exactness=Exactness.EXACT,
        source="ONNX Transpose moves elements",
    )
