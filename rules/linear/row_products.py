"""Products of the rows of a value, spelled as the product of one matrix, are products of the value itself.

Converters flatten the leading axes, multiply, and restore them; beside another product of the same value that hides what both
have in common. So does a bias that is added where the columns of a product are several axes, heads for example, or all its rows
one, or where a convolution in one row is seen as one of a single axis: it is one of the product.
"""

import math

from eqsat.conditions import constant, single_or_half, varies, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.rewrite import Ref, Term
from eqsat.rules.terms import int64s, reshape


def lies_last(c: Ref, view: Ref) -> bool:
    """Whether the axes of ``c``, leading ones aside, are the last ones of ``view``, which it does not enlarge."""
    ones = next((i for i, d in enumerate(c.shape) if d != 1), c.rank)
    return c.rank <= view.rank and c.shape[ones:] == view.shape[view.rank - c.rank + ones :]


equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source="the product and the sum act on each row",
    drawn="""B = d.integer(1, 3); x: [A, B, K] | [A, B, C, K]; w: [K, N] | [K]; c: [N] | [] | [1] | [A * B, 1]; s = [-1, K]
             t = [A, B, N] | [A, B, C, N] | [B, A, N] | [A, B]""",
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
    drawn="""x: uint8[A, B, K] | uint8[A, K]; w: int8[K, N]; z: uint8[()]; s = [-1, K]; r: float32[A, B, 1] | float32[B, A, 1]
             v = [-1, 1]; c: float32[N] | float32[()] | float32[A * B, 1]; t = [A, B, N] | [B, A, N]; cast.to = 1""",
)
equation(
    "add_bias_of_columns_before_view",
    "Reshape((m := x @ w), s, **v) + c == Reshape(m + Reshape(c, int64s((m.shape[-1],))), s, **v)",
    constant("c"),
    varies("m"),
    "a number for each column: lies_last(c, v) and prod(c.shape) == m.shape[-1]",
    exactness=Exactness.EXACT,
    source="each element by itself",
    drawn=(),
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


for name, view, whole in (
    ("view", "Reshape(Conv(x, w, *b, **n), s, **v)", "Reshape(n + along_channels(c, n), s, **v)"),
    ("squeeze", "(v := Squeeze(Conv(x, w, *b, **n), axes))", "Squeeze(n + along_channels(c, n), axes)"),
):
    equation(
        f"add_bias_of_channels_before_{name}",
        f"{view} + c == {whole}",
        constant("c"),
        """a number for each channel, which stay where they are, and no more axes: root.shape[:2] == n.shape[:2]
           and lies_along_channels(c, root) and root.shape == v.shape""",
        exactness=Exactness.EXACT,
        source="each element by itself",
        drawn="""x: [A, B, 1, N + 1]; w: [C, B, 1, 2]; s = [A, C, N] | [A, N, C]; axes = [2]
                 c: [C, 1] | [1, C, 1] | [1, 1, N] | [A, C, 1] | [1, 1, 1, 1]""",
    )
