"""Attention as ONNX Runtime has kernels: MultiHeadAttention, heads side by side in the last axis, and GroupQueryAttention.

Both give NaN for a row of which a mask forbids all keys, where Attention gives zeros; and masks have the extents of the scores,
up to batches and heads. GroupQueryAttention has heads that share keys and values, and stores these: with as many queries as new
keys. Neither caps scores, or looks at windows.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import PROJECTION, Apply, Condition, GroupView, Match, Ref, Term, apply, group_rule, literal
from eqsat.rules.onnxruntime.parameters import lies_along
from eqsat.rules.terms import int64s
from eqsat.samples import SYMBOLIC, Applied, Drawing, Instance, Sampler, fixed

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
    return mask.low > -math.inf or (mask.is_constant and bool((mask.elements > -math.inf).any(axis=-1).all()))


def sized(*extents: Dim) -> Term:
    """A shape for Reshape, whose unknown extents are those at the same place before."""
    return int64s(d if isinstance(d, int) else 0 for d in extents)


def _tame(d: Sampler, *shape: int) -> np.ndarray:
    """Floats around 1: scores that a softmax does not decide at once."""
    return d.rng.normal(size=shape).astype(np.float32)


def _mask(d: Sampler, batch: int, heads: int, queries: int, keys: int) -> Any:
    """A mask for the scores, at times one of truth values, or with rows that forbid everything."""
    mask = _tame(d, d.choose((1, batch)), d.choose((1, heads)), queries, keys)
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
    found: dict[str, Any] = {name: _tame(d, *shape) for name, shape in zip("qkv", shapes, strict=True)}
    if d.chance(0.7):
        found["mask"] = _mask(d, batch, heads, queries, keys)
    if defect == "both":
        found["mask"] = fixed(_tame(d, batch, heads, queries, keys))
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
equation(
    "use_multi_head_attention",
    f"""(a := Attention(q, k, v, *mask, is_causal=c, scale=s, q_num_heads=n, kv_num_heads=g))
        == com.microsoft.MultiHeadAttention(q, k, v, None, None, ({SCORES}), num_heads=n, scale=s)""",
    "three axes: q.rank == k.rank == v.rank == 3",
    "keys and values for each head: n == g",
    "known widths: are_known(q.shape[2], k.shape[2], v.shape[2])",
    *SEPARATE,
    sample=_separate,
)


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
        found[name] = _tame(d, *shape)
        found[f"b{name}"] = fixed(_tame(d, *(shape[-1:] if d.chance(0.9) else d.broadcast_of(shape))))
    return found | ({"mask": _tame(d, 1, heads, queries, keys)} if d.chance() else {})


equation(
    "fuse_biases_into_multi_head_attention",
    """com.microsoft.MultiHeadAttention(q + bq, k + bk, v + bv, None, None, *mask, **a)
       == com.microsoft.MultiHeadAttention(q, k, v, Concat(bq, bk, bv, axis=0), None, mask, **a)""",
    constant("bq", "bk", "bv"),
    "biases along the last axis: lies_along(bq, q) and lies_along(bk, k) and lies_along(bv, v)",
    sample=_biased,
)

# --- shared and stored keys and values


def _shared(d: Sampler) -> Instance:
    """Attention in rows, with and without a cache, a mask and causality; now and then of a size that has no kernel."""
    drawing = Drawing()
    batch, groups, new, before = d.extents(4)
    batch = d.choose((1, 1, batch))
    heads, size = groups * d.choose((1, 2, 3)), d.choose((8, 8, 8, 8, 8, 16, 6))
    defect = d.choose((*("",) * 6, "length", "width", "axes", "softcap", "scores"))
    keys, width = new + (defect == "length"), size * (1 + (defect == "width"))
    shapes = [(batch, new, heads * size), (batch, keys, groups * size), (batch, keys, groups * width)]
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": groups, "is_causal": d.integer(0, 1)}
    if defect == "axes":
        shapes = [(batch, heads, new, size), *[(batch, groups, keys, size)] * 2]
        attributes = {}
    cached = d.chance()
    operands: list[Any] = [_tame(d, *shape) for shape in shapes]
    operands.append(_mask(d, batch, heads, new, keys + before * cached) if d.chance() else None)
    if cached:
        operands += [_tame(d, batch, groups, before, n) for n in (size, width)]
    values = [None if o is None else drawing.value(o) for o in operands]
    while values[-1] is None:
        values.pop()
    attributes |= {"softcap": 2.0} if defect == "softcap" else {"scale": 0.25} if d.chance() else {}
    if cached or defect == "scores" or d.chance(0.3):
        return drawing.finish(*drawing.op("Attention", *values, outputs=3 + (defect == "scores"), **attributes))
    return drawing.finish(drawing.op("Attention", *values, **attributes))


def _uses(view: GroupView) -> Iterator[Match]:
    """Each output that GroupQueryAttention has, too, of Attention; ``part`` is its number if there are several."""
    for node, inputs in view.nodes("Attention"):
        operands = dict(zip(("q", "k", "v", "mask", "pk", "pv", "lengths"), (*inputs, *[None] * 7), strict=False))
        if None in (operands["q"], operands["k"], operands["v"]):
            continue
        parts = [user for op, user, _ in view.users(node) if op == PROJECTION]
        for part in parts or (node,):
            yield Match({**operands, "a": node, "part": part.attr("index") if parts else None}, part)


def _total(m: Match) -> Dim:
    """Stored and new keys; unknown if either is."""
    extents = (m.k.shape[1], 0 if m.pk is None else m.pk.shape[2])
    return sum(extents) if are_known(*extents) else "?"


def _plain(m: Match) -> bool:
    given = {
        "softcap": 0,
        "qk_matmul_output_mode": 0,
        "softmax_precision": 0,
        "left_window_size": -1,
        "right_window_size": -1,
    }
    return m.lengths is None and all(m.a.attr(name, value) == value for name, value in given.items())


SHARED = [
    FLOAT32,
    Condition("the result, keys or values", lambda m: m.part in (None, 0, 1, 2)),
    Condition("neither capped nor in windows, nor of several lengths", _plain),
    Condition("heads side by side", lambda m: m.q.rank == 3),
    Condition("as many queries as new keys", lambda m: m.k.shape[:2] == m.q.shape[:2]),
    Condition("heads in blocks of 8", lambda m: m.q.static_shape[2] // m.a.attr("q_num_heads") % 8 == 0),
    Condition("with a cache one sequence, or one query of each", lambda m: m.pk is None or 1 in m.q.shape[:2]),
    worthwhile(Condition("sequences of known length", lambda m: are_known(*m.q.shape, _total(m)))),
    worthwhile(Condition("kernels for values as wide as keys", lambda m: m.v.shape == m.k.shape)),
    worthwhile(
        Condition(
            "kernels for masks of floats with four axes, for each query and key",
            lambda m: (
                m.mask is None
                or (m.mask.dtype is DType.FLOAT and m.mask.rank == 4 and m.mask.shape[2:] == (m.q.shape[1], _total(m)))
            ),
        )
    ),
    Condition(
        "no row of the mask forbids everything",
        lambda m: m.mask is None or (m.mask.low > -math.inf if m.a.attr("is_causal", 0) else leaves_rows_open(m.mask)),
    ),
]


@group_rule(
    find=_uses, where=SHARED, exactness=Exactness.ROUNDING, source=SOURCE, sample=_shared, domain="com.microsoft"
)
def use_group_query_attention(m: Match) -> Apply:
    """``Attention(q, k, v, mask, pk, pv, q_num_heads=n, kv_num_heads=g) == GroupQueryAttention(q, k, v, pk, pv, total - 1, total,
    mask, num_heads=n, kv_num_heads=g)``, with its three outputs, for as many queries as new keys.
    """
    total = int(_total(m))
    lengths = literal(np.full(m.q.static_shape[0], total - 1, np.int32))
    attributes = {"num_heads": m.a.attr("q_num_heads"), "kv_num_heads": m.a.attr("kv_num_heads"), "do_rotary": 0}
    attributes |= {"causal": m.a.attr("is_causal", 0)} | (
        {"scale": m.a.attr("scale")} if m.a.attr("scale") is not None else {}
    )
    operands = (m.q, m.k, m.v, m.pk, m.pv, lengths, literal(np.int32(total)), None, None, None, m.mask)
    found = apply("com.microsoft::GroupQueryAttention", *operands, outputs=1 if m.part is None else 3, **attributes)
    return found if m.part is None else found.output(m.part)
