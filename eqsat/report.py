"""The report of an optimisation: a stable dictionary, text for a terminal, a table for a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eqsat.ir.graph import Graph, bodies_of
from eqsat.ir.operator import traits_of

_SAME = 1.01
"""Times closer than this are the same."""


def recognized_structures(graph: Graph) -> dict[str, int]:
    """Structure -> number of operators of the graph that are one."""
    counts: dict[str, int] = {}
    for node in graph.nodes:
        name = traits_of(node.key, node.attributes).structure
        if node.key == "com.microsoft::QuickGelu" and node.attributes.get("alpha") == 1.0:
            name = traits_of("Swish").structure
        if name:
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def opaque_counts(graph: Graph) -> dict[str, int]:
    """Operator type -> number of nodes that the optimiser passes through untouched; those whose bodies it reads are not."""
    counts: dict[str, int] = {}
    for node in graph.nodes:
        if node.opaque and (not (bodies := bodies_of(node.attributes)) or any(b.graph is None for b in bodies)):
            counts[node.key] = counts.get(node.key, 0) + 1
    return dict(sorted(counts.items()))


def constant_bytes(graph: Graph) -> int:
    """Bytes of the constants, each once."""
    return sum({id(c): c.bytes for c in graph.constants.values()}.values())


@dataclass
class Report:
    """What was done to a model. `to_dict` is a stable contract.

    Asked for: ``model``, ``target``, ``cost_model``, ``numerics``. Of the result: ``exactness``, the weakest class of the rules
    it relies on; ``operators_before`` and ``operators_after`` by type; ``kernels_before`` and ``kernels_after``, launches, views
    aside; ``kernel_templates``; ``recognized`` structures; ``missed``: what looks like one, and why it is none; ``opaque``,
    operators passed through untouched; ``peak_memory_bytes``; ``placement`` on devices; ``memory_budget``, if one was asked for.
    Its price: ``cost_before`` and ``cost_after`` in ``cost_unit``, ``lower_bound`` on any program's in ``bound_scope``, and the
    relative ``gap`` to it;
    ``assumed``: the extents of symbols that prices are for. The search: ``eclasses``, ``enodes``, ``iterations``,
    ``stop_reason``, ``seconds`` by stage. ``rules`` that matched: ``matches`` and ``uses`` in the result by name;
    ``unverified_rules`` among them. ``verification``: the verdict and errors of outputs.
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
    memory_budget: dict[str, Any] = field(default_factory=dict)
    unverified_rules: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    verification: dict[str, Any] = field(default_factory=dict)
    placement: dict[str, Any] = field(default_factory=dict)
    bodies: dict[str, Any] = field(default_factory=dict)
    missed: dict[str, dict[str, int]] = field(default_factory=dict)
    assumed: dict[str, int] = field(default_factory=dict)
    predicted_s_before: float | None = None
    predicted_s_after: float | None = None

    def add_bodies(self, bodies: dict[str, Any], rules: Mapping[str, Mapping[str, int]]) -> None:
        """Takes note of the bodies of control flow, and of the rules used in them."""
        self.bodies = bodies
        for name, counts in rules.items():
            total = self.rules.setdefault(name, {"matches": 0, "uses": 0})
            for key, number in counts.items():
                total[key] += number

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON data."""
        return dict(self.__dict__)

    def __str__(self) -> str:
        before, after = sum(self.operators_before.values()), sum(self.operators_after.values())
        lines = [
            f"{self.model}: target {self.target}, cost {self.cost_model}, numerics {self.numerics} "
            f"(highest class used: {self.exactness})",
            f"  operators  {before:>8} -> {after}",
            f"  kernels    {self.launches_before:>8} -> {self.kernels_after}{self._unfused()}",
            f"  cost       {_number(self.cost_before):>8} -> {_number(self.cost_after)} {self.cost_unit}; "
            f"lower bound {_number(self.lower_bound)}, gap {100 * self.gap:.2f} % ({self.bound_scope})",
            f"  e-graph    {self.enodes} e-nodes in {self.eclasses} e-classes, {self.iterations} iterations, "
            f"{self.stop_reason}",
            f"  memory     {self.peak_memory_bytes / 1e6:.1f} MB at the peak, constants aside",
        ]
        if self.memory_budget:
            lines[-1] += _budget(self.memory_budget, self.cost_after)
        lines.append(
            f"  constants  {self.constant_bytes_before / 1e6:>8.1f} -> {self.constant_bytes_after / 1e6:.1f} MB"
        )
        if self.assumed:
            sizes = ", ".join(f"{name} = {size}" for name, size in self.assumed.items())
            lines.append(f"  assumed    {sizes}: what prices are for (--assume); the program takes any")
        lines += self._warnings()
        if self.placement:
            lines.append(f"  placement  {_placement(self.placement)}")
        if self.bodies:
            lines.append(f"  bodies     {_bodies(self.bodies)}")
        changed = sorted(self.operators_before.keys() | self.operators_after.keys())
        for op in changed:
            a, b = self.operators_before.get(op, 0), self.operators_after.get(op, 0)
            if a != b:
                lines.append(f"    {op:<24} {a:>6} -> {b}")
        for structure, reasons in self.missed.items():
            for reason, count in sorted(reasons.items()):
                lines.append(f"  not fused  {count} x no {structure}: {reason}")
        if self.opaque:
            lines.append("  untouched  " + ", ".join(f"{k} x{v}" for k, v in self.opaque.items()))
        used = {name: counts for name, counts in self.rules.items() if counts["uses"]}
        if used:
            lines.append("  rules      uses in the result (matches)")
            width = max(map(len, used)) + 2
            lines += [f"    {n:<{width}} {c['uses']:>5} ({c['matches']})" for n, c in sorted(used.items())]
        if self.unverified_rules:
            lines.append(
                f"  unverified rule  {', '.join(self.unverified_rules)}: registered without a check, and applied"
            )
        if self.verification:
            lines.append(f"  verified   {_verification(self.verification)}")
            lines += [f"    {note}" for note in self.verification.get("notes", ())]
        lines.append("  seconds    " + ", ".join(f"{k} {v:.3f}" for k, v in self.seconds.items()))
        return "\n".join(lines)

    def _unfused(self) -> str:
        """What the target's own fusion makes of the original, where that is something."""
        fused = self.counted_only and self.kernels_before != self.launches_before
        return f" (the original fused by the target, from {self.kernels_before})" if fused else ""

    def _warnings(self) -> list[str]:
        """What whoever runs the result should know: time, new needs, kernels that only a target's engine has."""
        lines: list[str] = []
        before, after = self.predicted_s_before, self.predicted_s_after
        if before is not None and after is not None:
            line = f"  predicted  {1e3 * before:>8.3g} -> {1e3 * after:.3g} ms, kernel by kernel on {self.target}"
            lines.append(line + ("; SLOWER: --cost measured minimises it" if after > before * _SAME else ""))
        if self.needs:
            lines.append(f"  needs      {_needs(self.needs)}")
        if self.counted_only:
            lines.append(
                f"  note       kernels of {self.target} are counted, not run: the file holds operators, for an engine to fuse"
            )
        return lines

    def _repr_html_(self) -> str:
        from eqsat.notebook import report_table

        return report_table(self)


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e-2 else f"{value:,.3f}".rstrip("0").rstrip(".")


