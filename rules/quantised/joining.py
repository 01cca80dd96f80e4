"""Quantisation commutes with Concat and Split, directed as in `eqsat.rules.quantised.movement`; so do its ranges."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from eqsat.exactness import Exactness
from eqsat.rewrite import PROJECTION, Apply, GroupView, Merge, Ref, Term, group_rule
from eqsat.rules.quantised.pairs import BYTES, like, per_tensor, same_value, same_zero_point, unblocked
from eqsat.samples import Drawing, Sampler, fixed
from eqsat.samples.quantised import parameters, ties

SOURCE = "each element is quantised by itself"

Node = tuple[Ref, tuple[Ref | None, ...]]


def _by_class(view: GroupView, op: str) -> dict[int, list[Node]]:
    found: dict[int, list[Node]] = {}
    for node, inputs in view.nodes(op):
        found.setdefault(node.handle, []).append((node, inputs))
    return found


def _parameters(inputs: tuple[Ref | None, ...]) -> tuple[Ref, Ref | None]:
    scale = inputs[1]
    assert scale is not None
    return scale, inputs[2] if len(inputs) > 2 else None


def _plain(node: Ref, inputs: tuple[Ref | None, ...], integers: Ref) -> bool:
    """Whether one scale holds for the whole tensor, and kernels for its integers exist."""
    scale, zero = _parameters(inputs)
    known = scale.type.is_static and (zero is None or zero.type.is_static)
    return known and per_tensor(scale, zero) and integers.dtype in BYTES and unblocked(node.attributes)


def _alike(a: Node, b: Node) -> bool:
    """Whether two DequantizeLinear nodes have the same constant parameters, integer type and attributes."""
    (scale, zero), (scale2, zero2) = _parameters(a[1]), _parameters(b[1])
    if a[1][0] is None or b[1][0] is None or a[1][0].dtype is not b[1][0].dtype or a[0].attributes != b[0].attributes:
        return False
    constants = [v for v in (scale, scale2, zero, zero2) if v is not None]
    return all(v.is_constant for v in constants) and same_value(scale, scale2) and same_zero_point(zero, zero2)


def _joined_sample(d: Sampler) -> Any:
    drawing = Drawing()
    shape = d.extents(3)
    drawn = parameters(d, (), dtype=d.choose(("int8", "uint8")))
    parts = []
    for _ in range(d.integer(2, 4)):
        own = drawn if d.chance(0.85) else parameters(d, ())
        integers = drawing.value(d.integers((shape[0], d.integer(1, 4), shape[2]), own["dtype"]))
        scale, zero = drawing.value(fixed(own["scale"])), drawing.value(fixed(own["zero"]))
        parts.append(drawing.op("DequantizeLinear", integers, scale, zero))
    return drawing.finish(drawing.op("Concat", *parts, axis=d.choose((1, -2))), *d.subset(parts, 0.2))


def _quantised_join_sample(d: Sampler) -> Any:
    drawing = Drawing()
    shape = d.extents(3)
    drawn = parameters(d, (), dtype=d.choose(("int8", "uint8")))
    parts = [drawing.value(ties(d, (shape[0], d.integer(1, 4), shape[2]), drawn)) for _ in range(d.integer(2, 4))]
    joined = drawing.op("Concat", *parts, axis=1)
    scale, zero = drawing.value(fixed(drawn["scale"])), drawing.value(fixed(drawn["zero"]))
    return drawing.finish(drawing.op("QuantizeLinear", joined, scale, zero))


def _cut_sample(d: Sampler, *, quantize: bool) -> Any:
    drawing = Drawing()
    shape = d.extents(3, ones=0)
    drawn = parameters(d, (), dtype=d.choose(("int8", "uint8")))
    scale, zero = drawing.value(fixed(drawn["scale"])), drawing.value(fixed(drawn["zero"]))
    axis = d.integer(0, 2)
    if quantize:
        value = drawing.value(ties(d, shape, drawn))
    else:
        value = drawing.op("DequantizeLinear", drawing.value(d.integers(shape, drawn["dtype"])), scale, zero)
    if d.chance():
        parts = drawing.op("Split", value, drawing.value(fixed([1, shape[axis] - 1], "int64")), outputs=2, axis=axis)
    else:
        parts = drawing.op("Split", value, outputs=2, axis=axis, num_outputs=2)
    if quantize:
        parts = [drawing.op("QuantizeLinear", p, scale, zero) for p in parts]
    return drawing.finish(*parts)


@group_rule(exactness=Exactness.EXACT, source=SOURCE, sample=_joined_sample)
def move_dequantize_behind_concat(view: GroupView) -> Iterator[Merge]:
    """``Concat(DQ(q1, s, z), DQ(q2, s, z), ...) == DQ(Concat(q1, q2, ...), s, z)`` for the same constant parameters."""
    dequantized = _by_class(view, "DequantizeLinear")
    for concat, parts in view.nodes("Concat"):
        choices = [dequantized.get(p.handle, []) if p is not None else [] for p in parts]
        if len(parts) < 2 or not all(choices):
            continue
        for first in choices[0]:
            picked = [next((n for n in nodes if _alike(first, n)), None) for nodes in choices]
            integers = [n[1][0] for n in picked if n is not None]
            whole = [i for i in integers if i is not None]
            if len(whole) == len(parts) and _plain(*first, whole[0]):
                joined = Apply("Concat", tuple(whole), concat.attributes)
                yield concat, like(first[0], "DequantizeLinear", joined, *_parameters(first[1]))
                break


@group_rule(exactness=Exactness.EXACT, source=SOURCE, sample=_quantised_join_sample)
def move_quantize_before_concat(view: GroupView) -> Iterator[Merge]:
    """``Q(Concat(x1, x2, ...), s, z) == Concat(Q(x1, s, z), Q(x2, s, z), ...)``."""
    concats = _by_class(view, "Concat")
    for node, inputs in view.nodes("QuantizeLinear"):
        value = inputs[0]
        if value is None or not _plain(node, inputs, node):
            continue
        for concat, parts in concats.get(value.handle, [])[:1]:
            present = [p for p in parts if p is not None]
            quantized = [like(node, "QuantizeLinear", p, *_parameters(inputs)) for p in present]
            yield node, Apply("Concat", tuple(quantized), concat.attributes)


def _splits(view: GroupView) -> Iterator[tuple[Ref, tuple[Ref | None, ...], dict[int, Ref]]]:
    """Each Split that says how many parts it has, with its inputs and those of its parts that exist."""
    for split, inputs in view.nodes("Split"):
        if _number(split, inputs):
            yield split, inputs, {int(u.attr("index")): u for op, u, _ in view.users(split) if op == PROJECTION}


def _number(split: Ref, inputs: tuple[Ref | None, ...]) -> int:
    """Number of parts, 0 if it is not known."""
    sizes = inputs[1] if len(inputs) > 1 else None
    if sizes is None:
        return int(split.attr("num_outputs", 0))
    return sizes.static_shape[0] if sizes.type.is_static else 0


def _split(split: Ref, inputs: tuple[Ref | None, ...], value: Term) -> Apply:
    """``split`` of another value."""
    args: tuple[Any, ...] = (value, *inputs[1:])
    return Apply("Split", args, split.attributes, "", _number(split, inputs))


@group_rule(exactness=Exactness.EXACT, source=SOURCE, sample=partial(_cut_sample, quantize=False))
def move_dequantize_behind_split(view: GroupView) -> Iterator[Merge]:
    """``Split(DQ(q, s, z))[i] == DQ(Split(q)[i], s, z)``."""
    dequantized = _by_class(view, "DequantizeLinear")
    for split, inputs, outputs in _splits(view):
        value = inputs[0]
        for node, given in dequantized.get(value.handle, [])[:1] if value is not None else []:
            integers = given[0]
            if integers is None or not _plain(node, given, integers):
                continue
            made = _split(split, inputs, integers)
            for index, output in outputs.items():
                yield output, like(node, "DequantizeLinear", made.output(index), *_parameters(given))


@group_rule(exactness=Exactness.EXACT, source=SOURCE, sample=partial(_cut_sample, quantize=True))
def move_quantize_before_split(view: GroupView) -> Iterator[Merge]:
    """``Q(Split(x)[i], s, z) == Split(Q(x, s, z))[i]``."""
    for split, inputs, outputs in _splits(view):
        value = inputs[0]
        for index, output in outputs.items():
            for op, node, given in view.users(output):
                reads = op == "QuantizeLinear" and given[0] is not None and given[0].handle == output.handle
                if reads and value is not None and _plain(node, given, node):
                    quantized = like(node, "QuantizeLinear", value, *_parameters(given))
                    yield node, _split(split, inputs, quantized).output(index)


def _clipped_sample(d: Sampler) -> Any:
    drawing = Drawing()
    shape = d.extents(3, ones=0)
    axis = d.integer(0, 2)
    dtype = d.choose(("int8", "uint8", "float32"))
    sizes = [1, shape[axis] - 1]
    value = drawing.value(d.integers(shape, dtype, 0, 100) if dtype != "float32" else d.floats(shape))
    parts = drawing.op("Split", value, drawing.value(fixed(sizes, "int64")), outputs=2, axis=axis)
    bounds = [drawing.value(fixed(b, dtype)) for b in (1, 50)]
    clipped = []
    for part in parts:
        low, high = bounds if d.chance(0.9) else bounds[:1] * 2
        clipped.append(drawing.op("Clip", part, low, *([high] if d.chance(0.9) else [])))
    return drawing.finish(*clipped, *d.subset(parts, 0.2))


@group_rule(exactness=Exactness.EXACT, source="each element by itself", sample=_clipped_sample)
def move_clip_before_split(view: GroupView) -> Iterator[Merge]:
    """``Clip(Split(x)[i], a, b) == Split(Clip(x, a, b))[i]`` where every part is clipped to the same constant bounds."""
    for split, inputs, outputs in _splits(view):
        value = inputs[0]
        ranges = [_ranges(view, output) for output in outputs.values()]
        if value is None or len(ranges) < 2:
            continue
        for bounds in ranges[0]:
            if all(bounds in found for found in ranges):
                made = _split(split, inputs, Apply("Clip", (value, *ranges[0][bounds][1])))
                for index, found in zip(outputs, ranges, strict=True):
                    yield found[bounds][0], made.output(index)


def _ranges(view: GroupView, value: Ref) -> dict[tuple[int, ...], tuple[Ref, tuple[Any, ...]]]:
    """Bounds by handle (0: none) -> the value clipped to them, and the constants."""
    found: dict[tuple[int, ...], tuple[Ref, tuple[Any, ...]]] = {}
    for op, node, inputs in view.users(value):
        bounds = inputs[1:]
        if op != "Clip" or inputs[0] is None or inputs[0].handle != value.handle or node.handle == value.handle:
            continue
        if all(b is None or b.is_constant for b in bounds):
            found.setdefault(tuple(0 if b is None else b.handle for b in bounds), (node, tuple(bounds)))
    return found
