"""Extraction with devices, as the pipeline sees it: choose, lower, and fuse on each device."""

import time
from typing import Any

from eqsat.cost.model import CostModel
from eqsat.extract import Effort
from eqsat.extraction import Extraction, Saturated, can_be_written
from eqsat.fusion import NoKernelError
from eqsat.ir.nominal import nominal_bytes
from eqsat.ir.operators.devices import DEVICE_COPY, device_of
from eqsat.joint import select_joint
from eqsat.lower.program import Program
from eqsat.lower.selection import Selection, Writable
from eqsat.placement.annotate import Annotated
from eqsat.placement.lowering import lower_placement
from eqsat.placement.machine import Machine, Placement, kernels_of
from eqsat.placement.problem import Placing
from eqsat.placement.regions import fuse_regions


def extract_placed(
    saturated: Saturated, annotated: Annotated, machine: Machine, model: CostModel, *, effort: Effort
) -> Extraction:
    """Chooses e-nodes and devices together, then fuses what each device computes for its own target.

    Where no target of the machine has kernels of several operators, the bound is over all programs in the e-graph and all
    placements (``bound_scope`` is ``"e-graph"``). Otherwise operators and devices are chosen by the prices of single
    operators. Where no node has a device, the programs whose operators and kernels are chosen together for one device, and run
    there, are candidates as well. The candidate that is cheapest when fused is the result; cost and bound are those of fusing
    it (``"placement"``).
    """
    parts = (saturated, annotated, machine, model, effort)
    found = _extract(*parts, saturated.writable())
    if not can_be_written(found.program.graph, saturated.form):
        found = _extract(*parts, lambda op, types: False)
    return found


def _extract(
    saturated: Saturated, annotated: Annotated, machine: Machine, model: CostModel, effort: Effort, writable: Writable
) -> Extraction:
    start = time.perf_counter()
    encoding, snapshot = saturated.encoding, saturated.snapshot
    fusing = any(machine.target(d).templates for d in machine.names)
    placing = Placing(encoding, snapshot, annotated, machine, model, writable)
    placed = placing.best(effort.part(0.5 if fusing else 1.0))
    candidates = [placed]
    if fusing and not any(annotated.nodes):
        candidates += _on_one_device(saturated, placing, placed, machine, model, effort.part(0.5), writable)
    chosen = time.perf_counter()
    programs = [lower_placement(encoding, snapshot, c, saturated.exactness) for c in candidates]
    program, scope, worth, method = programs[0], "e-graph", placed, placed.method
    if fusing:
        share = 1 / len(candidates)
        plans = [fuse_regions(p, machine, model, effort=effort.part(share)) for p in programs]
        worth, placed = min(zip(plans, candidates, strict=True), key=lambda pair: pair[0].cost)
        program, scope, method = worth.program, "placement", f"{placed.method}, then fused"
    choice = {cls: handle for (cls, _), handle in placed.made.items()}
    selection = Selection(choice, worth.cost, placed.cost_before, worth.lower_bound, method)
    kernels = frozenset((cls, frozenset((handle,))) for cls, handle in choice.items())
    seconds = {"extract": chosen - start, "lower": time.perf_counter() - chosen}
    summary = _summary(program, machine, placed)
    host = machine.target(machine.names[0])
    return Extraction(host, model, selection, scope, kernels, program, seconds, summary, work=effort.work)


def _on_one_device(
    saturated: Saturated,
    placing: Placing,
    best: Placement,
    machine: Machine,
    model: CostModel,
    effort: Effort,
    writable: Writable,
) -> list[Placement]:
    """For each device with kernels of several operators, what `select_joint` chooses for it, all of it there."""
    found: list[Placement] = []
    for device in machine.names:
        target = machine.target(device)
        if not target.templates:
            continue
        parts = (saturated.encoding, saturated.snapshot, model, target)
        allowed = kernels_of(machine, device, writable)
        try:
            joint = select_joint(*parts, effort=effort.part(1 / len(machine.names)), writable=allowed)
        except NoKernelError:
            continue
        alone = placing.on_one_device(joint.choice, device, best)
        if alone is not None:
            found.append(alone)
    return found


def _summary(program: Program, machine: Machine, placed: Placement) -> dict[str, Any]:
    """Where things are, for the report: operators and kernels of each device, copies, bytes copied, and what the choice of
    operators and devices cost before fusion, with its bound."""
    graph = program.graph
    devices: dict[str, dict[str, Any]] = {
        d: {"target": machine.target(d).name, "operators": 0, "kernels": 0} for d in machine.names
    }
    copies, copied_bytes = 0, 0
    for kernel in program.kernels:
        nodes = [graph.nodes[i] for i in kernel.nodes]
        if nodes[0].key == DEVICE_COPY:
            copies += 1
            copied_bytes += nominal_bytes(graph.type_of(nodes[0].inputs[0]))
            continue
        entry = devices[device_of(nodes[-1], graph.devices)]
        entry["operators"] += len(nodes)
        entry["kernels"] += kernel.template != "view"
    return {
        "devices": devices,
        "copies": copies,
        "copied_bytes": copied_bytes,
        "cost_before_fusion": placed.cost,
        "lower_bound_before_fusion": placed.lower_bound,
    }
