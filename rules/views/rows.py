"""Operators on rows, applied to a matrix of rows: views that only stack rows move behind them, and meet others.

Of use where a view is a kernel of its own, and products of integers take matrices only.
"""

import math

from eqsat.conditions import constant, kernels, varies, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref
from eqsat.rules.quantised.scales import like, per_tensor, unblocked
from eqsat.rules.terms import int64s


def stacks_rows(value: Ref, result: Ref) -> bool:
    """Whether ``result`` has the rows of the matrix ``value``, of which there are some, along several leading axes."""
    *lead, last = result.static_shape or (0,)
    return len(lead) > 1 and 0 not in result.static_shape and value.shape == (math.prod(lead), last)


equation = Equations(
    __name__,
    source="each row by itself",
    domain="com.microsoft",
    drawn=(
        """x: float32[A * B, K]; q: uint8[A * B, K]; shape = [A, B, K]; s = d.positive([]); z = d.integers([], "uint8", 0, 3)
           y: float32[A, B, K] | float32[B, K]; c: float32[K] | float32[1] | float32[B, K]; g: [K]; b: [K]; i = -1 | 2 | 1
           w: int8[K, N]; s2 = d.positive([]); z2: int8[()]; low = fixed(3, "uint8"); high = fixed(200, "uint8")""",
        "shape = [A, K, B]; w: int8[B, N]",
        """x: float32[1, K]; q: uint8[1, K]; shape = [1, 1, K]; s = d.positive([1, 1, 1]); z: uint8[1, 1, 1]; dq.axis = 2
           dq.block_size = K""",
        "x: float32[0, K]; q: uint8[0, K]; shape = [A, 0, K]; view.allowzero = 1; y: [A, 0, K]; i = -1",
        "s = d.positive([K]); z: uint8[K]; dq.axis = 2 | -1; s2 = d.positive([N]); z2: int8[N]; right.axis = 1",
        "g: [B, K]; b: [B, K]; w: int8[A, K, N]; i = -1 | 1",
    ),
    functions=named(like, per_tensor, unblocked, int64s, math.prod),
)
UNSIGNED, FLOAT32 = kernels("q", DType.UINT8), kernels("x", DType.FLOAT)
STACKED = "the view stacks the rows of a matrix: stacks_rows({0}, root)"

equation(
    "dequantize_rows",
    """DequantizeLinear(Reshape(q, shape, **view), s, *z, **dq)
       == Reshape(like(dq, 'DequantizeLinear', q, s, z), int64s(root.shape))""",
    UNSIGNED,
    STACKED.format("q"),
    "one scale: per_tensor(s, z)",
    "no blocks: unblocked(dq.attributes)",
)
equation(
    "clip_rows",
    "Clip(Reshape(q, shape, **view), *low, *high) == Reshape(Clip(q, low, high), int64s(root.shape))",
    UNSIGNED,
    STACKED.format("q"),
)
equation(
    "add_rows",
    "Reshape(x, shape, **view) + y == Reshape(x + Reshape(y, int64s(x.shape)), int64s(root.shape))",
    varies("x", "y"),
    FLOAT32,
    STACKED.format("x"),
    "no broadcasting: y.shape == root.shape",
)
equation(
    "add_vector_to_rows",
    "Reshape(x, shape, **view) + c == Reshape(x + Reshape(c, int64s((prod(c.shape),))), int64s(root.shape))",
    constant("c"),
    varies("x"),
    FLOAT32,
    STACKED.format("x"),
    "the same for all rows: prod(c.shape[:-1]) == 1",
)
equation(
    "normalise_rows",
    """LayerNormalization(Reshape(x, shape, **view), g, *b, axis=i, **norm)
       == Reshape(LayerNormalization(x, g, b, axis=-1, **norm), int64s(root.shape))""",
    STACKED.format("x"),
    "over the last axis: i in (-1, root.rank - 1)",
    "gain and shift are vectors: g.rank == 1 and (b is None or b.rank == 1)",
    exactness=Exactness.ROUNDING,
)
equation(
    "multiply_rows_of_bytes",
    """DequantizeLinear(Reshape(q, shape, **view), s, *z, **dq) @ DequantizeLinear(w, s2, *z2, **right)
       == Reshape(MatMul(like(dq, 'DequantizeLinear', Reshape(q, int64s((prod(root.shape[:-1]), w.shape[0]))), s, z),
                         like(right, 'DequantizeLinear', w, s2, z2)), int64s(root.shape))""",
    constant("w"),
    UNSIGNED,
    worthwhile("rows along several axes: root.rank > 2"),
    "all extents known, none of them 0: 0 not in root.static_shape",
    "the weights are a matrix: w.rank == 2",
    "one scale on the left: per_tensor(s, z)",
    "no blocks on the left: unblocked(dq.attributes)",
    exactness=Exactness.ROUNDING,
)
