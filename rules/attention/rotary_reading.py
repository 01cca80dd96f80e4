"""Reading rotary position embeddings out of the e-graph: values whose pairs of features were turned by a quarter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from eqsat.rewrite import GroupView, Ref, Unmet
from eqsat.rules.views.movement import slice_ranges
from eqsat.rules.views.parts import Part, slices_of, split_parts_of

Turned = tuple[Ref, Ref, bool]
"""A turned value, the value, and whether its pairs are neighbours."""


def parts_by_class(view: GroupView) -> dict[int, list[Part]]:
    """Class -> which parts of other values it is."""
    parts: dict[int, list[Part]] = {}
    for ref, part in (*slices_of(view), *split_parts_of(view)):
        parts.setdefault(ref.handle, []).append(part)
    return parts


def whole_features(first: Iterable[Part], second: Iterable[Part]) -> Iterator[tuple[Ref, int]]:
    """Values of which ``first`` and ``second`` are all features between them, and where the second begins."""
    for a in first:
        for b in second:
            extent = a.whole.shape[-1]
            last = a.axis == b.axis == a.whole.rank - 1 and a.whole.handle == b.whole.handle
            if last and (a.start, a.end, b.end) == (0, b.start, extent):
                yield a.whole, a.end


def turned_halves(view: GroupView) -> Iterator[Turned]:
    """``Concat(-x2, x1)`` for the halves of ``x``."""
    parts, negated = parts_by_class(view), _sources(view, "Neg")
    for node, first, second in _pairs(view):
        for high in negated.get(first.handle, ()):
            for x, at in whole_features(parts.get(second.handle, ()), parts.get(high.handle, ())):
                if 2 * at == x.shape[-1]:
                    yield node, x, False


def turned_pairs(view: GroupView) -> Iterator[Turned]:
    """``Reshape(Concat(-x[1::2], x[0::2]))``, both with an axis of one element behind."""
    strided, negated, views = _strided(view), _sources(view, "Neg"), _sources(view, "Reshape", "Unsqueeze")
    pairs = [(node, first, second) for node, first, second in _pairs(view) if _one_feature(first, second)]
    viewed: dict[int, list[Ref]] = {}
    for node, (x, _) in view.nodes("Reshape"):
        if x is not None:
            viewed.setdefault(x.handle, []).append(node)
    for node, first, second in pairs:
        odd = {x.handle for y in views.get(first.handle, ()) for x in negated.get(y.handle, ())}
        odd |= {x.handle for y in negated.get(first.handle, ()) for x in views.get(y.handle, ())}
        even = {x.handle for x in views.get(second.handle, ())}
        wholes = [x for h in sorted(odd) for x, start in strided.get(h, ()) if start == 1]
        for x in wholes:
            if any(y.handle == x.handle and not start for h in sorted(even) for y, start in strided.get(h, ())):
                yield from ((turned, x, True) for turned in viewed.get(node.handle, ()) if turned.type == x.type)


def _one_feature(first: Ref, second: Ref) -> bool:
    try:
        return first.shape[-1] == second.shape[-1] == 1
    except Unmet:
        return False


def _pairs(view: GroupView) -> Iterator[tuple[Ref, Ref, Ref]]:
    """Concatenations of two values along the last axis."""
    for node, inputs in view.nodes("Concat"):
        first, second = inputs if len(inputs) == 2 else (None, None)
        try:
            if first is not None and second is not None and node.attr("axis") in (-1, first.rank - 1):
                yield node, first, second
        except Unmet:
            continue


def _sources(view: GroupView, *ops: str) -> dict[int, list[Ref]]:
    """Class -> what one of the operators makes it of."""
    found: dict[int, list[Ref]] = {}
    for op in ops:
        for node, (x, *_) in view.nodes(op):
            if x is not None:
                found.setdefault(node.handle, []).append(x)
    return found


def _strided(view: GroupView) -> dict[int, list[tuple[Ref, int]]]:
    """Class -> values of which it is every other feature, from the first (0) or the second (1) on."""
    found: dict[int, list[tuple[Ref, int]]] = {}
    for node, (x, starts, ends, *rest) in view.nodes("Slice"):
        if x is None or starts is None or ends is None:
            continue
        axes, steps = (*rest, None, None)[:2]
        try:
            ranges = slice_ranges(x, starts, ends, axes, steps)
            size = x.shape[-1]
        except Unmet:
            continue
        taken = ranges.pop(x.rank - 1, None)
        if taken is None or not isinstance(size, int) or any(len(r) != x.shape[i] for i, r in ranges.items()):
            continue
        for start in (0, 1):
            if size > 2 and taken == range(start, size, 2):
                found.setdefault(node.handle, []).append((x, start))
    return found


__all__ = ["Turned", "parts_by_class", "turned_halves", "turned_pairs", "whole_features"]
