"""Rotary position embeddings as ONNX Runtime has a kernel since long before ONNX had the operator.

    RotaryEmbedding(x, c, s) == com.microsoft.RotaryEmbedding(x, 0, c[0], s[0])              one table for all sequences
    RotaryEmbedding(x, c, s) == com.microsoft.RotaryEmbedding(x, 0 .. b*n - 1, rows(c), rows(s))   one for each

ONNX takes tables for each sequence without positions. The kernel takes one table, and it must have a row for each place of a
sequence, which a table that is looked up by positions need not have.
"""

import numpy as np

from eqsat.conditions import kernels, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.extents import multiply
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, apply, literal
from eqsat.rules.terms import int64s
from eqsat.rules.views.extents import listed, viewed


def rows(table: Ref) -> Term:
    """The table of all sequences, one behind the other."""
    return viewed(table, table.shape, (multiply(*table.shape[:2]), table.shape[2]), table)


def places(table: Ref) -> Term:
    """Where the rows of each sequence are among those of all; of the only one, where they begin."""
    if table.shape[0] == 1:
        return int64s((0,))
    count = multiply(*table.shape[:2])
    if isinstance(count, int):
        return literal(np.arange(count).reshape(table.static_shape[:2]))
    zero, one = literal(np.int64(0)), literal(np.int64(1))
    numbers = apply("Range", zero, apply("Squeeze", listed((count,), table)), one)
    return viewed(numbers, (count,), table.shape[:2], table)


def heads_of(x: Ref, given: int) -> int | None:
    """The number of heads, which the kernel is told where a part of the features turns, too."""
    heads = x.shape[1]
    return given or (heads if x.rank == 4 and isinstance(heads, int) else None)


equation = Equations(
    __name__,
    where=[
        kernels("x", DType.FLOAT, DType.FLOAT16),
        worthwhile("heads apart or in rows: x.rank in (3, 4)"),
        worthwhile("a part of the features of a known number of heads: not d or heads_of(x, n)"),
    ],
    domain="com.microsoft",
    exactness=Exactness.ROUNDING,
    source="contrib operators of ONNX Runtime; ONNX RotaryEmbedding",
)
TURNED = (
    """x: [B, H, L, 2 * D]; c: [B, L, D]; s: [B, L, D]; n = 0; d = 0; r.interleaved = 0 | 1
       e = [B, L, D]; f = [B, L, D]""",
    "x: [B, L, H * 2 * D]; n = H",
    "x: [B, H, L, 2 * D + 4]; d = 2 * D",
    "c: [1, L, D]; s: [1, L, D]",
    "c: [1, L, D]; s: [1, 1, D]",
    "SYMBOLS = [B, L]",
)
LEFT = "(r := RotaryEmbedding(x, {}, num_heads=n, rotary_embedding_dim=d, **r))"
RIGHT = "com.microsoft.RotaryEmbedding(x, {}, num_heads=heads_of(x, n), rotary_embedding_dim=d or None, **r)"


equation(
    "use_rotary_embedding",
    f"{LEFT.format('c, s')} == {RIGHT.format('places(c), rows(c), rows(s)')}",
    drawn=TURNED,
)
equation(
    "use_rotary_embedding_of_one_table",
    f"{LEFT.format('(t := Expand(c, e)), Expand(s, f)')} == {RIGHT.format('places(c), rows(c), rows(s)')}",
    "tables for one sequence: c.shape == s.shape == (1, *t.shape[1:])",
    drawn=TURNED,
)
