"""Places along an axis: the first elements of a value, and positions as numbers.

The first elements of a value do not have to be told by counting, which with symbolic extents is done at run time; and where
places are numbers to compute with, for every row of a batch, adding up ones counts them.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np

from eqsat.conditions import worthwhile
from eqsat.equations import Equations, group_rule, named
from eqsat.exactness import Exactness
from eqsat.ir.normal_form import Dim
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Match, Ref, Term, apply, literal
from eqsat.rules.terms import by_class, complete_nodes, int64s, mul
from eqsat.rules.views.counting import Indices, Places
from eqsat.rules.views.extents import listed, repeated, viewed
from eqsat.samples import Drawing, Instance, Sampler, fixed

equation = Equations(__name__, source="ONNX NonZero and Range", functions=named(int64s))


def _draw_first(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, columns = d.extents(2, ones=0)
    axis = d.integer(0, 1)
    x = drawing.value(d.floats((rows, columns)), {rows, columns} if d.chance() else ())
    n = d.integer(1, (rows, columns)[axis])
    given = drawing.value(d.floats((n, 2)), {n})
    at = drawing.places(given, 0, start=0 if d.chance(0.9) else 1, step=1 if d.chance(0.9) else 2)
    if d.chance(0.3):
        at = drawing.op("Unsqueeze", at, [0])
    return drawing.finish(drawing.op("Gather", x, at, axis=axis))


def _first_looked_up(view: GroupView) -> Iterator[Match]:
    indices = Indices(view)
    for node, (x, at) in complete_nodes(view, "Gather"):
        places = indices.of(at)
        along = None if places is None else first_along(places, at.shape)
        if along is not None and x.type.shape is not None:
            yield Match({"x": x, "n": at.shape[along], "axis": int(node.attr("axis", 0)) % x.rank}, node)


def first_along(places: Places, shape: Sequence[Dim]) -> int | None:
    """The axis along which indices count from 0, all others being one place; ``None`` if there is none."""
    axis = next(iter(places.strides), -1)
    counts = places == Places(0, {axis: 1}) and all(d == 1 for i, d in enumerate(shape) if i != axis)
    return axis if counts else None


@group_rule(
    find=_first_looked_up,
    where=[
        "were there too few, that would show: x.shape[axis] != 1",
        worthwhile("how many are read is a symbol: not isinstance(n, int)"),
    ],
    source="ONNX Gather and Slice",
    sample=_draw_first,
    raises=True,
)
def cut_instead_of_gathering_first(m: Match) -> Term:
    """``Gather(x, Range(0, n)) == x[:n]``, which has fewer elements where the look-up has no value: an index is out of range."""
    first = apply("Slice", m.x, int64s((0,)), listed([m.n], m.x), int64s((m.axis,)))
    cut = (*m.x.shape[: m.axis], m.n, *m.x.shape[m.axis + 1 :])
    return viewed(first, cut, m.root.shape, m.x)


# As exporters count before opset 11, which has Range.
equation(
    "count_instead_of_looking_for_zeros",
    "NonZero(x) == Unsqueeze(Range(0, Squeeze(Shape(x)), 1), int64s([0]))",
    "a vector: x.rank == 1",
    "no element is zero: x.low > 0 or x.high < 0",
)


def _draw_differences(d: Sampler) -> Instance:
    """Places and those before them, as what was packed into one sequence is told apart by jumps, and what is near that."""
    drawing = Drawing()
    batch, length = d.extents(2, ones=0.1)
    given = drawing.value(d.floats((batch, length)), {batch, length})
    step = d.choose((1, 1, 2))
    row = drawing.op("Unsqueeze", drawing.places(given, 1, start=d.choose((0, 0, 3)), step=step), [0])
    row = drawing.op("Expand", row, drawing.op("Shape", given)) if d.chance(0.8) and step == 1 else row
    if d.chance(0.5):  # what is counted already, from there or elsewhere
        ones = drawing.op("Expand", d.choose((1, 1, 1, 2)), drawing.op("Shape", given))
        counted = drawing.op("CumSum", ones, d.choose((1, 1, 0)), exclusive=d.integer(0, 1))
        moved = drawing.op("Sub", drawing.op("Add", row, 3), 3 if d.chance(0.8) else 2)
        equal = drawing.op("Equal", moved, row)
        return drawing.finish(*d.choose(((counted, row), (moved, row), (equal, row))))
    first = drawing.op("Slice", row, *(([0], [1]) if d.chance(0.9) else ([-1], [99])), [1])
    before = drawing.op("Sub", first, step if d.chance(0.8) else 3)
    both = drawing.op("Concat", *((before, row) if d.chance(0.9) else (row, before)), axis=d.choose((1, -1)))
    ends = drawing.op("Shape", row, start=1, end=2), drawing.op("Shape", both, start=1, end=2)
    earlier = drawing.op("Slice", both, [0], ends[0], [1])
    later = drawing.op("Slice", both, [1], ends[1], [1]) if d.chance(0.9) else row
    jumps = drawing.op("Sub", *((later, earlier) if d.chance(0.8) else (earlier, later)))
    if d.chance(0.2):
        jumps = drawing.op("Sub", jumps, jumps if d.chance(0.7) else step)
        jumps = drawing.op("CumSum", jumps, d.choose((1, 0, -1)), exclusive=d.integer(0, 1))
    return drawing.finish(jumps)


def _computed_places(view: GroupView) -> Iterator[Match]:
    """Differences, sums and comparisons of whole numbers: where they count from, along which axes, and what counts like that."""
    indices = Indices(view)
    for node, pair in complete_nodes(view, "Sub", "CumSum", "Equal"):
        compared = node.type.dtype is DType.BOOL
        if pair[0].type.dtype is not DType.INT64 or node.type.shape is None:
            continue
        places = indices.difference(node, pair) if compared else indices.of(node)
        if places is not None and isinstance(places.start, int):
            known = next((x for x in pair if x.type.shape == node.type.shape), node)
            strides, extents = tuple(places.strides.items()), [node.shape[axis] for axis in places.strides]
            vector = indices.counts.get(extents[0]) if len(extents) == 1 and not compared else None
            vector = vector if vector is not None and vector.dtype is node.dtype else None
            n = places.start == 0 if compared else places.start
            yield Match({"n": n, "strides": strides, "vector": vector, "known": known}, node)


@group_rule(
    find=_computed_places,
    where=[
        worthwhile("not constant: not root.is_constant"),
        "counted along one axis at most: len(strides) == 0 or vector is not None",
        "in steps of one, from 0: len(strides) == 0 or (n == 0 and strides[0][1] == 1)",
    ],
    source="ONNX Range, Sub and CumSum",
    sample=_draw_differences,
)
def count_places_once(m: Match) -> Term:
    """``(i + k) - (i + l) == k - l``, ``(i + k) - k == i`` and ``Equal(i + k, i + l) == (k == l)`` for the places ``i`` along
    axes, as sums of ones or zeros count them, too."""
    if not m.strides:
        return repeated(literal(np.asarray(m.n)), (), m.root.shape, m.known)
    target = [d if i == m.strides[0][0] else 1 for i, d in enumerate(m.root.shape)]
    return repeated(viewed(m.vector, m.vector.shape, target, m.vector), target, m.root.shape, m.known)


def _draw_angles(d: Sampler) -> Instance:
    drawing = Drawing()
    batch, length, size = d.extents(3, ones=0)
    single = d.chance(0.15)  # one place, repeated, unless there are as many
    symbols = () if single else (batch, length)
    ids = drawing.value(d.integers((batch, length), "int64", 0, 2), symbols)
    others = drawing.value(d.integers((batch, length, 2), "int64", 0, 2), symbols)
    given = drawing.op("Cast", ids if d.chance(0.8) else others, to=int(DType.BOOL if d.chance(0.9) else DType.FLOAT))
    counted = (drawing.value(d.floats((1,)), {1}), 0) if single else (given, 1)
    at = drawing.places(*counted, start=0 if d.chance(0.9) else 2)
    at = drawing.op("Cast", drawing.op("Unsqueeze", at, [0, 2]), to=int(DType.FLOAT))
    angles = drawing.op("Mul", at, fixed(d.floats((1, size) if d.chance() else (size,))))
    whole = drawing.op("Concat", drawing.op("Shape", given, start=0, end=2), [size], axis=0)
    return drawing.finish(drawing.op("Expand", angles, whole), given)


def _counted_floats(view: GroupView) -> dict[int, list[Places]]:
    """What counts places in single precision, by class."""
    indices = Indices(view)
    casts = ((node, indices.of(x)) for node, (x,) in complete_nodes(view, "Cast") if node.type.dtype is DType.FLOAT)
    return by_class((node, places) for node, places in casts if places is not None)


def _scaled_places(view: GroupView) -> Iterator[Match]:
    """Places times constants, repeated along other axes, and truth values that are at hand."""
    expanded = [(node, x) for node, (x, _) in complete_nodes(view, "Expand") if node.type.dtype is DType.FLOAT]
    counted = _counted_floats(view) if expanded else {}
    truths = [node for node, _ in complete_nodes(view, "Cast") if node.type.dtype is DType.BOOL] if counted else []
    for node, x in expanded if truths else ():
        products = (inputs for op, inputs in view.spellings(x) if op == "Mul" and None not in inputs)
        for a, c in (pair for inputs in products for pair in permutations(inputs)):
            for places in counted.get(a.handle, ()) if a is not None else ():
                yield from (Match({"a": a, "c": c, "b": b, "places": places}, node) for b in truths)


def counted_shape(a: Ref, c: Ref, result: Ref) -> tuple[Dim, ...] | None:
    """The extents of places ``a`` repeated so that times ``c`` they are all of the result; ``None`` if both have one axis, or a
    symbol may be 1 where the result has more places."""
    whole = result.shape
    scaled, own = ((1,) * (len(whole) - v.rank) + v.shape for v in (c, a))
    if any((x != 1 and y != 1) or y not in (1, d) for x, y, d in zip(scaled, own, whole, strict=True)):
        return None
    return tuple(1 if x != 1 else d for x, d in zip(scaled, whole, strict=True))


def without_ones(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    return tuple(d for d in shape if d != 1)


@group_rule(
    find=_scaled_places,
    where=[
        "places are counted from 0: first_along(places, a.shape) is not None",
        worthwhile("only the factors are constant: c.is_constant and not a.is_constant"),
        "factors and places have different axes: counted_shape(a, c, root) is not None",
        "a truth value for each place: without_ones(counted_shape(a, c, root)) == b.shape",
    ],
    exactness=Exactness.ROUNDING,
    source="ONNX CumSum: of ones, which is exact up to 2**24",
    sample=_draw_angles,
)
def count_by_adding_ones(m: Match) -> Term:
    """``Expand(Cast(Range(0, n)) * c) == CumSum(Where(b, 1, 1), exclusive=1) * c`` for any truth values, of the right extents.

    What they are does not matter: they spare computing a list of extents and the conversion of the places to floats.
    """
    shape = counted_shape(m.a, m.c, m.root)
    assert shape is not None
    axis = next(iter(m.places.strides)) + len(shape) - m.a.rank
    one = literal(np.float32(1))
    ones = apply("Where", viewed(m.b, m.b.shape, shape, m.b), one, one)
    return mul(apply("CumSum", ones, literal(np.int64(axis)), exclusive=1), m.c)
