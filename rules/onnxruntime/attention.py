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


def mask_of_scores(d: Sampler, batch: int, heads: int, queries: int, keys: int) -> Any:
    """A mask for the scores, at times one of truth values, or with rows that forbid everything."""
    mask = d.tame(d.choose((1, batch)), d.choose((1, heads)), queries, keys)
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


equation(
    "fuse_biases_into_multi_head_attention",
    """com.microsoft.MultiHeadAttention(q + bq, k + bk, v + bv, None, None, *mask, **a)
       == com.microsoft.MultiHeadAttention(q, k, v, Concat(bq, bk, bv, axis=0), None, mask, **a)""",
    constant("bq", "bk", "bv"),
    "biases along the last axis: lies_along(bq, q) and lies_along(bk, k) and lies_along(bv, v)",
    drawn="""q = d.tame(B, L, H * S); k = d.tame(B, M, H * S); v = d.tame(B, M, H * O); mask: ... | float32[1, H, L, M]
             bq: float32[H * S] | float32[1] | float32[L, 1]; bk: float32[H * S] | float32[1]; bv: float32[H * O] | float32[1]
             a.num_heads = H""",
)
