"""How far cost models agree about which program is better: Kendall's tau."""

from collections.abc import Mapping, Sequence
from typing import Any

DIGITS = 9
"""Prices that agree to so many significant digits are ties: sums of the same prices in another order are."""


def kendall_tau(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings of the same programs: 1 the same order, -1 the reverse.

    ``None`` where it is not defined: fewer than two programs, or all of them equal under one of the models.
    """
    from scipy.stats import kendalltau

    first, second = ([float(f"{price:.{DIGITS - 1}e}") for price in prices] for prices in (a, b))
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    tau: Any = kendalltau(first, second, variant="b")[0]
    return float(tau)


def agreement(prices: Sequence[Mapping[str, float]], models: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Tau between each pair of models; ``prices`` has one entry for each program, its price under each model."""
    columns = {model: [row[model] for row in prices] for model in models}
    return {a: {b: kendall_tau(columns[a], columns[b]) for b in models} for a in models}
