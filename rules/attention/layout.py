"""Layouts of attention: heads side by side in rows, and keys and values that several heads share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eqsat.exactness import Exactness
from eqsat.ir.extents import multiply
from eqsat.ir.operator import Operator, operators_with
from eqsat.ir.types import Dim
from eqsat.rewrite import Apply, GroupView, Match, Merge, Ref, Term, Unmet, apply, group_rule, rule, variables
from eqsat.rules.terms import condition, permutation_of
from eqsat.rules.views.extents import viewed
from eqsat.samples import Drawing, Instance, Sampler

SOURCE = "ONNX Attention: inputs of three axes"
SWAP = (0, 2, 1, 3)
q, k, v = variables("q k v")
(mask,) = variables("mask?")


def heads_in_rows(x: Ref) -> Term:
    """(batch, heads, sequence, size) as (batch, sequence, heads * size)."""
    batch, heads, length, size = x.shape
    return viewed(
        apply("Transpose", x, perm=SWAP), (batch, length, heads, size), (batch, length, multiply(heads, size)), x
    )


@condition("known numbers of heads")
def _known_heads(m: Match) -> bool:
    return isinstance(m.q.shape[1], int) and isinstance(m.k.shape[1], int)


@condition("heads and sequence change places")
def heads_and_sequence_swapped(m: Match) -> bool:
    return permutation_of(m.t) == SWAP


def _transposed(d: Sampler) -> dict[str, Any]:
    batch, groups, queries, keys, size, width = d.extents(6, ones=0.15)
    heads = groups * d.choose((1, 1, 2, 3))
    found: dict[str, Any] = {
        "q": d.floats((batch, heads, queries, size)),
        "k": d.floats((batch, groups, keys, size)),
        "v": d.floats((batch, groups, keys, width)),
        "t": {"perm": SWAP if d.chance(0.8) else d.permutation(4)},
        "a": {"scale": d.choose((0.5, 0.125))},
    }
    if d.chance(0.5):
        found["mask"] = d.floats(d.choose(((queries, keys), (batch, 1, queries, keys), (1, heads, queries, keys))))
    return found


@rule(
    apply("Transpose", apply("Attention", q, k, v, mask).named("a")).named("t"),
    where=[heads_and_sequence_swapped, _known_heads],
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_transposed,
)
def attend_in_rows(m: Match) -> Term:
    """``Transpose(Attention(q, k, v), (0, 2, 1, 3)) == Reshape(Attention(q', k', v'))`` with the heads of ``q'``, ``k'`` and
    ``v'`` side by side in rows."""
    heads: Any = {"q_num_heads": m.q.shape[1], "kv_num_heads": m.k.shape[1]}
    operands: list[Term] = [heads_in_rows(x) for x in (m.q, m.k, m.v)]
    if m.mask is not None:
        operands.append(m.mask)
    batch, queries, count, width = m.root.shape
    rows = Apply("Attention", tuple(operands), m.a.attributes.updated(**heads))
    return viewed(rows, (batch, queries, multiply(count, width)), m.root.shape, m.root)


# --- shared heads --------------------------------------------------------------------------------------------------------


def _draw_shared(d: Sampler) -> Instance:
    drawing = Drawing()
    batch, groups, queries, keys, size, width = d.extents(6, ones=0.15)
    repeats = d.integer(2, 3)
    query = drawing.value(d.floats((batch, groups * repeats, queries, size)))
    kind = d.integer(0, 4)
    k, v = (
        _repeat(d, drawing, (batch, groups, keys, n), repeats, kind if d.chance(0.9) else d.integer(0, 4))
        for n in (size, width)
    )
    operands = [query, k, v]
    if d.chance():
        operands.append(drawing.value(d.floats((queries, keys))))
    return drawing.finish(drawing.op("Attention", *operands, scale=0.25))


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


def _repeats(op: Operator) -> bool:
    return op.traits.moves and op.traits.widens


class _Repeats:
    """Values that are another one with each head repeated."""

    def __init__(self, view: GroupView) -> None:
        self._sources: dict[int, list[Ref]] = {}
        self._views: dict[int, list[Ref]] = {}
        for op in ("Concat", *operators_with(_repeats)):
            for node, inputs in view.nodes(op):
                x = inputs[0]
                if x is not None and (op != "Concat" or all(y is not None and y.handle == x.handle for y in inputs)):
                    self._sources.setdefault(node.handle, []).append(x)
        for node, (x, _) in view.nodes("Reshape"):
            if x is not None and x.handle in self._sources:
                self._views.setdefault(node.handle, []).append(x)

    def source(self, value: Ref) -> Ref | None:
        """What ``value`` repeats every head of: (batch, groups, 1, keys, size), or (batch, 1, keys, size)."""
        batch, heads, keys, size = value.shape
        if not isinstance(heads, int):
            return None
        for x in self._sources.get(value.handle, ()):
            if heads > 1 and x.shape == (batch, 1, keys, size):
                return x
        for wide in self._views.get(value.handle, ()):
            for x in self._sources[wide.handle]:
                groups = x.shape[1] if x.rank == 5 else heads
                if not isinstance(groups, int) or not 0 < groups < heads:
                    continue
                repeated = (batch, groups, heads // groups, keys, size)
                if x.shape == (batch, groups, 1, keys, size) and wide.shape == repeated:
                    return x
        return None


@group_rule(exactness=Exactness.ROUNDING, source="ONNX Attention: grouped queries", sample=_draw_shared)
def share_repeated_heads(view: GroupView) -> Iterator[Merge]:
    """``Attention(q, repeated(k), repeated(v)) == Attention(q, k, v)`` where each head is repeated equally often in place."""
    repeats = _Repeats(view)
    for node, (query, *others) in view.nodes("Attention"):
        if len(others) not in (2, 3) or query is None or others[0] is None or others[1] is None:
            continue
        try:
            found = _shared(repeats, node, query, others[0], others[1], others[2:])
        except Unmet:
            continue
        if found is not None:
            yield node, found


def _shared(repeats: _Repeats, node: Ref, query: Ref, k: Ref, v: Ref, rest: list[Ref | None]) -> Term | None:
    if query.rank != 4 or node.rank != 4 or any(x is None for x in rest):
        return None
    keys, values = repeats.source(k), repeats.source(v)
    if keys is None or values is None or _groups(keys) != _groups(values):
        return None
    operands = [query, _grouped(keys, k), _grouped(values, v), *(x for x in rest if x is not None)]
    return Apply("Attention", tuple(operands), node.attributes)


def _groups(x: Ref) -> Dim:
    return x.shape[1]


def _grouped(x: Ref, repeated: Ref) -> Term:
    """(batch, groups, 1, keys, size), with the groups in either place if there is one, as (batch, groups, keys, size)."""
    batch, _, keys, size = repeated.shape
    return viewed(x, x.shape, (batch, _groups(x), keys, size), x)
