"""Computing the constants of the selected program."""

from __future__ import annotations

import numpy as np

from eqsat.egraph.egraph import CONSTANT, EGraph
from eqsat.egraph.explain import Explainer
from eqsat.egraph.known import FOLD_EXACT, FOLD_INEXACT
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.ir.constants import Constant
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.types import type_of_array


class Materializer:
    """Gives the constant of a constant e-class: the literal it contains, or what `KnownValues.computed_by` computes."""

    def __init__(self, egraph: EGraph, explainer: Explainer) -> None:
        self._egraph = egraph
        self._explainer = explainer
        self._constants: dict[int, Constant] = {}
        self._rules: dict[int, frozenset[str]] = {}

    def constant(self, cls: int) -> Constant:
        """The value of the class, computed on first use."""
        cls = self._egraph.find(cls)
        waiting = [cls]
        while waiting:
            top = waiting[-1]
            missing = [c for c in self._operands(top) if c not in self._constants] if top not in self._constants else []
            waiting.extend(missing)
            if not missing:
                waiting.pop()
                if top not in self._constants:
                    self._compute(top)
        return self._constants[cls]

    def rules(self, cls: int) -> frozenset[str]:
        """Names of the rules by which this constant is the value of the class, those of folding among them."""
        self.constant(cls)
        return self._rules[self._egraph.find(cls)]

    def _operands(self, cls: int) -> list[int]:
        handle = self._egraph.known.computed_by(cls)
        return [c for c in self._egraph.canonical_children(handle) if c != ABSENT_INPUT]

    def _compute(self, cls: int) -> None:
        egraph = self._egraph
        handle = egraph.known.computed_by(cls)
        node = egraph.nodes[handle]
        rules = set(self._explainer.rules_of(handle))
        if node.op == CONSTANT and not node.domain:
            constant = node.attributes["value"]
            assert isinstance(constant, Constant)
        else:
            definition = egraph.definition(handle)
            assert definition is not None
            fold = FOLD_EXACT if definition.folds_exactly(node.attributes) else FOLD_INEXACT
            rules |= {fold}.union(*map(self.rules, self._operands(cls)))
            children = egraph.canonical_children(handle)
            inputs = [None if c == ABSENT_INPUT else self._constants[c].numpy() for c in children]
            array = np.ascontiguousarray(evaluate_operator(node.key, node.attributes, inputs)[0])
            array.flags.writeable = False
            constant = Constant(type_of_array(array), array)
        self._constants[cls] = egraph.pool.intern(constant)
        self._rules[cls] = frozenset(rules)
