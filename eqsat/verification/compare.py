"""Two arrays that should be equal: how far apart they are, and whether noise explains it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from eqsat.ir.types import is_array
from eqsat.verification.nested import elements, misfit

SLACK = 2.0
"""The noise runs are a sample: a result may deviate this many times as far as they do."""

FLOOR_ULP = 4.0
"""Floats this close, in ulp of the largest in their group, and on average in ulp of the average one, agree whatever the
noise runs say."""

FLOOR_ULP_OF_HALVES = 1.0
"""The same in half precision: one rounding left out, and another put in."""

_FEW = 2.0**-7
"""The part of the elements of an array that are few."""

SPREAD = 1024.0
"""An array whose largest element is this many times larger than a typical one is judged in two groups (`Yardstick`)."""


@dataclass(frozen=True, slots=True)
class Distance:
    """How far an array is from its reference; for whole numbers in quanta. ``max_rel``: relative to the largest element.

    ``moved``: how many of ``size`` elements differ. ``largest`` and ``average``: absolute values of the reference's
    elements; 0 where nothing differs. ``misfit`` says why elements cannot be compared, or is empty.
    """

    max_abs: float = 0.0
    mean_abs: float = 0.0
    max_rel: float = 0.0
    moved: int = 0
    size: int = 0
    largest: float = 0.0
    average: float = 0.0
    misfit: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a comparison came to. ``message`` is empty when the result is within its tolerance, else says how it is not.
    ``passed_over``: the same where nothing can be asked of the elements, so that the result is not refused for it."""

    distance: Distance
    tolerance: float
    message: str
    equal: bool
    passed_over: str = ""


_LARGER = 1.5
"""By how much the elements of one array may be larger than those of another that its tolerances are to be good for."""


def _as_many(moved: int) -> float:
    """A high quantile of a Poisson count of events of which so many were seen."""
    return SLACK * moved + 3 * math.sqrt(moved) + 1


@dataclass(slots=True)
class _Observed:
    """The farthest that noise has moved one group of elements."""

    max_abs: float = 0.0
    mean_abs: float = 0.0
    moved: int = 0

    def take(self, other: Distance | _Observed) -> None:
        self.max_abs = max(self.max_abs, other.max_abs)
        self.mean_abs = max(self.mean_abs, other.mean_abs)
        self.moved = max(self.moved, other.moved)


