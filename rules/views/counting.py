"""What counts along axes: values that are a sum of places, each times a stride, as indices are that exporters compute.

An index is followed from the look-up to what counts, through sums, products and views (`Indices`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from eqsat.ir.extents import add, at_least, minimum, multiply
from eqsat.ir.normal_form import Dim
from eqsat.ir.operator import Kind, Operator, operators_with
from eqsat.rewrite import GroupView, Ref, Unmet
from eqsat.rules.terms import Node, complete_nodes, established, nodes_by_class
from eqsat.rules.views.movement import cuts

_DEPTH = 10


@dataclass(frozen=True)
class Places:
    """``start`` plus each place along an axis times its stride."""

    start: Dim
    strides: Mapping[int, Dim]

    def moved(self, axes: Mapping[int, int]) -> Places:
        """With axes renamed; those without a name have one place, 0."""
        return Places(self.start, {axes[axis]: stride for axis, stride in self.strides.items() if axis in axes})


def is_view(op: Operator) -> bool:
    return op.traits.moves and op.kind is Kind.VIEW


def _repeats(op: Operator) -> bool:
    return op.traits.moves and op.traits.extents is not None


def _cuts_or_joins(op: Operator) -> bool:
    traits = op.traits
    return traits.moves and not (traits.permutes or traits.widens or traits.or_zero or traits.indices)


def _computes(op: Operator) -> bool:
    """Whether an operator computes with two numbers, or converts them."""
    return op.traits.converts or (op.traits.operands == 2 and bool(op.traits.affine))


class Indices:
    """Values that count along axes, by class."""

    def __init__(self, view: GroupView) -> None:
        self._view = view
        self._found: dict[int, Places | None] = {}

    @cached_property
    def nodes(self) -> dict[int, list[Node]]:
        """The operators read, by class: first what counts, and views, which lead round in circles, last. Most graphs have no
        look-up that asks for them."""
        kinds = (_computes, _repeats, _cuts_or_joins, is_view)
        ops = ("Range", "CumSum", *(op for kind in kinds for op in operators_with(kind)))
        return nodes_by_class(self._view, ops)

    def of(self, value: Ref, depth: int = _DEPTH) -> Places | None:
        """``value`` as a sum of places, or ``None``."""
        if value.handle not in self._found and depth:
            self._found[value.handle] = None  # a circle leads nowhere
            self._found[value.handle] = self._read(value, depth - 1)
        return self._found.get(value.handle)

    def difference(self, value: Ref, pair: Sequence[Ref], depth: int = _DEPTH) -> Places | None:
        """How far two values are apart at each place of the one that they are broadcast to."""
        a, b = (self._beside(x, value, depth) for x in pair)
        return None if a is None or b is None else _sum(a, _scaled(b, -1))

    def _beside(self, operand: Ref, value: Ref, depth: int) -> Places | None:
        found = self.of(operand, depth)
        return found and broadcast(found, operand.shape, value.shape)

    def _joined(self, value: Ref, parts: Sequence[Ref], depth: int) -> Places | None:
        """One place before others, which goes on as they do: none, where there are no others."""
        first, rest = (self.of(x, depth) for x in parts) if len(parts) == 2 else (None, None)
        axis = int(value.attr("axis")) % value.rank
        if first is None or rest is None or axis in first.strides or axis not in rest.strides:
            return None
        length, more = (x.shape[axis] for x in parts)
        one = length == 1 or length == minimum(1, more)
        before = add(rest.start, multiply(rest.strides[axis], -1))
        others = {i: s for i, s in rest.strides.items() if i != axis}
        return Places(first.start, rest.strides) if one and (before, others) == (first.start, first.strides) else None

    def along_axes(self, grid: Ref) -> Iterator[list[Places | None]]:
        """The places along each axis where a grid has them side by side along its last axis."""
        for op, joint, parts in self.nodes.get(grid.handle, ()):
            if op == "Concat" and joint.attr("axis") in (-1, len(grid.type.shape or ()) - 1):
                yield [self.of(p) for p in parts if p is not None]

    @cached_property
    def counts(self) -> dict[Dim, Ref]:
        """Vectors that count from 0, by their extent."""
        found = (node for node, _ in complete_nodes(self._view, "Range"))
        return {node.shape[0]: node for node in found if self.of(node) == Places(0, {0: 1})}

    def _read(self, value: Ref, depth: int) -> Places | None:
        if value.type.shape is None:
            return None
        if all(d == 1 for d in value.shape):
            try:
                return Places(value.dims[0], {})
            except Unmet:
                pass
        if value.is_constant:
            return _counting(value)
        nodes = self.nodes.get(value.handle, ())
        whole = ((op, node, inputs) for op, node, inputs in nodes if op != "Slice" or None not in inputs)
        spelled = ((op, node, [x for x in inputs if x is not None], depth) for op, node, inputs in whole)
        return next(established(self._of_node, spelled), None)

    def _of_node(self, op: str, value: Ref, inputs: Sequence[Ref], depth: int) -> Places | None:
        if op == "Range":
            return Places(inputs[0].dims[0], {0: inputs[2].dims[0]})
        if op == "Concat":
            return self._joined(value, inputs, depth)
        if op == "Sub":
            return self.difference(value, inputs, depth) if value.dtype.is_signed else None
        if op in ("Add", "Mul"):
            a, b = (self._beside(y, value, depth) for y in inputs)
            return None if a is None or b is None else _sum(a, b) if op == "Add" else _multiple(a, b)
        x = self.of(inputs[0], depth)
        if x is None:
            return None
        if op == "Slice":
            return _sliced(x, value, *inputs)
        if op == "CumSum":
            return _summed(x, value, inputs[1])
        if op == "Expand":
            return broadcast(x, inputs[0].shape, value.shape)
        if op == "Cast":
            return x if value.dtype.is_integer and value.dtype.is_signed and value.dtype.bits >= 32 else None
        kept = _kept(inputs[0].shape, value.shape) if op in operators_with(is_view) else None
        return None if kept is None else x.moved(kept)


def _summed(x: Places, value: Ref, axis: Ref) -> Places | None:
    """One number added up along an axis."""
    if x.strides or value.attr("reverse", 0):
        return None
    along = int(axis.value.reshape(())) % value.rank
    return Places(0 if value.attr("exclusive", 0) else x.start, {along: x.start} if x.start != 0 else {})


def _counting(value: Ref) -> Places | None:
    """A constant that counts along its axes."""
    try:
        found = value.value
    except Unmet:
        return None
    if not value.dtype.is_integer or not found.size:
        return None
    start = int(found.flat[0])
    strides = {i: int(found.take(1, axis=i).flat[0]) - start for i, n in enumerate(found.shape) if n > 1}
    whole = start + sum(np.indices(found.shape)[i] * stride for i, stride in strides.items())
    return Places(start, strides) if np.array_equal(found, np.broadcast_to(whole, found.shape)) else None


def _sum(a: Places, b: Places) -> Places:
    strides = {i: add(a.strides.get(i, 0), b.strides.get(i, 0)) for i in sorted({*a.strides, *b.strides})}
    return Places(add(a.start, b.start), {i: s for i, s in strides.items() if s != 0})


def _scaled(places: Places, factor: Dim) -> Places:
    return Places(multiply(places.start, factor), {i: multiply(s, factor) for i, s in places.strides.items()})


def _multiple(a: Places, b: Places) -> Places | None:
    return _scaled(a, b.start) if not b.strides else _scaled(b, a.start) if not a.strides else None


def _sliced(
    x: Places, value: Ref, data: Ref, starts: Ref, ends: Ref, axes: Ref | None = None, steps: Ref | None = None
) -> Places | None:
    """The places that a Slice takes, forward from a known one; where there is at most one, what comes next is no matter."""
    start, strides = x.start, dict(x.strides)
    for axis, first, step in cuts(data, starts, axes, steps):
        if axis in strides:
            if first < 0 or step < 1:
                return None
            start = add(start, multiply(strides[axis], first))
            strides[axis] = multiply(strides[axis], step)
            if at_least(1, value.shape[axis]):
                del strides[axis]
    return Places(start, strides)


def broadcast(places: Places, shape: Sequence[Dim], result: Sequence[Dim]) -> Places | None:
    """The places in what an operand broadcasts to; ``None`` where a symbol may be 1, and what counts along it be repeated."""
    shift = len(result) - len(shape)
    if any(shape[i] not in (1, result[i + shift]) for i in places.strides):
        return None
    return places.moved({i: i + shift for i, d in enumerate(shape) if d != 1})


def _kept(shape: Sequence[Dim], result: Sequence[Dim]) -> dict[int, int] | None:
    """Where the axes of a value are in a view of it, ``None`` for a view that does more than add and drop ones."""
    before, behind = ([i for i, d in enumerate(s) if d != 1] for s in (shape, result))
    same = [shape[i] for i in before] == [result[i] for i in behind]
    return dict(zip(before, behind, strict=True)) if same else None
