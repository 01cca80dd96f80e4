"""Layouts of attention: heads side by side in rows, keys and values that several heads share, and such heads as rows of one."""

from collections.abc import Iterator
from itertools import product

from eqsat.conditions import worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.extents import multiply
from eqsat.ir.operator import Operator, operators_with
from eqsat.ir.types import Shape
from eqsat.rewrite import Apply, GroupView, Match, Ref, Term, apply, present
from eqsat.rules.terms import by_class, complete_nodes
from eqsat.rules.views.extents import viewed
from eqsat.samples import Drawing, Instance, Sampler

SWAP = (0, 2, 1, 3)

_DEFAULTS = {
    **dict.fromkeys(("is_causal", "softcap", "softmax_precision", "qk_matmul_output_mode"), 0),
    **dict.fromkeys(("left_window_size", "right_window_size"), -1),
}


def has_only(attention: Ref, *names: str) -> bool:
    """Whether what an Attention says beside its scale and numbers of heads is among these attributes, or what holds without."""
    return all(name in names or attention.attr(name, value) == value for name, value in _DEFAULTS.items())


def _rows(shape: Shape) -> Shape:
    batch, length, heads, size = shape
    return batch, length, multiply(heads, size)


def side_by_side(x: Term, like: Ref) -> Term:
    """(batch, sequence, heads, size), the shape of ``like``, as (batch, sequence, heads * size)."""
    return viewed(x, like.shape, _rows(like.shape), like)


def heads_in_rows(x: Ref) -> Term:
    """(batch, heads, sequence, size) as (batch, sequence, heads * size)."""
    swapped = tuple(x.shape[i] for i in SWAP)
    return viewed(apply("Transpose", x, perm=SWAP), swapped, _rows(swapped), x)


def heads_apart(rows: Term, like: Ref) -> Term:
    """Rows in which heads lie side by side as (batch, sequence, heads, size), the shape of ``like``."""
    return viewed(rows, _rows(like.shape), like.shape, like)


equation = Equations(__name__, exactness=Exactness.ROUNDING, source="ONNX Attention: inputs of three axes")
equation(
    "attend_in_rows",
    """(t := Transpose(Attention(q, k, v, *mask, **a), perm=(0, 2, 1, 3)))
       == heads_apart(Attention(heads_in_rows(q), heads_in_rows(k), heads_in_rows(v), mask,
                                q_num_heads=q.shape[1], kv_num_heads=k.shape[1], **a), root)""",
    "known numbers of heads: isinstance(q.shape[1], int) and isinstance(k.shape[1], int)",
)
equation(
    "transpose_attention_to_rows_first",
    """Transpose(Attention(q, k, v, *mask, **a), perm=(2, 0, 1, 3))
       == Transpose(Transpose(a, perm=(0, 2, 1, 3)), perm=(1, 0, 2, 3))""",
    exactness=Exactness.EXACT,
    source="permutations compose",
)


# --- shared heads --------------------------------------------------------------------------------------------------------


def _draw_shared(d: Sampler) -> Instance:
    drawing = Drawing()
    batch, groups, queries, keys, size, width = d.extents(6, ones=0.15)
    repeats = d.integer(2, 3)
    queries = keys if d.chance(0.3) else queries
    query = drawing.value(d.floats((batch, groups * repeats, queries, size)))
    kind = d.integer(0, 4)
    k = _repeat(d, drawing, (batch, groups, keys, size), repeats, kind)
    groups, repeats = (repeats, groups) if d.chance(0.15) else (groups, repeats)
    v = _repeat(d, drawing, (batch, groups, keys, width), repeats, kind if d.chance(0.7) else d.integer(0, 4))
    mask = [drawing.value(d.floats((queries, keys)))] if d.chance() else []
    return drawing.finish(drawing.op("Attention", query, k, v, *mask, scale=0.25))


def _repeat(d: Sampler, drawing: Drawing, shape: tuple[int, ...], repeats: int, kind: int) -> str:
    """Heads of a value repeated in one of several ways, of which one puts them in another order."""
    batch, groups, keys, size = shape
    x = drawing.value(d.floats(shape))
    whole = drawing.builder.constant([batch, groups * repeats, keys, size], "int64")
    if kind == 4:  # all heads, and then all of them again
        return drawing.op("Concat", *[x] * repeats, axis=1)
    alone = drawing.op("Reshape", x, drawing.builder.constant([batch, groups, 1, keys, size], "int64"))
    if kind == 0:
        many = drawing.op("Tile", alone, drawing.builder.constant([1, 1, repeats, 1, 1], "int64"))
    elif kind == 1:
        many = drawing.op("Concat", *[alone] * repeats, axis=2)
    else:
        spread = drawing.builder.constant([batch, groups, repeats, keys, size], "int64")
        many = drawing.op("Expand", alone, spread)
    return drawing.op("Reshape", many, whole)


