"""Two rules of one's own: ``eqsat optimize model.onnx --rules my_rules.py``."""

import eqsat
from eqsat.conditions import condition, constant, finite
from eqsat.ops import MatMul, Mul

eqsat.equation("multiply_opposites", "-x * -y == x * y")

x, w, s = eqsat.variables("x w s")


@condition("one factor for all of the product")
def is_number(m):
    return m.s.rank == 0


@eqsat.rule(Mul(MatMul(x, w), s), where=[constant("w", "s"), finite("w", "s"), is_number], exactness="rounding")
def fold_factor_into_weights(m):
    """``(x @ w) * s == x @ (w * s)`` for a constant number."""
    return MatMul(m.x, Mul(m.w, m.s))
