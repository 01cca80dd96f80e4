"""Dequantisation by a positive scale keeps the order of integers: what only compares elements runs on the integers.

So does a border of zeros, which is a border of zero points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import (
    PROJECTION,
    Apply,
    GroupView,
    Match,
    Merge,
    Rule,
    Term,
    Unmet,
    apply,
    group_rule,
    literal,
    present,
    rule,
    variables,
)
from eqsat.rules.quantised.pairs import BYTES, dequantize, like, positive_scale, q, unblocked, whole_tensor, zero_of
from eqsat.rules.terms import condition, constant
from eqsat.samples import Drawing, Instance, Sampler, fixed
from eqsat.samples.quantised import parameters, values

pads, axes, value = variables("pads axes? value?")
c, p = variables("c p")

SOURCE = "monotone dequantisation"


@condition("8-bit type")
def _bytes(m: Match) -> bool:
    return m.q.dtype in BYTES and unblocked(m.dq.attributes)


@condition("no integer dequantises to infinity")
def _finite(m: Match) -> bool:
    return float(m.s.interval[1]) * 256 < float(np.finfo(m.s.dtype.numpy).max)


@condition("no empty axis")
def _occupied(m: Match) -> bool:
    return 0 not in m.q.static_shape


def _drawn(d: Sampler, *, empty: float = 0) -> tuple[dict[str, Any], tuple[int, ...]]:
    shape = d.shape(1, 4)
    if d.chance(empty):
        shape = (0, *shape[1:])
    drawn = parameters(d, shape, per_axis=0.2)
    return {"q": d.integers(shape, drawn["dtype"]), **values(drawn), "dq": drawn["attributes"]}, shape


def _position_sample(d: Sampler) -> dict[str, Any]:
    found, shape = _drawn(d)
    if d.chance(0.2):  # integers that float32 cannot tell apart: large ones, or those beyond its range
        dtype, low, scale = d.choose((("int32", 2**24, 0.5), ("int8", 124, 3e36)))
        found = {"q": d.integers(shape, dtype, low, low + 3), "s": fixed(np.float32(scale)), "dq": {}}
    attributes = {"axis": d.integer(-len(shape), len(shape) - 1), "keepdims": d.integer(0, 1)}
    return found | {"n": attributes | ({"select_last_index": 1} if d.chance(0.3) else {})}


def _extreme_sample(d: Sampler) -> dict[str, Any]:
    found, shape = _drawn(d, empty=0.15)
    if d.chance(0.7):
        found["axes"] = fixed(d.subset(range(len(shape))) or [0], "int64")
    return found | {"n": {"keepdims": d.integer(0, 1)}}


def _pad_sample(d: Sampler) -> dict[str, Any]:
    found, shape = _drawn(d)
    found["pads"] = fixed([d.integer(0, 2) for _ in range(2 * len(shape))], "int64")
    if d.chance():
        found["value"] = fixed(0.0 if d.chance(0.8) else 1.5, "float32")
    return found


def _define_position(op: str) -> Rule:
    def moved(m: Match) -> Term:
        return Apply(op, (m.q,), m.n.attributes)

    moved.__name__ = f"{op.lower()}_of_integers"
    moved.__doc__ = f"""``{op}(DQ(q, s, z)) == {op}(q)`` for one positive scale; no two integers have one value."""
    where = [positive_scale, whole_tensor, _bytes, _finite]
    return _rule(apply(op, dequantize(q)).named("n"), where, _position_sample)(moved)


def _define_extreme(op: str) -> Rule:
    def moved(m: Match) -> Term:
        return like(m.dq, "DequantizeLinear", Apply(op, present(m.q, m.axes), m.n.attributes), m.s, m.z)

    moved.__name__ = f"move_dequantize_behind_{op.lower()}"
    moved.__doc__ = f"""``{op}(DQ(q, s, z)) == DQ({op}(q), s, z)`` for one positive scale."""
    where = [positive_scale, whole_tensor, _bytes, _occupied]
    return _rule(apply(op, dequantize(q), axes).named("n"), where, _extreme_sample)(moved)


def _rule(pattern: Any, where: list[Any], sample: Callable[[Sampler], dict[str, Any]]) -> Callable[[Any], Rule]:
    return rule(pattern, where=where, exactness=Exactness.EXACT, source=SOURCE, sample=sample)


for _op in ("ArgMax", "ArgMin"):
    _define_position(_op)
for _op in ("ReduceMax", "ReduceMin"):
    _define_extreme(_op)


def _greatest_sample(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.shape()
    axis = d.integer(0, len(shape) - 1)
    drawn = parameters(d, shape, per_axis=0.1)
    if d.chance(0.1):  # integers that float32 cannot tell apart
        integers, scale, zero = (
            drawing.value(d.integers(shape, "int32", 2**24, 2**24 + 3)),
            fixed(np.float32(0.5)),
            None,
        )
    else:
        few = d.integers(shape, drawn["dtype"], 0, 3) if d.chance() else d.integers(shape, drawn["dtype"])
        integers, scale, zero = drawing.value(few), drawn["s"], drawing.value(fixed(drawn["zero"]))
    value = drawing.op("DequantizeLinear", integers, drawing.value(scale), zero, **drawn["attributes"])
    count = drawing.value(fixed([d.integer(0, shape[axis])], "int64"))
    found = drawing.op("TopK", value, count, outputs=2, axis=axis, largest=d.integer(0, 1), sorted=int(d.chance(0.9)))
    return drawing.finish(*(found if d.chance() else found[::-1]))


@group_rule(exactness=Exactness.EXACT, source=SOURCE, sample=_greatest_sample)
def move_dequantize_behind_topk(view: GroupView) -> Iterator[Merge]:
    """``TopK(DQ(q, s, z), k) == DQ(TopK(q, k)[0], s, z), TopK(q, k)[1]`` for one positive scale; no two integers have one value.

    Not for results in no order.
    """
    dequantized: dict[int, list[Match]] = {}
    for node, (integers, scale, zero) in ((n, (*i, None)[:3]) for n, i in view.nodes("DequantizeLinear")):
        match = Match({"q": integers, "s": scale, "z": zero, "dq": node}, node)
        dequantized.setdefault(node.handle, []).append(match)
    for node, (value, count) in view.nodes("TopK"):
        for m in dequantized.get(value.handle, []) if value is not None and node.attr("sorted", 1) else ():
            if not _keeps_order(m):
                continue
            made = Apply("TopK", (m.q, count), node.attributes, "", 2)  # type: ignore[arg-type]
            for op, part, _ in view.users(node):
                if op == PROJECTION and int(part.attr("index")) == 1:
                    yield part, made.output(1)
                elif op == PROJECTION:
                    yield part, like(m.dq, "DequantizeLinear", made.output(0), m.s, m.z)


def _keeps_order(m: Match) -> bool:
    """Whether a dequantisation makes different values of different integers, the greater of the greater."""
    try:
        return all(c.holds(m) for c in (positive_scale, whole_tensor, _bytes, _finite))
    except Unmet:
        return False


@condition("a border of zeros")
def _zeros(m: Match) -> bool:
    return m.n.attr("mode", "constant") == "constant" and (m.value is None or m.value.interval == (0, 0))


@rule(
    apply("Pad", dequantize(q), pads, value).named("n"),
    where=[constant("s", "z", "value"), whole_tensor, _bytes, _zeros],
    exactness=Exactness.EXACT,
    source="the zero point dequantises to 0",
    sample=_pad_sample,
)
def move_dequantize_behind_pad(m: Match) -> Term:
    """``Pad(DQ(q, s, z), p, 0) == DQ(Pad(q, p, z), s, z)``."""
    low, high = m.s.interval
    m.require(abs(low) < np.inf and abs(high) < np.inf, "the scale is not finite")
    zero = literal(zero_of(m, m.q.dtype), m.q.dtype)
    return like(m.dq, "DequantizeLinear", Apply("Pad", (m.q, m.pads, zero), m.n.attributes), m.s, m.z)


def _two_sample(d: Sampler) -> dict[str, Any]:
    found, shape = _drawn(d)
    axis = found["dq"].get("axis")
    extents = (
        d.broadcast_with(shape) if axis is None else (2, *shape)
    )  # one scale for each index: the same axis, counted anew
    attributes = {} if axis is None else {"axis": axis + 1 if axis >= 0 else axis}
    whole = np.broadcast_shapes(shape, extents)
    chosen = d.booleans(whole if d.chance() else d.broadcast_with(whole))
    return found | {"p": d.integers(extents, found["q"].dtype.name), "other": attributes, "c": chosen}


_OTHER = apply("DequantizeLinear", p, *variables("s z?")).named("other")


def _require_one_type(m: Match) -> None:
    m.require(m.p.dtype is m.q.dtype and m.other.dtype is m.dq.dtype, "two types")
    m.require(unblocked(m.other.attributes), "blocks or another precision")


@rule(
    apply("Where", c, dequantize(q), _OTHER),
    where=[whole_tensor, _bytes],
    exactness=Exactness.EXACT,
    source="each element is one of two",
    sample=_two_sample,
)
def move_dequantize_behind_where(m: Match) -> Term:
    """``Where(c, DQ(q, s, z), DQ(p, s, z)) == DQ(Where(c, q, p), s, z)``."""
    _require_one_type(m)
    return like(m.dq, "DequantizeLinear", apply("Where", m.c, m.q, m.p), m.s, m.z)


def _define_greater(op: str) -> Rule:
    def moved(m: Match) -> Term:
        _require_one_type(m)
        return like(m.dq, "DequantizeLinear", Apply(op, (m.q, m.p)), m.s, m.z)

    moved.__name__ = f"move_dequantize_behind_{op.lower()}"
    moved.__doc__ = f"""``{op}(DQ(q, s, z), DQ(p, s, z)) == DQ({op}(q, p), s, z)`` for one positive scale."""
    return _rule(apply(op, dequantize(q), _OTHER), [positive_scale, whole_tensor, _bytes], _two_sample)(moved)


for _op in ("Max", "Min"):
    _define_greater(_op)
