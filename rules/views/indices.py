"""Look-ups whose indices are computed from places: elements taken in order are the value itself under another shape.

Exporters index masks by grids of positions, ``mask[batch[:, None, None, None], keys]``. An index is followed as a sum of places
along axes, each times a stride (`counting`): where the strides are those of the value that is indexed, nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from eqsat.equations import Equations, named
from eqsat.ir.extents import add, at_least, product
from eqsat.ir.normal_form import Dim
from eqsat.ir.operator import operators_with
from eqsat.rewrite import GroupView, Match, Ref, Term, apply
from eqsat.rules.terms import complete_nodes, int64s
from eqsat.rules.views.counting import Indices, Places, is_view
from eqsat.rules.views.extents import listed, repeated, viewed
from eqsat.samples import Drawing, Instance, Sampler, fixed

group_rule = Equations(__name__, source="ONNX Gather, GatherND and Range", functions=named(product)).over_groups


def _placed(x: Ref, axes: Sequence[int], shape: Sequence[Dim], counts: Mapping[Dim, Ref]) -> Term:
    """``x`` with its axes at ``axes`` of a value of ``shape``, the same along all others.

    Where the value is shorter, the first elements: were it longer, indices would be out of range. They are looked up, if what
    counts so far is among ``counts``, for then the extent is known.
    """
    target: list[Dim] = [1] * len(shape)
    term: Term
    for axis in axes:
        target[axis] = shape[axis]
    cut = [i for i, axis in enumerate(axes) if shape[axis] != x.shape[i]]
    if len(cut) == 1 and shape[axes[cut[0]]] in counts:
        first = apply("Gather", x, counts[shape[axes[cut[0]]]], axis=cut[0])
        term = viewed(first, [shape[axis] for axis in axes], target, x)
    elif cut:
        ends = listed([shape[axes[i]] for i in cut], x)
        first = apply("Slice", x, int64s([0] * len(cut)), ends, int64s(cut))
        term = apply("Reshape", first, listed(target, x), allowzero=1)
    else:
        term = viewed(x, x.shape, target, x)
    return repeated(term, target, shape, x)


def axes_walked(x: Ref, places: Sequence[Places | None], result: Ref) -> list[int]:
    """The axes of the result along which the leading axes of ``x`` are walked through in order; fewer where one is not."""
    axes: list[int] = []
    for d, found in zip(x.shape, places, strict=False):
        if found is None or found.start != 0 or list(found.strides.values()) != [1]:
            break
        (axis,) = found.strides
        if at_least(result.shape[axis], add(d, 1)) or (axes and axis <= axes[-1]):
            break
        axes.append(axis)
    return axes


def _draw_grid(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, columns, middle = d.extents(3, ones=0)
    order = (0, 1) if d.chance(0.85) else (1, 0)
    steps = [1 if d.chance(0.9) else 2 for _ in order]
    if 2 in steps:  # every other place of two is one, which repeats
        rows = columns = 2
    columns = columns if order == (0, 1) else rows
    x = drawing.value(d.floats((rows, columns)), {rows, columns})
    counted = [drawing.places(x, axis, step=step) for axis, step in enumerate(steps)]
    first, last = (drawing.op("Gather", drawing.op("Shape", x), [i]) for i in (0, 1))
    whole = drawing.op("Concat", first, [middle if d.chance() else 1], last, axis=0)
    axes = [[1, 2], [0, 1]]
    grids = [drawing.op("Expand", drawing.op("Unsqueeze", counted[i], axes[order[i]]), whole) for i in order]
    parts = [drawing.op("Unsqueeze", g, [-1]) for g in grids][: 2 if d.chance(0.9) else 1]
    return drawing.finish(drawing.op("GatherND", x, drawing.op("Concat", *parts, axis=-1)))


def _count(d: Sampler, drawing: Drawing, x: str, axis: int) -> str:
    """Places along an axis of ``x``, now and then not all."""
    return drawing.places(x, axis, step=1 if d.chance(0.9) else 2)


def by_grids(view: GroupView, op: str) -> Iterator[Match]:
    """Each look-up of a value, or what is ``written`` there, by the places along axes that a grid has side by side."""
    indices = Indices(view)
    for node, (x, grid, *written) in complete_nodes(view, op):
        for places in indices.along_axes(grid):
            yield Match({"x": x, "grid": grid, "written": tuple(written), "places": places, "indices": indices}, node)


@group_rule(
    find=partial(by_grids, op="GatherND"),
    where=[
        "a place for each axis: len(places) == x.rank == grid.shape[-1]",
        "the elements are taken in order: len(axes_walked(x, places, root)) == len(places)",
    ],
    sample=_draw_grid,
)
def view_instead_of_gathering_all(m: Match) -> Term:
    """``GatherND(x, places along axes) == Expand(Reshape(x[:n]))`` where the indices walk through ``x`` in order."""
    return _placed(m.x, axes_walked(m.x, m.places, m.root), m.root.shape, m.indices.counts)


def _draw_flat(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, columns = d.extents(2, ones=0)
    known = columns > rows and d.chance(0.2)
    x = drawing.value(d.floats((rows, columns)), () if known else {rows, columns})
    first, second = (_count(d, drawing, x, axis) for axis in (0, 1))
    places = fixed(np.arange(d.choose((columns, columns - 1))))  # now and then not all
    stride = 1 if d.chance(0.85) else 0
    width = drawing.op("Shape", x, start=stride, end=stride + 1)
    lines = drawing.op("Mul", drawing.op("Unsqueeze", first, [1, 2]), width)
    at = drawing.op("Add", lines, places if d.chance(0.4) else second)
    if known:  # a grid, and a place of each row of something else, or one for all
        whole = np.arange(rows)[:, np.newaxis] * columns + np.arange(columns - rows)
        other = drawing.value(d.floats((d.choose((1, rows)), 2)), {1, rows})
        at = drawing.op("Add", fixed(whole), drawing.op("Unsqueeze", _count(d, drawing, other, 0), [1]))
    flat = drawing.op("Reshape", x, [-1] if d.chance() else [-1, 1])
    return drawing.finish(drawing.op("Gather", flat, at, axis=0))


def _looked_up_in_views(view: GroupView) -> Iterator[Match]:
    indices = Indices(view)
    for node, (flat, at) in complete_nodes(view, "Gather"):
        places = indices.of(at) if node.attr("axis", 0) == 0 else None
        for op, _, (x, *_) in indices.nodes.get(flat.handle, ()) if places else ():
            if x is not None and op in operators_with(is_view):
                yield Match({"x": x, "flat": flat, "places": places, "indices": indices}, node)


def has_strides_of(places: Places, x: Ref, result: Ref) -> bool:
    """Whether the places are those of the elements of ``x``, axis by axis of the result, perhaps not to the end of the last one.

    Were rows taken longer than those of ``x``, the last one would end beyond the last element.
    """
    axes = sorted(places.strides)
    strides = [product(x.shape[i + 1 :]) for i in range(x.rank)]
    taken = [result.shape[i] for i in axes]
    in_order = [places.strides[i] for i in axes] == strides and taken[:-1] == list(x.shape[:-1])
    return places.start == 0 and in_order


@group_rule(
    find=_looked_up_in_views,
    where=[
        "the view is one axis of all elements: product(x.shape) == flat.shape[0]",
        "the elements are taken in order: has_strides_of(places, x, root)",
    ],
    sample=_draw_flat,
)
def view_instead_of_gathering_flat(m: Match) -> Term:
    """``Gather(Reshape(x, [-1]), place * stride + place) == Reshape(x[:n])`` where the strides are those of ``x``."""
    return _placed(m.x, sorted(m.places.strides), m.root.shape, m.indices.counts)
