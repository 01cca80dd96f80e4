"""Look-ups of places that are known and follow one another: all of them are the value, and windows are slices.

Exporters unfold a value into windows by a Gather for each of its axes, with a row of places for each place of the window. Along
the last axis that copies element by element; a Slice for each row copies what lies together.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations, named
from eqsat.ir.extents import product
from eqsat.ir.types import Dim
from eqsat.rewrite import Ref, Term, apply
from eqsat.rules.views.extents import viewed
from eqsat.rules.views.movement import slice_term
from eqsat.samples import Sampler, fixed

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
    if not isinstance(extent, int) or places.ndim == 0 or places.shape[-1] < 2:
        return False
    taken = [list(run) for run in runs(places, extent)]
    return taken == (places.reshape(-1, places.shape[-1]) % extent).tolist()


def cut_at(x: Ref, rows: Sequence[range], axis: int, shape: Sequence[Dim]) -> Term:
    """What rows take of an axis of ``x``, one behind the other, in a shape."""
    slices = [slice_term(x, {axis: row}) for row in rows]
    joined = apply("Concat", *slices, axis=axis) if len(slices) > 1 else slices[0]
    return viewed(joined, (*x.shape[:axis], sum(map(len, rows)), *x.shape[axis + 1 :]), shape, x)


def _windows(d: Sampler) -> dict[str, Any]:
    extent, step, size = d.integer(8, 12), d.integer(1, 2), d.integer(1, 3)
    shape = [d.integer(1, 3), extent * step + size - 1]
    places = np.arange(size)[:, np.newaxis] + step * np.arange(extent)
    if d.chance(0.2):
        places[:, [3, 4]] = places[:, [4, 3]]
    places = places[0] if d.chance(0.3) else places[np.newaxis] if d.chance(0.2) else places
    return {
        "x": d.floats(shape),
        "i": fixed(places - shape[1] * d.chance(0.2), "int64"),
        "g": {"axis": d.choose((1, -1))},
    }


def _in_order(d: Sampler) -> dict[str, Any]:
    shape = list(d.extents(3, ones=0.4))
    axis = d.integer(0, 2)
    places = np.arange(shape[axis])[:: -1 if d.chance(0.3) else 1] - shape[axis] * d.chance(0.2)
    more = d.choose(((1, -1), (-1, 1), (-1,)))
    return {"x": d.floats(shape), "i": fixed(places.reshape(more), "int64"), "g": {"axis": axis - 3 * d.chance(0.2)}}


equation = Equations(
    __name__, functions=named(viewed, are_all, runs, are_runs, cut_at, product), source="ONNX Gather and Slice"
)
equation(
    "view_instead_of_gathering_in_order",
    "Gather(x, i, axis=a, **g) == viewed(x, x.shape, root.shape, x)",
    constant("i"),
    "every place, in order: are_all(i.value, x.shape[a])",
    sample=_in_order,
)
equation(
    "slices_instead_of_gathering_windows",
    "Gather(x, i, axis=a, **g) == cut_at(x, runs(i.value, x.shape[a]), a % x.rank, root.shape)",
    constant("i"),
    "each row goes through the axis in equal steps: are_runs(i.value, x.shape[a])",
    worthwhile("elements lie apart: product(x.shape[a % x.rank + 1 :]) == 1"),
    worthwhile(f"few long rows: {_LONG} <= i.shape[-1] and product(i.shape[:-1]) <= {_MOST}"),
    sample=_windows,
)
