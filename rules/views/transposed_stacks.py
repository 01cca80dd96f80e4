"""Transposes around stacks of products and around softmax, as the transpose of the usual form.

Attention may be computed the other way up: keys by queries, softmax along the rows, values by probabilities.
"""

from eqsat.conditions import single_or_half, varies, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.rules.terms import last_axes_exchanged, transpose

equation = Equations(
    __name__, exactness=Exactness.ROUNDING, functions={"turned": last_axes_exchanged, "transpose": transpose}
)

for name, text, *drawn in (
    (
        "exchange_operands_of_product_by_transposed",
        "x @ Transpose(y, **p) == transpose(MatMul(y, transpose(x, turned(x.rank))), turned(x.rank))",
        "x: [A, M, K]; y: [A, N, K]; p.perm = (0, 2, 1)",
        "x: [A, B, M, K]; y: [A, B, N, K]; p.perm = (0, 1, 3, 2)",
        "x: [A, B, M, K]; y: [B, N, K] | [N, K]; p.perm = (0, 2, 1) | (1, 0)",
        "y: [A, K, N]; p.perm = (0, 1, 2)",
    ),
    (
        "exchange_operands_of_transposed_product",
        "Transpose(x, **p) @ y == transpose(MatMul(transpose(y, turned(y.rank)), x), turned(y.rank))",
        "x: [A, K, M]; y: [A, K, N]; p.perm = (0, 2, 1)",
        "x: [A, B, K, M]; y: [A, B, K, N]; p.perm = (0, 1, 3, 2)",
        "x: [A, K, M]; y: [A, B, K, N] | [K, N] | [B, A, K, N]",
        "x: [A, M, K]; p.perm = (0, 1, 2)",
    ),
    (
        "turn_product_instead_of_result",
        "Transpose(x @ y, **p) == transpose(y, turned(y.rank)) @ transpose(x, turned(x.rank))",
        "x: [A, M, K]; y: [A, K, N]; p.perm = (0, 2, 1)",
        "x: [A, B, M, K]; y: [A, B, K, N]; p.perm = (0, 1, 3, 2)",
        "x: [A, M, K]; y: [K, N] | [B, A, K, N]; p.perm = (0, 2, 1) | (0, 1, 3, 2)",
        "x: [A, B, M, K]; y: [K]; p.perm = (0, 2, 1)",
        "p.perm = (1, 0, 2)",
    ),
):
    equation(
        name,
        text,
        varies("x", "y"),
        single_or_half("x"),
        worthwhile("stacks of matrices: x.rank >= 3"),
        "of one rank: x.rank == y.rank",
        "the last two axes are exchanged: p.attr('perm') == turned(p.rank)",
        drawn=drawn,
        source="(x y)' = y' x'",
    )
equation(
    "transpose_behind_softmax",
    "Softmax(Transpose(x, perm=p), axis=i) == transpose(Softmax(x, axis=p[i] - x.rank), p)",
    varies("x"),
    source="softmax along an axis, wherever it is",
)
