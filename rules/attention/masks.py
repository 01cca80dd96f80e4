"""Masks of attention: what is added to the scores, what is known of its elements, and the forms that the operator takes.

A row in which the mask forbids every key gives zeros in Attention, by the specification and in ONNX Runtime, NaN in a softmax
over minus infinities, and the mean of the values where each score was replaced by one large number. So minus infinities must
leave something open in every row, or NaN must have been replaced by zeros behind the softmax. Finite numbers stay finite; those
from `MASK_FLOOR` on, the lowest of which ONNX Runtime takes for minus infinity, are raised to it if they are all the same, and
what is added is then the same to the last bit as long as the scores stay below 1e30.

Of other masks, those of which nothing is known among them, rows in which all is low are shifted, see `_shifted`: that takes three
more operators and leaves ordinary rows as they are. In half precision there is no room to know more: a mask of known numbers is
small there, or leaves every row open. Others are taken to float32, where `_MORE_DIGITS` times a number leaves of a score what the
number leaves of it in half precision: a row in which every key is forbidden is then the same mean.
Queries and keys are taken to be finite: zeros in place of NaN would hide NaN there, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eqsat.ir.types import Dim, DType
from eqsat.rewrite import Ref, Term, Unmet, apply, literal
from eqsat.rules.attention.elements import Levels, bounds_of, few, is_causal, is_coarse, least_row, paired
from eqsat.rules.attention.grouping import regrouped, regrouped_shape
from eqsat.rules.terms import add, int64s, mul, sub

MASK_FLOOR = -1e38
"""Least number of a float32 mask that is emitted."""

LARGEST = float(np.finfo(np.float32).max)

FORBIDDING = {DType.FLOAT: -1e9, DType.BFLOAT16: -1e9, DType.FLOAT16: -1e4}
"""A score that was replaced by this number or a lower one is out of the race, whatever it was before."""

_SHRINKING = 100.0
"""Least factor, inverted, after which such a number is still far enough from the scores, which shrink as it does."""

ABSORBING = -1e30
"""Added to a score of ordinary size this leaves nothing of it, as if the score had been replaced."""

_ABSORBED = -1e22
"""Least number of which nothing is left beside `ABSORBING`."""

_LOW_ROW = {DType.FLOAT: float(np.float32(1e37)), DType.FLOAT16: 2.0**14}
"""Rows are shifted whose greatest number is further from zero than this, and then that is it, or about that."""

_PART_LOST = 8.0
"""A sum may miss this part of the step between neighbours: what scores add up to then still rounds as it did."""

_SMALL = 64.0
"""Numbers of a float16 mask up to this size leave the scores as precise as they are."""

_MORE_DIGITS = {DType.FLOAT16: 2.0**13, DType.BFLOAT16: 2.0**16}
"""Neighbours of a float32 that is this much larger than a number of these types are as far from it as those of the number are."""

REPLACED = "a number that replaces scores leaves nothing of them"
BESIDE = "a number that replaces scores leaves nothing of masks beside it"
WIDENED = "of scores in float32 the mask leaves as much as in float16"
ROUNDED = "of scores beside the sum of two masks as much is left as beside one after the other"
TELLING = "known masks have finite elements, and minus infinity at most beside them"
DOUBTS = (REPLACED, BESIDE, WIDENED, ROUNDED, TELLING)
"""What the equations on masks assume; where that does not hold, it is one of the `Mask`'s doubts."""

Form = tuple["Mask | None", dict[str, Any]]
"""The mask that the operator is given, if any, and attributes."""


