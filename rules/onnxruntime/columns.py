"""A function of one byte for each column, as a look-up in a table with 256 rows, for ONNX Runtime.

A bias behind a quantised product, quantised again, is such a function: so are the biases of queries, keys and values that one
product computes, whatever their scales. It takes two kernels, and more time than the elementwise kernels that it replaces.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from eqsat.conditions import worthwhile
from eqsat.equations import group_rule
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, GroupView, Match, Ref, Term, apply, literal
from eqsat.rules.cuts import cuts_of_bytes
from eqsat.rules.onnxruntime.column_heads import Heads, heads_of_parts
from eqsat.rules.onnxruntime.lookup import DOMAIN, ENTRIES, SOURCE, Pointwise
from eqsat.rules.quantised.byte_tables import Region
from eqsat.rules.terms import heads_and_rows_exchanged, reshape, split, transpose
from eqsat.samples import Drawing, Instance, Sampler, fixed

TABLE_BYTES = 1 << 20
_ROOTS = ("QuantizeLinear", "Clip")


class _Columns(Pointwise):
    """Values of unsigned bytes that are functions of other ones by column, and the tables of these functions."""

    def __init__(self, view: GroupView) -> None:
        super().__init__(view, by_column=True)
        self._roots: dict[int, dict[int, Region]] = {}
        self.sources: dict[int, Ref] = {}
        for op in _ROOTS:
            for node, _ in view.nodes(op):
                region = None if node.is_constant else self.of(node)
                if region is None or region.node is None or not _is_table_of(region.source, node):
                    continue
                if not _is_clipped_behind_movement(view, node):
                    self.sources.setdefault(region.source.handle, region.source)
                    self._roots.setdefault(region.source.handle, {}).setdefault(node.handle, region)

    def farthest(self, source: Ref) -> Region | None:
        """The function of ``source`` with most operators."""
        roots = self._roots.get(source.handle, {}).values()
        return max(roots, key=lambda root: (len(root.way), -root.value.handle), default=None)


def _table(root: Region) -> np.ndarray:
    """The values of a function of bytes, (256, columns). Raises `Unmet` where a vector is too long to be known."""
    return np.broadcast_to(root.values[0], (ENTRIES, root.value.static_shape[-1]))


def _is_clipped_behind_movement(view: GroupView, value: Ref) -> bool:
    """Whether a Clip follows behind a view or a transpose: it moves to the front first (`clip_before_reshape`)."""
    moved = _moved(view, value)
    for m in list(moved.values()):
        moved |= _moved(view, m)
    return any(op == "Clip" and user.handle != m.handle for m in moved.values() for op, user, _ in view.users(m))


def _moved(view: GroupView, value: Ref) -> dict[int, Ref]:
    return {user.handle: user for op, user, _ in view.users(value) if op in ("Reshape", "Transpose")}


def _is_table_of(source: Ref, node: Ref) -> bool:
    """Whether bytes are unsigned before and after, with rows and columns, and a table for the columns is not too large."""
    unsigned = source.dtype is node.dtype is DType.UINT8
    has_columns = source.type.is_static and source.rank >= 2
    return unsigned and has_columns and 0 < source.static_shape[-1] * ENTRIES <= TABLE_BYTES


def read_columns(table: np.ndarray, value: Ref) -> Term:
    """What ``table`` (256, columns) has for the bytes of ``value`` (..., columns)."""
    *lead, _, columns = value.static_shape
    alone = math.prod(lead) == 1
    indices = apply("Cast", value if alone else reshape(value, (-1, columns)), to=int(DType.INT32))
    entries = literal(table.reshape((*lead, ENTRIES, columns) if alone else table.shape))
    found = apply("GatherElements", entries, indices, axis=len(lead) if alone else 0)
    return found if alone else reshape(found, value.static_shape)


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
    outputs: list[str] = []
    for part, n in zip(parts, heads, strict=True):
        total = _biased(d, drawing, part, n * size)
        viewed = drawing.op("Reshape", total, drawing.value(fixed((*lead, n, size), "int64")))
        outputs += [drawing.op("Transpose", viewed, perm=p) for p in d.choose(((perm,), (perm,), (perm[::-1], perm)))]
    return drawing.finish(*outputs)


# --- values, and all parts of a value


@dataclass(frozen=True)
class _Parts:
    """A value, cut along its last axis into parts of ``sizes``, each with a function ``roots``, laid out by ``heads`` if so."""

    value: Ref
    sizes: tuple[int, ...]
    roots: Sequence[Region]
    heads: Heads | None

    @cached_property
    def together(self) -> Apply:
        """All functions, of all parts."""
        table = np.concatenate([_table(root) for root in self.roots], axis=1)
        if self.heads is None:
            return split(read_columns(table, self.value), self.sizes, self.value.rank - 1)
        *lead, _, count, size = self.heads.viewed
        entries = table.reshape(*lead, ENTRIES, count, size).transpose(self.heads.perm)
        moved = transpose(reshape(self.value, self.heads.viewed), self.heads.perm)
        indices = apply("Cast", moved, to=int(DType.INT32))
        found = apply("GatherElements", literal(np.ascontiguousarray(entries)), indices, axis=len(lead) + 1)
        return split(found, self.heads.counts, len(lead))

    def part(self, index: int, order: tuple[int, ...]) -> Term:
        return transpose(self.together.output(index), order)

    def results(self) -> list[tuple[Ref, int, tuple[int, ...]]]:
        """Each result, the part that it is computed from, and the order of axes in which it reads `together`."""
        if self.heads is None:
            return [(root.value, index, tuple(range(root.value.rank))) for index, root in enumerate(self.roots)]
        perm = self.heads.perm
        laid = enumerate(self.heads.laid)
        return [(node, i, tuple(perm.index(axis) for axis in own)) for i, found in laid for node, own in found]


def _side_by_side(view: GroupView) -> set[int]:
    """Products of one value by constants: they become one product, whose parts have a table together."""
    of_value: dict[int, set[int]] = {}
    for node, inputs in view.nodes("QLinearMatMul"):
        if inputs[0] is not None and inputs[3] is not None and inputs[3].is_constant:
            of_value.setdefault(inputs[0].handle, set()).add(node.handle)
    return {handle for found in of_value.values() if len(found) > 1 for handle in found}


def _found(view: GroupView) -> Iterator[Match]:
    """What may be read from a table: ``roots`` are the functions in it, ``make`` the term, ``steps`` its operators; whether the
    source will be ``joined`` with others, and a few kernels compute the result already (``computed``)."""
    columns = _Columns(view)
    read = {node.handle for node, _ in view.nodes("GatherElements")}
    few = {node.handle for op in ("QLinearAdd", "QLinearMul") for node, _ in view.nodes(f"{DOMAIN}::{op}")}
    joined = _side_by_side(view)
    for source in columns.sources.values():
        root = columns.farthest(source)
        if root is not None:
            stands = {"joined": source.handle in joined, "computed": root.value.handle in read | few}
            bound = {"roots": (root,), "make": partial(_read, root), "steps": len(root.way), **stands}
            yield Match(bound, root.value, key=(root.key, *stands.values()))
    yield from _of_parts(view, columns, read)


def _read(root: Region) -> Term:
    """A function of bytes, read from its table."""
    return read_columns(_table(root), root.source)


def _same(value: Ref) -> Term:
    return value


def _of_parts(view: GroupView, columns: _Columns, read: set[int]) -> Iterator[Match]:
    """Functions of all parts of a value as those of the value; values with the parts of one that is ``read`` from a table."""
    found = [cut for cut in cuts_of_bytes(view) if cut.axis == cut.value.rank - 1]
    done = {p.handle for cut in found if cut.value.handle in read for p in cut.parts}
    whole: dict[tuple[int, ...], list[Ref]] = {}
    for value, _, parts, _ in found:
        whole.setdefault(tuple(p.handle for p in parts), []).append(value)
    shared = {"steps": math.inf, "joined": False}
    for value, sizes, parts, _ in found:
        roots = [root for root in map(columns.farthest, parts) if root is not None]
        if len(roots) < len(parts) or value.static_shape[-1] * ENTRIES > TABLE_BYTES:
            continue
        same = whole.get(tuple(r.value.handle for r in roots), [])
        tabulated = next((v for v in same if v.handle in read), None)
        if tabulated is not None:  # values with the same parts are the same
            for v in same:
                if v.handle != tabulated.handle and v.type == tabulated.type:
                    bound = {**shared, "roots": (), "make": partial(_same, tabulated), "computed": False}
                    yield Match(bound, v, key=tabulated)
            continue
        heads = (
            heads_of_parts(view, [r.value for r in roots], sizes) if math.prod(value.static_shape[:-2]) == 1 else None
        )
        together = _Parts(value, sizes, roots, heads)
        results = together.results()
        parts_key = (value.handle, sizes, heads, *(root.key for root in roots))
        computed = all(node.handle in done for node, _, order in results if order == tuple(range(len(order))))
        for node, index, order in results:
            make = partial(together.part, index, order)
            bound = {**shared, "roots": roots, "make": make, "computed": computed}
            yield Match(bound, node, key=(parts_key, index, order, computed))


@group_rule(
    find=_found,
    where=[
        worthwhile("no product beside others of one value: not joined"),
        worthwhile("not computed by a few kernels already: not computed"),
        worthwhile("3 operators at least: steps >= 3"),
        "no rounding on the way moves a result by more than one quantum: all(each.is_stable for each in roots)",
    ],
    exactness=Exactness.LSB,
    source=SOURCE,
    sample=lambda d: d.choose((_whole, _parts, _laid_out))(d),
    domain=DOMAIN,
)
def look_up_functions_of_columns(m: Match) -> Term:
    """``Q(f(D(q))) == GatherElements(table, Cast(q))`` with a column of the table for each index of the last axis, and
    ``(f(p1), f(p2), ...) == Split(GatherElements(table, Cast(v)))`` where ``(p1, p2, ...) == Split(v)`` on that axis.

    ``f`` is any region of sums, products and bounds on each element, whose constants are numbers or vectors along the last
    axis. Parts that are laid out by heads next are laid out before. Results at rounding ties may be off by one quantum; not
    where a rounding on the way may move them by more.
    """
    return m.make()
