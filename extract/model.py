"""The MILP of a core: variables, rows, cuts, and HiGHS, which solves it and its relaxations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from eqsat.extract.core import Core
from eqsat.extract.effort import Effort
from eqsat.extract.required import requirements_of_nodes

if TYPE_CHECKING:
    from highspy import Highs

# Objective values are scaled to about this size: HiGHS's absolute tolerances (1e-6) are then 1e-9 of the cost.
_OBJECTIVE_SIZE = 1e3


_MOST_ITERATIONS = 2**31 - 1
_FIRST_NODE = 30.0
"""How many times as long as loading the relaxation the first node of a MILP takes."""
_NODE = 200.0
"""How many iterations a further node takes."""
_ITERATION = 2.0
"""How many times as long as one of a relaxation an iteration takes there: with it go heuristics, cuts and presolving."""


class Outcome(NamedTuple):
    """One MILP call: values of the variables (None without a solution), a bound on the cost, proved or not."""

    values: list[float] | None
    bound: float
    proved: bool


class Relaxation(NamedTuple):
    """An optimum of the linear relaxation.

    A choice costs at least ``bound`` plus the ``reduced`` costs of its nodes.
    """

    values: list[float]
    bound: float
    reduced: list[float]


class Model:
    """``y_c`` (class needed) and ``x_n`` (node chosen), ``y_c = sum x_n``; a class with one node has only ``y_c``.

    One row per class and class used by its nodes: ``sum of x_n over the nodes requiring d <= y_d`` (aggregated and
    lifted over ``required``). Cycles are excluded by cuts added later.
    """

    def __init__(self, core: Core, required: list[int], upper_bound: float, effort: Effort) -> None:
        self._solver: Highs | None = None
        self.core = core
        self.required = required
        self.effort = effort
        count = len(core.nodes)
        self.scale = _OBJECTIVE_SIZE / upper_bound if upper_bound > 0 else 1.0
        self.objective = [0.0] * count
        self.lower = [0.0] * count
        self.upper = [1.0] * count
        self.integral: list[int] = [0] * count
        self.variable = [-1] * len(core.owner)
        self.below = requirements_of_nodes(core, required)
        self._start: list[int] = []
        self._column: list[int] = []
        self._value: list[float] = []
        self._row_lower: list[float] = []
        self._row_upper: list[float] = []
        for root in core.roots:
            self.lower[root] = 1.0
        for current, members in enumerate(core.nodes):
            for node in members:
                if len(members) == 1:
                    self.variable[node] = current
                    self.objective[current] = core.cost[node] * self.scale
                else:
                    self.variable[node] = self.add_variable(core.cost[node] * self.scale, 1.0, 1)
            if len(members) > 1:
                self.add_row([(self.variable[n], 1.0) for n in members] + [(current, -1.0)], 0.0, 0.0)
        for current in range(count):
            self._add_use_rows(current)
        effort.spend(4 * len(self._column))

    def add_variable(self, cost: float, upper: float, integral: int) -> int:
        """Add a variable in ``[0, upper]`` and return its number."""
        self.objective.append(cost)
        self.lower.append(0.0)
        self.upper.append(upper)
        self.integral.append(integral)
        return len(self.objective) - 1

    def add_row(self, terms: Iterable[tuple[int, float]], lower: float, upper: float) -> None:
        """Add the row ``lower <= sum of coefficient * variable <= upper``."""
        self._start.append(len(self._column))
        for column, value in terms:
            self._column.append(column)
            self._value.append(value)
        self._row_lower.append(lower)
        self._row_upper.append(upper)

    def _add_use_rows(self, current: int) -> None:
        core = self.core
        members = core.nodes[current]
        once = twice = direct = 0
        for node in members:
            twice |= once & self.below[node]
            once |= self.below[node]
            for child in core.children[node]:
                direct |= 1 << child
        pending = twice | direct
        kept: list[tuple[int, int]] = []
        while pending:
            target = pending.bit_length() - 1
            pending ^= 1 << target
            if target in core.roots or target == current:
                continue
            using = 0
            for position, node in enumerate(members):
                if self.below[node] >> target & 1:
                    using |= 1 << position
            # The row of a class that requires the target says as much already.
            if any(not using & ~other and mask >> target & 1 for other, mask in kept):
                continue
            kept.append((using, self.required[target]))
            if using == (1 << len(members)) - 1:
                terms = [(current, 1.0)]
            else:
                terms = [(self.variable[n], 1.0) for i, n in enumerate(members) if using >> i & 1]
            self.add_row([*terms, (target, -1.0)], -float("inf"), 0.0)

    def amounts(self, values: Sequence[float]) -> list[float]:
        """Return for each node the value of its variable."""
        return [values[variable] for variable in self.variable]

    def exits(self, classes: Iterable[int]) -> list[int]:
        """Return the nodes of ``classes`` that require none of ``classes``."""
        inside = sorted(classes)
        mask = 0
        for current in inside:
            mask |= 1 << current
        return [n for c in inside for n in self.core.nodes[c] if not self.below[n] & mask]

    def add_exit_cut(self, needed: int, exits: Iterable[int]) -> None:
        """Add: if class ``needed`` is chosen, so is one of ``exits``, those of a set of classes with ``needed`` in it.

        Going down an acyclic choice from ``needed``, the last class of the set has such a node. For the classes of a
        cycle this implies the cycle cut ``sum z_e <= sum of y_c over c != needed``.
        """
        terms: dict[int, float] = {needed: -1.0}
        for node in exits:
            column = self.variable[node]
            terms[column] = terms.get(column, 0.0) + 1.0
        self.add_row(sorted(terms.items()), 0.0, float("inf"))

    def add_levels(self, group: int) -> None:
        """Exclude all cycles of one strongly connected component by a level per class (big-M rows)."""
        core = self.core
        members = [c for c in range(len(core.nodes)) if core.group[c] == group]
        size = float(len(members))
        level = {c: self.add_variable(0.0, size - 1.0, 0) for c in members}
        for current in members:
            uses: dict[int, list[int]] = {}
            for node in core.nodes[current]:
                for child in core.children[node]:
                    if child in level:
                        uses.setdefault(child, []).append(node)
            for child, nodes in uses.items():
                terms = [(self.variable[n], size) for n in nodes]
                self.add_row([*terms, (level[child], 1.0), (level[current], -1.0)], -float("inf"), size - 1.0)

    def relax(self) -> Relaxation | None:
        """Solve the linear relaxation, from the last optimum if there is one; None if the effort does not suffice."""
        import numpy
        from highspy import HighsModelStatus

        loading, iteration = self._prices()
        self.effort.spend(loading)
        most = int(self.effort.left / iteration)
        if most < 1:
            return None
        solver = self._loaded()
        solver.setOptionValue("simplex_iteration_limit", min(most, _MOST_ITERATIONS))
        solver.run()
        information = solver.getInfo()
        iterations = max(0, information.simplex_iteration_count)
        self.effort.work.lp_iterations += iterations
        self.effort.spend(iterations * iteration)
        self.effort.over()
        if solver.getModelStatus() != HighsModelStatus.kOptimal:
            return None
        solution = solver.getSolution()
        # What is paid per unit above the lower bound, which is 1 for roots: those can only be at it.
        duals = numpy.maximum(solution.col_dual, 0.0)
        slack = numpy.where(numpy.array(self.lower) > 0, 0.0, duals) / self.scale
        reduced = [
            float(slack[owner]) + (float(slack[variable]) if variable != owner else 0.0)
            for owner, variable in zip(self.core.owner, self.variable, strict=True)
        ]
        return Relaxation(list(solution.col_value), information.objective_function_value / self.scale, reduced)

    def solve(self) -> Outcome | None:
        """Solve the MILP; None if the effort does not suffice to begin. A limit that was hit leaves ``proved`` False.

        Only the nodes that the solver branches at can be limited, so what it takes is reckoned from the size, and counted after.
        """
        import numpy
        from highspy import HighsModelStatus, SolutionStatus

        loading, iteration = self._prices()
        first, each = _FIRST_NODE * loading, _ITERATION * iteration
        most_nodes = int((self.effort.left - first) / (_NODE * each))
        if most_nodes < 0:
            return None
        solver = self._loaded()
        count = len(self.objective)
        solver.changeColsIntegrality(
            count, numpy.arange(count, dtype=numpy.int32), numpy.array(self.integral, numpy.uint8)
        )
        solver.setOptionValue("mip_max_nodes", max(1, min(most_nodes, _MOST_ITERATIONS)))
        solver.run()
        information = solver.getInfo()
        iterations = max(0, information.simplex_iteration_count)
        self.effort.work.milp_nodes += max(0, information.mip_node_count)
        self.effort.work.lp_iterations += iterations
        self.effort.spend(first + iterations * each)
        self.effort.over()
        proved = solver.getModelStatus() == HighsModelStatus.kOptimal
        found = information.primal_solution_status == SolutionStatus.kSolutionStatusFeasible
        if any(self.integral):
            bound = information.mip_dual_bound
        else:
            bound = information.objective_function_value if proved else float("-inf")
        return Outcome(list(solver.getSolution().col_value) if found else None, bound / self.scale, proved)

    def _prices(self) -> tuple[float, float]:
        """Steps that loading the relaxation takes, and an iteration of the simplex method."""
        return 1.0 * len(self._column), 20.0 + len(self._row_lower) / 100

    def _loaded(self) -> Highs:
        """HiGHS with the model as it is now: what was added since the last call is added there, too."""
        import numpy

        solver = self._solver = self._solver or _silent_solver()
        solver.setOptionValue("time_limit", max(0.01, self.effort.seconds_left))
        columns, rows = solver.getNumCol(), solver.getNumRow()
        if (new := len(self.objective) - columns) > 0:
            nothing = numpy.zeros(0, numpy.int32)
            starts = numpy.zeros(new, numpy.int32)
            limits = numpy.array(self.lower[columns:]), numpy.array(self.upper[columns:])
            solver.addCols(new, numpy.array(self.objective[columns:]), *limits, 0, starts, nothing, numpy.zeros(0))
        places = numpy.arange(columns, dtype=numpy.int32)
        limits = numpy.array(self.lower[:columns]), numpy.array(self.upper[:columns])
        solver.changeColsBounds(columns, places, *limits)
        if (new := len(self._start) - rows) > 0:
            first = self._start[rows]
            starts = numpy.array(self._start[rows:], numpy.int32) - numpy.int32(first)
            indices, values = numpy.array(self._column[first:], numpy.int32), numpy.array(self._value[first:])
            limits = numpy.array(self._row_lower[rows:]), numpy.array(self._row_upper[rows:])
            solver.addRows(new, *limits, len(indices), starts, indices, values)
        return solver


@cache
def _silent() -> type[Highs]:
    """HiGHS, which would write a line to standard output where its constructor enables callbacks."""
    from highspy import Highs

    class Silent(Highs):
        def enableCallbacks(self) -> None:
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    return Silent


def _silent_solver() -> Highs:
    """HiGHS, to prove optima."""
    solver = _silent()()
    solver.setOptionValue("parallel", "off")
    solver.setOptionValue("mip_rel_gap", 0.0)
    return solver
