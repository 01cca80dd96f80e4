"""A chain of elementwise operators from 8-bit integers to 8-bit integers is a table of 256 values.

The chain may fork and join again, quantise on the way, clip, and read constants that are single numbers: what counts is that
each element of the result follows from one element of one value.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.conditions import constant, worthwhile
from eqsat.equations import form
from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import Operator, operators_with
from eqsat.ir.operators.byte_table import BYTE_TABLE
from eqsat.ir.operators.recenter import RECENTER
from eqsat.ir.types import DType
from eqsat.rewrite import Condition, GroupView, Match, Ref, Term, Unmet, apply, group_rule, literal
from eqsat.rules.quantised.pairs import BYTES, shorthands, unblocked
from eqsat.rules.terms import Functions


def _follows(op: Operator) -> bool:
    """Whether the result has, for each element, one element of each operand that is no single number, and does not jump but
    where it is quantised: then the tables of slightly larger and smaller floats show what kernels may make of it."""
    return op.traits.operands > 0 and (op.traits.continuous or bool(op.traits.vectors))


_LEAST_STEPS = 2
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


def is_stable(table: np.ndarray, moved: Iterable[np.ndarray]) -> bool:
    """Whether a table of integers is off by one at most where the floats on the way are a little larger or smaller."""
    return all(np.abs(table.astype(np.int16) - other).max() <= 1 for other in moved)


@dataclass(frozen=True)
class _Function:
    """What a value is as a function of ``source``: its 256 values, and those when each float is a little larger, or smaller."""

    source: Ref
    values: tuple[np.ndarray, np.ndarray, np.ndarray]
    steps: int
    quantises: bool


def _tables(view: GroupView) -> Iterator[Match]:
    """Bytes that are a function of bytes, and of those recentred."""
    functions = _Functions(view)
    for op in ("QuantizeLinear", "Clip"):
        for node, _ in view.nodes(op):
            found = functions.of(node) if functions.is_bytes(node) else None
            if found is not None:
                for recentred in (False, True):
                    yield Match({"function": found, "recentred": recentred}, node)


_D = "DequantizeLinear(q, t, *y, **m)"
_FORMS = (f"Tanh({_D})", f"Abs({_D} + c)", f"{_D} * Sigmoid({_D})", f"DequantizeLinear(Q(Erf({_D}) * c), u, *v, **k)")


@group_rule(
    find=_tables,
    where=[
        worthwhile(Condition("several steps", lambda m: m.function.steps >= _LEAST_STEPS)),
        worthwhile(Condition("quantised on the way", lambda m: m.function.quantises)),
        Condition(
            "roundings on the way move no result by more than a quantum",
            lambda m: is_stable(m.function.values[0], m.function.values[1:]),
        ),
    ],
    exactness=Exactness.LSB,
    source="there are 256 cases",
    forms=[form(f"Q({text})", constant("c"), shorthands=shorthands) for text in _FORMS],
    domain="eqsat",
)
def tabulate_function_of_bytes(m: Match) -> Term:
    """``Q(f(D(q))) == ByteTable(q, [Q(f(D(i))) for i in 0 ... 255])`` for elementwise ``f`` of ``q`` and single numbers."""
    integers, table = m.function.source, m.function.values[0]
    if m.recentred:
        return apply(BYTE_TABLE, apply(RECENTER, integers), literal(np.roll(table, 128)))
    return apply(BYTE_TABLE, integers, literal(table))


class _Functions(Functions[_Function]):
    """Which values are functions of one 8-bit value."""

    def __init__(self, view: GroupView) -> None:
        super().__init__(view, operators_with(_follows))

    def is_bytes(self, value: Ref) -> bool:
        try:
            return not value.is_constant and value.dtype in BYTES
        except Unmet:
            return False

    def _identity(self, value: Ref) -> _Function | None:
        if not self.is_bytes(value):
            return None
        every = every_byte(value.dtype)
        return _Function(value, (every, every, every), 0, False)

    def _applied(self, op: str, node: Ref, inputs: tuple[Ref | None, ...]) -> _Function | None:
        """The operator on what its operands are functions of. Raises `Unmet`."""
        numbers = all(x.type.size == 1 for x in inputs if x is not None and x.is_constant)
        if not numbers or not unblocked(node.attributes) or node.shape != self._shape(inputs):
            return None
        operands = [None if x is None else x.value.reshape(()) if x.is_constant else self.of(x) for x in inputs]
        functions = [o for o in operands if isinstance(o, _Function)]
        varying = [x for x in inputs if x is not None and not x.is_constant]
        if len(functions) < len(varying) or len({f.source.handle for f in functions}) != 1:
            return None
        given = ([o.values[i] if isinstance(o, _Function) else o for o in operands] for i in range(len(FACTORS)))
        values = [evaluate_operator(op, node.attributes, each)[0] for each in given]
        if values[0].dtype.kind == "f":
            values = [(v * f).astype(v.dtype) for v, f in zip(values, FACTORS, strict=True)]
        steps = 1 + max(f.steps for f in functions)
        quantises = op == "QuantizeLinear" or any(f.quantises for f in functions)
        return _Function(functions[0].source, (values[0], values[1], values[2]), steps, quantises)

    @staticmethod
    def _shape(inputs: tuple[Ref | None, ...]) -> Any:
        """The shape of the operands that vary: there is no enlarging by a constant if it is that of the result."""
        shapes = {x.shape for x in inputs if x is not None and not x.is_constant}
        return shapes.pop() if len(shapes) == 1 else None
