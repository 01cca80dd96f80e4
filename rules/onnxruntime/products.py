"""Float products fused with what surrounds them, as ONNX Runtime has kernels: FusedMatMul, FusedConv, FusedGemm.

The kernels scale inside the product and apply the activation to each tile while it is in the cache.
"""

import math

import numpy as np

from eqsat.conditions import another_value, constant, kernels, same_type, varies, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.operators.onnxruntime_products import ACTIVATIONS
from eqsat.ir.types import DType
from eqsat.rewrite import Ref
from eqsat.rules.terms import last_axes_exchanged


def times(alpha: float, c: Ref) -> float:
    """The factor of a product with ``alpha`` that is multiplied by ``c``, as files store it."""
    with np.errstate(over="ignore"):
        return float(np.float32(alpha * float(c.value.reshape(()))))


def is_factor(alpha: float, c: Ref, product: Ref) -> bool:
    """Whether ``c`` is one number that does not enlarge the product, and ``alpha * c`` finite and not 0."""
    return c.type.size == 1 and c.rank <= product.rank and math.isfinite(times(alpha, c)) and times(alpha, c) != 0


def bound(value: Ref | None, otherwise: float) -> float:
    """A bound of Clip as a number."""
    return otherwise if value is None else float(value.value.reshape(()))


equation = Equations(
    __name__,
    domain="com.microsoft",
    exactness=Exactness.ROUNDING,
    source="contrib operators of ONNX Runtime",
    functions=named(last_axes_exchanged),
)
FUSED = "com.microsoft.FusedMatMul"
MATRICES = worthwhile("kernels for matrices: a.rank >= 2 and b.rank >= 2")

for kind, product, alpha, others in (
    ("fused", "(p := a @ b)", "1.0", ""),
    ("scaled", f"{FUSED}(a, b, alpha=s, **p)", "s", ", **p"),
):
    equation(
        f"fold_scale_into_{kind}_matmul",
        f"{product} * c == {FUSED}(a, b, alpha=times({alpha}, c){others})",
        constant("c"),
        kernels("a", DType.FLOAT, DType.FLOAT16),
        MATRICES,
        f"the factor is a finite number, not 0: is_factor({alpha}, c, p)",
        another_value("p"),
        worthwhile("another factor than 1: c.interval != (1, 1)"),
        source="linearity of the matrix product",
    )
for side, flag, operands in (
    ("left", "transA", "Transpose(a, perm=p), b"),
    ("right", "transB", "a, Transpose(b, perm=p)"),
):
    for verb, op, given, flipped in (
        ("fuse", "MatMul", "", f"{flag}=1"),
        ("absorb", FUSED, f", {flag}=t, **f", f"{flag}=int(not t), **f"),
    ):
        equation(
            f"{verb}_transpose_into_{side}_operand",
            f"{op}({operands}{given}) == {FUSED}(a, b, {flipped})",
            kernels("a", DType.FLOAT, DType.DOUBLE, DType.FLOAT16),
            MATRICES,
            "the last two axes are exchanged: p == last_axes_exchanged(len(p))",
        )

equation(
    "fuse_sum_into_convolution",
    "Conv(x, w, *b, **c) + z == com.microsoft.FusedConv(x, w, b, z, **c)",
    kernels("x", DType.FLOAT),
    same_type("z"),
    worthwhile(same_type("c"), "kernels for sums that enlarge nothing"),
    varies("z"),
)

UNCROSSED = worthwhile("kernels for bounds that are not crossed: bound(low, -inf) <= bound(high, inf)")
for kind, product, fused in (
    ("conv", "Conv(x, w, *b, **p)", "FusedConv(x, w, b"),
    ("summed_conv", "com.microsoft.FusedConv(x, w, *b, *z, activation='', **p)", "FusedConv(x, w, b, z"),
    ("gemm", "Gemm(x, w, *b, **p)", "FusedGemm(x, w, b"),
):
    for activation, parameters in ACTIVATIONS.items():
        clips = activation == "Clip"
        if clips and kind == "gemm":
            continue  # its kernel does not clip
        given = "*low, *high" if clips else ", ".join(f"{p}={p}" for p in parameters)
        numbers = ("bound(low, -inf)", "bound(high, inf)") if clips else parameters
        stated = f"activation={activation!r}, "
        if kind == "gemm":
            stated += "".join(f"activation_{p}={n}, " for p, n in zip(parameters, numbers, strict=True))
        elif numbers:
            stated += f"activation_params=({', '.join(numbers)},), "
        equation(
            f"fuse_{activation.lower()}_into_{kind}",
            f"{activation}({product}, {given}) == com.microsoft.{fused}, {stated}**p)",
            kernels("x", DType.FLOAT),
            varies("x"),
            *[constant("low", "high"), UNCROSSED] * clips,
        )
