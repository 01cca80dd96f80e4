"""Rotary position embeddings of a part of the features: the operator knows how many of them turn."""

from collections.abc import Iterator, Sequence
from typing import Any

from eqsat.equations import stated
from eqsat.exactness import Exactness
from eqsat.rewrite import Apply, GroupView, Match, Ref, Term, group_rule
from eqsat.rules.attention.layout import heads_apart, side_by_side
from eqsat.rules.attention.rotary_reading import pairs_of_features, whole_features
from eqsat.rules.terms import by_class, complete_nodes
from eqsat.rules.views.parts import parts_by_class
from eqsat.samples import Drawing, Instance, Sampler, fixed


def _draw_partial(d: Sampler) -> Instance:
    """The embedding of the first features, heads apart or in rows, now and then slightly wrong."""
    drawing = Drawing()
    batch, heads, length, half = d.extents(4, ones=0.1)
    joint, left = (2 if d.chance(0.1) else 1), half > 1 and d.chance(0.1)  # rows of heads; features that do not turn
    size, rest = 2 * half * joint, d.integer(1, 3)
    in_rows = joint == 1 and d.chance(0.3)
    lead = (length,) if joint == 2 else (length, heads) if in_rows else (heads, length)
    x = drawing.value(d.floats((batch, *lead, size + rest)))
    sizes = drawing.value(fixed([size, rest], "int64"))
    turned, others = drawing.builder.op("Split", x, sizes, outputs=2, axis=-1)
    if d.chance(0.1):
        others = drawing.op("Slice", x, *(drawing.value(fixed([i], "int64")) for i in (size + 1, size + rest, -1)))
    caches = [drawing.value(d.floats((batch, length, half - left))) for _ in range(2)]
    attributes: dict[str, Any] = {"interleaved": 1} if d.chance(0.2) else {}
    attributes |= ({"num_heads": 2} if joint == 2 else {}) | ({"rotary_embedding_dim": 2 * half - 2} if left else {})
    if in_rows:
        many = heads if left or d.chance(0.8) else 1  # one: a head as large as all
        caches = (
            [drawing.value(d.floats((batch, length, half * heads // many))) for _ in range(2)] if many == 1 else caches
        )
        turned = drawing.op("Reshape", turned, drawing.value(fixed([batch, length, heads * size], "int64")))
        turned = drawing.op("RotaryEmbedding", turned, *caches, num_heads=many, **attributes)
        turned = drawing.op("Reshape", turned, drawing.value(fixed([batch, length, heads, size], "int64")))
    else:
        turned = drawing.op("RotaryEmbedding", turned, *caches, **attributes)
    return drawing.finish(drawing.op("Concat", *((turned, others) if d.chance(0.9) else (others, turned)), axis=-1))


def _embeddings(view: GroupView) -> Iterator[tuple[Ref, tuple[Ref, Ref, Sequence[Ref], bool]]]:
    """Embedded values: the embedding, of what, its tables, and whether heads are an axis there and side by side inside."""
    views = [(node, x) for node, (x, _) in complete_nodes(view, "Reshape")]
    viewed, of = by_class((x, node) for node, x in views), by_class(views)
    for r, (x, *tables) in complete_nodes(view, "RotaryEmbedding"):
        yield r, (r, x, tables, False)
        for apart in of.get(x.handle, ()) if x.type.rank == 3 else ():
            same = (node for node in viewed.get(r.handle, ()) if node.type == apart.type)
            yield from ((node, (r, apart, tables, True)) for node in same)


def _turned_and_rest(view: GroupView) -> Iterator[Match]:
    """``Concat(RotaryEmbedding(x[:r], c, s), x[r:])`` along the features"""
    parts = parts_by_class(view)
    embedded = by_class(_embeddings(view))
    for node, first, rest in pairs_of_features(view):
        for r, x, tables, in_rows in embedded.get(first.handle, ()):
            for whole, at in whole_features(parts.get(x.handle, ()), parts.get(rest.handle, ())):
                yield Match({"x": x, "r": r, "whole": whole, "at": at, "tables": tables, "in_rows": in_rows}, node)


def _has_heads(x: Ref, r: Ref) -> bool:
    """Whether the heads of an embedding in rows are those that its operand has as an axis, for the same sequences."""
    return r.attr("num_heads", 0) == x.shape[2] and r.shape[:2] == x.shape[:2]


@group_rule(
    find=_turned_and_rest,
    where=stated(
        "x r in_rows",
        "heads are an axis: x.rank == 4",
        "heads in rows are those: not in_rows or has_heads(x, r)",
        "all features of the part turn: not r.attr('rotary_embedding_dim', 0)",
        functions={"has_heads": _has_heads},
    ),
    exactness=Exactness.ROUNDING,
    source="ONNX RotaryEmbedding: rotary_embedding_dim",
    sample=_draw_partial,
)
def embed_part_of_the_features(m: Match) -> Term:
    """``Concat(RotaryEmbedding(x[:r], c, s), x[r:]) == RotaryEmbedding(x, c, s, rotary_embedding_dim=r)`` along the features."""
    how = m.r.attributes.updated(rotary_embedding_dim=m.at)
    if m.in_rows:
        return heads_apart(Apply("RotaryEmbedding", (side_by_side(m.whole), *m.tables), how), m.whole)
    return Apply("RotaryEmbedding", (m.whole, *m.tables), how)
