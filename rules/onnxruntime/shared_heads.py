"""Attention in rows, as ONNX Runtime has kernels that store keys and values, or share them among heads.

    Attention(q, k, v, m, pk, pv) == MultiHeadAttention(rows(q), k, v, m, pk, pv)      heads that share as rows of one head

Heads that share keys and values are one head with as many times the queries: their order is changed so that those of one place
are rows side by side, which `head_order` does to the weights before and behind.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from eqsat.conditions import worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.extents import add, multiply, quotient
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import PROJECTION, Condition, GroupView, Match, Ref, Term, Unmet, apply, literal
from eqsat.rules.attention.layout import SWAP, has_only, heads_in_rows
from eqsat.rules.attention.mask_forms import before_shift
from eqsat.rules.onnxruntime.attention import (
    LARGEST_TRIANGLE,
    SOURCE,
    leaves_rows_open,
    mask_of_scores,
)
from eqsat.rules.terms import int64s, reshape
from eqsat.rules.views.extents import viewed
from eqsat.samples import Drawing, Instance, Sampler


def draw_attention(d: Sampler) -> Instance:
    """Attention in rows, with and without a cache, a mask and causality; now and then of a size that has no kernel."""
    drawing = Drawing()
    batch, groups, new, before = d.extents(4)
    batch = d.choose((1, 1, batch))
    heads, size = groups * d.choose((1, 2, 3)), d.choose((8, 8, 8, 8, 8, 16, 6))
    defect = d.choose((*("",) * 6, "length", "width", "axes", "axes", "softcap", "softcap", "scores"))
    keys, width = new + (defect == "length"), size * (1 + (defect == "width"))
    shapes = [(batch, new, heads * size), (batch, keys, groups * size), (batch, keys, groups * width)]
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": groups, "is_causal": d.integer(0, 1)}
    if defect == "axes":
        shapes = [(batch, heads, new, size), *[(batch, groups, keys, size)] * 2]
        attributes = {}
    cached = d.chance()
    operands: list[Any] = [d.tame(*shape) for shape in shapes]
    operands.append(mask_of_scores(d, batch, heads, new, keys + before * cached) if d.chance() else None)
    if cached:
        operands += [d.tame(batch, groups, before, n) for n in (size, width)]
    values = [None if o is None else drawing.value(o) for o in operands]
    if values[3] is not None and d.chance(0.3):
        values[3] = _shifted(d, drawing, batch, heads, new, keys + before * cached)
    while values[-1] is None:
        values.pop()
    attributes |= {"softcap": 2.0} if defect == "softcap" else {"scale": 0.25} if d.chance() else {}
    if cached or defect == "scores" or d.chance(0.3):
        return drawing.finish(*drawing.op("Attention", *values, outputs=3 + (defect == "scores"), **attributes))
    return drawing.finish(drawing.op("Attention", *values, **attributes))


def _shifted(d: Sampler, drawing: Drawing, batch: int, heads: int, queries: int, keys: int) -> str:
    """A mask of which rows that forbid everything are NaN, at times repeated."""
    mask = d.tame(d.choose((1, batch)), d.choose((1, heads)), d.choose((1, queries)), keys)
    mask[d.rng.random(mask.shape) < 0.2] = -np.inf
    mask[..., 0, :] = -np.inf if d.chance(0.7) else mask[..., 0, :]
    given = drawing.value(mask)
    largest = drawing.op("ReduceMax", given, [d.choose((-1, -1, -1, 2))], keepdims=1)
    shifted = drawing.op("Sub", given, drawing.op("Shrink", largest, lambd=1e6, bias=1e6))
    return drawing.op("Expand", shifted, [1, 1, queries, keys])


def uses_of_attention(view: GroupView) -> Iterator[Match]:
    """Each output that GroupQueryAttention has, too, of Attention; ``part`` is its number if there are several."""
    for node, inputs in view.nodes("Attention"):
        operands = dict(zip(("q", "k", "v", "mask", "pk", "pv", "lengths"), (*inputs, *[None] * 7), strict=False))
        if None in (operands["q"], operands["k"], operands["v"]):
            continue
        parts = [user for op, user, _ in view.users(node) if op == PROJECTION]
        for part in parts or (node,):
            yield Match({**operands, "a": node, "part": part.attr("index") if parts else None}, part)


def _uses_of_rows(view: GroupView) -> Iterator[Match]:
    """Each of these, also with ``bias``: the mask before its rows were shifted to make NaN where they forbid everything."""
    masks = before_shift(view)
    for use in uses_of_attention(view):
        found = {name: use[name] for name in NAMES.split()}
        yield Match({**found, "bias": None}, use.root)
        for bias in masks.get(use.mask.handle, ()) if use.mask is not None else ():
            yield Match({**found, "bias": bias}, use.root)


def total(k: Ref, pk: Ref | None) -> Dim:
    """Stored and new keys."""
    return add(k.shape[1], 0 if pk is None else pk.shape[2])


def is_of_all(mask: Ref | None, queries: Dim, keys: Dim) -> bool:
    """Whether a mask, if there is one, has four axes, and an element for each query and key."""
    return mask is None or (mask.rank == 4 and mask.shape[2:] == (queries, keys))


group_rule = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    domain="com.microsoft",
    functions=named(has_only, leaves_rows_open),
).over_groups
NAMES = "q k v mask pk pv lengths a part"
USED = (
    worthwhile("kernels for q, k, v: float32: q.dtype is k.dtype is v.dtype is float32"),
    "the result, keys or values: part in (None, 0, 1, 2)",
    "neither capped nor in windows, nor of several lengths: lengths is None and has_only(a, 'is_causal')",
)


class _Rows(NamedTuple):
    """Queries, keys and values of a match as rows: batch, queries, new keys and stored ones; heads that share keys, how many
    there are of these, and their widths."""

    batch: Dim
    queries: Dim
    new: Dim
    stored: Dim
    times: int
    groups: int
    size: int
    other: int

    @property
    def keys(self) -> Dim:
        return add(self.stored, self.new)

    @property
    def single(self) -> bool:
        """One query, and one new key: nothing comes later."""
        return self.queries == self.new == 1

    @property
    def area(self) -> float:
        """Elements of a causal mask, infinitely many where an extent is not known."""
        return math.prod(d if isinstance(d, int) else math.inf for d in (self.queries, self.keys))


def _rows(m: Match) -> _Rows:
    """Raises `Unmet` where the number or the size of heads is not known."""
    stored = 0 if m.pk is None else m.pk.shape[2]
    if m.q.rank == 4:
        (batch, heads, queries, size), (_, groups, new, _), other = m.q.shape, m.k.shape, m.v.shape[3]
    else:
        (batch, queries, width), new = m.q.shape, m.k.shape[1]
        heads, groups = m.a.attr("q_num_heads"), m.a.attr("kv_num_heads")
        size, other = quotient(width, heads), quotient(m.v.shape[2], groups)
    known = [d for d in (heads, groups, size, other) if isinstance(d, int)]
    if len(known) < 4:
        raise Unmet("heads of unknown number or size")
    return _Rows(batch, queries, new, stored, known[0] // known[1], *known[1:])


def _is_causal(m: Match) -> bool:
    return bool(m.a.attr("is_causal", 0)) and not _rows(m).single


def exchanged_heads(x: Term, outer: int, inner: int, size: int) -> Term:
    """Rows of heads, ``outer`` times ``inner`` of them, with the two exchanged."""
    if 1 in (outer, inner):
        return x
    apart = apply("Transpose", reshape(x, (0, 0, outer, inner, size)), perm=(0, 1, 3, 2, 4))
    return reshape(apart, (0, 0, outer * inner * size))


def _bias(m: Match, r: _Rows) -> Term | None:
    """What is added to the scores."""
    if m.bias is not None:
        return m.bias
    if _is_causal(m):
        before, keys, queries = (int(d) for d in (r.stored, r.keys, r.queries))
        return literal(np.where(np.tri(queries, keys, before, dtype=np.bool_), 0, -np.inf)[None, None], DType.FLOAT)
    if m.mask is None or m.mask.dtype is not DType.BOOL:
        return m.mask
    return apply("Where", m.mask, literal(np.float32(0)), literal(np.float32(-np.inf)))


def _repeated(bias: Term | None, m: Match, r: _Rows) -> Term | None:
    """A row of the mask for each head of a group."""
    if bias is None or r.times == 1:
        return bias
    batch = 1 if m.mask is None or _is_causal(m) else m.mask.shape[0]
    rows = apply("Expand", apply("Unsqueeze", bias, int64s((3,))), int64s((1, 1, 1, r.times, 1)))
    apart = (batch, 1, r.queries, r.times, r.keys)
    return viewed(rows, apart, (batch, 1, multiply(r.queries, r.times), r.keys), m.q)


def _may_give_zeros(m: Match) -> bool:
    """Whether a row of the mask may forbid everything, and make no NaN."""
    return m.mask is not None and m.bias is None and not leaves_rows_open(m.mask)


def _closed(bias: Term, mask: Ref) -> Term:
    """Whether a row of the mask forbids everything: (batch, queries, 1)."""
    batch, _, queries, _ = mask.shape
    largest = apply("ReduceMax", bias, int64s((-1,)), keepdims=1)
    closed = apply("Equal", largest, literal(np.float32(-np.inf)))
    return viewed(closed, (batch, 1, queries, 1), (batch, queries, 1), mask)


ROWS = [
    *USED,
    worthwhile("kernels for one batch: q.shape[0] == k.shape[0]"),
    worthwhile(
        Condition(  # on GPUs others are stored wrong (WebGPU, 0.4.0)
            "results alone, stored keys, or heads in blocks of 4",
            lambda m: m.part is None or m.pk is not None or _rows(m).size % 4 == 0,
        )
    ),
    Condition("a mask or causality", lambda m: m.mask is None or not _is_causal(m)),
    worthwhile(Condition("a small causal mask", lambda m: not _is_causal(m) or _rows(m).area <= LARGEST_TRIANGLE)),
    worthwhile(
        Condition(
            "kernels for masks with four axes, for each query and key",
            lambda m: is_of_all(m.mask, _rows(m).queries, _rows(m).keys),
        )
    ),
    Condition(
        "one mask for the heads of a group, and where no row may give zeros",
        lambda m: m.mask is None or m.mask.shape[1] == 1 or (_rows(m).times == 1 and not _may_give_zeros(m)),
    ),
]


@group_rule(find=_uses_of_rows, where=ROWS, sample=draw_attention)
def use_multi_head_attention(m: Match) -> Term:
    """``Attention(q, k, v, mask, pk, pv, q_num_heads=r*g, kv_num_heads=g) == MultiHeadAttention(rows(q), k, v, mask, pk, pv,
    num_heads=g)``, with its three outputs: heads of one group are rows side by side. A row that may look at nothing gives zeros,
    or NaN where its mask was shifted for that.
    """
    r = _rows(m)
    rows, heads = multiply(r.queries, r.times), r.times * r.groups
    q, k, v = (heads_in_rows(x) if x.rank == 4 else x for x in (m.q, m.k, m.v))
    q = exchanged_heads(q, r.groups, r.times, r.size)
    q = viewed(q, (r.batch, r.queries, heads * r.size), (r.batch, rows, r.groups * r.size), m.q)
    bias = _bias(m, r)
    found = apply(
        "com.microsoft::MultiHeadAttention", q, k, v, None, None, _repeated(bias, m, r), m.pk, m.pv,
        outputs=1 if m.part is None else 3, num_heads=r.groups, scale=m.a.attr("scale"),
    )  # fmt: skip
    if m.part is not None:
        found = found.output(m.part)
    if m.part:
        return found
    whole = (r.batch, r.queries, heads * r.other)
    y = viewed(found, (r.batch, rows, r.groups * r.other), whole, m.q)
    if bias is not None and not _is_causal(m) and _may_give_zeros(m):
        y = apply("Where", _closed(bias, m.mask), literal(np.float32(0)), y)
    y = exchanged_heads(y, r.times, r.groups, r.other)
    if m.q.rank == 3:
        return y
    return apply("Transpose", viewed(y, whole, (*whole[:2], heads, r.other), m.q), perm=SWAP)
