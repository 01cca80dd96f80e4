"""`optimize`: the one place that knows the order of the stages."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from eqsat.backends.onnx_needs import check_readable, needs_of, withheld_operators
from eqsat.bodies import Bodies, Optimise, judged, optimize_bodies
from eqsat.budget import within_budget
from eqsat.cost.model import find_cost_model
from eqsat.cost.timings import default_table
from eqsat.egraph.known import FOLD_EXACT, FOLD_INEXACT
from eqsat.egraph.unfused import why_unfused
from eqsat.errors import FailedRuleError, LeftOutWarning, OptionError, VerificationError
from eqsat.extract import WorkDone
from eqsat.extraction import Extraction, extract_program
from eqsat.frontends import load, resolve
from eqsat.frontends.onnx.envelope import envelope_of
from eqsat.fusion import operator_works, price_works
from eqsat.growth import Growth, Progress, collector_off, grow, keeping, rule_scope, timed, watched
from eqsat.ir.graph import Graph
from eqsat.ir.nominal import assuming, sizes_within
from eqsat.ir.operator import Kind, kind_of
from eqsat.lower.liveness import peak_memory_bytes
from eqsat.lower.program import Program
from eqsat.lower.selection import input_types
from eqsat.options import AllOptions, Options, takes_options
from eqsat.ranges import Entry, best_over_sizes
from eqsat.rehearsal import Rehearsal, grow_rehearsed
from eqsat.report import Report, constant_bytes, opaque_counts, recognized_structures, subnormal_part
from eqsat.result import Result
from eqsat.suspects import Suspects, failed, suspects

if TYPE_CHECKING:
    from eqsat.placement import Machine
    from eqsat.verification import Verification


@takes_options(AllOptions)
@collector_off()
def optimize(source: Any, *, progress: Progress | None = None, **options: Unpack[AllOptions]) -> Result:
    """Optimises a model: loads it, saturates, extracts the cheapest program, lowers and verifies it.

    ``source`` is a path, an ``onnx.ModelProto``, an ``onnx_ir.Model``, an `eqsat.Graph` or, of PyTorch, a module in evaluation
    mode with ``example_inputs``, an exported program or an ``ONNXProgram``, or what another front end reads
    (`eqsat.frontends`). ``progress`` is called with (stage, detail) as the
    work proceeds. A result that computes something else than the original (a bug in a rule) is not returned: the model is
    optimised again without what may be wrong, which a `LeftOutWarning` and the report say. Raises `ModelError` and
    `OptionError` for bad input, `VerificationError` when that does not help, and `MemoryBudgetError` when no program was
    found that fits in ``memory_budget_bytes``.
    """
    chosen = Options.of(options)
    notify = watched(progress)
    seconds: dict[str, float] = {}
    with timed(seconds, "load"):
        notify("load", "")
        source = resolve(source, **chosen.reading)
        graph = chosen.limited(
            source if isinstance(source, Graph) else load(source, chosen.dims, no_overrides=chosen.no_overrides)
        )
        machine = _machine(chosen, graph)
        if machine is not None:
            chosen = replace(chosen, machine=machine)  # the model may name the devices
    left_out: list[Suspects] = []
    while True:
        attempt, start = len(left_out) + 1, time.perf_counter()
        try:
            result = _attempt(source, graph, chosen, machine, notify, seconds)
        except FailedRuleError as error:
            failure, wrong = error, failed(error, chosen, attempt)
        else:
            found = _verify(result, source, chosen, notify) if chosen.verification != "none" else None
            if found is None or found.verdict != "failed":
                result.report.left_out += [wrong.to_dict() for wrong in left_out]
                return result
            failure, wrong = VerificationError("; ".join(found.failures)), suspects(result, found, chosen, attempt)
        if wrong is None:
            raise failure
        warnings.warn(f"{graph.name}: optimised again without {wrong}", LeftOutWarning, stacklevel=3)
        left_out.append(wrong)
        chosen = wrong.left_out_of(chosen)
        in_vain = seconds.get("in_vain", 0.0) + time.perf_counter() - start
        seconds = {"load": seconds["load"], "in_vain": in_vain}


def _attempt(
    source: Any, graph: Graph, chosen: Options, machine: Machine | None, notify: Progress, seconds: dict[str, float]
) -> Result:
    """The result, not verified."""
    sizes = sizes_within(graph, chosen.assume)
    with assuming(sizes[-1]):
        result = _optimized(source, graph, chosen, machine, sizes, notify, seconds)
    result.report.assumed = {s: n for s, n in sizes[-1].items() if all(size[s] == n for size in sizes)}
    result.report.seconds = seconds
    return result


def _optimized(
    source: Any,
    graph: Graph,
    chosen: Options,
    machine: Machine | None,
    sizes: Sequence[Mapping[str, int]],
    notify: Progress,
    seconds: dict[str, float],
) -> Result:
    model = chosen.cost_model
    inner, bodies = graph, Bodies()
    if machine is None and any(node.attributes.bodies for node in graph.nodes):
        with timed(seconds, "bodies"):
            inner, bodies = optimize_bodies(graph, chosen, _optimize_body(notify))
    targets = [chosen.program_target] if machine is None else [machine.target(d) for d in machine.names]
    scope, rehearsal = rule_scope(targets, chosen.file_form), Rehearsal()
    if len(sizes) == 1 and chosen.rehearses:
        growth, rehearsal = grow_rehearsed(
            inner, chosen, scope, notify, lambda part: _cheapest(part, chosen, WorkDone())
        )
    else:
        growth = grow(inner, chosen, scope, notify, machine)
    seconds.update(growth.seconds)
    notify("extract", f"{growth.saturated.snapshot.size} e-nodes")
    effort = chosen.effort()
    priced: list[Entry] = []
    if len(sizes) > 1:
        extraction, priced = best_over_sizes(sizes, lambda: _cheapest(growth, chosen, effort.work, at_limit=True))
    elif machine is None or growth.annotated is None:
        extraction = _cheapest(growth, chosen, effort.work)
    else:
        from eqsat.placement import extract_placed

        extraction = extract_placed(growth.saturated, growth.annotated, machine, model, effort=effort)
    seconds.update(extraction.seconds)
    memory: dict[str, Any] = {}
    if chosen.memory_budget_bytes is not None:
        with timed(seconds, "memory"):
            notify("memory", "")
            again = chosen.effort(effort.work)
            fitted = within_budget(growth.saturated, extraction, chosen.memory_budget_bytes, effort=again)
            extraction, memory = fitted.extraction, fitted.to_dict()
    result = result_of(source, chosen, graph, growth, extraction)
    result.original, result.program = keeping(graph, chosen.keep), judged(result.program, bodies)
    check_readable(result.program.graph, chosen.file_form, chosen.reader)
    result.report.exactness = result.program.exactness.label
    result.report.add_bodies(bodies.to_dict(), bodies.rules)
    result.report.left_out += bodies.left_out
    result.report.withheld = dict(sorted((bodies.withheld | result.report.withheld).items()))
    result.report.memory_budget, result.report.sizes = memory, priced
    result.report.rehearsal = rehearsal.to_dict()
    if rehearsal.work:
        result.report.work["rehearsal"] = rehearsal.work
    return result


def _cheapest(growth: Growth, chosen: Options, work: WorkDone, *, at_limit: bool = False) -> Extraction:
    """The cheapest program; with ``at_limit``, or where the opset was limited, of none newer than the file may have."""
    again = None if at_limit or chosen.limits_file else chosen.effort(work)
    parts = (growth.saturated, chosen.program_target, chosen.cost_model)
    return extract_program(*parts, effort=chosen.effort(work), again=again)


def _optimize_body(notify: Progress) -> Optimise:
    def optimise(graph: Graph, options: Options) -> tuple[Program, Report]:
        notify("bodies", graph.name)
        asked: dict[str, Any] = vars(options)
        result = optimize(graph, **asked)
        return result.program, result.report

    return optimise


def _machine(options: Options, graph: Graph) -> Machine | None:
    """The machine to place on; ``None`` if neither the options nor the model name devices."""
    if options.machine is None and not options.devices and not graph.devices:
        return None
    from eqsat.placement import Machine, default_machine, read_machine

    machine: Any = options.machine
    if machine is None:
        return default_machine(options.program_target)
    if isinstance(machine, str | Path):
        return read_machine(machine)
    if not isinstance(machine, Machine):
        raise OptionError(f"machine is {machine!r}; expected a Machine, or the path of a file that describes one")
    return machine


def result_of(source: Any, options: Options, graph: Graph, growth: Growth, extraction: Extraction) -> Result:
    """The result, not verified, for one of the programs extracted from ``growth``; ``graph`` is what was loaded."""
    report = _report(source, options, graph, growth, extraction)
    report.seconds = {**growth.seconds, **extraction.seconds}
    encoding = growth.saturated.encoding if options.keep_egraph else None
    return Result(growth.kept, extraction.program, report, options.file_form, encoding, growth.rules)


def _missed(growth: Growth, extraction: Extraction) -> dict[str, dict[str, int]]:
    egraph, writable = growth.saturated.encoding.egraph, growth.saturated.writable(extraction.target.expanded)
    chosen = {h for _, handles in extraction.kernels for h in handles}

    def may_have(enode: int) -> bool:
        node = egraph.nodes[enode]
        return writable(node.key, input_types(egraph, enode)) or (extraction.of_any_opset and not node.domain)

    return why_unfused(egraph, growth.rules, chosen, may_have, growth.in_vain)


def _report(source: Any, options: Options, graph: Graph, growth: Growth, extraction: Extraction) -> Report:
    program, selection, model = extraction.program, extraction.selection, extraction.model
    saturation, egraph = growth.saturation, growth.saturated.encoding.egraph
    templates = Counter(kernel.template for kernel in program.kernels)
    uses = Counter(program.constant_rules)
    for kernel in program.kernels:
        uses.update(kernel.rules)
    matches = dict(saturation.matches)
    for name in (FOLD_EXACT, FOLD_INEXACT):
        matches[name] = sum(u.rule == name for u in egraph.unions)
    name = str(source) if isinstance(source, str | Path) else graph.name
    kernels = sum(kind_of(n) is not Kind.VIEW for n in graph.nodes)
    before, after = _predicted(graph, extraction)
    return Report(
        model=name,
        target=extraction.target_name,
        cost_model=model.name,
        numerics=options.numerics,
        exactness=program.exactness.label,
        operators_before=graph.operator_counts(),
        operators_after=program.graph.operator_counts(),
        kernels_before=kernels,
        launches_before=extraction.launches_before or kernels,
        kernels_after=program.kernel_count,
        kernel_templates=dict(sorted(templates.items())),
        recognized=recognized_structures(program.graph),
        missed=_missed(growth, extraction),
        cost_unit=model.unit,
        cost_before=selection.cost_before,
        cost_after=selection.cost,
        lower_bound=selection.lower_bound,
        gap=selection.gap,
        bound_scope=extraction.bound_scope,
        peak_memory_bytes=peak_memory_bytes(program.graph, program.kernels),
        constant_bytes_before=constant_bytes(graph),
        constant_bytes_after=constant_bytes(program.graph),
        needs=needs_of(program.graph, graph, options.file_form),
        withheld={} if extraction.passed_opset else withheld_operators(graph, egraph.made_by_rules()),
        passed_opset=extraction.passed_opset,
        counted_only=bool(extraction.target.templates) and not extraction.placement,
        opaque=opaque_counts(program.graph),
        overridable=len(envelope_of(graph).defaults),
        subnormal=subnormal_part(graph),
        eclasses=egraph.class_count,
        enodes=growth.saturated.snapshot.size,
        iterations=saturation.iterations,
        stop_reason=saturation.stop_reason.value,
        rules={n: {"matches": m, "uses": uses[n]} for n, m in sorted(matches.items()) if m},
        placement=extraction.placement,
        predicted_s_before=before,
        predicted_s_after=after,
        work={"saturation": saturation.work, "extraction": vars(extraction.work)},
        unverified_rules=sorted(r.name for r in growth.rules if r.unverified and matches[r.name]),
    )


def _predicted(graph: Graph, extraction: Extraction) -> tuple[float | None, float | None]:
    """Seconds of the original and the program by timings of their kernels; ``None`` where there are no timings of the target."""
    target, model = extraction.target, extraction.model
    if target.templates or extraction.placement or default_table(target.name) is None:
        return None, None
    if not model.name.startswith("measured"):
        model = find_cost_model("measured")
    before, after = (operator_works(g, target) for g in (graph, extraction.program.graph))
    return price_works(before, target, model), price_works(after, target, model)


def _verify(result: Result, source: Any, options: Options, notify: Progress) -> Verification:
    """What was found, which the report says, too."""
    from eqsat.verification import verify_program
    from eqsat.verification.original import runnable

    with timed(result.report.seconds, "verify"):
        notify("verify", "")
        verification = verify_program(
            result.original,
            result.program,
            original_source=runnable(source),
            runs=options.verification_runs,
            seed=options.seed,
            feeds=options.feeds,
            quanta={rule.name: rule.quanta for rule in result.rules if rule.quanta},
            form=options.file_form,
            full=options.verification == "full",
            notify=lambda detail: notify("verify", detail),
        )
    result.report.verification = verification.to_dict()
    result.report.work["verification"] = {
        "runs": verification.runs,
        "kernels": verification.kernels_checked,
        "bytes": verification.bytes_compared,
    }
    return verification
