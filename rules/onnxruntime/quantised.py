"""Operators on 8-bit integers as ONNX Runtime has kernels: QLinearAdd and its relatives.

Dequantise, operate, quantise becomes one kernel. What it means is just that; but it multiplies by the quotient of the scales,
or looks up a table, so at rounding ties it may be off by one quantum. QLinearSoftmax is one kernel, but takes more time than
the three that it stands for. QLinearWhere has no rule: its kernel (1.31) reads beyond an operand that is a single number.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.types import DType
from eqsat.rewrite import (
    Apply,
    GroupView,
    Match,
    Merge,
    Ref,
    Term,
    Unmet,
    apply,
    group_rule,
    literal,
    rule,
    variables,
)
from eqsat.rules.quantised.pairs import BYTES, per_tensor, positive, unblocked
from eqsat.rules.quantised.recentring import recenter, recentred
from eqsat.rules.terms import int64s
from eqsat.samples import Drawing, Instance, Sampler, fixed
from eqsat.samples.quantised import ties

DOMAIN = "com.microsoft"
SOURCE = "contrib operators of ONNX Runtime"
a, b, sa, sb, sy, za, zb, zy = variables("a b sa sb sy za? zb? zy?")
_byte_rule = partial(rule, exactness=Exactness.LSB, quanta=1, source=SOURCE, domain=DOMAIN)
left = apply("DequantizeLinear", a, sa, za).named("left")
right = apply("DequantizeLinear", b, sb, zb).named("right")


def quantized(term: Any) -> Apply:
    """Pattern: a value by the scale ``sy`` and the zero point ``zy``."""
    return apply("QuantizeLinear", term, sy, zy).named("quantized")


def number(value: Ref | None, dtype: DType) -> Term:
    """A scale or zero point as the kernels want it, of rank 0; an absent zero point is a zero of ``dtype``."""
    if value is None:
        return literal(0, dtype)
    return value if value.rank == 0 else apply("Reshape", value, int64s(()))


def _byte_type(m: Match, *operands: str) -> DType:
    """The one 8-bit type of the operands and the result; constants may be of the other. Raises `Unmet`."""
    dtype = m.root.dtype
    alike = all(m[n].dtype is dtype or (m[n].is_constant and m[n].dtype in BYTES) for n in operands)
    m.require(dtype in BYTES and alike, "not one 8-bit type")
    nodes = [m.quantized, *(m[{"a": "left", "b": "right"}[n]] for n in operands)]
    m.require(unblocked(*(n.attributes for n in nodes)), "blocks or another precision")
    zeros, scales = ([m[f"{kind}{n}"] for n in (*operands, "y")] for kind in "zs")
    m.require(all(positive(s) and s.dtype is DType.FLOAT for s in scales) and per_tensor(*scales), "no single scales")
    m.require(per_tensor(*zeros) and all(z is None or z.is_constant for z in zeros), "several zero points, or unknown")
    return dtype


def _drawn(d: Sampler, dtype: str, index: str) -> dict[str, Any]:
    extent = d.choose(((), (1,)))
    info = np.iinfo(dtype)
    finer = 128 if index == "y" and d.chance(0.3) else 8  # a small step of the result shows a wrong zero point
    found: dict[str, Any] = {f"s{index}": fixed(d.positive(extent) / np.float32(finer))}
    if d.chance(0.7):
        found[f"z{index}"] = fixed(d.integers(extent, dtype, int(info.min) // 2, int(info.max) // 2))
    elif dtype == "int8":
        found[f"z{index}"] = fixed(np.zeros(extent, dtype))
    return found


def _operands(d: Sampler, *shapes: tuple[int, ...]) -> dict[str, Any]:
    dtype = d.choose(("int8", "uint8"))
    found = _drawn(d, dtype, "y")
    for name, shape in zip("ab", shapes, strict=False):
        own = d.choose(("int8", "uint8")) if name == "b" and d.chance(0.4) else dtype
        integers = d.integers(shape, own)
        found |= {name: integers if own == dtype else fixed(integers), **_drawn(d, own, name)}
    return found | {"left": {}, "right": {}, "quantized": {}}


def _pair(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    return _operands(d, shape, d.broadcast_with(shape))


def _image(d: Sampler) -> dict[str, Any]:
    shape = (*d.extents(2), d.integer(3, 5), d.integer(3, 5))
    pool = {"kernel_shape": (2, 3), "strides": (1, 2), "pads": (0, 1, 1, 1), "count_include_pad": d.integer(0, 1)}
    return {**_operands(d, shape), "pool": pool if d.chance(0.8) else {**pool, "ceil_mode": 1}}


def _whole(d: Sampler) -> dict[str, Any]:
    return {**_operands(d, d.shape()), "leaky": {"alpha": d.choose((0.01, 0.5, 0.1))}}


def _binary(m: Match, op: str) -> Term:
    dtype = _byte_type(m, "a", "b")
    ordered = m.b.is_constant if m.a.is_constant or m.b.is_constant else m.a.handle <= m.b.handle
    m.require(ordered, "the other way round")
    operands = (*_operand(m.a, m.sa, m.za, dtype), *_operand(m.b, m.sb, m.zb, dtype))
    return apply(f"{DOMAIN}::{op}", *operands, number(m.sy, dtype), number(m.zy, dtype))


def _operand(value: Ref, scale: Ref, zero: Ref | None, dtype: DType) -> tuple[Term, Term, Term]:
    """Integers of type ``dtype``, scale, zero point: constants of the other 8-bit type are moved by 128."""
    if value.dtype is dtype:
        return value, number(scale, dtype), number(zero, dtype)
    moved = recentred(zero, value.dtype, scale)
    return recenter(value), number(scale, dtype), moved if scale.rank == 0 else apply("Reshape", moved, int64s(()))


def _unary(m: Match, op: str, attributes: Attributes) -> Term:
    dtype = _byte_type(m, "a")
    operands = (m.a, number(m.sa, dtype), number(m.za, dtype), number(m.sy, dtype), number(m.zy, dtype))
    return Apply(f"{DOMAIN}::{op}", operands, attributes)


@_byte_rule(quantized(apply("Add", left, right)), sample=_pair)
def quantise_sum(m: Match) -> Term:
    """``Q(DQ(a) + DQ(b)) == QLinearAdd(a, b)``."""
    return _binary(m, "QLinearAdd")


@_byte_rule(quantized(apply("Mul", left, right)), sample=_pair)
def quantise_product(m: Match) -> Term:
    """``Q(DQ(a) * DQ(b)) == QLinearMul(a, b)``."""
    return _binary(m, "QLinearMul")


@_byte_rule(quantized(apply("Sigmoid", left)), sample=_whole)
def quantise_sigmoid(m: Match) -> Term:
    """``Q(Sigmoid(DQ(a))) == QLinearSigmoid(a)``."""
    return _unary(m, "QLinearSigmoid", Attributes({}))


@_byte_rule(quantized(apply("LeakyRelu", left).named("leaky")), sample=_whole)
def quantise_leaky_relu(m: Match) -> Term:
    """``Q(LeakyRelu(DQ(a))) == QLinearLeakyRelu(a)``."""
    return _unary(m, "QLinearLeakyRelu", m.leaky.attributes)


@_byte_rule(quantized(apply("GlobalAveragePool", left)), sample=_image)
def quantise_global_average_pool(m: Match) -> Term:
    """``Q(GlobalAveragePool(DQ(a))) == QLinearGlobalAveragePool(a)``."""
    return _unary(m, "QLinearGlobalAveragePool", Attributes({}))


@_byte_rule(quantized(apply("AveragePool", left).named("pool")), sample=_image)
def quantise_average_pool(m: Match) -> Term:
    """``Q(AveragePool(DQ(a))) == QLinearAveragePool(a)`` for windows without holes that end inside the padded input."""
    attributes = m.pool.attributes
    m.require(m.a.rank == 4 and not attributes.get("ceil_mode", 0), "no image, or windows beyond the border")
    m.require(all(d == 1 for d in attributes.get("dilations", ())), "windows with holes")
    m.require(attributes.get("auto_pad", "NOTSET") == "NOTSET", "implicit pads")
    kept = {k: v for k, v in attributes.items() if k in ("kernel_shape", "strides", "pads", "count_include_pad")}
    return _unary(m, "QLinearAveragePool", Attributes(kept))


def _scores(d: Sampler) -> dict[str, Any]:
    dtype = d.choose(("uint8", "int8"))
    found = {**_drawn(d, dtype, "a"), **_drawn(d, dtype, "y")}
    steps = d.choose((1 / 256, 1 / 255, 1 / 128, 0.007874016, 0.1))
    found |= {"a": d.integers(d.shape(), dtype), "sy": fixed(np.float32(steps).reshape(found["sy"].array.shape))}
    return found | {"left": {}, "quantized": {}, "soft": {"axis": d.choose((-1, -1, -1, 0))}}


_SHORT_OF = 2.0**-14
"""By how much a number of quanta may be rounded down: it moves as large a part of the elements by one."""


@_byte_rule(quantized(apply("Softmax", left).named("soft")), sample=_scores)
def quantise_softmax(m: Match) -> Term:
    """``Q(Softmax(DQ(a))) == QLinearSoftmax(a)`` over the last axis; signed bytes must hold 1, which the kernel does not bound.

    The kernel adds up exponentials of differences to the largest byte, from a table of floats whose largest entry is
    ``e**-5 / length`` of the largest float; they stay finite times the quanta in 1, of which it takes the next lower whole
    number. The sum of up to 4096 floats is within 2**-12, less than a tenth of a quantum. Where a dequantised value overflows
    and the softmax is NaN, which has no quantised value, the kernel gives what the bytes say.
    """
    dtype = _byte_type(m, "a")
    m.require(m.soft.attr("axis", -1) in (-1, m.a.rank - 1), "another axis than the last")
    length = m.a.static_shape[-1]
    quanta = np.float32(1) / np.float32(m.sy.value.reshape(()))
    m.require(1 <= quanta <= 128 * length and 2 <= length <= 4096, "floats may overflow, or their sum is too long")
    m.require(quanta - np.floor(quanta) <= _SHORT_OF, "no whole number of quanta")
    zero = 0 if m.zy is None else int(m.zy.value.reshape(()))
    m.require(dtype is DType.UINT8 or quanta + zero <= 127, "1 is beyond the signed bytes")
    operands = (m.a, number(m.sa, dtype), number(m.za, dtype), number(m.sy, dtype), number(m.zy, dtype))
    return apply(f"{DOMAIN}::QLinearSoftmax", *operands, axis=-1, opset=13)


def _joined(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.shape()
    axis = d.integer(0, len(shape) - 1)
    dtype = d.choose(("int8", "uint8"))
    parts = []
    for _ in range(d.integer(2, 4)):
        own = tuple(d.integer(1, 4) if i == axis else extent for i, extent in enumerate(shape))
        drawn = _drawn(d, dtype, "a")
        zero = drawing.value(drawn["za"]) if "za" in drawn else None
        parts.append(
            drawing.op("DequantizeLinear", drawing.value(d.integers(own, dtype)), drawing.value(drawn["sa"]), zero)
            if d.chance(0.95)
            else drawing.value(ties(d, own, {"scale": np.float32(1)}))
        )
    joined = drawing.op("Concat", *parts, axis=d.choose((axis, axis - len(shape))))
    drawn = _drawn(d, dtype, "y")
    zero = drawing.value(drawn["zy"]) if "zy" in drawn else None
    return drawing.finish(drawing.op("QuantizeLinear", joined, drawing.value(drawn["sy"]), zero))


@group_rule(exactness=Exactness.LSB, source=SOURCE, sample=_joined, domain=DOMAIN)
def quantise_concatenation(view: GroupView) -> Iterator[Merge]:
    """``Q(Concat(DQ(a), DQ(b), ...)) == QLinearConcat(a, b, ...)``."""
    integers: dict[int, list[tuple[Ref, tuple[Ref | None, ...]]]] = {}
    for node, inputs in view.nodes("DequantizeLinear"):
        integers.setdefault(node.handle, []).append((node, inputs))
    joined: dict[int, tuple[Ref, tuple[Ref | None, ...]]] = {}
    for node, inputs in view.nodes("Concat"):
        if all(i is not None and i.handle in integers for i in inputs):
            joined.setdefault(node.handle, (node, inputs))
    for node, inputs in view.nodes("QuantizeLinear"):
        found = joined.get(inputs[0].handle) if inputs[0] else None
        if found is None:
            continue
        concat, parts = found
        try:
            dtype = node.dtype
            operands = [*_parameters(node, inputs, dtype)]
            for part in parts:
                assert part is not None
                choices = [(n, i) for n, i in integers[part.handle] if _dtype(i[0]) is dtype]
                if not choices:
                    raise Unmet("not one 8-bit type")
                own, given = choices[0]
                operands += [given[0], *_parameters(own, given, dtype)]
            axis = int(concat.attr("axis")) % concat.rank
        except Unmet:
            continue
        yield node, apply(f"{DOMAIN}::QLinearConcat", *operands, axis=axis)


def _dtype(value: Ref | None) -> DType | None:
    return None if value is None else value.dtype


def _parameters(node: Ref, inputs: tuple[Ref | None, ...], dtype: DType) -> tuple[Term, Term]:
    """Scale and zero point of a quantisation, of rank 0. Raises `Unmet` unless each is one number."""
    _, scale, zero = (*inputs, None)[:3]
    if scale is None or not positive(scale) or scale.dtype is not DType.FLOAT or not per_tensor(scale, zero):
        raise Unmet("no single positive scale")
    if dtype not in BYTES or not unblocked(node.attributes) or (zero is not None and not zero.is_constant):
        raise Unmet("no 8-bit type, or blocks, or an unknown zero point")
    return number(scale, dtype), number(zero, dtype)
