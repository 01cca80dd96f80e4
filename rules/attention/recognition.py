"""Attention on floats: what `attention.reading` reads becomes one operator where that computes the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.extents import product
from eqsat.ir.operator import traits_of
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import Apply, GroupView, Merge, Ref, Term, Unmet, apply, group_rule
from eqsat.rules.attention.masks import LARGEST, Form, Mask, added_mask, selecting_mask
from eqsat.rules.attention.reading import Probabilities, Reader, Scores, Step
from eqsat.rules.linear.alignment import regrouped, regrouped_shape
from eqsat.rules.terms import int64s
from eqsat.rules.views.extents import listed, viewed
from eqsat.samples.attention import draw_attention

FLOATS = (DType.FLOAT, DType.FLOAT16)

_DEPTH = 5
"""Most factors, views and transposes above each other through which factors are taken out."""


@dataclass(frozen=True)
class _Core:
    """``mask + cap * tanh(scale * scores / cap)``, or ``mask + scale * scores`` with a cap of 0.

    ``lead``: the leading extents of the scores. ``factors``: of the scores, for each head or query. ``widened``: in float32,
    though the products are in float16.
    """

    lead: tuple[Dim, ...]
    scale: float = 1.0
    cap: float = 0.0
    mask: Mask | None = None
    widened: bool = False
    factors: tuple[Step, ...] = ()

    def after(self, step: Step, reader: Reader) -> _Core:
        """The core with one more step. Raises `Unmet` where the operator cannot express it."""
        if step.op in ("Mul", "Div") and step.lead:
            return self._scaled_each(step)
        if step.op in ("Mul", "Div"):
            return self._scaled(_number(step.operands[0], step.op))
        if step.op == "Tanh" and self.mask is None and not self.cap:
            return replace(self, cap=1.0)
        if step.op == "Add":
            mask = step.operands[0]
            assert mask is not None
            return self._masked(added_mask(reader, mask), step)
        if step.op == "Where":
            mask = selecting_mask(reader, step)
            if self.mask is not None and (self.mask.unknown or (self.mask.infinite and mask.replaces)):
                if step.lead != self.lead:
                    raise Unmet("the scores are replaced where they are grouped otherwise")
                return replace(self, mask=self.mask.selected(step))
            return self._masked(mask, step)
        if step.op == "Widen" and (self.mask is None or self.mask.dtype is DType.FLOAT16):
            wide = None if self.mask is None else self.mask.widened()
            return replace(self, mask=wide, widened=True)
        raise Unmet(f"{step.op} among the scores")

    def _scaled(self, factor: float) -> _Core:
        if not 0 < abs(factor) < LARGEST:
            raise Unmet("a scale of zero, or none")
        mask = None if self.mask is None or factor == 1 else self.mask.scaled(factor)
        # factor * cap * tanh(s / cap) is a cap of its own size over scores that are as much larger
        return replace(self, scale=self.scale * factor, cap=self.cap * abs(factor), mask=mask or self.mask)

    def _scaled_each(self, step: Step) -> _Core:
        factors = step.operands[0]
        assert factors is not None
        low, high = factors.interval
        if self.mask is not None or self.cap or not (0 < low <= high < LARGEST or -LARGEST < low <= high < 0):
            raise Unmet("factors for each head behind a mask, of zero or of both signs")
        return replace(self, factors=(*self.factors, step))

    def _masked(self, mask: Mask, step: Step) -> _Core:
        mask = mask.regrouped(step.lead, self.lead)
        return replace(self, mask=mask if self.mask is None else self.mask.plus(mask))


def _number(value: Ref | None, op: str) -> float:
    assert value is not None
    number = float(value.value.reshape(()))
    return number if op == "Mul" else 1 / number if number else 0.0


# --- shapes --------------------------------------------------------------------------------------------------------------


def grouped(value: Ref, lead: Sequence[Dim], term: Term | None = None) -> Term:
    """``value`` (..., rows, columns) as (batch, heads, rows, columns), where ``lead`` are the leading extents of the scores.

    ``term``: what to take in its place, of the same shape.
    """
    term = value if term is None else term
    if len(lead) == 2 and value.shape[:-2] == tuple(lead):
        return term
    return viewed(term, value.shape, (*batch_and_heads(lead), *value.shape[-2:]), value)


def batch_and_heads(lead: Sequence[Dim]) -> tuple[Dim, Dim]:
    """Leading extents of the scores as two."""
    return (product(lead[:-1]), lead[-1]) if lead else (1, 1)


def _mask_operand(mask: Mask, lead: Sequence[Dim], queries: Dim, keys: Dim, known: Ref) -> Term:
    """The mask as the kernel takes it: over all queries and keys, over batch and heads by broadcasting."""
    term, shape = mask.term, mask.shape
    if len(lead) != 2:
        term = regrouped(term, shape, lead, batch_and_heads(lead))
        shape = regrouped_shape(shape, lead, batch_and_heads(lead))[1]
    full = (1,) * (4 - len(shape)) + shape
    if len(shape) != 4:
        term = apply("Unsqueeze", term, int64s(range(4 - len(shape))))
    if full[-2:] != (queries, keys):
        if full[-2] not in (1, queries) or full[-1] not in (1, keys):
            raise Unmet("the mask may not be as long as queries and keys are")
        term = apply("Expand", term, listed((*full[:-2], queries, keys), known))
    return term


class _Factors:
    """Factors that are one number each, below views and transposes too."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[tuple[int, int], tuple[Term, float]] = {}

    def taken_out(self, value: Ref, depth: int = _DEPTH) -> tuple[Term, float]:
        """``value`` without them, and their product."""
        key = value.handle, depth
        if key not in self._known:
            self._known[key] = self._search(value, depth - 1) if depth else (value, 1.0)
        return self._known[key]

    def _search(self, value: Ref, depth: int) -> tuple[Term, float]:
        for op, _, (a, b) in self._reader.nodes(value, "Mul", "Div"):
            assert a is not None
            assert b is not None
            for x, c in ((a, b), (b, a))[: 2 if op == "Mul" else 1]:
                if c.is_constant and all(d == 1 for d in c.shape) and x.type == value.type and not x.is_constant:
                    factor = _number(c, op)
                    if 0 < abs(factor) < LARGEST and x.handle != value.handle and not self._undone(value, x):
                        term, rest = self.taken_out(x, depth)
                        return term, factor * rest
        for op, node, (x, *others) in self._reader.nodes(value, "Reshape", "Transpose"):
            if x is not None and x.handle != value.handle:
                term, factor = self.taken_out(x, depth)
                if factor != 1:
                    return Apply(op, (term, *(y for y in others if y is not None)), node.attributes), factor
        return value, 1.0

    def _undone(self, value: Ref, multiple: Ref) -> bool:
        """Whether ``multiple`` is made of ``value``, which is made of something else: there is no factor to take out."""
        made = any(
            x is not None and x.handle == value.handle
            for _, _, operands in self._reader.nodes(multiple, "Mul", "Div")
            for x in operands
        )
        return made and any(op not in ("Mul", "Div") for op, _ in self._reader.view.spellings(value))


