"""Elements of a value along an axis, one by one: what loops look up step by step that exporters unroll.

An `Element` is what a Gather by a constant number takes of a value, or a part of one element without its axis.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from eqsat.conditions import worthwhile
from eqsat.equations import stated
from eqsat.exactness import Exactness
from eqsat.rewrite import GroupView, Match, Merge, Ref, Term, apply, group_rule, shared
from eqsat.rules.terms import by_class, complete_nodes, int64s, split, transpose
from eqsat.rules.views.extents import viewed
from eqsat.rules.views.movement import slice_term
from eqsat.rules.views.parts import concats, parts_of
from eqsat.samples import Drawing, Instance, Sampler

SOURCE = "ONNX Gather, Split and Concat"


@dataclass(frozen=True)
class Element:
    """What is at ``index`` along ``axis`` of ``whole``, without that axis."""

    whole: Ref
    axis: int
    index: int


def _looked_up(view: GroupView) -> Iterator[tuple[Ref, Element]]:
    for node, (x, at) in complete_nodes(view, "Gather"):
        if x.type.shape is None or x.is_constant or not at.is_constant or at.type.shape != ():
            continue
        axis = int(node.attr("axis", 0)) % x.rank
        extent = x.shape[axis]
        if isinstance(extent, int) and -extent <= int(at.value) < extent:
            yield node, Element(x, axis, int(at.value) % extent)


def _elements(view: GroupView) -> Iterator[tuple[Ref, Element]]:
    yield from _looked_up(view)
    single = by_class((ref, part) for ref, part in parts_of(view) if part.end - part.start == 1)
    for node, (x, *_) in complete_nodes(view, "Reshape"):
        for part in single.get(x.handle, ()):
            if node.type.shape == (*part.whole.shape[: part.axis], *part.whole.shape[part.axis + 1 :]):
                yield node, Element(part.whole, part.axis, part.start)


@shared
def _looked_up_by_whole(view: GroupView) -> dict[tuple[int, int], tuple[Element, dict[int, Ref]]]:
    """By class of the whole and axis: one of the elements that are looked up, and all of them by index."""
    found: dict[tuple[int, int], tuple[Element, dict[int, Ref]]] = {}
    for node, element in _looked_up(view):
        found.setdefault((element.whole.handle, element.axis), (element, {}))[1].setdefault(element.index, node)
    return found


def _draw_steps(d: Sampler) -> Instance:
    """Elements of a value along an axis, mostly all of them, mostly joined in order."""
    drawing = Drawing()
    shape = d.shape(2, 3, ones=0.2)
    axis, steps = d.integer(0, len(shape) - 1), d.integer(2, 3)
    shape = (*shape[:axis], steps if d.chance(0.9) else steps + 1, *shape[axis + 1 :])
    x = drawing.value(d.floats(shape), d.subset(shape[:axis] + shape[axis + 1 :], 0.3) if d.chance(0.2) else ())
    negative = 0 if d.chance(0.8) else shape[axis]
    found = [drawing.op("Gather", x, i - negative, axis=axis) for i in range(steps)]
    if d.chance(0.3):
        parts = drawing.op("Split", x, [1] * shape[axis], axis=axis, outputs=shape[axis])
        found = [drawing.op("Squeeze", part, [axis]) for part in parts]
    joined = drawing.op("Concat", *(found if d.chance(0.8) else found[::-1]), axis=d.integer(0, len(shape) - 2))
    return drawing.finish(*found, joined)


COVERED = stated(
    "whole axis found",
    "every element is looked up: len(found) == whole.shape[axis]",
    worthwhile("there are several, not of a list of numbers: len(found) > 1 and whole.rank > 1"),
)


@group_rule(where=COVERED, exactness=Exactness.EXACT, source=SOURCE, sample=_draw_steps)
def split_instead_of_gathering_each(view: GroupView) -> Iterator[Merge]:
    """``(x[0], x[1], ...) == Squeeze(Split(x, (1, 1, ...)))`` along one axis."""
    for element, found in _looked_up_by_whole(view).values():
        whole, axis = element.whole, element.axis
        if view.meets(COVERED, whole=whole, axis=axis, found=found):
            parts = split(whole, [1] * len(found), axis)
            for index, node in sorted(found.items()):
                yield node, apply("Squeeze", parts.output(index), int64s((axis,)))


def _joined(view: GroupView) -> Iterator[Match]:
    """Each concatenation of elements of one value, each of which comes next after the one before it."""
    elements = by_class(_elements(view))
    places = {(handle, e.whole.handle, e.axis, e.index) for handle, found in elements.items() for e in found}
    for node, (along, operands) in concats(view):
        for first in elements.get(operands[0].handle, ()) if len(operands) > 1 else ():
            whole, axis, start = first.whole, first.axis, first.index
            if all((x.handle, whole.handle, axis, start + i) in places for i, x in enumerate(operands)):
                yield Match({"whole": whole, "axis": axis, "along": along, "start": start, "n": len(operands)}, node)


@group_rule(find=_joined, exactness=Exactness.EXACT, source=SOURCE, sample=_draw_steps)
def join_elements(m: Match) -> Term:
    """``Concat(x[a], x[a + 1], ...) == Reshape(Transpose(x[a:b]))``, the axis of the elements before the one that is joined."""
    taken = slice_term(m.whole, {m.axis: range(m.start, m.start + m.n)})
    others = [i for i in range(m.whole.rank) if i != m.axis]
    perm = (*others[: m.along], m.axis, *others[m.along :])
    shape = [m.n if i == m.axis else m.whole.shape[i] for i in perm]
    return viewed(transpose(taken, perm), shape, m.root.shape, m.whole)
