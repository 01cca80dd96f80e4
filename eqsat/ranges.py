"""One program for several sizes of its symbols (``--assume seq=1..512``).

The e-graph is the same at all sizes, so each size has a cheapest program of its own. These are the candidates; chosen is the one
that costs least on average, each size as a part of what the original costs there. A plain sum would be decided by the largest
size alone, and the largest regret by a size that hardly matters. How much cheaper another program is at each size is reported;
the bounds on all sizes together bound what any program costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from eqsat.extraction import ChosenKernel, Extraction
from eqsat.fusion import kernel_works, price_works
from eqsat.ir.nominal import assuming

Entry = dict[str, Any]
"""Of one size: ``assumed``, ``cost_before``, ``cost`` of the program and ``least`` cost of a candidate."""


def best_over_sizes(
    sizes: Sequence[Mapping[str, int]], extract: Callable[[], Extraction]
) -> tuple[Extraction, list[Entry]]:
    """The program to use at all ``sizes``, with its average cost, and what it costs at each.

    ``extract``: finds the cheapest program at the sizes assumed when it is called. Costs are scaled so that the original costs
    what it does on average.
    """
    found: list[Extraction] = []
    for size in sizes:
        with assuming(size):
            found.append(extract())
    candidates: dict[frozenset[ChosenKernel], Extraction] = {}
    for extraction in found:
        candidates.setdefault(extraction.kernels, extraction)
    before = [extraction.selection.cost_before for extraction in found]
    prices = [[_price(candidate, size) for size in sizes] for candidate in candidates.values()]
    parts = [fmean(p / b if b else 1.0 for p, b in zip(costs, before, strict=True)) for costs in prices]
    best = min(range(len(parts)), key=parts.__getitem__)
    chosen = list(candidates.values())[best]
    whole = fmean(before)
    cost = whole * parts[best]
    bounds = zip((extraction.selection.lower_bound for extraction in found), before, strict=True)
    bound = min(cost, whole * fmean(low / b if b else 1.0 for low, b in bounds))
    selection = replace(
        chosen.selection,
        cost=cost,
        cost_before=whole,
        lower_bound=bound,
        gap=(cost - bound) / cost if cost > bound else 0.0,
        method=f"{chosen.selection.method}, the best of {len(candidates)} over {len(sizes)} sizes",
    )
    seconds = {stage: sum(e.seconds[stage] for e in found) for stage in chosen.seconds}
    entries = [
        {
            "assumed": dict(size),
            "cost_before": before[i],
            "cost": prices[best][i],
            "least": min(costs[i] for costs in prices),
        }
        for i, size in enumerate(sizes)
    ]
    return replace(chosen, selection=selection, seconds=seconds), entries


def _price(extraction: Extraction, size: Mapping[str, int]) -> float:
    with assuming(size):
        return price_works(kernel_works(extraction.program, extraction.target), extraction.target, extraction.model)