def check_operands(scores: Scores, p: Ref, v: Ref, *, wide: bool) -> None:
    """Raises `Unmet` unless keys and values have as many heads as the queries or one for all, and one batch.

    ``p``: the probabilities, which may be grouped otherwise than the scores; heads are not shared then. ``wide``: values are in
    float32, though queries and keys are not.
    """
    if scores.q.dtype is not scores.k.dtype or v.dtype not in (scores.q.dtype, *([DType.FLOAT] if wide else [])):
        raise Unmet("queries, keys and values of different types")
    check_batches(scores, p, v)


def check_batches(scores: Scores, p: Ref, v: Ref) -> None:
    """Raises `Unmet` unless the batches agree, see `check_operands`."""
    if v.rank != p.rank:
        raise Unmet("values of another rank")
    q, k, last = scores.q.shape[:-2], scores.k.shape[:-2], p.shape[:-2]
    if q == scores.lead == last:
        if k not in (q, (*q[:-1], 1)) or v.shape[:-2] != k:
            raise Unmet("queries, keys and values of different batches")
    elif k != q or v.shape[:-2] != last or len({product(d) for d in (q, scores.lead, last)}) > 1:
        raise Unmet("regrouped heads that are shared or of unknown number")


def values_of(v: Ref, scores: Scores) -> Term:
    """Values as (batch, heads, keys, width)."""
    return grouped(
        v, v.shape[:-2] if v.shape[:-2] == scores.k.shape[:-2] and scores.lead == scores.q.shape[:-2] else scores.lead
    )


def keys_of(scores: Scores, term: Term) -> Term:
    """Keys as (batch, heads, keys, size). ``term``: what to take in place of ``scores.k``."""
    lead = scores.k.shape[:-2] if scores.lead == scores.q.shape[:-2] else scores.lead
    return apply("Transpose", grouped(scores.k, lead, term), perm=(0, 1, 3, 2))


def result_of(term: Apply, root: Ref, lead: Sequence[Dim]) -> Term:
    """The operator's result, regrouped as the original's; ``lead``: the leading extents of the scores."""
    if len(lead) == 2 and root.shape[:-2] == tuple(lead):
        return term
    return viewed(term, (*batch_and_heads(lead), *root.shape[-2:]), root.shape, root)


