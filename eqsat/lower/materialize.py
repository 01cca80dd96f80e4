"""Computing the constants of the selected program."""

import weakref
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.enode import CONSTANT, ENode
from eqsat.egraph.explain import Explainer
from eqsat.egraph.known import FOLD_EXACT, FOLD_INEXACT
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.ir.constants import Constant
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.types import TensorType, Type, type_of_array
from eqsat.lower.unrounded import Unrounded

KEPT_BYTES = 1 << 28
"""Folded weights of a program that are held in memory; what is beyond is computed when it is written or run. (All those of a
language model may take more memory than there is.)"""

ALWAYS_KEPT_BYTES = 1 << 16


class Materializer:
    """Gives the constant of a constant e-class: the literal it contains, or what `KnownValues.computed_by` computes.

    Large constants that only one other is computed from are let go of once that is done, unless somebody asks for them, too.
    """

    def __init__(self, egraph: EGraph, explainer: Explainer) -> None:
        self._egraph = egraph
        self._explainer = explainer
        own = weakref.proxy(self)
        self._unrounded = Unrounded(egraph, lambda cls: own._known(cls))
        self._constants: dict[int, Constant] = {}
        self._rules: dict[int, frozenset[str]] = {}
        self._asked: set[int] = set()
        self._kept = 0

    def constant(self, cls: int) -> Constant:
        """The value of the class, computed on first use."""
        cls = self._egraph.find(cls)
        if cls not in self._asked:
            self._asked.add(cls)
            self._find(cls)
            self._constants[cls] = self._egraph.pool.intern(self._constants[cls])
        return self._constants[cls]

    def _find(self, cls: int) -> None:
        """Computes the value of a class, and what that takes."""
        waiting = [cls]
        while waiting:
            top = waiting[-1]
            missing = [c for c in self._operands(top) if c not in self._constants] if top not in self._constants else []
            waiting.extend(missing)
            if not missing:
                waiting.pop()
                if top not in self._constants:
                    self._compute(top)

    def rules(self, cls: int) -> frozenset[str]:
        """Names of the rules by which this constant is the value of the class, those of folding among them."""
        self.constant(cls)
        return self._rules[self._egraph.find(cls)]

    def _known(self, cls: int) -> Constant:
        if cls not in self._constants:  # it was let go of
            self._find(cls)
        return self._constants[cls]

    def _operands(self, cls: int) -> list[int]:
        handle = self._egraph.known.computed_by(cls)
        return [c for c in self._egraph.canonical_children(handle) if c != ABSENT_INPUT]

    def _compute(self, cls: int) -> None:
        egraph = self._egraph
        handle = egraph.known.computed_by(cls)
        node = egraph.nodes[handle]
        type = egraph.type_of(cls)
        rules = set(self._explainer.rules_of(handle))
        if node.key == CONSTANT:
            constant = node.attributes["value"]
            assert isinstance(constant, Constant)
            compute = constant.numpy
        else:
            constant = None
            definition = egraph.definition(handle)
            assert definition is not None
            fold = FOLD_EXACT if definition.folds_exactly(node.attributes) else FOLD_INEXACT
            rules |= {fold}.union(*(self._rules[c] for c in self._operands(cls)))
            operands = [None if c == ABSENT_INPUT else self._constants[c] for c in egraph.canonical_children(handle)]
            compute = partial(_evaluated, node, operands)
        rounded_once = self._unrounded.rounded_once(cls, compute)
        if rounded_once is not None:
            rules.add(FOLD_INEXACT)
        if constant is None or rounded_once is not None:
            constant = self._folded(rounded_once or compute, type)
        self._constants[cls] = constant
        self._rules[cls] = frozenset(rules)
        for operand in self._operands(cls):
            self._let_go(operand)

    def _let_go(self, cls: int) -> None:
        """Forgets a large constant if it was computed for one other only: should it be asked for, it is computed again."""
        constant = self._constants.get(cls)
        if constant is None or cls in self._asked or constant.bytes <= ALWAYS_KEPT_BYTES or not self._operands(cls):
            return
        if self._has_one_user(cls):
            del self._constants[cls]
            self._kept -= 0 if constant.is_deferred else constant.bytes

    def _has_one_user(self, cls: int) -> bool:
        """Whether a single constant is computed from this one; those with many users are told by their first two."""
        egraph = self._egraph
        computed = (
            user
            for user in egraph.users_of(cls)
            if egraph.is_constant(user) and egraph.known.computed_by(egraph.find(user)) == user
        )
        first = next(computed, None)
        return first is not None and all(user == first for user in computed)

    def _folded(self, compute: Callable[[], np.ndarray], type: Type) -> Constant:
        """What an operator makes of constants: at once, or once there is no more room, whenever somebody asks."""
        size = type.bytes if isinstance(type, TensorType) else None
        if size is not None and size > ALWAYS_KEPT_BYTES and self._kept + size > KEPT_BYTES:
            assert isinstance(type, TensorType)
            return Constant(type, compute=compute)
        array = compute()
        array.flags.writeable = False
        self._kept += array.nbytes
        return Constant(type_of_array(array), array)


def _evaluated(node: ENode, operands: Sequence[Constant | None]) -> np.ndarray:
    inputs = [None if c is None else c.numpy() for c in operands]
    return np.ascontiguousarray(evaluate_operator(node.key, node.attributes, inputs)[0])
