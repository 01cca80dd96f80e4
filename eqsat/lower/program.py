"""The result of optimisation: a graph, partitioned into kernels, that knows which original value each of its values equals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: the nodes it computes, what crosses its boundary, and the rules that made it.

    ``nodes`` are indices into the nodes of the program's graph. ``rules`` are the rewrite rules that prove the values of
    this kernel equal to the original's; ``exactness`` is the weakest class among them.
    """

    name: str
    template: str
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rules: tuple[str, ...] = ()
    exactness: Exactness = Exactness.EXACT


@dataclass(frozen=True)
class Program:
    """An executable selection.

    ``origin`` maps a value of ``graph`` to the value of the original graph that it equals (up to the exactness of the
    rules used); values that the original never computed are absent. Nodes that only rearrange the view of a buffer belong
    to kernels whose template is ``"view"`` and launch nothing. ``constant_rules``: the rules by
    which outputs are constants, which no kernel computes; ``of_constants``: the weakest class among them.
    """

    graph: Graph
    kernels: tuple[Kernel, ...]
    origin: Mapping[str, str] = field(default_factory=dict)
    constant_rules: tuple[str, ...] = ()
    of_constants: Exactness = Exactness.EXACT

    @property
    def exactness(self) -> Exactness:
        """The weakest exactness class among the rules the program relies on."""
        return max((self.of_constants, *(k.exactness for k in self.kernels)))

    @property
    def kernel_count(self) -> int:
        """Kernels that launch (views do not)."""
        return sum(kernel.template != "view" for kernel in self.kernels)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Outputs by name, computed by the reference interpreter in numpy."""
        from eqsat.ir.interpret import run

        return run(self.graph, feeds)
