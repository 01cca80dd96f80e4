"""Attention on floats: what `attention.reading` reads becomes one operator where that computes the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eqsat.equations import group_rule
from eqsat.exactness import Exactness
from eqsat.ir.extents import product
from eqsat.ir.operator import traits_of
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import Condition, GroupView, Match, Ref, Term, Unmet, apply
from eqsat.rules.attention.factors import Factors, number_of
from eqsat.rules.attention.grouping import batch_and_heads, grouped, is_finer, regrouped, result_of
from eqsat.rules.attention.magnitudes import ABSORBING, FORBIDDING, LARGEST
from eqsat.rules.attention.mask_forms import Form, forms
from eqsat.rules.attention.mask_reading import added_mask, lowest_of, selected_mask, selecting_mask
from eqsat.rules.attention.masks import BESIDE, DOUBTS, TELLING, Mask
from eqsat.rules.attention.reading import Reader
from eqsat.rules.attention.scores import FLOATS, Probabilities, Scores, Step
from eqsat.rules.terms import complete_nodes, converted, int64s
from eqsat.rules.views.extents import repeated
from eqsat.samples.attention import draw_attention

ONE_CAP = "a cap comes before masks, and there is one"
SIGNED = "factors for each head come before masks and a cap, and are of one sign"
PRECISE = "factors for each head have the precision of the queries"
FLOORED = "scores are raised from minus infinity only where that came of a number"
GROUPED = "scores are replaced where they are grouped as in their product"


@dataclass(frozen=True)
class _Core:
    """``mask + cap * tanh(scale * scores / cap)``, or ``mask + scale * scores`` with a cap of 0.

    ``lead``: the leading extents of the scores that the mask is beside. ``factors``: of the scores, for each head or query.
    ``widened``: in float32, though the products are in half precision. ``doubts``: what was assumed, and does not hold.
    """

    lead: tuple[Dim, ...]
    scale: float = 1.0
    cap: float = 0.0
    mask: Mask | None = None
    widened: bool = False
    factors: tuple[Step, ...] = ()
    doubts: frozenset[str] = frozenset()

    def assuming(self, holds: bool, what: str) -> _Core:
        return self if holds else replace(self, doubts=self.doubts | {what})

    def after(self, step: Step, scores: Scores, reader: Reader) -> _Core:
        """The core with one more step of those of the scores."""
        if step.op in ("Mul", "Div"):
            return self._scaled_each(step) if step.lead else self._scaled(number_of(step.operands[0], step.op))
        if step.op == "Tanh":
            return replace(self, cap=1.0).assuming(self.mask is None and not self.cap, ONE_CAP)
        if step.op == "Widen":
            return replace(self, mask=self.mask and self.mask.widened(), widened=True)
        if step.op == "Add":
            return self._masked(added_mask(reader, step.operands[0]), step)
        if step.op == "Floor":
            return self.assuming(self.mask is None or self._is_floored(self.mask, step.operands[0].dtype), FLOORED)
        # what is added behind a number tells rows apart that have it everywhere
        mask = selecting_mask(reader, step, lowered=step is scores.steps[-1] and self._is_below(step, scores))
        if step.op == "Forbid" and self.mask is not None:
            mask = mask.assuming(lowest_of(step) <= ABSORBING and self.mask.is_absorbed(), BESIDE)
        if self.mask is not None and (self.mask.unknown or (self.mask.infinite and mask.replaces)):
            core = self._grouped_as(step)
            assert core.mask is not None
            return replace(core, mask=selected_mask(core.mask, step)).assuming(step.lead == core.lead, GROUPED)
        return self._masked(mask, step)

    def _is_below(self, step: Step, scores: Scores) -> bool:
        """Whether the number of a choice is out of the race against scores that were in float16, with the mask beside them."""
        mask = self.mask
        if mask is not None and (mask.infinite or mask.unknown or mask.replaces):
            return False
        low = FORBIDDING[DType.FLOAT16] + (0.0 if mask is None else mask.least)
        return self.widened and scores.q.dtype is DType.FLOAT16 and lowest_of(step) <= low

    def _is_floored(self, mask: Mask, dtype: DType) -> bool:
        """Whether probabilities stay as they are where scores beside the mask are raised to about the lowest number of this type.

        In float16 a mask makes scores that low, of which something is left in a row without an open key.
        """
        if dtype is DType.FLOAT16:
            return mask.row >= FORBIDDING[dtype]
        return mask.is_open or not (self.widened or mask.infinite or mask.unknown)

    def _scaled(self, factor: float) -> _Core:
        mask = self.mask if self.mask is None or factor == 1 else self.mask.scaled(factor)
        # factor * cap * tanh(s / cap) is a cap of its own size over scores that are as much larger
        return replace(self, scale=self.scale * factor, cap=self.cap * abs(factor), mask=mask)

    def _scaled_each(self, step: Step) -> _Core:
        low, high = step.operands[0].interval
        of_one_sign = 0 < low <= high < LARGEST or -LARGEST < low <= high < 0
        scaled = replace(self, factors=(*self.factors, step)).assuming(not self.widened, PRECISE)
        return scaled.assuming(self.mask is None and not self.cap and of_one_sign, SIGNED)

    def _masked(self, mask: Mask, step: Step) -> _Core:
        core = self._grouped_as(step)
        mask = mask.regrouped(step.lead, core.lead, step.operands[0])
        return replace(core, mask=mask if core.mask is None else core.mask.plus(mask))

    def _grouped_as(self, step: Step) -> _Core:
        """The core beside scores that are grouped as those of the step, where that tells more axes apart.

        So a mask for each window stays one for all images.
        """
        if not is_finer(step.lead, self.lead):
            return self
        mask = self.mask and self.mask.regrouped(self.lead, step.lead, step.operands[0])
        return replace(self, lead=step.lead, mask=mask)


# --- shapes --------------------------------------------------------------------------------------------------------------


def _mask_operand(mask: Mask, core: _Core, lead: Sequence[Dim], queries: Dim, keys: Dim, known: Ref) -> Term:
    """The mask as the kernel takes it: over all queries and keys, over batch and heads by broadcasting."""
    term, shape = regrouped(mask.term, mask.shape, core.lead, batch_and_heads(lead), known)
    full = (1,) * (4 - len(shape)) + shape
    if len(shape) != 4:
        term = apply("Unsqueeze", term, int64s(range(4 - len(shape))))
    return repeated(term, full, (*full[:-2], queries, keys), known)


def keys_agree(scores: Scores, p: Ref, v: Ref) -> bool:
    """Whether there are as many probabilities ``p`` as scores, given that there are as many as values."""
    return scores.k.shape[-1] in (p.shape[-1], v.shape[-2])


def batches_agree(scores: Scores, p: Ref, v: Ref) -> bool:
    """Whether keys and values have as many heads as the queries or one for all, and one batch.

    ``p``: the probabilities, which may be grouped otherwise than the scores; heads are not shared then.
    """
    q, k = _lead(scores.q, scores.k), _lead(scores.k, scores.q)
    last, values = _lead(p, v), _lead(v, p)
    if q == scores.lead == last:
        return k in (q, (*q[:-1], 1)) and values == k
    return k == q and values == last and len({product(d) for d in (q, scores.lead, last)}) == 1


def _lead(value: Ref, beside: Ref) -> tuple[Dim, ...]:
    """The leading extents of an operand of a product, with as many axes as the other one has."""
    return (1,) * (beside.rank - value.rank) + value.shape[:-2]


def values_of(v: Ref, scores: Scores) -> Term:
    """Values as (batch, heads, keys, width)."""
    return grouped(v, _heads_of(v, scores))


def keys_of(scores: Scores, term: Term) -> Term:
    """Keys as (batch, heads, keys, size). ``term``: what to take in place of ``scores.k``."""
    return apply("Transpose", grouped(scores.k, _heads_of(scores.k, scores), term), perm=(0, 1, 3, 2))


def _heads_of(value: Ref, scores: Scores) -> tuple[Dim, ...]:
    """Leading extents of keys or values: those of the scores, or one head for all."""
    shared = (*scores.lead[:-1], 1)
    return shared if (1,) * (len(shared) - value.rank + 2) + value.shape[:-2] == shared else scores.lead


# --- the rule ------------------------------------------------------------------------------------------------------------


def _products_behind_softmax(view: GroupView) -> Iterator[Match]:
    """Products of probabilities and values, with the mask in each form that it may have."""
    reader = Reader(view)
    factors = Factors(reader)
    for root, (p, v) in complete_nodes(view, "MatMul"):
        if root.dtype not in FLOATS:
            known = "only on float32, float16 and bfloat16"
            view.missed(root, Unmet(f"attention on {root.dtype.name.lower()} is not known, {known}"))
            continue
        found = reader.probabilities(p)
        if found is None or (found.scores.product != "MatMul" and not _is_quantised(found)):
            if any(reader.nodes(p, "Softmax")):
                yield Match({"found": None, "p": p, "v": v}, root)
        elif not _is_quantised(found):
            try:
                yield from _forms(reader, factors, found, p, v, root)
            except Unmet as reason:
                view.missed(root, reason)


def _is_quantised(found: Probabilities) -> bool:
    """Whether there is quantisation inside: `attention.quantised` reads that, where a target has the operator."""
    return any(traits_of(step.op).quantises for step in (*found.scores.steps, *found.steps))


def _forms(reader: Reader, factors: Factors, found: Probabilities, p: Ref, v: Ref, root: Ref) -> Iterator[Match]:
    scores = found.scores
    core = _Core(scores.lead)
    for step in scores.steps:
        core = core.after(step, scores, reader)
    if len(scores.lead) == 1:
        scores = replace(scores, lead=_told_apart(reader, scores, core.lead))
    q, left = factors.taken_out(scores.q)
    k, right = factors.taken_out(scores.k)
    if core.scale * left * right < 0:  # the operator's own scale is positive: a negative factor stays where it is
        if left < 0:
            q, left = scores.q, 1.0
        elif right < 0:
            k, right = scores.k, 1.0
    mixed = scores.q.dtype is not v.dtype  # probabilities were rounded: the operator has one type for all
    found_forms: list[Form] = [(None, {})]
    if core.mask is not None:
        precision = DType.FLOAT if mixed else v.dtype
        mask, found_forms = _forms_of(core.mask, scores, precision, guarded=found.guarded)
        core = replace(core, mask=mask)
    single = mixed or (core.widened and not found.steps)  # from the scores on all is in float32, or because the mask is
    names = {
        **{"p": p, "v": v, "found": found, "scores": scores, "core": core, "q": q, "k": k},
        "scale": core.scale * left * right,
        "single": single or any(mask is not None and mask.dtype is DType.FLOAT for mask, _ in found_forms),
    }
    for mask, how in found_forms or [(None, None)]:
        yield Match({**names, "mask": mask, "how": how}, root)


def _told_apart(reader: Reader, scores: Scores, beside_mask: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Batch and heads that are one axis of the products, as the mask or what the queries are a view of tells them apart."""
    q = scores.q.shape
    views = [x.shape[:-2] for _, _, (x, *_) in reader.nodes(scores.q, "Reshape") if x.shape[-2:] == q[-2:]]
    leads = (beside_mask, *(views if scores.k.shape[:-2] == q[:-2] else ()))
    return next((lead for lead in leads if is_finer(lead, scores.lead)), scores.lead)


