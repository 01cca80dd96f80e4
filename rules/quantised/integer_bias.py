"""A product on 8-bit integers with a bias, requantised: one operator, or a product with more rows.

QLinearMatMul has no bias, and to add one between MatMulInteger and QuantizeLinear takes three operators more. Where the target
has no kernel for all of that, a column of ones on the left makes a row of the weights the bias: Pad writes columns that stand for
a few units of the left scale, and as many rows of the weights as it takes sum up to the bias. Rounded to the scale of the sums, a
bias moves one in a thousand elements of a layer of BERT by a quantum; ONNX Runtime has a product with a bias of floats that does
not, so that the rows are for programs that may not use its operators.
"""

import math

import numpy as np

from eqsat.conditions import constant
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.operators.qlinear_gemm import QLINEAR_GEMM
from eqsat.ir.types import DType
from eqsat.rewrite import Condition, Hint, Ref, Term, apply, literal
from eqsat.rules.linear.alignment import lies_along, spread
from eqsat.rules.quantised import integer_bounds
from eqsat.rules.quantised.integer_bounds import (
    NO_VECTORS,
    ONE_LEFT_SCALE,
    OPERANDS,
    UNSIGNED_RESULT,
    columns,
    few_moved,
    is_zero,
    requantised,
    shorthands,
    units,
)
from eqsat.rules.terms import div, int64s, mul, sub

SOURCE = "homogeneous coordinates: a sum with a constant is a product with one more row; Jacob et al. 2017"
ROWS = 16
"""Rows of the weights that a bias may become: two in a hundred of the products of a matrix with 768 rows."""

ROWS_BYTES = 1 << 16
"""They may take this much memory: more is not computed ahead (`eqsat.egraph.known`)."""

_LARGEST_WEIGHT = 127


def most_rows(root: Ref) -> int:
    """As many rows as a bias may take."""
    return min(ROWS, ROWS_BYTES // max(columns_of(root), 1))


def columns_of(root: Ref) -> int:
    return root.static_shape[-1] if isinstance(root.shape[-1], str) else root.shape[-1]


def step(bias: Ref, sa: Ref, sw: Ref, za: Ref | None, root: Ref) -> int:
    """What an added column stands for, in units of the left scale: as fine as the rows allow, and 0 where they do not hold the
    bias."""
    most, needed = most_rows(root), units(bias, sa, sw)
    if most < 2 or not math.isfinite(needed):
        return 0
    zero = 0 if za is None else int(za.low)
    found = math.ceil(needed / ((most - 1) * _LARGEST_WEIGHT))
    return 0 if found > max(255 - zero, zero) else found if zero + found <= 255 else -found


def padded(a: Ref, za: Ref | None, step: int, full: int) -> Term:
    """The left operand with columns that stand for ``step`` units of its scale."""
    pads = int64s([0] * (2 * a.rank - 1) + [full + 1])
    return apply("Pad", a, pads, literal((0 if za is None else int(za.low)) + step, DType.UINT8))


def full_rows(step: int, units: float) -> int:
    return math.ceil(units / (abs(step) * _LARGEST_WEIGHT))


def with_rows(weights: Ref, bias: Ref, sa: Ref, sw: Ref, step: int, full: int, root: Ref) -> Term:
    """The weights above rows that sum up to the bias in steps."""
    scaled = div(spread(bias, columns_of(root)), mul(mul(sa, sw), literal(np.float32(step))))
    return apply("Concat", weights, rows_of(scaled, full, columns_of(root)), axis=0)


def rows_of(scaled: Term, full: int, columns: int) -> Term:
    """Rows of 8-bit integers with the sum ``scaled``, rounded: ``full`` equal ones and a remainder."""
    times = literal(np.float32(full))
    share = apply("Round", div(scaled, times))
    rest = apply("Round", sub(scaled, mul(share, times)))
    rows = [apply("Reshape", apply("Cast", row, to=int(DType.INT8)), int64s((1, columns))) for row in (share, rest)]
    return apply("Concat", apply("Gather", rows[0], int64s([0] * full), axis=0), rows[1], axis=0)


equation = Equations(
    __name__,
    source=SOURCE,
    shorthands=shorthands,
    exactness=Exactness.LSB,
    quanta=1,
    functions=integer_bounds.functions | named(lies_along),
)


SIGNED_WEIGHTS = Condition(
    "signed weights without zero points",
    lambda m: m.w.dtype is DType.INT8 and is_zero(m.zw),
    hints=(Hint("w", dtypes=frozenset((DType.INT8,))), Hint("zw", low=0, high=0)),
)


_product = "(product := A(a) @ W(w)) + bias"
_step = "step(bias, sa, sw, za, root)"
_where = (
    UNSIGNED_RESULT,
    constant("bias"),
    *OPERANDS,
    NO_VECTORS,
    columns(),
    "a matrix of weights: w.rank == 2",
    ONE_LEFT_SCALE,
    SIGNED_WEIGHTS,
    "the bias lies along the columns: lies_along(bias, product, -1)",
)
equation(
    "multiply_integers_and_add",
    f"""Y({_product}) == eqsat.QLinearGemm(a, zero_point(za, uint8), w, in_units(bias, sa, sw, columns_of(root)),
                                          one_rank(sa, sw), sy, zero_point(zy, uint8))""",
    *_where,
    "the bias fits into int32: units(bias, sa, sw) < 2**30",
    "a rounded bias moves an eighth of a quantum at most: 4 * sa.high * sw.high <= sy.low",
    few_moved(),
    *requantised("w.shape[0]", 1, "units(bias, sa, sw) + 1"),
    domain="eqsat",
)
equation(
    "multiply_integers_and_rows_of_bias",
    f"""Y({_product}) == QLinearMatMul(padded(a, za, {_step}, full_rows({_step}, units(bias, sa, sw))), sa,
        zero_point(za, uint8), with_rows(w, bias, sa, sw, {_step}, full_rows({_step}, units(bias, sa, sw)), root),
        sw, points(None, w, sw), sy, zero_point(zy, uint8))""",
    *_where,
    f"few rows hold the bias: {_step} != 0",
    f"a rounded bias moves an eighth of a quantum at most: 4 * abs({_step}) * sa.high * sw.high <= sy.low",
    few_moved(_step),
    *requantised("w.shape[0]", 1, f"units(bias, sa, sw) + abs({_step})", ROWS),
    legalizes=QLINEAR_GEMM,
    outside="com.microsoft",
)