class Yardstick:
    """A reference array, what noise does to it, and so what another array may be.

    Elements far larger than a typical one (scores under a mask of -10000, say) are judged apart from the others: their
    error would hide everyone else's. ``whole``: the elements are whole numbers, whatever the dtype. ``quanta``: how far
    a whole number may move at a rounding tie.
    """

    def __init__(self, reference: Any, *, whole: bool = False, quanta: int = 0) -> None:
        self.reference = reference
        self.quanta = quanta
        self._elements = elements(reference)
        self.whole = whole or self._elements.dtype.kind in "biu"
        self._large = None if self.whole else _outliers(self._elements)
        self._observed = [_Observed() for _ in range(1 if self._large is None else 2)]
        self.reshaped = False
        """Whether noise made another shape of it, as where boxes are kept by their scores: which elements there are is a matter
        of roundings."""
        self._measured: tuple[Any, Distance, list[Distance]] = (None, Distance(), [])

    def observe(self, noisy: Any, clean: Any = None) -> None:
        """Takes note of what a run with noise computed, and how far that is from ``clean``, by default the reference. Of one that
        cannot be compared (another shape) no more than that."""
        if clean is not None and misfit(self.reference, clean):
            return
        self.reshaped |= bool(misfit(self.reference, noisy))
        for group, observed in zip(self._distances(noisy, clean), self._observed, strict=True):
            if not group.misfit:
                observed.take(group)

    def moved_to(self, reference: Any) -> Yardstick:
        """A yardstick of the same tolerances around another array."""
        moved = Yardstick(reference, whole=self.whole, quanta=self.quanta)
        same = len(moved._observed) == len(self._observed)
        for k, observed in enumerate(moved._observed):
            for seen in self._observed[k : k + 1] if same else self._observed:
                observed.take(seen)
        return moved

    def borrowed(self, reference: Any) -> Yardstick | None:
        """The same tolerances around another array, ``None`` if they do not say how far a program may be from that: it is of
        another kind, or its elements are much smaller."""
        ours = self.reference
        if (
            not is_array(reference)
            or not is_array(ours)
            or (ours.dtype, ours.shape) != (reference.dtype, reference.shape)
        ):
            return None
        moved = self.moved_to(reference)
        same = len(moved._observed) == len(self._observed)
        return moved if same and (self.whole or magnitude_of(ours) <= _LARGER * magnitude_of(reference)) else None

    def judge(self, result: Any, *, exact: bool = False) -> Judgement:
        """Compares ``result``; with ``exact`` it has to be equal up to the sign of zero and the payload of NaN."""
        if self._measured[0] is not result or result is None:  # it is judged again after every run with noise
            whole = distance(self.reference, result)
            groups = [whole] if self._large is None or not whole.moved else self._distances(result)
            self._measured = result, whole, groups
        _, whole, groups = self._measured
        if whole.misfit:
            return Judgement(whole, 0.0, whole.misfit, False)
        if exact or whole.moved == 0:
            message = f"{_measure(whole, self.whole)}, must be equal" if whole.moved else ""
            return Judgement(whole, 0.0 if exact else self.tolerance, message, whole.moved == 0)
        for found, observed in zip(groups, self._observed, strict=True):
            message = self._check_whole(found, observed) if self.whole else self._check_float(found, observed)
            if message:
                return Judgement(whole, self.tolerance, message, False)
        return Judgement(whole, self.tolerance, "", False)

    def _check_whole(self, found: Distance, observed: _Observed) -> str:
        furthest = max(observed.max_abs, float(self.quanta))
        # Elements at a tie are rare events: never half of a tensor, unless noise moved more (labels by scores nearly equal).
        many = _as_many(observed.moved) + found.size * 2.0**-14
        half = found.size // 2
        most = half if observed.moved <= half else found.size
        allowed = min(math.ceil(many), most) if self.quanta or observed.moved else 0
        if found.max_abs > furthest:
            return f"off by {found.max_abs:.0f} quanta, {furthest:.0f} allowed"
        if found.moved > allowed:
            return f"{found.moved} of {found.size} elements are off by a quantum, {allowed} allowed"
        return ""

    def _check_float(self, found: Distance, observed: _Observed) -> str:
        for kind, value, seen, size in (
            ("max", found.max_abs, observed.max_abs, found.largest),
            ("mean", found.mean_abs, observed.mean_abs, found.average),
        ):
            tolerance = SLACK * seen + floor_of(self._elements, size)
            # The mean of few elements that move, of very many, is that of rare events: how far each may be is said above.
            rare = kind == "mean" and found.moved <= min(_as_many(observed.moved), found.size * _FEW)
            if not (value <= tolerance or rare):
                return f"{kind} abs error {value:.3g}, tolerance {tolerance:.3g}"
        return ""

    @property
    def tolerance(self) -> float:
        """The largest absolute error allowed anywhere."""
        seen = max((o.max_abs for o in self._observed), default=0.0)
        if self.whole:
            return max(seen, float(self.quanta))
        return SLACK * seen + floor_of(self._elements, magnitude_of(self._elements))

    def _distances(self, other: Any, clean: Any = None) -> list[Distance]:
        reference = self.reference if clean is None else clean
        if self._large is None or misfit(reference, other):
            return [distance(reference, other) for _ in self._observed]
        mine, others = elements(reference), elements(other)
        return [distance(mine[mask], others[mask]) for mask in (~self._large, self._large)]


