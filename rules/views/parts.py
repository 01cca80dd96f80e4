"""Parts and wholes: slices, splits and concatenations of any number of parts cancel and compose.

A `Part` is what a Slice in steps of 1 or one output of a Split takes of a value along one axis.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eqsat.equations import group_rule
from eqsat.ir.infer import VALUE_SIZE_LIMIT
from eqsat.rewrite import Finder, GroupRule, GroupView, Match, Ref, RightSide, Term, Unmet, apply, shared
from eqsat.rules.terms import by_class, complete_nodes, outputs_of, sizes_of_parts, split
from eqsat.rules.views.movement import slice_term, slices_forward
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


def _offsets(parts: Sequence[Ref], axis: int) -> list[int]:
    """Where each part begins, and where the last one ends; nothing where an extent is unknown."""
    extents = [p.shape[axis] for p in parts]
    known = [d for d in extents if isinstance(d, int)]
    return [0, *itertools.accumulate(known)] if len(known) == len(extents) else []


@shared
def split_parts_of(view: GroupView) -> Sequence[tuple[Ref, Part]]:
    """Every output of a Split with known sizes, and which part of its input it is."""
    found: list[tuple[Ref, Part]] = []
    for node, (whole, *sizes) in view.nodes("Split"):
        if whole is None or whole.type.shape is None:
            continue
        try:
            offsets = [0, *itertools.accumulate(sizes_of_parts(node, whole, *sizes))]
        except Unmet:
            continue
        axis = node.attr("axis", 0) % whole.rank
        found += [(out, Part(whole, axis, *offsets[i : i + 2])) for i, out in outputs_of(view, node).items()]
    return found


@shared
def slices_of(view: GroupView) -> Sequence[tuple[Ref, Part]]:
    """Every Slice that cuts one axis in steps of 1, and which part of its input it is."""
    found: list[tuple[Ref, Part]] = []
    for node, whole, ranges in slices_forward(view):
        cut = [(axis, taken) for axis, taken in ranges.items() if len(taken) != whole.shape[axis]]
        if len(cut) == 1 and len(cut[0][1]) > 0 and (len(cut[0][1]) == 1 or cut[0][1].step == 1):
            axis, taken = cut[0]
            found.append((node, Part(whole, axis, taken.start, taken[-1] + 1)))
    return found


def parts_of(view: GroupView) -> Iterator[tuple[Ref, Part]]:
    """Every part of a value."""
    yield from split_parts_of(view)
    yield from slices_of(view)


@shared
def parts_by_class(view: GroupView) -> dict[int, list[Part]]:
    """Class -> which parts of other values it is."""
    return by_class(parts_of(view))


Joint = tuple[int, tuple[Ref, ...]]
"""The axis along which values are joined, counted from the front, and these."""


@shared
def concats(view: GroupView) -> Sequence[tuple[Ref, Joint]]:
    """Every Concat of values of known rank."""
    found = complete_nodes(view, "Concat")
    return [
        (node, (node.attr("axis") % parts[0].rank, parts)) for node, parts in found if parts[0].type.shape is not None
    ]


def _rule(find: Finder, *forms: str) -> Callable[[RightSide], GroupRule]:
    return group_rule(find=find, source="ONNX Slice, Split and Concat", forms=forms)


# --- parts of wholes, wholes of parts ------------------------------------------------------------------------------------


def _parts_in_operands(view: GroupView) -> Iterator[Match]:
    """Each part of a concatenation that lies in one of its operands, as a part of that."""
    joints = by_class(concats(view))
    for ref, part in parts_of(view):
        for axis, operands in joints.get(part.whole.handle, ()) if part.start < part.end else ():
            offsets = _offsets(operands, axis) if axis == part.axis else []
            for operand, begin, end in zip(operands, offsets, offsets[1:], strict=False):
                if begin <= part.start and part.end <= end:
                    yield Match({"part": Part(operand, axis, part.start - begin, part.end - begin)}, ref)
                    break


@_rule(
    _parts_in_operands,
    "Split(Concat(x, y, axis=a), k, outputs=2, axis=a)[0]",
    "Split(Concat(x, y, axis=a), k, outputs=3, axis=a)[2]",
    "Split(Concat(x, y, axis=a), k, outputs=2, axis=b)[1]",
    "Slice(Concat(x, y, axis=0), s, t)",
)
def take_part_from_operand_of_concat(m: Match) -> Term:
    """``Slice(Concat(..., x, ...)) == Slice(x)`` for a part, of a Slice or a Split, that lies in one operand."""
    return m.part.term()


def _joined_parts(view: GroupView) -> Iterator[Match]:
    """Each concatenation of parts of one value, each of which begins where the one before it ends."""
    parts = by_class(parts_of(view))
    ends: dict[tuple[int, ...], int] = {}
    for output, part in parts_of(view):
        ends.setdefault((output.handle, part.whole.handle, part.axis, part.start), part.end)
    for node, (axis, (first, *others)) in concats(view):
        for part in parts.get(first.handle, ()) if others else ():
            end: int | None = part.end
            for other in others:
                end = ends.get((other.handle, part.whole.handle, axis, end)) if end is not None else None
            if end is not None and part.start < end and part.axis == axis:
                yield Match({"part": Part(part.whole, axis, part.start, end)}, node)


@_rule(
    _joined_parts,
    "Concat(Split(x, k, outputs=2, axis=a)[0], Split(x, k, outputs=2, axis=a)[1], axis=b)",
    "Concat(Split(x, k, outputs=4)[1], Split(x, k, outputs=4)[2])",
    "Concat(Slice(x, s, t, *e), Slice(x, t, u, *e), axis=b)",
)
def join_adjacent_parts(m: Match) -> Term:
    """``Concat(x[a:b], x[b:c], ...) == x[a:...]`` for adjacent parts of one value, in order."""
    return m.part.term()


def _tiles(view: GroupView) -> Iterator[Match]:
    """Each slice among those that cover a value, one beginning where another ends: by the longest, and by the shortest. Those of
    constants are constants."""
    slices: dict[tuple[int, int], list[tuple[Ref, Part]]] = {}
    for ref, part in slices_of(view):
        if not part.whole.is_constant:
            slices.setdefault((part.whole.handle, part.axis), []).append((ref, part))
    for found in slices.values():
        for longest in (True, False):
            tiles = _tiling(found, longest)
            sizes = [part.end - part.start for _, part in tiles]
            for index, (ref, part) in enumerate(tiles if len(tiles) > 1 else ()):
                yield Match({"part": part, "sizes": sizes, "index": index}, ref)


def _tiling(slices: Sequence[tuple[Ref, Part]], longest: bool) -> list[tuple[Ref, Part]]:
    """Slices of one value along one axis that cover it: of those that begin together the ``longest``, or shortest, behind which
    others follow to the end; none if they do not cover it."""
    whole, axis = slices[0][1].whole, slices[0][1].axis
    found: dict[Any, list[tuple[Ref, Part]]] = {whole.shape[axis]: []}  # from a place to the end
    for ref, part in sorted(slices, key=lambda each: (-each[1].start, -each[1].end if longest else each[1].end)):
        if part.start not in found and part.end in found:
            found[part.start] = [(ref, part), *found[part.end]]
    return found.get(0, [])


@_rule(_tiles, "Concat(Slice(x, s, t, *e), Slice(x, t, u, *e), axis=b)")
def split_instead_of_slices(m: Match) -> Term:
    """``x[:a], x[a:b], x[b:] == Split(x, [a, b - a, n - b])`` along one axis."""
    return split(m.part.whole, m.sizes, m.part.axis).output(m.index)


def _split_constants(view: GroupView) -> Iterator[Match]:
    for ref, part in split_parts_of(view):
        if part.whole.is_constant and not ref.is_constant and part.start < part.end:
            yield Match({"part": part}, ref)


def _large_constant(d: Sampler) -> Instance:
    drawing = Drawing()
    rows = VALUE_SIZE_LIMIT // 32
    table = d.floats((rows + d.integer(1, 9), 32))
    rows = len(table) if d.chance(0.15) else rows  # the other part is empty
    sizes = [rows, len(table) - rows]
    whole = drawing.value(fixed(table) if d.chance(0.9) else table)
    return drawing.finish(*drawing.op("Split", whole, sizes, outputs=2))


@group_rule(find=_split_constants, source="ONNX Split", sample=_large_constant)
def slice_constants_instead_of_split(m: Match) -> Term:
    """``Split(c)[i] == Slice(c)`` for a large constant ``c``: what has one output is known, or computed ahead."""
    return m.part.term()


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


@_rule(
    _slices_of_split,
    "Slice(Split(x, k, outputs=2, axis=a)[1], s, t, *e, *f)",
    "Slice(Split(x, outputs=2, num_outputs=2)[1], s, t, *e, *f)",
)
def compose_slice_of_split(m: Match) -> Term:
    """``Slice(Split(x)[i]) == Slice(x)``."""
    return slice_term(m.whole, m.ranges)


_MOST_PARTS = 1024
"""No Concat of more parts is made: of one that joins a value with itself there are twice as many at every level."""


def _flattened(handle: int, axis: int, parts: Sequence[Ref], joints: Mapping[int, Sequence[Joint]]) -> Iterator[Ref]:
    """The parts of a concatenation and of those among its parts. What is empty is a part of itself, and stays one part."""
    above, open_ = {handle: None}, [iter(parts)]
    while open_:
        part = next(open_[-1], None)
        if part is None:
            above.popitem()
            open_.pop()
            continue
        nested = joints.get(part.handle, ()) if part.handle not in above else ()
        inner = next((p for k, p in nested if k == axis and part.handle not in {q.handle for q in p}), None)
        if inner is None:
            yield part
        else:
            above[part.handle] = None
            open_.append(iter(inner))


def _nested_concats(view: GroupView) -> Iterator[Match]:
    joints = by_class(concats(view))
    for node, (axis, parts) in concats(view):
        flat = list(itertools.islice(_flattened(node.handle, axis, parts, joints), _MOST_PARTS + 1))
        if len(parts) < len(flat) <= _MOST_PARTS:
            yield Match({"flat": flat, "axis": axis}, node)


@_rule(
    _nested_concats,
    "Concat(Concat(x, y, axis=a), z, axis=b)",
    "Concat(z, Concat(x, Concat(y, u, axis=a), axis=b), axis=c)",
)
def flatten_concat(m: Match) -> Term:
    """``Concat(Concat(x, y), z) == Concat(x, y, z)`` along one axis."""
    return apply("Concat", *m.flat, axis=m.axis)
