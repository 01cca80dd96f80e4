"""Kernels for a fixed program: the second phase of "extract, then fuse"."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from eqsat.cost.model import CostModel
from eqsat.cost.target import Target
from eqsat.errors import OptionError
from eqsat.exactness import Exactness
from eqsat.extract import DEFAULT_STEPS, Effort
from eqsat.fusion.cones import ConePool, ConePrices, cone_of
from eqsat.fusion.covering import Covering, Pool, cost_of, cover
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.merging import kernels_before, merge_kernels, written
from eqsat.fusion.postdominator import post_dominator_groups
from eqsat.fusion.program_graph import ProgramGraph, graph_of_program
from eqsat.fusion.slices import with_slices
from eqsat.fusion.templates import Cone, Matcher
from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import Kind
from eqsat.ir.order import dependency_order, reached
from eqsat.lower.program import Kernel, Program

FUSION_METHODS = ("tvm", "optimal")

_CHOICE_POOL = 32
"""Cones for each class of a fixed program."""

_GROUP_NAMES = (
    (Kind.ANCHOR, "anchor"),
    (Kind.REDUCTION, "reduction"),
    (Kind.INJECTIVE, "injective"),
    (Kind.ELEMENTWISE, "pointwise"),
)


def method_of(target: Target) -> str:
    """The fusion method of a target: its own algorithm, or the best covering by its templates."""
    return "tvm" if target.fusion == "post-dominator" else "optimal"


def fuse_program(
    program: Program, target: Target, model: CostModel, *, method: str = "optimal", effort: Effort | None = None
) -> Program:
    """The same computation with its nodes partitioned into kernels of the target.

    ``method``: "tvm" (post-dominator groups, whatever the templates) or "optimal" (the cheapest covering by cones that fit the
    target's templates). Nodes that several kernels compute occur once in each, under names of their own. Raises
    `OptionError` for another method and `NoKernelError` if the target lacks a kernel for an operator.
    """
    return fuse_with_plan(program, target, model, method=method, effort=effort or Effort(DEFAULT_STEPS))[0]


def fuse_with_plan(
    program: Program, target: Target, model: CostModel, *, method: str, effort: Effort
) -> tuple[Program, Covering]:
    """As `fuse_program`, with the plan: its cost, and a bound on that of all kernels that were enumerated.

    The bound is 0 if the plan has kernels of several outputs, which are not enumerated.
    """
    program = with_slices(program) if target.slices else program
    source = graph_of_program(program.graph, target)
    choice = _only_choice(source.graph)
    plan = plan_kernels(source.graph, choice, target, model, method=method, effort=effort)
    if method == "optimal":
        plan = merged_covering(source.graph, plan, target, ConePrices(source.graph, model, target))
    return program_with(program, source, plan.kernels), plan


def program_with(program: Program, source: ProgramGraph, kernels: Mapping[int, Cone]) -> Program:
    """The program with these kernels: class of ``source`` -> cone that computes it."""
    return _Rebuilt(program, source, kernels).run()


def plan_kernels(
    graph: FusionGraph,
    choice: Mapping[int, int],
    target: Target,
    model: CostModel,
    *,
    method: str,
    effort: Effort,
    prices: ConePrices | None = None,
    pool: Pool | None = None,
) -> Covering:
    """Kernels for one operation in each class; ``choice`` lists the needed classes, operands first.

    The cones that are considered are added to ``pool``.
    """
    if method not in FUSION_METHODS:
        raise OptionError(f"fusion method {method!r} does not exist; choose one of {', '.join(FUSION_METHODS)}")
    prices = prices or ConePrices(graph, model, target)
    if method == "tvm":
        kernels = {
            root: group_cone(graph, operations, root, prices)
            for root, operations in post_dominator_groups(graph, choice).items()
        }
        return Covering(kernels, cost_of(kernels), "post-dominator")
    restricted = graph.restricted(choice)
    found = ConePool(restricted, target, prices, limit=_CHOICE_POOL, effort=effort.part(0.5))
    own = Pool()
    own.add(found.kernels())
    if pool is not None:
        pool.add(found.kernels())
    start = grouped(restricted, choice, target, prices)
    return cover(restricted, own, target, effort=effort, incumbents=[start] if start else [])


def merged_covering(graph: FusionGraph, covering: Covering, target: Target, prices: ConePrices) -> Covering:
    """The covering with kernels of several outputs where they are cheaper; it then has no bound but 0."""
    kernels = merge_kernels(graph, covering.kernels, target, prices)
    if len(kernels) == len(covering.kernels):
        return covering
    return replace(covering, kernels=kernels, lower_bound=0.0, method=f"{covering.method}+merge")


def grouped(
    graph: FusionGraph, choice: Mapping[int, int], target: Target, prices: ConePrices
) -> dict[int, Cone] | None:
    """Post-dominator groups where they are kernels of the target, single operators elsewhere; ``None`` if one has no kernel."""
    matcher = Matcher(graph, target)
    kernels: dict[int, Cone] = {}
    for root, operations in post_dominator_groups(graph, choice).items():
        whole = cone_of(matcher, prices, operations, root)
        singles = (cone_of(matcher, prices, frozenset((i,)), graph.owner[i]) for i in operations)
        for cone in singles if whole is None else (whole,):
            if cone is None or cone.price == float("inf"):
                return None
            kernels[cone.root] = cone
    return kernels


def group_cone(
    graph: FusionGraph, operations: frozenset[int], root: int, prices: ConePrices, also: tuple[int, ...] = ()
) -> Cone:
    """A given group of operations as a cone, which writes ``root`` and ``also`` further classes."""
    inside = frozenset(graph.owner[i] for i in operations)
    inputs = frozenset(c for i in operations for c in graph.operations[i].inputs) - inside
    members = [graph.operations[i] for i in operations]
    only_views = all(m.is_view for m in members)
    if only_views:
        name = "view"
    elif len(members) == 1:
        name = members[0].name
    else:
        kinds = {m.kind for m in members}
        name = next((n for kind, n in _GROUP_NAMES if kind in kinds), "opaque")
    cut = frozenset(c for c in inputs if graph.members[c])
    price = prices(root, operations, inputs, also)
    return Cone(root, operations, inside, inputs, cut, template=name, only_views=only_views, price=price, also=also)


def _only_choice(graph: FusionGraph) -> dict[int, int]:
    """The operations that the roots of a program need, operands first (classes are numbered in that order)."""
    roots = (c for c in graph.roots if graph.members[c])
    needed = reached(roots, lambda c: graph.inputs_of(graph.members[c][0]))
    return {c: graph.members[c][0] for c in sorted(needed)}


class _Rebuilt:
    """A program with new kernels; nodes in the order of the kernels."""

    def __init__(self, program: Program, source: ProgramGraph, kernels: Mapping[int, Cone]) -> None:
        self._program = program
        self._graph: Graph = program.graph
        self._fusion = source.graph
        self._kernels = kernels
        self._written = written(kernels.values())
        self._old = {i: kernel for kernel in program.kernels for i in kernel.nodes}
        self._types = dict(self._graph.types)
        self._origin = dict(program.origin)
        self._taken = self._graph.names()
        self._nodes: list[Node] = []
        self._emitted: set[int] = set()

    def run(self) -> Program:
        made = [k for cone in self._order() if (k := self._kernel(cone)) is not None]
        defined = (
            {v for node in self._nodes for v in node.outputs} | set(self._graph.inputs) | set(self._graph.constants)
        )
        graph = replace(
            self._graph,
            nodes=tuple(self._nodes),
            types={k: t for k, t in self._types.items() if k in defined},
        )
        origin = {k: v for k, v in self._origin.items() if k in defined}
        return replace(self._program, graph=graph, kernels=tuple(made), origin=origin)

    def _order(self) -> list[Cone]:
        """Kernels whose inputs are computed come first, in the order of the program."""
        order = dependency_order(kernels_before(self._kernels))
        assert len(order) == len(self._kernels), "the kernels depend on each other in a circle"
        return [self._kernels[root] for root in order]

    def _kernel(self, cone: Cone) -> Kernel | None:
        fusion = self._fusion
        indices = sorted(fusion.operations[i].source for i in cone.operations)
        if indices[0] < 0:
            return None
        owner = {fusion.operations[i].source: fusion.owner[i] for i in cone.operations}
        renamed: dict[str, str] = {}
        placed: list[int] = []
        for index in indices:
            node = self._graph.nodes[index]
            own = owner[index] in cone.outputs
            copy = index in self._emitted or (not own and owner[index] in self._written)
            if copy:
                renamed.update((v, self._fresh(v)) for v in node.outputs if v)
            else:
                self._emitted.add(index)
            placed.append(len(self._nodes))
            inputs = tuple(renamed.get(v, v) for v in node.inputs)
            name = f"{node.name}_again_{len(self._nodes)}" if copy else node.name
            self._nodes.append(
                replace(node, inputs=inputs, outputs=tuple(renamed.get(v, v) for v in node.outputs), name=name)
            )
        inside = {v for i in placed for v in self._nodes[i].outputs}
        inputs = tuple(dict.fromkeys(v for i in placed for v in self._nodes[i].inputs if v and v not in inside))
        results = [i for i, index in zip(placed, indices, strict=True) if owner[index] in cone.outputs]
        outputs = tuple(v for i in results for v in self._nodes[i].outputs if v)
        old = [self._old[i] for i in indices if i in self._old]
        rules = tuple(sorted(set[str]().union(*(k.rules for k in old))))
        worst = max((k.exactness for k in old), default=Exactness.EXACT)
        name = old[-1].name if old else self._nodes[placed[-1]].name
        return Kernel(name, cone.template, tuple(placed), inputs, outputs, rules, worst)

    def _fresh(self, value: str) -> str:
        number = 2
        while f"{value}_{number}" in self._taken:
            number += 1
        name = f"{value}_{number}"
        self._taken.add(name)
        self._types[name] = self._types[value]
        if value in self._origin:
            self._origin[name] = self._origin[value]
        return name


def launches(kernels: Iterable[Cone]) -> int:
    """Kernels that launch: neither views nor outputs of operators with several."""
    return sum(not cone.only_views for cone in kernels)
