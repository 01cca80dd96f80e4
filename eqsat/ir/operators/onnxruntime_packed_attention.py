"""``com.microsoft::Attention(x, w, *b, *mask, None, *bias)``: attention by weights of queries, keys and values side by side.

So ONNX Runtime's tools write encoders, and decoders without stored keys.
"""

from collections.abc import Sequence
from typing import Any

import ml_dtypes

from eqsat.errors import ShapeError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Kind
from eqsat.ir.operators.onnxruntime_attention import heads_apart, mixed_values, places_along, scaled_scores
from eqsat.ir.outlines import of_attention
from eqsat.ir.traits import Traits
from eqsat.ir.types import DType

PACKED_ATTENTION = "com.microsoft::Attention"
_NAME = "Attention of com.microsoft"
_FORBIDDEN = -10000.0
"""Default of what is added to the scores of keys that do not count."""


def _expand(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    """``softmax(scale * Q K^T + mask + bias) V`` for each head of ``x w + b``, and keys and values, heads apart."""
    known = ("num_heads", "unidirectional", "scale", "mask_filter_value", "qkv_hidden_sizes")
    only_attributes(_NAME, attributes, *known, do_rotary=0, past_present_share_buffer=0, rotary_embedding_dim=0)
    x, weights, biases, mask, past, added, *others = [*inputs, *[None] * 7][:7]
    if past or any(others):
        raise ShapeError(f"{_NAME}: stored keys are not covered by the definition")
    heads: Any = attributes["num_heads"]
    widths = _widths(b, weights, attributes.get("qkv_hidden_sizes"), heads)
    whole = b.op("MatMul", x, weights)
    whole = b.op("Add", whole, biases) if biases else whole
    parts = b.op("Split", whole, b.constant(list(widths), "int64"), outputs=3, axis=2)
    q, k, v = (heads_apart(b, part, heads, width) for part, width in zip(parts, widths, strict=True))
    scores, dtype = scaled_scores(b, attributes, q, k, widths[0] // heads), b.type_of(x).dtype
    places = places_along(b, x, 1)
    if mask:
        scores = _masked(b, scores, _that_count(b, x, mask, places), attributes.get("mask_filter_value", _FORBIDDEN))
    if added:
        scores = b.op("Add", scores, added)
    if attributes.get("unidirectional", 0):
        row = b.op("Unsqueeze", places, b.constant([1], "int64"))
        earlier = b.op("LessOrEqual", places, row)
        scores = b.op("Where", earlier, scores, b.constant(_lowest(dtype), dtype))
    joined = mixed_values(b, scores, v, widths[2])
    if widths[1] != widths[2]:
        return [joined]
    first = b.constant([0], "int64")
    return [joined, b.op("Concat", *(b.op("Unsqueeze", part, first) for part in (k, v)), axis=0)]


def _widths(b: GraphBuilder, weights: str | None, sizes: Any, heads: int) -> tuple[int, int, int]:
    """Columns of queries, keys and values."""
    found = b.type_of(weights or "")
    columns = found.shape[-1] if found.rank == 2 and found.shape else None
    if not isinstance(columns, int) or heads < 1:
        raise ShapeError(f"{_NAME} takes weights [width, columns] of known extents, got {found}")
    q, k, v = sizes or (columns // 3,) * 3
    if q + k + v != columns or q != k or any(n % heads for n in (q, v)):
        raise ShapeError(f"{_NAME}: {columns} columns are not queries, keys and values of {heads} heads each")
    return int(q), int(k), int(v)


def _masked(b: GraphBuilder, scores: str, counts: str, forbidden: Any) -> str:
    """Scores with ``forbidden`` added where keys do not count. By less than their type holds they are the least that it does:
    all the same where no key counts, and no number minus infinity."""
    dtype = b.type_of(scores).dtype
    lowest = _lowest(dtype)
    if forbidden < lowest:
        return b.op("Where", counts, scores, b.constant(lowest, dtype))
    return b.op("Add", scores, b.op("Where", counts, b.constant(0.0, dtype), b.constant(forbidden, dtype)))


def _lowest(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy).min)


def _that_count(b: GraphBuilder, x: str | None, mask: str, places: str) -> str:
    """Which keys count: by how many of each sequence do, or by a number above 0 for each."""
    found, rows = b.type_of(mask), b.type_of(x or "")
    extents = (rows.shape or ())[:2]
    shape = found.shape if found.dtype is DType.INT32 else None
    if shape not in (extents[:1], extents):
        raise ShapeError(f"{_NAME}: a mask is covered that counts keys, or has a number for each, got {found}")
    if len(shape) == 2:
        which = b.op("Greater", mask, b.constant(0, DType.INT32))
    else:
        counts = b.op("Unsqueeze", b.op("Cast", mask, to=int(DType.INT64)), b.constant([1], "int64"))
        which = b.op("Less", places, counts)
    return b.op("Unsqueeze", which, b.constant([1, 2], "int64"))


define_composite(PACKED_ATTENTION, _expand, Kind.ANCHOR, traits=Traits(structure="attention"), outline=of_attention)
