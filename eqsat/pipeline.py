"""`optimize`: the one place that knows the order of the stages."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eqsat.cost.model import CostModel, find_cost_model
from eqsat.cost.target import Target, load_target
from eqsat.egraph.encode import Encoding, encode
from eqsat.egraph.known import FOLD_EXACT, FOLD_INEXACT
from eqsat.egraph.saturate import Limits, Saturation, saturate
from eqsat.egraph.snapshot import Snapshot, take_snapshot
from eqsat.errors import OptionError, OutputError, VerificationError
from eqsat.exactness import Exactness
from eqsat.ir.composite import OWN_DOMAIN
from eqsat.ir.graph import Graph
from eqsat.ir.operator import Kind, kind_of, split_key
from eqsat.lower.liveness import peak_memory_bytes
from eqsat.lower.lowering import lower
from eqsat.lower.program import Program
from eqsat.lower.selection import select
from eqsat.report import Report, opaque_counts, recognized_structures
from eqsat.rewrite import AnyRule, Rule, select_rules

if TYPE_CHECKING:
    from eqsat.placement import Machine, PlacedExtraction

Progress = Callable[[str, str], None]
"""Called with (stage, detail) as the work proceeds."""


@dataclass(frozen=True)
class Options:
    """How to optimise. The defaults are those of the command line.

    ``numerics``: weakest exactness class a rule may have. ``only_rules``/``disabled_rules``: names of rules. ``keep``: values
    of the original that the result must still compute under their own names. ``time_limit_s``, ``node_limit``,
    ``memory_limit_bytes`` bound saturation; reaching one is reported, not raised. ``feeds``: inputs to verify on instead of
    random ones, each a mapping or an ``.npz`` file. ``form``: of the file to be written, which decides the operators that the
    program may use; saved in another form, fused operators are spelled out. ``devices``: device of nodes, values and inputs by
    name, ``"*"`` for all other nodes (docs/placement.md); ``machine``: the devices there are, with targets of their own,
    by default the host with ``target`` and one accelerator. ``keep_egraph``: the result holds the
    saturated e-graph, for `eqsat.why`.
    """

    target: str | Target = "onnxruntime-cpu"
    cost: str | CostModel = "kernels"
    numerics: str = "lsb"
    dims: Mapping[str, int] = field(default_factory=dict)
    time_limit_s: float = 30.0
    node_limit: int = 200_000
    memory_limit_bytes: int | None = None
    only_rules: Sequence[str] | None = None
    disabled_rules: Sequence[str] = ()
    keep: Sequence[str] = ()
    seed: int = 0
    verify: bool = True
    verification_runs: int = 2
    feeds: Sequence[Mapping[str, np.ndarray] | str | Path] | None = None
    form: str = "flat"
    devices: Mapping[str, str] = field(default_factory=dict)
    machine: Machine | str | Path | None = None
    keep_egraph: bool = False

    def check(self) -> None:
        """Raises `OptionError` for a value out of range."""
        for name in ("time_limit_s", "node_limit", "memory_limit_bytes", "verification_runs"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise OptionError(f"{name} is {value}; it must be positive")
        check_form(self.form)


@dataclass
class Result:
    """An optimised model: the program, the report, and how to save it."""

    original: Graph
    program: Program
    report: Report
    form: str = "flat"
    encoding: Encoding | None = None
    rules: Sequence[AnyRule] = ()

    def save(self, path: str | Path, *, form: str | None = None) -> None:
        """Writes the program as ONNX, atomically, in the form it was optimised for unless another is given.

        Raises `OutputError` if that cannot be done.
        """
        from eqsat.backends.onnx_file import save_onnx

        form = form or self.form
        check_form(form)
        with _timed(self.report.seconds, "save"), _without_collector():
            save_onnx(self.program.graph, path, form=form)

    def __repr__(self) -> str:
        return str(self.report)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def check_form(form: str) -> None:
    """Raises `OptionError` for a form of output that does not exist."""
    from eqsat.backends.onnx_form import FORMS

    if form not in FORMS:
        raise OptionError(f"form {form!r} is not available; choose one of {', '.join(FORMS)}")


def load(source: Any, dims: Mapping[str, int] | None = None) -> Graph:
    """A graph from a path, an ``onnx.ModelProto``, an ``onnx_ir.Model`` or a `Graph`."""
    if isinstance(source, Graph):
        return source
    from eqsat.frontends.onnx_model import load_onnx

    return load_onnx(source, dims=dims)


def optimize(source: Any, *, progress: Progress | None = None, **options: Any) -> Result:
    """Optimises a model: loads it, saturates, extracts the cheapest program, lowers and verifies it.

    ``source`` is a path, an ``onnx.ModelProto``, an ``onnx_ir.Model`` or an `eqsat.Graph`; ``options`` are those of
    `Options`. Raises `ModelError` and `OptionError` for bad input and `VerificationError` when the result computes
    something else than the original (a bug in a rule; nothing is written then).
    """
    chosen = Options(**options)
    chosen.check()
    target = load_target(chosen.target) if isinstance(chosen.target, str) else chosen.target
    model = find_cost_model(chosen.cost) if isinstance(chosen.cost, str) else chosen.cost
    numerics = Exactness.parse(chosen.numerics)
    import eqsat.rules  # noqa: F401  # registers the shipped rules

    notify = progress or (lambda stage, detail: None)
    seconds: dict[str, float] = {}
    with _without_collector():
        with _timed(seconds, "load"):
            notify("load", "")
            graph = load(source, chosen.dims)
            machine = _machine(chosen, graph)
        targets = [target] if machine is None else [machine.target(d) for d in machine.names]
        domains = _domains(targets, chosen.form)
        rules = select_rules(
            numerics,
            only=chosen.only_rules,
            disabled=chosen.disabled_rules,
            domains=domains,
            unsupported=frozenset().union(*(t.unsupported for t in targets)),
        )
        with _timed(seconds, "encode"):
            kept = _keeping(graph, chosen.keep)
            annotated = None
            if machine is not None:
                from eqsat.placement import annotate

                annotated = annotate(kept, chosen.devices, machine)
            encoding = encode(annotated.graph if annotated else kept, fold_inexact=numerics >= Exactness.ROUNDING)
        with _timed(seconds, "saturate"):
            notify("saturate", "")
            limits = Limits(chosen.time_limit_s, chosen.node_limit, memory_bytes=chosen.memory_limit_bytes)
            saturation = saturate(
                encoding.egraph, rules, limits, lambda i, n: notify("saturate", f"iteration {i}, {n} e-nodes")
            )
        with _timed(seconds, "analyse"):
            snapshot = take_snapshot(encoding.egraph)
        with _timed(seconds, "extract"):
            notify("extract", f"{snapshot.size} e-nodes")
            parts = (_classes(rules), chosen.time_limit_s)
            if machine is None or annotated is None:
                extraction = _Extraction(encoding, snapshot, model, target, *parts)
            else:
                from eqsat.placement import PlacedExtraction

                extraction = PlacedExtraction(encoding, snapshot, annotated, machine, model, *parts)
            expanded = target.expanded if machine is None else frozenset[str]()
            extraction.select(_writable_operators(graph, domains, expanded))
        with _timed(seconds, "lower"):
            notify("lower", "")
            program = extraction.lower()
            if not _can_be_written(program.graph, chosen.form):
                extraction.select(lambda op: False)
                program = extraction.lower()
    report = _report(source, chosen, model, graph, encoding, saturation, extraction, program, snapshot.size, rules)
    if not isinstance(extraction, _Extraction):
        report.placement = extraction.summary(program)
        report.target = ", ".join(f"{d}: {e['target']}" for d, e in report.placement["devices"].items())
    report.seconds = seconds
    result = Result(kept, program, report, chosen.form, encoding if chosen.keep_egraph else None, rules)
    if chosen.verify:
        with _timed(seconds, "verify"):
            notify("verify", "")
            _verify(result, source, chosen, {r.name: r.quanta for r in rules if isinstance(r, Rule) and r.quanta})
    return result


@dataclass
class _Extraction:
    """Choosing the program: operator by operator, or together with its kernels where the target has kernels of several."""

    encoding: Encoding
    snapshot: Snapshot
    model: CostModel
    target: Target
    exactness: Mapping[str, Exactness]
    time_limit_s: float
    bound_scope: str = "e-graph"

    def select(self, writable: Callable[[str], bool]) -> None:
        """Makes the choice, among operators that the file to be written may use."""
        parts = (self.encoding, self.snapshot, self.model, self.target)
        if self.target.templates:
            from eqsat.fusion import select_joint

            self.joint = select_joint(*parts, time_limit_s=self.time_limit_s, writable=writable)
            self.selection, self.bound_scope = self.joint.selection, self.joint.bound_scope
        else:
            self.joint = None
            self.selection = select(*parts, time_limit_s=self.time_limit_s, writable=writable)

    def lower(self) -> Program:
        """The program that was chosen."""
        if self.joint is None:
            return lower(self.encoding, self.snapshot, self.selection, self.exactness)
        from eqsat.fusion import program_of

        return program_of(self.encoding, self.snapshot, self.joint, self.exactness)


def _machine(options: Options, graph: Graph) -> Machine | None:
    """The machine to place on; ``None`` if neither the options nor the model name devices."""
    if options.machine is None and not options.devices and not graph.devices:
        return None
    from eqsat.placement import default_machine, read_machine

    if options.machine is None:
        return default_machine(options.target)
    return read_machine(options.machine) if isinstance(options.machine, str | Path) else options.machine


def _domains(targets: Iterable[Target], form: str) -> frozenset[str]:
    """Domains beside the default one whose operators the program may use: a target must have kernels for them, and the
    file must be allowed to name or able to spell them out."""
    from eqsat.backends.onnx_form import FORMS

    return frozenset().union(*(t.domains for t in targets)) & (FORMS[form][1] | {OWN_DOMAIN})


def _writable_operators(graph: Graph, domains: frozenset[str], expanded: frozenset[str]) -> Callable[[str], bool]:
    """Which operators a file like the one ``graph`` came from may use: those of its opset, newer ones as far as the opset
    can be raised, which is found out only when one is met, and those of ``domains``; none of ``expanded``, which the target
    would spell out again."""
    from eqsat.backends.onnx_form import can_be_raised
    from eqsat.ir.versions import first_version

    def writable(key: str) -> bool:
        if key in expanded:
            return False
        domain, op = split_key(key)
        return domain in domains if domain else can_be_raised(graph, first_version(op))

    return cache(writable)


def _can_be_written(graph: Graph, form: str) -> bool:
    """Whether opaque nodes, valid at one opset only, leave the rest of the graph an opset to be written at."""
    from eqsat.backends.onnx_form import choose_form, in_form

    if any(node.opaque or node.domain for node in graph.nodes):
        try:
            choose_form(in_form(graph, form))
        except OutputError:
            return False
    return True


def _keeping(graph: Graph, keep: Sequence[str]) -> Graph:
    """The graph with the values in ``keep`` as additional outputs."""
    from dataclasses import replace

    defined = graph.producers()
    for name in keep:
        if name not in defined and name not in graph.inputs:
            raise OptionError(f"value {name!r} to keep does not exist in the model")
    extra = tuple(n for n in dict.fromkeys(keep) if n not in graph.outputs)
    return replace(graph, outputs=graph.outputs + extra) if extra else graph


def _classes(rules: Sequence[AnyRule]) -> dict[str, Exactness]:
    classes = {r.name: r.exactness for r in rules}
    return {**classes, FOLD_EXACT: Exactness.EXACT, FOLD_INEXACT: Exactness.ROUNDING}


def _report(
    source: Any,
    options: Options,
    model: CostModel,
    graph: Graph,
    encoding: Encoding,
    saturation: Saturation,
    extraction: _Extraction | PlacedExtraction,
    program: Program,
    enodes: int,
    rules: Sequence[AnyRule],
) -> Report:
    templates: dict[str, int] = {}
    for kernel in program.kernels:
        templates[kernel.template] = templates.get(kernel.template, 0) + 1
    uses: dict[str, int] = {}
    for kernel in program.kernels:
        for name in kernel.rules:
            uses[name] = uses.get(name, 0) + 1
    matches = dict(saturation.matches)
    for name in (FOLD_EXACT, FOLD_INEXACT):
        matches[name] = sum(u.rule == name for u in encoding.egraph.unions)
    name = str(source) if isinstance(source, str | Path) else graph.name
    return Report(
        model=name,
        target=options.target if isinstance(options.target, str) else options.target.name,
        cost_model=model.name,
        numerics=options.numerics,
        exactness=program.exactness.label,
        operators_before=graph.operator_counts(),
        operators_after=program.graph.operator_counts(),
        kernels_before=sum(kind_of(n) is not Kind.VIEW for n in graph.nodes),
        kernels_after=program.kernel_count,
        kernel_templates=dict(sorted(templates.items())),
        recognized=recognized_structures(program.graph),
        cost_unit=model.unit,
        cost_before=extraction.selection.cost_before,
        cost_after=extraction.selection.cost,
        lower_bound=extraction.selection.lower_bound,
        gap=extraction.selection.gap,
        bound_scope=extraction.bound_scope,
        peak_memory_bytes=peak_memory_bytes(program.graph),
        opaque=opaque_counts(program.graph),
        eclasses=encoding.egraph.class_count,
        enodes=enodes,
        iterations=saturation.iterations,
        stop_reason=saturation.stop_reason.value,
        rules={n: {"matches": m, "uses": uses.get(n, 0)} for n, m in sorted(matches.items())},
        unverified_rules=sorted(r.name for r in rules if r.unverified and matches[r.name]),
    )


def _verify(result: Result, source: Any, options: Options, quanta: Mapping[str, int]) -> None:
    import onnx

    from eqsat.verify import load_feeds, verify_program

    runnable = source if isinstance(source, str | Path | onnx.ModelProto) and not options.keep else None
    feeds = options.feeds
    if feeds is not None:
        graph = result.original
        feeds = [load_feeds(f, graph) if isinstance(f, str | Path) else f for f in feeds]
    verification = verify_program(
        result.original,
        result.program,
        original_source=runnable,
        result_source=None,
        runs=options.verification_runs,
        seed=options.seed,
        feeds=feeds,
        quanta=quanta,
    )
    result.report.verification = verification.to_dict()
    if verification.verdict == "failed":
        raise VerificationError("; ".join(verification.failures))


@contextmanager
def _without_collector() -> Iterator[None]:
    """Switches the cyclic garbage collector off: the stages allocate many small objects and next to no cycles, and the
    collector would walk all of them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start
