"""Masks of attention: what is added to the scores, and what is known of its elements.

A row in which the mask forbids every key gives zeros in Attention, by the specification and in ONNX Runtime, NaN in a softmax
over minus infinities, and the mean of the values where each score was replaced by one large number. So minus infinities must
leave something open in every row, or NaN must have been replaced by zeros behind the softmax, or all that was forbidden.

Masks that have no form in half precision are taken to float32, where `MORE_DIGITS` times a number leaves of a score what the
number leaves of it in half precision: a row in which every key is forbidden is then the same mean.
Queries and keys are taken to be finite: zeros in place of NaN would hide NaN there, too; and products of activations that are
added to the scores, as relative positions are, to be ordinary numbers like these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eqsat.ir.types import Dim, DType
from eqsat.rewrite import Ref, Term, apply, literal
from eqsat.rules.attention.elements import Levels, bounds_of, few, least_row, paired
from eqsat.rules.attention.grouping import regrouped, regrouped_shape
from eqsat.rules.attention.magnitudes import (
    ABSORBED,
    ABSORBING,
    FORBIDDING,
    LARGEST,
    MASK_FLOOR,
    MORE_DIGITS,
    SHRINKING,
    SMALL,
    in_float32,
    is_coarse,
    rounds_otherwise,
)
from eqsat.rules.attention.triangles import Sides
from eqsat.rules.terms import add, mul

REPLACED = "a number that replaces scores leaves nothing of them"
BESIDE = "a number that replaces scores leaves nothing of masks beside it"
WIDENED = "of scores in float32 the mask leaves as much as in float16"
ROUNDED = "of scores beside the sum of two masks as much is left as beside one after the other"
TELLING = "known masks have finite elements, and minus infinity at most beside them"
DOUBTS = (REPLACED, BESIDE, WIDENED, ROUNDED, TELLING)
"""What the equations on masks assume; where that does not hold, it is one of the `Mask`'s doubts."""


