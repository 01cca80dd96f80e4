"""Attention as ONNX Runtime has kernels: what its operators have in common, and MultiHeadAttention with biases. How Attention
becomes one of them: `shared_heads`.

Its kernels give NaN for a row of which a mask forbids all keys, where Attention gives zeros; and masks have the extents of the
scores, up to batches and heads. None caps scores, or looks at windows.
"""

import math
from typing import Any

import numpy as np

from eqsat.conditions import constant
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref
from eqsat.rules.onnxruntime.parameters import lies_along
from eqsat.samples import Applied, Sampler, fixed

SOURCE = "contrib operators of ONNX Runtime; Vaswani et al. 2017; Ainslie et al. 2023"
LARGEST_TRIANGLE = 1 << 22
"""Most elements of a causal mask that is written out as a constant."""


def leaves_rows_open(mask: Ref) -> bool:
    """Whether every row of a mask lets at least one key through."""
    lowest = 0 if mask.dtype is DType.BOOL else -math.inf
    return mask.low > lowest or (mask.is_constant and bool((mask.elements > lowest).any(axis=-1).all()))


def tame(d: Sampler, *shape: int) -> np.ndarray:
    """Floats around 1: scores that a softmax does not decide at once."""
    return d.rng.normal(size=shape).astype(np.float32)


def mask_of_scores(d: Sampler, batch: int, heads: int, queries: int, keys: int) -> Any:
    """A mask for the scores, at times one of truth values, or with rows that forbid everything."""
    mask = tame(d, d.choose((1, batch)), d.choose((1, heads)), queries, keys)
    closed = mask.copy()
    closed[..., 0, :] = -np.inf
    open_rows = np.where(np.arange(keys) < keys - 1, closed, mask)
    shapes = d.choose((mask[0, 0], mask[:, :, :1]))
    return d.choose(
        (
            fixed(mask),
            Applied("Tanh", mask),
            fixed(open_rows),
            fixed(shapes),
            mask,
            *[fixed(mask > 0), fixed(closed)] * 2,
        )
    )


equation = Equations(
    __name__, domain="com.microsoft", exactness=Exactness.ROUNDING, source=SOURCE, functions=named(lies_along)
)


def _biased(d: Sampler) -> dict[str, Any]:
    batch, queries, keys, heads, size, other = d.extents(6)
    found: dict[str, Any] = {"a": {"num_heads": heads}}
    for name, length, width in (("q", queries, size), ("k", keys, size), ("v", keys, other)):
        shape = (batch, length, heads * width)
        found[name] = tame(d, *shape)
        found[f"b{name}"] = fixed(tame(d, *(shape[-1:] if d.chance(0.9) else d.broadcast_of(shape))))
    return found | ({"mask": tame(d, 1, heads, queries, keys)} if d.chance() else {})


equation(
    "fuse_biases_into_multi_head_attention",
    """com.microsoft.MultiHeadAttention(q + bq, k + bk, v + bv, None, None, *mask, **a)
       == com.microsoft.MultiHeadAttention(q, k, v, Concat(bq, bk, bv, axis=0), None, mask, **a)""",
    constant("bq", "bk", "bv"),
    "biases along the last axis: lies_along(bq, q) and lies_along(bk, k) and lies_along(bv, v)",
    sample=_biased,
)
