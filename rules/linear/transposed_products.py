"""Transposes of matrices disappear into the flags of Gemm."""

from __future__ import annotations

from eqsat.conditions import kernels, varies
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.rules.linear.alignment import FLOATS

equation = Equations(__name__, exactness=Exactness.ROUNDING, source="(x y)' = y' x'")
FLOAT = kernels("x", *sorted(FLOATS))

equation(
    "move_left_transpose_into_matmul",
    "Transpose(x, perm=(1, 0)) @ y == Gemm(x, y, transA=1)",
    FLOAT,
    "y.rank == 2",
    varies("x"),
)
equation(
    "move_right_transpose_into_matmul",
    "x @ Transpose(y, perm=(1, 0)) == Gemm(x, y, transB=1)",
    FLOAT,
    "x.rank == 2",
    varies("y"),
)
equation(
    "move_transpose_of_matmul_inside",
    "Transpose(x @ y, perm=(1, 0)) == Gemm(y, x, transA=1, transB=1)",
    FLOAT,
    "x.rank == 2",
)
equation(
    "move_left_transpose_into_gemm",
    "Gemm(Transpose(x, perm=(1, 0)), y, *c, transA=t, **g) == Gemm(x, y, c, transA=1 - t, **g)",
    varies("x"),
)
equation(
    "move_right_transpose_into_gemm",
    "Gemm(x, Transpose(y, perm=(1, 0)), *c, transB=t, **g) == Gemm(x, y, c, transB=1 - t, **g)",
    varies("y"),
)