@dataclass(frozen=True)
class Mask:
    """What is added to the scores.

    ``least``, ``high``: bounds on the finite elements. ``infinite``: elements may be minus infinity. ``array``: the elements,
    if known; ``levels``: the few numbers that they may be. ``row``: no row has a
    greatest element below this. ``allowed``: truth values with ``shape`` as well, if the mask is 0 where they hold and minus infinity elsewhere.
    ``replaces``: the scores are replaced by a finite number, not added to. ``raised``: the mask with that number, or the
    lowest of two, where the operator takes it. ``unknown``: the elements may be anything, NaN and infinity, too. ``parts``: the
    two masks that this is the sum of, if it is known as one. ``doubts``: what was assumed of `DOUBTS`, and does not hold.
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
    unknown: bool = False
    parts: tuple[Mask, ...] = ()
    doubts: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether every row is known to have an element that does not forbid."""
        return self.row >= MASK_FLOOR

    def assuming(self, holds: bool, what: str) -> Mask:
        return self if holds else replace(self, doubts=self.doubts | {what})

    def scaled(self, factor: float) -> Mask:
        """The mask times a number, assuming that a number which replaced scores leaves nothing of them behind that, too."""
        term = mul(self.term, literal(factor, self.dtype))
        least, high = sorted((self.least * factor, self.high * factor))
        if self.unknown or max(abs(least), abs(high)) > LARGEST or (factor < 0 and self.infinite):
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
            parts=(),
        )
        return scaled.assuming(not self.replaces or least <= FORBIDDING[self.dtype] / _SHRINKING, REPLACED)

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
        return replace(self, term=term, shape=shape, array=array, levels=levels, allowed=allowed, raised=raised, parts=parts)

    def widened(self) -> Mask:
        """The mask of scores in half precision for scores in float32, assuming that they lose the same there."""
        found = self._widened()
        if WIDENED in found.doubts - self.doubts and self.parts:
            left, right = (part._widened() for part in self.parts)
            return left.plus(right)
        return found

    def _widened(self) -> Mask:
        wide = replace(self, term=apply("Cast", self.term, to=int(DType.FLOAT)), dtype=DType.FLOAT, raised=None, parts=())
        if self.unknown or (self._leaves_digits() and not self.replaces):
            return wide
        found, low = self._numbers(), float(self.dtype.numpy.type(FORBIDDING[DType.FLOAT16]))
        factor = ABSORBING / min(self.least, low) if self.replaces else _MORE_DIGITS.get(self.dtype, math.inf)
        if (
            found is None
            or -self.least * factor > -MASK_FLOOR
            or any(low < x < -_SMALL or x > _SMALL or (x and x > low and self.array is None) for x in found)
        ):
            return wide.assuming(False, WIDENED)
        if self.array is not None:
            array = np.where(self.array <= low, self.array * np.float32(factor), self.array)
            known = {"replaces": self.replaces, "doubts": self.doubts}
            return mask_of_elements(literal(array), self.shape, DType.FLOAT, array, **known)
        term = mul(wide.term, literal(np.float32(factor)))
        levels = frozenset(x * factor for x in found)
        return replace(wide, term=term, least=self.least * factor, levels=levels, raised=term)

    def plus(self, other: Mask) -> Mask:
        """The sum of two masks, assuming that scores round as they do beside one after the other.

        Where ``other`` replaces scores of minus infinity by a number the two cannot be added: see `mask_reading.selected_mask`.
        """
        found = self._sum(other).assuming(not _rounds_otherwise(self, other), ROUNDED)
        return replace(found, parts=(self, other), doubts=found.doubts | self.doubts | other.doubts)

    def _sum(self, other: Mask) -> Mask:
        shape = broadcast(self.shape, other.shape)
        term = add(self.term, other.term)
        if self.array is not None and other.array is not None:
            with np.errstate(over="ignore"):
                found = mask_of_elements(term, shape, self.dtype, self.array + other.array)
            if found.is_open:
                return found
        both_ways = ((self, other), (other, self))
        levels = None if self.levels is None or other.levels is None else paired("Add", self.levels, other.levels, self.dtype)
        least, high = self.least + other.least, self.high + other.high
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
        apart = (not x.replaces or (x.least <= ABSORBING and y.least >= _ABSORBED) for x, y in both_ways)
        return total.assuming(all(apart), BESIDE)

    def forms(self, dtype: DType, queries: Dim, keys: Dim, *, guarded: bool) -> Iterator[Form]:
        """The mask as an operator on elements of ``dtype`` may take it: as numbers, as truth values, or as causality.

        ``guarded``: rows in which every key is forbidden give zeros. Of equally good forms the first is taken; in float16 there
        may be none.
        """
        if self.levels == frozenset((0.0,)):
            yield None, {}
            return
        if self.unknown or (self.infinite and not (self.is_open or guarded)):
            if dtype is self.dtype and dtype in _LOW_ROW and (self.unknown or dtype is DType.FLOAT or self._is_small()):
                yield self._shifted(), {}
            return
        if self.array is not None and is_causal(self.array, queries, keys, forbidding=FORBIDDING[self.dtype]):
            yield None, {"is_causal": 1}
            return
        if self.allowed is not None and self.infinite:
            yield replace(self, term=self.allowed, dtype=DType.BOOL), {}
        numbers = self._with_infinities(dtype) if self.infinite else self._finite(dtype)
        if numbers is not None:
            yield numbers, {}

    def _numbers(self) -> Levels | None:
        """The numbers that the elements may be, if they are known."""
        return self.levels if self.array is None else frozenset(np.unique(self.array).tolist())

    def _finite(self, dtype: DType) -> Mask | None:
        if dtype is DType.FLOAT16 or (dtype is DType.BFLOAT16 and not self._absorbs_all()):
            return self._finite_half(dtype)
        if self.least >= MASK_FLOOR and not (self.replaces and self.least > ABSORBING):
            return self
        low = self.levels if self.array is None else frozenset(np.unique(self.array[self.array <= MASK_FLOOR]).tolist())
        if not self.is_open and (low is None or sum(x <= MASK_FLOOR for x in low) > 1):
            return self._shifted()
        floor = literal(MASK_FLOOR, self.dtype)
        return replace(self, term=apply("Max", self.term, floor) if self.raised is None else self.raised)

    def _is_small(self) -> bool:
        """Whether scores beside its finite numbers are as precise in float16 as without."""
        return max(abs(self.least), abs(self.high)) <= _SMALL

    def _leaves_digits(self) -> bool:
        """Whether the probabilities are as precise in float16 as without: beside a key with a small number those with lower ones
        weigh nothing, or its score has hardly more digits than theirs."""
        return self._is_small() or (self.row >= -_SMALL and self.high <= _SMALL)

    def _absorbs_all(self) -> bool:
        """Whether scores beside the numbers are whole, or nothing is left of them, in whatever precision."""
        found = self._numbers()
        return found is not None and all(x <= ABSORBING or abs(x) <= _SMALL for x in found)

    def _finite_half(self, dtype: DType) -> Mask | None:
        if self._is_small():
            return self._cast(dtype)
        if self.array is None or not self.is_open:
            return None
        array = np.where(self.array <= FORBIDDING[dtype], -np.inf, self.array)
        forbidding = mask_of_elements(literal(array, dtype), self.shape, dtype, array)
        return forbidding._with_infinities(dtype) if forbidding.is_open else None

    def _with_infinities(self, dtype: DType) -> Mask | None:
        if dtype is not DType.FLOAT:
            return self._cast(dtype) if self._leaves_digits() else None
        return self if self.least >= MASK_FLOOR or (self.is_open and self.array is not None) else None

    def _shifted(self) -> Mask:
        """The mask ``m - f(r)`` for the greatest number ``r`` of each row, where ``f`` is 0 for ordinary numbers.

        A softmax is the same for a row to which one number was added, and takes nothing of the scores in where that row is
        as far from zero as `_LOW_ROW`. A row of minus infinities becomes NaN, as do those with NaN or infinity among them.
        """
        largest = self.term
        if self.shape and self.shape[-1] != 1:
            largest = apply("ReduceMax", largest, int64s((-1,)), keepdims=1)
        low = _LOW_ROW[self.dtype]
        return replace(self, term=sub(self.term, apply("Shrink", largest, lambd=low, bias=low)))

    def _cast(self, dtype: DType) -> Mask:
        return self if self.dtype is dtype else replace(self, term=apply("Cast", self.term, to=int(dtype)), dtype=dtype)


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


