"""Rules that range over operators: stated once, for every operator of which a fact is true, those defined later included."""

from collections.abc import Callable
from dataclasses import dataclass, field

from eqsat.ir.operator import Operator, operators_with

Fact = Callable[[Operator], object]
Statement = Callable[[str], object]


@dataclass(frozen=True)
class _Family:
    fact: Fact
    state: Statement
    stated: set[str] = field(default_factory=set[str])

    def complete(self) -> None:
        names = operators_with(self.fact, domains=True)
        self.stated.intersection_update(names)
        for name in names:
            if name not in self.stated:
                self.stated.add(name)
                self.state(name)


_FAMILIES: list[_Family] = []


def for_each_operator(fact: Fact) -> Callable[[Statement], Statement]:
    """Calls the decorated function, which states rules, with the key of each operator of which ``fact`` is true.

    An operator that is defined later gets its rules when the registry is next asked for rules.
    """

    def declare(state: Statement) -> Statement:
        family = _Family(fact, state)
        _FAMILIES.append(family)
        family.complete()
        return state

    return declare


def complete_families() -> None:
    """States the rules of operators that have been defined since."""
    for family in _FAMILIES:
        family.complete()
