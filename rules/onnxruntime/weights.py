"""Weights of few bits that are multiplied by floats: ONNX Runtime dequantises all of them on every call.

Products have a kernel of their own, MatMulNBits, where the weights stay in 4 bits until they are multiplied. It reads them column
by column, and integers with a sign 8 larger.

Convolutions have none, and do without blocks of channels, too, where their weights are not known when the program is loaded: half
the time of a MobileNetV3 that NNCF quantised went there. Spelled out, the weights are dequantised at load, once. In the file they
are bytes as before, in memory floats, of which convolutions have few.
"""

import ml_dtypes
import numpy as np

from eqsat.conditions import constant, kernels, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.operators.quantization import spread
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, apply, literal
from eqsat.rules.terms import mul, sub


def packed(integers: np.ndarray) -> np.ndarray:
    """Integers of 4 bits, two in a byte along the last axis, the first one in the low half; a last one alone with a zero. Those
    with a sign may be of any type, and are 8 larger."""
    signed = integers.dtype != ml_dtypes.uint4
    unsigned = (integers.astype(np.int8) + (8 if signed else 0)).astype(np.uint8)
    even = np.pad(unsigned, [(0, 0)] * (integers.ndim - 1) + [(0, integers.shape[-1] % 2)])
    return even[..., 0::2] | (even[..., 1::2] << 4)


def blocks_of(w: Ref, block: int) -> Term:
    """Weights in bytes: (columns, blocks, bytes)."""
    inner, columns = w.static_shape
    return literal(packed(w.elements.T.reshape(columns, inner // block, block)))


def points_of(z: Ref | None, w: Ref, block: int) -> Term:
    """Zero points in bytes: (columns, bytes)."""
    inner, columns = w.static_shape
    return literal(packed(np.zeros((columns, inner // block), w.dtype.numpy) if z is None else z.elements.T))


equation = Equations(
    __name__,
    where=[kernels("x", DType.FLOAT), kernels("s", DType.FLOAT)],
    domain="com.microsoft",
    exactness=Exactness.ROUNDING,
    source="contrib operators of ONNX Runtime; Frantar et al. 2022",
)
equation(
    "multiply_by_weights_of_four_bits",
    """x @ DequantizeLinear(w, s, *z, axis=i, block_size=b, **n)
       == com.microsoft.MatMulNBits(x, blocks_of(w, b), number(s.elements.T), points_of(z, w, b),
                                    K=w.shape[0], N=w.shape[1], bits=4, block_size=b, accuracy_level=0)""",
    constant("w", "s", "z"),
    "a matrix of 4 bits: w.dtype in (int4, uint4) and w.rank == 2",
    worthwhile("kernels for matrices: x.rank >= 2"),
    "blocks along the rows: i % 2 == 0",
    worthwhile("kernels for blocks of 16, 32, 64 and so on: b >= 16 and b & (b - 1) == 0 and w.shape[0] % b == 0"),
    drawn=(
        """Q = d.choose((16, 32)) | 64 | 24 | 8; I = 0 | 1; x: float32[*ANY, A, T * Q]; s = d.positive([T, C]); i = 0; b = Q
           w: (int4, uint4)[I][T * Q, C]; z: (int4, uint4)[I][T, C]; n.output_dtype = None""",
        "w: int8[T * Q, C]; z: int8[T, C]",
        "x: float32[A, C * Q]; w: int4[C * Q, T * Q]; s = d.positive([C * Q, T]); z: int4[C * Q, T]; i = 1",
    ),
)


# --- convolutions


def at_load(w: Ref, s: Ref, z: Ref | None, i: int) -> Term:
    """What DequantizeLinear makes of weights."""
    scale, zero = (
        None if p is None else spread(p.elements, Attributes({"axis": i}), w.static_shape).astype(np.float32)
        for p in (s, z)
    )
    integers = apply("Cast", w, to=int(DType.FLOAT))
    if zero is not None and zero.any():
        integers = sub(integers, literal(zero))
    return mul(integers, literal(scale))


for op in ("Conv", "ConvTranspose"):
    equation(
        f"dequantise_weights_of_{op.lower()}_at_load",
        f"""{op}(x, DequantizeLinear(w, s, *z, axis=i, **n), *b, **a) == {op}(x, at_load(w, s, z, i), *b, **a)""",
        constant("w", "s", "z"),
        worthwhile("bytes: w.dtype.bits == 8"),
        "scaled along an axis, if at all: s.rank <= 1",
        exactness=Exactness.EXACT,
        drawn=(
            """I = 0 | 1; x: float32[A, 3, 4, 4]; i = 0 | 1 | -4; w: (int8, uint8)[I][3, 3, 2, 1]; s = d.positive([3])
               z: (int8, uint8)[I][3]; b: float32[3]; n.output_dtype = None | 1""",
            "s = d.positive([]); z: (int8, uint8)[I][]",
            "n.block_size = 1; s = d.positive([3, 3, 2, 1]); z: (int8, uint8)[I][3, 3, 2, 1]",
        ),
    )


# --- bytes of so few bits, in groups that share a scale, as torchao keeps them


def are_of_four_bits(z: Ref) -> bool:
    """Whether all zero points are whole numbers of 4 bits."""
    return bool(np.isin(z.elements, np.arange(-8, 8)).all())


for suffix, integers in (
    ("", "Cast(q, **cast)"),  # zero points that are absent are 8, in the kernel as in the integers
    ("_with_zero_points", "(Cast(q, **cast) - z)"),
):
    points = "number(packed(z.elements[..., 0]))" if suffix else "None"
    equation(
        f"multiply_by_groups_of_four_bits{suffix}",
        f"""x @ Transpose(Reshape({integers} * s, f, **w), **t)
            == com.microsoft.MatMulNBits(x, number(packed(q.elements)), number(s.elements[..., 0]), {points},
                                         K=w.shape[1], N=w.shape[0], bits=4, block_size=q.shape[2], accuracy_level=0)""",
        constant("q", "s", *(("z",) if suffix else ())),
        worthwhile("signed bytes: q.dtype is int8"),
        "of which 4 bits are used: q.low >= -8 and q.high <= 7",
        *(("zero points of 4 bits: are_of_four_bits(z)",) if suffix else ()),
        f"one scale and zero point a group: q.rank == 3 and {'z.shape == ' * bool(suffix)}s.shape == (*q.shape[:2], 1)",
        "groups along the rows: w.shape == (q.shape[0], q.shape[1] * q.shape[2]) and t.attr('perm') == (1, 0)",
        worthwhile("kernels for matrices: x.rank >= 2"),
        worthwhile(
            "kernels for blocks of 16, 32, 64 and so on: q.shape[2] >= 16 and q.shape[2] & (q.shape[2] - 1) == 0"
        ),
        drawn=(
            """Q = d.choose((16, 32)) | 24; x: float32[*ANY, A, T * Q]; q = d.integers([C, T, Q], "int8", -8, 7 | 9)
               s = d.positive([C, T, 1]); z = d.integers([C, T, 1], "int8", -8, 7 | 11) * fixed(1, "float32").array; cast.to = 1
               f = [C, T * Q]; t.perm = (1, 0)""",
            "f = [T * Q, C]; x: float32[A, C]",
            "s = d.positive([C, T, Q])",
            "z = d.floats([C, T, 1])",
        ),
    )
