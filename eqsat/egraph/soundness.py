"""Whole-e-graph evaluation: every spelling of a value must compute that value.

The value of an e-class is what its oldest e-node computes, the one of the original program if there is one. Every other
e-node of the class is evaluated on the values of its children and compared: errors do not accumulate, and a wrong merge shows
where it happened. How close is close enough depends on the rules that merged the class: see `eqsat.exactness`. Where a rule
of class ROUNDING is involved, elements are compared as long as nothing that they were computed from left the range of floats:
see `eqsat.egraph.undefined`. Where the value of the class depends on a conversion that ONNX leaves undefined, nothing is
compared: see `eqsat.egraph.undefined`.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from eqsat.egraph.difference import difference, is_float
from eqsat.egraph.egraph import EGraph
from eqsat.egraph.encode import Encoding
from eqsat.egraph.enode import CONSTANT, INPUT
from eqsat.egraph.explain import Explainer
from eqsat.egraph.known import FOLD_INEXACT
from eqsat.egraph.origins import Origins, Value
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.errors import ModelError
from eqsat.exactness import Exactness
from eqsat.ir.constants import Constant
from eqsat.ir.interpret import evaluate_node, evaluate_operator
from eqsat.ir.operator import traits_of
from eqsat.ir.operators.matmul import as_kernels_do
from eqsat.ir.types import TensorType, compatible, is_array, type_of_array
from eqsat.rewrite import PROJECTION, AnyRule, registered_rules

_LEVELS = 4
"""Operators above each other, mostly, that a rule matches, and in which its rounding errors arise."""

_MOST_LEVELS = 7
"""Operators above each other, at most, that a rule matches, and in which a float may overflow on the way."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An e-node that computes something else than the value of its e-class."""

    cls: int
    handle: int
    enode: str
    rules: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return f"class {self.cls}: {self.enode}, joined by {', '.join(self.rules) or 'congruence'}: {self.message}"


@as_kernels_do()
def check_egraph(
    encoding: Encoding, feeds: Mapping[str, np.ndarray], rules: Iterable[AnyRule] | None = None
) -> list[Violation]:
    """Evaluates every e-node on ``feeds`` (input name -> array) and returns those that contradict their e-class.

    ``rules`` are the rules that ran (all registered ones by default): they say how much each class may differ. E-nodes
    without a definition, and what depends on them alone, are skipped. A violation is also what a rule made and the evaluator
    rejects, though it computes others of the operator.
    """
    chosen = registered_rules() if rules is None else tuple(rules)
    return _Checker(encoding.egraph, feeds, chosen).run()


@as_kernels_do()
def evaluate_classes(egraph: EGraph, feeds: Mapping[str, np.ndarray]) -> dict[int, Value]:
    """Value of each e-class that can be evaluated, by representative."""
    return _Checker(egraph, feeds, ()).values()