def distance(reference: Any, result: Any) -> Distance:
    """Distance of ``result`` from ``reference``. Infinities and NaNs have to be in the same places."""
    unlike = misfit(reference, result)
    if unlike:
        return Distance(misfit=unlike)
    if not is_array(reference):
        mine = elements(reference)
        return distance(mine, elements(result).astype(mine.dtype))
    size = reference.size
    if size == 0:
        return Distance()
    if reference.dtype.kind in "OUS":
        moved = int(np.count_nonzero(reference != result))
        return Distance(misfit=f"{moved} of {size} strings differ") if moved else Distance(size=size)
    a, b = _wide(reference), _wide(result)
    if reference.dtype.kind in "iu" and reference.dtype.itemsize == 8:
        difference = _difference_of_long(reference, result)
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.asarray(np.abs(b - a))
    largest = float(difference.max())
    if not math.isfinite(largest):  # an overflow, or infinities and NaNs, which cancel where they are the same
        finite = np.isfinite(a) & np.isfinite(b)
        apart = ~(finite | (a == b) | (np.isnan(a) & np.isnan(b)))
        if apart.any():
            return Distance(misfit=f"{np.count_nonzero(apart)} of {size} NaN or infinite where the other is not")
        a, difference = np.where(finite, a, 0), np.where(finite, difference, 0)
        largest = float(difference.max())
    if largest == 0:
        return Distance(size=size)
    sizes = np.abs(a)
    scale, average = float(sizes.max()), float(sizes.mean(dtype=np.float64))
    relative = largest / scale if scale else math.inf
    moved = int(np.count_nonzero(difference))
    return Distance(largest, float(difference.mean()), relative, moved, size, scale, average)


def _difference_of_long(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Absolute differences of 64-bit integers, which doubles hold up to 53 bits of: 0 only where they are equal."""
    larger, smaller = np.maximum(a, b), np.minimum(a, b)
    return np.asarray(larger.astype(np.uint64) - smaller.astype(np.uint64)).astype(np.float64)


def bytes_of(value: Any) -> int:
    """Bytes of an array, or of those in a value that is none."""
    return int(elements(value).nbytes)


def magnitude_of(reference: np.ndarray) -> float:
    """Largest finite absolute value."""
    if reference.size == 0 or reference.dtype.kind in "OUS":
        return 0.0
    wide = np.abs(_wide(reference))
    return float(wide.max(initial=0.0, where=np.isfinite(wide)))


def floor_of(reference: np.ndarray, size: float) -> float:
    """How close floats of a size have to be to agree whatever the noise runs say. An ulp is never less than the distance of
    subnormal numbers, which in float16 are those below 6.1e-5."""
    if reference.dtype.kind in "biuOUSc":
        return 0.0
    info = ml_dtypes.finfo(reference.dtype)
    ulps = FLOOR_ULP_OF_HALVES if reference.dtype.itemsize == 2 else FLOOR_ULP
    return ulps * max(float(info.eps) * size, float(info.smallest_subnormal))


def _measure(found: Distance, whole: bool) -> str:
    if whole:
        return f"{found.moved} of {found.size} elements differ, by up to {found.max_abs:.0f}"
    return f"{found.moved} of {found.size} elements differ, max abs error {found.max_abs:.3g}"


def _outliers(reference: np.ndarray) -> np.ndarray | None:
    """Which elements are far larger than a typical one; ``None`` if none are."""
    if reference.size < 2 or reference.dtype.kind in "OUSc":
        return None
    sizes = np.abs(_wide(reference))
    sample = sizes.reshape(-1)[:: max(1, reference.size // 4096)]
    sample = sample[np.isfinite(sample) & (sample > 0)]
    typical = float(np.quantile(sample, 0.125)) if sample.size else 0.0  # most elements may be the large ones
    largest = magnitude_of(reference)
    return sizes > math.sqrt(largest * typical) if typical and largest > SPREAD * typical else None


def _wide(array: np.ndarray) -> np.ndarray:
    """The array in a dtype in which differences are meaningful and (nearly) exact."""
    if array.dtype.kind in "biu":
        return array.astype(np.int32 if array.dtype.itemsize <= 2 else np.float64)
    if array.dtype in (np.dtype(np.float64), np.dtype(np.float32)) or array.dtype.kind == "c":
        return array
    return array.astype(np.float32)
