"""Operators on rows, applied to a matrix of rows: views that only stack rows move behind them, and meet others.

Of use where a view is a kernel of its own, and products of integers take matrices only.
"""

import math
from typing import Any

import numpy as np

from eqsat.conditions import constant, kernels, varies, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref
from eqsat.rules.quantised.pairs import like, per_tensor, unblocked
from eqsat.rules.terms import int64s
from eqsat.samples import Sampler, fixed


def stacks_rows(value: Ref, result: Ref) -> bool:
    """Whether ``result`` has the rows of the matrix ``value``, of which there are some, along several leading axes."""
    *lead, last = result.static_shape or (0,)
    return len(lead) > 1 and 0 not in result.static_shape and value.shape == (math.prod(lead), last)


def _rows(d: Sampler) -> dict[str, Any]:
    """Rows of floats and of bytes under a view, or none, and what the operators below take beside them."""
    first, second, columns, outer = d.extents(4)
    first, second = d.choose(((first, second),) * 8 + ((1, 1), (1, 0)))
    target = (first, second, columns) if d.chance(0.85) else (first, columns, second)
    *lead, last = target
    found: dict[str, Any] = {
        "x": d.floats((first * second, columns)),
        "q": d.integers((first * second, columns), "uint8"),
    }
    found |= {"shape": fixed(target, "int64"), "view": {"allowzero": 1} if 0 in target else {}}
    found |= {"low": fixed(np.uint8(d.integer(1, 99)))} if d.chance(0.7) else {}
    found |= {"high": fixed(np.uint8(d.integer(120, 250)))} if d.chance(0.7) or "low" not in found else {}
    # a scale for all, for each index of the last axis, or for one block
    forms: list[tuple[tuple[int, ...], dict[str, int]]]
    forms = [((), {}), ((1,), {}), ((), {}), ((last,), {"axis": d.choose((-1, 2))})]
    form, attributes = d.choose(forms)
    if lead == [1, 1]:
        form, attributes = (1, 1, 1), {"axis": 2, "block_size": last}
    found |= {"s": fixed(d.positive(form)), "z": fixed(d.integers(form, "uint8", 0, 3)), "dq": attributes}
    weights = (last, outer) if d.chance(0.9) else (first, last, outer)
    form = d.choose(((), (outer,)))
    found |= {"w": fixed(d.integers(weights, "int8")), "right": {"axis": len(weights) - 1}}
    found |= {"s2": fixed(d.positive(form)), "z2": fixed(d.integers(form, "int8", 0, 3))}
    found |= {"y": d.floats(target if d.chance(0.7) else d.broadcast_with(target))}
    found |= {"c": fixed(d.floats((last,) if d.chance() else d.broadcast_of(target)))}
    vector = (last,) if d.chance(0.7) else (*lead[1:], last)
    found |= {"g": fixed(d.floats(vector)), "b": fixed(d.floats(vector)), "norm": {"axis": -1 if d.chance(0.8) else 1}}
    return found


equation = Equations(
    __name__,
    source="each row by itself",
    domain="com.microsoft",
    sample=_rows,
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
