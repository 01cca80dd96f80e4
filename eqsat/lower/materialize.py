"""Computing the constants of the selected program."""

from __future__ import annotations

import numpy as np

from eqsat.egraph.egraph import CONSTANT, EGraph
from eqsat.egraph.known import FOLD_EXACT, FOLD_INEXACT
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.ir.constants import Constant
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.types import type_of_array
from eqsat.rewrite import PROJECTION


class Materializer:
    """Gives the constant of a constant e-class: the literal it contains, or the value of its oldest spelling."""

    def __init__(self, egraph: EGraph) -> None:
        self._egraph = egraph
        self._constants: dict[int, Constant] = {}
        self._rules: dict[int, frozenset[str]] = {}

    def constant(self, cls: int) -> Constant:
        """The value of the class, computed on first use."""
        cls = self._egraph.find(cls)
        found = self._constants.get(cls)
        if found is None:
            handle = self._spelling(cls, frozenset())
            assert handle is not None, "a constant e-class has no constant spelling"
            found = self._constants[cls] = self._egraph.pool.intern(self._evaluate(cls, handle))
        return found

    def rules(self, cls: int) -> frozenset[str]:
        """Names of the folding rules by which the class became a constant."""
        self.constant(cls)
        return self._rules[self._egraph.find(cls)]

    def _spelling(self, cls: int, above: frozenset[int]) -> int | None:
        egraph = self._egraph
        members = egraph.members(cls)
        literal = next((m for m in members if egraph.nodes[m].op == CONSTANT and not egraph.nodes[m].domain), None)
        if literal is not None:
            return literal
        for member in members:
            node = egraph.nodes[member]
            if egraph.definition(member) is None and node.op != PROJECTION:
                continue
            children = [c for c in egraph.canonical_children(member) if c != ABSENT_INPUT]
            if node.op == PROJECTION:
                if self._spelling(children[0], above | {cls}) is not None:
                    return member
                continue
            if any(c in above or c == cls or not egraph.is_constant(c) for c in children):
                continue
            if all(self._spelling(c, above | {cls}) is not None for c in children):
                return member
        return None

    def _evaluate(self, cls: int, handle: int) -> Constant:
        egraph = self._egraph
        node = egraph.nodes[handle]
        if node.op == CONSTANT and not node.domain:
            constant = node.attributes["value"]
            assert isinstance(constant, Constant)
            self._rules[cls] = frozenset((node.rule,) if node.rule in (FOLD_EXACT, FOLD_INEXACT) else ())
            return constant
        index = 0
        if node.op == PROJECTION:
            index = node.attribute_number
            inner = self._spelling(egraph.find(node.children[0]), frozenset((cls,)))
            assert inner is not None
            handle, node = inner, egraph.nodes[inner]
        definition = egraph.definition(handle)
        assert definition is not None
        inputs: list[np.ndarray | None] = []
        rules = {FOLD_EXACT if definition.bit_exact else FOLD_INEXACT}
        for child in egraph.canonical_children(handle):
            if child == ABSENT_INPUT:
                inputs.append(None)
                continue
            inputs.append(self.constant(child).numpy())
            rules |= self.rules(child)
        self._rules[cls] = frozenset(rules)
        result = evaluate_operator(node.key, node.attributes, inputs, node.outputs)[index]
        array = np.ascontiguousarray(result)
        array.flags.writeable = False
        return Constant(type_of_array(array), array)
