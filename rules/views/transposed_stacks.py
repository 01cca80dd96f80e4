"""Transposes around stacks of products and around softmax, as the transpose of the usual form.

Attention may be computed the other way up: keys by queries, softmax along the rows, values by probabilities.
"""

from functools import partial
from typing import Any

from eqsat.conditions import single_or_half, varies, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.rules.terms import last_axes_exchanged, transpose
from eqsat.samples import Sampler


def _stack(d: Sampler, side: str) -> dict[str, Any]:
    """Stacks of matrices, of which one is transposed on the way in, or the product is."""
    rows, inner, columns, batch, heads = d.extents(5)
    lead = (batch, heads)[: d.integer(1, 2)]
    shapes: dict[str, tuple[int, ...]] = {"x": (*lead, rows, inner), "y": (*lead, inner, columns)}
    rank = len(lead) + 2
    if d.chance(0.2):  # other axes are exchanged
        perm = (*range(rank - 1)[::-1], rank - 1) if not side else tuple(range(rank))
    else:
        perm = last_axes_exchanged(rank)
    if d.chance(0.15):  # another rank
        other = {"x": "y", "y": "x", "": "y"}[side]
        shapes[other] = shapes[other][1:]
    elif not side and rank == 4 and d.chance(0.2):  # a vector
        shapes["y"], perm = (inner,), last_axes_exchanged(3)
    if side:
        shapes[side] = tuple(shapes[side][i] for i in perm)
    return {name: d.floats(shape) for name, shape in shapes.items()} | {"p": {"perm": perm}}


equation = Equations(
    __name__, exactness=Exactness.ROUNDING, functions={"turned": last_axes_exchanged, "transpose": transpose}
)

for name, text, side in (
    (
        "exchange_operands_of_product_by_transposed",
        "x @ Transpose(y, **p) == transpose(MatMul(y, transpose(x, turned(x.rank))), turned(x.rank))",
        "y",
    ),
    (
        "exchange_operands_of_transposed_product",
        "Transpose(x, **p) @ y == transpose(MatMul(transpose(y, turned(y.rank)), x), turned(y.rank))",
        "x",
    ),
    (
        "turn_product_instead_of_result",
        "Transpose(x @ y, **p) == transpose(y, turned(y.rank)) @ transpose(x, turned(x.rank))",
        "",
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
        sample=partial(_stack, side=side),
        source="(x y)' = y' x'",
    )
equation(
    "transpose_behind_softmax",
    "Softmax(Transpose(x, perm=p), axis=i) == transpose(Softmax(x, axis=p[i] - x.rank), p)",
    varies("x"),
    source="softmax along an axis, wherever it is",
)
