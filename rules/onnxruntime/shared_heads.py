"""Attention in rows, as ONNX Runtime has kernels that store keys and values, or share them among heads.

    Attention(q, k, v, m, pk, pv) == MultiHeadAttention(rows(q), k, v, m, pk, pv)      heads that share as rows of one head
    Attention(q, k, v, m, pk, pv) == GroupQueryAttention(q, k, v, pk, pv, ..., m)      for known lengths

Heads that share keys and values are one head with as many times the queries: their order is changed so that those of one place
are rows side by side, which `head_order` does to the weights before and behind. GroupQueryAttention takes them as they are,
with as many queries as new keys, and with a cache one sequence, or one query of each: where both are symbols it may refuse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.conditions import worthwhile
from eqsat.equations import named, stated
from eqsat.exactness import Exactness
from eqsat.ir.extents import add, multiply
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import PROJECTION, Apply, Condition, GroupView, Match, Term, apply, group_rule, literal
from eqsat.rules.onnxruntime.attention import (
    FLOAT32,
    LARGEST_TRIANGLE,
    SOURCE,
    are_known,
    leaves_rows_open,
    mask_of_scores,
    tame,
)
from eqsat.rules.terms import int64s
from eqsat.rules.views.extents import viewed
from eqsat.samples import Drawing, Instance, Sampler


def _shared(d: Sampler) -> Instance:
    """Attention in rows, with and without a cache, a mask and causality; now and then of a size that has no kernel."""
    drawing = Drawing()
    batch, groups, new, before = d.extents(4)
    batch = d.choose((1, 1, batch))
    heads, size = groups * d.choose((1, 2, 3)), d.choose((8, 8, 8, 8, 8, 16, 6))
    defect = d.choose((*("",) * 6, "length", "width", "axes", "softcap", "scores"))
    keys, width = new + (defect == "length"), size * (1 + (defect == "width"))
    shapes = [(batch, new, heads * size), (batch, keys, groups * size), (batch, keys, groups * width)]
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": groups, "is_causal": d.integer(0, 1)}
    if defect == "axes":
        shapes = [(batch, heads, new, size), *[(batch, groups, keys, size)] * 2]
        attributes = {}
    cached = d.chance()
    operands: list[Any] = [tame(d, *shape) for shape in shapes]
    operands.append(mask_of_scores(d, batch, heads, new, keys + before * cached) if d.chance() else None)
    if cached:
        operands += [tame(d, batch, groups, before, n) for n in (size, width)]
    values = [None if o is None else drawing.value(o) for o in operands]
    while values[-1] is None:
        values.pop()
    attributes |= {"softcap": 2.0} if defect == "softcap" else {"scale": 0.25} if d.chance() else {}
    if cached or defect == "scores" or d.chance(0.3):
        return drawing.finish(*drawing.op("Attention", *values, outputs=3 + (defect == "scores"), **attributes))
    return drawing.finish(drawing.op("Attention", *values, **attributes))


def _uses(view: GroupView) -> Iterator[Match]:
    """Each output that GroupQueryAttention has, too, of Attention; ``part`` is its number if there are several."""
    for node, inputs in view.nodes("Attention"):
        operands = dict(zip(("q", "k", "v", "mask", "pk", "pv", "lengths"), (*inputs, *[None] * 7), strict=False))
        if None in (operands["q"], operands["k"], operands["v"]):
            continue
        parts = [user for op, user, _ in view.users(node) if op == PROJECTION]
        for part in parts or (node,):
            yield Match({**operands, "a": node, "part": part.attr("index") if parts else None}, part)


def _total(m: Match) -> Dim:
    """Stored and new keys; unknown if either is."""
    extents = (m.k.shape[1], 0 if m.pk is None else m.pk.shape[2])
    return sum(extents) if are_known(*extents) else "?"


def _plain(m: Match) -> bool:
    given = {
        "softcap": 0,
        "qk_matmul_output_mode": 0,
        "softmax_precision": 0,
        "left_window_size": -1,
        "right_window_size": -1,
    }
    return m.lengths is None and all(m.a.attr(name, value) == value for name, value in given.items())


USED = [
    FLOAT32,
    Condition("the result, keys or values", lambda m: m.part in (None, 0, 1, 2)),
    Condition("neither capped nor in windows, nor of several lengths", _plain),
    Condition("heads side by side", lambda m: m.q.rank == 3),
]
# --- as GroupQueryAttention

SHARED = [
    *USED,
    Condition("as many queries as new keys", lambda m: m.k.shape[:2] == m.q.shape[:2]),
    Condition("heads in blocks of 8", lambda m: m.q.static_shape[2] // m.a.attr("q_num_heads") % 8 == 0),
    Condition("with a cache one sequence, or one query of each", lambda m: m.pk is None or 1 in m.q.shape[:2]),
    worthwhile(Condition("sequences of known length", lambda m: are_known(*m.q.shape, _total(m)))),
    worthwhile(Condition("kernels for values as wide as keys", lambda m: m.v.shape == m.k.shape)),
    worthwhile(
        Condition(
            "kernels for masks of floats with four axes, for each query and key",
            lambda m: (
                m.mask is None
                or (m.mask.dtype is DType.FLOAT and m.mask.rank == 4 and m.mask.shape[2:] == (m.q.shape[1], _total(m)))
            ),
        )
    ),
    Condition(
        "no row of the mask forbids everything",
        lambda m: m.mask is None or (m.mask.low > -math.inf if m.a.attr("is_causal", 0) else leaves_rows_open(m.mask)),
    ),
]


@group_rule(
    find=_uses, where=SHARED, exactness=Exactness.ROUNDING, source=SOURCE, sample=_shared, domain="com.microsoft"
)
def use_group_query_attention(m: Match) -> Apply:
    """``Attention(q, k, v, mask, pk, pv, q_num_heads=n, kv_num_heads=g) == GroupQueryAttention(q, k, v, pk, pv, total - 1, total,
    mask, num_heads=n, kv_num_heads=g)``, with its three outputs, for as many queries as new keys.
    """
    total = int(_total(m))
    lengths = literal(np.full(m.q.static_shape[0], total - 1, np.int32))
    attributes = {"num_heads": m.a.attr("q_num_heads"), "kv_num_heads": m.a.attr("kv_num_heads"), "do_rotary": 0}
    attributes |= {"causal": m.a.attr("is_causal", 0)} | (
        {"scale": m.a.attr("scale")} if m.a.attr("scale") is not None else {}
    )
    operands = (m.q, m.k, m.v, m.pk, m.pv, lengths, literal(np.int32(total)), None, None, None, m.mask)
    found = apply("com.microsoft::GroupQueryAttention", *operands, outputs=1 if m.part is None else 3, **attributes)
    return found if m.part is None else found.output(m.part)


# --- heads that share keys and values as rows of one head


def _single(m: Match) -> bool:
    """One query, and one new key: nothing comes later."""
    return m.q.shape[1] == m.k.shape[1] == 1


def _stored(m: Match) -> Dim:
    return 0 if m.pk is None else m.pk.shape[2]


def _heads(m: Match) -> tuple[int, int]:
    """Heads that share keys and values, and how many there are of these."""
    groups = m.a.attr("kv_num_heads")
    return m.a.attr("q_num_heads") // groups, groups


def _area(m: Match) -> float:
    """Elements of a causal mask, infinitely many where an extent is not known."""
    extents = (m.q.shape[1], m.k.shape[1], _stored(m))
    return extents[0] * (extents[1] + extents[2]) if are_known(*extents) else math.inf


def _is_causal(m: Match) -> bool:
    return bool(m.a.attr("is_causal", 0)) and not _single(m)


def exchanged_heads(x: Term, outer: int, inner: int, size: int) -> Term:
    """Rows of heads, ``outer`` times ``inner`` of them, with the two exchanged."""
    if 1 in (outer, inner):
        return x
    apart = apply("Transpose", apply("Reshape", x, int64s((0, 0, outer, inner, size))), perm=(0, 1, 3, 2, 4))
    return apply("Reshape", apart, int64s((0, 0, outer * inner * size)))


def _bias(m: Match) -> Term | None:
    """What is added to the scores."""
    if _is_causal(m):
        rows, keys, before = m.q.static_shape[1], m.k.static_shape[1], int(_stored(m))
        allowed = np.tri(rows, before + keys, before, dtype=np.bool_)
        return literal(np.where(allowed, 0, -np.inf)[None, None], DType.FLOAT)
    if m.mask is None or m.mask.dtype is not DType.BOOL:
        return m.mask
    return apply("Where", m.mask, literal(np.float32(0)), literal(np.float32(-np.inf)))


def _repeated(bias: Term | None, m: Match) -> Term | None:
    """A row of the mask for each head of a group."""
    times, queries = _heads(m)[0], m.q.shape[1]
    if bias is None or times == 1:
        return bias
    batch, keys = 1 if m.mask is None or _is_causal(m) else m.mask.shape[0], add(_stored(m), m.k.shape[1])
    rows = apply("Unsqueeze", bias, int64s((3,)))
    rows = apply("Expand", rows, int64s((1, 1, 1, times, 1)))
    return viewed(rows, (batch, 1, queries, times, keys), (batch, 1, multiply(queries, times), keys), m.q)


def _closed(bias: Term, m: Match) -> Term:
    """Whether a row of the mask forbids everything: (batch, queries, 1)."""
    batch, _, queries, _ = m.mask.shape
    largest = apply("ReduceMax", bias, int64s((-1,)), keepdims=1)
    closed = apply("Equal", largest, literal(np.float32(-np.inf)))
    return viewed(closed, (batch, 1, queries, 1), (batch, queries, 1), m.mask)


ROWS = [
    *USED,
    *stated(
        "q k v mask pk pv a m",
        worthwhile("kernels for one batch: q.shape[0] == k.shape[0]"),
        "known widths: are_known(q.shape[2], k.shape[2], v.shape[2])",
        functions=named(are_known),
    ),
    Condition("a mask or causality", lambda m: m.mask is None or not _is_causal(m)),
    worthwhile(Condition("a small causal mask", lambda m: not _is_causal(m) or _area(m) <= LARGEST_TRIANGLE)),
    worthwhile(
        Condition(
            "kernels for masks with four axes, for each query and key",
            lambda m: (
                m.mask is None
                or (m.mask.rank == 4 and m.mask.shape[2:] == (m.q.shape[1], add(_stored(m), m.k.shape[1])))
            ),
        )
    ),
    Condition(
        "one mask for the heads of a group, and where no row may forbid everything",
        lambda m: m.mask is None or m.mask.shape[1] == 1 or (_heads(m)[0] == 1 and leaves_rows_open(m.mask)),
    ),
]


@group_rule(find=_uses, where=ROWS, exactness=Exactness.ROUNDING, source=SOURCE, sample=_shared, domain="com.microsoft")
def use_multi_head_attention(m: Match) -> Term:
    """``Attention(q, k, v, mask, pk, pv, q_num_heads=r*g, kv_num_heads=g) == MultiHeadAttention(rows(q), k, v, mask, pk, pv,
    num_heads=g)``, with its three outputs: heads of one group are rows side by side. A row that may look at nothing gives zeros.
    """
    times, groups = _heads(m)
    batch, queries, width = m.q.shape
    size, other = int(width) // (times * groups), int(m.v.shape[2]) // groups
    rows = multiply(queries, times)
    q = viewed(exchanged_heads(m.q, groups, times, size), (batch, queries, width), (batch, rows, groups * size), m.q)
    bias = _bias(m)
    attributes = {"num_heads": groups, "scale": m.a.attr("scale")}
    found = apply(
        "com.microsoft::MultiHeadAttention", q, m.k, m.v, None, None, _repeated(bias, m), m.pk, m.pv,
        outputs=1 if m.part is None else 3, **attributes,
    )  # fmt: skip
    if m.part is not None:
        found = found.output(m.part)
    if m.part:
        return found
    y = viewed(found, (batch, rows, groups * other), (batch, queries, times * groups * other), m.q)
    if bias is not None and not _is_causal(m) and not leaves_rows_open(m.mask):
        y = apply("Where", _closed(bias, m), literal(np.float32(0)), y)
    return exchanged_heads(y, times, groups, other)
