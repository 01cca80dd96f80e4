"""Sums and means over rows of one matrix are products with equal numbers, columns times rows products of matrices; sums of
exponentials are taken step by step.

ONNX Runtime sums elements that do not follow one another fast only where there are several matrices, or a large one for each
of its threads: a mean over the channels of one image, or over the tokens of one sequence, takes 6 to 50 times as long as the
product. Where a row is repeated for each number of a column, Mul starts anew each time, in 14 ns; a product takes 0.2 to 0.9 of
the time. The logarithm of a sum of exponentials, by the functions of C, takes 4 to 7 ns an element; its steps take 1 to 2.
"""

import math
from collections.abc import Iterator

from eqsat.conditions import constant, kernels, worthwhile
from eqsat.equations import Equations, form, named
from eqsat.exactness import Exactness
from eqsat.ir.extents import at_least
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Match, Ref, Term
from eqsat.rules.algebra.reductions import without
from eqsat.rules.linear.alignment import limit, reshaped
from eqsat.rules.recognise.norms import axes_of, full
from eqsat.rules.terms import complete_nodes, matmul, reshape


def matrix(node: Ref, axes: Ref | None, x: Ref) -> tuple[int, int]:
    """The rows and columns of ``x`` as one matrix whose rows a reduction reduces to one; (0, 0) where it is none."""
    reduced = [axis + x.rank for axis in axes_of(node, axes, x)]
    first, end = (reduced[0], reduced[0] + len(reduced)) if reduced else (0, 0)
    rows, columns = (math.prod(x.static_shape[part]) for part in (slice(end), slice(end, None)))
    is_one = math.prod(x.static_shape[:first]) == 1 and reduced == [*range(first, end)]
    return (rows, columns) if reduced and is_one and columns > 1 else (0, 0)


def one_row(root: Ref, elements: int) -> tuple[int, ...]:
    """The shape of a row, or of a vector where the result ``root`` is one."""
    return (1,) * (root.rank > 1) + (elements,)


def viewed(value: Term, shape: tuple[int, ...], root: Ref) -> Term:
    """A value that has ``shape`` in that of ``root``."""
    return value if root.static_shape == shape else reshape(value, root.static_shape)


equation = Equations(
    __name__,
    domain="com.microsoft",
    exactness=Exactness.ROUNDING,
    source="definition of the sum",
    functions=named(at_least, axes_of, full, limit, reshaped, without),
)
for op, factor in (("ReduceSum", "1"), ("ReduceMean", "1 / matrix(r, a, x)[0]")):
    equation(
        f"multiply_instead_of_{op.lower()}",
        f"""{op}(x, *a, **r)
            == viewed(MatMul(full(one_row(root, matrix(r, a, x)[0]), {factor}, x), reshaped(x, matrix(r, a, x))),
                      one_row(root, matrix(r, a, x)[1]), root)""",
        constant("a"),
        kernels("x", DType.FLOAT),
        "the rows of one matrix: matrix(r, a, x)[0] > 0",
    )


def _columns_and_rows(view: GroupView) -> Iterator[Match]:
    """Each product of a column and a row, or of those of several matrices."""
    for node, operands in complete_nodes(view, "Mul"):
        for x, y in (operands, operands[::-1]):
            (*leading, last), rows = x.type.shape or (0,), y.type.shape or ()
            if leading and last == 1 and rows[-2:-1] == (1,):
                yield Match({"x": x, "y": y}, node)


# For few rows a product of each matrix takes longer than to start anew for each row: 4 of 16 elements 1.1 to 2 times as long.
@equation.over_groups(
    find=_columns_and_rows,
    where=[
        kernels("x", DType.FLOAT),
        worthwhile("each of several: x.shape[-2] != 1 and y.shape[-1] != 1"),
        worthwhile("many rows, or one matrix: at_least(x.shape[-2], 16) or all(d == 1 for d in y.shape[:-1])"),
    ],
    exactness=Exactness.EXACT,
    source="definition of the matrix product; a sum of one number",
    forms=[form("x * y", drawn=("x: float32[*ANY, A, 1]; y: float32[*ANY, 1, N]", "x: float32[A, 1]; y: float32[N]"))],
)
def multiply_column_by_row(m: Match) -> Term:
    """``x * y == x @ y`` of a column and a row."""
    return matmul(m.x, m.y)


# Beside a finite number the sum is 0 where all exponents are minus infinity, and infinite where one is infinite.
LARGEST = "Clip(ReduceMax(x, a, keepdims=1), number(-limit(x), x.dtype), number(limit(x), x.dtype))"
equation(
    "take_steps_of_logarithm_of_sum_of_exponentials",
    f"ReduceLogSumExp(x, a, **r) == Log(ReduceSum(Exp(x - {LARGEST}), a, **r)) + without({LARGEST}, axes_of(r, a, x), r)",
    constant("a"),
    kernels("x", DType.FLOAT),
    worthwhile("several axes or one: axes_of(r, a, x)"),
    source="exp(x - m) * exp(m) = exp(x)",
    drawn=(
        "",
        'x = d.rng.choice([1.5, -40.0, inf, -inf, -3.4028235e38], [A, B, K]).astype("float32"); a = [-1] | [0, 2]',
    ),
)
