"""A chain of elementwise operators from 8-bit integers to 8-bit integers is a table of 256 values.

The chain may fork and join again, quantise on the way, clip, and read constants that are single numbers: what counts is that
each element of the result follows from one element of one value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from eqsat.conditions import constant, worthwhile
from eqsat.equations import form, group_rule
from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import Operator, operators_with
from eqsat.ir.operators.byte_table import BYTE_TABLE
from eqsat.ir.operators.recenter import RECENTER
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Match, Ref, Term, Unmet, apply, literal
from eqsat.rules.quantised.scales import BYTES, shorthands, unblocked
from eqsat.rules.terms import Functions, Node


def _follows(op: Operator) -> bool:
    """Whether the result has, for each element, one element of each operand that is no single number, and does not jump but
    where it is quantised: then the tables of slightly larger and smaller floats show what kernels may make of it."""
    return op.traits.operands > 0 and (op.traits.continuous or bool(op.traits.vectors))


_ROUNDINGS = 4e-6
FACTORS = (1.0, 1 + _ROUNDINGS, 1 - _ROUNDINGS)
"""By how much kernels of one operator differ, relative to the result, and more, after the result itself."""


def every_byte(dtype: DType) -> np.ndarray:
    """All 256 integers of an 8-bit type, in the order of their bits."""
    return np.arange(256).astype(np.uint8).view(dtype.numpy)


def dequantised_bytes(dtype: DType, scale: np.ndarray, zero: np.ndarray | None) -> np.ndarray:
    """`every_byte`, dequantised by one scale and zero point: (256, 1)."""
    parameters = [None if p is None else p.reshape(()) for p in (scale, zero)]
    return evaluate_operator("DequantizeLinear", Attributes({}), [every_byte(dtype).reshape(-1, 1), *parameters])[0]


def quantised(values: np.ndarray, scale: np.ndarray, zero: np.ndarray | None) -> np.ndarray:
    """Floats, quantised by one scale and zero point."""
    parameters = [None if p is None else p.reshape(()) for p in (scale, zero)]
    return evaluate_operator("QuantizeLinear", Attributes({}), [values, *parameters])[0]


@dataclass(frozen=True, eq=False)
class Region:
    """A value as a function of the bytes ``source``, each element of one: what an e-node makes of operands that are functions of
    these bytes, too, or constants. Without an e-node it is the bytes themselves."""

    source: Ref
    node: Node | None = None
    operands: tuple[Region | Ref | None, ...] = ()

    @property
    def value(self) -> Ref:
        """The value itself."""
        return self.source if self.node is None else self.node[1]

    @cached_property
    def way(self) -> dict[int, Node]:
        """The e-nodes from the source to the value, which the function depends on, by class."""
        found = {h: node for o in self.operands if isinstance(o, Region) for h, node in o.way.items()}
        return found if self.node is None else {**found, self.value.handle: self.node}

    @property
    def key(self) -> tuple[int, frozenset[int]]:
        """What tells functions apart."""
        return self.source.handle, frozenset(node.enode for _, node, _ in self.way.values())

    @cached_property
    def values(self) -> Sequence[np.ndarray]:
        """The value for each byte, in the order of their bits, where each float on the way is multiplied by each of `FACTORS`:
        (256, 1), or (256, columns) where constants are vectors. Raises `Unmet` where one is too long to be known."""
        if self.node is None:
            return [every_byte(self.source.dtype).reshape(-1, 1)] * len(FACTORS)
        op, node, _ = self.node
        given = [[_values_of(o, i) for o in self.operands] for i in range(len(FACTORS))]
        if op == "Reshape":
            return [x for x, *_ in given if x is not None]
        found = [evaluate_operator(op, node.attributes, operands)[0] for operands in given]
        floats = found[0].dtype.kind == "f"
        return [(x * f).astype(x.dtype, copy=False) if floats else x for x, f in zip(found, FACTORS, strict=True)]

    @property
    def is_stable(self) -> bool:
        """Whether the table of integers is off by one at most where the floats on the way are a little larger or smaller."""
        table, *moved = self.values
        return all(np.abs(table.astype(np.int16) - other).max() <= 1 for other in moved)


def _values_of(operand: Region | Ref | None, index: int) -> np.ndarray | None:
    if isinstance(operand, Region):
        return operand.values[index]
    return None if operand is None else operand.value.reshape(() if operand.type.size == 1 else (-1,))


class Regions(Functions[Region]):
    """Which values are functions of one 8-bit value, element by element."""

    def _identity(self, value: Ref) -> Region | None:
        return Region(value) if is_bytes(value) else None

    def _applied(self, op: str, node: Ref, inputs: tuple[Ref | None, ...]) -> Region | None:
        """The operator on what its operands are functions of. Raises `Unmet`."""
        if not self._is_elementwise(op, node, inputs):
            return None
        operands = tuple(x if x is None or x.is_constant else self.of(x) for x in inputs)
        functions = [o for o in operands if isinstance(o, Region)]
        if len(functions) < len(variable(inputs)) or len({f.source.handle for f in functions}) != 1:
            return None
        return Region(functions[0].source, (op, node, inputs), operands)

    def _is_elementwise(self, op: str, node: Ref, inputs: tuple[Ref | None, ...]) -> bool:
        """Whether each element of the result depends on one of each operand that varies. Raises `Unmet`."""
        numbers = all(x.type.size == 1 for x in inputs if x is not None and x.is_constant)
        return numbers and unblocked(node.attributes) and {x.shape for x in variable(inputs)} == {node.shape}


def variable(inputs: tuple[Ref | None, ...]) -> list[Ref]:
    """The operands that are not known at compile time."""
    return [x for x in inputs if x is not None and not x.is_constant]


def is_bytes(value: Ref) -> bool:
    try:
        return not value.is_constant and value.dtype in BYTES
    except Unmet:
        return False


def _tables(view: GroupView) -> Iterator[Match]:
    """Bytes that are a function of bytes, and of those recentred."""
    regions = Regions(view, operators_with(_follows))
    for op in ("QuantizeLinear", "Clip"):
        for node, _ in view.nodes(op):
            found = regions.of(node) if is_bytes(node) else None
            if found is not None:
                for recentred in (False, True):
                    yield Match({"region": found, "recentred": recentred}, node, key=(found.key, recentred))


_D = "DequantizeLinear(q, t, *y, **m)"
_FORMS = (f"Tanh({_D})", f"Abs({_D} + c)", f"{_D} * Sigmoid({_D})", f"DequantizeLinear(Q(Erf({_D}) * c), u, *v, **k)")


@group_rule(
    find=_tables,
    where=[
        worthwhile("several steps: len(region.way) > 1"),
        worthwhile("quantised on the way: any(op == 'QuantizeLinear' for op, _, _ in region.way.values())"),
        "roundings on the way move no result by more than a quantum: region.is_stable",
    ],
    exactness=Exactness.LSB,
    source="there are 256 cases",
    forms=[form(f"Q({text})", constant("c"), shorthands=shorthands) for text in _FORMS],
    domain="eqsat",
)
def tabulate_function_of_bytes(m: Match) -> Term:
    """``Q(f(D(q))) == ByteTable(q, [Q(f(D(i))) for i in 0 ... 255])`` for elementwise ``f`` of ``q`` and single numbers."""
    integers, table = m.region.source, m.region.values[0].reshape(-1)
    if m.recentred:
        return apply(BYTE_TABLE, apply(RECENTER, integers), literal(np.roll(table, 128)))
    return apply(BYTE_TABLE, integers, literal(table))
