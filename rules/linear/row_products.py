"""Products of the rows of a value, spelled as the product of one matrix, are products of the value itself.

Converters flatten the leading axes, multiply, and restore them; beside another product of the same value that hides what both
have in common. So does a bias that is added where the columns of a product are several axes, heads for example, or all its rows
one, or where a convolution in one row is seen as one of a single axis: it is one of the product.
"""

import math
from functools import partial
from typing import Any

from eqsat.conditions import constant, single_or_half, varies, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term
from eqsat.rules.terms import int64s, reshape
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


def lies_last(c: Ref, view: Ref) -> bool:
    """Whether the axes of ``c``, leading ones aside, are the last ones of ``view``, which it does not enlarge."""
    ones = next((i for i, d in enumerate(c.shape) if d != 1), c.rank)
    return c.rank <= view.rank and c.shape[ones:] == view.shape[view.rank - c.rank + ones :]


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


def _scaled_rows(d: Sampler) -> dict[str, Any]:
    """Bytes whose product has scales of rows and columns, flattened and restored, or at times in another order."""
    found = _flattened(d)
    *lead, inner = found["x"].shape
    columns = d.integer(2, 5)
    result = [*lead, columns] if d.chance(0.85) else [*lead[::-1], columns]
    scales = (*lead, 1) if d.chance(0.85) else (*lead[::-1], 1)
    found |= {"x": d.integers((*lead, inner), "uint8"), "w": fixed(d.integers((inner, columns), "int8"))}
    found |= {"z": fixed(d.integers((), "uint8"))} if d.chance(0.7) else {}
    found |= {"r": d.positive(scales), "v": fixed([math.prod(lead), 1], "int64"), "t": fixed(result, "int64")}
    columns_or_rows = d.choose(((),) * 3 + ((columns,),) * 3 + ((math.prod(lead), 1),))
    return found | {"c": fixed(d.positive(columns_or_rows)), "cast": {"to": int(DType.FLOAT)}}


equation(
    "multiply_rows_of_integers_in_place",
    """Reshape(Cast(MatMulInteger(Reshape(x, s, **u), w, *z), **cast) * Reshape(r, v, **h) * c, t, **k)
       == Cast(MatMulInteger(x, w, z), **cast) * r * c""",
    worthwhile("there are leading axes: x.rank >= 3"),
    "the view keeps the rows of a matrix's length: w.rank == 2 and x.shape[-1] == w.shape[0]",
    "a scale for each row: r.shape == (*x.shape[:-1], 1)",
    "one zero point, and a scale for each column: (z is None or z.type.size == 1) and c.rank <= 1",
    "the leading axes are restored: root.shape == (*x.shape[:-1], w.shape[1])",
    exactness=Exactness.EXACT,
    sample=_scaled_rows,
)
equation(
    "add_bias_of_columns_before_view",
    "Reshape((m := x @ w), s, **v) + c == Reshape(m + Reshape(c, int64s((m.shape[-1],))), s, **v)",
    constant("c"),
    varies("m"),
    "a number for each column: lies_last(c, v) and prod(c.shape) == m.shape[-1]",
    exactness=Exactness.EXACT,
    source="each element by itself",
    sample=None,
    functions=named(int64s, math.prod),
)


# --- biases of convolutions


def lies_along_channels(c: Ref, root: Ref) -> bool:
    """Whether ``c`` has a number for each index along the second axis of ``root``, and is the same along all others."""
    shape = (1,) * (root.rank - c.rank) + c.shape
    return shape == tuple(root.shape[1] if axis == 1 else 1 for axis in range(root.rank))


def along_channels(c: Ref, node: Ref) -> Term:
    """A number for each channel beside the result of a convolution."""
    return reshape(c, (c.type.size or 1, *[1] * (node.rank - 2)))


def _viewed_convolution(d: Sampler, view: str) -> dict[str, Any]:
    """A convolution in one row, seen as one of one axis, or otherwise, and a number for each channel, or others."""
    batch, channels, more, length = d.extents(4)
    found: dict[str, Any] = {"x": d.floats((batch, channels, 1, length + 1)), "w": d.floats((more, channels, 1, 2))}
    kept, turned = (batch, more, length), (batch, length, more)
    target = d.choose((kept, kept, kept, kept if view == "squeeze" else turned))
    found |= {"b": fixed(d.floats((more,)))} if d.chance(0.3) else {}
    found |= {"s": fixed(target, "int64"), "axes": fixed([2], "int64")}
    second, last = target[1:]
    shape = d.choose(((1, second, 1),) * 3 + ((second, 1),) * 3 + ((1, 1, last), (batch, second, 1)))
    return found | {"c": fixed(d.floats(shape))}


for name, view, whole in (
    ("view", "Reshape(Conv(x, w, *b, **n), s, **v)", "Reshape(n + along_channels(c, n), s, **v)"),
    ("squeeze", "Squeeze(Conv(x, w, *b, **n), axes)", "Squeeze(n + along_channels(c, n), axes)"),
):
    equation(
        f"add_bias_of_channels_before_{name}",
        f"{view} + c == {whole}",
        constant("c"),
        "a number for each channel, which stay where they are: root.shape[:2] == n.shape[:2] and lies_along_channels(c, root)",
        exactness=Exactness.EXACT,
        source="each element by itself",
        sample=partial(_viewed_convolution, view=name),
    )
