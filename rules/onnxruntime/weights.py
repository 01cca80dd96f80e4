"""Products with weights of 4 bits, as ONNX Runtime has a kernel: MatMulNBits.

The weights stay in 4 bits until they are multiplied; at run time, ONNX Runtime dequantises all of them first otherwise. The
kernel reads them column by column, and integers with a sign 8 larger.
"""

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from eqsat.conditions import constant, kernels, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, literal
from eqsat.samples import Sampler, fixed


def blocks_of(w: Ref, block: int) -> Term:
    """Integers of 4 bits in bytes: (columns, blocks, bytes)."""
    inner, columns = w.static_shape
    return literal(_packed(_unsigned(w.elements).T.reshape(columns, inner // block, block)))


def points_of(z: Ref | None, w: Ref, block: int) -> Term:
    """Zero points in bytes: (columns, bytes)."""
    inner, columns = w.static_shape
    points = np.zeros((inner // block, columns), w.dtype.numpy) if z is None else z.elements
    return literal(_packed(_unsigned(points).T))


def scales_of(s: Ref) -> Term:
    return literal(np.ascontiguousarray(s.elements.T))


def _unsigned(integers: np.ndarray) -> np.ndarray:
    signed = integers.dtype in (ml_dtypes.int4, np.int8)
    return (integers.astype(np.int8) + (8 if signed else 0)).astype(np.uint8)


def _packed(integers: np.ndarray) -> np.ndarray:
    """Two integers of 4 bits in a byte along the last axis, the first one in the low half; a last one alone with a zero."""
    odd = integers.shape[-1] % 2
    even = np.pad(integers, [(0, 0)] * (integers.ndim - 1) + [(0, odd)])
    return even[..., 0::2] | (even[..., 1::2] << 4)


def _draw(d: Sampler) -> dict[str, Any]:
    """Weights of 4 bits in blocks along the rows; now and then along the columns, or in blocks the kernel does not take."""
    rows, columns, count = d.extents(3)
    block = d.choose((16, 16, 32, 64, 24, 8))
    kind = d.choose(("int4", "uint4", "int4", "uint4", "int8"))
    least = -8 if kind == "int4" else 0
    dtype = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4, "int8": np.int8}[kind]
    axis, shape = d.choose(((0, (count * block, columns)),) * 4 + ((1, (columns * block, count * block)),))
    scales = (count, columns) if axis == 0 else (columns * block, count)
    found: dict[str, Any] = {
        "x": d.floats((*d.shape(1, 2), rows, shape[0])),
        "w": fixed(d.rng.integers(least, least + (16 if kind != "int8" else 99), shape).astype(dtype)),
        "s": fixed(d.positive(scales)),
        "n": {"axis": axis, "block_size": block},
    }
    return found | ({"z": fixed(d.rng.integers(least, least + 16, scales).astype(dtype))} if d.chance() else {})


equation = Equations(__name__, domain="com.microsoft")
equation(
    "multiply_by_weights_of_four_bits",
    """x @ DequantizeLinear(w, s, *z, axis=i, block_size=b, **n)
       == com.microsoft.MatMulNBits(x, blocks_of(w, b), scales_of(s), points_of(z, w, b),
                                    K=w.shape[0], N=w.shape[1], bits=4, block_size=b, accuracy_level=0)""",
    kernels("x", DType.FLOAT),
    kernels("s", DType.FLOAT),
    constant("w", "s", "z"),
    "a matrix of 4 bits: w.dtype in (int4, uint4) and w.rank == 2",
    worthwhile("kernels for matrices: x.rank >= 2"),
    "blocks along the rows: i % 2 == 0",
    worthwhile("kernels for blocks of 16, 32, 64 and so on: b >= 16 and b & (b - 1) == 0 and w.shape[0] % b == 0"),
    exactness=Exactness.ROUNDING,
    source="contrib operators of ONNX Runtime; Frantar et al. 2022",
    sample=_draw,
)


# --- bytes of so few bits, in groups that share a scale, as torchao keeps them


def groups_of(q: Ref) -> Term:
    """The integers of (columns, groups, rows) in bytes."""
    return literal(_packed(_unsigned(q.elements)))


def points_of_groups(z: Ref | None) -> Term | None:
    """Zero points in bytes: (columns, bytes). Without any they are 8, in the kernel as in the integers."""
    return None if z is None else literal(_packed(_unsigned(z.elements[..., 0].astype(np.int8))))


def scales_of_groups(s: Ref) -> Term:
    return literal(np.ascontiguousarray(s.elements[..., 0]))


def are_of_four_bits(z: Ref) -> bool:
    """Whether all zero points are whole numbers of 4 bits."""
    return bool(np.isin(z.elements, np.arange(-8, 8)).all())


def _draw_groups(d: Sampler, *, of_bytes: bool) -> dict[str, Any]:
    columns, count, rows = d.extents(3)
    block = d.choose((16, 16, 32, 24))
    most = d.choose((7, 7, 7, 9))
    shape = d.choose(((columns, count * block),) * 5 + ((count * block, columns),))
    points = d.rng.integers(-8, d.choose((8, 8, 8, 12)), (columns, count, 1)).astype(np.int8)
    floats = points.astype(np.float32) + np.float32(d.choose((0, 0, 0, 0.5)))
    return {
        "x": d.floats((*d.shape(1, 2), rows, shape[1])),
        "q": fixed(d.rng.integers(-8, most + 1, (columns, count, block)).astype(np.int8)),
        "s": fixed(d.positive((columns, count, d.choose((1,) * 5 + (block,))))),
        "z": fixed(points if of_bytes else floats),
        "wide": {"to": int(DType.FLOAT)},
        "f": fixed(shape, "int64"),
        "cast": {"to": int(DType.FLOAT)},
        "t": {"perm": (1, 0)},
    }


for suffix, integers, zero in (
    ("", "Cast(q, **cast)", "None"),
    ("_with_zero_points", "(Cast(q, **cast) - z)", "z"),
    ("_with_zero_points_of_bytes", "(Cast(q, **cast) - Cast(z, **wide))", "z"),
):
    equation(
        f"multiply_by_groups_of_four_bits{suffix}",
        f"""x @ Transpose(Reshape({integers} * s, f, **w), **t)
            == com.microsoft.MatMulNBits(x, groups_of(q), scales_of_groups(s), points_of_groups({zero}),
                                         K=w.shape[1], N=w.shape[0], bits=4, block_size=q.shape[2], accuracy_level=0)""",
        kernels("x", DType.FLOAT),
        kernels("s", DType.FLOAT),
        constant("q", "s", *(("z",) if suffix else ())),
        worthwhile("signed bytes: q.dtype is int8"),
        "of which 4 bits are used: q.low >= -8 and q.high <= 7",
        *(("zero points of 4 bits: are_of_four_bits(z)",) if suffix else ()),
        f"one scale and zero point a group: q.rank == 3 and {zero if suffix else 's'}.shape == s.shape == (*q.shape[:2], 1)",
        "groups along the rows: w.shape == (q.shape[0], q.shape[1] * q.shape[2]) and t.attr('perm') == (1, 0)",
        worthwhile("kernels for matrices: x.rank >= 2"),
        worthwhile(
            "kernels for blocks of 16, 32, 64 and so on: q.shape[2] >= 16 and q.shape[2] & (q.shape[2] - 1) == 0"
        ),
        exactness=Exactness.ROUNDING,
        source="contrib operators of ONNX Runtime; Frantar et al. 2022",
        sample=partial(_draw_groups, of_bytes="Cast(z" in integers),
    )
