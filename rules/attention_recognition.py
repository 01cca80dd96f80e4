"""Attention in float (E30): what `attention_reading` reads becomes one operator where that computes the same.

Attention with a row of the mask that forbids everything gives zeros, softmax gives NaN, or the mean where the mask is a large
number: so a mask must be finite, and numbers from `MASK_FLOOR` on, which ONNX Runtime takes for minus infinity, are raised to
it. What a mask adds to the scores is then the same to the last bit as long as these stay below 1e30.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import Apply, GroupView, Merge, Ref, Term, Unmet, apply, group_rule, literal
from eqsat.rules.alignment import reshaped_term
from eqsat.rules.attention_drawing import draw_attention
from eqsat.rules.attention_reading import Reader, Scores, Step
from eqsat.rules.terms import add, int64s, mul

MASK_FLOOR = -1e38
"""Least number of a mask that is emitted."""

_LARGEST = float(np.finfo(np.float32).max)
_FORBIDDING = -1e30
"""A score that was replaced by this number or a lower one is out of the race, whatever it was before."""


@dataclass(frozen=True)
class _Mask:
    """What is added to the scores, and its bounds."""

    term: Term
    shape: tuple[Dim, ...]
    low: float
    high: float


@dataclass(frozen=True)
class _Core:
    """``mask + cap * tanh(scale * scores / cap)``, or ``mask + scale * scores`` with a cap of 0."""

    scale: float = 1.0
    cap: float = 0.0
    mask: _Mask | None = None

    def after(self, step: Step, reader: Reader) -> _Core:
        """The core with one more step. Raises `Unmet` where the operator cannot express it."""
        if step.op in ("Mul", "Div"):
            return self._scaled(_number(step.operands[0], step.op))
        if step.op == "Tanh" and self.mask is None and not self.cap:
            return _Core(self.scale, 1.0)
        if step.op == "Add":
            mask = step.operands[0]
            assert mask is not None
            return self._masked(_bounded(mask, _with_floor(mask, reader)))
        if step.op == "Where":
            return self._masked(_selection(step))
        raise Unmet(f"{step.op} among the scores")

    def _scaled(self, factor: float) -> _Core:
        if not 0 < abs(factor) < _LARGEST:
            raise Unmet("a scale of zero, or none")
        mask = self.mask
        if mask is not None and factor != 1:
            bounds = sorted((mask.low * factor, mask.high * factor))
            if max(map(abs, bounds)) > _LARGEST:
                raise Unmet("the scaled mask overflows")
            mask = _Mask(mul(mask.term, literal(np.float32(factor))), mask.shape, *bounds)
        if self.cap:  # factor * cap * tanh(s / cap) is a cap of its own size over scores that are as much larger
            return _Core(self.scale * factor, self.cap * abs(factor), mask)
        return _Core(self.scale * factor, 0.0, mask)

    def _masked(self, mask: _Mask) -> _Core:
        if self.mask is not None:
            low, high = self.mask.low + mask.low, self.mask.high + mask.high
            shape = mask.shape if len(mask.shape) >= len(self.mask.shape) else self.mask.shape
            ranks = len(mask.shape), len(self.mask.shape)
            if ranks[0] == ranks[1]:
                shape = tuple(b if a == 1 else a for a, b in zip(mask.shape, self.mask.shape, strict=True))
            else:
                raise Unmet("masks of different rank")
            mask = _Mask(add(self.mask.term, mask.term), shape, low, high)
        if not -_LARGEST <= mask.low <= mask.high <= _LARGEST:
            raise Unmet("the mask may be infinite")
        return _Core(self.scale, self.cap, mask)


def _number(value: Ref | None, op: str) -> float:
    assert value is not None
    number = float(value.value.reshape(()))
    return number if op == "Mul" else 1 / number if number else 0.0


def _bounded(mask: Ref, term: Term) -> _Mask:
    low, high = mask.interval
    if math.isnan(low) or math.isnan(high):
        raise Unmet("the mask may be NaN")
    return _Mask(term, mask.shape, low, high)


def _with_floor(mask: Ref, reader: Reader) -> Term:
    """``mask``, but a choice between two numbers with the lower one raised to the floor at once."""
    if mask.is_constant or mask.interval[0] >= MASK_FLOOR:
        return mask
    for _, _, (condition, a, b) in reader.nodes(mask, "Where"):
        assert condition is not None
        assert a is not None
        assert b is not None
        if a.is_constant and b.is_constant:
            return apply("Where", condition, _raised(a), _raised(b))
    return mask


def _raised(term: Term) -> Apply:
    return apply("Max", term, literal(np.float32(MASK_FLOOR)))


def _selection(step: Step) -> _Mask:
    """``Where(c, s, v) == s + Where(c, 0, v)`` for a ``v`` so low that nothing of ``s`` is left beside it."""
    condition, number = step.operands
    assert condition is not None
    assert number is not None
    value = float(number.value.reshape(()))
    if not -_LARGEST <= value <= _FORBIDDING:
        raise Unmet("the scores are replaced by a number that may matter")
    zero, floor = literal(np.float32(0)), literal(np.float32(max(value, MASK_FLOOR)))
    branches = (floor, zero) if step.swapped else (zero, floor)
    return _Mask(apply("Where", condition, *branches), condition.shape, max(value, MASK_FLOOR), 0.0)


# --- shapes --------------------------------------------------------------------------------------------------------------


def grouped(value: Ref, lead: Sequence[Dim]) -> Term:
    """``value`` (..., rows, columns) as (batch, heads, rows, columns), where ``lead`` are the leading extents of the scores."""
    if len(lead) == 2 and value.shape[:-2] == tuple(lead):
        return value
    if any(not isinstance(d, int) for d in (*lead, *value.shape)):
        raise Unmet("an extent is unknown")
    return reshaped_term(value, (*_batch_and_heads(lead), *value.static_shape[-2:]))


def _batch_and_heads(lead: Sequence[Dim]) -> tuple[int, int]:
    sizes = [d for d in lead if isinstance(d, int)]
    return (math.prod(sizes[:-1]), sizes[-1]) if sizes else (1, 1)


def _mask_term(mask: _Mask, lead: Sequence[Dim], queries: Dim, keys: Dim) -> Term:
    """The mask as the kernel takes it: no lower than the floor, over all queries and keys, over batch and heads by
    broadcasting."""
    if not isinstance(queries, int) or not isinstance(keys, int):
        raise Unmet("the extents of the mask are unknown")
    term = mask.term if mask.low >= MASK_FLOOR else _raised(mask.term)
    full = (1,) * (len(lead) + 2 - len(mask.shape)) + mask.shape
    front = full[:-2]
    if len(lead) != 2:
        if any(not isinstance(d, int) for d in (*lead, *full)):
            raise Unmet("an extent is unknown")
        if any(d != 1 for d in front[:-1]) and front[:-1] != tuple(lead[:-1]):
            raise Unmet("the mask varies along some of the batch axes")
        front = (math.prod(d for d in front[:-1] if isinstance(d, int)), *(front[-1:] or (1,)))
    if any(not isinstance(d, int) for d in (*front, *full[-2:])):
        if full[-2:] == (queries, keys) and len(mask.shape) == 4 and len(lead) == 2:
            return term
        raise Unmet("an extent of the mask is unknown")
    if len(mask.shape) != 4 or len(lead) != 2:
        term = reshaped_term(term, [d for d in (*front, *full[-2:]) if isinstance(d, int)])
    if full[-2:] != (queries, keys):
        term = apply("Expand", term, int64s(d for d in (*front, queries, keys) if isinstance(d, int)))
    return term


def _unscaled(reader: Reader, value: Ref) -> tuple[Ref, float]:
    """``value`` without a factor that is one number, and the factor."""
    for op, _, (a, b) in reader.nodes(value, "Mul", "Div"):
        assert a is not None
        assert b is not None
        for x, c in ((a, b), (b, a))[: 2 if op == "Mul" else 1]:
            if c.is_constant and all(d == 1 for d in c.shape) and x.type == value.type and not x.is_constant:
                factor = _number(c, op)
                if 0 < abs(factor) < _LARGEST:
                    return x, factor
    return value, 1.0


def check_operands(scores: Scores, p: Ref, v: Ref) -> None:
    """Raises `Unmet` unless keys and values have as many heads as the queries or one for all, and one batch.

    ``p``: the probabilities, which may be grouped otherwise than the scores; heads are not shared then.
    """
    if v.dtype is not DType.FLOAT:
        raise Unmet("no float32")
    check_batches(scores, p, v)


def check_batches(scores: Scores, p: Ref, v: Ref) -> None:
    """Raises `Unmet` unless the batches agree, see `check_operands`."""
    if v.rank != p.rank:
        raise Unmet("values of another rank")
    q, k, last = scores.q.shape[:-2], scores.k.shape[:-2], p.shape[:-2]
    if q == scores.lead == last:
        if k not in (q, (*q[:-1], 1)) or v.shape[:-2] != k:
            raise Unmet("queries, keys and values of different batches")
    elif k != q or v.shape[:-2] != last or any(not isinstance(d, int) for d in (*q, *scores.lead, *last)):
        raise Unmet("regrouped heads that are shared or of unknown number")


def values_of(v: Ref, scores: Scores) -> Term:
    """Values as (batch, heads, keys, width)."""
    return grouped(
        v, v.shape[:-2] if v.shape[:-2] == scores.k.shape[:-2] and scores.lead == scores.q.shape[:-2] else scores.lead
    )


def keys_of(scores: Scores) -> Term:
    """Keys as (batch, heads, keys, size)."""
    own = scores.k.shape[:-2]
    return apply(
        "Transpose", grouped(scores.k, own if scores.lead == scores.q.shape[:-2] else scores.lead), perm=(0, 1, 3, 2)
    )


def result_of(term: Apply, root: Ref) -> Term:
    """The operator's result, regrouped as the original's."""
    return term if root.rank == 4 else reshaped_term(term, root.static_shape)


# --- rules ---------------------------------------------------------------------------------------------------------------


@group_rule(
    exactness=Exactness.ROUNDING,
    source="ONNX Attention; Vaswani et al. 2017",
    family="E30",
    sample=draw_attention,
)
def recognise_attention(view: GroupView) -> Iterator[Merge]:
    """``Softmax(f(q @ k)) @ v == Attention(q, k', v, mask)`` for any chain ``f`` of scales, a cap and masks."""
    reader = Reader(view)
    for root, (p, v) in view.nodes("MatMul"):
        assert p is not None
        assert v is not None
        try:
            found = _attention(reader, root, p, v)
        except Unmet:
            continue
        if found is not None:
            yield root, found


def _attention(reader: Reader, root: Ref, p: Ref, v: Ref) -> Term | None:
    found = reader.probabilities(p) if root.dtype is DType.FLOAT else None
    if found is None or found.steps or found.scores.product != "MatMul":
        return None
    scores = found.scores
    core = _Core()
    for step in scores.steps:
        core = core.after(step, reader)
    q, left = _unscaled(reader, scores.q)
    k, right = _unscaled(reader, scores.k)
    scores = Scores(q, k, scores.steps, scores.lead)
    check_operands(scores, p, v)
    scale = core.scale * left * right
    if not 1e-30 < abs(scale) < 1e30:
        raise Unmet("a scale out of range")
    queries = grouped(q, scores.lead)
    operands = [apply("Neg", queries) if scale < 0 else queries, keys_of(scores), values_of(v, scores)]
    if core.mask is not None:
        operands.append(_mask_term(core.mask, scores.lead, q.shape[-2], k.shape[-1]))
    attributes: dict[str, Any] = {"softcap": float(np.float32(core.cap))} if core.cap else {}
    return result_of(apply("Attention", *operands, scale=float(np.float32(abs(scale))), **attributes), root)
