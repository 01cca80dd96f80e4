"""Running modules of Relax on this machine's CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from eqsat.errors import ModelError
from eqsat.frontends.relax.library import relax, tvm
from eqsat.ir.interpret import check_feeds
from eqsat.lower.program import Program
from eqsat.relax.module import to_module


class Executable:
    """A program, built by TVM for the CPU: each kernel is one loop function, in the order of the program.

    ``module`` is what was built. Raises `ModelError` where TVM cannot take or build the program.
    """

    def __init__(self, program: Program) -> None:
        lowered = to_module(program)
        self.module = fused(lowered.module)
        self._graph = program.graph
        self._weights = [tvm.runtime.tensor(array) for array in lowered.weights.values()]
        self._main = load(self.module)["main"]

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name. Raises `FeedError` for inputs that do not fit."""
        check_feeds(self._graph, feeds)
        given = [tvm.runtime.tensor(np.asarray(feeds[v], order="C")) for v in self._graph.inputs]
        outputs = self._main(*given, *self._weights)
        return {name: value.numpy() for name, value in zip(self._graph.outputs, outputs, strict=True)}


def fused(module: Any) -> Any:
    """``module`` with one loop function for each primitive function."""
    return relax.transform.DeadCodeElimination()(relax.transform.FuseTIR()(module))


def load(module: Any) -> Any:
    """``module`` built with LLVM for this machine, in a `relax.VirtualMachine`."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    try:
        return relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    except Exception as error:  # TVM raises errors of several libraries
        reason = next((line for line in reversed(str(error).strip().splitlines()) if line.strip()), "")
        raise ModelError(f"TVM: cannot build the program: {reason.strip()}") from None
