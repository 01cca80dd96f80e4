"""Constants that lie along one axis of a value, and the conditions and terms that fold them into weights."""

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from eqsat.conditions import asks, kernels
from eqsat.ir.types import HALVES, DType
from eqsat.rewrite import Condition, Match, Ref, Term, apply, literal
from eqsat.rules.terms import reshape

FLOATS = frozenset((*HALVES, DType.FLOAT, DType.DOUBLE))
"""Element types in which every kernel that these rules use exists."""

FLOAT = kernels("x", *sorted(FLOATS))

_SPREAD_OF_WEIGHTS = 8.0
"""How many times larger the greatest weights are than such as sums consist of."""


@asks(vector={"vector": True})
def lies_along(vector: Ref, value: Ref, axis: int) -> bool:
    """Whether ``vector`` broadcasts with ``value`` to the shape of ``value``, and varies along ``axis`` at most.

    Broadcasting aligns shapes at the *last* axis: a vector of C elements next to ``[N, C, H, W]`` lies along W, whatever C is.
    """
    shape, rank = vector.static_shape, value.rank
    if len(shape) > rank:
        return False
    axes = enumerate(shape, rank - len(shape))
    return all(d == 1 or (axis in (i, i - rank) and d == value.shape[i]) for i, d in axes)


def reshaped(value: Ref, shape: Sequence[int]) -> Term:
    """``value`` under another static shape; the value itself if it has that shape."""
    return value if value.static_shape == tuple(shape) else reshape(value, shape)


def lined_up(value: Ref) -> Term:
    """The elements of ``value`` along one axis; a scalar stays one."""
    return value if value.rank <= 1 else reshaped(value, (math.prod(value.static_shape),))


def spread(vector: Ref, elements: int) -> Term:
    """``vector`` of 1 or ``elements`` elements as a vector of exactly ``elements``."""
    if vector.static_shape == (elements,) or math.prod(vector.static_shape) == elements != 1:
        return lined_up(vector)
    return apply("Expand", lined_up(vector), literal([elements], "int64"))


def largest(value: Ref) -> float:
    """The largest magnitude that an element can have; infinite where nothing is known."""
    low, high = value.interval
    bound = max(abs(low), abs(high))
    return math.inf if math.isnan(low) or math.isnan(high) else bound


def limit(value: Ref) -> float:
    """The largest finite number of the element type."""
    return float(ml_dtypes.finfo(value.dtype.numpy).max)


def least_normal(value: Ref) -> float:
    """The least positive number of the element type that has all its digits."""
    return float(ml_dtypes.finfo(value.dtype.numpy).smallest_normal)


def extremes(c: Ref) -> tuple[float, float]:
    """Least and greatest magnitude among the elements of a constant."""
    low, high = c.interval
    if low > 0 or high < 0:
        return min(abs(low), abs(high)), largest(c)
    return float(np.abs(c.value.astype(np.float64)).min(initial=math.inf)), largest(c)


def are_ordinary_summands(*summands: Ref) -> bool:
    """So small that they cannot have been chosen to round off what they are added to: as biases are, in half precision."""
    return all(largest(c) < _largest_summand(c) for c in summands)


def _largest_summand(c: Ref) -> float:
    return max(1e-3 / float(ml_dtypes.finfo(c.dtype.numpy).eps), 2.0**6)


def is_ordinary_shift(c: Ref, s: Ref) -> bool:
    """Whether ``x * s + c`` shifts ``x`` by so little that this cannot have been meant to round it."""
    least, _ = extremes(s)
    return least > 0 and largest(c) < _largest_summand(c) * least


def finite_product(scale: str, *names: str) -> Condition:
    """The product of ``scale`` with each of the values (absent ones aside) is finite in their element type."""

    def holds(m: Match) -> bool:
        factor = largest(m[scale])
        return math.isfinite(factor) and all(factor * largest(m[n]) < limit(m[n]) for n in names if m[n] is not None)

    return Condition(f"{scale} * {', '.join(names)} finite", holds)


def stay_normal(factor: float, weights: Ref) -> bool:
    """Whether a factor is so large that large weights times it do not become subnormal numbers (in float16, numbers below
    6.1e-5), which have fewer digits. Of weights that are small beside the others a sum loses no more by that than it loses of
    the others by rounding."""
    return not 0 < factor * largest(weights) < _SPREAD_OF_WEIGHTS * least_normal(weights)


def keeps_digits(scale: str, weights: str) -> Condition:
    """``scale`` times the weights is as precise as the weights: they `stay_normal` by the least of its elements."""

    def holds(m: Match) -> bool:
        low, high = m[scale].interval
        sizes = np.abs(m[scale].value.astype(np.float64) if low <= 0 <= high else (low, high))
        return stay_normal(float(np.min(sizes, initial=math.inf, where=sizes > 0)), m[weights])

    return Condition(f"{scale} * {weights} keeps its digits", holds)


def finite_sum(*names: str) -> Condition:
    """The sum of the values (absent ones aside) is finite in their element type."""

    def holds(m: Match) -> bool:
        found = [m[n] for n in names if m[n] is not None]
        return sum(largest(v) for v in found) < limit(found[0])

    return Condition(f"{' + '.join(names)} finite", holds)


def ordinary_summands(*names: str) -> Condition:
    """The values (absent ones aside) are of ordinary size: ``(x + c) - c`` with a huge ``c`` is how one rounds."""
    return Condition(
        f"{', '.join(names)} of ordinary size",
        lambda m: are_ordinary_summands(*(m[n] for n in names if m[n] is not None)),
    )


def not_all(name: str, number: float) -> Condition:
    """Some element of the value differs from ``number``: a neutral element would be folded for ever."""
    return Condition(f"{name} not all {number:g}", lambda m: m[name].interval != (number, number))
