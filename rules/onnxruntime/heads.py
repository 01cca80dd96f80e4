"""Products on bytes that read or write attention heads where they lie, for ONNX Runtime.

The kernel of QLinearMatMul broadcasts over a batch of matrices: with the weights cut into those of each head, it writes heads
one after the other, which saves a view and a transpose. The convolution with channels last sums over heads on its way: it
reads heads one after the other, and multiplies what a view and a transpose would have put side by side.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Term, apply, literal, rule, variables
from eqsat.rules.onnxruntime.quantised import DOMAIN, number
from eqsat.rules.quantised.pairs import per_tensor
from eqsat.rules.terms import constant, heads_and_rows_exchanged, int64s, permutation_of, transpose
from eqsat.samples import Sampler, fixed

SOURCE = "block matrices"
CONVOLUTION = f"{DOMAIN}::QLinearConv"
a, sa, za, w, sw, zw, sy, zy, shape, before, table = variables("a sa za w sw zw sy zy shape before table")

_product = apply("QLinearMatMul", a, sa, za, w, sw, zw, sy, zy)


def _weights(d: Sampler, inner: int, columns: int) -> dict[str, Any]:
    extent = (columns,) if d.chance(0.7) else ()
    zeros = (columns,) if d.chance(0.5) else ()
    return {
        "sa": fixed(d.positive(())),
        "za": fixed(d.integers((), "uint8")),
        "w": d.either(d.integers((inner, columns), "int8"), 0.95),
        "sw": fixed(d.positive(extent)),
        "zw": fixed(d.integers(zeros, "int8", -2, 2) if d.chance() else np.full(zeros, d.integer(-2, 2), np.int8)),
        "sy": fixed(d.positive(()) * np.float32(64)),
        "zy": fixed(d.integers((), "uint8")),
    }


def _heads(d: Sampler) -> dict[str, Any]:
    rows, inner, heads, size, batch = d.extents(5)
    lead = d.choose(((rows,), (1, rows), (batch, rows)))
    found = {"a": d.integers((*lead, inner), "uint8"), **_weights(d, inner, heads * size)}
    viewed = (*(lead if len(lead) > 1 or d.chance() else (1, *lead)), heads, size)
    rank = len(viewed)
    perm = heads_and_rows_exchanged(rank)
    if d.chance(0.1):
        viewed = (heads, rows * math.prod(lead[:-1]), size)
        perm = (1, 0, 2)
    return {**found, "shape": fixed(viewed, "int64"), "moved": {"perm": perm if d.chance(0.9) else d.permutation(rank)}}


def _by_heads(m: Match, viewed: tuple[int, ...], perm: tuple[int, ...]) -> Term:
    """The product that writes ``viewed`` (..., rows, heads, size), its rows and heads exchanged. Raises `Unmet`."""
    rank = len(viewed)
    m.require(rank >= 3 and perm == heads_and_rows_exchanged(rank), "other axes are exchanged")
    *batch, rows, heads, size = viewed
    lead = m.a.static_shape[:-1]
    m.require(m.w.rank == 2 and len(lead) > 0, "a vector, or several matrices")
    inner, columns = m.w.static_shape
    m.require(columns == heads * size and math.prod((*batch, rows)) == math.prod(lead), "the view cuts something else")
    m.require(all(v.rank <= 1 for v in (m.sw, m.zw)), "scales of rows")
    ones = (1,) * len(batch)
    value: Term = m.a
    if tuple(lead) != (rows,) and (*ones, rows)[-len(lead) :] != tuple(lead):
        value, ones = apply("Reshape", m.a, int64s((*batch, 1, rows, inner))), ()
    cut = apply("Reshape", m.w, int64s((*ones, inner, heads, size)))
    weights = transpose(cut, heads_and_rows_exchanged(len(ones) + 3))
    scale, zero = (v if per_tensor(v) else apply("Reshape", v, int64s((*ones, heads, 1, size))) for v in (m.sw, m.zw))
    return apply("QLinearMatMul", value, m.sa, m.za, weights, scale, zero, m.sy, m.zy)


@rule(
    apply("Transpose", apply("Reshape", _product, shape).named("viewed")).named("moved"),
    where=[constant("w", "sw", "zw")],
    exactness=Exactness.EXACT,
    source=SOURCE,
    sample=_heads,
    domain=DOMAIN,
)
def write_heads_from_product(m: Match) -> Term:
    """``Transpose(Reshape(QLinearMatMul(a, w), [..., rows, heads, size])) == QLinearMatMul(a, w of each head)``."""
    return _by_heads(m, m.viewed.static_shape, permutation_of(m.moved))


def _looked_up(d: Sampler) -> dict[str, Any]:
    rows, inner, heads, size = d.extents(4)
    lead = d.choose(((rows,), (1, rows), (1, rows)))
    viewed = (*lead, heads, size)
    rank = len(viewed)
    entries = d.integers((*lead[:-1], 256, heads * size), "uint8")
    return {
        "a": d.integers((*lead, inner), "uint8"),
        **_weights(d, inner, heads * size),
        "table": fixed(entries),
        "shape": fixed(viewed, "int64"),
        "cast": {"to": int(DType.INT32)},
        "read": {"axis": rank - 3},
        "moved": {"perm": heads_and_rows_exchanged(rank) if d.chance(0.9) else d.permutation(rank)},
    }


@rule(
    apply(
        "Transpose",
        apply(
            "Reshape",
            apply("GatherElements", table, apply("Cast", _product).named("cast")).named("read"),
            shape,
        ).named("viewed"),
    ).named("moved"),
    where=[constant("w", "sw", "zw", "table")],
    exactness=Exactness.EXACT,
    source=SOURCE,
    sample=_looked_up,
    domain=DOMAIN,
)
def write_heads_from_table(m: Match) -> Term:
    """``Transpose(Reshape(GatherElements(t, Cast(QLinearMatMul(a, w))))) == GatherElements(t', Cast(QLinearMatMul(a, w')))``
    for a table with a column for each of the product; ``t'`` and ``w'`` are those of each head."""
    viewed, perm = m.viewed.static_shape, permutation_of(m.moved)
    entries = m.table.static_shape
    m.require(m.table.rank == m.cast.rank and m.read.attr("axis", 0) % m.table.rank == m.table.rank - 2, "other axes")
    m.require(math.prod(entries[:-2]) == 1 and math.prod(viewed[:-3]) == 1, "several tables")
    m.require(entries[-1] == m.w.static_shape[-1] and m.cast.dtype is DType.INT32, "no column for each")
    product = _by_heads(m, viewed, perm)
    whole = transpose(apply("Reshape", m.table, int64s((*viewed[:-3], entries[-2], *viewed[-2:]))), perm)
    return apply("GatherElements", whole, apply("Cast", product, to=int(DType.INT32)), axis=len(viewed) - 2)


def _joined(d: Sampler) -> dict[str, Any]:
    batch, heads, rows, size, columns = d.extents(5)
    found = {"a": d.integers((batch, heads, rows, size), "uint8"), **_weights(d, heads * size, columns)}
    viewed = d.choose(((batch, rows, heads * size), (batch * rows, heads * size)))
    perm = (0, 2, 1, 3)
    if d.chance(0.1):
        perm, viewed = (0, 1, 2, 3), (batch * rows, heads * size)
    return {**found, "moved": {"perm": perm}, "shape": fixed(viewed, "int64")}


@rule(
    apply(
        "QLinearMatMul",
        apply("Reshape", apply("Transpose", a).named("moved"), shape).named("viewed"),
        sa,
        za,
        w,
        sw,
        zw,
        sy,
        zy,
    ),
    where=[constant("w", "sw", "zw")],
    exactness=Exactness.EXACT,
    source=SOURCE,
    sample=_joined,
    domain=DOMAIN,
)
def read_heads_in_convolution(m: Match) -> Term:
    """``QLinearMatMul(Reshape(Transpose(a, (0, 2, 1, 3))), w) == Reshape(QLinearConv(a, w', channels_last=1))`` for ``a``
    (batch, heads, rows, size), an image of heads by rows, of which a kernel (heads, 1) covers all heads."""
    m.require(m.a.rank == 4 and permutation_of(m.moved) == (0, 2, 1, 3), "no heads, or other axes are exchanged")
    m.require(m.a.dtype is DType.UINT8 and m.root.dtype is DType.UINT8 and m.w.dtype is DType.INT8, "other integers")
    _, heads, _, size = m.a.static_shape
    m.require(m.w.rank == 2 and m.viewed.static_shape[-1] == heads * size, "the view joins something else")
    m.require(all(v.rank <= 1 for v in (m.sa, m.za, m.sw, m.zw, m.sy, m.zy)), "scales of rows")
    low, high = m.zw.interval
    m.require(low == high, "several zero points of the weights")
    columns = m.w.static_shape[1]
    kernels = transpose(apply("Reshape", m.w, int64s((heads, 1, size, columns))), (3, 2, 0, 1))
    scale = number(m.sw, DType.FLOAT) if per_tensor(m.sw) else m.sw
    zero = literal(np.full(() if per_tensor(m.sw) else (columns,), int(low), np.int8))
    numbers = [number(v, v.dtype) for v in (m.sa, m.za, m.sy, m.zy)]
    found = apply(
        CONVOLUTION, m.a, *numbers[:2], kernels, scale, zero, *numbers[2:], channels_last=1, kernel_shape=(heads, 1)
    )
    return apply("Reshape", found, int64s(m.root.static_shape))
