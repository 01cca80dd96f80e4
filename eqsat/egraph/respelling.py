"""Right sides that spell a value as it is spelled already, but for the numbers.

``(x + c) - c`` is ``x``: a product of ``x`` by weights is one of ``x + c`` with another bias, which is one of ``x`` with another
bias again. That is rounded, or too large to be computed while the e-graph grows, so it is a new constant each time, for ever. But
the class is one function of ``x``, so over the reals both are the same: the second one says nothing new.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.patterns import ABSENT_INPUT, constructor_name, is_commutative
from eqsat.ir.operator import split_key
from eqsat.ir.types import TensorType
from eqsat.rewrite import PROJECTION, Apply, Ref, Term


def _reads_constants_only(term: Term | None) -> bool:
    if isinstance(term, Ref):
        return term.is_constant
    return not isinstance(term, Apply) or all(map(_reads_constants_only, term.args))


@dataclass(frozen=True, slots=True)
class Respelling:
    """Right sides of one rule beside what is there. Of those that say nothing new their constants alone are added."""

    egraph: EGraph
    rule: str

    def says_nothing_new(self, cls: int, term: Term) -> bool:
        """Whether a class is spelled like ``term`` but for constants of floats, and ``term`` itself is not there."""
        if not isinstance(term, Apply) or not self._is_spelled_like(cls, term):
            return False
        return self._look_up(term) is None

    def _is_spelled_like(self, cls: int, term: Apply) -> bool:
        return any(self._has_like(enode, term) for enode in self.egraph.members(cls))

    def _is_like(self, cls: int, term: Term | None) -> bool:
        egraph = self.egraph
        if term is None or cls == ABSENT_INPUT:
            return term is None and cls == ABSENT_INPUT
        if isinstance(term, Apply) and not _reads_constants_only(term):
            return self._is_spelled_like(cls, term)
        other = egraph.add_term(term, self.rule)
        if egraph.find(other) == egraph.find(cls):
            return True
        type = egraph.full_type_of(cls)
        floats = isinstance(type, TensorType) and type.dtype.is_float and type == egraph.full_type_of(other)
        return floats and egraph.is_constant(cls) and _reads_constants_only(term)

    def _has_like(self, enode: int, term: Apply) -> bool:
        node = self.egraph.nodes[enode]
        # One output of several does not tell all constants: the sum beside a normalisation does not tell its gain.
        if (node.key, node.attributes) != (term.op, term.attributes) or term.op == PROJECTION:
            return False
        domain, op = split_key(term.op)
        orders: list[Sequence[int]] = [node.children]
        if is_commutative(constructor_name(op, domain, len(term.args))):
            orders.append(node.children[::-1])
        return any(len(c) == len(term.args) and all(map(self._is_like, c, term.args)) for c in orders)

    def _look_up(self, term: Term | None) -> int | None:
        """The e-node of a right side, if all of it is there."""
        egraph = self.egraph
        if not isinstance(term, Apply):
            return ABSENT_INPUT if term is None else egraph.add_term(term, self.rule)
        found = [self._look_up(t) for t in term.args]
        children = [c for c in found if c is not None]
        domain, op = split_key(term.op)
        number = egraph.number_of(term.attributes)
        return egraph.enode_of(op, domain, number, term.outputs, children) if len(children) == len(found) else None
