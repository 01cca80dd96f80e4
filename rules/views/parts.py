"""Parts and wholes: slices, splits and concatenations of any number of parts cancel and compose."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import TensorType
from eqsat.rewrite import PROJECTION, GroupView, Merge, Ref, Term, Unmet, apply, group_rule
from eqsat.rules.views.movement import slice_ranges, slice_term
from eqsat.samples import Drawing, Instance, Sampler, fixed

EXACT = Exactness.EXACT
SPEC = "ONNX operator specification"


@dataclass(frozen=True)
class Part:
    """Elements ``start`` to ``end`` along ``axis`` of ``whole``, and everything along the other axes."""

    whole: Ref
    axis: int
    start: int
    end: int

    def term(self) -> Term:
        return slice_term(self.whole, {self.axis: range(self.start, self.end)})


def _axis(node: Ref, of: Ref, default: int = 0) -> int:
    return int(node.attr("axis", default)) % of.rank


def _extent(ref: Ref, axis: int) -> int:
    found = ref.shape[axis]
    if not isinstance(found, int):
        raise Unmet("an extent is unknown")
    return found


def _offsets(parts: tuple[Ref | None, ...], axis: int) -> list[int]:
    """Where each part begins, and where the last one ends."""
    return [0, *itertools.accumulate(_extent(p, axis) for p in parts if p is not None)]


def split_parts_of(view: GroupView) -> Iterator[tuple[Ref, Part]]:
    """Every output of a Split with known sizes, and which part of its input it is."""
    splits = {node.handle: (node, inputs) for node, inputs in view.nodes("Split")}
    outputs: dict[int, dict[int, Ref]] = {}
    for projection, (of,) in view.nodes(PROJECTION):
        if of is not None and of.handle in splits:
            outputs.setdefault(of.handle, {})[projection.attr("index")] = projection
    for handle, by_index in outputs.items():
        node, inputs = splits[handle]
        try:
            yield from _parts_of_split(node, inputs, by_index)
        except Unmet:
            continue


def _parts_of_split(node: Ref, inputs: tuple[Ref | None, ...], outputs: dict[int, Ref]) -> Iterator[tuple[Ref, Part]]:
    whole = inputs[0]
    assert whole is not None
    axis = _axis(node, whole)
    if len(inputs) > 1 and inputs[1] is not None:
        offsets = [0, *itertools.accumulate(int(n) for n in inputs[1].value)]
    else:
        extent, count = _extent(whole, axis), int(node.attr("num_outputs"))
        each = -(-extent // count)
        offsets = [min(i * each, extent) for i in range(count + 1)]
    for index, output in outputs.items():
        yield output, Part(whole, axis, offsets[index], offsets[index + 1])


def slices_of(view: GroupView) -> Iterator[tuple[Ref, Part]]:
    """Every Slice that cuts one axis in steps of 1, and which part of its input it is."""
    for node, (whole, starts, ends, *rest) in view.nodes("Slice"):
        assert whole is not None
        assert starts is not None
        assert ends is not None
        try:
            axes, steps = (*rest, None, None)[:2]
            ranges = slice_ranges(whole, starts, ends, axes, steps)
            cut = {i: r for i, r in ranges.items() if len(r) != _extent(whole, i)}
        except Unmet:
            continue
        if len(cut) == 1:
            axis, found = next(iter(cut.items()))
            if found and (len(found) == 1 or found.step == 1):
                yield node, Part(whole, axis, found.start, found[-1] + 1)


def _concats(view: GroupView) -> dict[int, list[tuple[int, tuple[Ref, ...]]]]:
    """Class of each Concat -> its axes and parts."""
    found: dict[int, list[tuple[int, tuple[Ref, ...]]]] = {}
    for node, inputs in view.nodes("Concat"):
        parts = tuple(p for p in inputs if p is not None)
        try:
            found.setdefault(node.handle, []).append((_axis(node, parts[0]), parts))
        except Unmet:
            continue
    return found


# --- parts of a concatenation --------------------------------------------------------------------------------------------


def _draw_concat(d: Sampler) -> tuple[Drawing, list[str], str, int, list[int]]:
    drawing = Drawing()
    shape = d.shape(1, 3)
    axis = d.integer(0, len(shape) - 1)
    sizes = [d.integer(1, 5) for _ in range(d.integer(2, 4))]
    dtype = d.choose(("float32", "int8"))
    parts = [drawing.value(d.array((*shape[:axis], n, *shape[axis + 1 :]), dtype)) for n in sizes]
    whole = drawing.op("Concat", *parts, axis=axis if d.chance() else axis - len(shape))
    return drawing, parts, whole, axis, sizes


def _part_of_concat(d: Sampler) -> Instance:
    drawing, _, whole, axis, sizes = _draw_concat(d)
    total = sum(sizes)
    if d.chance():
        cuts = sizes if d.chance(0.7) else [total - 1, 1]
        values = drawing.op("Split", whole, drawing.value(fixed(cuts, "int64")), outputs=len(cuts), axis=axis)
        return drawing.finish(*values)
    piece = d.integer(0, len(sizes) - 1)
    start = sum(sizes[:piece])
    end = start + sizes[piece]
    if d.chance(0.4):
        start, end = sorted(d.rng.choice(total + 1, 2, replace=False).tolist())
    bounds = (drawing.value(fixed([i], "int64")) for i in (start, end, axis))
    return drawing.finish(drawing.op("Slice", whole, *bounds))


@group_rule(exactness=EXACT, source=SPEC, sample=_part_of_concat)
def take_part_from_operand_of_concat(view: GroupView) -> Iterator[Merge]:
    """``Slice(Concat(..., x, ...)) == Slice(x)`` for a part, of a Slice or a Split, that lies in one operand."""
    concats = _concats(view)
    for ref, part in itertools.chain(split_parts_of(view), slices_of(view)):
        for axis, operands in concats.get(part.whole.handle, ()):
            if axis != part.axis:
                continue
            try:
                offsets = _offsets(operands, axis)
                for operand, begin, end in zip(operands, offsets, offsets[1:], strict=False):
                    if begin <= part.start and part.end <= end and part.start < part.end:
                        yield ref, Part(operand, axis, part.start - begin, part.end - begin).term()
                        break
            except Unmet:
                continue


# --- concatenations of parts ---------------------------------------------------------------------------------------------


def _concat_of_parts(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.shape(1, 3, ones=0)
    axis = d.integer(0, len(shape) - 1)
    x = drawing.value(d.array(shape))
    cuts = sorted(set(d.rng.integers(1, shape[axis], 2).tolist()))
    offsets = [0, *cuts, shape[axis]]
    if d.chance():
        sizes = np.diff(offsets)
        values = list(drawing.op("Split", x, drawing.value(fixed(sizes, "int64")), outputs=len(sizes), axis=axis))
    else:
        values = []
        for bounds in itertools.pairwise(offsets):
            inputs = (drawing.value(fixed([i], "int64")) for i in (*bounds, axis))
            values.append(drawing.op("Slice", x, *inputs))
    if d.chance(0.2):
        values.reverse()
    if d.chance(0.2):
        values.pop()
    joined = axis if d.chance(0.9) or len(set(np.diff(offsets).tolist())) > 1 else len(shape) - 1 - axis
    return drawing.finish(drawing.op("Concat", *values, axis=joined))


@group_rule(exactness=EXACT, source=SPEC, sample=_concat_of_parts)
def join_adjacent_parts(view: GroupView) -> Iterator[Merge]:
    """``Concat(x[a:b], x[b:c], ...) == x[a:...]`` for adjacent parts of one value, in order."""
    parts: dict[int, list[Part]] = {}
    for ref, part in itertools.chain(split_parts_of(view), slices_of(view)):
        parts.setdefault(ref.handle, []).append(part)
    for node, inputs in view.nodes("Concat"):
        first = inputs[0]
        if first is None or len(inputs) < 2:
            continue
        for start in parts.get(first.handle, ()):
            joined = _join(start, inputs[1:], parts)
            if joined is not None and joined.axis == _axis(node, first):
                try:
                    yield node, joined.term()
                except Unmet:
                    continue


def _join(start: Part, others: tuple[Ref | None, ...], parts: dict[int, list[Part]]) -> Part | None:
    end = start.end
    for other in others:
        candidates = () if other is None else parts.get(other.handle, ())
        found = next(
            (p for p in candidates if p.whole.handle == start.whole.handle and p.axis == start.axis and p.start == end),
            None,
        )
        if found is None:
            return None
        end = found.end
    return Part(start.whole, start.axis, start.start, end)


# --- parts of parts, wholes of wholes ------------------------------------------------------------------------------------


def _slice_of_split(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.shape(1, 3, ones=0)
    axis = d.integer(0, len(shape) - 1)
    x = drawing.value(d.array(shape))
    attributes: dict[str, Any] = {"axis": axis}
    halves = drawing.op("Split", x, outputs=2, num_outputs=2, **attributes)
    which = d.integer(0, 1)
    sliced = d.integer(0, len(shape) - 1)
    bounds = [drawing.value(fixed([i], "int64")) for i in (d.integer(0, 1), 2**31 - 1, sliced)]
    out = drawing.op("Slice", halves[which], *bounds)
    return drawing.finish(out, *d.subset(halves))


@group_rule(exactness=EXACT, source="composition of index maps", sample=_slice_of_split)
def compose_slice_of_split(view: GroupView) -> Iterator[Merge]:
    """``Slice(Split(x)[i]) == Slice(x)``."""
    outputs = {ref.handle: part for ref, part in split_parts_of(view)}
    for ref, part in slices_of(view):
        outer = outputs.get(part.whole.handle)
        if outer is None:
            continue
        ranges = {outer.axis: range(outer.start, outer.end)}
        inner = ranges.get(part.axis, range(_extent(outer.whole, part.axis)))
        ranges[part.axis] = inner[part.start : part.end]
        try:
            yield ref, slice_term(outer.whole, ranges)
        except Unmet:
            continue


def _nested_concat(d: Sampler) -> Instance:
    drawing, parts, inner, axis, _ = _draw_concat(d)
    like = drawing.builder.type_of(parts[0])
    assert isinstance(like, TensorType)
    other = drawing.value(d.array([n for n in like.shape or () if isinstance(n, int)], like.dtype))
    operands = [inner, other] if d.chance() else [other, inner, parts[-1]]
    outer = drawing.op("Concat", *operands, axis=axis)
    return drawing.finish(outer, *([inner] if d.chance(0.3) else []))


@group_rule(exactness=EXACT, source=SPEC, sample=_nested_concat)
def flatten_concat(view: GroupView) -> Iterator[Merge]:
    """``Concat(Concat(x, y), z) == Concat(x, y, z)`` along one axis."""
    concats = _concats(view)
    for node, inputs in view.nodes("Concat"):
        axis = _axis(node, inputs[0]) if inputs[0] is not None else 0
        flat = list(_flattened(node.handle, axis, tuple(p for p in inputs if p is not None), concats, frozenset()))
        if len(flat) > len(inputs):
            yield node, apply("Concat", *flat, axis=axis)


def _flattened(
    handle: int,
    axis: int,
    parts: tuple[Ref, ...],
    concats: dict[int, list[tuple[int, tuple[Ref, ...]]]],
    above: frozenset[int],
) -> Iterator[Ref]:
    above = above | {handle}
    for part in parts:
        inner = None if part.handle in above else next((p for k, p in concats.get(part.handle, ()) if k == axis), None)
        if inner is None:
            yield part
        else:
            yield from _flattened(part.handle, axis, inner, concats, above)
