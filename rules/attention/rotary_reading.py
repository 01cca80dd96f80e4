"""Reading rotary position embeddings out of the e-graph: values whose pairs of features were turned by a quarter, and factors
whose halves are the same."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from eqsat.ir.operator import operators_with, traits_of
from eqsat.ir.schema_operator import attributes_of_schema
from eqsat.ir.types import HALVES, DType, Shape
from eqsat.rewrite import GroupView, Ref, Term, apply
from eqsat.rules.attention.layout import repeats
from eqsat.rules.attention.scores import is_number
from eqsat.rules.terms import by_class, complete_nodes, int64s
from eqsat.rules.views.elements import elements
from eqsat.rules.views.extents import viewed
from eqsat.rules.views.movement import slices_forward
from eqsat.rules.views.parts import Part, parts_by_class, parts_of

_DEPTH = 6
"""Operators between a factor and what is the same in both halves, at most."""

Turned = tuple[Ref, Ref, bool, bool]
"""A turned value, the value, whether its pairs are neighbours, and whether it is turned backwards."""


def whole_features(*parts: Iterable[Part]) -> Iterator[tuple[Ref, int]]:
    """Values of which one of each of ``parts`` are all features between them, in this order, and where the second begins."""
    for chosen in product(*parts):
        whole, bounds = chosen[0].whole, [0, *(part.end for part in chosen)]
        last = all(part.whole.handle == whole.handle and part.axis == whole.rank - 1 for part in chosen)
        if last and [part.start for part in chosen] == bounds[:-1] and bounds[-1] == whole.shape[-1]:
            yield whole, chosen[0].end


def pairs_of_features(view: GroupView) -> Iterator[tuple[Ref, Ref, Ref]]:
    """Concatenations of two values along the last axis, and these."""
    for node, parts in complete_nodes(view, "Concat"):
        axis = node.attr("axis")
        if len(parts) == 2 and (axis == -1 or axis + 1 == len(parts[0].type.shape or ())):
            yield node, *parts


def turned_values(view: GroupView) -> Iterator[Turned]:
    """Values that are turned, and those that are turned in half precision and then cast to float32, as ``x`` itself is."""
    wide = by_class((x, node) for node, (x, *_) in complete_nodes(view, "Cast") if _widens(x, node))
    for turned, x, neighbours, backwards in (*turned_halves(view), *turned_pairs(view)):
        pairs = [(t, y) for t in wide.get(turned.handle, ()) for y in wide.get(x.handle, ())]
        yield from ((t, y, neighbours, backwards) for t, y in [(turned, x), *pairs])


def _widens(x: Ref, node: Ref) -> bool:
    return node.dtype is DType.FLOAT and x.dtype in HALVES


def turned_halves(view: GroupView) -> Iterator[Turned]:
    """``Concat(-x2, x1)`` for the halves of ``x``, and backwards ``Concat(x2, -x1)``."""
    parts, negated = parts_by_class(view), _sources(view, "Neg")
    for node, first, second in pairs_of_features(view):
        pairs = [(high, second, False) for high in negated.get(first.handle, ())]
        pairs += [(first, low, True) for low in negated.get(second.handle, ())]
        for high, low, backwards in pairs:
            for x, at in whole_features(parts.get(low.handle, ()), parts.get(high.handle, ())):
                if 2 * at == x.shape[-1]:
                    yield node, x, False, backwards


def turned_pairs(view: GroupView) -> Iterator[Turned]:
    """``Reshape(Concat(-x[1::2], x[0::2]))``, both with an axis of one element behind, and backwards of ``x[1::2], -x[0::2]``;
    the same of the elements of ``Reshape(x)`` that has pairs behind."""
    others, negated, views = _every_other(view), _sources(view, "Neg"), _sources(view, "Reshape", "Unsqueeze")
    viewed = by_class((x, node) for node, (x, _) in complete_nodes(view, "Reshape"))

    def every_other(start: int, value: Ref, *, negative: bool) -> dict[int, Ref]:
        """What ``value`` is every other feature of, negated or not, as it is or under a view."""
        seen = [value, *views.get(value.handle, ())]
        if negative:
            seen = [x for y in seen for x in negated.get(y.handle, ())]
            seen += [x for y in negated.get(value.handle, ()) for x in views.get(y.handle, ())]
        return {x.handle: x for y in seen for x, first in others.get(y.handle, ()) if first == start}

    for node, first, second in pairs_of_features(view):
        if not ((first.type.shape or ())[-1:] == (second.type.shape or ())[-1:] == (1,)):
            continue
        for backwards in (False, True):
            odd = every_other(1, first, negative=not backwards)
            even = every_other(0, second, negative=backwards) if odd else {}
            for x in (odd[h] for h in sorted(odd.keys() & even.keys())):
                yield from ((t, x, True, backwards) for t in viewed.get(node.handle, ()) if t.type == x.type)


def _sources(view: GroupView, *ops: str) -> dict[int, list[Ref]]:
    """Class -> what one of the operators makes it of."""
    return by_class((node, x) for node, (x, *_) in complete_nodes(view, *ops))


def _every_other(view: GroupView) -> dict[int, list[tuple[Ref, int]]]:
    """Class -> values of which it is every other feature, from the first (0) or the second (1) on."""
    found = [
        (node, (x, start))
        for node, x, taken in slices_forward(view)
        for start in (0, 1)
        if _are_every_other(x, taken, start)
    ]
    of_pairs = by_class((node, x) for node, (x, _) in complete_nodes(view, "Reshape") if _are_pairs(node, x))
    single = [(ref, p.whole, p.axis, p.start) for ref, p in parts_of(view) if p.end - p.start == 1] if of_pairs else []
    single += [(ref, e.whole, e.axis, e.index) for ref, e in elements(view)] if of_pairs else []
    for ref, pairs, axis, start in single:
        if axis == pairs.rank - 1:
            found += [(ref, (x, start)) for x in of_pairs.get(pairs.handle, ())]
    return by_class(found)


def _are_pairs(value: Ref, x: Ref) -> bool:
    """Whether a view of ``x`` has pairs of neighbours among its features along its last axis."""
    features = (x.type.shape or ("",))[-1]
    return (value.type.shape or ())[-1:] == (2,) and isinstance(features, int) and features > 2 and features % 2 == 0


def _are_every_other(x: Ref, taken: Mapping[int, range], start: int) -> bool:
    """Whether a slice takes every other feature from one of the first two on, and all along the other axes."""
    *_, size = x.shape or ("",)
    whole = all(len(found) == x.shape[axis] for axis, found in taken.items() if axis != x.rank - 1)
    return whole and isinstance(size, int) and size > 2 and taken.get(x.rank - 1) == range(start, size, 2)


class Halves:
    """Halves of factors: the first one, or every other element, where the other half is the same."""

    def __init__(self, view: GroupView) -> None:
        self._view = view
        rows = complete_nodes(view, "Gather")
        self._gathered = by_class(
            (node, (x, i)) for node, (x, i) in rows if node.attr("axis", 0) == 0 and (x.type.rank or 0) > 1
        )

    def of(self, value: Ref, neighbours: bool, depth: int = _DEPTH) -> Term | None:
        """One half of a value along its last axis, ``None`` unless the two are known to be the same."""
        *lead, features = value.type.shape or ("",)
        if not isinstance(features, int) or features % 2:
            return None
        size = features // 2
        elements = value.values.literal_of(value.handle)
        if elements is not None:
            step, end = (2, features) if neighbours else (1, size)
            first, second = elements[..., :end:step], elements[..., step - 1 if neighbours else size :: step]
            cut = (int64s([n]) for n in (0, end, len(lead), step))
            return apply("Slice", value, *cut) if np.array_equal(first, second) else None
        for data, indices in self._gathered.get(value.handle, ()) if depth else ():
            half = self.of(data, neighbours, depth - 1)
            if half is not None:
                return apply("Gather", half, indices, axis=0)
        for op, inputs in self._view.spellings(value) if depth else ():
            half = self._of_spelling(value, op, inputs, neighbours, depth - 1)
            if half is not None:
                return half
        return None

    def _of_spelling(
        self, value: Ref, op: str, inputs: tuple[Ref | None, ...], neighbours: bool, depth: int
    ) -> Term | None:
        x = inputs[0] if inputs else None
        if x is None or x.type.shape is None:
            return None
        if neighbours and op == "Reshape" and x.shape == (*_halved(value.shape), 2):
            return self._of_pairs(x)
        if op == "Concat":
            twice = [y and y.handle for y in inputs] == [x.handle] * 2 and x.shape == _halved(value.shape)
            return x if twice and not neighbours else self._of_joined(value, inputs, neighbours, depth)
        if op == "Slice" and _keeps_features(x, inputs):
            half = self.of(x, neighbours, depth)
            return half and apply("Slice", half, *inputs[1:])
        if op in ("Reshape", "Unsqueeze") and x.shape[-1:] == value.shape[-1:]:
            half = self.of(x, neighbours, depth)
            return half and viewed(half, _halved(x.shape), _halved(value.shape), x)
        # times one number, where texts are longer than before
        given = [y for y in inputs if y is not None and not is_number(y)]
        if len(given) != 1 or given[0].shape != value.shape or not (op == "Cast" or _is_function(op, len(inputs))):
            return None
        half = self.of(given[0], neighbours, depth)
        how = {"to": int(value.dtype)} if op == "Cast" else {}
        return half and apply(op, *(half if y is given[0] else y for y in inputs), **how)

    def _of_joined(self, value: Ref, parts: Sequence[Ref | None], neighbours: bool, depth: int) -> Term | None:
        """The halves of the parts, joined: pairs of neighbours stay in one part, the two halves of all features do not."""
        known = [y for y in parts if y is not None and y.rank == value.rank]
        axes = {i for y in known for i, (d, whole) in enumerate(zip(y.shape, value.shape, strict=True)) if d != whole}
        if len(known) < len(parts) or len(axes) != 1 or not (neighbours or value.rank - 1 not in axes):
            return None
        halves = [half for y in known if (half := self.of(y, neighbours, depth)) is not None]
        return apply("Concat", *halves, axis=axes.pop()) if len(halves) == len(known) else None

    def _of_pairs(self, pairs: Ref) -> Term | None:
        """What each pair along the last axis is twice: ``x`` of ``Expand(x)`` and of ``Concat(x, x)``, without that axis."""
        shape = pairs.shape[:-1]
        for op, inputs in self._view.spellings(pairs):
            x, joined = inputs[0] if inputs else None, op == "Concat" and len({y and y.handle for y in inputs}) == 1
            if x is not None and x.type.shape == (*shape, 1) and (joined or op in operators_with(repeats)):
                return viewed(x, x.shape, shape, x)
        return None


def _keeps_features(x: Ref, inputs: Sequence[Ref | None]) -> bool:
    """Whether a Slice of ``x`` with these inputs takes it whole along its last axis."""
    axes = inputs[3].values.literal_of(inputs[3].handle) if len(inputs) > 3 and inputs[3] is not None else None
    return axes is not None and not np.isin(axes, (-1, x.rank - 1)).any()


def _halved(shape: Shape) -> Shape:
    return (*shape[:-1], int(shape[-1]) // 2)


def _is_function(op: str, inputs: int) -> bool:
    """Whether an operator computes each element from those of so many inputs, and has no attributes."""
    return traits_of(op).operands == inputs and attributes_of_schema(op) == {}


__all__ = ["Halves", "Turned", "pairs_of_features", "turned_values", "whole_features"]