class _Checker:
    def __init__(self, egraph: EGraph, feeds: Mapping[str, np.ndarray], rules: Iterable[AnyRule]) -> None:
        self._egraph = egraph
        self._feeds = feeds
        self._exactness = {rule.name: rule.exactness for rule in rules} | {FOLD_INEXACT: Exactness.ROUNDING}
        self._quanta = {rule.name: rule.quanta for rule in rules}
        self._values: dict[int, Value] = {}
        self._source: dict[int, int] = {}
        self._failures: dict[int, str] = {}
        self._implemented: set[str] = set()
        self._origins = Origins(egraph, self._values, self._source)
        self._merged_by: dict[int, set[str]] = {}

    def values(self) -> dict[int, Value]:
        """Evaluates the oldest e-node of each class that has its operands. A class that only contains itself is left out."""
        egraph = self._egraph
        waiting = list(range(len(egraph.nodes)))
        while True:
            later: list[int] = []
            for handle in waiting:
                cls = egraph.find(handle)
                if cls not in self._values:
                    value = self._evaluate(handle)
                    if value is None:
                        later.append(handle)
                    else:
                        self._values[cls] = value
                        self._source[cls] = handle
            if len(later) == len(waiting) or not later:
                return self._values
            waiting = later

    def run(self) -> list[Violation]:
        egraph = self._egraph
        self.values()
        for union in egraph.unions:
            self._merged_by.setdefault(egraph.find(union.left), set()).add(union.rule)
        violations: list[Violation] = []
        evaluated: dict[int, Value] = {}
        for handle in range(1, len(egraph.nodes)):
            cls = egraph.find(handle)
            if cls not in self._values:
                continue
            value = self._values[cls] if self._source[cls] == handle else self._evaluate(handle)
            if value is not None:
                evaluated[handle] = value
        for handle, value in evaluated.items():
            cls = egraph.find(handle)
            message = self._type_message(cls, value)
            if message is None and self._source[cls] != handle:
                message = self._difference(cls, handle, value)
            if message is not None:
                violations.append(self._violation(cls, handle, message))
        for handle, message in sorted(self._failures.items()):
            node = egraph.nodes[handle]
            if node.rule and node.key in self._implemented:
                violations.append(Violation(egraph.find(handle), handle, node.key, (node.rule,), message))
        return violations

    # ---- evaluation

    def _evaluate(self, handle: int) -> Value | None:
        """What an e-node computes from the values of its children; ``None`` while one is missing."""
        egraph = self._egraph
        node = egraph.nodes[handle]
        if node.key == INPUT:
            name = str(node.attributes["name"])
            return np.asarray(self._feeds[name]) if name in self._feeds else None
        if node.key == CONSTANT:
            constant = node.attributes["value"]
            assert isinstance(constant, Constant)
            return constant.numpy()
        children = egraph.canonical_children(handle)
        if any(c != ABSENT_INPUT and c not in self._values for c in children):
            return None
        if node.op == PROJECTION:
            parts = self._values[children[0]]
            return parts[node.attribute_number] if node.attribute_number < len(parts) else None
        if egraph.definition(handle) is None and (node.opaque is None or not node.attributes.bodies):
            return None
        inputs = [None if c == ABSENT_INPUT else self._values[c] for c in children]
        try:
            results = (
                evaluate_operator(node.key, node.attributes, inputs, node.outputs)
                if node.opaque is None
                else evaluate_node(node.opaque, inputs)
            )
        except ModelError as error:  # the reference evaluator has no implementation, or not of this
            self._failures[handle] = str(error)
            return None
        self._implemented.add(node.key)
        return tuple(results) if node.outputs != 1 else np.asarray(results[0])

    # ---- comparison

    def _type_message(self, cls: int, value: Value) -> str | None:
        declared = self._egraph.full_type_of(cls)
        if not isinstance(declared, TensorType) or not is_array(value):
            return None
        found = type_of_array(value)
        return None if compatible(declared, found) else f"computes {found}, the class has type {declared}"

    def _rules_of(self, cls: int) -> frozenset[str]:
        """The rules that merged a class or one that it is computed from, some levels down.

        A rule of several operators takes what lies between them for one value; where that was merged by a weaker rule, the
        value is only known up to that. What only moves elements is no level: it passes on whatever they are.
        """
        found: set[str] = set()
        nearest = {cls: 0}
        waiting = deque([cls])
        while waiting:
            at = waiting.popleft()
            found |= self._merged_by.get(at, set())
            for handle in self._egraph.members(at):
                moved = self._moves(handle)
                level = nearest[at] + (not moved)
                for child in self._egraph.canonical_children(handle):
                    if child != ABSENT_INPUT and level <= min(_LEVELS, nearest.get(child, level + 1) - 1):
                        nearest[child] = level
                        (waiting.appendleft if moved else waiting.append)(child)
        return frozenset(found)

    def _moves(self, handle: int) -> bool:
        node = self._egraph.nodes[handle]
        return node.op == PROJECTION or traits_of(node.key, node.attributes).moves

    def _difference(self, cls: int, handle: int, value: Value) -> str | None:
        expected = self._values[cls]
        if isinstance(expected, tuple) or isinstance(value, tuple):
            return None  # compared projection by projection
        if difference(expected, value, Exactness.EXACT) is None:
            return None
        rules = self._rules_of(cls)
        exactness = max((self._exactness.get(r, Exactness.EXACT) for r in rules), default=Exactness.EXACT)
        quanta = max((self._quanta.get(r, 0) for r in rules), default=0)
        open = self._origins.undefined_at(self._source[cls], _LEVELS)
        inside = None if open is None else ~open
        if exactness is Exactness.EXACT or not is_float(expected):
            return difference(expected, value, exactness, quanta=quanta, inside=inside)
        overflow = self._origins.overflow(self._source[cls], _MOST_LEVELS, expected) | self._origins.overflow(
            handle, _MOST_LEVELS, value
        )
        inside = ~overflow if inside is None else inside & ~overflow
        step = self._origins.step(cls, _LEVELS) if exactness >= Exactness.LSB else None
        quantum = 0.0 if step is None else step * quanta
        return difference(expected, value, exactness, self._origins.magnitude(cls, _LEVELS), quanta, inside, quantum)

    def _violation(self, cls: int, handle: int, message: str) -> Violation:
        node = self._egraph.nodes[handle]
        rules = set(Explainer(self._egraph).rules_between(self._source[cls], handle)) | {node.rule}
        children = ", ".join("_" if c == ABSENT_INPUT else str(c) for c in self._egraph.canonical_children(handle))
        return Violation(cls, handle, f"{node.key}({children})", tuple(sorted(rules - {""})), message)
