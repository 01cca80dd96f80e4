"""Bodies of control flow: each is optimised as a program of its own, which reads what it captures as inputs."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from eqsat.backends.consumer import most_opset, worth_an_opset
from eqsat.backends.onnx_form import as_new_as_bodies, choose_form, in_form
from eqsat.backends.onnx_nodes import write_body
from eqsat.errors import EqsatError, VerificationError
from eqsat.exactness import Exactness
from eqsat.ir.constants import Constant, same_constant
from eqsat.ir.graph import HANDED_BYTES, Graph, Node, Shared, Subgraph, fresh_name, with_bodies
from eqsat.lower.program import Kernel, Program
from eqsat.options import Options
from eqsat.report import Report, add_counts, constant_bytes

_GROWN = 1.02
"""So many times the bytes of its constants may a graph have with its bodies optimised one by one."""

Optimise = Callable[[Graph, Options], tuple[Program, Report]]


@dataclass
class Bodies:
    """What became of the bodies of a graph, those inside them included.

    ``changed``: by the bytes of a new body, the weakest class and the names of the rules that made it. ``kept``: why bodies
    stay as they are, with their number. ``verdicts``: of bodies verified on their own, with their number; ``not_run``: why some
    could not be. ``left_out``: what they were wrong with (`eqsat.suspects`). ``handed``: constants made in bodies that the graph
    around them is to have, by name. ``withheld``: operators that rules made in them, of a newer opset than the file may have, and
    that opset. ``alike``: of how many constants that others read, too, they may only make what all make. ``cost``: of all
    together, and ``settled_cost`` at the ``settled_opset`` at most, which the file should have.
    """

    count: int = 0
    optimised: int = 0
    operators_before: int = 0
    operators_after: int = 0
    enodes: int = 0
    seconds: float = 0.0
    exactness: Exactness = Exactness.EXACT
    changed: dict[bytes, tuple[Exactness, tuple[str, ...]]] = field(default_factory=dict[bytes, Any])
    rules: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    kept: Counter[str] = field(default_factory=Counter[str])
    verdicts: Counter[str] = field(default_factory=Counter[str])
    not_run: Counter[str] = field(default_factory=Counter[str])
    left_out: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    handed: dict[str, Constant] = field(default_factory=dict[str, Constant])
    withheld: dict[str, int] = field(default_factory=dict[str, int])
    alike: int = 0
    cost: float = 0.0
    settled_cost: float = 0.0
    settled_opset: int = 0

    def to_dict(self) -> dict[str, Any]:
        """For the report; empty where there are no bodies."""
        if not self.count:
            return {}
        return {
            "count": self.count,
            "optimised": self.optimised,
            "operators_before": self.operators_before,
            "operators_after": self.operators_after,
            "enodes": self.enodes,
            "exactness": self.exactness.label,
            "verdicts": dict(sorted(self.verdicts.items())),
            "not_run": dict(sorted(self.not_run.items())),
            "kept": dict(sorted(self.kept.items())),
            "alike": self.alike,
            "cost_after": self.cost,
            "passed_opset": {"opset": self.settled_opset, "cost": self.settled_cost} if self.passes else {},
        }

    @property
    def passes(self) -> bool:
        """Whether there are bodies of a newer opset than the file should have."""
        return self.settled_cost > self.cost

    def add(self, report: Report) -> None:
        """Takes note of what was done to a body, and to those inside it."""
        inner = report.bodies
        self.count += 1 + inner.get("count", 0)
        self.optimised += inner.get("optimised", 0)
        self.operators_before += sum(report.operators_before.values()) + inner.get("operators_before", 0)
        self.seconds += sum(report.seconds.get(stage, 0.0) for stage in ("saturate", "extract"))
        self.enodes += report.enodes + inner.get("enodes", 0)
        self.verdicts.update(inner.get("verdicts", {}))
        self.left_out += report.left_out
        self.withheld |= report.withheld
        self.kept.update(inner.get("kept", {}))
        self.not_run.update(inner.get("not_run", {}))
        self.alike += inner.get("alike", 0)
        for cost, passed in (
            (report.cost_after, report.passed_opset),
            (inner.get("cost_after", 0.0), inner.get("passed_opset")),
        ):
            self.cost += cost
            self.settled_cost += passed["cost"] if passed else cost
        if report.verification:
            self.verdicts[verdict := report.verification["verdict"]] += 1
            if verdict == "not run":  # what comes behind the reason is advice on inputs: nobody gives a body any
                note = report.verification["notes"][-1]
                self.not_run[note.rpartition("; ")[0] or note] += 1


def optimize_bodies(graph: Graph, options: Options, optimise: Optimise) -> tuple[Graph, Bodies]:
    """``graph`` with the bodies of its control flow optimised; a body that gains nothing, or cannot be read, stays as it is.

    Together they may take the e-nodes and seconds of ``options``. Where nothing was said about the opset, and they cost much less
    with newer operators, the file may be as new as they need. Raises `VerificationError` for a body that computes something else.
    """
    result, found = _agreed(graph, options, optimise)
    if not found.passes:
        return result, found
    settled, settled_cost = most_opset(graph), found.settled_cost
    raised = as_new_as_bodies(result)
    if raised is None or not worth_an_opset(found.cost, settled_cost):
        return _agreed(graph, replace(options, opset=settled), optimise)
    if found.withheld:  # from bodies that gained too little by themselves: they may be as new as the others now
        result, found = _agreed(graph, replace(options, opset=most_opset(raised)), optimise)
        raised = replace(result, envelope=raised.envelope)
    found.settled_opset, found.settled_cost = settled, settled_cost
    return raised, found


def _agreed(graph: Graph, options: Options, optimise: Optimise) -> tuple[Graph, Bodies]:
    """Where bodies make different constants of one that they share, so that the graph grows, they are optimised again, and make
    of such only what all make."""
    result, found = _each_optimised(graph, options, optimise)
    names = frozenset(n for n, times in _readers(graph).items() if times > 1 and n in graph.constants)
    grown = constant_bytes(result) > _GROWN * constant_bytes(graph)
    if not (grown and names and found.handed):
        return result, found
    times, outer = _readers(result), graph.shared or Shared(frozenset(), ())
    made = (c for n, c in found.handed.items() if times[n] > 1)
    shared = Shared(names | outer.names, (*outer.made, *made))
    again, agreed = _each_optimised(replace(graph, shared=shared), options, optimise)
    if constant_bytes(again) >= constant_bytes(result):
        return result, found
    agreed.alike += sum(graph.constants[n].bytes >= HANDED_BYTES for n in names)
    return replace(again, shared=graph.shared), agreed


def _readers(graph: Graph) -> Counter[str]:
    """Value -> how many bodies capture it, and nodes read it."""
    return Counter(value for node in graph.nodes for value in node.inputs)


def _each_optimised(graph: Graph, options: Options, optimise: Optimise) -> tuple[Graph, Bodies]:
    found = Bodies()
    within = replace(
        options,
        dims={},
        no_overrides=False,
        example_inputs=None,
        dynamic_shapes=None,
        assume={},
        keep=(),
        feeds=None,
        memory_budget_bytes=None,
        devices={},
        machine=None,
        keep_egraph=False,
    )
    nodes = [
        with_bodies(node, lambda body, names, node=node: _optimised(node, body, names, graph, within, optimise, found))
        for node in graph.nodes
    ]
    return graph.with_nodes(nodes, constants=found.handed).pruned(), found


def judged(program: Program, bodies: Bodies) -> Program:
    """``program``, whose kernels answer for the rules in their bodies, too."""
    kernels: list[Kernel] = []
    for kernel in program.kernels:
        for index in kernel.nodes:
            for body in program.graph.nodes[index].attributes.bodies:
                exactness, rules = bodies.changed.get(body.proto, (Exactness.EXACT, ()))
                rules = tuple(sorted({*kernel.rules, *rules}))
                kernel = replace(kernel, rules=rules, exactness=max(kernel.exactness, exactness))
        kernels.append(kernel)
    return replace(program, kernels=tuple(kernels))


def _optimised(
    node: Node,
    body: Subgraph,
    names: tuple[str, ...],
    outer: Graph,
    options: Options,
    optimise: Optimise,
    found: Bodies,
) -> tuple[Subgraph, tuple[str, ...]]:
    """The body, and the outer values it captures."""
    if body.graph is None:
        return _kept(body, names, body.unread, found)
    nodes, seconds = options.node_limit - found.enodes, options.time_limit_s - found.seconds
    if nodes <= 0 or seconds <= 0:
        return _kept(body, names, f"the limit {'of e-nodes' if nodes <= 0 else 'in seconds'} is used up", found)
    captured = dict(zip(body.captures, names, strict=True))
    inside = replace(body.graph, shared=_shared_inside(outer.shared, captured))
    try:
        program, report = optimise(inside, replace(options, node_limit=nodes, time_limit_s=seconds))
        found.add(report)
        gains = report.cost_after < report.cost_before or report.bodies.get("optimised", 0)
        new = _placed(body, captured, program, outer, options.file_form, found.handed) if gains else None
    except VerificationError as error:
        raise VerificationError(
            f"body {body.graph.name!r} of {node.op} {node.name or node.outputs[0]!r}: {error}"
        ) from None
    except EqsatError as error:
        return _kept(body, names, str(error), found)
    left, inner = ("operators_after", report.operators_after) if new else ("operators_before", report.operators_before)
    found.operators_after += sum(inner.values()) + report.bodies.get(left, 0)
    if new is None:
        return body, names
    found.optimised += 1
    found.exactness = max(found.exactness, program.exactness)
    used = {name: counts for name, counts in report.rules.items() if counts["uses"]}
    found.changed[new.proto] = (program.exactness, tuple(sorted(used)))
    add_counts(found.rules, report.rules)
    return new, tuple(captured.get(c, c) for c in new.captures)


def _shared_inside(outer: Shared | None, captured: Mapping[str, str]) -> Shared | None:
    """The same by the names that a body has for what it captures."""
    return outer and replace(outer, names=frozenset(inner for inner, name in captured.items() if name in outer.names))


def _kept(body: Subgraph, names: tuple[str, ...], reason: str, found: Bodies) -> tuple[Subgraph, tuple[str, ...]]:
    found.count += 1
    found.kept[reason] += 1
    return body, names


def _placed(
    body: Subgraph, names: Mapping[str, str], program: Program, outer: Graph, form: str, handed: dict[str, Constant]
) -> Subgraph:
    """The program of a body as a body: what it still reads of the graph around it are its captures. Large constants of its own
    are added to ``handed``."""
    assert body.graph is not None
    graph = in_form(program.graph, form)
    read = graph.reads()

    def is_captured(name: str) -> bool:
        mine = graph.constants.get(name)
        theirs = outer.constants.get(names[name])
        if mine is None or theirs is None:
            return mine is None and name in read
        return name in read and same_constant(mine, theirs)

    captures = tuple(c for c in body.captures if is_captured(c))
    inputs = tuple(v for v in graph.inputs if v not in names or v in captures)
    constants = {k: c for k, c in graph.constants.items() if k in read}
    graph = replace(graph, inputs=inputs, constants=constants)
    moved = _handed(graph, captures, body, outer, handed)
    if moved:
        graph, captures = _renamed(graph, moved), (*captures, *dict.fromkeys(moved.values()))
    opset = choose_form(graph).opset
    proto = write_body(graph, captures, opset).SerializeToString(deterministic=True)
    return Subgraph(proto, captures, opset, graph)


def _handed(
    graph: Graph, captures: tuple[str, ...], body: Subgraph, outer: Graph, handed: dict[str, Constant]
) -> dict[str, str]:
    """Names in the graph around a body for its large constants, but for those that it returns or captures already."""
    moved: dict[str, str] = {}
    taken = {*outer.names(), *graph.names(), *body.captures}
    for name, constant in sorted(graph.constants.items()):
        if constant.bytes < HANDED_BYTES or name in captures or name in graph.outputs:
            continue
        equal = next((n for n, c in handed.items() if n not in taken and same_constant(c, constant)), None)
        moved[name] = equal or fresh_name(name, taken | handed.keys())
        handed[moved[name]] = constant
    return moved


def _renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """``graph`` with other names for some constants."""
    nodes = (replace(node, inputs=tuple(names.get(v, v) for v in node.inputs)) for node in graph.nodes)
    constants = {names.get(k, k): c for k, c in graph.constants.items()}
    return replace(graph, nodes=tuple(nodes), constants=constants)
