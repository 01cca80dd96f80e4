"""Products of torch: matrices, attention; those of bytes by weights on bytes, of other integers in float64.

float64 holds every partial sum exactly.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from eqsat.fx.site import Site, Unwritten, torch_type, writes
from eqsat.ir.types import Dim, DType


@writes("MatMul")
def _matmul(site: Site) -> Any:
    return site.call(torch.matmul, *site.operands)


@writes("Gemm")
def _gemm(site: Site) -> Any:
    a, b = site.operands[:2]
    alpha, beta = site.attr("alpha"), site.attr("beta")
    a = a.t() if site.attr("transA") else a
    added = site.type(2).shape if site.has(2) else ()
    if alpha == beta == 1 and site.has(2) and len(added or ()) == 1 and added == site.result.shape[1:]:  # type: ignore[index]
        return site.call(F.linear, a, b if site.attr("transB") else b.t(), site.operands[2])
    y = _scaled(site, site.call(torch.matmul, a, b.t() if site.attr("transB") else b), alpha)
    return y + _scaled(site, site.operands[2], beta) if site.has(2) else y


def _scaled(site: Site, x: Any, factor: float) -> Any:
    """Integers stay integers."""
    if factor == 1:
        return x
    if site.dtype.is_floating_point:
        return x * factor
    if not float(factor).is_integer():
        raise Unwritten(f"integers times {factor} are none")
    return x * int(factor)


# --- attention


def _heads(site: Site, index: int, count: Dim) -> Any:
    """Queries, keys or values as (batch, heads, sequence, size)."""
    x = site.operands[index]
    return x if site.rank(index) == 4 else x.unflatten(2, (count, -1)).transpose(1, 2)


def _head_counts(site: Site) -> tuple[Dim, Dim]:
    """Of queries and keys; as numbers, unless there are as many of both."""
    found: list[Dim] = []
    for index, name in enumerate(("q_num_heads", "kv_num_heads")):
        shape = site.type(index).shape or ()
        found.append(shape[1] if len(shape) == 4 else site.attr(name))
    of_queries, of_keys = found
    if of_queries != of_keys and not (isinstance(of_queries, int) and isinstance(of_keys, int)):
        raise Unwritten(f"the numbers of heads, {of_queries} and {of_keys}, are no numbers")
    return of_queries, of_keys


def _windows(site: Site) -> tuple[int, int]:
    """How many keys before and behind their own position queries see, -1 for all."""
    left, right = (site.attr(f"{side}_window_size") for side in ("left", "right"))
    return -1 if left is None else left, -1 if right is None else right


def _allowed(site: Site, q: Any, k: Any) -> Any:
    """Where causality, windows and lengths let queries look; ``None`` if everywhere."""
    left, right = _windows(site)
    causal = bool(site.attr("is_causal"))
    if not causal and left < 0 and right < 0 and not site.has(6):
        return None
    device = site.scope.device()
    keys = site.call(torch.arange, k.size(2), device=device)
    queries = site.call(torch.arange, q.size(2), device=device).unsqueeze(1)
    lengths = site.operands[6].reshape((-1, 1, 1, 1)) if site.has(6) else None
    if lengths is not None:
        queries = queries + (lengths - q.size(2))
    elif site.has(4):
        queries = queries + site.operands[4].size(2)
    distance = keys - queries
    parts = [distance <= 0] if causal else []
    parts += [distance >= -left] if left >= 0 else []
    parts += [distance <= right] if right >= 0 else []
    parts += [keys < lengths] if site.has(6) else []
    found = parts[0]
    for part in parts[1:]:
        found = found & part
    return found


def _mask(site: Site, k: Any, allowed: Any, dtype: torch.dtype) -> Any:
    """The mask that is given, as wide as there are keys, joined with what is allowed; ``None`` if there is neither."""
    if not site.has(3):
        return allowed
    mask, found = site.operands[3], site.type(3)
    width = (site.type(1).shape or (None,) * 4)[2 if site.rank(1) == 4 else 1] if not site.has(4) else None
    if not found.shape or found.shape[-1] != width:
        short = [0, k.size(2) - mask.size(-1)]
        mask = site.call(F.pad, mask, short, value=False if found.dtype is DType.BOOL else -math.inf)
    if found.dtype is not DType.BOOL:
        mask = mask.to(dtype)
        mask = mask if allowed is None else mask.masked_fill(allowed.logical_not(), -math.inf)
    elif allowed is not None:
        mask = mask & allowed
    for _ in range(4 - len(found.shape or ()) if len(found.shape or ()) not in (2, 4) and allowed is None else 0):
        mask = mask.unsqueeze(0)
    return mask


@writes("Attention")
def _attention(site: Site) -> Any:
    q_heads, kv_heads = _head_counts(site)
    q = _heads(site, 0, q_heads)
    k, v = (_heads(site, i, kv_heads) for i in (1, 2))
    if site.has(4):
        k = site.call(torch.cat, [site.operands[4], k], 2)
        v = site.call(torch.cat, [site.operands[5], v], 2)
    scale, softcap = site.node.attributes.get("scale"), site.attr("softcap")
    spelled = softcap or len(site.node.outputs) > 3 or site.attr("softmax_precision") == DType.DOUBLE
    plain = site.attr("is_causal") and not any(map(site.has, (3, 4, 6)))
    if plain and max(_windows(site)) < 0 and not spelled:
        y = site.call(
            F.scaled_dot_product_attention, q, k, v, is_causal=True, scale=scale, enable_gqa=q_heads != kv_heads
        )
        return (_joined(site, y), k, v)
    mask = _mask(site, k, _allowed(site, q, k), torch.float32 if spelled else _query_type(site))
    if spelled:
        repeats = q_heads // kv_heads if isinstance(q_heads, int) and isinstance(kv_heads, int) else 1
        y, shown = _spelled_attention(site, (q, k, v), mask, (scale, softcap, repeats))
        return (_joined(site, y), k, v, shown)
    y = site.call(F.scaled_dot_product_attention, q, k, v, attn_mask=mask, scale=scale, enable_gqa=q_heads != kv_heads)
    return (_joined(site, y), k, v)


def _query_type(site: Site) -> torch.dtype:
    return torch_type(site.type(0).dtype)


def _joined(site: Site, y: Any) -> Any:
    return y if site.rank(0) == 4 else y.transpose(1, 2).flatten(2)


def _spelled_attention(site: Site, operands: Sequence[Any], mask: Any, settings: tuple[Any, float, int]) -> Any:
    """The scores too, or with what torch's attention lacks: a cap on the scores, a softmax in float64."""
    scale, softcap, repeats = settings
    dtype = _query_type(site)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    q, k, v = (x.to(wide) for x in operands)
    if repeats > 1:
        k, v = (site.call(torch.repeat_interleave, x, repeats, 1) for x in (k, v))
    factor = scale if scale is not None else q.size(-1) ** -0.5
    raw = site.call(torch.matmul, q, k.transpose(-1, -2)) * factor
    capped = site.call(torch.tanh, raw / softcap) * softcap if softcap else raw
    masked = capped
    if mask is not None and site.has(3) and site.type(3).dtype is not DType.BOOL:
        masked = capped + mask
    elif mask is not None:
        masked = capped.masked_fill(mask.logical_not(), -math.inf)
    precise = masked.to(torch.float64) if site.attr("softmax_precision") == DType.DOUBLE else masked
    chances = site.call(torch.softmax, precise, -1)
    if mask is not None:  # a row that may look at nothing gives zeros
        chances = chances.masked_fill(precise.isneginf().all(-1, True), 0.0)
    chances = chances.to(wide)
    shown = (raw, capped, masked, chances)[site.attr("qk_matmul_output_mode")]
    return site.call(torch.matmul, chances, v).to(dtype), shown.to(dtype)


