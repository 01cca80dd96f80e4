"""Elements of a value along an axis, one by one: what loops look up step by step that exporters unroll.

An `Element` is what a Gather by a constant number takes of a value, or a part of one element without its axis.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations, form, stated
from eqsat.ir.extents import multiply
from eqsat.ir.operator import operators_with
from eqsat.rewrite import GroupView, Match, Merge, Ref, Term, apply, literal, shared
from eqsat.rules.terms import by_class, complete_nodes, int64s, split, transpose, transposes
from eqsat.rules.views.extents import viewed
from eqsat.rules.views.indices import is_view
from eqsat.rules.views.movement import slice_term
from eqsat.rules.views.parts import concats, parts_of
from eqsat.samples import Drawing, Instance, Sampler

group_rule = Equations(__name__, source="ONNX Gather, Split and Concat").over_groups


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


@shared
def elements(view: GroupView) -> Sequence[tuple[Ref, Element]]:
    """Every value that is an element of another one."""
    found = list(_looked_up(view))
    single = by_class((ref, part) for ref, part in parts_of(view) if part.end - part.start == 1)
    for node, (x, *_) in complete_nodes(view, "Reshape") if single else ():
        for part in single.get(x.handle, ()):
            if node.type.shape == (*part.whole.shape[: part.axis], *part.whole.shape[part.axis + 1 :]):
                found.append((node, Element(part.whole, part.axis, part.start)))
    return found


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


@group_rule(where=COVERED, sample=_draw_steps)
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
    by_value = by_class(elements(view))
    places = {(handle, e.whole.handle, e.axis, e.index) for handle, found in by_value.items() for e in found}
    for node, (along, operands) in concats(view):
        for first in by_value.get(operands[0].handle, ()) if len(operands) > 1 else ():
            whole, axis, start = first.whole, first.axis, first.index
            if all((x.handle, whole.handle, axis, start + i) in places for i, x in enumerate(operands)):
                yield Match({"whole": whole, "axis": axis, "along": along, "start": start, "n": len(operands)}, node)


@group_rule(find=_joined, sample=_draw_steps)
def join_elements(m: Match) -> Term:
    """``Concat(x[a], x[a + 1], ...) == Reshape(Transpose(x[a:b]))``, the axis of the elements before the one that is joined."""
    taken = slice_term(m.whole, {m.axis: range(m.start, m.start + m.n)})
    others = [i for i in range(m.whole.rank) if i != m.axis]
    perm = (*others[: m.along], m.axis, *others[m.along :])
    shape = [m.n if i == m.axis else m.whole.shape[i] for i in perm]
    return viewed(transpose(taken, perm), shape, m.root.shape, m.whole)


def _stacked(view: GroupView) -> Iterator[Match]:
    """Each concatenation of elements of one value, each with an axis of its own, that come one after the other."""
    found = by_class(elements(view))
    ops = operators_with(is_view) if found else ()
    views = by_class((node, x) for node, (x, *_) in complete_nodes(view, *ops))
    seen = ((handle, e) for handle, xs in views.items() for x in xs for e in found.get(x.handle, ()))
    apart = {(handle, e.whole.handle, e.axis, e.index) for handle, e in seen}
    for node, (along, operands) in concats(view):
        head, *rest = operands
        for x in views.get(head.handle, ()) if rest else ():
            alone = x.type.shape is not None and head.type.shape == (*x.shape[:along], 1, *x.shape[along:])
            for first in found.get(x.handle, ()) if alone else ():
                places = ((first.whole.handle, first.axis, first.index + i) for i in range(len(operands)))
                if all((o.handle, *place) in apart for o, place in zip(operands, places, strict=True)):
                    yield Match({"first": first, "along": along, "n": len(operands)}, node)


_STACK = "Concat(Unsqueeze(Gather(x, i, axis=a), u), Unsqueeze(Gather(x, j, axis=a), u), axis=b)"


@group_rule(find=_stacked, forms=[form(_STACK, constant("i", "j", "u"))])
def stack_elements(m: Match) -> Term:
    """``Concat(Unsqueeze(x[a]), Unsqueeze(x[a + 1]), ...) == Transpose(x[a:b])``, the axis of the elements where they are put."""
    whole, axis = m.first.whole, m.first.axis
    taken = slice_term(whole, {axis: range(m.first.index, m.first.index + m.n)})
    others = [i for i in range(whole.rank) if i != axis]
    return transpose(taken, (*others[: m.along], axis, *others[m.along :]))


def _elements_of_slices(view: GroupView) -> Iterator[Match]:
    """Each element of a Slice of one axis, which may run backwards, as an element of what that cuts."""
    slices = by_class((node, given) for node, given in complete_nodes(view, "Slice"))
    for ref, element in elements(view):
        for x, *numbers in slices.get(element.whole.handle, ()):
            if all(n.is_constant and n.type.size == 1 for n in numbers) and x.type.shape is not None:
                start, end, axis, step = (*(int(n.value.reshape(-1)[0]) for n in numbers), *(0, 1)[len(numbers) - 2 :])
                extent = x.shape[axis]
                if axis % x.rank == element.axis and isinstance(extent, int):
                    yield Match({"x": x, "axis": element.axis, "at": range(extent)[start:end:step][element.index]}, ref)


@group_rule(
    find=_elements_of_slices,
    forms=[form("Gather(Slice(x, s, t, *a, *b), i, axis=c)", constant("s", "t", "a", "b", "i"))],
)
def take_element_of_slice(m: Match) -> Term:
    """``x[a:b:c][i] == x[a + c * i]`` along one axis."""
    return apply("Gather", m.x, literal(np.int64(m.at)), axis=m.axis)


def _elements_of_moved(view: GroupView) -> Iterator[Match]:
    """Each element of a transposed value, along the axis that it is taken along before."""
    moved = by_class((node, (x, perm)) for node, x, perm in transposes(view) if not node.is_constant)
    for ref, element in elements(view):
        for x, perm in moved.get(element.whole.handle, ()):
            axis = perm[element.axis]
            yield Match({"x": x, "axis": axis, "index": element.index, "others": [a for a in perm if a != axis]}, ref)


@group_rule(
    find=_elements_of_moved,
    where=["the other axes are in their order: others == sorted(others)"],
    forms=[form("Gather(Transpose(x, perm=p), i, axis=a)", constant("i"))],
)
def take_element_before_transpose(m: Match) -> Term:
    """``Transpose(x, p)[i] == x[i]`` along the axis that the Transpose moves past others."""
    return apply("Gather", m.x, literal(np.int64(m.index)), axis=m.axis)


def _elements_of_views(view: GroupView) -> Iterator[Match]:
    """Each element of a view in which an axis of the value was cut into several elements."""
    found = elements(view)
    views = by_class((node, x) for node, (x, *_) in complete_nodes(view, "Reshape")) if found else {}
    for ref, element in found:
        axis, whole = element.axis, element.whole
        for x in views.get(whole.handle, ()) if axis + 1 < whole.rank else ():
            size = whole.shape[axis + 1]
            joined = (*whole.shape[:axis], multiply(whole.shape[axis], size), *whole.shape[axis + 2 :])
            if x.type.shape == joined and isinstance(size, int) and not x.is_constant:
                yield Match({"x": x, "taken": {axis: range(element.index * size, (element.index + 1) * size)}}, ref)


@group_rule(find=_elements_of_views, forms=[form("Gather(Reshape(x, s), i, axis=a)", constant("i", "s"))])
def take_part_before_view(m: Match) -> Term:
    """``Reshape(x, [..., n, h, ...])[i] == x[i*h : (i+1)*h]``, the element along ``n`` as a part along the axis that was cut."""
    return slice_term(m.x, m.taken)
