"""Parts and wholes: slices, splits and concatenations of any number of parts cancel and compose.

A `Part` is what a Slice in steps of 1 or one output of a Split takes of a value along one axis.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eqsat.exactness import Exactness
from eqsat.rewrite import (
    PROJECTION,
    Finder,
    GroupRule,
    GroupView,
    Match,
    Ref,
    RightSide,
    Term,
    Unmet,
    apply,
    group_rule,
    shared,
)
from eqsat.rules.terms import by_class, sizes_of_parts, split
from eqsat.rules.views.movement import runs_forward, slice_term, taken
from eqsat.samples import Drawing, Instance, Sampler, fixed


@dataclass(frozen=True)
class Part:
    """Elements ``start`` to ``end`` along ``axis`` of ``whole``, and everything along the other axes."""

    whole: Ref
    axis: int
    start: int
    end: int

    def term(self) -> Term:
        return slice_term(self.whole, {self.axis: range(self.start, self.end)})


Concats = Mapping[int, Sequence[tuple[int, tuple[Ref, ...]]]]
"""Class of each Concat -> its axes and parts."""


def _offsets(parts: Sequence[Ref], axis: int) -> list[int]:
    """Where each part begins, and where the last one ends; nothing where an extent is unknown."""
    extents = [p.shape[axis] for p in parts]
    known = [d for d in extents if isinstance(d, int)]
    return [0, *itertools.accumulate(known)] if len(known) == len(extents) else []


def _split_parts_of(view: GroupView) -> Iterator[tuple[Ref, Part]]:
    splits = {node.handle: (node, inputs) for node, inputs in view.nodes("Split")}
    for output, (of,) in view.nodes(PROJECTION):
        if of is None or of.handle not in splits:
            continue
        node, (whole, *sizes) = splits[of.handle]
        if whole is None or whole.type.shape is None:
            continue
        axis: int = node.attr("axis", 0) % whole.rank
        index: int = output.attr("index")
        try:
            offsets = [0, *itertools.accumulate(sizes_of_parts(node, whole, *sizes))]
        except Unmet:
            continue
        yield output, Part(whole, axis, offsets[index], offsets[index + 1])


@shared
def split_parts_of(view: GroupView) -> Sequence[tuple[Ref, Part]]:
    """Every output of a Split with known sizes, and which part of its input it is."""
    return list(_split_parts_of(view))


@shared
def slices_of(view: GroupView) -> Sequence[tuple[Ref, Part]]:
    """Every Slice that cuts one axis in steps of 1, and which part of its input it is."""
    return list(_slices_of(view))


def _slices_of(view: GroupView) -> Iterator[tuple[Ref, Part]]:
    for node, inputs in view.nodes("Slice"):
        given: Any = (*inputs, None, None)[:5]
        whole, starts, _, axes, steps = given
        if any(i is not None and not i.is_constant for i in given[1:]) or whole.type.shape is None:
            continue
        if runs_forward(whole, starts, axes, steps):
            cut = [(i, r) for i, r in taken(*given).items() if len(r) != whole.shape[i]]
            if len(cut) == 1 and len(cut[0][1]) > 0 and (len(cut[0][1]) == 1 or cut[0][1].step == 1):
                axis, found = cut[0]
                yield node, Part(whole, axis, found.start, found[-1] + 1)


def parts_of(view: GroupView) -> Iterator[tuple[Ref, Part]]:
    """Every part of a value."""
    yield from split_parts_of(view)
    yield from slices_of(view)


def _concats(view: GroupView) -> Concats:
    found: dict[int, list[tuple[int, tuple[Ref, ...]]]] = {}
    for node, inputs in view.nodes("Concat"):
        parts = tuple(p for p in inputs if p is not None)
        if parts and parts[0].type.shape is not None:
            found.setdefault(node.handle, []).append((node.attr("axis") % parts[0].rank, parts))
    return found


# --- random instances ----------------------------------------------------------------------------------------------------


def _cut(d: Sampler, drawing: Drawing, value: str, axis: int, places: Sequence[int]) -> list[str]:
    """A value cut at some places along an axis, by a Split or by slices, of which at times one is missing or too many."""
    shape = _shape(drawing, value)
    places = sorted({0, *places, shape[axis]})
    at = axis if d.chance() else axis - len(shape)
    sizes = [end - start for start, end in itertools.pairwise(places)]
    if len(sizes) > 1 and d.chance():
        equal = len(set(sizes)) == 1 and d.chance()
        given = () if equal else (drawing.value(fixed(sizes, "int64")),)
        count = {"num_outputs": len(sizes)} if equal else {}
        return list(drawing.op("Split", value, *given, outputs=len(sizes), axis=at, **count))
    bounds = list(itertools.pairwise(places))
    if len(bounds) > 1 and d.chance(0.2):
        bounds.pop(d.integer(0, len(bounds) - 1))
    if d.chance(0.2):
        bounds.append((0, max(shape[axis] - 1, 1)))
    ends = [2**63 - 1 if end == shape[axis] and d.chance() else end for _, end in bounds]
    given = [[drawing.value(fixed([i], "int64")) for i in (b[0], end, at)] for b, end in zip(bounds, ends, strict=True)]
    return [drawing.op("Slice", value, *inputs) for inputs in given]


def _shape(drawing: Drawing, value: str) -> Any:
    type: Any = drawing.builder.type_of(value)
    return type.shape


def _parts_and_wholes(d: Sampler) -> Instance:
    """Parts of a value, wholes of them, parts of those and of parts, wholes of wholes."""
    drawing = Drawing()
    shape = d.shape(1, 3, ones=0)
    axis = d.integer(0, len(shape) - 1)
    dtype = d.choose(("float32", "int8"))
    x = drawing.value(d.array(shape, dtype))
    pieces = _cut(d, drawing, x, axis, d.rng.integers(1, shape[axis], 2).tolist())
    joined = list(pieces)
    if d.chance(0.3):
        joined.insert(d.integer(0, len(joined)), drawing.value(d.array(shape, dtype)))
    if d.chance(0.2):
        joined.reverse()
    other = len(shape) - 1 - axis  # another axis, if the pieces fit along it
    along = other if len({_shape(drawing, p)[axis] for p in joined}) == 1 and d.chance(0.3) else axis
    whole = drawing.op("Concat", *joined, axis=along if d.chance() else along - len(shape))
    extents = [_shape(drawing, p)[along] for p in joined]
    places = list(itertools.accumulate(extents)) if d.chance(0.7) else d.rng.integers(0, sum(extents), 2).tolist()
    again = _cut(d, drawing, whole, along, places)
    piece = d.choose(pieces)
    across = d.integer(0, len(shape) - 1)
    again += _cut(d, drawing, piece, across, [d.integer(0, _shape(drawing, piece)[across])])
    more = [whole, drawing.value(d.array(_shape(drawing, whole), dtype)), pieces[-1] if along == axis else whole]
    d.rng.shuffle(more)
    return drawing.finish(drawing.op("Concat", *more, axis=along), *again)


def _rule(find: Finder) -> Callable[[RightSide], GroupRule]:
    return group_rule(
        find=find, exactness=Exactness.EXACT, source="ONNX Slice, Split and Concat", sample=_parts_and_wholes
    )


def _part(m: Match) -> Term:
    return m.part.term()


# --- parts of wholes, wholes of parts ------------------------------------------------------------------------------------


def _parts_in_operands(view: GroupView) -> Iterator[Match]:
    """Each part of a concatenation that lies in one of its operands, as a part of that."""
    concats = _concats(view)
    for ref, part in parts_of(view):
        for axis, operands in concats.get(part.whole.handle, ()) if part.start < part.end else ():
            offsets = _offsets(operands, axis) if axis == part.axis else []
            for operand, begin, end in zip(operands, offsets, offsets[1:], strict=False):
                if begin <= part.start and part.end <= end:
                    yield Match({"part": Part(operand, axis, part.start - begin, part.end - begin)}, ref)
                    break


@_rule(_parts_in_operands)
def take_part_from_operand_of_concat(m: Match) -> Term:
    """``Slice(Concat(..., x, ...)) == Slice(x)`` for a part, of a Slice or a Split, that lies in one operand."""
    return _part(m)


def _joined_parts(view: GroupView) -> Iterator[Match]:
    """Each concatenation of parts of one value, each of which begins where the one before it ends."""
    parts = by_class(parts_of(view))
    for node, inputs in view.nodes("Concat"):
        first, *others = (parts.get(i.handle, []) if i is not None else [] for i in inputs)
        for part in first if others else ():
            end: int | None = part.end
            for found in others:
                like = (p for p in found if (p.whole.handle, p.axis, p.start) == (part.whole.handle, part.axis, end))
                end = next((p.end for p in like), None)
            if end is not None and part.start < end and part.axis == node.attr("axis") % part.whole.rank:
                yield Match({"part": Part(part.whole, part.axis, part.start, end)}, node)


@_rule(_joined_parts)
def join_adjacent_parts(m: Match) -> Term:
    """``Concat(x[a:b], x[b:c], ...) == x[a:...]`` for adjacent parts of one value, in order."""
    return _part(m)


def _tiles(view: GroupView) -> Iterator[Match]:
    """Each slice among those that cover a value, one beginning where another ends, the shortest of those that begin together."""
    slices: dict[tuple[int, int], dict[int, tuple[Ref, Part]]] = {}
    for ref, part in slices_of(view):
        beginning = slices.setdefault((part.whole.handle, part.axis), {})
        if part.start not in beginning or part.end < beginning[part.start][1].end:
            beginning[part.start] = (ref, part)
    for beginning in slices.values():
        tiles: list[tuple[Ref, Part]] = []
        while (at := tiles[-1][1].end if tiles else 0) in beginning:
            tiles.append(beginning[at])
        if len(tiles) > 1 and tiles[0][1].whole.shape[tiles[0][1].axis] == at:
            for index, (ref, part) in enumerate(tiles):
                yield Match({"part": part, "sizes": [p.end - p.start for _, p in tiles], "index": index}, ref)


@_rule(_tiles)
def split_instead_of_slices(m: Match) -> Term:
    """``x[:a], x[a:b], x[b:] == Split(x, [a, b - a, n - b])`` along one axis."""
    return split(m.part.whole, m.sizes, m.part.axis).output(m.index)


# --- parts of parts, wholes of wholes ------------------------------------------------------------------------------------


def _slices_of_split(view: GroupView) -> Iterator[Match]:
    """Each slice of an output of a Split, by the ranges of what is split."""
    outputs = {ref.handle: part for ref, part in split_parts_of(view)}
    for ref, part in slices_of(view):
        outer = outputs.get(part.whole.handle)
        if outer is not None and outer.start < outer.end:
            ranges = {outer.axis: range(outer.start, outer.end)}
            inner = ranges.get(part.axis, range(part.end))
            ranges[part.axis] = inner[part.start : part.end]
            yield Match({"whole": outer.whole, "ranges": ranges}, ref)


@_rule(_slices_of_split)
def compose_slice_of_split(m: Match) -> Term:
    """``Slice(Split(x)[i]) == Slice(x)``."""
    return slice_term(m.whole, m.ranges)


def _flattened(handle: int, axis: int, parts: Sequence[Ref], concats: Concats, above: frozenset[int]) -> Iterator[Ref]:
    """The parts of a concatenation and of those among its parts."""
    above = above | {handle}
    for part in parts:
        inner = None if part.handle in above else next((p for k, p in concats.get(part.handle, ()) if k == axis), None)
        if inner is None:
            yield part
        else:
            yield from _flattened(part.handle, axis, inner, concats, above)


def _nested_concats(view: GroupView) -> Iterator[Match]:
    concats = _concats(view)
    for node, inputs in view.nodes("Concat"):
        parts = [p for p in inputs if p is not None]
        if parts and parts[0].type.shape is not None:
            axis = node.attr("axis") % parts[0].rank
            flat = list(_flattened(node.handle, axis, parts, concats, frozenset()))
            if len(flat) > len(inputs):
                yield Match({"flat": flat, "axis": axis}, node)


@_rule(_nested_concats)
def flatten_concat(m: Match) -> Term:
    """``Concat(Concat(x, y), z) == Concat(x, y, z)`` along one axis."""
    return apply("Concat", *m.flat, axis=m.axis)