@writes("RotaryEmbedding")
def _rotary_embedding(site: Site) -> Any:
    """Pairs of elements turned by angles: ``(a cos - b sin, a sin + b cos)``, of neighbours or of both halves.

    Rows are before heads, as products write them and read them again: attention returns its result in the layout of its queries.
    """
    if site.rank() == 3 and not site.attr("num_heads"):
        raise Unwritten("the number of heads is not given")
    x = site.operands[0]
    x = x.transpose(1, 2) if site.rank() == 4 else x.unflatten(2, (site.attr("num_heads"), -1))
    cos, sin = (site.operands[i][site.operands[3]] if site.has(3) else site.operands[i] for i in (1, 2))
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    turned, width = x, site.attr("rotary_embedding_dim")
    if width:
        turned = x[(..., slice(0, width))]
    if site.attr("interleaved"):
        a, b = turned[(..., slice(0, None, 2))], turned[(..., slice(1, None, 2))]
        y = site.call(torch.stack, [a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    else:
        halves = site.call(torch.chunk, turned, 2, -1)
        a, b = halves[0], halves[1]
        y = site.call(torch.cat, [a * cos - b * sin, a * sin + b * cos], -1)
    if width:
        y = site.call(torch.cat, [y, x[(..., slice(width, None))]], -1)
    return y.transpose(1, 2) if site.rank() == 4 else y.flatten(2)


# --- integers


def _centred(site: Site, value: int, zero: int, *, columns: bool) -> Any:
    """``x - zero`` in float64; a vector of zero points holds one for each row, or each column."""
    x = site.operands[value].to(torch.float64)
    if not site.has(zero):
        return x
    point = site.operands[zero].to(torch.float64)
    found = site.type(zero)
    if found.size == 1:
        return x - point.reshape(())
    return x - (point if columns or found.rank != 1 else point.unsqueeze(1))


_MULTIPLE = 8
_LEAST_ROWS = 17
"""What CUDA asks of its product of bytes: extents of the weights, and rows of the data. Missing rows are added, as zeros."""


def _signed_weights(site: Site, index: int, zero: int) -> np.ndarray | None:
    """Constant weights less their zero points, where these are signed bytes still; else ``None``."""
    found, points = site.value(index), site.value(zero) if site.has(zero) else np.zeros((), np.int8)
    if found is None or points is None or found.ndim != 2 or not found.size or any(n % _MULTIPLE for n in found.shape):
        return None
    centred = found.astype(np.int32) - points.astype(np.int32)
    return centred.astype(np.int8) if centred.min() >= -128 and centred.max() <= 127 else None


def _product_of_bytes(site: Site, a: tuple[int, int], b: tuple[int, int]) -> Any:
    """The product by constant weights on bytes, ``None`` where there is no such kernel. Unsigned data are signed, less 128."""
    dtype, shape = site.type(a[0]).dtype, site.type(a[0]).shape or ()
    point = site.value(a[1]) if site.has(a[1]) else np.zeros(1)
    if dtype not in (DType.INT8, DType.UINT8) or point is None or point.size != 1 or len(shape) < 2:
        return None
    weights = _signed_weights(site, *b)
    if weights is None:
        return None
    x, zero = site.operands[a[0]], int(point.reshape(()))
    if dtype is DType.UINT8:
        x, zero = (x.to(torch.int16) - 128).to(torch.int8), zero - 128
    rows = x.reshape((-1, weights.shape[0]))
    enough = all(isinstance(n, int) for n in shape) and math.prod(shape[:-1]) >= _LEAST_ROWS  # type: ignore[arg-type]
    rows = rows if enough else site.call(F.pad, rows, (0, 0, 0, _LEAST_ROWS))
    product = site.call(torch._int_mm, rows, site.constant(np.ascontiguousarray(weights.T)).t())
    product = product if enough else product[:-_LEAST_ROWS]
    if zero:
        product = product - site.constant(zero * weights.sum(axis=0, dtype=np.int32))
    leading = [x.size(axis) for axis in range(len(shape) - 1)]
    return product if len(leading) == 1 else site.call(torch.unflatten, product, 0, leading)


def integer_product(site: Site, a: tuple[int, int], b: tuple[int, int]) -> Any:
    """The exact product, in int32. Operands with their zero points, by number."""
    of_bytes = _product_of_bytes(site, a, b)
    if of_bytes is not None:
        return of_bytes
    product = site.call(torch.matmul, _centred(site, *a, columns=False), _centred(site, *b, columns=True))
    return product.to(torch.int64).to(torch.int32)


@writes("MatMulInteger")
def _matmul_integer(site: Site) -> Any:
    return integer_product(site, (0, 2), (1, 3))
