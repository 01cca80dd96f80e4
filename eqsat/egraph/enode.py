"""What an e-graph consists of: e-nodes, their types, and the unions that rules asked for."""

from dataclasses import dataclass

from eqsat.errors import EqsatError
from eqsat.ir.graph import Attributes, Node
from eqsat.ir.types import NoTensor, Type, compatible, meet

INPUT = "Input"
CONSTANT = "Constant"
ABSENT = "Absent"
LEAVES = frozenset((INPUT, CONSTANT, ABSENT))

Pairs = tuple[tuple[int, int], ...]
"""Handles of e-nodes, each beside the one that it must be equal to."""


class UnsoundError(EqsatError):
    """Two values that were declared equal have contradictory types: a rule is wrong."""


@dataclass(frozen=True, slots=True)
class TupleType(NoTensor):
    """Type of an operator with several outputs."""

    items: tuple[Type, ...]


def joined_types(a: Type | TupleType, b: Type | TupleType) -> Type | TupleType | None:
    """What is known of a value that has two types; ``None`` if they contradict each other."""
    if isinstance(a, TupleType) and isinstance(b, TupleType):
        return a if len(a.items) == len(b.items) else None
    if isinstance(a, TupleType) or isinstance(b, TupleType):
        return None
    return meet(a, b) if compatible(a, b) else None


@dataclass(frozen=True, slots=True)
class Union:
    """One merge that a rule asked for: the handles whose values it proved equal.

    ``premises``: handles whose equality, known before, the rule relied on: what it matched inside e-classes.
    """

    left: int
    right: int
    rule: str
    premises: Pairs = ()


@dataclass(slots=True)
class ENode:
    """An operator applied to e-classes. ``children`` are handles as they were when the node was made."""

    op: str
    domain: str
    attributes: Attributes
    attribute_number: int
    children: tuple[int, ...]
    outputs: int
    rule: str  # the rule that made it; empty for the original program
    opaque: Node | None = None

    @property
    def key(self) -> str:
        return f"{self.domain}::{self.op}" if self.domain else self.op
