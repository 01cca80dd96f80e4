"""Extraction problems in the making, whose classes have names."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eqsat.extract.problem import ExtractionProblem


@dataclass
class NamedProblem:
    """An extraction problem in the making, its classes named by keys."""

    numbers: dict[tuple[Any, ...], int] = field(default_factory=dict[tuple[Any, ...], int])
    owner: list[int] = field(default_factory=list[int])
    children: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    cost: list[float] = field(default_factory=list[float])

    def key(self, *key: object) -> int:
        """The number of a class: what it is, and of what."""
        return self.named(key)

    def named(self, name: tuple[Any, ...]) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def add(self, owner: int, children: Sequence[int], cost: float) -> None:
        self.owner.append(owner)
        self.children.append(tuple(dict.fromkeys(children)))
        self.cost.append(cost)

    def either(self, name: tuple[Any, ...], ways: Sequence[int]) -> int:
        """The class ``name`` that any of some classes gives for nothing; if there is one only, that."""
        if len(ways) == 1:
            return ways[0]
        if name not in self.numbers:
            number = self.key(*name)
            for way in ways:
                self.add(number, [way], 0.0)
        return self.numbers[name]

    def finished(self, roots: Sequence[int]) -> ExtractionProblem:
        return ExtractionProblem(len(self.numbers), self.owner, self.children, self.cost, tuple(roots))
