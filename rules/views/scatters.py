"""Elements written at places: where each is replaced, in order, the new ones are all that is left; along an axis, no Transpose
is needed; at places side by side, they are a part of the whole.

PyTorch's exporter writes ``x[:, :, 0:, 0:] = y`` as ScatterND at a grid of all positions, and ``x[:, :, i] = y``, as to a cache
of keys, with the axis moved to the front and back: the whole of ``x`` is transposed twice for the one row that is new. A value
that is put together by ``x[..., :k] = y`` and ``x[..., k:] = z`` becomes a Concat, and so does one by ``x[..., 0::2] = y`` and
``x[..., 1::2] = z``.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from eqsat.equations import Equations, group_rule, named
from eqsat.ir.normal_form import Dim
from eqsat.rewrite import Match, Ref, Term, apply, literal
from eqsat.rules.terms import transpose
from eqsat.rules.views.counting import Places
from eqsat.rules.views.extents import repeated, viewed
from eqsat.rules.views.indices import by_grids
from eqsat.rules.views.movement import slice_term
from eqsat.rules.views.transposes import inverse
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


@group_rule(
    find=partial(by_grids, op="ScatterND"),
    where=[
        "elements are replaced: root.attr('reduction', 'none') == 'none'",
        "all of them: written[0].shape == x.shape",
        "in order: are_own(places, x.shape)",
    ],
    source="ONNX ScatterND",
    sample=_draw_written,
)
def take_what_is_written_everywhere(m: Match) -> Term:
    """``ScatterND(x, all places, y) == y``."""
    return m.written[0]


# --- along an axis


def to_front(axis: int, rank: int) -> tuple[int, ...]:
    """The permutation that moves an axis to the front.

    >>> to_front(2, 4)
    (2, 0, 1, 3)
    """
    return axis, *(i for i in range(rank) if i != axis)


def places_along(i: Ref, axis: int, x: Ref) -> Term:
    """Where elements of ``x`` lie whose places along an axis are ``i``, a column: one for each place along the axes before it."""
    before, count = x.shape[:axis], i.shape[0]
    grid = np.stack(np.indices(before, np.int64), -1)[..., np.newaxis, :]  # type: ignore[arg-type]
    line = (*(1,) * axis, count, 1)
    column = repeated(viewed(i, (count, 1), line, i), line, (*before, count, 1), i)
    return apply("Concat", repeated(literal(grid), grid.shape, (*before, count, axis), i), column, axis=-1)


def run_of(i: Ref, extent: int) -> range:
    """The places in a column, if they lie side by side; none otherwise."""
    places = (i.elements % extent).tolist()
    run = range(places[0][0], places[0][0] + len(places)) if places else range(0)
    return run if places == [[place] for place in run] else range(0)


def joined_around(y: Term, x: Ref, run: range, axis: int) -> Term:
    """``y`` between what ``x`` has before and behind a run of places along an axis."""
    extent: Any = x.shape[axis]
    before, behind = ([slice_term(x, {axis: r})] if r else [] for r in (range(run.start), range(run.stop, extent)))
    return apply("Concat", *before, y, *behind, axis=axis) if before or behind else y


ALONG = "x = d.floats([A, B, C]); p = (1, 0, 2); q = (1, 0, 2);"
equation = Equations(__name__, functions=named(inverse, transpose), source="ONNX ScatterND and Transpose")
equation(
    "scatter_along_axis_instead_of_transposing",
    "Transpose(ScatterND(Transpose(x, perm=p, **f), i, u, reduction='none', **s), perm=q, **b)"
    " == ScatterND(x, places_along(i, p[0], x), transpose(u, q), reduction='none')",
    "an axis behind others is moved to the front: p[0] > 0 and p == to_front(p[0], x.rank)",
    "and back: q == inverse(to_front(p[0], x.rank))",
    "places are those along it: i.rank == 2 and i.shape[1] == 1",
    "how many are known: all(isinstance(d, int) for d in x.shape[0:p[0]])",
    drawn=(
        f"{ALONG} i = d.rng.permutation(B)[:, None] | d.rng.permutation(B)[:, None] - B; u: [B, A, C]",
        "i = fixed([[0]], 'int64'); u: [1, A, C]",
        "p = (2, 0, 1); q = (1, 2, 0); i = d.rng.permutation(C)[:, None]; u: [C, A, B]",
        "p = (1, 2, 0); q = (2, 0, 1) | (1, 0, 2); u: [B, C, A]",
        "q = (1, 2, 0) | (0, 1, 2)",
        "i = fixed([[0, 0]], 'int64'); u: [1, C]",
        "SYMBOLS = [A]",
    ),
)


SIDE_BY_SIDE = (
    "x: [B, A, C]; i = fixed([[k] for k in range(B)][B // 2 :], 'int64'); u: [B - B // 2, A, C]",
    "i = fixed(d.rng.permutation(B)[:, None] - (0 | B)); u: [B, A, C]",
    "i = d.rng.permutation(B)[:, None]; u: [B, A, C]",
    "i = fixed([[0, 0]], 'int64'); u: [1, C]",
    "SYMBOLS = [B]",
)
KNOWN = (
    "along an axis of known extent: i.rank == 2 and isinstance(x.shape[{0}], int)",
    "at known places side by side: len(run_of(i, x.shape[{0}])) > 0",
)
equation(
    "join_instead_of_scattering",
    "ScatterND(x, i, u, reduction='none', **s) == joined_around(u, x, run_of(i, x.shape[0]), 0)",
    *(text.format(0) for text in KNOWN),
    drawn=SIDE_BY_SIDE,
)
equation(
    "join_along_axis_instead_of_scattering",
    "Transpose(ScatterND(Transpose(x, perm=p, **f), i, u, reduction='none', **s), perm=q, **b)"
    " == joined_around(transpose(u, q), x, run_of(i, x.shape[p[0]]), p[0])",
    "the axis is moved to the front and back: q == inverse(p)",
    *(text.format("p[0]") for text in KNOWN),
    drawn=(f"{ALONG} {SIDE_BY_SIDE[0]}; x = d.floats([A, B, C])", *SIDE_BY_SIDE[1:], "q = (1, 2, 0) | (0, 1, 2)"),
)


# --- every other place, and then those between


def begin_of(i: Ref, extent: Dim) -> int | None:
    """Where the places in a column begin, if they are every other one of so many."""
    if not isinstance(extent, int) or extent % 2:
        return None
    places = (i.elements % extent).tolist()
    return next((n for n in (0, 1) if places == [[k] for k in range(n, extent, 2)]), None)


def woven(u: Term, v: Term, begin: int, x: Ref, axis: int) -> Term:
    """``u`` and ``v`` by turns along an axis of what has the extents of ``x``, from ``begin`` 1 on ``v`` first."""
    extent: Any = x.shape[axis]
    before, behind = (*x.shape[:axis], extent // 2), x.shape[axis + 1 :]
    turns = [viewed(y, (*before, *behind), (*before, 1, *behind), x) for y in ((v, u) if begin else (u, v))]
    return viewed(apply("Concat", *turns, axis=axis + 1), (*before, 2, *behind), x.shape, x)


TURNS = (
    """x: [2 * B, A, C]; i = fixed([[k] for k in range(0, 2 * B, 2)], "int64"); u: [B, A, C]
       j = fixed([[k - 2 * B] for k in range(1, 2 * B, 2)], "int64"); v: [B, A, C]""",
    """i = fixed([[k] for k in range(1, 2 * B, 2)], "int64"); j = fixed([[k] for k in range(0, 2 * B, 2)], "int64")""",
    """i = fixed([[k] for k in range(1, 2 * B, 2)], "int64"); j = fixed([[k] for k in range(1, 2 * B, 2)], "int64")""",
    """i = fixed([[k] for k in range(0, 2 * B, 2)][::-1], "int64")""",
)
BY_TURNS = (
    "at every other place and at those between: {{begin_of(i, x.shape[{0}]), begin_of(j, x.shape[{0}])}} == {{0, 1}}"
)
TWICE = "ScatterND(ScatterND({}, i, u, reduction='none', **s), j, v, reduction='none', **r)"
equation(
    "weave_instead_of_scattering",
    f"{TWICE.format('x')} == woven(u, v, begin_of(i, x.shape[0]), x, 0)",
    BY_TURNS.format(0),
    drawn=(*TURNS, "x: [2 * B + 1, A, C]"),
)
equation(
    "weave_along_axis_instead_of_scattering",
    f"Transpose({TWICE.format('Transpose(x, perm=p, **f)')}, perm=q, **b)"
    " == woven(transpose(u, q), transpose(v, q), begin_of(i, x.shape[p[0]]), x, p[0])",
    "the axis is moved to the front and back: q == inverse(p)",
    BY_TURNS.format("p[0]"),
    drawn=(f"{ALONG} {TURNS[0]}; x = d.floats([A, 2 * B, C])", *TURNS[1:], "q = (1, 2, 0) | (0, 1, 2)"),
)
