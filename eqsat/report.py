"""The report of an optimisation: a stable dictionary, text for a terminal, a table for a notebook."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import traits_of
from eqsat.ir.types import DType

_SAMPLED, _RUN = 4096, 64
"""Elements of each constant that are looked at, so many side by side: reading all of a large file takes its time."""


def recognized_structures(graph: Graph) -> dict[str, int]:
    """Structure -> number of operators of the graph that are one."""
    counts: Counter[str] = Counter()
    for node in graph.nodes:
        is_swish = node.key == "com.microsoft::QuickGelu" and node.attributes.get("alpha") == 1.0
        counts[traits_of("Swish" if is_swish else node.key, node.attributes).structure] += 1
    return {name: count for name, count in sorted(counts.items()) if name}


def opaque_counts(graph: Graph) -> dict[str, int]:
    """Operator type -> number of nodes that the optimiser passes through untouched; those whose bodies it reads are not."""

    def is_read(node: Node) -> bool:
        bodies = node.attributes.bodies
        return bool(bodies) and all(body.graph is not None for body in bodies)

    return dict(sorted(Counter(n.key for n in graph.nodes if n.opaque and not is_read(n)).items()))


def constant_bytes(graph: Graph, captured: Collection[str] = ()) -> int:
    """Bytes of the constants but for those ``captured``, each once, and of those that bodies hold themselves."""
    own = sum({id(c): c.bytes for name, c in graph.constants.items() if name not in captured}.values())
    bodies = (body for node in graph.nodes for body in node.attributes.bodies)
    return own + sum(constant_bytes(b.graph, b.captures) for b in bodies if b.graph is not None)


def subnormal_part(graph: Graph) -> float:
    """The part of the float32 elements of the constants that are subnormal, by a sample of each constant."""
    random = np.random.default_rng(0)
    constants = dict.fromkeys(c for c in graph.constants.values() if c.dtype is DType.FLOAT and not c.is_deferred)
    total, found = 0, 0.0
    for constant in constants:
        sample = flat = constant.numpy().reshape(-1)
        if flat.size > _SAMPLED:
            starts = random.integers(0, flat.size - _RUN, _SAMPLED // _RUN)
            sample = flat[np.add.outer(starts, np.arange(_RUN))]
        count = np.count_nonzero((sample != 0) & (abs(sample) < np.finfo(np.float32).tiny))
        total += flat.size
        found += count * flat.size / max(sample.size, 1)
    return found / max(total, 1)


def add_counts(total: dict[str, dict[str, int]], more: Mapping[str, Mapping[str, int]]) -> None:
    """Adds matches and uses of rules, by name, to those of others."""
    for name, counts in more.items():
        known = total.get(name, {})
        total[name] = {key: known.get(key, 0) + number for key, number in counts.items()}


@dataclass
class Report:
    """What was done to a model. `to_dict` is a stable contract.

    Asked for: ``model``, ``target``, ``cost_model``, ``numerics``. Of the result: ``exactness``, the weakest class of the
    rules it relies on; ``operators_before`` and ``operators_after`` by type; ``kernels_before`` and ``kernels_after``,
    launches, views aside; ``kernel_templates``; ``recognized`` structures; ``missed``: what looks like one, and why it is
    none; ``opaque``, operators passed through untouched; ``withheld``, operators that rules made of a newer opset than the
    file may have; ``overridable``, inputs that have values in the file; ``engine``, the fastest one, and what each took, where
    that was asked for;
    ``peak_memory_bytes``; ``placement`` on devices; ``memory_budget``, if one was asked for. Its price:
    ``cost_before`` and ``cost_after`` in ``cost_unit``, ``lower_bound`` on any program's in ``bound_scope``, and the relative
    ``gap`` to it; ``assumed``: the extents of symbols that prices are for; ``sizes``: what it costs at each size of a range. The
    search: ``rehearsal``, the rules left out of it because they gained nothing in a part; ``eclasses``, ``enodes``,
    ``iterations``, ``stop_reason``, ``seconds`` and ``work`` by stage. ``rules`` that matched: ``matches`` and ``uses`` in the
    result by name; ``unverified_rules`` among them. ``verification``: the verdict and errors of outputs;
    ``left_out``: what results were wrong with, and what was wrong, so that the model was optimised again without it.
    docs/report.md has more on each.
    """

    model: str
    target: str
    cost_model: str
    numerics: str
    exactness: str
    operators_before: dict[str, int]
    operators_after: dict[str, int]
    kernels_before: int
    launches_before: int
    kernels_after: int
    kernel_templates: dict[str, int]
    recognized: dict[str, int]
    cost_unit: str
    cost_before: float
    cost_after: float
    lower_bound: float
    gap: float
    bound_scope: str
    peak_memory_bytes: int
    constant_bytes_before: int
    constant_bytes_after: int
    needs: dict[str, Any]
    counted_only: bool
    opaque: dict[str, int]
    eclasses: int
    enodes: int
    iterations: int
    stop_reason: str
    rules: dict[str, dict[str, int]]
    memory_budget: dict[str, Any] = field(default_factory=dict[str, Any])
    unverified_rules: list[str] = field(default_factory=list[str])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    verification: dict[str, Any] = field(default_factory=dict[str, Any])
    work: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    placement: dict[str, Any] = field(default_factory=dict[str, Any])
    bodies: dict[str, Any] = field(default_factory=dict[str, Any])
    missed: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    assumed: dict[str, int] = field(default_factory=dict[str, int])
    sizes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    withheld: dict[str, int] = field(default_factory=dict[str, int])
    passed_opset: dict[str, float] = field(default_factory=dict[str, float])
    engine: dict[str, Any] = field(default_factory=dict[str, Any])
    rehearsal: dict[str, Any] = field(default_factory=dict[str, Any])
    left_out: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    overridable: int = 0
    subnormal: float = 0.0
    predicted_s_before: float | None = None
    predicted_s_after: float | None = None

    def add_bodies(self, bodies: dict[str, Any], rules: Mapping[str, Mapping[str, int]]) -> None:
        """Takes note of the bodies of control flow, and of the rules used in them."""
        self.bodies = bodies
        add_counts(self.rules, rules)

    def changed_operators(self) -> list[tuple[str, int, int]]:
        """The operators whose number has changed, with the numbers before and after."""
        before, after = self.operators_before, self.operators_after
        counts = ((op, before.get(op, 0), after.get(op, 0)) for op in sorted(before.keys() | after.keys()))
        return [(op, was, now) for op, was, now in counts if was != now]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON data."""
        return dict(self.__dict__)

    def __str__(self) -> str:
        """At most ten lines; `details` says everything."""
        from eqsat.report_text import summary

        return summary(self)

    def details(self) -> str:
        """The whole report as text: every operator whose number has changed, every rule, every note."""
        from eqsat.report_text import details

        return details(self)

    def _repr_html_(self) -> str:
        from eqsat.report_text import report_table

        return report_table(self)
