"""What kernels that take alike time are told apart by, dropped: they share timings, and no noise decides between them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from eqsat.cost.model import IMAGE, Work, static_shape, total_bytes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Kind, traits_of
from eqsat.ir.traits import Rows
from eqsat.ir.types import HALVES, DType, TensorType, Type

_WITH_BIAS = frozenset(("Conv", "Gemm"))

_INTEGER_PRODUCTS = {
    "QLinearMatMul": ((1, 2, 4, 5, 6, 7), None),
    "QLinearConv": ((1, 2, 4, 5, 6, 7), 8),
    "com.microsoft::QLinearConv": ((1, 2, 4, 5, 6, 7), 8),
    "com.microsoft::QGemm": ((1, 2, 4, 5, 7, 8), 6),
    "com.microsoft::MatMulIntegerToFloat": ((2, 3, 4, 5), 6),
}
"""Products of integers: where scales and zero points are, and where the vector for the columns or channels."""

_PACKED = {"com.microsoft::MatMulNBits": 3}
"""Products by weights packed in bytes: where zero points may be, and a bias behind them."""

_OPTIONAL_ZEROS = {"com.microsoft::MatMulIntegerToFloat": {4: 0, 5: 1}}
"""Zero points that may be absent, and the operands whose they are."""

_HEADS = {
    "Attention": "q_num_heads",
    "com.microsoft::MultiHeadAttention": "num_heads",
    "com.microsoft::GroupQueryAttention": "num_heads",
}
"""Attention, and the attribute that says how many heads lie side by side in three axes."""

_LANES = 16
"""Floats in a vector: 4,096 rows of 21 take three times as long as rows of 16."""

_SCORE = 160.0
"""Operations of products that take as long as it does to normalise a score: 1.2 ns."""

_LAYING_OUT = 80.0
"""Operations of products that take as long as it does to put an element of a window in its place: 0.55 ns."""

_BEGINNING = 100.0
"""Operations on elements that take as long as it does to begin a run of them where an operand repeats: 12 ns."""

_TABLES = {"Gather": {0: 1}, "com.microsoft::EmbedLayerNormalization": {2: 0, 3: 0}}
"""Operands of which rows are looked up, and the operands that say which rows."""


def plain(work: Work) -> Work:
    """A kernel of one operator as the timings know it. Products have no vector for their columns or channels, single
    scales and stated zero points; elementwise operators run over one axis, or over rows where operands repeat along leading axes.

    Kernels of products add and scale on the way, in less time than timings scatter; those of elementwise operators go
    through the memory from end to end, whatever axes it is said to have. Split cuts rows: the axis and all behind it. Transpose
    and Pad do an operation for each stretch of elements that stay side by side, Softmax for each row that it normalises,
    convolutions of volumes some for each element of their windows.
    Where an operand repeats, elementwise operators do some for each run that is computed at once.
    Attention does some for each score, of which narrow heads have more. A table has no more rows than are looked up.
    """
    types = list(work.types)
    key = work.operators[0]
    if key in _INTEGER_PRODUCTS:
        numbers, bias = _INTEGER_PRODUCTS[key]
        types = _without_vectors(types, numbers, bias, _OPTIONAL_ZEROS.get(key, {}))
    elif key in _WITH_BIAS:
        if len(types) == 3 and isinstance(types[2], TensorType) and types[2].rank == 1:
            types.pop()
        work = replace(work, flops=work.flops + _LAYING_OUT * _laid_out(work))
    elif key in _PACKED:
        zeros = types[_PACKED[key]] if len(types) > _PACKED[key] else None
        as_bytes = (
            not isinstance(zeros, TensorType) or zeros.dtype is DType.UINT8
        )  # others are dequantised on every call
        types = types[: _PACKED[key] + (not as_bytes)]
    elif work.kind is Kind.ELEMENTWISE and len(work.results) == 1:
        return _flattened(work)
    elif key == "Split":
        return _cut_in_rows(work)
    elif key == "Transpose":
        return replace(work, flops=_stretches_moved(work))
    elif key == "Pad":
        return replace(work, flops=_stretches_padded(work))
    elif traits_of(key).rows is Rows.ALONG:
        return replace(work, flops=_rows_normalised(work))
    elif key in _HEADS:
        return _with_heads(work)
    elif key == "Resize":  # by factors or to sizes: the extents say how far
        types = types[:1]
    elif key in _TABLES and not work.attributes.get("axis", 0):
        types = _rows_looked_up(types, _TABLES[key])
    return work if tuple(types) == tuple(work.types) else _again(work, types, work.results)


def in_single(work: Work) -> Work:
    """A kernel of half precision as the one in single precision that runtimes have in its place, between casts, or that moves
    elements in the same way; the kernel itself if it converts elements, or has no half precision."""
    if traits_of(work.operators[0], work.attributes).converts:
        return work
    halves = [t for t in (*work.types, *work.results) if isinstance(t, TensorType) and t.dtype in HALVES]
    if not halves:
        return work

    def single(type: Type | None) -> Type | None:
        return replace(type, dtype=DType.FLOAT) if isinstance(type, TensorType) and type.dtype in HALVES else type

    return _again(work, [single(t) for t in work.types], [single(t) or t for t in work.results])


def _without_vectors(
    types: list[Type | None], numbers: Sequence[int], bias: int | None, zeros: Mapping[int, int]
) -> list[Type | None]:
    for index in numbers:
        found = types[index] if index < len(types) else None
        if isinstance(found, TensorType):
            types[index] = TensorType(found.dtype, ())
    if bias is not None and bias < len(types):
        types[bias] = None
    types += [None] * (max(zeros, default=-1) + 1 - len(types))
    for index, operand in zeros.items():
        integers = types[operand]
        if types[index] is None and isinstance(integers, TensorType):
            types[index] = TensorType(integers.dtype, ())
    while types and types[-1] is None:
        types.pop()
    return types


def _rows_looked_up(types: list[Type | None], tables: Mapping[int, int]) -> list[Type | None]:
    for index, which in tables.items():
        table, shape, rows = types[index], static_shape(types[index]), static_shape(types[which])
        if isinstance(table, TensorType) and shape and rows is not None:
            types[index] = TensorType(table.dtype, (min(shape[0], max(math.prod(rows), 1)), *shape[1:]))
    return types


def _again(work: Work, types: Sequence[Type | None], results: Sequence[Type]) -> Work:
    """The kernel with other operands: it does the same operations, whatever its definition says of such types."""
    read, written = total_bytes(types), total_bytes(results)
    return replace(work, types=tuple(types), results=tuple(results), bytes_read=read, bytes_written=written)


def _flattened(work: Work) -> Work:
    """The same elements along one axis, or two where operands repeat along the first; as it is where they repeat otherwise."""
    shapes = [static_shape(t) for t in (*work.types, *work.results)]
    full = shapes[-1]
    if full is None or any(s is None for s, t in zip(shapes, work.types, strict=False) if t is not None):
        return work
    inner = math.prod(full)
    partial = [s for s in shapes if s is not None and math.prod(s) not in (1, inner)]
    if partial:
        if traits_of(work.operators[0]).vectors:
            return work
        work = replace(work, flops=work.flops + _BEGINNING * _runs(full, partial))
        trailing = {tuple(s[next(i for i, d in enumerate(s) if d != 1) :]) for s in partial}
        row = trailing.pop()
        if trailing or full[len(full) - len(row) :] != row:
            return work
        inner = math.prod(row)
    whole = (math.prod(full),) if not partial else (math.prod(full) // inner, inner)

    def flat(type: Type | None) -> Type | None:
        if not isinstance(type, TensorType):
            return type
        extent = math.prod(static_shape(type) or ())
        return TensorType(type.dtype, whole if extent == math.prod(full) else () if extent == 1 else (inner,))

    results = [flat(t) or t for t in work.results]
    return replace(_again(work, [flat(t) for t in work.types], results), flops=work.flops)


def _runs(full: tuple[int, ...], partial: Sequence[tuple[int, ...]]) -> int:
    """In how many runs elements are computed where operands repeat: along the last axes in which each of them has all
    elements, or one."""
    padded = [(1,) * (len(full) - len(s)) + s for s in partial]
    axes = [(d, tuple(s[i] == d for s in padded)) for i, d in enumerate(full) if d != 1]
    inner = len(axes)
    while inner and axes[inner - 1][1] == axes[-1][1]:
        inner -= 1
    return math.prod(d for d, _ in axes[:inner])


def _cut_in_rows(work: Work) -> Work:
    """A Split with its axis the last of two."""
    shape = static_shape(work.types[0])
    results = [static_shape(t) for t in work.results]
    if not shape or not all(results):
        return work
    outer = math.prod(shape[: int(work.attributes.get("axis", 0)) % len(shape)])
    if not outer:
        return work

    def rows(type: Type | None) -> TensorType:
        assert isinstance(type, TensorType)
        return TensorType(type.dtype, (outer, math.prod(static_shape(type) or ()) // outer))

    found = _again(work, [rows(work.types[0]), *work.types[1:]], [rows(t) for t in work.results])
    return replace(found, attributes=Attributes({"axis": -1}))


def _stretches_moved(work: Work) -> float:
    """How many stretches of elements a Transpose moves: as many as there are elements if the last axis moves."""
    shape: tuple[int, ...] = static_shape(work.types[0]) or ()
    perm: tuple[int, ...] = work.attributes.get("perm", ())
    if len(perm) != len(shape):
        return math.prod(shape)
    long = [axis for axis in perm if shape[axis] > 1]
    while long and long[-1] == max(long):
        long.pop()
    return math.prod(shape[axis] for axis in long)


def _stretches_padded(work: Work) -> float:
    """How many stretches of elements a Pad copies: rows of the last axis that grows, with all behind it."""
    before, after = static_shape(work.types[0]), static_shape(work.results[0])
    if before is None or after is None:
        return 1.0
    grown = [axis for axis, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    return math.prod(before[: max(grown, default=0)])


def _laid_out(work: Work) -> float:
    """How many elements of windows a convolution of volumes writes side by side before it multiplies them; those of images are
    computed in place."""
    image, weights, written = map(static_shape, (*work.types[:2], work.results[0]))
    if image is None or weights is None or written is None or len(image) <= IMAGE or max(weights[2:]) == 1:
        return 0.0
    return math.prod(written[2:]) * image[0] * image[1] * math.prod(weights[2:])


def _rows_normalised(work: Work) -> float:
    """How many rows there are, along whichever axis; those that end within a vector count twice."""
    shape = static_shape(work.types[0])
    if not shape:
        return 1.0
    extent = shape[int(work.attributes.get("axis", -1))]
    return math.prod(shape) / max(extent, 1) * (2.0 if extent % _LANES else 1.0)


def _with_heads(work: Work) -> Work:
    """Queries with their heads apart, and operations for each score."""
    queries, written = work.types[0], static_shape(work.results[0])
    if not isinstance(queries, TensorType) or not written:
        return work
    heads = int(work.attributes.get(_HEADS[work.operators[0]], 0)) if len(written) == 3 else 1
    if not heads:
        return work
    size = max(written[-1] // heads, 1)
    apart = TensorType(queries.dtype, (*written[:-1], heads, size)) if len(written) == 3 else queries
    return replace(work, types=(apart, *work.types[1:]), flops=work.flops * (1.0 + _SCORE / (4.0 * size)))
