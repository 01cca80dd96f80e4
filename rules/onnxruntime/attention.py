"""Attention as ONNX Runtime has kernels: MultiHeadAttention of heads that are an axis of their own, and with biases. Heads in
rows, and keys and values that are stored, or that heads share: `shared_heads`.

Its kernels give NaN for a row of which a mask forbids all keys, where Attention gives zeros; and masks have the extents of the
scores, up to batches and heads. None caps scores, or looks at windows.
"""

import math
from typing import Any

import numpy as np

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import Condition, Ref, Term, literal
from eqsat.rules.onnxruntime.parameters import lies_along
from eqsat.rules.terms import int64s
from eqsat.samples import SYMBOLIC, Applied, Sampler, fixed

SOURCE = "contrib operators of ONNX Runtime; Vaswani et al. 2017; Ainslie et al. 2023"
LARGEST_TRIANGLE = 1 << 22
"""Most elements of a causal mask that is written out as a constant."""


def are_known(*extents: Dim) -> bool:
    return all(isinstance(d, int) for d in extents)


def area(q: Ref, k: Ref) -> float:
    """Elements of a causal mask, infinitely many where an extent is not known."""
    return math.prod(d if isinstance(d, int) else math.inf for d in (q.shape[-2], k.shape[-2]))


def triangle(q: Ref, k: Ref) -> Term:
    """What is added to the scores of causal attention."""
    allowed = np.tri(q.static_shape[-2], k.static_shape[-2], dtype=np.bool_)
    return literal(np.where(allowed, 0, -np.inf)[None, None], DType.FLOAT)


def leaves_rows_open(mask: Ref) -> bool:
    """Whether every row of a mask lets at least one key through."""
    lowest = 0 if mask.dtype is DType.BOOL else -math.inf
    return mask.low > lowest or (mask.is_constant and bool((mask.elements > lowest).any(axis=-1).all()))


def sized(*extents: Dim) -> Term:
    """A shape for Reshape, whose unknown extents are those at the same place before."""
    return int64s(d if isinstance(d, int) else 0 for d in extents)


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


# --- a key and a value for each head


def _separate(d: Sampler) -> dict[str, Any]:
    """Attention with three axes or four; now and then with one key and value for several heads, or one batch."""
    batch, queries, keys, heads, size, other = d.extents(6)
    defect = d.choose((*("",) * 9, "batch", "heads", "length", "width", "softcap", "causal", "both", "both"))
    keys = queries if defect == "length" else keys
    groups, batches = 1 if defect == "heads" else heads, 1 if defect == "batch" else batch
    shapes = [(batch, heads, queries, size), (batches, groups, keys, size), (batches, groups, keys, other)]
    attributes: dict[str, Any] = {"scale": 0.25} if d.chance() else {}
    if d.chance():
        shapes = [(b, s, n * h) for b, n, s, h in shapes]
        attributes |= {"q_num_heads": heads, "kv_num_heads": groups}
    found: dict[str, Any] = {name: tame(d, *shape) for name, shape in zip("qkv", shapes, strict=True)}
    if d.chance(0.7):
        found["mask"] = mask_of_scores(d, batch, heads, queries, keys)
    if defect == "both":
        found["mask"] = fixed(tame(d, batch, heads, queries, keys))
    if defect == "width":
        found[SYMBOLIC] = (found["q"].shape[-1],)
    return {
        **found,
        "a": attributes
        | {"softcap": {"softcap": 2.0}, "causal": {"is_causal": 1}, "both": {"is_causal": 1}}.get(defect, {}),
    }


equation = Equations(
    __name__,
    domain="com.microsoft",
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    functions={f.__name__: f for f in (are_known, area, triangle, leaves_rows_open, sized, lies_along)}
    | {"LARGEST_TRIANGLE": LARGEST_TRIANGLE},
)
FLOAT32 = worthwhile(Condition("kernels for q, k, v: float32", lambda m: all(m[i].dtype is DType.FLOAT for i in "qkv")))
SEPARATE = (
    FLOAT32,
    worthwhile("kernels for one batch: q.shape[0] == k.shape[0]"),
    "a mask or causality: mask is None or not c",
    "a mask of floats: mask is None or mask.dtype is float32",
    worthwhile("""kernels for masks with four axes, for each query and key:
       mask is None or mask.rank == 4 and mask.shape[2:] == (q.shape[-2], k.shape[-2])"""),
    "no row of the mask forbids everything: mask is None or leaves_rows_open(mask)",
    worthwhile("a small causal mask: not c or area(q, k) <= LARGEST_TRIANGLE"),
)
SCORES = "triangle(q, k) if c else mask"


def _joined(x: str) -> str:
    """``[batch, heads, sequence, size]`` as ``[batch, sequence, heads * size]``."""
    return f"Reshape(Transpose({x}, perm=(0, 2, 1, 3)), sized({x}.shape[0], {x}.shape[2], {x}.shape[1] * {x}.shape[3]))"


equation(  # joined heads mostly cancel what split them
    "use_multi_head_attention_of_split_heads",
    f"""(a := Attention(q, k, v, *mask, is_causal=c, scale=s, q_num_heads=n, kv_num_heads=g))
        == Transpose(Reshape(com.microsoft.MultiHeadAttention({", ".join(map(_joined, "qkv"))}, None, None, ({SCORES}),
                                                              num_heads=q.shape[1], scale=s),
                             sized(q.shape[0], q.shape[2], q.shape[1], v.shape[3])), perm=(0, 2, 1, 3))""",
    "four axes: q.rank == k.rank == v.rank == 4",
    "keys and values for each head: q.shape[1] == k.shape[1] == v.shape[1]",
    "heads of known size: are_known(q.shape[1], q.shape[3], k.shape[3], v.shape[3])",
    *SEPARATE,
    sample=_separate,
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