@dataclass(frozen=True)
class Mask:
    """What is added to the scores.

    ``least``, ``high``: bounds on the finite elements. ``infinite``: elements may be minus infinity. ``array``: the elements,
    if known; ``levels``: the few numbers that they may be. ``row``: the greatest element of each row is at least this.
    ``allowed``: truth values with ``shape`` as well, if the mask is 0 where they hold and minus infinity elsewhere.
    ``replaces``: the scores are replaced by a finite number, not added to. ``raised``: the mask with that number, or the
    lowest of two, where the operator takes it. ``as_scores``: the elements are products of what the model computes, as large
    and as precise as scores. ``unknown``: the elements may be anything, NaN and infinity, too. ``sides``: the numbers on
    both sides of the diagonal and on it, if there are but these. ``parts``: the two masks that
    this is the sum of, if it is known as one. ``doubts``: what was assumed of `DOUBTS`, and does not hold.
    """

    term: Term
    shape: tuple[Dim, ...]
    dtype: DType
    least: float
    high: float
    infinite: bool = False
    array: np.ndarray | None = None
    levels: Levels | None = None
    row: float = -math.inf
    allowed: Term | None = None
    replaces: bool = False
    raised: Term | None = None
    as_scores: bool = False
    unknown: bool = False
    sides: Sides | None = None
    parts: tuple[Mask, ...] = ()
    doubts: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether every row is known to have an element that does not forbid."""
        return self.row >= MASK_FLOOR

    def with_sides(self, sides: Sides | None) -> Mask:
        """The mask of which this is known, too: of a square every row has an element on the diagonal."""
        if sides is None or self.shape[-2:-1] != self.shape[-1:]:
            return self
        return replace(self, sides=sides, row=max(self.row, sides[1]))

    def assuming(self, holds: bool, what: str) -> Mask:
        return self if holds else replace(self, doubts=self.doubts | {what})

    def scaled(self, factor: float) -> Mask:
        """The mask times a number, assuming that a number which replaced scores leaves nothing of them behind that, too."""
        term = mul(self.term, literal(factor, self.dtype))
        least, high = sorted((self.least * factor, self.high * factor))
        if self.unknown or max(abs(least), abs(high)) > LARGEST or (factor <= 0 and self.infinite):
            return unknown_mask(term, self.shape, self.dtype, replaces=self.replaces, doubts=self.doubts)
        scaled = replace(
            self,
            term=term,
            least=least,
            high=high,
            array=None if self.array is None else self.array * np.float32(factor),
            levels=None if self.levels is None else paired("Mul", self.levels, frozenset((factor,)), self.dtype),
            row=self.row * factor if factor > 0 else -math.inf,
            raised=self.raised if self.replaces and factor > 0 else None,
            as_scores=False,
            sides=None,
            parts=(),
        )
        return scaled.assuming(not self.replaces or least <= FORBIDDING[self.dtype] / SHRINKING, REPLACED)

    def regrouped(self, source: Sequence[Dim], target: Sequence[Dim], known: Ref) -> Mask:
        """The mask of scores with leading extents ``source``, of the same scores with ``target`` in their place; ``known`` as in
        `grouping.regrouped`."""
        if tuple(source) == tuple(target):
            return self
        whole, shape = regrouped_shape(self.shape, source, target)
        array, levels = self.array, self.levels
        if array is not None and any(isinstance(d, str) for d in whole):
            array, levels = None, few(array)
        array = None if array is None else np.broadcast_to(array, whole).reshape(shape)  # type: ignore[arg-type]
        given = (self.term, self.allowed, self.raised)
        terms = (None if t is None else regrouped(t, self.shape, source, target, known)[0] for t in given)
        term, allowed, raised = terms
        assert term is not None
        parts = tuple(part.regrouped(source, target, known) for part in self.parts)
        return replace(
            self, term=term, shape=shape, array=array, levels=levels, allowed=allowed, raised=raised, parts=parts
        )

    def widened(self) -> Mask:
        """The mask of scores in half precision for scores in float32, assuming that they lose the same there."""
        found = self._widened()
        if WIDENED in found.doubts - self.doubts and self.parts:
            left, right = (part._widened() for part in self.parts)
            return left.plus(right)
        return found

    def _widened(self) -> Mask:
        wide = replace(
            self, term=apply("Cast", self.term, to=int(DType.FLOAT)), dtype=DType.FLOAT, raised=None, parts=()
        )
        if self.unknown or (self.leaves_digits() and not self.replaces):
            return wide
        found, low = self.numbers(), float(self.dtype.numpy.type(FORBIDDING[DType.FLOAT16]))
        factor = ABSORBING / min(self.least, low) if self.replaces else MORE_DIGITS.get(self.dtype, math.inf)
        if (
            found is None
            or -self.least * factor > -MASK_FLOOR
            or any(low < x < -SMALL or x > SMALL or (x and x > low and self.array is None) for x in found)
        ):
            return wide.assuming(False, WIDENED)
        if self.array is not None:
            array = np.where(self.array <= low, self.array * np.float32(factor), self.array)
            known = {"replaces": self.replaces, "doubts": self.doubts}
            return mask_of_elements(literal(array), self.shape, DType.FLOAT, array, **known)
        term = mul(wide.term, literal(np.float32(factor)))
        levels = frozenset(x * factor for x in found)
        return replace(wide, term=term, least=self.least * factor, levels=levels, sides=None, raised=term)

    def plus(self, other: Mask) -> Mask:
        """The sum of two masks, assuming that scores round as they do beside one after the other.

        Where ``other`` replaces scores of minus infinity by a number the two cannot be added: see `mask_reading.selected_mask`.
        """
        found = self._sum(other).assuming(not self._rounds_otherwise(other), ROUNDED)
        return replace(found, parts=(self, other), doubts=found.doubts | self.doubts | other.doubts)

    def _rounds_otherwise(self, other: Mask) -> bool:
        """`rounds_otherwise` of all that the two masks may be; keys that are so far beside others do not count."""
        if self.array is not None and other.array is not None:
            a, b = np.broadcast_arrays(np.atleast_1d(self.array), other.array)
            with np.errstate(all="ignore"):
                far = is_coarse((a + b).astype(self.dtype.numpy).max(axis=-1, initial=-math.inf))
            return rounds_otherwise(a[far], b[far], self.dtype)
        if self.levels is None or other.levels is None:
            return False
        return rounds_otherwise(np.array(sorted(self.levels))[:, None], np.array(sorted(other.levels)), self.dtype)

    def _sum(self, other: Mask) -> Mask:
        shape = broadcast(self.shape, other.shape)
        term = add(self.term, other.term)
        if self.array is not None and other.array is not None:
            with np.errstate(over="ignore"):
                found = mask_of_elements(term, shape, self.dtype, self.array + other.array)
            if found.is_open:
                return found
        both_ways = ((self, other), (other, self))
        levels = (
            None
            if self.levels is None or other.levels is None
            else paired("Add", self.levels, other.levels, self.dtype)
        )
        least, high = (in_float32(a + b) for a, b in ((self.least, other.least), (self.high, other.high)))
        infinite = self.infinite or other.infinite
        if levels is not None:
            least, high, forbids = bounds_of(np.array(sorted(levels))) or (-math.inf, math.inf, True)
            infinite = infinite or forbids
        row = max(-math.inf if y.infinite else x.row + y.least for x, y in both_ways)
        allowed = None if self.allowed is None or other.allowed is None else apply("And", self.allowed, other.allowed)
        replaces = self.replaces or other.replaces
        total = Mask(term, shape, self.dtype, least, high, infinite, None, levels, row, allowed, replaces)
        if self.unknown or other.unknown or not -LARGEST <= least <= high <= LARGEST:
            total = unknown_mask(term, shape, self.dtype, replaces=replaces)
        above = not other.replaces or (other.least <= ABSORBING and self.least >= ABSORBED)
        below = not self.replaces or (self.least <= ABSORBING and other.high <= -ABSORBED)
        return total.assuming(above and below, BESIDE)

    def numbers(self) -> Levels | None:
        """The numbers that the elements may be, if they are known."""
        return self.levels if self.array is None else frozenset(np.unique(self.array).tolist())

    def is_absorbed(self) -> bool:
        """Whether nothing of it is left beside `ABSORBING`."""
        return not self.infinite and max(-self.least, self.high) <= -ABSORBED

    def is_small(self) -> bool:
        """Whether scores beside its finite numbers are as precise in float16 as without."""
        return max(abs(self.least), abs(self.high)) <= SMALL

    def leaves_digits(self) -> bool:
        """Whether the probabilities are as precise in float16 as without: beside a key with a small number those with lower ones
        weigh nothing, or its score has hardly more digits than theirs; and what is as scores lost as much before."""
        return self.is_small() or self.as_scores or (self.row >= -SMALL and self.high <= SMALL)


def mask_as_scores(term: Term, shape: tuple[Dim, ...], dtype: DType) -> Mask:
    """A mask of products, assuming of them what is assumed of scores: they are ordinary numbers."""
    return Mask(term, shape, dtype, ABSORBED, -ABSORBED, as_scores=True)


def unknown_mask(term: Term, shape: tuple[Dim, ...], dtype: DType, **more: Any) -> Mask:
    """A mask of which nothing is known."""
    return Mask(term, shape, dtype, -math.inf, math.inf, True, unknown=True, **more)


def mask_of_elements(term: Term, shape: tuple[Dim, ...], dtype: DType, array: np.ndarray, **more: Any) -> Mask:
    """A mask whose elements are known."""
    bounds = bounds_of(array)
    if bounds is None:
        return unknown_mask(term, shape, dtype, **more).assuming(False, TELLING)
    array = array.astype(np.float32)
    return Mask(term, shape, dtype, *bounds, array, row=least_row(array), **more)


def broadcast(left: tuple[Dim, ...], right: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The extents that two lists of them broadcast to."""
    rank = max(len(left), len(right))
    a, b = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (left, right))
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))
