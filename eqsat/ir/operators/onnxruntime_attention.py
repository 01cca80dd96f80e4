"""Attention of ONNX Runtime: MultiHeadAttention on values of three axes, heads side by side in the last; RotaryEmbedding;
GroupQueryAttention."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import ShapeError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import count
from eqsat.ir.operators.elementwise import infer_same
from eqsat.ir.traits import Traits
from eqsat.ir.types import Dim, Shape, TensorType, Type


def _extent(b: GraphBuilder, op: str, value: str | None, axis: int, rank: int) -> int:
    """Extent of an axis of a value, which has so many."""
    found = b.type_of(value or "")
    extent = found.shape[axis] if found.shape is not None and found.rank == rank else None
    if not isinstance(extent, int):
        raise ShapeError(f"{op} takes values of {rank} axes, of which the extent of axis {axis} is known, got {found}")
    return extent


def heads_apart(b: GraphBuilder, value: str, heads: int, width: int) -> str:
    """``[batch, sequence, heads * size]`` as ``[batch, heads, sequence, size]``."""
    split = b.op("Reshape", value, b.constant([0, 0, heads, width // heads], "int64"))
    return b.op("Transpose", split, perm=(0, 2, 1, 3))


def scaled_scores(b: GraphBuilder, attributes: Attributes, queries: str, keys: str, size: int) -> str:
    """``scale * Q K^T``, by the root of the size of a head unless a scale is given."""
    scale: Any = attributes.get("scale", 0.0) or 1 / math.sqrt(size)
    scores = b.op("MatMul", queries, b.op("Transpose", keys, perm=(0, 1, 3, 2)))
    return b.op("Mul", scores, b.constant(scale, b.type_of(scores).dtype))


def mixed_values(b: GraphBuilder, scores: str, values: str, width: int) -> str:
    """``softmax(scores) V``, heads side by side again."""
    found = b.op("MatMul", b.op("Softmax", scores, axis=-1), values)
    return b.op("Reshape", b.op("Transpose", found, perm=(0, 2, 1, 3)), b.constant([0, 0, width], "int64"))


def places_along(b: GraphBuilder, value: str | None, axis: int) -> str:
    """The places along an axis of a value, counted."""
    zero, one = b.constant(np.int64(0)), b.constant(np.int64(1))
    return b.op("Range", zero, b.op("Squeeze", b.op("Shape", value, start=axis, end=axis + 1)), one)


_STORES = (1, 2)
"""All keys and values. Where keys are stored, the kernels work in the two, and are wrong without."""


def _multi_head_attention(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    """``softmax(scale * Q K^T + attention_bias) V`` for each head, after adding one part of the bias to each of Q, K, V, and
    putting what is stored before K and V; also the two, heads apart, as they may be given: (batch, heads, sequence, size)."""
    only_attributes("MultiHeadAttention", attributes, "num_heads", "scale", "unidirectional")
    given: list[str | None] = [*inputs, *([None] * 8)][:8]
    stored = given[6:]
    unpacked = given[1] and given[2] and bool(stored[0]) == bool(stored[1]) and not (given[3] and stored[0])
    if any(inputs[8:]) or given[4] or not unpacked or attributes.get("unidirectional", 0):
        raise ShapeError("MultiHeadAttention: packed, padded or causal values are not covered by the definition")
    heads: Any = attributes["num_heads"]
    apart = _rank(b, given[1]) == 4
    if apart and (given[3] or stored[0] or any(_extent(b, "MultiHeadAttention", v, 1, 4) != heads for v in given[1:3])):
        raise ShapeError(
            f"MultiHeadAttention: keys and values of four axes are those of {heads} heads, neither biased nor stored"
        )
    sizes = [heads * _extent(b, "MultiHeadAttention", v, 3, 4) for v in given[1:3] if apart]
    widths = [_extent(b, "MultiHeadAttention", v, 2, 3) for v in (given[:1] if apart else given[:3])] + sizes
    if widths[0] != widths[1] or any(w % heads for w in widths):
        raise ShapeError(f"MultiHeadAttention: widths {widths} do not split into {heads} heads")
    operands: list[str] = []
    start = 0
    for value, width in zip(given[:3], widths, strict=True):
        if given[3]:
            bounds = [b.constant([at], "int64") for at in (start, start + width, 0)]
            value = b.op("Add", value, b.op("Slice", given[3], *bounds))
            start += width
        operands.append(value or "" if apart and operands else heads_apart(b, value or "", heads, width))
    if stored[0]:
        operands[1:] = [b.op("Concat", past, new, axis=2) for past, new in zip(stored, operands[1:], strict=True)]
    scores = scaled_scores(b, attributes, operands[0], operands[1], widths[0] // heads)
    if given[5]:
        scores = b.op("Add", scores, given[5])
    return [mixed_values(b, scores, operands[2], widths[2]), *operands[1:]]


define_composite(
    "com.microsoft::MultiHeadAttention",
    _multi_head_attention,
    Kind.ANCHOR,
    traits=Traits(structure="attention"),
    needed=_STORES,
)


def _rank(b: GraphBuilder, value: str | None) -> int:
    rank = b.type_of(value).rank if value else None
    return -1 if rank is None else rank


def _rotary_embedding(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    """The operator of ONNX, which has positions last; a single one is that of the first element of every sequence."""
    only_attributes(
        ROTARY, attributes, "interleaved", "num_heads", "rotary_embedding_dim", "scale", "is_packed_batching"
    )
    x, places, cosines, sines = inputs
    rank, more = _rank(b, x), {k: n for k in ("interleaved", "rotary_embedding_dim") if (n := attributes.get(k, 0))}
    if rank not in (3, 4) or _rank(b, cosines) != 2 or _rank(b, sines) != 2 or attributes.get("scale", 1.0) != 1.0:
        raise ShapeError(
            f"{ROTARY}: other than three or four axes, tables of two, or scaled, are not covered by the definition"
        )
    heads = attributes.get("num_heads", 0) or ("rotary_embedding_dim" not in more and _heads_of_tables(b, x, cosines))
    if attributes.get("is_packed_batching", 0) or not (rank == 4 or heads):
        raise ShapeError(f"{ROTARY}: packed sequences, or rows of unknown heads, are not covered by the definition")
    if _rank(b, places) != 2:
        axis = rank - 2
        counted = b.op("Add", places_along(b, x, axis), places)
        batch = b.op("Shape", x, start=0, end=1)
        shape = b.op("Concat", batch, b.op("Shape", x, start=axis, end=axis + 1), axis=0)
        places = b.op("Expand", counted, shape)
    more |= {"num_heads": heads} if rank == 3 else {}
    return [b.op("RotaryEmbedding", x, cosines, sines, places, **more)]


def _heads_of_tables(b: Any, x: str | None, table: str | None) -> int:
    """How many heads a row has that are turned as a whole, by half as many angles as they have elements; 0 if not known."""
    width, angles = b.type_of(x).shape[-1], b.type_of(table).shape[1]
    known = isinstance(width, int) and isinstance(angles, int) and angles > 0
    return width // (2 * angles) if known and width % (2 * angles) == 0 else 0


ROTARY = "com.microsoft::RotaryEmbedding"
define_composite(ROTARY, _rotary_embedding, Kind.OPAQUE, outline=infer_same)


# --- heads that share keys and values, and a cache -------------------------------------------------------------------


_GROUPED = "GroupQueryAttention"
_INPUTS = 14
_SCORES = 10
BLOCK, TURNED_BLOCK = 8, 16
"""What the size of a head is a multiple of, and of one that turns."""


def _check_lengths(b: GraphBuilder, lengths: str | None, longest: str | None, total: int) -> None:
    """The definition covers sequences that are all as long as the tensors."""
    for value, expected in ((lengths, total - 1), (longest, total)):
        constant = b.constant_of(value) if value else None
        if constant is None or not bool((constant.numpy() == expected).all()):
            raise ShapeError(f"{_GROUPED}: sequences of different or unknown lengths are not covered by the definition")


def _unpacked(b: Any, packed: str, heads: int, groups: int) -> Sequence[str]:
    """Queries, keys and values that lie side by side."""
    width = b.type_of(packed).shape[2]
    if not isinstance(width, int) or width % (heads + 2 * groups):
        raise ShapeError(f"{_GROUPED}: rows of {width} elements are not those of {heads} and two times {groups} heads")
    size = width // (heads + 2 * groups)
    sizes = b.constant([heads * size, groups * size, groups * size], "int64")
    return b.op("Split", packed, sizes, outputs=3, axis=2)


def _check_turned(b: Any, tables: Sequence[str | None], places: str | None, before: int, new: int) -> None:
    """The definition covers single queries behind stored keys, each with its place in the tables, which the kernel wants to be as
    long as all that is stored. Of several, the kernel looks at the first place only where nothing is stored."""
    rows = [b.type_of(table).shape[0] if table else 0 for table in tables]
    if _rank(b, places) != 2 or not before or new != 1 or not all(isinstance(n, int) and n > before for n in rows):
        raise ShapeError(f"{_GROUPED}: heads are turned where one query has its place in tables that reach beyond it")


_UNSET: dict[str, Any] = {
    "softcap": 0.0,
    "local_window_size": -1,
    "smooth_softmax": -1,
    "qk_output": 0,
    "sliding_window_cache": 0,
    "kv_cache_bit_width": 0,
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
}


def _group_query_attention(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    """Attention of the newest queries over what is stored and as many new keys, turned before by their places; also the two
    together, heads apart."""
    known = ("num_heads", "kv_num_heads", "scale", "causal", "do_rotary", "rotary_interleaved")
    smooth = min(attributes.get("smooth_softmax", -1), 0)  # 0 is off, too
    only_attributes(_GROUPED, attributes, *known, **_UNSET | {"smooth_softmax": smooth})
    given: list[Any] = [*inputs, *([None] * _INPUTS)][:_INPUTS]
    query, keys, values, past_keys, past_values, lengths, longest, *turns = given[:_SCORES]
    heads, groups = (int(attributes[name]) for name in ("num_heads", "kv_num_heads"))  # type: ignore[arg-type]
    turned = attributes.get("do_rotary", 0)
    paired = bool(keys) == bool(values) and bool(past_keys) == bool(past_values)
    if any(given[_SCORES + 1 :]) or any(turns) != bool(turned) or not paired:
        raise ShapeError(f"{_GROUPED}: sunk or quantised values, or tables unused, are not covered by the definition")
    if not keys:
        query, keys, values = _unpacked(b, query, heads, groups)
    new, before = _extent(b, _GROUPED, keys, 1, 3), _extent(b, _GROUPED, past_keys, 2, 4) if past_keys else 0
    if _extent(b, _GROUPED, query, 1, 3) != new:
        raise ShapeError(f"{_GROUPED} takes as many queries as new keys")
    batch, _, width = b.type_of(query).shape
    block = TURNED_BLOCK if turned else BLOCK
    if isinstance(width, int) and width // heads % block:
        raise ShapeError(f"{_GROUPED} takes heads whose size is a multiple of {block}")
    if before and new != 1 and batch != 1 and isinstance(batch, int):
        raise ShapeError(f"{_GROUPED} with stored keys takes one sequence, or one query of each")
    _check_lengths(b, lengths, longest, before + new)
    if turned:
        _check_turned(b, turns[:2], turns[2], before, new)
        how = {"interleaved": attributes.get("rotary_interleaved", 0)}
        query, keys = (
            b.op("RotaryEmbedding", x, *turns, num_heads=n, **how) for x, n in ((query, heads), (keys, groups))
        )
    stored = (past_keys, past_values) if past_keys else ()
    operands = [query, keys, values, given[_SCORES], *stored]
    scale: Any = attributes.get("scale", 0.0)
    more = {"scale": scale} if scale else {}
    return b.op(
        "Attention", *operands, outputs=3, q_num_heads=heads, kv_num_heads=groups,
        is_causal=attributes.get("causal", 1), **more,
    )  # fmt: skip


def _of_grouped(app: Application) -> tuple[Type, ...]:
    """Rows of all heads' values; nothing of what is stored, which may be a buffer."""
    query, stored = app.tensor(0), app.shape(3) if app.has(3) else None
    if query.shape is None or len(query.shape) != 3:
        return ()
    heads, groups = (int(app.attributes[name]) for name in ("num_heads", "kv_num_heads"))
    batch, new, width = query.shape
    if not isinstance(width, int):
        return ()
    size = width // (heads if app.has(1) else heads + 2 * groups)
    if stored is not None and len(stored) == 4:
        _check_stored(app, stored, new, size)
    return (TensorType(query.dtype, (batch, new, heads * size)),)


