"""Caches of keys and values: what attention reads behind what is stored already, and the two together as outputs."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from eqsat.equations import group_rule, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, GroupView, Match, Ref, Term
from eqsat.rules.attention.elements import is_causal
from eqsat.rules.attention.layout import SWAP, has_only, heads_apart, heads_in_rows
from eqsat.rules.attention.magnitudes import FORBIDDING
from eqsat.rules.terms import by_class, complete_nodes, converted
from eqsat.rules.views.movement import HALVES
from eqsat.samples import Drawing, Instance, Sampler, fixed


def _draw(d: Sampler) -> Instance:
    """Attention on keys and values that are stored ones and new ones, now and then joined otherwise."""
    drawing = Drawing()
    batch, groups, queries, stored, new, size, width = d.extents(7, ones=0.15)
    heads = groups * d.choose((1, 1, 2))
    lengths = [stored, new, 1] if d.chance(0.1) else [stored, new]
    in_rows, unknown = d.chance(0.15), {groups, heads} if d.chance(0.2) else set[int]()

    def drawn(many: int, length: int, n: int) -> str:
        shape = (batch, length, many * n) if in_rows else (batch, many, length, n)
        return drawing.value(d.floats(shape), unknown)

    def in_half(value: str, half: bool) -> str:
        return drawing.op("Cast", value, to=int(DType.FLOAT16)) if half else value

    halves = d.choose(((False, False),) * 5 + ((True, True), (True, False), (False, True)))  # keys, values
    operands = [drawn(heads, queries, size)]
    outputs: list[str] = []
    for n, half in zip((size, width), halves, strict=True):
        parts = [in_half(drawn(groups, m, n), half) for m in (lengths if d.chance(0.9) else lengths[::-1])]
        outputs.append(drawing.op("Concat", *parts, axis=-2 if in_rows else d.choose((2, -2))))
        wide = drawing.op("Cast", outputs[-1], to=int(DType.FLOAT)) if half else outputs[-1]
        operands.append(wide if d.chance(0.9) else drawn(groups, sum(lengths), n))
    attributes: dict[str, Any] = d.choose(({}, {}, {}, {"is_causal": 1}, {"softcap": 2.0}))
    if d.chance(0.7):
        before = d.choose((stored, stored, 0))
        triangle = np.where(np.tri(queries, sum(lengths), before), 0, -np.inf).astype(np.float32)
        operands.append(drawing.value(fixed(triangle) if d.chance(0.7) else d.floats((queries, sum(lengths)))))
    attributes |= {"q_num_heads": heads, "kv_num_heads": groups} if in_rows else {}
    y = drawing.op("Attention", *operands, scale=0.25, **attributes)
    if d.chance() and not in_rows:
        y = drawing.op("Transpose", y, perm=SWAP if d.chance(0.8) else (0, 3, 1, 2))
    return drawing.finish(y, *outputs)


def _attention_on_stored(view: GroupView) -> Iterator[Match]:
    """Attention on two values one behind the other, or on these in float32: its result, which may be read in rows, all keys and
    all values, as they are stored.
    """
    joined = by_class(
        (n, (n, *xs)) for n, xs in complete_nodes(view, "Concat") if len(xs) == 2 and n.attr("axis") in (2, -2)
    )
    for wide, (x,) in complete_nodes(view, "Cast"):
        if wide.dtype is DType.FLOAT and x.dtype in HALVES and x.handle in joined:
            joined.setdefault(wide.handle, []).extend(joined[x.handle])
    for node, inputs in view.nodes("Attention"):
        q, keys, values, mask, *rest = (*inputs, None)
        if q is None or keys is None or values is None or any(rest):
            continue
        rows = [user for op, user, _ in view.users(node) if op == "Transpose" and user.attr("perm") == SWAP]
        stored = product(joined.get(keys.handle, ()), joined.get(values.handle, ()))
        for (all_keys, pk, k), (all_values, pv, v) in stored:
            found = {"a": node, "q": q, "k": k, "v": v, "mask": mask, "keys": keys, "values": values}
            for result in rows or (node,):
                for part, root in enumerate((result, all_keys, all_values)):
                    yield Match({**found, "pk": pk, "pv": pv, "part": part, "rows": bool(rows)}, root)


def _forbids_later_keys(mask: Ref | None, q: Ref, keys: Any, before: Any) -> bool:
    """Whether a mask is a triangle of known size behind what is stored."""
    rows = q.shape[2]
    known = mask is not None and all(isinstance(n, int) for n in (rows, keys, before))
    elements = mask.values.literal_of(mask.handle) if mask is not None and known else None
    low = FORBIDDING.get(q.dtype, FORBIDDING[DType.FLOAT])
    return elements is not None and is_causal(elements, rows, keys, before, forbidding=low)


@group_rule(
    find=_attention_on_stored,
    where=[
        "heads are an axis: a.rank == pk.rank == 4",
        "neither causal nor in windows: has_only(a, 'softcap', 'softmax_precision')",
        "as many keys as values are stored: pk.shape[-2] == pv.shape[-2]",
        "heads in rows have a known number: not rows or isinstance(q.shape[1], int) and isinstance(k.shape[1], int)",
    ],
    functions=named(has_only),
    exactness=Exactness.ROUNDING,
    source="ONNX Attention: past and present",
    sample=_draw,
)
def store_keys_and_values_in_attention(m: Match) -> Term:
    """``(Attention(q, Concat(pk, k), Concat(pv, v)), Concat(pk, k), Concat(pv, v)) == Attention(q, k, v, pk, pv)`` and a mask of
    the triangle behind what is stored is causality. Attention may take what is stored in half precision in float32."""
    causal = _forbids_later_keys(m.mask, m.q, m.keys.shape[2], m.pk.shape[2])
    how: Any = {"is_causal": 1} if causal else {}
    operands: list[Term] = [m.q, m.k, m.v]
    if m.rows:
        operands = [heads_in_rows(x) for x in (m.q, m.k, m.v)]
        how |= {"q_num_heads": int(m.q.shape[1]), "kv_num_heads": int(m.k.shape[1])}
    # How each is stored, and read.
    casts: list[tuple[DType, DType]] = [(m.pk.dtype, m.keys.dtype), (m.pv.dtype, m.values.dtype)]
    new = (converted(x, *cast) for x, cast in zip(operands[1:], casts, strict=True))
    stored = (converted(x, *cast) for x, cast in zip((m.pk, m.pv), casts, strict=True))
    inputs: tuple[Any, ...] = (operands[0], *new, None if causal else m.mask, *stored)
    whole = Apply("Attention", inputs, m.a.attributes.updated(**how), "", 3).output(m.part)
    if m.part:
        kept, read = casts[int(m.part) - 1]
        return converted(whole, read, kept)
    return heads_apart(whole, m.root) if m.rows else whole
