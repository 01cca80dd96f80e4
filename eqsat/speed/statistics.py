"""Medians, their ratio, and how sure one can be of it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_RESAMPLES = 2000


class Interval(NamedTuple):
    """An estimate and the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(samples, (0.25, 0.75))
    return float(low), float(high)


def ratio_of_medians(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """Median of ``a`` over median of ``b``; both are samples by process, the same number of processes.

    The interval is a bootstrap over processes, and over runs within each: runs of one process share its luck with memory.
    """
    value = float(np.median(np.concatenate(a)) / np.median(np.concatenate(b)))
    random = np.random.default_rng(seed)
    first, second = [np.asarray(x) for x in a], [np.asarray(x) for x in b]
    ratios = np.empty(_RESAMPLES)
    for k in range(_RESAMPLES):
        chosen = random.integers(len(first), size=len(first))
        ratios[k] = _resampled(first, chosen, random) / _resampled(second, chosen, random)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Interval(value, float(low), float(high))


def _resampled(samples: Sequence[np.ndarray], processes: np.ndarray, random: np.random.Generator) -> float:
    return float(np.median(np.concatenate([random.choice(samples[p], samples[p].size) for p in processes])))


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