def _forms_of(mask: Mask, scores: Scores, dtype: DType, *, guarded: bool) -> tuple[Mask, list[Form]]:
    """The mask and each form that it may have: in float32 where it has none in the precision of the values."""
    rows, columns = scores.q.shape[-2], scores.k.shape[-1]
    found = list(forms(mask, dtype, rows, columns, guarded=guarded))
    if found or dtype is DType.FLOAT:
        return mask, found
    wide = mask if mask.dtype is DType.FLOAT else mask.widened()
    return wide, list(forms(wide, DType.FLOAT, rows, columns, guarded=guarded))


def _undoubted(assumption: str) -> Condition:
    def holds(m: Match) -> bool:
        doubts = m.core.doubts if m.core.mask is None else m.core.doubts | m.core.mask.doubts
        return assumption not in doubts

    return Condition(assumption, holds, worthwhile=assumption == TELLING)


CONDITIONS = (
    "the steps before its softmax are scales, a cap and masks of a product of queries and keys: found is not None",
    "masks are for as many keys as there are: keys_agree(scores, p, v)",
    *map(_undoubted, (ONE_CAP, SIGNED, PRECISE, FLOORED, GROUPED, *DOUBTS)),
    "the mask makes no NaN where that is replaced: not (found.guarded and core.mask is not None and core.mask.unknown)",
    "the mask has a form in this precision: how is not None",
    "the probabilities are rounded at most: all(step.op == 'Narrow' for step in found.steps)",
    "heads and batches are those of the queries, or heads are shared by all: batches_agree(scores, p, v)",
    "a scale in range: 1e-30 < abs(scale) < 1e30",
)


