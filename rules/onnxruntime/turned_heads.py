"""Heads that turn by their places inside of GroupQueryAttention, which takes queries, keys and values side by side, too.

    GroupQueryAttention(RotaryEmbedding(q, c, s), RotaryEmbedding(k, c, s), v) == GroupQueryAttention([q, k, v], c, s)

The kernel takes one table, which must be as long as all that is stored, and the place of each query in it: here, that of the rows
of all sequences. Of more than one query it takes the places to follow one another.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from eqsat.equations import group_rule
from eqsat.exactness import Exactness
from eqsat.ir.operators.onnxruntime_attention import TURNED_BLOCK
from eqsat.rewrite import PROJECTION, Apply, GroupView, Match, Ref, Term, apply, literal
from eqsat.rules.attention.rotary_reading import whole_features
from eqsat.rules.onnxruntime.attention import SOURCE
from eqsat.rules.onnxruntime.rotary import rows
from eqsat.rules.terms import by_class, complete_nodes, int64s
from eqsat.rules.views.parts import parts_by_class
from eqsat.samples import Drawing, Instance, Sampler, fixed

GROUPED = "com.microsoft::GroupQueryAttention"


def _draw(d: Sampler) -> Instance:
    """Heads turned by one table before they look at what is stored, now and then by others, in part, or not single."""
    drawing = Drawing()
    batch, groups, stored, half = d.extents(4, ones=0.1)
    heads, size, queries = groups * d.choose((1, 2, 3)), 16 * half - 8 * d.chance(0.1), 1 if d.chance(0.85) else 2
    batch = 1 if queries > 1 or d.chance(0.3) else batch
    widths = [heads * size, groups * size, groups * size]
    whole = drawing.value(d.tame(batch, queries, sum(widths)))
    cut = drawing.value(fixed(widths, "int64"))
    q, k, v = drawing.builder.op("Split", whole, cut, outputs=3, axis=2)
    if d.chance(0.2):
        v = drawing.value(d.tame(batch, queries, groups * size))
    part = size // 2 - d.chance(0.1)
    tables = [drawing.value(d.floats((batch, queries, part))) for _ in "cs"]
    turns: dict[str, Any] = {"interleaved": 1} if d.chance(0.3) else {}
    turns |= {"rotary_embedding_dim": 2 * part} if 2 * part != size else {}
    q = drawing.op("RotaryEmbedding", q, *tables, num_heads=heads, **turns)
    others = tables if d.chance(0.9) else tables[::-1]
    turns |= {"interleaved": 0} if d.chance(0.1) else {}
    k = drawing.op("RotaryEmbedding", k, *others, num_heads=groups, **turns)
    past = [drawing.value(d.tame(batch, groups, stored, size)) for _ in "kv"]
    total = stored + queries
    lengths = [drawing.value(fixed(n, "int32")) for n in ([total - 1] * batch, total)]
    mask = [None, None, None, drawing.value(d.tame(1, 1, queries, total))] if d.chance() else []
    attributes = {"num_heads": heads, "kv_num_heads": groups, "causal": d.integer(0, 1), "do_rotary": 0}
    return drawing.finish(*drawing.op(GROUPED, q, k, v, *past, *lengths, *mask, outputs=3, **attributes))


def _turned(view: GroupView) -> Iterator[Match]:
    """Each output of attention on queries and keys that were turned by one table."""
    turned = by_class((node, (node, xs)) for node, xs in complete_nodes(view, "RotaryEmbedding") if len(xs) == 3)
    parts = parts_by_class(view)
    for node, inputs in view.nodes(GROUPED):
        q, k, v, pk, pv, lengths, total, *more = (*inputs, *[None] * 4)
        if q is None or k is None or v is None or pk is None or any(more[:3]):
            continue
        for (r, (x, c, s)), (e, (y, *others)) in product(turned.get(q.handle, ()), turned.get(k.handle, ())):
            if [f.handle for f in others] != [c.handle, s.handle]:
                continue
            wholes = whole_features(*(parts.get(value.handle, ()) for value in (x, y, v)))
            whole, _ = next(wholes, (None, 0))
            rest = {"pk": pk, "pv": pv, "lengths": lengths, "total": total, "mask": more[3], "a": node, "r": r, "e": e}
            found = {"q": x, "k": y, "v": v, "c": c, "s": s, "whole": whole, **rest}
            for user in [user for op, user, _ in view.users(node) if op == PROJECTION]:
                yield Match({**found, "part": user.attr("index")}, user)


def _table(factor: Ref, total: int) -> Term:
    """The rows of all sequences, and as many more that nobody reads as the kernel asks for."""
    missing = total - int(factor.shape[0])
    return apply("Pad", rows(factor), int64s((0, 0, missing, 0))) if missing > 0 else rows(factor)


@group_rule(
    find=_turned,
    where=[
        "one query: q.shape[1] == 1",
        f"heads in blocks of {TURNED_BLOCK}: pk.static_shape[3] % {TURNED_BLOCK} == 0",
        "all features turn: not any(x.attr('rotary_embedding_dim', 0) for x in (r, e))",
        "the same pairs turn: r.attr('interleaved', 0) == e.attr('interleaved', 0)",
    ],
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_draw,
    domain="com.microsoft",
)
def turn_heads_in_group_query_attention(m: Match) -> Apply:
    """``GroupQueryAttention(RotaryEmbedding(q, c, s), RotaryEmbedding(k, c, s), v) == GroupQueryAttention([q, k, v], c, s)``, or
    with the three one by one where they do not lie side by side."""
    heads = (m.q, m.k, m.v) if m.whole is None else (m.whole, None, None)
    tables = (_table(f, int(m.total.value)) for f in (m.c, m.s))
    places = literal(np.arange(int(m.c.shape[0]), dtype=np.int64)[:, None])
    operands: tuple[Any, ...] = (*heads, m.pk, m.pv, m.lengths, m.total, *tables, places, m.mask)
    attributes = m.a.attributes.updated(do_rotary=1, rotary_interleaved=m.r.attr("interleaved", 0))
    return apply(GROUPED, *operands, outputs=3, **attributes).output(m.part)
