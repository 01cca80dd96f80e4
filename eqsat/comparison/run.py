"""`compare`: one load, one saturation for each scope of rules, one extraction for each target and cost model."""

import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Unpack

from eqsat.comparison.differences import agreement, difference
from eqsat.comparison.table import Comparison, Measures, Row, measure
from eqsat.cost.custom import CostFunction, as_cost_model
from eqsat.cost.model import CostModel, Rates
from eqsat.cost.target import Target, as_target
from eqsat.errors import OptionError
from eqsat.extraction import ChosenKernel, Extraction, extract_program
from eqsat.frontends import load
from eqsat.fusion import kernel_works, price_works
from eqsat.growth import Growth, Progress, RuleScope, collector_off, grow, rule_scope, watched
from eqsat.ir.nominal import assumed_sizes, assuming
from eqsat.ir.types import is_sequence
from eqsat.options import Options, SharedOptions, takes_options
from eqsat.pipeline import result_of

COST_MODELS = ("kernels", "bytes", "roofline", "roofline-launch")
"""The cost models compared unless others are asked for."""


@takes_options(SharedOptions)
def compare(
    source: Any,
    *,
    cost: Sequence[str | CostModel | CostFunction | Rates] = COST_MODELS,
    target: Sequence[str | Target] = ("onnxruntime-cpu",),
    progress: Progress | None = None,
    **options: Unpack[SharedOptions],
) -> Comparison:
    """Extracts a program for each target and cost model from one saturated e-graph and compares the programs.

    ``cost``: names, cost models or functions of a kernel's `Work`; ``target``: names or targets. A program found for one cost
    model counts for all of the same target, and of targets that have all its kernels: each row holds the cheapest of them under
    its model. Nothing is verified. Raises `ModelError` and `OptionError` for bad input.
    """
    started = time.perf_counter()
    chosen = comparison_options(options)
    models, targets = _distinct(cost, target, chosen)
    with collector_off():
        growths = Growths(source, chosen, progress)
    with collector_off(), assuming(assumed_sizes(growths.graph, chosen.assume)):
        growth = {name: growths.of(found) for name, found in targets.items()}
        cells = [(t, m) for t in targets.values() for m in models.values()]
        extractions: dict[tuple[str, str], Extraction] = {}
        for machine, model in cells:
            growths.notify("extract", f"{machine.name}, {model.name}")
            found = extract_program(growth[machine.name].saturated, machine, model, effort=chosen.effort())
            extractions[machine.name, model.name] = found
        growths.notify("measure", "")
        known_of = dict(extractions)
        for name, machine in targets.items():
            lent = [n for n, t in targets.items() if growth[n] is growth[name] and machine.has_kernels_of(t)]
            extractions |= _best_of_all(machine, {cell: found for cell, found in known_of.items() if cell[0] in lent})
        rows: list[Row] = []
        known: dict[tuple[str, frozenset[ChosenKernel]], Measures] = {}
        for machine, model in cells:
            found = extractions[machine.name, model.name]
            result = result_of(source, chosen, growths.graph, growth[machine.name], found)
            key = (machine.name, found.kernels)
            measures = known[key] = known.get(key) or measure(found.program, machine, list(models.values()))
            rows.append(Row(machine.name, model.name, measures, result))
        prices = {name: [row.measures.prices for row in rows if row.target == name] for name in targets}
        pairs = list(combinations(models, 2))
        differences = {
            name: tuple(difference(grown.saturated, extractions[name, a], extractions[name, b]) for a, b in pairs)
            for name, grown in growth.items()
        }
    return Comparison(
        rows[0].result.report.model,
        tuple(targets),
        {model.name: model.unit for model in models.values()},
        tuple(growths.summaries()),
        tuple(rows),
        {name: agreement(found, list(models)) for name, found in prices.items()},
        differences,
        {"load": growths.load_seconds, "total": time.perf_counter() - started},
    )


def _distinct(
    cost: Sequence[str | CostModel | CostFunction | Rates], target: Sequence[str | Target], chosen: Options
) -> tuple[dict[str, CostModel], dict[str, Target]]:
    """Cost models and targets by name. Raises `OptionError` where two have the same."""
    models = {model.name: model for model in map(as_cost_model, _several("cost", cost))}
    if len(models) < len(cost):
        raise OptionError(
            "two cost models have the same name; name each once, and give each function a name of its own"
        )
    targets = {t.name: t for t in map(chosen.restricted, map(as_target, _several("target", target)))}
    if len(targets) < len(target):
        raise OptionError("two targets have the same name; name each once")
    return models, targets


def _best_of_all(target: Target, found: Mapping[tuple[str, str], Extraction]) -> dict[tuple[str, str], Extraction]:
    """For each cost model the cheapest of the programs ``found`` for targets and cost models: where a limit stopped the search
    for one, the program found for another may be better."""
    works = {cell: kernel_works(extraction.program, target) for cell, extraction in found.items()}
    best: dict[tuple[str, str], Extraction] = {}
    for own, extraction in found.items():
        if own[0] != target.name:
            continue
        prices = {cell: price_works(works[cell], target, extraction.model) for cell in found}
        cheapest = min(found, key=lambda cell: prices[cell])
        better = prices[cheapest] < extraction.selection.cost * (1 - 1e-9)
        best[own] = extraction.with_choice_of(found[cheapest], prices[cheapest]) if better else extraction
    return best


def _several(what: str, given: Sequence[Any]) -> Sequence[Any]:
    if isinstance(given, str) or not is_sequence(given) or not given:
        raise OptionError(f"{what} is {given!r}; expected a list with at least one entry")
    return given


def comparison_options(given: Mapping[str, Any]) -> Options:
    """Options of a run that extracts many programs. Raises `OptionError` for those that only make sense for one."""
    for name in ("memory_budget_bytes", "verify", "feeds"):
        if name in given:
            raise OptionError(f"{name} is an option of optimize only: a comparison neither verifies nor keeps a budget")
    return Options.of({"form": "flat", **given, "verify": False})


class Growths:
    """One model, loaded once, and saturated once for each scope of rules that the targets have."""

    def __init__(self, source: Any, options: Options, progress: Progress | None) -> None:
        self.notify = watched(progress)
        self.notify("load", "")
        start = time.perf_counter()
        graph = load(source, **options.reading)
        self.graph = options.limited(graph) if options.limits_file else graph
        self.load_seconds = time.perf_counter() - start
        self._options = options
        self._known: dict[RuleScope, tuple[list[str], Growth]] = {}

    def of(self, target: Target) -> Growth:
        """The e-graph for a target."""
        scope = rule_scope([target], self._options.file_form)
        if scope not in self._known:
            self._known[scope] = [], grow(self.graph, self._options, scope, self.notify)
        names, growth = self._known[scope]
        names.append(target.name)
        return growth

    def summaries(self) -> list[dict[str, Any]]:
        """Targets, size, stop reason and seconds of each e-graph."""
        return [
            {
                "targets": names,
                "domains": sorted(scope.domains),
                "eclasses": growth.saturated.encoding.egraph.class_count,
                "enodes": growth.saturated.snapshot.size,
                "stop_reason": growth.saturation.stop_reason.value,
                "seconds": sum(growth.seconds.values()),
            }
            for scope, (names, growth) in self._known.items()
        ]
