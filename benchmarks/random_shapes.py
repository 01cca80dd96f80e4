"""Operators of random models whose operands are computed of extents, as in files with symbols: see `benchmarks.random_models`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.model_parts import Refused
from benchmarks.random_extents import (
    calculated,
    counted,
    extent,
    extents_of,
    filling,
    ints,
    known,
    listing,
    number,
    one_op,
    scalar,
    some_axis,
)
from benchmarks.random_models import Growing

_Idiom = Callable[[Growing, str], None]
_IDIOMS: list[_Idiom] = []


def add_shapes(g: Growing) -> None:
    """Adds one of the idioms on a recent value. Raises `Refused`."""
    d = g.d
    made = [v for v, a in g.visible.items() if v not in g.constants and a.ndim and a.dtype.kind == "f"]
    if not made:
        raise Refused
    d.choose(_IDIOMS)(g, d.choose(made[-4:]))


def _idiom(build: _Idiom) -> _Idiom:
    _IDIOMS.append(build)
    return build


@_idiom
def _merged(g: Growing, x: str) -> None:
    """Two axes made one, and often two again behind something else."""
    d, rank = g.d, g.visible[x].ndim
    if rank < 2:
        raise Refused
    i = d.integer(0, rank - 2)
    extents = extents_of(g, x)
    product = ints(g, -1) if d.chance() else one_op(g, "Mul", *extents[i : i + 2])
    flat = one_op(g, "Reshape", x, listing(g, *extents[:i], product, *extents[i + 2 :]))
    made = one_op(g, d.choose(("Relu", "Tanh", "Neg", "Softmax")), flat)
    if d.chance(0.7):
        back = extents_of(g, x)
        back[d.integer(0, rank - 1)] = ints(g, -1)
        one_op(g, "Reshape", made, listing(g, *back))


@_idiom
def _parted(g: Growing, x: str) -> None:
    """One axis made two, turned, and joined again: heads, groups, shuffled channels."""
    d, axis, shape = g.d, some_axis(g, x), g.visible[x].shape
    factors = [k for k in range(1, shape[axis] + 1) if shape[axis] % k == 0]
    k = d.choose(factors or (1,))
    extents, number = extents_of(g, x), ints(g, k)
    rest = one_op(g, "Div", extents[axis], number) if d.chance(0.6) else ints(g, -1)
    two = (number, rest) if d.chance() else (rest, number)
    parts = one_op(g, "Reshape", x, listing(g, *extents[:axis], *two, *extents[axis + 1 :]))
    if d.chance(0.8):
        turned = one_op(g, "Transpose", parts, perm=d.permutation(len(shape) + 1))
        one_op(g, "Reshape", turned, listing(g, *extents_of(g, x)[:-1], ints(g, -1)))


@_idiom
def _like(g: Growing, x: str) -> None:
    """Reshaped or expanded to the shape of another value."""
    d = g.d
    if d.chance(0.3):
        alike = [v for v, a in g.visible.items() if a.size == g.visible[x].size and v not in g.constants]
        one_op(g, "Reshape", x, one_op(g, "Shape", d.choose(alike)))
        return
    axis = some_axis(g, x)
    row = (
        one_op(g, d.choose(("ReduceMax", "ReduceMin")), x, axes=[axis])
        if g.opset < 18
        else one_op(g, "ReduceMax", x, ints(g, axis))
    )
    shape = listing(g, *extents_of(g, x)) if d.chance() else one_op(g, "Shape", x)
    if d.chance(0.3):  # as PyTorch's exporter spells ``expand(-1, ...)``
        ones = one_op(g, "ConstantOfShape", ints(g, g.visible[x].ndim), value=filling(1))
        shape = one_op(g, "Where", one_op(g, "Equal", shape, one_op(g, "Mul", ones, ints(g, -1))), ones, shape)
    whole = one_op(g, "Expand", row, shape)
    if d.chance():
        one_op(g, d.choose(("Sub", "Mul", "Add")), x, whole)


@_idiom
def _cut(g: Growing, x: str) -> None:
    """A slice by bounds that are computed, or two that are joined again."""
    d, axis = g.d, some_axis(g, x)
    bound, at = calculated(g, x, axis), ints(g, axis)
    first = ints(g, d.choose((0, 0, 1)))
    step = ints(g, d.choose((1, 1, 1, 2)))
    part = one_op(g, "Slice", x, first, bound, at, step)
    if d.chance():
        rest = one_op(g, "Slice", x, bound, ints(g, 2**63 - 1) if d.chance() else extent(g, x, axis), at, ints(g, 1))
        one_op(g, "Concat", *((rest, part) if d.chance() else (part, rest)), axis=axis)


@_idiom
def _last(g: Growing, x: str) -> None:
    """The last elements: of a cache, or of the last position."""
    d, axis = g.d, some_axis(g, x)
    if d.chance():
        last = one_op(g, "Sub", extent(g, x, axis), ints(g, 1))
        one_op(g, "Gather", x, last if d.chance() else scalar(g, last), axis=axis)
    else:
        first = one_op(g, "Neg", calculated(g, x, axis))
        one_op(g, "Slice", x, first, ints(g, 2**31 - 1), ints(g, axis))


@_idiom
def _counted(g: Growing, x: str) -> None:
    """Places along an axis: looked up in a table, compared to a mask, or turned into angles."""
    d, rank, axis = g.d, g.visible[x].ndim, some_axis(g, x)
    n = scalar(g, extent(g, x, axis))
    places = counted(g, n)
    kind = d.integer(0, 3)
    if kind == 0:
        table = g.constant(d.floats((64, *([3] if d.chance() else []))))
        one_op(g, "Gather", table, places)
    elif kind == 1:
        other = counted(g, scalar(g, calculated(g, x, some_axis(g, x))))
        grid = [one_op(g, "Unsqueeze", v, ints(g, i)) for v, i in ((places, 0), (other, 1))]
        mask = one_op(g, d.choose(("Less", "LessOrEqual", "Equal")), *(grid if d.chance() else grid[::-1]))
        values = (number(g, v) for v in (0, d.choose((-np.inf, -1e4, 1))))
        one_op(g, "Where", mask, *values)
    elif kind == 2:
        floats = one_op(g, "Cast", places, to=1)
        column = one_op(g, "Unsqueeze", floats, ints(g, 1))
        angles = one_op(g, "Mul", column, g.constant(d.floats((1, 3))))
        one_op(g, d.choose(("Sin", "Cos")), angles)
    else:
        column = one_op(
            g,
            "Reshape",
            one_op(g, "Cast", places, to=1),
            listing(g, *[ints(g, -1 if i == axis else 1) for i in range(rank)]),
        )
        one_op(g, d.choose(("Add", "Mul")), x, column)


@_idiom
def _repeated(g: Growing, x: str) -> None:
    d, rank, axis = g.d, g.visible[x].ndim, some_axis(g, x)
    times = calculated(g, x, some_axis(g, x)) if d.chance(0.6) else ints(g, 2)
    one_op(g, "Tile", x, listing(g, *[times if i == axis else ints(g, 1) for i in range(rank)]))


@_idiom
def _padded(g: Growing, x: str) -> None:
    """Padded up to a multiple, at times cut into windows of that many."""
    d, rank, axis = g.d, g.visible[x].ndim, some_axis(g, x)
    k = d.integer(2, 4)
    n, size = extent(g, x, axis), ints(g, k)
    missing = one_op(g, "Mod", one_op(g, "Sub", size, one_op(g, "Mod", n, size)), size)
    zeros = [ints(g, 0)] * (2 * rank)
    zeros[axis if d.chance(0.3) else axis + rank] = missing if d.chance(0.8) else calculated(g, x, axis)
    padded = one_op(g, "Pad", x, listing(g, *zeros), mode=d.choose(("constant", "constant", "edge", "reflect")))
    if d.chance(0.7):
        extents = extents_of(g, padded)
        windows = one_op(g, "Div", extents[axis], size) if d.chance() else ints(g, -1)
        split = one_op(g, "Reshape", padded, listing(g, *extents[:axis], windows, size, *extents[axis + 1 :]))
        order = list(range(rank + 1))
        order.insert(0, order.pop(axis))
        turned = one_op(g, "Transpose", split, perm=order)
        if d.chance():
            back = one_op(g, "Transpose", one_op(g, "Relu", turned), perm=[order.index(i) for i in range(rank + 1)])
            whole = one_op(g, "Reshape", back, one_op(g, "Shape", padded))
            one_op(g, "Slice", whole, ints(g, 0), n, ints(g, axis))


@_idiom
def _sized(g: Growing, x: str) -> None:
    """Resized to extents that are computed."""
    d, rank = g.d, g.visible[x].ndim
    extents = [known(g, x, i) if i < 2 else calculated(g, x, i) for i in range(rank)]
    mode = d.choose(("nearest", "linear"))
    places = d.choose(("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"))
    one_op(g, "Resize", x, "", "", listing(g, *extents), mode=mode, coordinate_transformation_mode=places)


@_idiom
def _split(g: Growing, x: str) -> None:
    """Two parts of computed sizes, or as many as fit."""
    d, axis = g.d, some_axis(g, x)
    if d.chance(0.3) and g.opset >= 18:
        count = d.integer(1, 3)
        parts = g.op("Split", x, outputs=count, axis=axis, num_outputs=count)
    else:
        n = extent(g, x, axis)
        first = calculated(g, x, axis)
        sizes = listing(g, first, one_op(g, "Sub", n, first))
        parts = g.op("Split", x, sizes, outputs=2, axis=axis)
    one = [one_op(g, d.choose(("Relu", "Neg", "Sigmoid")), part) for part in parts]
    if d.chance(0.7):
        one_op(g, "Concat", *one, axis=axis)


@_idiom
def _most(g: Growing, x: str) -> None:
    """The largest of an axis, as many as there are up to a limit, and what lies there."""
    d, axis = g.d, some_axis(g, x)
    n = one_op(g, "Min", extent(g, x, axis), ints(g, d.integer(1, 4)))
    values, places = g.op("TopK", x, n, outputs=2, axis=axis)
    if d.chance():
        one_op(g, "GatherElements", x, places, axis=axis)
    elif d.chance():
        one_op(g, "Sub", values, one_op(g, "Slice", x, ints(g, 0), n, ints(g, axis)))


@_idiom
def _where_not_zero(g: Growing, x: str) -> None:
    """Rows for which something holds: their number is known only when it runs."""
    d = g.d
    places = one_op(g, "NonZero", one_op(g, "Greater", x, number(g, d.choose((0.0, -50.0)))))
    rows = one_op(g, "Transpose", places, perm=(1, 0))
    found = one_op(g, "GatherND", x, rows)
    if d.chance():
        one_op(g, "ScatterND", x, rows, one_op(g, "Neg", found))


@_idiom
def _attended(g: Growing, x: str) -> None:
    """Attention over the last but one axis, masked by places at times."""
    d, rank, shape = g.d, g.visible[x].ndim, g.visible[x].shape
    if rank < 3:
        raise Refused
    order = (*range(rank - 2), rank - 1, rank - 2)
    scores = one_op(
        g, "Mul", one_op(g, "MatMul", x, one_op(g, "Transpose", x, perm=order)), number(g, shape[-1] ** -0.5)
    )
    if d.chance():
        n = scalar(g, extent(g, x, rank - 2))
        places = counted(g, n)
        ahead = one_op(
            g, "Less", one_op(g, "Unsqueeze", places, ints(g, 1)), one_op(g, "Unsqueeze", places, ints(g, 0))
        )
        low = number(g, d.choose((-np.inf, -1e9, -1e4, -3.4028235e38)))
        scores = one_op(g, "Add", scores, one_op(g, "Where", ahead, low, number(g, 0)))
    made = one_op(g, "MatMul", one_op(g, "Softmax", scores, axis=-1), x)
    if d.chance(0.3):
        one_op(g, "Reshape", made, listing(g, *extents_of(g, x)[:-2], ints(g, -1)))


@_idiom
def _normalised(g: Growing, x: str) -> None:
    """A norm of groups of channels, or of the last axis, spelled out."""
    d, rank, shape = g.d, g.visible[x].ndim, g.visible[x].shape
    if rank > 2 and d.chance():
        groups = d.choose([k for k in range(1, shape[1] + 1) if shape[1] % k == 0])
        target = listing(g, known(g, x, 0), ints(g, groups), ints(g, -1))
        units = (g.constant(np.full(groups, v, np.float32)) for v in (1, 0))
        rows = one_op(g, "InstanceNormalization", one_op(g, "Reshape", x, target), *units, epsilon=1e-3)
        back = one_op(g, "Reshape", rows, one_op(g, "Shape", x) if d.chance() else listing(g, *extents_of(g, x)))
        one_op(g, "Mul", back, g.constant(d.floats((shape[1], *[1] * (rank - 2)))))
        return
    last = {"axes": [-1]} if g.opset < 18 else {}
    axes = [] if g.opset < 18 else [ints(g, -1)]
    centred = one_op(g, "Sub", x, one_op(g, "ReduceMean", x, *axes, **last))
    variance = one_op(g, "ReduceMean", one_op(g, "Mul", centred, centred), *axes, **last)
    one_op(g, "Div", centred, one_op(g, "Sqrt", one_op(g, "Add", variance, number(g, 1e-3))))


@_idiom
def _scanned(g: Growing, x: str) -> None:
    """A convolution, a pool or a product with weights."""
    d, rank, shape = g.d, g.visible[x].ndim, g.visible[x].shape
    if rank < 3 or d.chance(0.3):
        one_op(g, "MatMul", x, g.constant(d.floats((shape[-1], d.integer(1, 5)))))
    elif d.chance(0.3):
        kernel = [d.integer(1, 3) for _ in range(rank - 2)]
        one_op(
            g, d.choose(("AveragePool", "MaxPool")), x, kernel_shape=kernel, strides=[d.integer(1, 2) for _ in kernel]
        )
    else:
        kernel = [d.integer(1, 3) for _ in range(rank - 2)]
        pads = [d.integer(0, k - 1) for k in kernel] * 2
        weight = g.constant(d.floats((d.integer(1, 4), shape[1], *kernel)))
        one_op(g, "Conv", x, weight, pads=pads, strides=[d.integer(1, 2) for _ in kernel])


@_idiom
def _stored(g: Growing, x: str) -> None:
    """Joined to what was stored before, which is read and written as a cache is."""
    d, axis = g.d, some_axis(g, x)
    alike = [
        v
        for v, a in g.visible.items()
        if a.ndim == g.visible[x].ndim
        and np.delete(a.shape, axis).tolist() == np.delete(g.visible[x].shape, axis).tolist()
    ]
    joined = one_op(g, "Concat", d.choose(alike), x, axis=axis)
    if d.chance():
        fresh = one_op(g, "Neg", extent(g, x, axis))
        one_op(g, "Slice", joined, fresh, ints(g, 2**63 - 1), ints(g, axis))
