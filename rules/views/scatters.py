"""Elements written at places that are counted: where each is replaced, in order, the new ones are all that is left.

PyTorch's exporter writes ``x[:, :, 0:, 0:] = y`` as ScatterND at a grid of all positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eqsat.equations import named, stated
from eqsat.exactness import Exactness
from eqsat.ir.normal_form import Dim
from eqsat.rewrite import GroupView, Match, Term, group_rule
from eqsat.rules.terms import complete_nodes
from eqsat.rules.views.indices import Indices, Places
from eqsat.samples import Drawing, Instance, Sampler


def are_own(places: Sequence[Places | None], shape: Sequence[Dim]) -> bool:
    """Whether the indices along each axis are the places there."""
    if len(places) != len(shape) or any(p is None or p.start != 0 for p in places):
        return False
    walked = [{axis: stride for axis, stride in p.strides.items() if stride != 0} for p in places if p is not None]
    return all(w == ({} if d == 1 else {i: 1}) for i, (w, d) in enumerate(zip(walked, shape, strict=True)))


def _draw_written(d: Sampler) -> Instance:
    """Rows and columns written at a grid, mostly all there are."""
    drawing = Drawing()
    rows, columns = d.extents(2)
    x = drawing.value(d.floats((rows + d.choose((0, 0, 0, 1)), columns)))
    written = drawing.value(d.floats((rows, columns)))
    counted: list[str] = []
    for axis in (0, 1) if rows != columns or d.chance() else (1, 0):
        steps = drawing.places(written, axis, start=0 if d.chance(0.9) else -1)
        column = drawing.op("Reshape", steps, [-1, 1] if axis == 0 else [1, -1])
        whole = drawing.op("Expand", column, drawing.op("Shape", written))
        counted.append(drawing.op("Unsqueeze", whole, [-1]))
    grid = drawing.op("Concat", *counted[: 2 if d.chance(0.9) else 1], axis=-1)
    reduction = d.choose(("none", "none", "none", "add", "max"))
    return drawing.finish(drawing.op("ScatterND", x, grid, written, reduction=reduction))


def _written_by_grids(view: GroupView) -> Iterator[Match]:
    indices = Indices(view)
    for node, (x, grid, written) in complete_nodes(view, "ScatterND"):
        for places in indices.along_axes(grid):
            yield Match({"x": x, "written": written, "places": places}, node)


@group_rule(
    find=_written_by_grids,
    where=stated(
        "x written places root",
        "elements are replaced: root.attr('reduction', 'none') == 'none'",
        "all of them: written.shape == x.shape",
        "in order: are_own(places, x.shape)",
        functions=named(are_own),
    ),
    exactness=Exactness.EXACT,
    source="ONNX ScatterND",
    sample=_draw_written,
)
def take_what_is_written_everywhere(m: Match) -> Term:
    """``ScatterND(x, all places, y) == y``."""
    return m.written
