"""Rotary position embeddings as ONNX Runtime has a kernel since long before ONNX had the operator.

    RotaryEmbedding(x, c, s) == com.microsoft.RotaryEmbedding(x, 0, c[0], s[0])              one table for all sequences
    RotaryEmbedding(x, c, s) == com.microsoft.RotaryEmbedding(x, 0 .. b*n - 1, rows(c), rows(s))   one for each

ONNX takes tables for each sequence without positions. The kernel takes one table, and it must have a row for each place of a
sequence, which a table that is looked up by positions need not have.
"""

from functools import partial
from typing import Any

import numpy as np

from eqsat.conditions import kernels, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.extents import multiply
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, apply, literal
from eqsat.rules.terms import int64s
from eqsat.rules.views.extents import listed, viewed
from eqsat.samples import SYMBOLIC, Sampler, fixed


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
        kernels("x", DType.FLOAT),
        worthwhile("heads apart or in rows: x.rank in (3, 4)"),
        worthwhile("a part of the features of a known number of heads: not d or heads_of(x, n)"),
    ],
    domain="com.microsoft",
    exactness=Exactness.ROUNDING,
    source="contrib operators of ONNX Runtime; ONNX RotaryEmbedding",
)
LEFT = "(r := RotaryEmbedding(x, {}, num_heads=n, rotary_embedding_dim=d, **r))"
RIGHT = "com.microsoft.RotaryEmbedding(x, {}, num_heads=heads_of(x, n), rotary_embedding_dim=d or None, **r)"


def _turned(d: Sampler, *, shared: bool = False) -> dict[str, Any]:
    """Heads apart or in rows, a part of the features at times, tables for each sequence or all alike."""
    batch, heads, length, half = d.extents(4, ones=0.15)
    part = d.integer(1, half) if d.chance(0.3) else half
    found: dict[str, Any] = {"x": d.floats((batch, heads, length, 2 * half), d.choose(("float32",) * 5 + ("float16",)))}
    attributes: dict[str, Any] = {"interleaved": 1} if d.chance(0.3) else {}
    if d.chance():
        found["x"] = found["x"].transpose(0, 2, 1, 3).reshape(batch, length, -1)
        attributes["num_heads"] = heads
    if part != half:
        attributes["rotary_embedding_dim"] = 2 * part
    for name in "cs":
        table = (1 if shared and d.chance(0.9) else batch, 1 if shared and d.chance(0.1) else length, part)
        found[name] = d.floats(table, found["x"].dtype.name)
    if shared:
        found |= {name: fixed([batch, length, part], "int64") for name in "ef"}
    elif d.chance(0.3):
        found[SYMBOLIC] = (batch, length)
    return {**found, "r": attributes}


equation(
    "use_rotary_embedding",
    f"{LEFT.format('c, s')} == {RIGHT.format('places(c), rows(c), rows(s)')}",
    sample=_turned,
)
equation(
    "use_rotary_embedding_of_one_table",
    f"{LEFT.format('(t := Expand(c, e)), Expand(s, f)')} == {RIGHT.format('places(c), rows(c), rows(s)')}",
    "tables for one sequence: c.shape == s.shape == (1, *t.shape[1:])",
    sample=partial(_turned, shared=True),
)
