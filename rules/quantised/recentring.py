"""Signed 8-bit integers computed as unsigned ones: the zero point moves by 128, the numbers they stand for do not.

Runtimes have fast kernels for unsigned activations times signed weights, and slow ones, or none, for two signed operands. So
each signed quantised value gets an unsigned spelling. ``Recenter`` is the involution between the two; it moves from the
products that want unsigned operands to the quantisations that make them, and cancels there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.operators.recenter import OTHER_SIGN, RECENTER
from eqsat.ir.types import DType
from eqsat.rewrite import (
    PROJECTION,
    Apply,
    GroupView,
    Match,
    Merge,
    Ref,
    Rule,
    Term,
    apply,
    group_rule,
    literal,
    present,
    rule,
    variables,
)
from eqsat.rules.linear.padding import narrow_border
from eqsat.rules.quantised.movement import MOVEMENT, draw_others, draw_shape, require_movement
from eqsat.rules.quantised.pairs import BYTES, dequantize, like, q, quantize, x
from eqsat.rules.terms import constant
from eqsat.samples import Drawing, Sampler, fixed
from eqsat.samples.quantised import parameters, ties, values

EXACT = Exactness.EXACT
SOURCE = "adding 128 to the integer and to its zero point"
low, high = variables("low? high?")


def recenter(value: Term) -> Apply:
    """The same 8-bit integers, 128 greater and unsigned, or 128 less and signed."""
    return apply(RECENTER, value)


def recentred(zero: Ref | None, dtype: DType, like_scale: Ref) -> Term:
    """A zero point for recentred integers; ``dtype`` is the type of the integers before. Raises `Unmet` if it is not known."""
    elements = np.zeros(like_scale.static_shape, np.int64) if zero is None else zero.value.astype(np.int64)
    moved = elements + (128 if dtype is DType.INT8 else -128)
    return literal(moved.astype(OTHER_SIGN[dtype].numpy))


def _byte(d: Sampler) -> str:
    return d.choose(("int8", "int8", "int8", "uint8"))


def _quantize_sample(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    drawn = parameters(d, shape, dtype=_byte(d))
    attributes = drawn["attributes"] | ({"output_dtype": int(DType.of(drawn["dtype"]))} if d.chance(0.2) else {})
    return {"x": ties(d, shape, drawn), **values(drawn), "quantized": attributes}


def _dequantize_sample(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    drawn = parameters(d, shape, dtype=_byte(d))
    return {"q": d.integers(shape, drawn["dtype"]), **values(drawn), "dq": drawn["attributes"]}


@rule(quantize(x), exactness=EXACT, source=SOURCE, sample=_quantize_sample)
def quantize_unsigned(m: Match) -> Term:
    """``Q(x, s, z: int8) == Recenter(Q(x, s, z + 128: uint8))``"""
    m.require(m.root.dtype is DType.INT8 and not m.root.is_constant, "no signed bytes, or known ones")
    zero = recentred(m.z, DType.INT8, m.s)  # it states the type
    return recenter(like(m.quantized, "QuantizeLinear", m.x, m.s, zero, output_dtype=None))


def _requantize_sample(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    drawn = parameters(d, shape, dtype=_byte(d) if d.chance(0.2) else "uint8")
    return {"x": ties(d, shape, drawn), **values(drawn), "quantized": drawn["attributes"]}


@rule(
    recenter(quantize(x)),
    exactness=EXACT,
    source=SOURCE,
    sample=_requantize_sample,
    domain="com.microsoft",
)
def quantize_signed(m: Match) -> Term:
    """``Recenter(Q(x, s, z: uint8)) == Q(x, s, z - 128: int8)``: operands on the right of products stay signed, whichever
    spelling of the unsigned ones is chosen."""
    m.require(m.quantized.dtype is DType.UINT8 and not m.root.is_constant, "no unsigned bytes, or known ones")
    return like(m.quantized, "QuantizeLinear", m.x, m.s, recentred(m.z, DType.UINT8, m.s), output_dtype=None)


@rule(dequantize(q), exactness=EXACT, source=SOURCE, sample=_dequantize_sample)
def dequantize_unsigned(m: Match) -> Term:
    """``DQ(q: int8, s, z) == DQ(Recenter(q), s, z + 128)``; constants stay signed, as kernels take weights."""
    m.require(m.q.dtype is DType.INT8 and not m.q.is_constant, "no signed bytes, or known ones")
    return like(m.dq, "DequantizeLinear", recenter(m.q), m.s, recentred(m.z, DType.INT8, m.s))


@rule(
    recenter(recenter(q)),
    exactness=EXACT,
    source="an involution",
    sample=lambda d: {"q": d.integers(d.shape(), _byte(d))},
)
def cancel_recentring(m: Match) -> Term:
    """``Recenter(Recenter(q)) == q``"""
    return m.q


def _define(op: str, inputs: str) -> Rule:
    names = tuple(n.rstrip("?") for n in inputs.split())
    others = variables(inputs) if inputs else ()
    listed = "".join(f", {n}" for n in names)

    def moved(m: Match) -> Term:
        require_movement(m, op)
        return Apply(op, present(recenter(m.q), *(m[n] for n in names)), m.moved.attributes)

    def sample(d: Sampler) -> dict[str, Any]:
        shape = draw_shape(d, op)
        return {"q": d.integers(shape, _byte(d))} | draw_others(d, op, shape)

    moved.__name__ = f"move_recentring_before_{op.lower()}"
    moved.__doc__ = f"""``Recenter({op}(q{listed})) == {op}(Recenter(q){listed})``"""
    pattern = recenter(apply(op, q, *others).named("moved"))
    return rule(pattern, exactness=EXACT, source="each element by itself", sample=sample)(moved)


for _op, _inputs in MOVEMENT:
    _define(_op, _inputs)


def _clip_sample(d: Sampler) -> dict[str, Any]:
    dtype = _byte(d)
    found: dict[str, Any] = {"q": d.integers(d.shape(), dtype)}
    bounds = np.sort(d.integers((2,), dtype))
    for name, bound in zip(("low", "high"), bounds, strict=True):
        if d.chance(0.7):
            found[name] = fixed(bound, dtype)
    return found


@rule(
    recenter(apply("Clip", q, low, high)),
    where=[constant("low", "high")],
    exactness=EXACT,
    source="adding a number is monotone",
    sample=_clip_sample,
)
def move_recentring_before_clip(m: Match) -> Term:
    """``Recenter(Clip(q, low, high)) == Clip(Recenter(q), low + 128, high + 128)`` for signed ``q``, else 128 less."""
    dtype = m.q.dtype
    lower, upper = (None if bound is None else recentred(bound, dtype, bound) for bound in (m.low, m.high))
    return apply("Clip", recenter(m.q), lower, upper)  # type: ignore[arg-type]


def _pool_sample(d: Sampler) -> dict[str, Any]:
    pads = tuple(d.integer(0, 1) for _ in range(4))
    if d.chance(0.1):
        pads = (3, *pads[1:])  # the first windows cover nothing but border
    window = {"kernel_shape": (3, 2), "pads": pads, "strides": (d.integer(1, 2), 1)}
    return {"q": d.integers((*d.extents(2), d.integer(4, 6), d.integer(4, 6)), _byte(d)), "window": window}


@rule(
    recenter(apply("MaxPool", q).named("window")),
    where=[narrow_border],
    exactness=EXACT,
    source="adding a number is monotone",
    sample=_pool_sample,
)
def move_recentring_before_max_pool(m: Match) -> Term:
    """``Recenter(MaxPool(q)) == MaxPool(Recenter(q))`` where every window covers an element."""
    return Apply("MaxPool", (recenter(m.q),), m.window.attributes)


def _concat_sample(d: Sampler) -> Any:
    drawing = Drawing()
    shape, dtype = d.extents(3), _byte(d)
    parts = [drawing.value(d.integers((shape[0], d.integer(1, 4), shape[2]), dtype)) for _ in range(d.integer(2, 4))]
    return drawing.finish(drawing.op(RECENTER, drawing.op("Concat", *parts, axis=1)))


def _nodes_by_class(view: GroupView, op: str) -> dict[int, list[tuple[Ref, tuple[Ref | None, ...]]]]:
    found: dict[int, list[tuple[Ref, tuple[Ref | None, ...]]]] = {}
    for node, inputs in view.nodes(op):
        found.setdefault(node.handle, []).append((node, inputs))
    return found


@group_rule(exactness=EXACT, source="each element by itself", sample=_concat_sample)
def move_recentring_before_concat(view: GroupView) -> Iterator[Merge]:
    """``Recenter(Concat(q1, q2, ...)) == Concat(Recenter(q1), Recenter(q2), ...)``"""
    concats = _nodes_by_class(view, "Concat")
    for node, inputs in view.nodes(RECENTER):
        value = inputs[0]
        for concat, parts in concats.get(value.handle, [])[:1] if value is not None else []:
            yield node, Apply("Concat", tuple(recenter(p) for p in parts if p is not None), concat.attributes)


def _split_sample(d: Sampler) -> Any:
    drawing = Drawing()
    shape = d.extents(3, ones=0)
    axis = d.integer(0, 2)
    sizes = drawing.value(fixed([1, shape[axis] - 1], "int64"))
    parts = drawing.op("Split", drawing.value(d.integers(shape, _byte(d))), sizes, outputs=2, axis=axis)
    return drawing.finish(*(drawing.op(RECENTER, p) for p in parts))


@group_rule(exactness=EXACT, source="each element by itself", sample=_split_sample)
def move_recentring_before_split(view: GroupView) -> Iterator[Merge]:
    """``Recenter(Split(q)[i]) == Split(Recenter(q))[i]``"""
    for split, inputs in view.nodes("Split"):
        value = inputs[0]
        if value is None or value.dtype not in BYTES or split.attr("num_outputs", 0) or len(inputs) < 2:
            continue
        sizes = inputs[1]
        if sizes is None or not sizes.type.is_static:
            continue
        made = Apply("Split", (recenter(value), sizes), split.attributes, "", sizes.static_shape[0])
        for op, part, _ in view.users(split):
            if op != PROJECTION:
                continue
            for reader, node, _ in view.users(part):
                if reader == RECENTER:
                    yield node, made.output(int(part.attr("index")))


def _leaf_sample(d: Sampler) -> Any:
    drawing = Drawing()
    value = drawing.value(d.integers(d.shape(), _byte(d)))
    return drawing.finish(drawing.op(RECENTER, value))


_COMPUTED: Callable[[str], bool] = frozenset(
    ("QuantizeLinear", "Clip", "MaxPool", "Concat", PROJECTION, RECENTER, *(op for op, _ in MOVEMENT))
).__contains__
"""By operator, not by trait: those that the rules above pass, which has as much to do with the rules as with the operators."""


@group_rule(exactness=EXACT, source="scale 1 and the integers' own zero points", sample=_leaf_sample)
def spell_out_recentring(view: GroupView) -> Iterator[Merge]:
    """``Recenter(q: int8) == Q(DQ(q, 1, 0), 1, 128)``, and back alike, where nothing that makes ``q`` can be recentred."""
    for node, inputs in view.nodes(RECENTER):
        value = inputs[0]
        if value is None or any(_COMPUTED(op) for op, _ in view.spellings(value)):
            continue
        signed, unsigned = literal(0, DType.INT8), literal(128, DType.UINT8)
        first, second = (signed, unsigned) if value.dtype is DType.INT8 else (unsigned, signed)
        one = literal(1, DType.FLOAT)
        yield node, apply("QuantizeLinear", apply("DequantizeLinear", value, one, first), one, second)
