"""What an iteration of a loop computes of a row of the sequence and of its states: sums of products by constants, and elementwise
functions of such.

A value with a row for each sequence is ``sum(atom @ matrix) + bias``, where an atom is what the iteration is given, or an
elementwise function of such values. What only cuts, joins and adds disappears in matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from eqsat.ir.composite import expanded
from eqsat.ir.graph import Graph, Node
from eqsat.ir.interpret import FAILURES, evaluate_node
from eqsat.ir.operator import definition_of
from eqsat.ir.types import DType

_MOST_NODES = 100
"""An LSTM takes about 30; of longer iterations nothing is read."""


def _digest(*parts: bytes) -> bytes:
    """The same for equal parts alone."""
    found = blake2b()
    for part in parts:
        found.update(len(part).to_bytes(8))
        found.update(part)
    return found.digest()


def _key(x: Atom | Affine) -> bytes:
    return x.key


@dataclass(frozen=True, eq=False)
class Atom:
    """A value that is given, by its name, or an operator applied to others element by element."""

    op: str
    operands: tuple[Affine, ...] = ()
    name: str = ""
    columns: int = 0

    @cached_property
    def key(self) -> bytes:
        return _digest(self.op.encode(), self.name.encode(), *(x.key for x in self.operands))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.key == other.key


@dataclass(frozen=True, eq=False)
class Affine:
    """``sum(atom @ matrix) + bias``, a column for each element of ``bias``."""

    parts: Mapping[Atom, np.ndarray]
    bias: np.ndarray

    @cached_property
    def key(self) -> bytes:
        parts = sorted(_digest(atom.key, matrix.tobytes()) for atom, matrix in self.parts.items())
        return _digest(*parts, self.bias.tobytes())

    @property
    def columns(self) -> int:
        return self.bias.size

    @property
    def atom(self) -> Atom | None:
        """The atom that this is and nothing else."""
        only = len(self.parts) == 1 and not self.bias.any()
        return next((a for a, matrix in self.parts.items() if only and is_identity(matrix)), None)

    def times(self, matrix: np.ndarray) -> Affine:
        return Affine({a: m @ matrix for a, m in self.parts.items()}, self.bias @ matrix)

    def scaled(self, factors: np.ndarray | float) -> Affine:
        return Affine({a: m * factors for a, m in self.parts.items()}, self.bias * factors)

    def plus(self, other: Affine) -> Affine:
        both = self.parts.keys() | other.parts.keys()
        parts = {a: sum(x.parts[a] for x in (self, other) if a in x.parts) for a in sorted(both, key=_key)}
        return Affine({a: np.asarray(m) for a, m in parts.items()}, self.bias + other.bias)

    def cut(self, start: int, stop: int) -> Affine:
        """Some columns; of a function of an element those of its operands."""
        found = Affine({}, self.bias[start:stop])
        for atom, matrix in self.parts.items():
            kept = matrix[:, start:stop]
            first = int(kept[:, 0].argmax()) if atom.operands and kept.size else -1
            if first >= 0 and np.array_equal(kept, np.eye(len(kept))[:, first : first + stop - start]):
                if len(kept) > stop - start:
                    operands = tuple(x.cut(first, first + stop - start) for x in atom.operands)
                    atom = Atom(atom.op, operands, "", stop - start)
                kept = np.eye(stop - start)
            found = found.plus(Affine({atom: kept}, np.zeros(stop - start)))
        return found


def is_identity(matrix: np.ndarray) -> bool:
    return matrix.shape[0] == matrix.shape[1] and np.array_equal(matrix, np.eye(len(matrix)))


def itself(atom: Atom) -> Affine:
    return Affine({atom: np.eye(atom.columns)}, np.zeros(atom.columns))


Value = np.ndarray | Affine | None
"""What is known of a value: its elements, or what it is computed from, or nothing."""


def read_step(graph: Graph, known: Mapping[str, np.ndarray], sources: Mapping[str, Affine]) -> Mapping[str, Value]:
    """What the values of an iteration are of its ``sources``, where ``known`` stay the same in all."""
    graph = expanded(graph)
    values: dict[str, Value] = {name: c.numpy() for name, c in graph.constants.items()}
    values.update(known)
    values.update(sources)
    for node in graph.nodes if len(graph.nodes) <= _MOST_NODES else ():
        if not set(node.outputs).isdisjoint(sources):
            continue
        operands = [values.get(v) if v else None for v in node.inputs]
        absent = any(x is None and v for x, v in zip(operands, node.inputs, strict=True))
        values.update(zip(node.outputs, () if absent else _results(node, operands), strict=False))
    return values


def _results(node: Node, operands: Sequence[Value]) -> Sequence[Value]:
    definition = definition_of(node)
    if definition is None or not definition.deterministic or node.domain:
        return ()
    if not any(isinstance(x, Affine) for x in operands):
        try:
            return evaluate_node(node, operands)
        except FAILURES:
            return ()
    x = operands[0]
    if node.op == "Split" and isinstance(x, Affine):
        return _split(node, x, operands[1] if len(operands) > 1 else None)
    found = _result(node, *operands)
    return () if found is None else (found,)


def _result(node: Node, x: Value, *others: Any) -> Affine | None:
    attr = node.attributes.get
    match node.op:
        case "Identity":
            return x if isinstance(x, Affine) else None
        case "Cast":
            return x if isinstance(x, Affine) and attr("to") == DType.FLOAT else None
        case "Sigmoid" | "Tanh" | "Relu":
            return _function(node.op, x)
        case "MatMul":
            return _product(x, others[0])
        case "Gemm":
            return _gemm(node, x, *others)
        case "Add":
            return _sum(x, others[0], 1.0)
        case "Sub":
            return _sum(x, others[0], -1.0)
        case "Mul":
            return _elementwise_product(x, others[0])
        case "Slice":
            return _slice(x, *others)
        case "Concat":
            return _joined([x, *others]) if attr("axis") in (1, -1) else None
        case _:
            return None


def _function(op: str, *operands: Value) -> Affine | None:
    """A function of each element, as an atom."""
    read = [x for x in operands if isinstance(x, Affine)]
    if len(read) < len(operands):
        return None
    return itself(Atom(op, tuple(read), "", read[0].columns))


def _product(x: Value, w: Value) -> Affine | None:
    if not isinstance(x, Affine) or not isinstance(w, np.ndarray) or w.ndim != 2:
        return None
    return x.times(w.astype(np.float64))


def _gemm(node: Node, x: Value, w: Value, c: Value = None) -> Affine | None:
    attr = node.attributes.get
    if attr("transA", 0) or not isinstance(w, np.ndarray):
        return None
    found = _product(x, w.T if attr("transB", 0) else w)
    if found is None:
        return None
    found = found.scaled(attr("alpha", 1.0))
    return found if c is None else _sum(found, c, attr("beta", 1.0))


def _row(x: Value, columns: int) -> Affine | None:
    """Of a constant the same row for each sequence."""
    if isinstance(x, Affine):
        return x if x.columns == columns else None
    if x is None or x.ndim > 2 or any(n != 1 for n in x.shape[:-1]) or x.shape[-1:] not in ((), (1,), (columns,)):
        return None
    return Affine({}, np.broadcast_to(x.reshape(-1), columns).astype(np.float64))


def _rows(x: Value, y: Value) -> tuple[Affine, Affine] | None:
    columns = next(v.columns for v in (x, y) if isinstance(v, Affine))
    a, b = _row(x, columns), _row(y, columns)
    return None if a is None or b is None else (a, b)


def _sum(x: Value, y: Value, factor: float) -> Affine | None:
    """``x + factor * y``."""
    both = _rows(x, y)
    return both and both[0].plus(both[1].scaled(factor))


def _elementwise_product(x: Value, y: Value) -> Affine | None:
    both = _rows(x, y)
    if both is None:
        return None
    for a, b in (both, both[::-1]):
        if not b.parts:
            return a.scaled(b.bias)
    return _function("Mul", *sorted(both, key=_key))


def _split(node: Node, x: Affine, sizes: Value) -> Sequence[Value]:
    if node.attributes.get("axis", 0) not in (1, -1):
        return ()
    count = len(node.outputs)
    if isinstance(sizes, np.ndarray):
        each = [int(n) for n in sizes]
    elif x.columns % count:
        return ()
    else:
        each = [x.columns // count] * count
    ends = np.cumsum(each).tolist()
    return [x.cut(end - n, end) for n, end in zip(each, ends, strict=True)]


def _slice(x: Value, starts: Value, ends: Value, axes: Value = None, steps: Value = None) -> Affine | None:
    if not isinstance(x, Affine) or not isinstance(starts, np.ndarray) or not isinstance(ends, np.ndarray):
        return None
    along = [0, 1][: starts.size] if axes is None else np.asarray(axes).tolist()
    every = [1] * starts.size if steps is None else np.asarray(steps).tolist()
    found = x
    for start, end, axis, step in zip(starts.tolist(), ends.tolist(), along, every, strict=True):
        if step != 1:
            return None
        if axis in (1, -1):
            first, last, _ = slice(start, end).indices(x.columns)
            found = found.cut(first, max(first, last))
        elif start != 0 or end < np.iinfo(np.int32).max:  # of how many sequences there are nothing is known
            return None
    return found


def _joined(values: Sequence[Value]) -> Affine | None:
    read = [x for x in values if isinstance(x, Affine)]
    if len(read) < len(values):
        return None
    columns = sum(x.columns for x in read)
    found, at = Affine({}, np.zeros(columns)), 0
    for x in read:
        place = np.eye(columns)[at : at + x.columns]
        found, at = found.plus(x.times(place)), at + x.columns
    return found
