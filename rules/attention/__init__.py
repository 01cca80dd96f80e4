"""Attention, read back from what exporters spell out: ``softmax(q k^T * s + m) v`` for every head.

    Softmax(q @ Transpose(k) * s + m) @ v == Attention(q, k, v, m, s)       on floats              `recognition`
    Q(Softmax(Q(q @ k)) @ v) == QuantisedAttention(q, k, v, ...)            every step kept        `quantised`
    heads in rows, or as rows, keys and values that heads share             how it lies            `layout`
    Concat(past, k)                                                         stored keys, values    `cache`
    x * cos + turned(x) * sin == RotaryEmbedding(x, cos, sin)               positions              `rotary`, `rotary_reading`
    Concat(x1 * cos - x2 * sin, x2 * cos + x1 * sin)                        of each half           `rotary`
    Concat(RotaryEmbedding(x[:r]), x[r:])                                   of the first features  `rotary_parts`

Nobody can write down all spellings of attention as patterns: scales stand before, behind or half on each side, masks are added,
chosen or multiplied, heads are split by any chain of views. So `reading` goes from the product back to queries and keys, one step
at a time, to the `scores`. Each step is an equation, looked for in the e-graph, where all spellings of a value are one class.
Numbers that multiply queries and keys are `factors` of the scale. `grouping` follows batch and heads through views that join and
cut them. `mask_reading`, `masks`, `elements`, `triangles` and `magnitudes` say what is known of the mask, and so `mask_forms` in
which form the operator may take it:

    c * (s + m) == c * s + c * m        (s + m) + n == s + (m + n)          assuming that scores round alike
    Where(c, s, v) == s + Where(c, 0, v)                                    assuming that `v` leaves nothing of `s`
    Where(c, Softmax(Where(c, s, v)), 0) == Softmax(Where(c, s, -inf))      and zeros where a row has no other
    Max(s, lowest) == s                                                     unless `s` is minus infinity
    Cast(s + m) == Cast(s) + Cast(m)                                        assuming that both leave as much of `s`

Steps are taken as if their assumptions held. One that does not hold is noted, among the doubts about the mask or the scores; that
there are none is a condition of the rule, each by its name.
"""
