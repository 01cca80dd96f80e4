"""Attention in rows as GroupQueryAttention, which stores keys and values and takes heads that share them as they are.

    Attention(q, k, v, m, pk, pv) == GroupQueryAttention(q, k, v, pk, pv, ..., m)      for known lengths

It takes as many queries as new keys, and with a cache one sequence, or one query of each: where both are symbols it may refuse.
"""

import numpy as np

from eqsat.conditions import worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.operators.onnxruntime_attention import BLOCK
from eqsat.rewrite import Apply, Match, apply, literal
from eqsat.rules.attention.layout import has_only
from eqsat.rules.onnxruntime.attention import SOURCE, leaves_rows_open
from eqsat.rules.onnxruntime.shared_heads import USED, draw_attention, is_of_all, total, uses_of_attention

group_rule = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    domain="com.microsoft",
    functions=named(has_only, is_of_all, leaves_rows_open, total),
).over_groups

SHARED = (
    *USED,
    "heads side by side: q.rank == 3",
    "as many queries as new keys: k.shape[:2] == q.shape[:2]",
    f"heads in blocks of {BLOCK}: q.static_shape[2] // a.attr('q_num_heads') % {BLOCK} == 0",
    "with a cache one sequence, or one query of each: pk is None or 1 in q.shape[:2]",
    worthwhile(
        "causality, shared keys or a cache: without, MultiHeadAttention takes as long, in older releases, too: "
        "a.attr('is_causal', 0) or pk is not None or k.shape != q.shape"
    ),
    worthwhile("sequences of known length: q.type.is_static and isinstance(total(k, pk), int)"),
    worthwhile("kernels for values as wide as keys: v.shape == k.shape"),
    worthwhile(
        "kernels for masks of floats with four axes, for each query and key: "
        "(mask is None or mask.dtype is float32) and is_of_all(mask, q.shape[1], total(k, pk))"
    ),
    "no row of the mask forbids everything: "
    "mask is None or (mask.low > -inf if a.attr('is_causal', 0) else leaves_rows_open(mask))",
)


@group_rule(find=uses_of_attention, where=SHARED, sample=draw_attention)
def use_group_query_attention(m: Match) -> Apply:
    """``Attention(q, k, v, mask, pk, pv, q_num_heads=n, kv_num_heads=g) == GroupQueryAttention(q, k, v, pk, pv, total - 1, total,
    mask, num_heads=n, kv_num_heads=g)``, with its three outputs, for as many queries as new keys.
    """
    keys = int(total(m.k, m.pk))
    lengths = literal(np.full(m.q.static_shape[0], keys - 1, np.int32))
    numbers = {"num_heads": m.a.attr("q_num_heads"), "kv_num_heads": m.a.attr("kv_num_heads")}
    how = {"do_rotary": 0, "causal": m.a.attr("is_causal", 0), "scale": m.a.attr("scale")}
    operands = (m.q, m.k, m.v, m.pk, m.pv, lengths, literal(np.int32(keys)), None, None, None, m.mask)
    found = apply("com.microsoft::GroupQueryAttention", *operands, outputs=1 if m.part is None else 3, **numbers, **how)
    return found if m.part is None else found.output(m.part)
