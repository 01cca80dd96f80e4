"""One program for several sizes of its symbols (``--assume seq=1..512``).

The e-graph is the same at all sizes, so each size has a cheapest program of its own. These are the candidates; chosen is the one
that costs least in sum, one call at each size: that is what users wait for, and steps of equal ratio give small sizes more weight
than they have among all. The largest regret, or the average of costs as parts of those of the original, would be decided by the
least size, where all programs take next to nothing: for a small BERT and 1 to 512 tokens by 0.1 ms at one token, against 1.6 ms
at 512. How much cheaper another program is at each size is reported; the bounds of all sizes together bound what any program
costs.
"""

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

    ``extract``: finds the cheapest program at the sizes assumed when it is called.
    """
    found: list[Extraction] = []
    for size in sizes:
        with assuming(size):
            found.append(extract())
    candidates: dict[frozenset[ChosenKernel], Extraction] = {}
    for extraction in found:
        candidates.setdefault(extraction.kernels, extraction)
    prices = [[_price(candidate, size) for size in sizes] for candidate in candidates.values()]
    best = min(range(len(prices)), key=lambda i: fmean(prices[i]))
    chosen = list(candidates.values())[best]
    cost = fmean(prices[best])
    bound = min(cost, fmean(extraction.selection.lower_bound for extraction in found))
    selection = replace(
        chosen.selection,
        cost=cost,
        cost_before=fmean(extraction.selection.cost_before for extraction in found),
        lower_bound=bound,
        method=f"{chosen.selection.method}, the best of {len(candidates)} over {len(sizes)} sizes",
    )
    seconds = {stage: sum(e.seconds[stage] for e in found) for stage in chosen.seconds}
    entries = [
        {
            "assumed": dict(size),
            "cost_before": found[i].selection.cost_before,
            "cost": prices[best][i],
            "least": min(costs[i] for costs in prices),
        }
        for i, size in enumerate(sizes)
    ]
    return replace(chosen, selection=selection, seconds=seconds), entries


def _price(extraction: Extraction, size: Mapping[str, int]) -> float:
    with assuming(size):
        return price_works(kernel_works(extraction.program, extraction.target), extraction.target, extraction.model)