def repeats(op: Operator) -> bool:
    """Whether an operator may have elements of its input several times side by side."""
    return op.traits.moves and op.traits.widens


Copies = tuple[Ref, Ref]
"""A value with other extents along some axes, and the value that is there several times."""


def _copies(view: GroupView) -> dict[int, list[Copies]]:
    """What repeats another value along some axis, and views of that, by class."""
    joined = ((node, parts) for node, parts in complete_nodes(view, "Concat") if len({x.handle for x in parts}) == 1)
    spread = complete_nodes(view, *operators_with(repeats))
    pairs = [(node, (node, x)) for node, (x, *_) in (*joined, *spread)]
    direct = by_class(pairs)
    views = ((node, c) for node, (x, _) in complete_nodes(view, "Reshape") for c in direct.get(x.handle, ()))
    return by_class((*pairs, *views))


def _attention_on_copies(view: GroupView) -> Iterator[Match]:
    copies = _copies(view)
    for node, inputs in view.nodes("Attention"):
        q, k, v, mask, *rest = (*inputs, None)
        if q is None or k is None or v is None or any(rest):
            continue
        for (many, one), (others, other) in product(copies.get(k.handle, ()), copies.get(v.handle, ())):
            found = {"k": k, "v": v, "many_k": many, "many_v": others, "one_k": one, "one_v": other}
            yield Match({"q": q, "mask": mask, **found}, node)


def each_head(one: Ref, many: Ref, x: Ref) -> bool:
    """Whether ``x`` (batch, heads, keys, size) has each head of ``one`` several times in its place; ``many``: before a view."""
    heads, groups = x.shape[1], one.shape[1]
    if x.rank != 4 or not isinstance(heads, int) or not isinstance(groups, int) or not 0 < groups < heads:
        return False
    batch, _, keys, size = x.shape
    if many.handle == x.handle:
        return one.shape == (batch, 1, keys, size)
    return (one.shape, many.shape) == ((batch, groups, 1, keys, size), (batch, groups, heads // groups, keys, size))


def _grouped(one: Ref, x: Ref) -> Term:
    batch, _, keys, size = x.shape
    return viewed(one, one.shape, (batch, one.shape[1], keys, size), one)


@equation.over_groups(
    find=_attention_on_copies,
    where=[
        "each head of the keys is repeated in place: each_head(one_k, many_k, k)",
        "each head of the values is repeated in place: each_head(one_v, many_v, v)",
        "keys and values are shared alike: one_k.shape[1] == one_v.shape[1]",
    ],
    source="ONNX Attention: grouped queries",
    sample=_draw_shared,
)
def share_repeated_heads(m: Match) -> Term:
    """``Attention(q, repeated(k), repeated(v)) == Attention(q, k, v)`` where each head is repeated equally often in place."""
    operands = present(m.q, _grouped(m.one_k, m.k), _grouped(m.one_v, m.v), m.mask)
    return Apply("Attention", operands, m.root.attributes)


# --- heads as rows -------------------------------------------------------------------------------------------------------


def one_query(q: Ref) -> tuple[int, ...]:
    """The shape of ``q`` with all its rows as heads of one query."""
    batch, groups, rows, size = q.static_shape
    return batch, groups * rows, 1, size


for name, mask in (("", "*mask"), ("_beside_repeated_mask", "Expand(mask, s)")):
    equation(
        f"attend_with_heads_of_one_query{name}",
        f"""Attention(Reshape(x, u, **q), (k := Concat(e, f, axis=i)), v, {mask}, **a)
            == viewed(Transpose(Attention(viewed(q, q.shape, one_query(q), q), k, v, mask, **a), perm=(0, 2, 1, 3)),
                      (q.shape[0], 1, one_query(q)[1], v.shape[3]), root.shape, q)""",
        "neither causal nor in windows: all(name in ('scale', 'softcap') or not value for name, value in a.attributes.items())",
        "one mask for all rows: mask is None or mask.rank == 4 and mask.shape[1:3] == (1, 1)",
        worthwhile(
            """heads of one query, beside stored keys: q.rank == 4 and q.static_shape[2] > 1
               and x.shape in (one_query(q), (q.shape[0], 1, one_query(q)[1] * q.shape[3]))"""
        ),
        functions=named(viewed),
        source="ONNX Attention: grouped queries",
        drawn=(
            """x: [B, 1, G * R * D] | [B, G * R, 1, D] | [B, G, R, D]; u = [B, G, R, D]; e: [B, G, L, D]; f: [B, G, 1, D]; i = 2
               v: [B, G, L + 1, W]; mask: [B, 1, 1, L + 1] | [1, 1, 1, L + 1]; s = [B, 1, R, L + 1]; a.scale = 0.25
               a.softcap = None | 2.0; a.is_causal = None | 1""",
            "mask: [1, G, 1, L + 1] | [1, 1, R, L + 1] | [R, L + 1] | [1, 1, 1, L + 1]; s = [1, G, R, L + 1]",
        ),
    )