def _check_stored(app: Application, stored: Shape, new: Dim, size: int) -> None:
    """Stored keys have heads of the size of the new ones; a buffer for a window holds it, and is full; what is no buffer, because
    keys are put behind it, is as long as all keys but the new ones."""
    length, own, total = stored[2], stored[3], app.value(6)
    window = int(app.attr("local_window_size", -1)) if app.attr("sliding_window_cache", 0) else 0
    if isinstance(own, int) and own != size:
        raise app.fail(f"stored keys have heads of {own} elements, not {size}", (own, size))
    if isinstance(length, int) and length < window:
        raise app.fail(f"a buffer of {length} does not hold a window of {window}", (length, window))
    rows = int(total) if total is not None else None
    if rows is not None and rows < window:
        raise app.fail(f"{rows} keys do not fill a window of {window}", (rows, window))
    if (
        rows is not None
        and not window
        and isinstance(length, int)
        and isinstance(new, int)
        and length < rows != length + new
    ):
        raise app.fail(f"{rows} keys are not {length} and {new}", (rows, length + new))


def _grouped_flops(app: Application, outputs: Sequence[Type]) -> float:
    """A multiply-add for each element of a query and key, and for each element of the result and key."""
    new, stored = app.shape(0), app.shape(3) if app.has(3) else None
    lengths = ((new or ())[1:2], (stored or ())[2:3])
    return 4.0 * count(outputs[0]) * sum(d if isinstance(d, int) else 1 for found in lengths for d in found)


define_composite(
    f"com.microsoft::{_GROUPED}",
    _group_query_attention,
    Kind.ANCHOR,
    flops=_grouped_flops,
    traits=Traits(structure="attention", lengths=(5,)),
    outline=_of_grouped,
    needed=_STORES,
)
