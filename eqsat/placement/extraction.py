"""Extraction with devices, as the pipeline sees it: choose, then lower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eqsat.cost.model import CostModel, nominal
from eqsat.egraph.encode import Encoding
from eqsat.egraph.snapshot import Snapshot
from eqsat.exactness import Exactness
from eqsat.ir.devices import device_of
from eqsat.ir.operators.devices import DEVICE_COPY
from eqsat.ir.types import TensorType
from eqsat.lower.program import Program
from eqsat.lower.selection import Selection, Writable
from eqsat.placement.annotate import Annotated
from eqsat.placement.lowering import lower_placement
from eqsat.placement.machine import Machine
from eqsat.placement.problem import place
from eqsat.placement.regions import fuse_regions


class PlacedExtraction:
    """Chooses e-nodes and devices together, then fuses what each device computes for its own target.

    ``selection`` holds cost and bound. Where no target of the machine has kernels of several operators, the bound is over all
    programs in the e-graph and all placements (``bound_scope`` is ``"e-graph"``). Otherwise operators and devices are chosen
    by the prices of single operators, and cost and bound are those of fusing that choice (``"placement"``).
    """

    def __init__(
        self,
        encoding: Encoding,
        snapshot: Snapshot,
        annotated: Annotated,
        machine: Machine,
        model: CostModel,
        exactness: Mapping[str, Exactness],
        time_limit_s: float,
    ) -> None:
        self._encoding, self._snapshot, self._annotated = encoding, snapshot, annotated
        self._machine, self._model, self._exactness = machine, model, exactness
        self._time_limit_s = time_limit_s
        self.bound_scope = "e-graph"

    def select(self, writable: Writable) -> None:
        """Makes the choice, among operators that the file to be written may use."""
        self._placement = place(
            self._encoding,
            self._snapshot,
            self._annotated,
            self._machine,
            self._model,
            time_limit_s=self._time_limit_s,
            writable=writable,
        )
        found = self._placement
        choice = {cls: handle for (cls, _), handle in found.made.items()}
        self.selection = Selection(choice, found.cost, found.cost_before, found.lower_bound, found.gap, found.method)

    def lower(self) -> Program:
        """The program that was chosen, with its copies and kernels."""
        program = lower_placement(self._encoding, self._snapshot, self._placement, self._exactness)
        if not any(self._machine.target(d).templates for d in self._machine.names):
            return program
        fused = fuse_regions(program, self._machine, self._model, time_limit_s=self._time_limit_s)
        gap = (fused.cost - fused.lower_bound) / fused.cost if fused.cost > fused.lower_bound else 0.0
        chosen = self.selection
        self.selection = Selection(
            chosen.choice, fused.cost, chosen.cost_before, fused.lower_bound, gap, f"{chosen.method}, then fused"
        )
        self.bound_scope = "placement"
        return fused.program

    def summary(self, program: Program) -> dict[str, Any]:
        """Where things are, for the report: operators and kernels of each device, copies, bytes copied, and what the choice of
        operators and devices cost before fusion, with its bound."""
        graph = program.graph
        devices: dict[str, dict[str, Any]] = {
            d: {"target": self._machine.target(d).name, "operators": 0, "kernels": 0} for d in self._machine.names
        }
        copies, copied_bytes = 0, 0
        for kernel in program.kernels:
            nodes = [graph.nodes[i] for i in kernel.nodes]
            if nodes[0].key == DEVICE_COPY:
                sized = nominal(graph.type_of(nodes[0].inputs[0]))
                copies += 1
                copied_bytes += int(sized.bytes or 0) if isinstance(sized, TensorType) else 0
                continue
            entry = devices[device_of(nodes[-1], graph.devices)]
            entry["operators"] += len(nodes)
            entry["kernels"] += kernel.template != "view"
        placed = self._placement
        return {
            "devices": devices,
            "copies": copies,
            "copied_bytes": copied_bytes,
            "cost_before_fusion": placed.cost,
            "lower_bound_before_fusion": placed.lower_bound,
        }
