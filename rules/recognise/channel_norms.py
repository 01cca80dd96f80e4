"""Norms over axes that are not the last ones, as over the channels of an image, are norms of rows between two transposes.

NAFNet and SAM spell theirs so, and Keras those of groups of channels, which are last. Five or six operators go over images, and
means over any axis but the last are slow in ONNX Runtime: of (1, 64, 64, 64) the norm takes 1.9 ms step by step, 0.5 ms as an
operator between transposes.
"""

import math
from collections.abc import Sequence

from eqsat.conditions import constant, same_type
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import Dim
from eqsat.rewrite import Ref, Term
from eqsat.rules.linear.alignment import lies_along, lined_up
from eqsat.rules.recognise.norms import EPSILON, NARROW, UNDERFLOW, axes_of, first_axis, full, known, outlives_underflow
from eqsat.rules.terms import transpose
from eqsat.rules.views.transposes import inverse

_SUMMANDS = 2**16
"""As many as ONNX Runtime adds up to 1e-6 where it normalises a row; means over several axes are of parts."""


def inner_axes(node: Ref, axes: Ref | None, x: Ref) -> tuple[int, ...]:
    """The axes of ``x`` that a reduction reduces, as they are behind the others, if those are not the last ones anyway.

    Those that are last come first: channels, where they are, behind which positions are in the usual order.
    """
    found = tuple(a + x.rank for a in axes_of(node, axes, x))
    rest = [i for i in range(x.rank) if i not in found]
    if not rest or not found or rest[-1] < found[0]:
        return ()
    first = tuple(a for a in found if a > rest[-1] and x.shape[a] != 1)
    return (*first, *(a for a in found if a not in first))


def _order(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """The axes of a value with some of them behind the others."""
    return (*(i for i in range(rank) if i not in axes), *axes)


def extents(axes: Sequence[int], x: Ref) -> tuple[Dim, ...]:
    """Those of ``x`` along axes."""
    return tuple(x.shape[i] for i in axes)


def few(shape: Sequence[Dim]) -> bool:
    """Whether a row of such extents is added up precisely enough."""
    return math.prod(d for d in shape if isinstance(d, int)) <= _SUMMANDS


def at_end(axes: Sequence[int], x: Ref) -> Term:
    return transpose(x, _order(axes, x.rank))


def back(axes: Sequence[int], value: Term, x: Ref) -> Term:
    """The axes of ``value`` in the order of those of ``x`` again."""
    return transpose(value, inverse(_order(axes, x.rank)))


equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    functions=named(first_axis, full, known, outlives_underflow, lies_along, lined_up),
)


INNER = (
    "the mean is taken over axes, not the last ones: len(inner_axes(r, a, x)) > 0",
    "the normalised extents are known: known(extents(inner_axes(r, a, x), x))",
    "so few that a kernel adds them up precisely: few(extents(inner_axes(r, a, x), x))",
)
equation(
    "recognise_rms_normalization_of_channels",
    """x / Sqrt(ReduceMean(x * x, *a, keepdims=1, **r) + eps)
       == back(inner_axes(r, a, x), RMSNormalization(at_end(inner_axes(r, a, x), x), full(extents(inner_axes(r, a, x), x), 1, x),
               axis=-len(inner_axes(r, a, x)), epsilon=eps.low), x)""",
    constant("a"),
    *EPSILON,
    UNDERFLOW,
    same_type("x"),
    NARROW,
    *INNER,
    drawn=(
        "x: [A, B, K]; a = [1] | [-2] | [2]",
        "x: [A, B, C, K]; a = [1, 2] | [1, 3] | [0, -1] | [2, 3]",
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
    "the mean is taken over the normalised axes: set(inner_axes(r, a, x)) == set(p[first_axis(i, x):])",
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
