"""Products with weights of 4 bits, as ONNX Runtime has a kernel: MatMulNBits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Term, apply, literal, rule, variables
from eqsat.samples import Sampler, fixed

DOMAIN = "com.microsoft"
KEY = f"{DOMAIN}::MatMulNBits"
_LEAST_BLOCK = 16
x, w, s, z = variables("x w s z?")


def _draw(d: Sampler) -> dict[str, Any]:
    """Weights of 4 bits in blocks along the rows; now and then along the columns, or in blocks the kernel does not take."""
    rows, columns, count = d.extents(3)
    block = d.choose((16, 16, 32, 64, 24, 8))
    batch = d.shape(1, 2)
    kind = d.choose(("int4", "uint4"))
    axis, shape = d.choose(((0, (count * block, columns)),) * 4 + ((1, (columns, count * block)),))
    least = -8 if kind == "int4" else 0
    dtype = ml_dtypes.int4 if kind == "int4" else ml_dtypes.uint4
    scales = (count, columns) if axis == 0 else (columns, count)
    found: dict[str, Any] = {
        "x": d.floats((*batch, rows, shape[0])),
        "w": fixed(d.rng.integers(least, least + 16, shape).astype(dtype)),
        "s": fixed(d.positive(scales)),
        "dequantized": {"axis": axis, "block_size": block},
    }
    if d.chance():
        found["z"] = fixed(d.rng.integers(least, least + 16, scales).astype(dtype))
    return found


@rule(
    apply("MatMul", x, apply("DequantizeLinear", w, s, z).named("dequantized")),
    exactness=Exactness.ROUNDING,
    source="contrib operators of ONNX Runtime; Frantar et al. 2022",
    sample=_draw,
    domain=DOMAIN,
)
def multiply_by_weights_of_four_bits(m: Match) -> Term:
    """``x @ DQ(w, s, z, block_size=n) == MatMulNBits(x, pack(w), s', pack(z'))``, where ``s'`` and ``z'`` go column by column and
    integers with a sign are 8 larger.

    The weights stay in 4 bits until they are multiplied; at run time, ONNX Runtime dequantises all of them first otherwise.
    """
    m.require(m.w.dtype in (DType.INT4, DType.UINT4) and m.w.rank == 2, "no matrix of 4 bits")
    m.require(m.x.dtype is DType.FLOAT and m.s.dtype is DType.FLOAT and m.x.rank >= 2, "no float32, or a vector")
    inner, columns = m.w.static_shape
    block = m.dequantized.attr("block_size", 0)
    m.require(m.dequantized.attr("axis", 1) % 2 == 0, "the blocks do not lie along the rows")
    m.require(block >= _LEAST_BLOCK and block & (block - 1) == 0 and inner % block == 0, "blocks of another size")
    shift = 8 if m.w.dtype is DType.INT4 else 0
    points = np.zeros((inner // block, columns), np.uint8) if m.z is None else m.z.elements.astype(np.int8)
    integers = (m.w.elements.astype(np.int8) + shift).astype(np.uint8).T
    blocks = _packed(integers.reshape(columns, inner // block, block))
    zeros = _packed((points + shift).astype(np.uint8).T)
    scales = np.ascontiguousarray(m.s.elements.T)
    operands = (literal(blocks), literal(scales), literal(zeros))
    return apply(KEY, m.x, *operands, K=inner, N=columns, bits=4, block_size=block, accuracy_level=0)


def _packed(integers: np.ndarray) -> np.ndarray:
    """Two integers of 4 bits in a byte along the last axis, the first one in the low half; a last one alone with a zero."""
    odd = integers.shape[-1] % 2
    even = np.pad(integers, [(0, 0)] * (integers.ndim - 1) + [(0, odd)])
    return even[..., 0::2] | (even[..., 1::2] << 4)