def _rounds_otherwise(left: Mask, right: Mask) -> bool:
    """Whether all of a row may be so far from zero that the rounding of a sum of two numbers decides what is left of scores.

    ``(s - 1e4) - 1e9`` is -1e9 less a multiple of 64, and so is ``s + (-1e4 - 1e9)``, but not always the same one. Where such
    keys are beside others they do not count. Of masks whose numbers are not known nothing can be said.
    """
    dtype = left.dtype.numpy
    if left.array is not None and right.array is not None:
        a, b = np.broadcast_arrays(np.atleast_1d(left.array), right.array)
        with np.errstate(all="ignore"):
            far = is_coarse((a + b).astype(dtype).max(axis=-1, initial=-math.inf))
        a, b = a[far], b[far]
    elif left.levels is not None and right.levels is not None:
        a, b = np.array(sorted(left.levels))[:, None], np.array(sorted(right.levels))
    else:
        return False
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) + b
        total = exact.astype(dtype)
        lost = np.abs(exact - total.astype(np.float64))
        return bool((is_coarse(total) & (lost > np.spacing(np.abs(total)).astype(np.float64) / _PART_LOST)).any())


def broadcast(left: tuple[Dim, ...], right: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The extents that two lists of them broadcast to."""
    rank = max(len(left), len(right))
    a, b = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (left, right))
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))
