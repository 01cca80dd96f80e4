"""A call of Relax as its readers see it, and the table of those."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.ir.build import GraphBuilder


@dataclass(frozen=True)
class Site:
    """A call of Relax that is read: ``operands`` are names of tensors, tuples of those, or expressions that are no tensors.

    ``shape`` and ``dtype`` are those of its result, of the first one if it has several; ``results`` is how many it has.
    """

    builder: GraphBuilder
    operands: Sequence[Any]
    attributes: Any
    shape: tuple[int, ...]
    dtype: str
    results: int

    def op(self, op: str, *inputs: str, **attributes: Any) -> Any:
        return self.builder.op(op, *inputs, **attributes)

    def integers(self, values: Any) -> str:
        """A constant list of integers."""
        return self.builder.constant(np.array(integers(values), np.int64))

    def like(self, value: float) -> str:
        """A constant scalar of the element type of the result."""
        return self.builder.constant(np.array(value), self.dtype)

    @property
    def rank(self) -> int:
        """Rank of the first operand."""
        return len(self.extents(self.operands[0]))

    def extents(self, value: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self.builder.type_of(value).shape  # type: ignore[union-attr, return-value]  # the reader admits no others


Reading = Callable[[Site], Any]
"""Name of the value, or names, that a call computes; ``None`` where our operators do not mean the same."""

READINGS: dict[str, Reading] = {}
"""Operator of Relax, without its prefix -> how a call of it is read."""


def reads(*names: str) -> Callable[[Reading], Reading]:
    """Registers a reading for these operators."""

    def register(reading: Reading) -> Reading:
        READINGS.update((name, reading) for name in names)
        return reading

    return register


def integers(values: Any) -> list[int]:
    """Integers, from any of TVM's lists of them."""
    return [int(v) for v in values]