@group_rule(
    find=_products_behind_softmax,
    where=CONDITIONS,
    structure="attention",
    exactness=Exactness.ROUNDING,
    source="ONNX Attention; Vaswani et al. 2017",
    sample=draw_attention,
)
def recognise_attention(m: Match) -> Term:
    """``Softmax(f(q @ k)) @ v == Attention(q, k', v, mask)`` for any chain ``f`` of scales, a cap and masks."""
    scores, core, q, k = m.scores, m.core, m.q, m.k
    for step in core.factors:
        each = step.operands[0]
        q = apply(step.op, q, regrouped(each, each.shape, step.lead, scores.q.shape[:-2], each)[0])
    queries = grouped(scores.q, scores.lead, q)
    operands = [apply("Neg", queries) if m.scale < 0 else queries, keys_of(scores, k), values_of(m.v, scores)]
    if m.single:
        values = (scores.q, scores.k, m.v)
        operands = [converted(term, x.dtype, DType.FLOAT) for term, x in zip(operands, values, strict=True)]
    attributes: dict[str, Any] = {**m.how, "scale": float(np.float32(abs(m.scale)))}
    if core.cap:
        attributes["softcap"] = float(np.float32(core.cap))
    if core.widened and not m.single:
        attributes["softmax_precision"] = int(DType.FLOAT)
    rows, columns = scores.q.shape[-2], scores.k.shape[-1]
    operands += [] if m.mask is None else [_mask_operand(m.mask, core, scores.lead, rows, columns, m.v)]
    term = apply("Attention", *operands, **attributes)
    term = converted(term, DType.FLOAT, m.v.dtype) if m.single else term
    return result_of(term, m.root, scores.lead)
