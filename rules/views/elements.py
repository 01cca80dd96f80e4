"""Elements of a value along an axis, one by one: what loops look up step by step that exporters unroll.

An `Element` is what a Gather by a constant number takes of a value, or a part of one element without its axis.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations, form, stated
from eqsat.ir.extents import multiply
from eqsat.ir.operator import operators_with
from eqsat.rewrite import GroupView, Match, Merge, Ref, Term, apply, literal, shared
from eqsat.rules.terms import by_class, complete_nodes, int64s, split, transpose, transposes
from eqsat.rules.views.counting import is_view
from eqsat.rules.views.extents import viewed
from eqsat.rules.views.movement import slice_term
from eqsat.rules.views.parts import Part, concats, parts_by_class, parts_of
from eqsat.samples import Drawing, Instance, Sampler

group_rule = Equations(__name__, source="ONNX Gather, Split and Concat").over_groups
_T = TypeVar("_T")


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
    perm = _moved(m.whole.rank, m.axis, m.along)
    shape = [m.n if i == m.axis else m.whole.shape[i] for i in perm]
    return viewed(transpose(taken, perm), shape, m.root.shape, m.whole)


def _stacks(
    view: GroupView, found: Mapping[int, Sequence[_T]], place: Callable[[_T, int], Hashable]
) -> Iterator[Match]:
    """Each concatenation of values that are ``found``, each with an axis of its own, at the places from the first one on."""
    ops = operators_with(is_view) if found else ()
    views = by_class((node, x) for node, (x, *_) in complete_nodes(view, *ops))
    seen = ((handle, one) for handle, xs in views.items() for x in xs for one in found.get(x.handle, ()))
    apart = {(handle, place(one, 0)) for handle, one in seen}
    for node, (along, operands) in concats(view):
        head, *rest = operands
        for x in views.get(head.handle, ()) if rest else ():
            alone = x.type.shape is not None and head.type.shape == (*x.shape[:along], 1, *x.shape[along:])
            for first in found.get(x.handle, ()) if alone else ():
                if all((o.handle, place(first, i)) in apart for i, o in enumerate(operands)):
                    yield Match({"first": first, "along": along, "n": len(operands)}, node)


def _stacked(view: GroupView) -> Iterator[Match]:
    """Each concatenation of elements of one value, each with an axis of its own, that come one after the other."""
    return _stacks(view, by_class(elements(view)), lambda e, i: (e.whole.handle, e.axis, e.index + i))


_STACK = "Concat(Unsqueeze(Gather(x, i, axis=a), u), Unsqueeze(Gather(x, j, axis=a), u), axis=b)"


@group_rule(find=_stacked, forms=[form(_STACK, constant("i", "j", "u"))])
def stack_elements(m: Match) -> Term:
    """``Concat(Unsqueeze(x[a]), Unsqueeze(x[a + 1]), ...) == Transpose(x[a:b])``, the axis of the elements where they are put."""
    whole, axis = m.first.whole, m.first.axis
    taken = slice_term(whole, {axis: range(m.first.index, m.first.index + m.n)})
    return transpose(taken, _moved(whole.rank, axis, m.along))


def _moved(rank: int, axis: int, along: int) -> tuple[int, ...]:
    """The permutation that puts ``axis`` at ``along`` and leaves the others in order."""
    others = [i for i in range(rank) if i != axis]
    return (*others[:along], axis, *others[along:])


def _stacked_parts(view: GroupView) -> Iterator[Match]:
    """Each concatenation of parts of one value, all of one size, each with an axis of its own, that come one after the other."""

    def place(part: Part, i: int) -> Hashable:
        size = part.end - part.start
        return (part.whole.handle, part.axis, part.start + i * size, size)

    return _stacks(view, parts_by_class(view), place)


def _draw_stacked_parts(d: Sampler) -> Instance:
    """Parts along an axis with an axis of their own, mostly all of one size, and stacked in order."""
    drawing = Drawing()
    count, size, *shape = d.extents(d.integer(3, 4))
    axis, along = d.integer(0, len(shape)), d.integer(0, len(shape) + 1)
    sizes = [d.choose((size, size, size + 1)), *[size] * count]
    x = drawing.value(d.floats((*shape[:axis], sum(sizes), *shape[axis:])), d.subset(shape, 0.3))
    found = drawing.op("Split", x, sizes, axis=axis, outputs=len(sizes))[sizes[0] != size :: d.choose((1, 1, 1, 2))]
    apart = [drawing.op("Unsqueeze", part, [along]) for part in found[:: d.choose((1, 1, 1, 1, -1))]]
    return drawing.finish(drawing.op("Concat", *apart, axis=along))


@group_rule(find=_stacked_parts, sample=_draw_stacked_parts)
def stack_parts(m: Match) -> Term:
    """``Concat(Unsqueeze(x[a : a+k]), Unsqueeze(x[a+k : a+2k]), ...) == Transpose(Reshape(x[a:b], [..., n, k, ...]))``, the
    axis of the parts where they are put."""
    whole, axis, start, size = m.first.whole, m.first.axis, m.first.start, m.first.end - m.first.start
    before, after = whole.shape[:axis], whole.shape[axis + 1 :]
    taken = slice_term(whole, {axis: range(start, start + m.n * size)})
    apart = viewed(taken, (*before, m.n * size, *after), (*before, m.n, size, *after), whole)
    return transpose(apart, _moved(whole.rank + 1, axis, m.along))


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
