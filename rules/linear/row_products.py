"""Products of the rows of a value, spelled as the product of one matrix, are products of the value itself.

Converters flatten the leading axes, multiply, and restore them; beside another product of the same value that hides what both
have in common.
"""

import math
from typing import Any

from eqsat.conditions import single_or_half, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.samples import Sampler, fixed


def _flattened(d: Sampler) -> dict[str, Any]:
    lead, inner, columns = d.extents(3), d.integer(2, 5), d.integer(2, 5)
    x = d.floats((*lead[: d.integer(2, 3)], inner))
    result = [*x.shape[:-1], columns] if d.chance(0.85) else [*x.shape[-2::-1], columns]
    w, rows = d.floats((inner, columns)), math.prod(x.shape[:-1])
    c = d.floats(d.choose(((columns,), (columns,), (), (1,), (rows, 1))))
    if d.chance(0.1):
        w, result, c = w[:, 0], list(x.shape[:-1]), d.floats(())
    shapes = {"s": fixed([rows, inner], "int64"), "t": fixed(result, "int64")}
    return {"x": x, "w": d.either(w), "c": d.either(c), **shapes}


equation = Equations(
    __name__, exactness=Exactness.ROUNDING, source="the product and the sum act on each row", sample=_flattened
)
ROWS = (
    single_or_half("x"),
    worthwhile("there are leading axes: x.rank >= 3"),
    "the weights are a matrix: w.rank == 2",
    "the view keeps the rows: x.shape[-1] == w.shape[0]",
    "the leading axes are restored: root.shape == (*x.shape[:-1], w.shape[1])",
)
equation("multiply_rows_in_place", "Reshape(Reshape(x, s, **u) @ w, t, **v) == x @ w", *ROWS)
equation(
    "multiply_and_add_rows_in_place",
    "Reshape(Reshape(x, s, **u) @ w + c, t, **v) == x @ w + c",
    *ROWS,
    "a number, or one for each column: c.shape in ((), (1,), w.shape[1:])",
)
