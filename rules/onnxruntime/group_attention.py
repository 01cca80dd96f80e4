"""Attention with shared or stored keys and values, as ONNX Runtime has a kernel: GroupQueryAttention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import PROJECTION, Apply, GroupView, Merge, Ref, Unmet, apply, group_rule, literal
from eqsat.rules.onnxruntime.attention import DOMAIN, PLAIN, leaves_rows_open
from eqsat.samples import Drawing, Instance, Sampler, fixed

KEY = f"{DOMAIN}::GroupQueryAttention"

_BLOCK = 8
"""The kernel takes heads whose size is a multiple of this."""

_OUTPUTS = 3
"""The result, and all keys and values; Attention may have a fourth."""


def _draw(d: Sampler) -> Instance:
    """Attention in rows, with and without a cache, a mask and causality; now and then of a size that has no kernel."""
    drawing = Drawing()
    batch, groups, new, before = d.extents(4)
    batch = d.choose((1, 1, batch))
    heads, size = groups * d.choose((1, 2, 3)), d.choose((8, 8, 8, 16, 6))
    keys = new if d.chance(0.9) else new + 1
    width = size if d.chance(0.9) else 2 * size
    shapes = [(batch, new, heads * size), (batch, keys, groups * size), (batch, keys, groups * width)]
    operands: list[str | None] = [drawing.value(d.floats(shape)) for shape in shapes]
    cached = d.chance()
    total = keys + before if cached else keys
    extents = (d.choose((1, batch)), d.choose((1, heads)), new, total)
    mask = d.floats(extents if d.chance(0.8) else extents[2:])
    if d.chance(0.2):
        mask[..., d.integer(0, total - 1) :] = -np.inf
    operands.append(drawing.value(fixed(mask) if d.chance(0.3) else mask) if d.chance() else None)
    if cached:
        operands += [drawing.value(d.floats((batch, groups, before, n))) for n in (size, width)]
    while operands[-1] is None:
        operands.pop()
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": groups}
    attributes |= d.choose(({}, {"is_causal": 1}, {"scale": 0.25}, {"softcap": 2.0}, {"is_causal": 1, "scale": 0.5}))
    if cached or d.chance(0.3):
        return drawing.finish(*drawing.op("Attention", *operands, outputs=3, **attributes))
    return drawing.finish(drawing.op("Attention", *operands, **attributes))


@group_rule(
    exactness=Exactness.ROUNDING,
    source="contrib operators of ONNX Runtime; Ainslie et al. 2023",
    sample=_draw,
    domain=DOMAIN,
)
def use_group_query_attention(view: GroupView) -> Iterator[Merge]:
    """``Attention(q, k, v, mask, pk, pv, q_num_heads=n, kv_num_heads=g) == GroupQueryAttention(q, k, v, pk, pv, total - 1, total,
    mask, num_heads=n, kv_num_heads=g)``, with its three outputs, for as many queries as new keys.
    """
    for node, inputs in view.nodes("Attention"):
        parts = [user for op, user, _ in view.users(node) if op == PROJECTION]
        try:
            found = _attention(node, inputs, _OUTPUTS if parts else 1)
        except Unmet:
            continue
        if not parts:
            yield node, found
        for part in parts:
            if part.attr("index") < _OUTPUTS:
                yield part, found.output(part.attr("index"))


def _attention(node: Ref, inputs: tuple[Ref | None, ...], outputs: int) -> Apply:
    """The same as one operator of the runtime. Raises `Unmet` where that has no form for it."""
    query, keys, values, mask, past_keys, past_values, lengths = (*inputs, *([None] * 7))[:7]
    if query is None or keys is None or values is None or lengths is not None:
        raise Unmet("operands are missing, or sequences of several lengths")
    if any(node.attr(name, value) != value for name, value in PLAIN.items()):
        raise Unmet("capped, or in windows")
    heads, groups = node.attr("q_num_heads", 0), node.attr("kv_num_heads", 0)
    stored = [v for v in (past_keys, past_values) if v is not None]
    if any(v.dtype is not DType.FLOAT for v in (query, keys, values, *stored)) or not heads or not groups:
        raise Unmet("the rule is for float32, with the heads side by side")
    batch, new, width = query.static_shape
    if keys.static_shape != values.static_shape or keys.static_shape[:2] != (batch, new) or width // heads % _BLOCK:
        raise Unmet("as many new keys as queries, values as wide as keys, in blocks")
    if stored and (len(stored) < 2 or not (batch == 1 or new == 1)):
        raise Unmet("with a cache the kernel takes one sequence, or one query of each")
    total = new + (stored[0].static_shape[2] if stored else 0)
    causal = node.attr("is_causal", 0)
    if mask is not None:
        _check_mask(mask, causal, (new, total), (batch, heads))
    shared = {"num_heads": heads, "kv_num_heads": groups, "causal": causal, "do_rotary": 0}
    scale = node.attr("scale")
    past = stored or [None, None]
    lengths_and_total = literal(np.full(batch, total - 1, np.int32)), literal(np.int32(total))
    return apply(
        KEY, query, keys, values, *past, *lengths_and_total, None, None, None, mask,
        outputs=outputs, **shared, **({} if scale is None else {"scale": scale}),
    )  # fmt: skip


def _check_mask(mask: Ref, causal: int, scores: tuple[int, int], batches: tuple[int, int]) -> None:
    """Raises `Unmet` for a mask that the kernel does not take, or that may forbid all of a row."""
    if mask.dtype is not DType.FLOAT or mask.rank != 4 or mask.static_shape[2:] != scores:
        raise Unmet("no mask of floats with four axes, or it broadcasts over queries or keys")
    if any(extent not in (1, whole) for extent, whole in zip(mask.static_shape, batches, strict=False)):
        raise Unmet("a mask for other batches")
    if not (mask.interval[0] > -np.inf if causal else leaves_rows_open(mask)):
        raise Unmet("a row of the mask may forbid everything")
