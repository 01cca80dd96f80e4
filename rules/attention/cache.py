"""Caches of keys and values: what attention reads behind what is stored already, and the two together as outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.extents import multiply
from eqsat.ir.graph import Attributes
from eqsat.rewrite import Apply, GroupView, Merge, Ref, Unmet, group_rule
from eqsat.rules.attention.layout import SWAP, heads_in_rows
from eqsat.rules.attention.masks import is_causal
from eqsat.rules.terms import permutation_of
from eqsat.rules.views.extents import viewed
from eqsat.samples import Drawing, Instance, Sampler, fixed

Joined = tuple[Ref, Ref]
"""What is stored, and what comes behind it: (batch, heads, sequence, size) each."""


def _draw(d: Sampler) -> Instance:
    """Attention on keys and values that are stored ones and new ones, now and then joined otherwise."""
    drawing = Drawing()
    batch, groups, queries, stored, new, size, width = d.extents(7, ones=0.15)
    heads = groups * d.choose((1, 1, 2))
    lengths = [stored, new, 1] if d.chance(0.1) else [stored, new]
    keys = sum(lengths)
    operands = [drawing.value(d.floats((batch, heads, queries, size)))]
    outputs = []
    for n in (size, width):
        parts = [drawing.value(d.floats((batch, groups, m, n))) for m in lengths]
        outputs.append(drawing.op("Concat", *parts, axis=d.choose((2, -2))))
        operands.append(outputs[-1] if d.chance(0.9) else drawing.value(d.floats((batch, groups, keys, n))))
    attributes: dict[str, Any] = d.choose(({}, {}, {}, {"is_causal": 1}, {"softcap": 2.0}))
    if d.chance(0.7):
        before = d.choose((stored, stored, 0))
        triangle = np.where(np.tri(queries, keys, before), 0, -np.inf).astype(np.float32)
        operands.append(drawing.value(fixed(triangle) if d.chance(0.7) else d.floats((queries, keys))))
    y = drawing.op("Attention", *operands, scale=0.25, **attributes)
    if d.chance():
        y = drawing.op("Transpose", y, perm=SWAP if d.chance(0.8) else (0, 3, 1, 2))
    return drawing.finish(y, *outputs)


@group_rule(exactness=Exactness.ROUNDING, source="ONNX Attention: past and present", sample=_draw)
def store_keys_and_values_in_attention(view: GroupView) -> Iterator[Merge]:
    """``(Attention(q, Concat(pk, k), Concat(pv, v)), Concat(pk, k), Concat(pv, v)) == Attention(q, k, v, pk, pv)`` and a mask of
    the triangle behind what is stored is causality."""
    joined = _joined(view)
    for node, inputs in view.nodes("Attention"):
        try:
            yield from _cached(view, joined, node, inputs)
        except Unmet:
            continue


def _joined(view: GroupView) -> dict[int, Joined]:
    """Concatenations of two values of four axes along the sequence, by class."""
    found: dict[int, Joined] = {}
    for node, parts in view.nodes("Concat"):
        if len(parts) == 2 and node.attr("axis") in (2, -2) and all(x is not None and x.rank == 4 for x in parts):
            past, new = parts
            assert past is not None
            assert new is not None
            found.setdefault(node.handle, (past, new))
    return found


def _cached(view: GroupView, joined: dict[int, Joined], node: Ref, inputs: tuple[Ref | None, ...]) -> Iterator[Merge]:
    query, keys, values, *rest = (*inputs, None)[:4]
    if len(inputs) > 4 or query is None or keys is None or values is None or node.rank != 4:
        return
    if keys.handle not in joined or values.handle not in joined:
        return
    if any(node.attr(name, default) != default for name, default in _PLAIN.items()):
        return
    (past_keys, k), (past_values, v) = joined[keys.handle], joined[values.handle]
    if past_keys.shape[2] != past_values.shape[2]:
        return
    attributes, mask = node.attributes, rest[0]
    if mask is not None and _is_causal(mask, query, past_keys, keys):
        attributes, mask = attributes.updated(is_causal=1), None
    stored = (mask, past_keys, past_values)
    swapped = [user for op, user, _ in view.users(node) if op == "Transpose" and permutation_of(user) == SWAP]
    if not swapped:
        whole = Apply("Attention", (query, k, v, *stored), attributes, "", 3)  # type: ignore[arg-type]
        yield from ((node, whole.output(0)), (keys, whole.output(1)), (values, whole.output(2)))
    for user in swapped:
        rows = (*map(heads_in_rows, (query, k, v)), *stored)
        whole = Apply("Attention", rows, _in_rows(attributes, query, k), "", 3)  # type: ignore[arg-type]
        batch, queries, heads, width = user.shape
        yield user, viewed(whole.output(0), (batch, queries, multiply(heads, width)), user.shape, user)
        yield from ((keys, whole.output(1)), (values, whole.output(2)))


_PLAIN = {"is_causal": 0, "qk_matmul_output_mode": 0, "left_window_size": -1, "right_window_size": -1}
"""Attributes, with their defaults, that mean something else where keys are stored."""


def _is_causal(mask: Ref, query: Ref, past: Ref, keys: Ref) -> bool:
    before = past.shape[2]
    rows, columns = query.shape[2], keys.shape[2]
    if not mask.is_constant or not all(isinstance(n, int) for n in (before, rows, columns)):
        return False
    try:
        return is_causal(mask.elements, rows, columns, before)  # type: ignore[arg-type]
    except Unmet:
        return False


def _in_rows(attributes: Attributes, query: Ref, k: Ref) -> Attributes:
    heads: Any = {"q_num_heads": query.shape[1], "kv_num_heads": k.shape[1]}
    if not all(isinstance(n, int) for n in heads.values()):
        raise Unmet("an unknown number of heads")
    return attributes.updated(**heads)
