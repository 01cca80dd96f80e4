"""A function of one byte for each column, as a look-up in a table with 256 rows, for ONNX Runtime.

A bias behind a quantised product, quantised again, is such a function: so are the biases of queries, keys and values that one
product computes, whatever their scales. It takes two kernels, and more time than the elementwise kernels that it replaces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Merge, Ref, Term, Unmet, apply, group_rule, literal
from eqsat.rules.onnxruntime.lookup import DOMAIN, ENTRIES, Regions, is_pointwise
from eqsat.rules.terms import heads_and_rows_exchanged, int64s, permutation_of, transpose
from eqsat.rules.views.splits import again, splits
from eqsat.samples import Drawing, Instance, Sampler, fixed

SOURCE = "a function of a byte has 256 values"
TABLE_BYTES = 1 << 20
_LEAST = 3
"""Operators of a region at least: a table takes two kernels."""

_ROOTS = ("QuantizeLinear", "Clip")


class _Columns:
    """Values of unsigned bytes that are functions of other ones by column, and the tables of these functions."""

    def __init__(self, view: GroupView) -> None:
        self._regions = Regions(view, by_column=True)
        self._roots: dict[int, dict[int, Ref]] = {}
        self._sources: dict[int, Ref] = {}
        for op in _ROOTS:
            for node, inputs in view.nodes(op):
                if node.is_constant or not is_pointwise(op, node, inputs, by_column=True):
                    continue
                source = self._regions.source(node)
                if source is None or source.handle == node.handle or not _is_table_of(source, node):
                    continue
                if not _is_clipped_behind_movement(view, node):
                    self._sources.setdefault(source.handle, source)
                    self._roots.setdefault(source.handle, {}).setdefault(node.handle, node)

    def sources(self) -> Iterable[Ref]:
        return tuple(self._sources.values())

    def farthest(self, source: int, least: int = 1) -> Ref | None:
        """The function of ``source`` with most operators, at least ``least``."""
        found = [(self._regions.steps(root), -root.handle, root) for root in self._roots.get(source, {}).values()]
        best = max(found, default=None)
        return None if best is None or best[0] < least else best[-1]

    def table(self, root: Ref) -> np.ndarray:
        """The values of a function of bytes, (256, columns). Raises `Unmet` where a vector is too long to be known, or where a
        rounding on the way may move the result by more than one quantum."""
        return np.broadcast_to(self._regions.columns(root), (ENTRIES, root.static_shape[-1]))


def _is_clipped_behind_movement(view: GroupView, value: Ref) -> bool:
    """Whether a Clip follows behind a view or a transpose: it moves to the front first (`clip_before_reshape`)."""
    moved = [user for op, user, _ in view.users(value) if op in ("Reshape", "Transpose")]
    moved += [user for m in moved for op, user, _ in view.users(m) if op in ("Reshape", "Transpose")]
    return any(op == "Clip" and user.handle != m.handle for m in moved for op, user, _ in view.users(m))


def _is_table_of(source: Ref, node: Ref) -> bool:
    """Whether bytes are unsigned before and after, with rows and columns, and a table for the columns is not too large."""
    try:
        extents = source.static_shape
    except Unmet:
        return False
    unsigned = source.dtype is DType.UINT8 and node.dtype is DType.UINT8
    return unsigned and len(extents) >= 2 and 0 < extents[-1] * ENTRIES <= TABLE_BYTES


def read_columns(table: np.ndarray, value: Ref) -> Term:
    """What ``table`` (256, columns) has for the bytes of ``value`` (..., columns)."""
    *lead, _, columns = value.static_shape
    alone = math.prod(lead) == 1
    indices = apply("Cast", value if alone else apply("Reshape", value, int64s((-1, columns))), to=int(DType.INT32))
    entries = literal(table.reshape((*lead, ENTRIES, columns) if alone else table.shape))
    found = apply("GatherElements", entries, indices, axis=len(lead) if alone else 0)
    return found if alone else apply("Reshape", found, int64s(value.static_shape))


def _biased(
    d: Sampler,
    drawing: Drawing,
    x: str,
    columns: int,
    steps: Sequence[str] = ("Add",),
    dtype: str = "uint8",
    *,
    enlarging: bool = False,
) -> str:
    """``x`` (..., columns), dequantised, with vectors added or multiplied, quantised, and at times clipped."""

    def parameters() -> list[str]:
        zero = fixed(d.integers((), dtype, 60, 120))
        return [drawing.value(fixed(d.positive(()) / np.float32(32))), drawing.value(zero)]

    y = drawing.op("DequantizeLinear", x, *parameters())
    for op in steps:
        extent = (2, 1, 1, columns) if enlarging else d.choose(((columns,), (columns,), (1, columns), ()))
        y = drawing.op(op, y, drawing.value(d.either(d.floats(extent), 0.95)))
    y = drawing.op("QuantizeLinear", y, *parameters())
    return drawing.op("Clip", y, drawing.value(fixed(1, dtype))) if d.chance(0.4) else y


def _whole(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.shape(2, 3)
    dtype = "uint8" if d.chance(0.9) else "int8"
    x = drawing.value(d.integers(shape, dtype))
    steps = d.choose((("Mul", "Add"), ("Add", "Sub"), ("Add",)))
    return drawing.finish(_biased(d, drawing, x, shape[-1], steps, dtype, enlarging=d.chance(0.1)))


def _parts(d: Sampler) -> Instance:
    drawing = Drawing()
    sizes = [d.integer(1, 4) for _ in range(d.integer(2, 3))]
    shape = (*d.extents(d.integer(1, 2)), sum(sizes))
    x = drawing.value(d.integers(shape, "uint8"))
    parts = drawing.op("Split", x, drawing.value(fixed(sizes, "int64")), outputs=len(sizes), axis=-1)
    outputs = [_biased(d, drawing, p, n) if d.chance(0.95) else p for p, n in zip(parts, sizes, strict=True)]
    return drawing.finish(*outputs, *d.subset(parts, 0.1))


def _laid_out(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, size, batch, *heads = d.extents(5)
    lead = d.choose(((rows,), (1, rows), (1, rows), (batch, rows)))
    sizes = [n * size for n in heads]
    x = drawing.value(d.integers((*lead, sum(sizes)), "uint8"))
    parts = drawing.op("Split", x, drawing.value(fixed(sizes, "int64")), outputs=2, axis=-1)
    perm = heads_and_rows_exchanged(len(lead) + 2)
    outputs = []
    for part, n in zip(parts, heads, strict=True):
        total = _biased(d, drawing, part, n * size)
        viewed = drawing.op("Reshape", total, drawing.value(fixed((*lead, n, size), "int64")))
        outputs += [drawing.op("Transpose", viewed, perm=p) for p in d.choose(((perm,), (perm,), (perm[::-1], perm)))]
    return drawing.finish(*outputs)


@group_rule(
    exactness=Exactness.LSB,
    source=SOURCE,
    sample=lambda d: d.choose((_whole, _parts, _laid_out))(d),
    domain=DOMAIN,
)
def look_up_functions_of_columns(view: GroupView) -> Iterator[Merge]:
    """``Q(f(DQ(q))) == GatherElements(table, Cast(q))`` with a column of the table for each index of the last axis, and
    ``(f(p1), f(p2), ...) == Split(GatherElements(table, Cast(v)))`` where ``(p1, p2, ...) == Split(v)`` on that axis.

    ``f`` is any region of sums, products and bounds on each element, whose constants are numbers or vectors along the last
    axis. Parts that are laid out by heads next are laid out before. Results at rounding ties may be off by one quantum; not
    where a rounding on the way may move them by more.
    """
    columns = _Columns(view)
    read = {node.handle for node, _ in view.nodes("GatherElements")}
    single = {node.handle for op in ("QLinearAdd", "QLinearMul") for node, _ in view.nodes(f"{DOMAIN}::{op}")}
    yield from _of_values(columns, _side_by_side(view), read | single)
    yield from _of_parts(columns, view, read)


def _of_values(columns: _Columns, joined: set[int], few: set[int]) -> Iterator[Merge]:
    """Functions of values that are not ``joined`` with others, unless a ``few`` kernels compute them already."""
    for source in columns.sources():
        root = None if source.handle in joined else columns.farthest(source.handle, _LEAST)
        if root is None or root.handle in few:
            continue
        try:
            yield root, read_columns(columns.table(root), source)
        except Unmet:
            continue


def _side_by_side(view: GroupView) -> set[int]:
    """Products of one value by constants: they become one product, whose parts have a table together."""
    of_value: dict[int, set[int]] = {}
    for node, inputs in view.nodes("QLinearMatMul"):
        if inputs[0] is not None and inputs[3] is not None and inputs[3].is_constant:
            of_value.setdefault(inputs[0].handle, set()).add(node.handle)
    return {handle for found in of_value.values() if len(found) > 1 for handle in found}


def _of_parts(columns: _Columns, view: GroupView, read: set[int]) -> Iterator[Merge]:
    """Functions of all parts of a value as those of the value, unless ``read`` from a table already."""
    cuts = [
        (value, sizes, tuple(parts[i] for i in range(len(sizes))))
        for (_, value, axis, sizes), parts in splits(view)
        if axis == value.rank - 1 and len(parts) == len(sizes)
    ]
    done = {p.handle for (_, value, _, _), parts in splits(view) if value.handle in read for p in parts.values()}
    whole: dict[tuple[int, ...], list[Ref]] = {}
    for value, _, parts in cuts:
        whole.setdefault(tuple(p.handle for p in parts), []).append(value)
    for value, sizes, parts in cuts:
        found = [columns.farthest(p.handle) for p in parts]
        roots = [root for root in found if root is not None]
        if len(roots) < len(parts) or value.static_shape[-1] * ENTRIES > TABLE_BYTES:
            continue
        joined = whole.get(tuple(r.handle for r in roots), [])
        tabulated = next((v for v in joined if v.handle in read), None)
        if tabulated is not None:  # values with the same parts are the same
            yield from ((v, tabulated) for v in joined if v.handle != tabulated.handle and v.type == tabulated.type)
            continue
        heads = _heads(view, roots, sizes) if math.prod(value.static_shape[:-2]) == 1 else None
        results = roots if heads is None else heads.in_order()
        if all(r.handle in done for r in results):
            continue
        try:
            table = np.concatenate([columns.table(root) for root in roots], axis=1)
        except Unmet:
            continue
        if heads is not None:
            yield from _of_heads(heads, table, value)
            continue
        made = again(read_columns(table, value), value.rank - 1, sizes)
        for index, root in enumerate(roots):
            yield root, made.output(index)


@dataclass(frozen=True)
class _Heads:
    """How the columns of parts are laid out as heads: ``viewed`` (..., rows, heads, size), then rows and heads exchanged by
    ``perm``; ``counts`` are the heads of each part. ``laid``: for each part the results and the permutation of each."""

    viewed: tuple[int, ...]
    perm: tuple[int, ...]
    counts: tuple[int, ...]
    laid: tuple[tuple[tuple[Ref, tuple[int, ...]], ...], ...]

    def in_order(self) -> list[Ref]:
        """The results that are laid out by ``perm`` itself."""
        return [node for found in self.laid for node, own in found if own == self.perm]


def _heads(view: GroupView, roots: Sequence[Ref], sizes: Sequence[int]) -> _Heads | None:
    """The heads that all of ``roots`` are cut into, if they are of one size and most are laid out head by head."""
    laid: list[tuple[tuple[Ref, tuple[int, ...]], ...]] = []
    kinds: set[tuple[int, ...]] = set()
    for root, columns in zip(roots, sizes, strict=True):
        found: list[tuple[Ref, tuple[int, ...]]] = []
        for op, viewed, _ in view.users(root):
            if op != "Reshape" or not viewed.type.is_static or viewed.rank < 3:
                continue
            *lead, rows, heads, size = viewed.static_shape
            turned = [(node, permutation_of(node)) for op, node, _ in view.users(viewed) if op == "Transpose"]
            if turned and heads * size == columns and math.prod(lead) == 1 and rows == root.static_shape[-2]:
                kinds.add((*lead, rows, size))
                found += turned
        laid.append(tuple(found))
    if len(kinds) != 1 or not all(laid):
        return None
    *lead, rows, size = next(iter(kinds))
    perm = heads_and_rows_exchanged(len(lead) + 3)
    if sum(any(own == perm for _, own in found) for found in laid) < 2:
        return None
    counts = tuple(n // size for n in sizes)
    return _Heads((*lead, rows, sum(counts), size), perm, counts, tuple(laid))


def _of_heads(heads: _Heads, table: np.ndarray, value: Ref) -> Iterator[Merge]:
    """The same with the bytes of ``value`` laid out by heads first, and a table for each head."""
    *lead, _, count, size = heads.viewed
    entries = table.reshape(*lead, ENTRIES, count, size).transpose(heads.perm)
    moved = transpose(apply("Reshape", value, int64s(heads.viewed)), heads.perm)
    indices = apply("Cast", moved, to=int(DType.INT32))
    found = apply("GatherElements", literal(np.ascontiguousarray(entries)), indices, axis=len(lead) + 1)
    made = again(found, len(lead), heads.counts)
    for index, results in enumerate(heads.laid):
        part = made.output(index)
        for node, perm in results:
            yield node, transpose(part, tuple(heads.perm.index(axis) for axis in perm))
