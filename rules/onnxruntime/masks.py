"""Masks of quantised scores, for ONNX Runtime: added to bytes, alone, or as the bias of a product.

A mask is 0 where a score counts, and far below all scores elsewhere. Where the sum is quantised again, the second only says
that the result is the least byte; a mask of bytes says that, too, and one kernel on bytes adds it. Of a number beyond all sums
any level will do by which the results saturate; one that is near is 128 steps. Where the steps of the sum are so large that no
score is one, as where a quantiser took the largest value of a float for a score, the mask is all that is left.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from eqsat.conditions import constant, kernels, varies, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, apply, literal
from eqsat.rules.onnxruntime.parameters import (
    SOURCE,
    dequantized,
    functions,
    known_parameters,
    quantized,
    single_parameters,
)
from eqsat.rules.quantised.byte_tables import FACTORS, dequantised_bytes, quantised
from eqsat.rules.terms import int64s, reshape

_STEPS = (1.0, 2.0, 4.0, 8.0)
"""Steps of a mask of bytes that are tried, in quanta of the result: the kernel adds up zero points by them, which it rounds."""

WIDEST = 512
"""Columns of an identity by which it may be worth while to multiply."""


class Sums(NamedTuple):
    """All bytes of a type by one scale and zero point, to which a number is added, quantised by another scale."""

    dtype: DType
    sa: np.ndarray
    za: np.ndarray | None
    sy: np.ndarray
    zy: np.ndarray | None

    def with_number(self, addend: np.floating) -> np.ndarray:
        with np.errstate(over="ignore"):  # what is far below zero may overflow
            return quantised(dequantised_bytes(self.dtype, self.sa, self.za) + addend, self.sy, self.zy)

    def alone(self, addend: np.floating) -> np.ndarray | None:
        """The quantised sum with a number if it is the same for all bytes, ties aside."""
        info, zero = np.iinfo(self.dtype.numpy), 0 if self.zy is None else int(self.zy)
        values = dequantised_bytes(self.dtype, self.sa, self.za).astype(np.float64)
        exact = (values + np.float64(addend)) / np.float64(self.sy)
        sums = self.with_number(addend)
        near = [np.clip(np.rint(exact * f) + zero, info.min, info.max) for f in FACTORS]
        return sums[0, 0] if all((n == sums[0, 0]).all() for n in (sums, *near)) else None


class Mask(NamedTuple):
    """Bytes with a scale and a zero point that do to bytes what two numbers do."""

    step: np.float32
    zero: np.ndarray
    levels: list[np.ndarray]


def _mask(sums: Sums, *numbers: np.floating) -> Mask | None:
    """The mask by which all sums with bytes are what they are with ``numbers``; ``None`` if there is none."""
    info, quantum = np.iinfo(sums.dtype.numpy), np.float64(sums.sy)
    zero = 0 if sums.dtype is DType.INT8 else 128
    wanted = [sums.with_number(x) for x in numbers]
    for step in (*(quantum * factor for factor in _STEPS), *(abs(np.float64(x)) / 128 for x in numbers)):
        if not 0 < step <= quantum * _STEPS[-1] or not np.isfinite(np.float32(step)):
            continue
        steps = [np.rint(np.float64(x) / step) for x in numbers]
        levels = [np.clip(k, int(info.min) - zero, int(info.max) - zero) for k in steps if not np.isnan(k)]
        with np.errstate(over="ignore"):
            found = [sums.with_number(np.float32(step) * np.float32(k)) for k in levels]
        if len(found) == len(wanted) and all(map(np.array_equal, wanted, found)):
            bytes_ = [np.array(int(n), sums.dtype.numpy) for n in (zero, *(zero + k for k in levels))]
            return Mask(np.float32(step), bytes_[0], bytes_[1:])
    return None


@lru_cache(256)
def _of_two(dtype: DType, *numbers: Any) -> tuple[Mask | None, list[np.ndarray | None]]:
    arrays: list[Any] = [None if n is None else np.asarray(n) for n in numbers]
    *parameters, kept, masked = arrays
    sums = Sums(dtype, *parameters)
    return _mask(sums, kept, masked), [sums.alone(x) for x in (kept, masked)]


def _numbers(values: tuple[Ref | None, ...]) -> list[Any]:
    return [None if v is None else v.value.reshape(())[()] for v in values]


def mask(y: Ref, *values: Ref | None) -> Mask | None:
    """The mask for bytes of the type of ``y``: parameters of the scores and of their sum, and the two numbers."""
    return _of_two(y.dtype, *_numbers(values))[0]


def alone(y: Ref, *values: Ref | None) -> list[Any]:
    """The sums with each of the two numbers, ``None`` where they depend on the byte."""
    return _of_two(y.dtype, *_numbers(values))[1]


def expanded(value: Term, c: Ref, like: Ref) -> Term:
    """A choice by ``c`` in the shape of ``like``."""
    return value if c.shape == like.shape else apply("Expand", value, int64s(like.static_shape))


def identity(x: Ref) -> Term:
    return literal(np.eye(x.static_shape[-1], dtype=np.int8))


def row(c: Ref) -> Term:
    """A vector of the elements of ``c``."""
    return c if c.rank == 1 else reshape(c, (-1,))


SCORES = """a: uint8[A, K] | int8[A, K] | uint8[B, A, K]; sa = d.positive([] | [1]) / 8
            za = d.integers([], "uint8", 0, 100) | ...;"""
DRAWN = f"""{SCORES} sy = d.positive([]) | d.positive([]) * 8 | fixed(1e36, "float32"); c: bool[A, K] | bool[K] | bool[B, A, K]
            k = fixed(0.0 | -0.0 | 0.5, "float32"); l = fixed(-1e4 | -inf | -3.4e38 | 1e5 | -0.5, "float32")"""
equation = Equations(__name__, domain="com.microsoft", functions=functions | {"WIDEST": WIDEST})
SUM = quantized(f"{dequantized('a')} + Where(c, k, l)")
VALUES = "root, sa, za, sy, zy, k, l"
CHOSEN = (
    *single_parameters("a"),
    constant("k", "l"),
    worthwhile("kernels for bytes of one type: root.dtype in BYTES and a.dtype is root.dtype"),
    "one of two numbers: per_tensor(k, l)",
)
equation(
    "add_mask_to_bytes",
    f"""{SUM} == com.microsoft.QLinearAdd(a, scalar(sa), scalar(za, root.dtype),
        Where(c, number(mask({VALUES}).levels[0]), number(mask({VALUES}).levels[1])), number(mask({VALUES}).step),
        number(mask({VALUES}).zero), scalar(sy), scalar(zy, root.dtype))""",
    *CHOSEN,
    "numbers that add no axes: max(k.rank, l.rank) <= c.rank",
    f"bytes with the same sums: mask({VALUES})",
    exactness=Exactness.LSB,
    quanta=1,
    source=SOURCE,
    drawn=(DRAWN, "k = d.floats([K])", "l = fixed([[[[-1e4]]]], 'float32')", "q.precision = 10"),
)
equation(
    "drop_bytes_beside_mask",
    f"{SUM} == expanded(QuantizeLinear(Where(c, k, l), sy, *zy, **q), c, root)",
    *CHOSEN,
    f"sums that do not depend on the bytes: None not in alone({VALUES})",
    source="a function of a byte has 256 values",
    drawn=(DRAWN, "k = d.floats([K])", "l = fixed([[[[-1e4]]]], 'float32')", "q.precision = 10"),
)


equation(  # one kernel, at the price of a product: for masks of attention scores; constants have better places
    "add_row_by_product",
    f"""{dequantized("a")} + c
        == com.microsoft.MatMulIntegerToFloat(a, identity(a), scalar(sa), number(1, float32), scalar(za), number(0, int8),
                                              row(c))""",
    kernels("root", DType.FLOAT),
    *known_parameters("a"),
    varies("c"),
    worthwhile("kernels for unsigned bytes: a.dtype is uint8"),
    "one scale and zero point: per_tensor(sa, za)",
    worthwhile("kernels for matrices: a.rank >= 2"),
    "an extent for each column, and no others: c.shape[-1:] == a.shape[-1:] == (c.type.size,)",
    "c enlarges nothing: root.shape == a.shape",
    worthwhile("few columns: 0 < a.shape[-1] <= WIDEST"),
    exactness=Exactness.ROUNDING,
    source="the identity is neutral to products",
    drawn=(
        f"{SCORES} c: float32[K] | float32[1, K] | float32[1, 1, 1, K] | float32[2, A, K]",
        'a: uint8[A, K]; sa = d.positive([K]); za = d.integers([K], "uint8"); da.axis = 1',
    ),
)
