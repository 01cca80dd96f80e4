"""Triangles and bands: what compares the place of each key with that of each query, whatever the extents are.

Exporters count places and compare them. What is masked by such a grid, too, is the triangle of that; and whether a query may see
any key at all, as is asked where one that sees none is to be zero, needs no grid of numbers.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from eqsat.conditions import constant, worthwhile
from eqsat.equations import group_rule, named
from eqsat.ir.extents import add, at_least, multiply, subtract
from eqsat.ir.graph import NO_ATTRIBUTES
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.normal_form import Dim
from eqsat.ir.operator import having, operators_with, traits_of
from eqsat.rewrite import GroupView, Match, Ref, Term, apply, literal, shared
from eqsat.rules.recognise.norms import axes_of
from eqsat.rules.terms import by_class, complete_nodes
from eqsat.rules.views.counting import Indices, Places
from eqsat.rules.views.extents import listed, repeated
from eqsat.samples import Drawing, Input, Instance, Sampler, fixed


def triangle(op: str, apart: Places, rank: int) -> tuple[bool, Dim] | None:
    """Whether two values that are so far apart compare as an upper triangle, and its diagonal; ``None`` where it is no
    triangle."""
    if rank < 2:
        return None
    strides = [apart.strides.get(i, 0) for i in range(rank)]
    if any(strides[:-2]) or strides[-2:] not in ([-1, 1], [1, -1]):
        return None
    less, equal = (bool(evaluate_operator(op, NO_ATTRIBUTES, [np.int64(0), np.int64(n)])[0]) for n in (1, 0))
    bound = 0 if equal else -1 if less else 1  # of the difference between them
    forward = strides[-1] == 1
    return less != forward, multiply(subtract(bound, apart.start), 1 if forward else -1)


def _draw_mask(d: Sampler) -> Instance:
    drawing = Drawing()
    batch, queries, keys = d.extents(3, ones=0.1)
    across = d.choose((1, 1, 1, 0))
    queries = queries if across else keys
    shape = (batch, 1, queries if d.chance(0.3) else 1, keys)
    shape = shape if d.chance(0.8) else shape[2:]
    m = drawing.value(d.booleans(shape), {batch, keys})
    x = drawing.value(d.floats((queries, 2)), {queries})
    counted: list[Input] = [
        drawing.places(m, len(shape) - 1),
        drawing.places(x, 0, start=d.choose((0, 0, 2, -1))),
    ]
    counted[across] = drawing.op("Unsqueeze", counted[across], [1])
    if d.chance(0.2):  # differences from places of known rows, and a place of each of something else, or one for all
        other = drawing.value(d.floats((d.choose((1, queries)), 2)), {1, queries})
        differences = np.arange(keys) - np.arange(queries)[:, None]
        counted = [fixed(differences), drawing.op("Unsqueeze", drawing.places(other, 0), [1])]
    if d.chance():
        counted.reverse()
    grid = drawing.op(d.choose(("Less", "LessOrEqual", "Greater", "GreaterOrEqual")), *counted)
    return drawing.finish(drawing.op("And", *((grid, m) if d.chance() else (m, grid))))


@shared
def _grids(view: GroupView) -> Sequence[tuple[Ref, tuple[bool, Dim]]]:
    """Triangles of truth values: whether it is the upper one, and its diagonal."""
    indices, grids = Indices(view), list[tuple[Ref, tuple[bool, Dim]]]()
    for op in operators_with(having("orders")):
        for node, inputs in complete_nodes(view, op):
            apart = None if node.type.shape is None else indices.difference(node, inputs)
            found = None if apart is None else triangle(op, apart, node.rank)
            if found is not None:
                grids.append((node, found))
    return grids


def _masked_by_grids(view: GroupView) -> Iterator[Match]:
    grids = by_class(_grids(view))
    for node, pair in complete_nodes(view, "And") if grids else ():
        for grid, m in (pair, pair[::-1]):
            for upper, diagonal in grids.get(grid.handle, ()):
                yield Match({"m": m, "grid": grid, "upper": upper, "diagonal": diagonal}, node)


@group_rule(
    find=_masked_by_grids,
    where=[
        worthwhile("not constant: not m.is_constant and not grid.is_constant"),
        "the triangle is that of the whole: grid.shape[-2:] == root.shape[-2:]",
    ],
    source="ONNX Trilu",
    sample=_draw_mask,
)
def mask_by_triangle(m: Match) -> Term:
    """``And(place of the key <= place of the query, m) == Trilu(Expand(m), k, upper=0)``"""
    whole = repeated(m.m, m.m.shape, m.root.shape, m.m)
    if m.diagonal == 0:
        return apply("Trilu", whole, upper=int(m.upper))
    if isinstance(m.diagonal, int):
        return apply("Trilu", whole, literal(np.int64(m.diagonal)), upper=int(m.upper))
    return apply("Trilu", whole, apply("Squeeze", listed([m.diagonal], m.m)), upper=int(m.upper))


Band = tuple[Dim | None, Dim | None]
"""Bounds on how much farther along the last axis than along the one before it an element is that is true."""


def _bands(view: GroupView) -> dict[int, list[Band]]:
    """Grids of truth values that are one or two triangles, by class."""
    sides = ((grid, (d, None) if upper else (None, d)) for grid, (upper, d) in _grids(view))
    found: dict[int, list[Band]] = by_class(sides)
    single = {cls: list(bands) for cls, bands in found.items()}
    for node, pair in complete_nodes(view, "And") if found else ():
        lower, upper = ([b for x in pair for b in single.get(x.handle, ()) if b[i] is None] for i in (0, 1))
        same = all(x.type.shape is not None and x.shape[-2:] == node.shape[-2:] for x in pair)
        found.setdefault(node.handle, []).extend((u[0], b[1]) for u in upper for b in lower if same)
    return found


def shows_in_each_row(band: Band, rows: Dim, columns: Dim) -> bool:
    """Whether each row of a grid has an element in the band: the first one, or that of a diagonal."""
    low, high = band
    if low is None:
        return high is not None and at_least(high, 0) and (rows == columns or at_least(columns, 1))
    diagonals = (d for d in (0, low, high) if d is not None and at_least(d, 0) and at_least(columns, add(rows, d)))
    return any(at_least(d, low) and (high is None or at_least(high, d)) for d in diagonals)


def _draw_rows(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, more, batch = d.extents(3, ones=0.1)
    x, y = (drawing.value(d.floats((n, 2)), {rows}) for n in (rows, d.choose((rows, rows + more))))
    at = drawing.op("Unsqueeze", drawing.places(x, 0, start=d.choose((0, 0, 0, 1, -1))), [1])
    keys = drawing.places(y, 0)
    seen = drawing.op(d.choose(("Less", "LessOrEqual", "LessOrEqual", "LessOrEqual", "GreaterOrEqual")), keys, at)
    if d.chance(0.4):
        far = drawing.op("Sub", at, d.choose((0, 1, 1, 2)))
        seen = drawing.op("And", seen, drawing.op("Greater", keys, far))
    if d.chance(0.2):
        seen = drawing.op("Expand", seen, drawing.op("Concat", [batch], drawing.op("Shape", seen), axis=0))
    counted = drawing.op("Cast", seen, to=d.choose((7, 1)))
    axes = d.choose(([-1], [-1], [0], [0], None))
    largest = drawing.op("ReduceMax", counted, *([] if axes is None else [axes]))
    return drawing.finish(drawing.op("Add", counted, largest))


def _largest_of_bands(view: GroupView) -> Iterator[Match]:
    """What is largest along each row of a grid as numbers."""
    bands = _bands(view)
    for node, (x, *given) in complete_nodes(view, "ReduceMax") if bands else ():
        for op, inputs in view.spellings(x) if given else ():
            if traits_of(op).converts and inputs[0] is not None:
                for band in bands.get(inputs[0].handle, ()):
                    yield Match({"x": x, "axes": given[0], "band": band}, node)


@group_rule(
    find=_largest_of_bands,
    where=(
        constant("axes"),
        "along each row: axes_of(root, axes, x) == (-1,)",
        "each has an element that is true: shows_in_each_row(band, x.shape[-2], x.shape[-1])",
    ),
    functions=named(axes_of),
    source="ONNX ReduceMax: of truth",
    sample=_draw_rows,
)
def see_something_in_each_row(m: Match) -> Term:
    """``ReduceMax(Cast(place of the key <= place of the query)) == 1`` where each query may see a key."""
    return repeated(literal(np.asarray(1, m.root.dtype.numpy)), (), m.root.shape, m.x)