def _bodies(data: Mapping[str, Any]) -> str:
    text = (
        f"{data['count']} of control flow, {data['optimised']} optimised: "
        f"{data['operators_before']} -> {data['operators_after']} operators"
    )
    if data["verdicts"]:
        text += "; verified by themselves: " + ", ".join(f"{n} {verdict}" for verdict, n in data["verdicts"].items())
    return text + "".join(f"\n    {n} untouched: {reason}" for reason, n in data["kept"].items())


def _placement(data: Mapping[str, Any]) -> str:
    parts = [f"{d} ({e['target']}) {e['kernels']} kernels" for d, e in data["devices"].items()]
    return ", ".join([*parts, f"{data['copies']} copies of {data['copied_bytes']:,} bytes"])


def _budget(data: Mapping[str, Any], cost: float) -> str:
    text = f"; budget {data['bytes'] / 1e6:.1f} MB kept"
    if data["candidates"] > 1:
        text += (
            f" by the cheapest of {data['candidates']} candidates; without it {data['peak_unconstrained_bytes'] / 1e6:.1f} MB, "
            f"cost {_number(data['cost_unconstrained'])} instead of {_number(cost)}"
        )
    return text


def _needs(data: Mapping[str, Any]) -> str:
    parts: list[str] = []
    if "opset" in data:
        release = f": ONNX Runtime {data['onnxruntime']} or newer" if data["onnxruntime"] else ""
        parts.append(f"opset {data['opset']} (the model had {data['opset_before']}){release}")
    if "domains" in data:
        parts.append(f"domain {', '.join(data['domains'])}: ONNX Runtime (--form flat for others)")
    parts += [f"{engine} does not read {', '.join(ops)}" for engine, ops in data.get("unread", {}).items()]
    return "; ".join(parts)


def _verification(data: Mapping[str, Any]) -> str:
    text = str(data.get("verdict", "not run"))
    if text == "not run":
        text += ": nothing is known about the result, because"
    if data.get("runs"):
        text += f" in {data['runs']} runs"
    if data.get("kernels_checked"):
        text += f", {data['kernels_checked']} kernels checked one by one"
    errors = [
        o for o in data.get("outputs", {}).values() if isinstance(o["max_rel_error"], float) and o["max_rel_error"]
    ]
    if errors:
        worst = max(errors, key=lambda o: o["max_rel_error"])
        scale = worst["max_abs_error"] / worst["max_rel_error"]
        text += (
            f", largest error {worst['max_rel_error']:.2g} of the largest element of its output "
            f"(tolerance {worst['tolerance'] / scale:.2g})"
        )
    return text
