"""Gemm is a product, a sum, two factors and two transposes: what enters it, and what it is spelled out."""

from eqsat.conditions import constant, varies, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.rewrite import Ref, Term, literal
from eqsat.rules.linear.alignment import FLOAT, largest, least_normal, limit, ordinary_summands, stay_normal
from eqsat.rules.terms import mul, total, transpose


def enlarges(c: Ref, result: Ref) -> bool:
    """Whether the result may be larger for ``c``: an axis more, or an extent that is neither 1 nor that of the result."""
    beside = result.shape[result.rank - c.rank :] if c.rank <= result.rank else ()
    return c.rank > result.rank or any(d not in (1, e) for d, e in zip(c.shape, beside, strict=True))


def turned(x: Ref, flag: int) -> Term:
    """A matrix, transposed if the flag says so."""
    return transpose(x, (1, 0)) if flag else x


def scaled(value: Ref | None, factor: float) -> Term | None:
    """A constant times a factor; the constant itself where that is 1."""
    return value if value is None or factor == 1.0 else mul(value, literal(factor, value.dtype))


def overflows(value: Ref | None, factor: float) -> bool:
    """Whether a constant times a factor may be no number of its type, or the factor is none."""
    return value is not None and factor != 1.0 and max(largest(value), 1) * abs(factor) >= limit(value)


def loses_digits(value: Ref | None, factor: float) -> bool:
    """Whether a constant times a factor, or the factor, is so small that its type has few digits for it."""
    if value is None or factor in (0.0, 1.0):
        return False
    return abs(factor) < least_normal(value) or not stay_normal(abs(factor), value)


# --- products, factors and sums

equation = Equations(__name__, exactness=Exactness.ROUNDING, source="ONNX Gemm", functions=named(total))
equation(
    "add_to_matmul_as_gemm",
    "(m := x @ w) + c == Gemm(x, w, c)",
    FLOAT,
    "x is a matrix: x.rank == 2",
    "w is a matrix: w.rank == 2",
    "c does not enlarge the product: not enlarges(c, m)",
)
equation(
    "gemm_as_matmul_and_add",
    """Gemm(x, w, *b, alpha=1.0, beta=f, transA=s, transB=t)
       == (turned(x, s) @ turned(w, t) if b is None else turned(x, s) @ turned(w, t) + b)""",
    "beta is 1: b is None or f == 1",
)
equation(
    "fold_factors_of_gemm",
    "Gemm(x, w, *b, alpha=e, beta=f, **g) == Gemm(x, scaled(w, e), scaled(b, f), **g.attributes.updated(alpha=None, beta=None))",
    constant("w", "b"),
    FLOAT,
    worthwhile("a factor is not 1: e != 1 or (b is not None and f != 1)"),
    "the scaled constants are finite: not (overflows(w, e) or overflows(b, f))",
    "they keep their digits: not (loses_digits(w, e) or loses_digits(b, f))",
)
equation(
    "add_constant_to_bias_of_gemm",
    "Gemm(x, w, *b, beta=f, **g) + c == Gemm(x, w, total(b, c), **g.attributes.updated(beta=None))",
    constant("b", "c"),
    FLOAT,
    ordinary_summands("c"),
    worthwhile("the sum is another value: root.handle != g.handle"),
    "beta is 1: b is None or f == 1",
    "c does not enlarge the product: not enlarges(c, g)",
)

# --- transposes

equation = Equations(__name__, exactness=Exactness.ROUNDING, source="(x y)' = y' x'")
equation(
    "move_transpose_of_matmul_inside",
    "Transpose(x @ y, perm=(1, 0)) == Gemm(y, x, transA=1, transB=1)",
    FLOAT,
    "x.rank == 2",
)
for side, operands, flag, moved, other in (
    ("left", "Transpose(x, perm=(1, 0)), y", "transA", "x", "y"),
    ("right", "x, Transpose(y, perm=(1, 0))", "transB", "y", "x"),
):
    equation(
        f"move_{side}_transpose_into_matmul",
        f"MatMul({operands}) == Gemm(x, y, {flag}=1)",
        FLOAT,
        f"{other}.rank == 2",
        varies(moved),
    )
    equation(
        f"move_{side}_transpose_into_gemm",
        f"Gemm({operands}, *c, {flag}=t, **g) == Gemm(x, y, c, {flag}=int(not t), **g)",
        varies(moved),
    )
