"""Masks of quantised scores, for ONNX Runtime: added to bytes, alone, or as the bias of a product.

A mask is 0 where a score counts, and far below all scores elsewhere. Where the sum is quantised again, the second only says
that the result is the least byte; a mask of bytes says that, too, and one kernel on bytes adds it. Where the steps of the sum are
so large that no score is one, the mask is all that is left.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Term, apply, literal, rule, variables
from eqsat.rules.onnxruntime.integer import TO_FLOAT
from eqsat.rules.onnxruntime.quantised import DOMAIN, SOURCE, number, quantized
from eqsat.rules.quantised.byte_tables import FACTORS, dequantised_bytes, quantised
from eqsat.rules.quantised.pairs import BYTES, per_tensor, positive, unblocked
from eqsat.rules.terms import add, int64s
from eqsat.samples import Sampler, fixed

_STEPS = (1.0, 2.0, 4.0, 8.0)
"""Steps of a mask of bytes that are tried, in quanta of the result: the kernel adds up zero points by them, which it rounds."""

_WIDEST = 512
"""Columns of an identity by which it may be worth while to multiply."""

a, sa, sy, za, zy, condition, kept, masked, c = variables("a sa sy za? zy? condition kept masked c")
left = apply("DequantizeLinear", a, sa, za).named("left")


def _drawn_scores(d: Sampler, dtype: str) -> dict[str, Any]:
    shape = d.shape(2, 4)
    step = d.positive(()) / np.float32(8)
    found: dict[str, Any] = {"a": d.integers(shape, dtype), "sa": fixed(step), "left": {}}
    if d.chance(0.8) or dtype == "int8":
        found["za"] = fixed(d.integers(d.choose(((), (1,))), dtype, 0, 100))
    return found


def _drawn(d: Sampler) -> dict[str, Any]:
    dtype = d.choose(("int8", "uint8"))
    found = _drawn_scores(d, dtype)
    shape = found["a"].shape
    extent = d.choose((shape, shape[-1:], (1, shape[-1]), d.broadcast_with(shape)))
    numbers = [
        d.choose((0.0, 0.0, 0.0, -0.0, 0.5)),
        d.choose((-1e4, -np.inf, float(np.finfo(np.float32).min), 1e5, -0.5)),
    ]
    if d.chance():
        numbers.reverse()
    for name, value in zip(("kept", "masked"), numbers, strict=True):
        found[name] = fixed(np.full(d.choose(((), (), (1,))), value, np.float32))
    if d.chance(0.1):
        found["kept"] = fixed(d.floats(extent))
    found["sy"] = fixed(found["sa"].array * np.float32(d.choose((0.3, 1.0, 1.4, 20.0, 1e3))))
    if d.chance(0.2):  # the mask was quantised, too, with a step of which 127 or 128 are not finite
        lowest = np.finfo(np.float32).min
        found |= {"masked": fixed(lowest), "sy": fixed(-lowest / np.float32(d.choose((127.0, 100.0, 40.0))))}
    found["zy"] = fixed(d.integers((), dtype, 0, 100))
    return found | {"condition": d.booleans(extent), "quantized": {}}


_masked = quantized(apply("Add", left, apply("Where", condition, kept, masked)))


def _check(m: Match) -> DType:
    """The type of the bytes and of their quantised sums with one of two numbers. Raises `Unmet`."""
    dtype = m.root.dtype
    numbers = [v for v in (m.sa, m.sy, m.za, m.zy, m.kept, m.masked) if v is not None]
    m.require(dtype in BYTES and m.a.dtype is dtype, "not one 8-bit type")
    m.require(unblocked(m.left.attributes, m.quantized.attributes) and per_tensor(*numbers), "no single numbers")
    m.require(all(v.is_constant for v in numbers) and positive(m.sa) and positive(m.sy), "unknown scales or numbers")
    m.require(max(m.kept.rank, m.masked.rank) <= m.condition.rank, "a choice of more axes")
    return dtype


@rule(
    _masked,
    exactness=Exactness.LSB,
    quanta=1,
    source=SOURCE,
    sample=_drawn,
    domain=DOMAIN,
)
def add_mask_to_bytes(m: Match) -> Term:
    """``Q(DQ(a) + Where(c, 0, x)) == QLinearAdd(a, Where(c, zero, level))`` for a number beyond all sums, or near.

    Also the other way round. Of one beyond, any level will do by which the results saturate; one that is near is 128 steps. All
    256 results are the same in float32, for both numbers.
    """
    dtype = _check(m)
    found = _mask(m, dtype)
    m.require(found is not None, "no bytes with the same sums")
    assert found is not None
    step, zero, levels = found
    integers = [literal(np.array(zero + k, dtype.numpy)) for k in levels]
    mask = apply("Where", m.condition, *integers)
    quantum = (number(m.sy, DType.FLOAT), number(m.zy, dtype))
    scores = (m.a, number(m.sa, DType.FLOAT), number(m.za, dtype))
    return apply(f"{DOMAIN}::QLinearAdd", *scores, mask, literal(step), literal(np.array(zero, dtype.numpy)), *quantum)


@rule(
    _masked,
    exactness=Exactness.EXACT,
    source="a function of a byte has 256 values",
    sample=_drawn,
    domain=DOMAIN,
)
def drop_bytes_beside_mask(m: Match) -> Term:
    """``Q(DQ(a) + Where(c, k, l)) == Expand(Where(c, Q(k), Q(l)))`` where all 256 results are the same, for both numbers.

    So it is where a quantiser took the largest value of a float for a score: the step of the sums, a part of 1e38, leaves nothing
    of scores, and what they are computed from is not needed.
    """
    dtype = _check(m)
    alone = _mask_alone(m, dtype)
    m.require(alone is not None, "results that depend on the byte")
    assert alone is not None
    extents = m.root.static_shape
    mask = apply("Where", m.condition, *alone)
    return mask if m.condition.shape == extents else apply("Expand", mask, int64s(extents))


def _mask_alone(m: Match, dtype: DType) -> list[Term] | None:
    """The quantised sums where the condition holds and where not, if they are the same for all bytes, ties aside."""
    info = np.iinfo(dtype.numpy)
    quantum, zero = np.float64(m.sy.value.reshape(())), 0 if m.zy is None else int(m.zy.value.reshape(()))
    results = []
    for value in (m.kept, m.masked):
        addend = value.value.reshape(())
        exact = (_scores(m, dtype).astype(np.float64) + np.float64(addend)) / quantum
        near = [np.clip(np.rint(exact * f) + zero, info.min, info.max) for f in FACTORS]
        sums = _sums(m, dtype, addend)
        if not all((n == sums[0, 0]).all() for n in (sums, *near)):
            return None
        results.append(literal(sums[0, 0]))
    return results


def _mask(m: Match, dtype: DType) -> tuple[np.float32, int, list[int]] | None:
    """Scale and zero point of a mask of bytes, and its integers, less the zero point, where the condition holds and where not,
    by which all sums with bytes are what they were; ``None`` if there are none."""
    info = np.iinfo(dtype.numpy)
    zero = 0 if dtype is DType.INT8 else 128
    numbers = [v.value.reshape(()) for v in (m.kept, m.masked)]
    wanted = [_sums(m, dtype, x) for x in numbers]
    quantum = np.float64(m.sy.value.reshape(()))
    exact = [abs(np.float64(x)) / 128 for x in numbers]
    for step in (*(quantum * factor for factor in _STEPS), *exact):
        if not 0 < step <= quantum * _STEPS[-1] or not np.isfinite(np.float32(step)):
            continue
        steps = [np.rint(np.float64(x) / step) for x in numbers]
        levels = [int(np.clip(k, int(info.min) - zero, int(info.max) - zero)) for k in steps if not np.isnan(k)]
        with np.errstate(over="ignore"):
            sums = [_sums(m, dtype, np.float32(step) * np.float32(k)) for k in levels]
        if len(sums) == len(wanted) and all(map(np.array_equal, wanted, sums)):
            return np.float32(step), zero, levels
    return None


def _scores(m: Match, dtype: DType) -> np.ndarray:
    """Each byte, dequantised."""
    return dequantised_bytes(dtype, m.sa.value, None if m.za is None else m.za.value)


def _sums(m: Match, dtype: DType, addend: np.floating) -> np.ndarray:
    """Each byte, dequantised, plus a number, quantised."""
    with np.errstate(over="ignore"):  # what is far below zero may overflow
        return quantised(_scores(m, dtype) + addend, m.sy.value, None if m.zy is None else m.zy.value)


def _rows(d: Sampler) -> dict[str, Any]:
    found = _drawn_scores(d, "uint8" if d.chance(0.9) else "int8")
    shape = found["a"].shape
    extent = d.choose((shape[-1:], (1, shape[-1]), (1,) * (len(shape) - 1) + shape[-1:], (), d.broadcast_with(shape)))
    return found | {"c": d.floats(extent) if d.chance(0.9) else fixed(d.floats(extent))}


@rule(
    add(left, c),
    exactness=Exactness.ROUNDING,
    source="the identity is neutral to products",
    sample=_rows,
    domain=DOMAIN,
)
def add_row_by_product(m: Match) -> Term:
    """``DQ(a) + c == MatMulIntegerToFloat(a, identity, bias=c)`` for unsigned bytes and ``c`` with a value for each column.

    One kernel, at the price of a product: for masks of attention scores. Constants have better places.
    """
    m.require(m.a.dtype is DType.UINT8 and m.root.dtype is DType.FLOAT, "no unsigned bytes, or no float32")
    m.require(unblocked(m.left.attributes) and per_tensor(m.sa, m.za), "several scales")
    m.require(positive(m.sa) and (m.za is None or m.za.is_constant), "an unknown scale or zero point")
    extents = m.a.static_shape
    m.require(len(extents) >= 2 and 0 < extents[-1] <= _WIDEST, "no matrix, or a large one")
    m.require(not m.c.is_constant and m.c.static_shape[-1:] == extents[-1:], "no value for each column, or known ones")
    m.require(math.prod(m.c.static_shape) == extents[-1] and m.root.static_shape == extents, "more than a row")
    row = m.c if m.c.rank == 1 else apply("Reshape", m.c, int64s(extents[-1:]))
    one, none = literal(np.float32(1)), literal(np.int8(0))
    identity = literal(np.eye(extents[-1], dtype=np.int8))
    return apply(TO_FLOAT, m.a, identity, number(m.sa, DType.FLOAT), one, number(m.za, DType.UINT8), none, row)
