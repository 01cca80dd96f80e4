"""One saturated e-graph, any number of programs: the choice under a cost model on a target, and its lowering."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from eqsat.backends.consumer import Consumer, at_any_opset, find_consumer, most_opset, worth_an_opset
from eqsat.backends.onnx_needs import withheld_operators
from eqsat.cost.model import CostModel
from eqsat.cost.target import Target
from eqsat.egraph.encode import Encoding
from eqsat.egraph.snapshot import Snapshot
from eqsat.errors import OptionError, OutputError
from eqsat.exactness import Exactness
from eqsat.extract import DEFAULT_STEPS, Effort, ExtractionError, WorkDone
from eqsat.ir.graph import Graph
from eqsat.ir.operator import split_key
from eqsat.ir.types import DType, TensorType, Type
from eqsat.joint import NoKernelError, program_of, select_joint
from eqsat.lower.at_load import as_loaded, launches
from eqsat.lower.from_pairs import with_pairs_spelled
from eqsat.lower.lowering import lower
from eqsat.lower.paired_weights import with_weights_paired
from eqsat.lower.program import Program
from eqsat.lower.selection import Selection, Writable, select, work_of_enode

ChosenKernel = tuple[int, frozenset[int]]
"""Class that a kernel computes, and the handles of its e-nodes."""


@dataclass(frozen=True)
class Saturated:
    """A saturated e-graph with what extraction must know besides.

    ``exactness``: class of each rule by name. ``domains``: domains beside the default one whose operators the program may use,
    or single operators of one. ``form``: of the file to be written; ``reader``: what will read it, by default the installed
    ONNX Runtime.
    """

    encoding: Encoding
    snapshot: Snapshot
    exactness: Mapping[str, Exactness]
    domains: frozenset[str]
    form: str
    reader: Consumer | None = None
    _writable: dict[frozenset[str], Writable] = field(default_factory=dict[Any, Any], compare=False, repr=False)

    @property
    def fuses_slowly(self) -> frozenset[str]:
        """The operators that the reader, if it is named or the form is for it, had better not make of others."""
        reader = self.reader or find_consumer("onnxruntime")
        return reader.fuses_slowly if self.reader or self.form == reader.form else frozenset()

    def writable(self, expanded: Collection[str] = ()) -> Writable:
        """Which operators a file like the one the graph came from may use: those of its opset, newer ones as far as the
        opset can be raised, or lowered to where there is a kernel, which is found out only when one is met, and those of
        ``domains``, or that the graph itself has, which ONNX Runtime has kernels for, as operators on numbers of 8 bits and less
        need in any case, and on bfloat16 where those of the graph have; of all those what the reader takes, and of
        ``expanded``, which the target would spell out again, those that the graph itself has. Where another provider than the
        CPU's runs the program, the CPU need not have kernels for half precision. The same answer for the same question is the
        same function."""
        key = frozenset(expanded)
        if key not in self._writable:
            self._writable[key] = self._writable_but(key)
        return self._writable[key]

    def _writable_but(self, expanded: frozenset[str]) -> Writable:
        from eqsat.backends.onnx_form import may_hold, may_name
        from eqsat.backends.onnxruntime_kernels import CPU, DOMAIN, has_kernel, may_run, takes_narrow

        graph, domains = self.encoding.graph, self.domains
        reader = self.reader or find_consumer("onnxruntime")

        @cache
        def holds(op: str) -> bool:
            return may_hold(graph, op)

        @cache
        def runs() -> bool:
            """Whether every operator of the graph has a kernel, as few have for bfloat16."""
            typed = ((n.key, graph.operand_types(n)) for n in graph.nodes if not n.opaque)
            return all(may_run(key, types) for key, types in typed if _in_bfloat16(types))

        used = {node.key for node in graph.nodes if node.domain and may_name(node, graph, self.form)}
        unwanted = expanded - {node.key for node in graph.nodes}

        def writable(key: str, types: Sequence[Type | None]) -> bool:
            if key in unwanted or not reader.takes(key, types):
                return False
            domain, op = split_key(key)
            if not domain:
                found = takes_narrow(op, types) and (not _in_bfloat16(types) or not runs() or may_run(key, types))
                return found and holds(op)
            run = types if reader.provider == CPU else [_single(t) for t in types]
            return (domain in domains or key in domains or key in used) and (domain != DOMAIN or has_kernel(op, run))

        return writable


def _single(type: Type | None) -> Type | None:
    """Of half precision single precision, which the CPU computes in its place."""
    if isinstance(type, TensorType) and type.dtype is DType.FLOAT16:
        return replace(type, dtype=DType.FLOAT)
    return type


def _in_bfloat16(types: Sequence[Type | None]) -> bool:
    return any(isinstance(t, TensorType) and t.dtype is DType.BFLOAT16 for t in types)


@dataclass(frozen=True)
class Extraction:
    """A program, the choice it came from, and what the choice is worth under the cost model that made it.

    ``bound_scope``: what the lower bound of ``selection`` ranges over (docs/report.md). ``kernels``: the kernels chosen, views
    included; ``launches_before``: how many the original has, 0 if not known. ``seconds``: of the stages ``extract`` and
    ``lower``. ``placement``: where things are, on a machine of several devices (docs/report.md). ``work``: what the
    choice took. ``passed_opset``: where the program is of a newer opset than every supported release of ONNX Runtime loads, that
    opset and the ``cost`` of the best program there. ``of_any_opset``: whether it is the best of all opsets.
    """

    target: Target
    model: CostModel
    selection: Selection
    bound_scope: str
    kernels: frozenset[ChosenKernel]
    program: Program
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    placement: dict[str, Any] = field(default_factory=dict[str, Any])
    launches_before: int = 0
    work: WorkDone = field(default_factory=WorkDone)
    passed_opset: dict[str, float] = field(default_factory=dict[str, float])
    of_any_opset: bool = False

    @property
    def target_name(self) -> str:
        """The target, or those of all devices."""
        if not self.placement:
            return self.target.name
        return ", ".join(f"{device}: {entry['target']}" for device, entry in self.placement["devices"].items())

    def after(self, earlier: Extraction) -> Extraction:
        """The same, which took the seconds of an ``earlier`` attempt as well."""
        return replace(self, seconds={stage: s + earlier.seconds[stage] for stage, s in self.seconds.items()})

    def with_choice_of(self, other: Extraction, cost: float) -> Extraction:
        """The program of ``other``, which costs ``cost`` under this cost model, with what is known here: the price of the
        original, the bound and its scope, the seconds."""
        bound = min(self.selection.lower_bound, cost)
        place = "" if other.target == self.target else f"{other.target.name}, "
        selection = replace(
            self.selection,
            choice=other.selection.choice,
            cost=cost,
            lower_bound=bound,
            method=f"{other.selection.method}, found for {place}{other.model.name}",
        )
        return replace(self, selection=selection, kernels=other.kernels, program=other.program)


def extract_program(
    saturated: Saturated, target: Target, model: CostModel, *, effort: Effort | None = None, again: Effort | None = None
) -> Extraction:
    """The cheapest program for ``target`` under ``model``, operator by operator, or together with its kernels where the target
    has kernels of several. With the effort for ``again``, of a newer opset than the file should have if that costs much less."""
    effort, graph = effort or Effort(DEFAULT_STEPS), saturated.encoding.graph
    if again is None or not withheld_operators(graph, saturated.encoding.egraph.made_by_rules()):
        return _extract_at_limit(saturated, target, model, effort)
    raised = replace(saturated, encoding=replace(saturated.encoding, graph=at_any_opset(graph)), _writable={})
    newer = _extract_at_limit(raised, target, model, effort)
    if not withheld_operators(graph, {n.op for n in newer.program.graph.nodes if not n.domain}):
        return replace(newer, of_any_opset=True)
    found = _extract_at_limit(saturated, target, model, again).after(newer)
    if not worth_an_opset(newer.selection.cost, found.selection.cost):
        return found
    return replace(
        newer, seconds=found.seconds, passed_opset={"opset": most_opset(graph), "cost": found.selection.cost}
    )


def _extract_at_limit(saturated: Saturated, target: Target, model: CostModel, effort: Effort) -> Extraction:
    try:
        found = _extract(saturated, target, model, effort, saturated.writable(target.expanded))
    except ExtractionError:
        dear = _without_price(saturated.encoding, target, model)
        if not dear:
            raise
        raise OptionError(
            f"cost model {model.name!r} on {target.name}: every program has an infinite price; of the original those of "
            f"{', '.join(dear)} are"
        ) from None
    except NoKernelError as error:
        unread = sorted({n.key for n in saturated.encoding.graph.nodes if n.key in target.unsupported})
        if not unread:
            raise
        raise NoKernelError(
            f"{target.name}: nothing equal to the model was found without operators that it does not take; of the original "
            f"those are {', '.join(unread)}"
        ) from error
    if can_be_written(found.program.graph, saturated.form):
        return found
    return _extract(saturated, target, model, effort, lambda op, types: False).after(found)


def _extract(saturated: Saturated, target: Target, model: CostModel, effort: Effort, writable: Writable) -> Extraction:
    from eqsat.backends.onnx_form import FOREIGN, FORMS

    start = time.perf_counter()
    parts = (saturated.encoding, saturated.snapshot, model, target)
    graph = saturated.encoding.graph
    if target.templates:
        joint = select_joint(*parts, effort=effort, writable=writable)
        chosen = time.perf_counter()
        selection, scope, before = joint.selection, joint.bound_scope, joint.kernels_before
        kernels = frozenset((group.root, group.handles) for group in joint.groups)
        program = program_of(saturated.encoding, saturated.snapshot, joint, saturated.exactness)
    else:
        selection = select(*parts, effort=effort, writable=writable)
        chosen = time.perf_counter()
        scope, before = "e-graph", launches(graph, target)
        kernels = frozenset((cls, frozenset((handle,))) for cls, handle in selection.choice.items())
        program = lower(saturated.encoding, saturated.snapshot, selection, saturated.exactness)
        program = with_pairs_spelled(program, graph, target, FORMS[saturated.form][1])
        program = as_loaded(program, graph, target, saturated.fuses_slowly)
    if saturated.form in FOREIGN:
        program = with_weights_paired(program, saturated.encoding, saturated.snapshot, saturated.exactness)
    seconds = {"extract": chosen - start, "lower": time.perf_counter() - chosen}
    return Extraction(
        target, model, selection, scope, kernels, program, seconds, launches_before=before, work=effort.work
    )


def _without_price(encoding: Encoding, target: Target, model: CostModel) -> list[str]:
    """The operators of the original that cannot run at any price, alone."""
    works = [work_of_enode(encoding.egraph, handle) for handle in encoding.node_handles]
    return sorted({work.operators[0] for work in works if math.isinf(model.kernel_cost(work, target))})


def can_be_written(graph: Graph, form: str) -> bool:
    """Whether there is an opset that the file may have at which every node has a form; opaque ones are valid at one only."""
    from eqsat.backends.onnx_form import written

    try:
        written(graph, form)
    except OutputError:
        return False
    return True
