"""Look-ups of places that are known and follow one another: all of them are the value, windows are slices, and slices in steps
beside one another are its blocks.

Exporters unfold a value into windows by a Gather for each of its axes, with a row of places for each place of the window. Along
the last axis that copies element by element; a Slice for each row copies what lies together. Where windows do not overlap, as
where a window transformer merges patches, models cut every other row and column and concatenate the parts.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations, group_rule, named
from eqsat.ir.extents import product
from eqsat.ir.types import Dim
from eqsat.rewrite import GroupView, Match, Ref, Term, apply
from eqsat.rules.terms import by_class
from eqsat.rules.views.extents import viewed
from eqsat.rules.views.movement import slice_term, slices_forward
from eqsat.rules.views.parts import concats
from eqsat.samples import Drawing, Instance, Sampler

_MOST, _LONG = 32, 8
"""Slices that take the place of a look-up, at most, and elements of each, at least."""


def are_all(places: np.ndarray, extent: Dim) -> bool:
    """Whether places along an axis are all there are, in order.

    >>> are_all(np.array([[0, 1], [2, -1]]), 4), are_all(np.array([0, 1]), 4)
    (True, False)
    """
    return (
        isinstance(extent, int) and places.size == extent and np.array_equal(places.ravel() % extent, np.arange(extent))
    )


def runs(places: np.ndarray, extent: int) -> list[range]:
    """What each row of places takes of an axis, if it goes through it in steps as long as its first one.

    >>> runs(np.array([[0, 2, 4], [1, 3, -1]]), 6)
    [range(0, 5, 2), range(1, 6, 2)]
    """
    rows = np.where(places < 0, places + extent, places).reshape(-1, places.shape[-1]).tolist()
    return [
        range(first, last + 1, max(second - first, 1)) for first, second, last in ((r[0], r[1], r[-1]) for r in rows)
    ]


def are_runs(places: np.ndarray, extent: Dim) -> bool:
    """Whether each row of places goes through the axis in equal steps.

    >>> are_runs(np.array([[0, 2, 4], [1, 3, -1]]), 6), are_runs(np.array([0, 1, 1]), 6)
    (True, False)
    """
    if not isinstance(extent, int) or places.size == 0 or places.ndim == 0 or places.shape[-1] < 2:
        return False
    taken = [list(run) for run in runs(places, extent)]
    return taken == (places.reshape(-1, places.shape[-1]) % extent).tolist()


def cut_at(x: Ref, rows: Sequence[range], axis: int, shape: Sequence[Dim]) -> Term:
    """What rows take of an axis of ``x``, one behind the other, in a shape."""
    slices = [slice_term(x, {axis: row}) for row in rows]
    joined = apply("Concat", *slices, axis=axis) if len(slices) > 1 else slices[0]
    return viewed(joined, (*x.shape[:axis], sum(map(len, rows)), *x.shape[axis + 1 :]), shape, x)


equation = Equations(__name__, functions=named(viewed, product), source="ONNX Gather and Slice")
equation(
    "view_instead_of_gathering_in_order",
    "Gather(x, i, axis=a, **g) == viewed(x, x.shape, root.shape, x)",
    constant("i"),
    "every place, in order: are_all(i.value, x.shape[a])",
    drawn="""x: [A, B, C]; a = 1 | -2; i = fixed([*range(B)] | [[k] for k in range(B)] | [[k - B for k in range(B)]]
             | [*range(B)][::-1], "int64")""",
)
equation(
    "slices_instead_of_gathering_windows",
    "Gather(x, i, axis=a, **g) == cut_at(x, runs(i.value, x.shape[a]), a % x.rank, root.shape)",
    constant("i"),
    worthwhile("elements lie apart: product(x.shape[a % x.rank + 1 :]) == 1"),
    "each row goes through the axis in equal steps: are_runs(i.value, x.shape[a])",
    worthwhile(f"few long rows: {_LONG} <= i.shape[-1] and product(i.shape[:-1]) <= {_MOST}"),
    drawn=(
        """W = d.integer(8, 12); S = d.integer(1, 2); x: [A, S * W + 2]; a = 1 | -1
           i = fixed([[k + S * n for n in range(W)] for k in range(3)], "int64")""",
        'i = fixed([S * n for n in range(W)], "int64")',
        'i = fixed([[[k + S * n - S * W - 2 for n in range(W)] for k in range(2)]], "int64")',
        'i = fixed([[S * abs(n - 4) for n in range(W)]], "int64")',
    ),
)


# --- blocks

Starts = Mapping[int, int]
"""Cut axis -> where a slice that goes through it in steps begins."""


def _steps(whole: Ref, cut: Mapping[int, range]) -> dict[int, int]:
    """Axis -> step of a slice whose axes are whole or gone through to the end in steps; else nothing.

    Slices from all starts are concatenated only where they are equally long: where the step divides the extent."""
    steps: dict[int, int] = {}
    for axis, found in cut.items():
        extent = whole.shape[axis]
        if isinstance(extent, int) and found != range(extent):
            if found.start >= found.step or found != range(found.start, extent, found.step):
                return {}
            steps[axis] = found.step
    return steps


def _strided(view: GroupView) -> Iterator[tuple[Ref, tuple[Ref, dict[int, int], Starts]]]:
    """Every Slice that takes some axes in steps, with the value, the steps and the starts."""
    for node, whole, cut in slices_forward(view):
        steps = _steps(whole, cut)
        if steps:
            yield node, (whole, steps, {axis: cut[axis].start for axis in steps})


def _slowest_first(steps: Mapping[int, int], starts: Sequence[Starts]) -> tuple[int, ...] | None:
    """The order of the cut axes in which slices go through all starts, the last one fastest; ``None`` if they do not."""
    for order in itertools.permutations(steps):
        every = itertools.product(*(range(steps[axis]) for axis in order))
        if [dict(zip(order, each, strict=True)) for each in every] == list(starts):
            return order
    return None


def _side_by_side(view: GroupView) -> Iterator[Match]:
    """Concatenations along the last axis of slices that are all of a value: its rows stay together."""
    found = list(_strided(view))
    strided = by_class(found)
    begin: dict[tuple[int, int, frozenset[tuple[int, int]]], Starts] = {}
    for node, (whole, steps, starts) in found:
        begin.setdefault((node.handle, whole.handle, frozenset(steps.items())), starts)
    for node, (axis, (first, *others)) in concats(view):
        for whole, steps, starts in strided.get(first.handle, ()):
            last, cut = whole.rank - 1, frozenset(steps.items())
            if axis != last or last in steps or math.prod(steps.values()) != 1 + len(others):
                continue
            rest = [begin[key] for other in others if (key := (other.handle, whole.handle, cut)) in begin]
            order = _slowest_first(steps, [starts, *rest])
            if order is not None:
                yield Match({"x": whole, "steps": steps, "order": order}, node)


def _patches(d: Sampler) -> Instance:
    drawing = Drawing()
    axes = d.choose(((1, 2), (2, 1), (0, 1), (1,), (0,)))
    steps = [d.integer(2, 3) for _ in axes]
    shape = [d.integer(1, 2), *d.extents(3)[1:], d.integer(1, 4)]
    for axis, step in zip(axes, steps, strict=True):
        shape[axis] = step * d.integer(2, 3)
    x = drawing.value(d.floats(shape))
    starts = [list(each) for each in itertools.product(*map(range, steps))]
    if d.chance(0.2):
        starts[0], starts[-1] = starts[-1], starts[0]
    far = [2**31 - 1] * len(axes)
    parts = [drawing.op("Slice", x, each, far, axes, steps) for each in starts]
    return drawing.finish(drawing.op("Concat", *parts, axis=d.choose((-1, len(shape) - 1))))


@group_rule(find=_side_by_side, source="ONNX Slice; Liu et al. 2021, patch merging", sample=_patches)
def blocks_instead_of_strided_slices(m: Match) -> Term:
    """``Concat(x[0::2], x[1::2]) == Reshape(Transpose(Reshape(x)))``: blocks of a value become rows of it."""
    x, steps, order = m.x, m.steps, m.order
    cut: list[Dim] = []
    places: dict[int, int] = {}
    for axis, extent in enumerate(x.shape):
        places[axis] = len(cut)
        cut += [extent // steps[axis], steps[axis]] if axis in steps else [extent]
    last = x.rank - 1
    kept = [places[axis] for axis in range(last)]
    moved = apply(
        "Transpose",
        viewed(x, x.shape, cut, x),
        perm=(*kept, *(places[axis] + 1 for axis in order), places[last]),
    )
    shape = [cut[place] for place in kept]
    between = (*shape, *(steps[axis] for axis in order), x.shape[last])
    return viewed(moved, between, m.root.shape, x)
