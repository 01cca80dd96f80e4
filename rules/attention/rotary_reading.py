"""Reading rotary position embeddings out of the e-graph: values whose pairs of features were turned by a quarter."""

from collections.abc import Iterable, Iterator
from itertools import product

from eqsat.ir.types import HALVES, DType
from eqsat.rewrite import GroupView, Ref
from eqsat.rules.terms import by_class, complete_nodes
from eqsat.rules.views.movement import runs_forward, taken
from eqsat.rules.views.parts import Part, parts_by_class

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
    """``Reshape(Concat(-x[1::2], x[0::2]))``, both with an axis of one element behind, and backwards of ``x[1::2], -x[0::2]``."""
    strided, negated, views = _strided(view), _sources(view, "Neg"), _sources(view, "Reshape", "Unsqueeze")
    viewed = by_class((x, node) for node, (x, _) in complete_nodes(view, "Reshape"))

    def every_other(start: int, value: Ref, *, negative: bool) -> dict[int, Ref]:
        """What ``value`` is every other feature of, negated or not, under a view."""
        seen = views.get(value.handle, [])
        if negative:
            seen = [x for y in seen for x in negated.get(y.handle, ())]
            seen += [x for y in negated.get(value.handle, ()) for x in views.get(y.handle, ())]
        return {x.handle: x for y in seen for x, first in strided.get(y.handle, ()) if first == start}

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


def _strided(view: GroupView) -> dict[int, list[tuple[Ref, int]]]:
    """Class -> values of which it is every other feature, from the first (0) or the second (1) on."""
    return by_class(
        (node, (x, start))
        for node, (x, starts, ends, *rest) in complete_nodes(view, "Slice")
        for start in (0, 1)
        if _takes_every_other(start, x, starts, ends, *(*rest, None, None)[:2])
    )


def _takes_every_other(start: int, x: Ref, starts: Ref, ends: Ref, axes: Ref | None, steps: Ref | None) -> bool:
    bounds = (starts, ends, axes, steps)
    if x.type.shape is None or any(b is not None and not b.is_constant for b in bounds):
        return False
    size = x.shape[-1]
    if not isinstance(size, int) or size < 3 or not runs_forward(x, starts, axes, steps):
        return False
    ranges = taken(x, starts, ends, axes, steps)
    others_whole = all(len(r) == x.shape[i] for i, r in ranges.items() if i != x.rank - 1)
    return others_whole and ranges.get(x.rank - 1) == range(start, size, 2)


__all__ = ["Turned", "pairs_of_features", "turned_values", "whole_features"]
