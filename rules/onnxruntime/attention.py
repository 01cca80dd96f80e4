"""Attention with the heads side by side in the last axis, as ONNX Runtime has a kernel: MultiHeadAttention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Match, Ref, Term, apply, literal, rule, variables
from eqsat.rules.terms import add, int64s, transpose
from eqsat.samples import Applied, Sampler, fixed

DOMAIN = "com.microsoft"
SOURCE = "contrib operators of ONNX Runtime; Vaswani et al. 2017"
KEY = f"{DOMAIN}::MultiHeadAttention"
HEADS_LAST = (0, 2, 1, 3)
q, k, v, mask, bq, bk, bv, p = variables("q k v mask? bq bk bv p?")
attention = apply("Attention", q, k, v, mask).named("attention")

PLAIN = {
    "softcap": 0.0,
    "qk_matmul_output_mode": 0,
    "softmax_precision": 0,
    "left_window_size": -1,
    "right_window_size": -1,
}
"""Attributes of Attention, with their defaults, for which the kernel has nothing."""

_LARGEST_TRIANGLE = 1 << 22
"""Most elements of a causal mask that is written out as a constant."""


def _attention(rank: int) -> Any:
    def draw(d: Sampler) -> dict[str, Any]:
        batch, queries, keys, heads, size, other = d.extents(6)
        shapes = [(batch, heads, queries, size), (batch, heads, keys, size), (batch, heads, keys, other)]
        attributes: dict[str, Any] = {"scale": 0.25} if d.chance() else {}
        if rank == 3:
            shapes = [(b, s, n * h) for b, n, s, h in shapes]
            attributes |= {"q_num_heads": heads, "kv_num_heads": heads}
        found: dict[str, Any] = {name: _tame(d, shape) for name, shape in zip("qkv", shapes, strict=True)}
        if d.chance():
            shape = (d.choose((1, batch)), d.choose((1, heads)), queries, keys)
            found["mask"] = _tame(d, shape) if d.chance(0.9) else d.booleans((queries, keys))
            if d.chance(0.8):
                found["mask"] = Applied("Tanh", found["mask"]) if d.chance() else fixed(_open(d, found["mask"]))
        extra = d.choose(({}, {}, {}, {}, {"is_causal": 1}, {"softcap": 2.0}))
        return {**found, "attention": {**attributes, **extra}}

    return draw


def _open(d: Sampler, mask: np.ndarray) -> np.ndarray:
    """The mask with minus infinities, now and then all of a row."""
    if mask.dtype == np.float32:
        mask[d.rng.random(mask.shape) < 0.3] = -np.inf
    return mask


def _tame(d: Sampler, shape: tuple[int, ...]) -> np.ndarray:
    """Floats around 1: scores that a softmax does not decide at once."""
    return d.rng.normal(size=shape).astype(np.float32)


def _check(m: Match, *operands: Ref) -> tuple[Term | None, dict[str, Any]]:
    """The mask and the attributes that both operators share. Raises `Unmet` where the kernel has no form for a use of
    Attention.
    """
    node = m.attention
    m.require(all(o.dtype is DType.FLOAT for o in operands), "the kernel takes float32 only")
    m.require(not any(node.attr(name, value) != value for name, value in PLAIN.items()), "capped, or in windows")
    m.require(operands[0].static_shape[0] == operands[1].static_shape[0], "one batch for several")
    scale = node.attr("scale")
    shared = {} if scale is None else {"scale": scale}
    queries, keys = operands[0].static_shape[-2], operands[1].static_shape[-2]
    if node.attr("is_causal", 0):
        m.require(m.mask is None and queries * keys <= _LARGEST_TRIANGLE, "causal and masked, or too large")
        return literal(np.where(np.tri(queries, keys, dtype=np.bool_), 0, -np.inf)[None, None], DType.FLOAT), shared
    if m.mask is not None:
        m.require(m.mask.dtype is DType.FLOAT and m.mask.rank == 4, "no mask of floats with four axes")
        m.require(m.mask.static_shape[2:] == (queries, keys), "the mask broadcasts over queries or keys")
        m.require(leaves_rows_open(m.mask), "a row of the mask may forbid everything, which gives NaN here")
    return m.mask, shared


def leaves_rows_open(mask: Ref) -> bool:
    """Whether every row of a mask lets at least one key through."""
    if mask.interval[0] > -math.inf:
        return True
    return mask.is_constant and bool((mask.elements > -math.inf).any(axis=-1).all())


@rule(
    attention,
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_attention(3),
    domain=DOMAIN,
)
def use_multi_head_attention(m: Match) -> Term:
    """``Attention(q, k, v, mask, q_num_heads=n, kv_num_heads=n) == MultiHeadAttention(q, k, v, mask, num_heads=n)``."""
    m.require(m.q.rank == m.k.rank == m.v.rank == 3, "not three axes")
    scores, shared = _check(m, m.q, m.k, m.v)
    heads = m.attention.attr("q_num_heads", 0)
    m.require(heads and heads == m.attention.attr("kv_num_heads", 0), "shared heads")
    return apply(KEY, m.q, m.k, m.v, None, None, scores, num_heads=heads, **shared)


@rule(
    attention,
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_attention(4),
    domain=DOMAIN,
)
def use_multi_head_attention_of_split_heads(m: Match) -> Term:
    """``Attention(q, k, v, mask) == split(MultiHeadAttention(join(q), join(k), join(v), mask))`` for four axes, where ``join``
    puts the heads side by side, which mostly cancels what split them.
    """
    m.require(m.q.rank == m.k.rank == m.v.rank == 4, "not four axes")
    scores, shared = _check(m, m.q, m.k, m.v)
    heads = m.q.static_shape[1]
    m.require(m.k.static_shape[1] == heads == m.v.static_shape[1], "shared heads")
    operands = [_joined(value) for value in (m.q, m.k, m.v)]
    found = apply(KEY, *operands, None, None, scores, num_heads=heads, **shared)
    batch, _, queries, _ = m.q.static_shape
    return transpose(apply("Reshape", found, int64s((batch, queries, heads, m.v.static_shape[3]))), HEADS_LAST)


def _joined(value: Ref) -> Term:
    """``[batch, heads, sequence, size]`` as ``[batch, sequence, heads * size]``."""
    batch, heads, sequence, size = value.static_shape
    return apply("Reshape", transpose(value, HEADS_LAST), int64s((batch, sequence, heads * size)))


def _biased(d: Sampler) -> dict[str, Any]:
    batch, queries, keys, heads, size, other = d.extents(6)
    shapes = [(batch, queries, heads * size), (batch, keys, heads * size), (batch, keys, heads * other)]
    found: dict[str, Any] = {name: _tame(d, shape) for name, shape in zip("qkv", shapes, strict=True)}
    for name, shape in zip("qkv", shapes, strict=True):
        vector = shape[-1:] if d.chance(0.9) else d.broadcast_of(shape)
        found[f"b{name}"] = fixed(_tame(d, vector))
    if d.chance():
        found["mask"] = _tame(d, (1, heads, queries, keys))
    return {**found, "attention": {"num_heads": heads}}


@rule(
    apply(KEY, add(q, bq), add(k, bk), add(v, bv), p, p, mask).named("attention"),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_biased,
    domain=DOMAIN,
)
def fuse_biases_into_multi_head_attention(m: Match) -> Term:
    """``MultiHeadAttention(q + bq, k + bk, v + bv) == MultiHeadAttention(q, k, v, bias=[bq, bk, bv])`` for constant vectors."""
    m.require(m.p is None, "biased already")
    pairs = ((m.q, m.bq), (m.k, m.bk), (m.v, m.bv))
    for value, bias in pairs:
        m.require(bias.is_constant and bias.rank == 1 and value.rank == 3, "no constant vector")
        m.require(bias.static_shape[0] == value.static_shape[-1], "a bias that broadcasts")
    joined = apply("Concat", m.bq, m.bk, m.bv, axis=0)
    return Apply(KEY, _trimmed(m.q, m.k, m.v, joined, m.mask), m.attention.attributes)


def _trimmed(query: Ref, key: Ref, value: Ref, bias: Term, scores: Ref | None) -> tuple[Any, ...]:
    return (query, key, value, bias) if scores is None else (query, key, value, bias, None, scores)
