"""What goes along an axis before the last is done along the last: ONNX Runtime's kernels are made for neighbours in memory.

Softmax over the classes of each place of an image, or over its channels, takes 6 to 8 times as long as between two transposes,
the largest of the channels 3 times as long, and its place twice. Transposes stand apart from it by views, for ONNX Runtime would
move one through it and have the slow form again.

A quantiser takes each element by itself where each has another scale than its neighbour, 28 times as long as by one scale.
"""

import math

from eqsat.conditions import constant, kernels, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, apply, for_each_operator, literal
from eqsat.rules.algebra.reductions import picks
from eqsat.rules.quantised.scales import like
from eqsat.rules.recognise.norms import axes_of
from eqsat.rules.terms import int64s, reshape, transpose


def extents(axis: int, x: Ref) -> tuple[int, int, int]:
    """Of the axes before one, of that itself, and of those behind it."""
    place, shape = axis % x.rank, x.static_shape
    return math.prod(shape[:place]), shape[place], math.prod(shape[place + 1 :])


def rows(axis: int, x: Ref) -> Term:
    """What lies along an axis as rows of a matrix."""
    before, own, behind = extents(axis, x)
    return reshape(transpose(reshape(x, (before, own, behind)), (0, 2, 1)), (before * behind, own))


def from_rows(value: Term, axis: int, x: Ref) -> Term:
    """Rows that `rows` made, in the shape of ``x`` again."""
    before, own, behind = extents(axis, x)
    return reshape(transpose(reshape(value, (before, behind, own)), (0, 2, 1)), x.static_shape)


equation = Equations(
    __name__,
    where=[kernels("x", DType.FLOAT)],
    domain="com.microsoft",
    exactness=Exactness.ROUNDING,
    source="each row by itself",
    functions=named(axes_of, int64s, reshape),
)
APART = "elements along an axis before the last: min(extents({0}, x)) > 0 and extents({0}, x)[2] > 1"
for op in ("Softmax", "LogSoftmax"):
    equation(
        f"take_{op.lower()}_along_the_last_axis",
        f"{op}(x, axis=i, **n) == from_rows({op}(rows(i, x), axis=-1, **n), i, x)",
        worthwhile(APART.format("i")),
    )
for op in ("ArgMax", "ArgMin"):
    equation(
        f"take_{op.lower()}_along_the_last_axis",
        f"{op}(x, axis=i, **n) == reshape({op}(rows(i, x), axis=-1, **n), root.static_shape)",
        worthwhile(APART.format("i")),
        exactness=Exactness.EXACT,
    )


@for_each_operator(picks)
def _one_of_each_line(op: str) -> None:
    equation(
        f"take_{op.lower()}_along_the_last_axis",
        f"{op}(x, *a, **r) == reshape({op}(rows(axes_of(r, a, x)[0], x), int64s([-1])), root.static_shape)",
        constant("a"),
        "over one axis: len(axes_of(r, a, x)) == 1",
        worthwhile(APART.format("axes_of(r, a, x)[0]")),
        exactness=Exactness.EXACT,
    )


def divided(node: Ref, x: Ref, s: Ref, z: Ref | None) -> Term:
    """``x`` divided by its scales, quantised by one."""
    zero = None if z is None else literal(z.value.reshape(-1)[0])
    return like(node, "QuantizeLinear", apply("Div", x, s), literal(1, s.dtype), zero)


equation(
    "divide_rows_before_quantising",
    "QuantizeLinear(x, s, *z, axis=i, **q) == divided(q, x, s, z)",
    constant("s"),
    kernels("s", DType.FLOAT),
    "a scale for each element of a row: x.rank > 1 and s.rank == 1 and i % x.rank == x.rank - 1",
    "one zero point: z is None or z.low == z.high",
    worthwhile("several scales: s.type.size > 1"),
    exactness=Exactness.EXACT,
    drawn=(
        'x: float32[A, K]; s = d.positive([K]); z = fixed(3, "uint8") | fixed(0, "int8"); i = 1 | -1',
        "z: int8[K]",
        "x: float32[K, A]; i = 0",
        "x: float32[K]; i = 0",
        "x: float32[]; s = d.positive([1]); z: int8[1]",
    ),
)
