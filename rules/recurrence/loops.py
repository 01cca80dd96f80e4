"""Loops that run through a sequence, an operator's step in each iteration, as the operator over the whole sequence.

A loop of a known number of iterations reads one row of a sequence in each, at the number of the iteration. Its condition holds in
all but the last: it is computed for each of their numbers, unless it is handed on.

ONNX Runtime takes 0.1 to 1.05 of a loop's time for GRU and LSTM, with 32 to 512 units and 1 to 64 sequences. RNN takes 0.3 to
1.02 of it with one sequence, but 0.7 to 4.5 with four and 1.9 to 4.5 with more: so RNN is for one sequence only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.graph import Graph, Node, captures_of
from eqsat.ir.interpret import FAILURES, evaluate_node
from eqsat.ir.operator import traits_of
from eqsat.ir.types import DType
from eqsat.rewrite import OPAQUE, GroupView, Merge, Ref, Term, Unmet, apply, literal
from eqsat.rules.recurrence.cells import Cell, cells_of
from eqsat.rules.recurrence.samples import draw_loop
from eqsat.rules.recurrence.steps import Affine, Atom, itself, read_step
from eqsat.rules.terms import established, int64s, outputs_of

_MOST_ITERATIONS = 1 << 16
"""Of more nobody computes the condition."""


@dataclass(frozen=True)
class _Sequence:
    """What an iteration reads a row of, under a name of its own, and how many iterations there are."""

    row: str
    whole: Ref


class _Body:
    """The body of a Loop, with the values of the graph around that it is given."""

    def __init__(self, node: Ref, inputs: Sequence[Ref | None]) -> None:
        body, own = node.attributes.bodies[0], len(inputs) - captures_of(node.attributes)
        if body.graph is None or len(node.attributes.bodies) > 1 or not 2 <= own <= len(body.graph.outputs) + 1:
            raise Unmet("the body is not read")
        self.graph: Graph = body.graph
        around = zip(body.captures, inputs[own:], strict=True)
        self.same: Mapping[str, Ref] = {v: x for v, x in around if x is not None}
        self._makers = self.graph.producers()
        self._limit, self._goes_on, *self.initial = inputs[:own]
        self._number, self._condition, *self.states = self.graph.inputs[:own]
        self._goes_on_after, *self.results = map(self.itself, self.graph.outputs)

    def itself(self, value: str) -> str:
        """A value by the name under which it was first known."""
        while (maker := self._makers.get(value)) is not None and (
            maker.key == "Identity" or (maker.key == "Cast" and self._keeps_type(maker))
        ):
            value = maker.inputs[0]
        return value

    def _keeps_type(self, cast: Node) -> bool:
        found = self.graph.type_of(cast.inputs[0])
        return getattr(found, "dtype", None) == cast.attributes["to"]

    @cached_property
    def numbers(self) -> frozenset[str]:
        """Values that are the number of the iteration, from 0."""
        found = {self._number}
        for value, start, end in zip(self.states, self.initial, self.results, strict=False):
            maker = self._makers.get(end)
            if start is None or maker is None or maker.key != "Add" or value not in maker.inputs:
                continue
            (step,) = [v for v in maker.inputs if v != value] or [""]
            one = self.constant(step)
            if one is not None and one.size == 1 and one == 1 and self.is_zero(start):
                found.add(value)
        return frozenset(found)

    @staticmethod
    def is_zero(start: Ref) -> bool:
        return start.dtype.is_integer and start.rank == 0 and not start.value.any()

    def constant(self, value: str) -> np.ndarray | None:
        found = self.graph.constants.get(value)
        if found is not None:
            return found.numpy()
        try:
            return self.same[value].elements if value in self.same else None
        except Unmet:
            return None

    def sequences(self) -> Iterator[_Sequence]:
        """Each that an iteration reads a row of, if it has as many as there are iterations."""
        iterations = 0 if self._limit is None or self._limit.type.size != 1 else int(self._limit.value.reshape(()))
        if not self._runs_to_the_end(iterations):
            return
        for node in self.graph.nodes:
            if (
                node.key != "Gather"
                or node.attributes.get("axis", 0)
                or self.itself(node.inputs[1]) not in self.numbers
            ):
                continue
            whole = self.same.get(self.itself(node.inputs[0]))
            if whole is not None and whole.shape[0] == iterations:
                yield _Sequence(node.outputs[0], whole)

    def _runs_to_the_end(self, iterations: int) -> bool:
        """Whether there is an iteration, and nothing but their number ends the loop."""
        if iterations < 1 or (self._goes_on is not None and not self._goes_on.value.all()):
            return False
        if self._goes_on_after == self._condition:
            return True
        if iterations > _MOST_ITERATIONS:
            return False
        found = self._of_numbers(self._goes_on_after, np.arange(iterations - 1))
        return found is not None and bool(found.all())

    def _of_numbers(self, value: str, numbers: np.ndarray) -> np.ndarray | None:
        """A value in each iteration, computed from its number element by element."""
        if value in self.numbers:
            return numbers.astype(self.graph.type_of(value).dtype.numpy)
        known, maker = self.constant(value), self._makers.get(value)
        if known is not None:
            return known.reshape(-1) if known.size == 1 else None
        if maker is None or not traits_of(maker.key, maker.attributes).operands:
            return None
        operands = [self._of_numbers(v, numbers) for v in maker.inputs]
        if any(x is None for x in operands):
            return None
        try:
            return evaluate_node(maker, operands)[maker.outputs.index(value)]
        except FAILURES:
            return None


def _lifted(body: _Body, sequence: _Sequence) -> tuple[Mapping[int, Term], Mapping[str, Term]] | None:
    """What the operator makes of each state by place, and the rows that it makes, by their names in the body."""
    x = sequence.whole
    if x.dtype is not DType.FLOAT or x.rank != 3:
        return None
    batch, width = x.shape[1:]
    if not isinstance(width, int):
        return None
    row = Atom("", (), sequence.row, width)
    atoms: list[Atom | None] = []
    for name, start in zip(body.states, body.initial, strict=True):
        fits = start is not None and start.dtype is DType.FLOAT and start.rank == 2 and start.shape[0] == batch
        size = start.shape[1] if start is not None and fits else 0
        atoms.append(Atom("", (), name, size) if isinstance(size, int) and size else None)
    known = {name: found for name in body.same if (found := body.constant(name)) is not None}
    values = read_step(body.graph, known, {a.name: itself(a) for a in (row, *atoms) if a is not None})
    results = [values.get(v) for v in body.results[: len(atoms)]]
    read = [v if isinstance(v, Affine) else None for v in results]
    for cell in cells_of(row, atoms, read):
        weights = cell.weights()
        pays = cell.op != "RNN" or batch == 1
        if pays and all(np.isfinite(m).all() for m in weights):
            return _applied(cell, weights, body, x)
    return None


def _applied(
    cell: Cell, weights: Sequence[np.ndarray], body: _Body, x: Ref
) -> tuple[Mapping[int, Term], Mapping[str, Term]]:
    starts = [apply("Unsqueeze", body.initial[i], int64s((0,))) for i in cell.states]
    size = weights[1].shape[-1]
    made = apply(
        cell.op, x, *map(literal, weights), None, *starts, outputs=1 + len(starts), hidden_size=size, **cell.attributes
    )
    ends = {place: apply("Squeeze", made.output(1 + i), int64s((0,))) for i, place in enumerate(cell.states)}
    rows = {body.results[cell.states[0]]: apply("Squeeze", made.output(0), int64s((1,)))}
    return ends, rows


group_rule = Equations(__name__, exactness=Exactness.ROUNDING, source="ONNX Loop, RNN, GRU and LSTM").over_groups


def _read(node: Ref, inputs: Sequence[Ref | None]) -> tuple[_Body, Mapping[int, Term], Mapping[str, Term]] | None:
    body = _Body(node, inputs)
    for sequence in body.sequences():
        found = _lifted(body, sequence)
        if found is not None:
            return body, *found
    return None


@group_rule(sample=draw_loop, raises=True)  # of how many iterations a Loop makes rows its type does not say
def lift_recurrent_operator(view: GroupView) -> Iterator[Merge]:
    """``Loop(h = step(x[t], h)) == LSTM(x, h)``, and so GRU and RNN, where one iteration is a step of the operator."""
    for node, inputs in view.nodes(f"{OPAQUE}::Loop"):
        for body, ends, rows in established(_read, [(node, inputs)]):
            for place, value in (outputs_of(view, node) or {0: node}).items():
                rest = body.results[place : place + 1]
                found = ends.get(place) if place < len(body.states) else rows.get(rest[0]) if rest else None
                if found is not None:
                    yield value, found
