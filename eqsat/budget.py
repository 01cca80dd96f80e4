"""A budget for peak memory: the cheapest program found that keeps it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from eqsat.cost.custom import LargeValueModel
from eqsat.errors import MemoryBudgetError
from eqsat.extract import Effort
from eqsat.extraction import Extraction, Saturated, extract_program
from eqsat.fusion import kernel_works, price_works
from eqsat.lower.liveness import peak_memory_bytes
from eqsat.lower.schedule import with_least_memory

PENALTIES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
"""Weights tried for large values: what a value as large as the whole peak costs, in multiples of the cheapest program."""


@dataclass(frozen=True)
class Fitted:
    """The program chosen, and what the budget cost. ``peak_unconstrained_bytes``: of the cheapest program of all."""

    extraction: Extraction
    budget_bytes: int
    peak_unconstrained_bytes: int
    cost_unconstrained: float
    candidates: int

    def to_dict(self) -> dict[str, Any]:
        """As in docs/report.md, key ``memory_budget``."""
        return {
            "bytes": self.budget_bytes,
            "peak_unconstrained_bytes": self.peak_unconstrained_bytes,
            "cost_unconstrained": self.cost_unconstrained,
            "candidates": self.candidates,
        }


def within_budget(saturated: Saturated, cheapest: Extraction, budget_bytes: int, *, effort: Effort) -> Fitted:
    """The cheapest candidate whose peak is at most ``budget_bytes``.

    Candidates are the cheapest program, the same with its kernels reordered, and programs extracted with a price on large
    values, reordered. The lower bound of the cheapest program holds for every one of them. Raises `MemoryBudgetError` if
    none fits; that does not prove that no program in the e-graph does.
    """
    unconstrained = peak_bytes(cheapest)
    least = unconstrained
    found: Extraction | None = cheapest if unconstrained <= budget_bytes else None
    count = 1
    if found is None:
        for candidate in _candidates(saturated, cheapest, unconstrained, effort):
            count += 1
            peak = peak_bytes(candidate)
            least = min(least, peak)
            if peak <= budget_bytes and (found is None or candidate.selection.cost < found.selection.cost):
                found = candidate
            if found is not None and found.selection.cost <= cheapest.selection.cost:
                break
    if found is None:
        raise MemoryBudgetError(
            f"no program was found whose peak memory is at most {budget_bytes} bytes: the best of {count} candidates needs "
            f"{least}, {least - budget_bytes} too many; raise the budget to {least} to get it"
        )
    return Fitted(found, budget_bytes, unconstrained, cheapest.selection.cost, count)


def peak_bytes(extraction: Extraction) -> int:
    """Peak memory of the program that was extracted."""
    return peak_memory_bytes(extraction.program.graph, extraction.program.kernels)


def _candidates(saturated: Saturated, cheapest: Extraction, scale_bytes: int, effort: Effort) -> Iterator[Extraction]:
    yield replace(cheapest, program=with_least_memory(cheapest.program))
    selection = cheapest.selection
    for number, penalty in enumerate(PENALTIES):
        if effort.over():
            return
        dear = LargeValueModel(cheapest.model, penalty * selection.cost, scale_bytes)
        share = effort.part(1 / (len(PENALTIES) - number))
        candidate = extract_program(saturated, cheapest.target, dear, effort=share)
        cost = price_works(kernel_works(candidate.program, cheapest.target), cheapest.target, cheapest.model)
        fitted = cheapest.with_choice_of(candidate, cost)
        yield replace(fitted, program=with_least_memory(fitted.program))
