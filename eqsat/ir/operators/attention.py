"""Scaled dot product attention: multi-head, grouped and multi-query, with masks, soft-capping, and key and value caches."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.ir.extents import add, multiply, quotient
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import broadcast, common_dtype, count, format_shape, same_dim, unknown_dims
from eqsat.ir.operators.elementwise import defines, double, narrow, wide
from eqsat.ir.operators.matmul import matmul
from eqsat.ir.traits import Traits
from eqsat.ir.types import DType, Shape, TensorType, Type

# --- types ---------------------------------------------------------------------------------------------------------------


def _heads(app: Application, index: int) -> Shape | None:
    """Shape of Q, K or V as (batch, heads, sequence, size), whichever of the two layouts it comes in."""
    shape = app.shape(index)
    if shape is None or len(shape) == 4:
        return shape
    if len(shape) != 3:
        raise app.fail(f"input {index} {format_shape(shape)} must have 3 or 4 axes")
    name = "q_num_heads" if index == 0 else "kv_num_heads"
    heads: int = app.attr(name, 0)
    if heads <= 0:
        raise app.fail(f"inputs of 3 axes need the attribute {name}")
    size = quotient(shape[2], heads)
    if size is None and isinstance(shape[2], int):
        raise app.fail(f"{shape[2]} is no multiple of {heads} heads")
    return (shape[0], heads, shape[1], unknown_dims(1)[0] if size is None else size)


def _cached(app: Application, shape: Shape | None, index: int) -> Shape | None:
    """``shape`` with the sequence that is in the cache before it."""
    past = app.shape(index) if app.has(index) else None
    if shape is None or not app.has(index):
        return shape
    if past is not None and len(past) != 4:
        raise app.fail(f"the cache {format_shape(past)} must have 4 axes")
    return (*shape[:2], unknown_dims(1)[0] if past is None else add(past[2], shape[2]), shape[3])


def _infer(app: Application) -> tuple[Type, ...]:
    dtype = common_dtype(app, 0, 1)
    q, k, v = (_heads(app, i) for i in range(3))
    ranks = {len(s) for s in map(app.shape, range(3)) if s is not None}
    if len(ranks) > 1:
        raise app.fail("queries, keys and values must have the same number of axes")
    for axis, a, b in ((3, q, k), (2, k, v), (1, k, v)):
        if a is not None and b is not None and same_dim(a[axis], b[axis]) is None:
            raise app.fail(f"extents {a[axis]} and {b[axis]} must be equal")
    k, v = _cached(app, k, 4), _cached(app, v, 5)
    scores = None if q is None or k is None else (*q[:3], k[2])
    if scores is not None and app.has(3) and not app.has(6):
        _check_mask(app, scores)
    y: Shape | None = None
    if q is not None and v is not None:
        y = (*q[:3], v[3]) if ranks == {4} else (q[0], q[2], multiply(q[1], v[3]))
    value = app.tensor(2).dtype
    found = (TensorType(dtype, y), TensorType(dtype, k), TensorType(value, v), TensorType(dtype, scores))
    return found[: max(app.outputs, 1)]


def _check_mask(app: Application, scores: Shape) -> None:
    """The mask broadcasts to the scores; its last extent may be too short."""
    mask = app.shape(3)
    if not mask:
        return
    last, width = mask[-1], scores[-1]
    short = isinstance(last, int) and isinstance(width, int) and last < width
    grown = broadcast(app, (*mask[:-1], width) if short else mask, scores)
    if grown is None or len(grown) != 4 or any(same_dim(a, b) is None for a, b in zip(grown, scores, strict=True)):
        raise app.fail(f"the mask {format_shape(mask)} must broadcast to {format_shape(scores)}")


# --- work ----------------------------------------------------------------------------------------------------------------


def _attention_flops(app: Application, outputs: Sequence[Type]) -> float:
    """A multiply-add for each element of Q and key, and for each element of Y and key."""
    keys = 0
    for i in (1, 4):
        shape = app.shape(i) if app.has(i) else None
        if shape is not None and len(shape) > 2:
            keys += shape[-2] if isinstance(shape[-2], int) else 1
    return 2.0 * keys * (count(app.types[0]) + count(outputs[0]))


# --- meaning -------------------------------------------------------------------------------------------------------------


def split_heads(x: np.ndarray, heads: int) -> np.ndarray:
    """(batch, sequence, heads * size) as (batch, heads, sequence, size); four axes are that already."""
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _bias(attributes: Attributes, mask: Any, lengths: Any, scores: np.ndarray, past: int) -> np.ndarray:
    """What is added to the scores: the mask, and minus infinity where causality, windows or padding forbid to look."""
    queries, keys = map(int, scores.shape[-2:])
    bias = np.zeros((1, 1, queries, keys), scores.dtype)
    if mask is not None:
        missing = keys - mask.shape[-1]
        forbidden: Any = False if mask.dtype == np.bool_ else -np.inf
        mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=forbidden) if missing else mask
        bias = bias + (np.where(mask, 0, -np.inf) if mask.dtype == np.bool_ else mask).astype(scores.dtype)
    offset: np.ndarray | int = past if lengths is None else (lengths.reshape(-1, 1, 1, 1) - queries)
    distance = np.arange(keys) - np.arange(queries)[:, None] - offset
    left: Any = attributes.get("left_window_size", -1)
    right: Any = attributes.get("right_window_size", -1)
    allowed = np.ones_like(distance, np.bool_)
    if attributes.get("is_causal", 0):
        allowed &= distance <= 0
    if left >= 0:
        allowed &= distance >= -left
    if right >= 0:
        allowed &= distance <= right
    if lengths is not None:
        allowed = allowed & (np.arange(keys) < lengths.reshape(-1, 1, 1, 1))
    return bias + np.where(allowed, 0, -np.inf).astype(scores.dtype)


@defines(
    "Attention",
    infer=_infer,
    kind=Kind.ANCHOR,
    flops=_attention_flops,
    traits=Traits(structure="attention"),
    together=(1, 2),
)
def _attention(
    attributes: Attributes,
    queries: Any,
    keys: Any,
    values: Any,
    mask: Any = None,
    past_keys: Any = None,
    past_values: Any = None,
    lengths: Any = None,
) -> tuple[np.ndarray, ...]:
    """``softmax(cap(scale * Q @ K') + mask) @ V`` for each head; a row that may look at nothing gives zeros."""
    q = split_heads(queries, attributes.get("q_num_heads", 0))
    k, v = (split_heads(x, attributes.get("kv_num_heads", 0)) for x in (keys, values))
    past = 0 if past_keys is None else past_keys.shape[2]
    if past_keys is not None:
        k, v = np.concatenate((past_keys, k), axis=2), np.concatenate((past_values, v), axis=2)
    present = k, v
    repeated = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, repeated, axis=1) for x in (k, v))
    default = 1 / np.sqrt(q.shape[3]) if q.shape[3] else 1.0
    scale: Any = attributes.get("scale", default)
    cap: Any = attributes.get("softcap", 0.0)
    with np.errstate(all="ignore"):
        wide_q = wide(q)
        raw = capped = matmul(wide_q, wide(k).swapaxes(-1, -2)) * wide_q.dtype.type(scale)
        if cap > 0:
            capped = narrow(np.tanh(double(raw / raw.dtype.type(cap))), raw) * raw.dtype.type(cap)
        bias = _bias(attributes, mask, lengths, capped, past)
        biased = capped + bias
        x = biased.astype(np.float64) if attributes.get("softmax_precision", 0) == DType.DOUBLE else biased
        e = narrow(np.exp(double(x - x.max(axis=-1, keepdims=True, initial=-np.inf))), x)
        chances = np.where(_nowhere(bias), 0, e / e.sum(axis=-1, keepdims=True)).astype(x.dtype)
        y = matmul(chances.astype(raw.dtype), wide(v))
    shown = (raw, capped, biased, chances)[attributes.get("qk_matmul_output_mode", 0)]
    if queries.ndim == 3:
        y = y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)
    return narrow(y, queries), *present, narrow(shown, queries)


def _nowhere(bias: np.ndarray) -> np.ndarray:
    """Rows in which every key is forbidden."""
    return np.asarray(np.isneginf(bias).all(axis=-1, keepdims=True))