# --- rules ---------------------------------------------------------------------------------------------------------------


def _forms(core: _Core, scores: Scores, v: Ref, *, guarded: bool) -> list[Form]:
    """The mask in each form that it may have: in float32 where it has none in the precision of the values."""
    mask, rows, columns = core.mask, scores.q.shape[-2], scores.k.shape[-1]
    if mask is None:
        return [(None, {})]
    try:
        return list(mask.forms(v.dtype, rows, columns, guarded=guarded))
    except Unmet:
        if v.dtype is DType.FLOAT:
            raise
        wide = mask if mask.dtype is DType.FLOAT else mask.widened()
        return list(wide.forms(DType.FLOAT, rows, columns, guarded=guarded))


def _widened(term: Term, value: Ref) -> Term:
    return term if value.dtype is DType.FLOAT else apply("Cast", term, to=int(DType.FLOAT))


@group_rule(
    exactness=Exactness.ROUNDING,
    source="ONNX Attention; Vaswani et al. 2017",
    sample=draw_attention,
)
def recognise_attention(view: GroupView) -> Iterator[Merge]:
    """``Softmax(f(q @ k)) @ v == Attention(q, k', v, mask)`` for any chain ``f`` of scales, a cap and masks."""
    reader = Reader(view)
    factors = _Factors(reader)
    for root, (p, v) in view.nodes("MatMul"):
        assert p is not None
        assert v is not None
        found: Probabilities | None = None
        try:
            found = reader.probabilities(p) if root.dtype in FLOATS else None
            if found is not None:
                for term in _spellings(reader, factors, found, p, v):
                    yield root, result_of(term, root, found.scores.lead)
            elif any(reader.nodes(p, "Softmax")):
                raise Unmet(
                    "the steps before its softmax are not scales, a cap and masks of a product of queries and keys"
                )
        except Unmet as reason:
            if not _is_quantised(found):
                view.missed("attention", root, reason)


def _is_quantised(found: Probabilities | None) -> bool:
    """Whether there is quantisation inside: `attention.quantised` reads that, where a target has the operator."""
    steps = () if found is None else (*found.scores.steps, *found.steps)
    return any(traits_of(step.op).quantises for step in steps)


def _spellings(reader: Reader, factors: _Factors, found: Probabilities, p: Ref, v: Ref) -> Iterator[Apply]:
    """The operator with the mask in each form that it may have."""
    scores = found.scores
    core = _Core(scores.lead)
    for step in scores.steps:
        core = core.after(step, reader)
    wide = core.widened and not found.steps  # from the scores on all is in float32
    narrowed = ("Narrow",) if core.widened and not wide else ()
    if tuple(step.op for step in found.steps) != narrowed or scores.product != "MatMul":
        raise Unmet("steps on the probabilities")
    q, left = factors.taken_out(scores.q)
    k, right = factors.taken_out(scores.k)
    if core.scale * left * right < 0:  # the operator's own scale is positive: a negative factor stays where it is
        if left < 0:
            q, left = scores.q, 1.0
        elif right < 0:
            k, right = scores.k, 1.0
    check_operands(scores, p, v, wide=wide)
    scale = core.scale * left * right
    if not 1e-30 < abs(scale) < 1e30:
        raise Unmet("a scale out of range")
    for step in core.factors:
        each = step.operands[0]
        assert each is not None
        if each.dtype is not scores.q.dtype:
            raise Unmet("factors in another precision than the queries")
        q = apply(step.op, q, regrouped(each, each.shape, step.lead, scores.q.shape[:-2]))
    forms = _forms(core, scores, v, guarded=found.guarded)
    single = wide or any(mask is not None and mask.dtype is DType.FLOAT for mask, _ in forms)
    queries = grouped(scores.q, scores.lead, q)
    operands = [apply("Neg", queries) if scale < 0 else queries, keys_of(scores, k), values_of(v, scores)]
    if single:
        operands = [apply("Cast", x, to=int(DType.FLOAT)) for x in operands[:2]] + [_widened(operands[2], v)]
    attributes: dict[str, Any] = {"scale": float(np.float32(abs(scale)))}
    if core.cap:
        attributes["softcap"] = float(np.float32(core.cap))
    if core.widened and not single:
        attributes["softmax_precision"] = int(DType.FLOAT)
    rows, columns = scores.q.shape[-2], scores.k.shape[-1]
    for mask, more in forms:
        masks = [] if mask is None else [_mask_operand(mask, scores.lead, rows, columns, v)]
        term = apply("Attention", *operands, *masks, **attributes, **more)
        yield apply("Cast", term, to=int(DType.FLOAT16)) if single and v.dtype is DType.FLOAT16 else term
