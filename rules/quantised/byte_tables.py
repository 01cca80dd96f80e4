"""A chain of elementwise operators from 8-bit integers to 8-bit integers is a table of 256 values.

The chain may fork and join again, quantise on the way, clip, and read constants that are single numbers: what counts is that
each element of the result follows from one element of one value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import Operator, operators_with
from eqsat.ir.operators.byte_table import BYTE_TABLE
from eqsat.ir.operators.recenter import RECENTER
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Merge, Ref, Unmet, apply, group_rule, literal
from eqsat.rules.quantised.pairs import BYTES, unblocked
from eqsat.samples import Drawing, Instance, Sampler, fixed


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


def is_stable(tables: Sequence[np.ndarray]) -> bool:
    """Whether a table of integers is off by one at most where the floats on the way are a little larger or smaller."""
    table, *others = (t.astype(np.int64) for t in tables)
    return all(np.abs(table - other).max() <= 1 for other in others)


@dataclass(frozen=True)
class _Function:
    """What a value is as a function of ``source``: its 256 values, and those when each float is a little larger, or smaller."""

    source: Ref
    values: tuple[np.ndarray, np.ndarray, np.ndarray]
    steps: int
    quantises: bool


def _sample(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.shape()
    dtype = d.choose(("int8", "uint8"))

    def number(value: float) -> str:
        extent = d.choose(((), (1,), (1,) * (len(shape) + int(d.chance(0.1)))))
        return drawing.value(fixed(np.full(extent, value, np.float32)))

    def parameters() -> list[str]:
        zero = fixed(d.integers((), d.choose(("int8", "uint8")), 0, 60))
        return [drawing.value(fixed(np.float32(d.choose((0.02, 0.013, 0.0071))))), drawing.value(zero)]

    q = drawing.value(d.integers(shape, dtype))
    zero = drawing.value(fixed(d.integers((), dtype, 0, 100)))
    x = y = drawing.op("DequantizeLinear", q, drawing.value(fixed(np.float32(0.017))), zero)
    for _ in range(d.integer(1, 3)):
        kind = d.integer(0, 4)
        if kind == 0:
            y = drawing.op(d.choose(("Add", "Mul", "Div", "Sub")), y, number(d.choose((1.3, 0.7))))
        elif kind == 1:
            first = parameters()
            y = drawing.op("QuantizeLinear", y, *first)
            y = drawing.op("DequantizeLinear", y, *first)
        elif kind == 2:
            y = drawing.op("Mul", x, y)
        elif kind == 3:
            y = drawing.op("Add", y, drawing.value(d.floats(shape)) if d.chance(0.2) else number(0.25))
        else:
            y = drawing.op(d.choose(("Erf", "Tanh", "Sigmoid", "Gelu", "Relu")), y)
    return drawing.finish(drawing.op("QuantizeLinear", y, *parameters()))


@group_rule(exactness=Exactness.LSB, source="there are 256 cases", sample=_sample, domain="eqsat")
def tabulate_function_of_bytes(view: GroupView) -> Iterator[Merge]:
    """``Q(f(DQ(q))) == ByteTable(q, [Q(f(DQ(i))) for i in 0 ... 255])`` for elementwise ``f`` of ``q`` and single numbers.

    Not where a rounding of the floats on the way may move the result by more than one quantum.
    """
    functions = _Functions(view)
    for op in ("QuantizeLinear", "Clip"):
        for node, _ in view.nodes(op):
            if functions.is_bytes(node):
                found = functions.of(node)
                if found is not None and found.steps >= _LEAST_STEPS and found.quantises and is_stable(found.values):
                    integers, table = found.source, found.values[0]
                    yield node, apply(BYTE_TABLE, integers, literal(table))
                    yield node, apply(BYTE_TABLE, apply(RECENTER, integers), literal(np.roll(table, 128)))


class _Functions:
    """Which values are functions of one 8-bit value, the one farthest away."""

    def __init__(self, view: GroupView) -> None:
        self._nodes: dict[int, list[tuple[str, Ref, tuple[Ref | None, ...]]]] = {}
        self._found: dict[int, _Function | None] = {}
        for op in operators_with(_follows):
            for node, inputs in view.nodes(op):
                self._nodes.setdefault(node.handle, []).append((op, node, inputs))

    def is_bytes(self, value: Ref) -> bool:
        try:
            return not value.is_constant and value.dtype in BYTES
        except Unmet:
            return False

    def of(self, value: Ref) -> _Function | None:
        """The function, ``None`` if there is none; of 8-bit integers at least that of themselves."""
        if value.handle not in self._found:
            self._found[value.handle] = None  # until found: no value is a function of itself
            self._found[value.handle] = self._derived(value) or self._identity(value)
        return self._found[value.handle]

    def _identity(self, value: Ref) -> _Function | None:
        if not self.is_bytes(value):
            return None
        every = every_byte(value.dtype)
        return _Function(value, (every, every, every), 0, False)

    def _derived(self, value: Ref) -> _Function | None:
        for op, node, inputs in self._nodes.get(value.handle, []):
            try:
                found = self._applied(op, node, inputs)
            except Unmet:
                continue
            if found is not None:
                return found
        return None

    def _applied(self, op: str, node: Ref, inputs: tuple[Ref | None, ...]) -> _Function | None:
        """The operator on what its operands are functions of. Raises `Unmet`."""
        if not unblocked(node.attributes) or node.shape != self._shape(inputs):
            return None
        operands: list[_Function | np.ndarray | None] = []
        for x in inputs:
            if x is None:
                operands.append(None)
            elif x.is_constant:
                if x.value.size != 1:
                    return None
                operands.append(x.value.reshape(()))
            else:
                operands.append(self.of(x))
                if operands[-1] is None:
                    return None
        functions = [o for o in operands if isinstance(o, _Function)]
        if len({f.source.handle for f in functions}) != 1:
            return None
        values = [
            evaluate_operator(op, node.attributes, [o.values[i] if isinstance(o, _Function) else o for o in operands])[
                0
            ]
            for i in range(len(FACTORS))
        ]
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
