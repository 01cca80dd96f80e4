"""Slices that lie side by side and cover a value are the outputs of one Split: one operator instead of several."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import GroupView, Merge, Ref, Unmet, apply, group_rule
from eqsat.rules.terms import int64s
from eqsat.rules.views.parts import Part, slices_of
from eqsat.samples import Drawing, Instance, Sampler, fixed


def _tiles(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.shape(1, 3, ones=0)
    axis = d.integer(0, len(shape) - 1)
    x = drawing.value(d.array(shape))
    cuts = sorted(set(d.rng.integers(1, shape[axis], 2).tolist()))
    bounds = list(zip([0, *cuts], [*cuts, shape[axis]], strict=True))
    if d.chance(0.2):
        bounds.pop(d.integer(0, len(bounds) - 1))
    if d.chance(0.2):
        bounds.append((0, shape[axis] - 1))
    at = axis if d.chance() else axis - len(shape)
    parts = []
    for start, end in bounds:
        ends = np.iinfo(np.int64).max if end == shape[axis] and d.chance() else end
        parts.append(drawing.op("Slice", x, *(drawing.value(fixed([i], "int64")) for i in (start, ends, at))))
    return drawing.finish(*(parts or [x]))


@group_rule(exactness=Exactness.EXACT, source="ONNX Split and Slice", sample=_tiles)
def split_instead_of_slices(view: GroupView) -> Iterator[Merge]:
    """``x[:a], x[a:b], x[b:] == Split(x, [a, b - a, n - b])`` along one axis."""
    groups: dict[tuple[int, int], list[tuple[Ref, Part]]] = {}
    for ref, part in slices_of(view):
        groups.setdefault((part.whole.handle, part.axis), []).append((ref, part))
    for members in groups.values():
        try:
            tiles = _cover(members)
        except Unmet:
            continue
        if len(tiles) < 2:
            continue
        _, first = tiles[0]
        sizes = int64s(p.end - p.start for _, p in tiles)
        split = apply("Split", first.whole, sizes, outputs=len(tiles), axis=first.axis)
        for index, (ref, _) in enumerate(tiles):
            yield ref, split.output(index)


def _cover(members: list[tuple[Ref, Part]]) -> list[tuple[Ref, Part]]:
    """Parts from the first element to the last, each beginning where the one before ends, the shortest of those that
    begin together; none where a piece is missing."""
    by_start: dict[int, tuple[Ref, Part]] = {}
    for ref, part in members:
        known = by_start.get(part.start)
        if known is None or part.end < known[1].end:
            by_start[part.start] = (ref, part)
    _, any_part = members[0]
    extent = any_part.whole.shape[any_part.axis]
    tiles: list[tuple[Ref, Part]] = []
    at = 0
    while at in by_start:
        tiles.append(by_start[at])
        at = by_start[at][1].end
    return tiles if at == extent else []
