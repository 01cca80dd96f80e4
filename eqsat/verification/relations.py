"""What the symbolic dimensions of a model have to do with one another.

Models with stored keys and values take a mask of ``past + sequence``, and exporters name one extent twice. Nothing in the
file says so; it shows where the operands of a node have to agree. So the symbols get numbers whose sums are all different,
the shapes are followed through the graph, and where a node refuses its operands, the two extents that contradict each other
are read as sums of symbols again: that they are equal is the relation. What follows from it has to take the shapes past
that node, else it is dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from eqsat.ir.extents import add, at_least, multiply, substitute, subtract, symbols
from eqsat.ir.graph import Graph
from eqsat.ir.nominal import leading_symbols
from eqsat.ir.operator import Kind, kind_of
from eqsat.ir.types import Dim
from eqsat.verification.extents import Sized, sized

_SCALES = (1, 16, 256)
"""Small numbers first: buffers that a model slices have an end. Large ones where windows do not fit into small ones."""

_MOST_TRIES = 200
"""Relations tried for one graph. Each costs one pass over its nodes."""


@dataclass(frozen=True)
class Relations:
    """``free``: symbols that may have any extent, in order of appearance; ``bound``: what the others are."""

    free: tuple[str, ...]
    bound: Mapping[str, Dim] = field(default_factory=dict[str, Dim])

    def complete(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Extents of all symbols, from those of the free ones."""
        return {**{s: sizes[s] for s in self.free}, **{s: extent_of(e, sizes) for s, e in self.bound.items()}}

    def binding(self, symbol: str, to: Dim) -> Relations:
        """With ``symbol`` bound as well."""
        kept = {s: substitute(e, {symbol: to}) for s, e in self.bound.items()}
        return Relations(tuple(s for s in self.free if s != symbol), {**kept, symbol: to})


def symbols_of(graph: Graph) -> tuple[str, ...]:
    """Symbolic dimensions of the inputs, in order of appearance; expressions over others (``a + b``) left out."""
    found: dict[str, None] = {}
    for name in graph.inputs:
        found.update(dict.fromkeys(d for d in graph.type_of(name).shape or () if isinstance(d, str)))
    return tuple(d for d in found if symbols(d) == frozenset((d,)))


def input_shapes(graph: Graph, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs of known rank. ``sizes``: extents of the symbols (see `symbols_of`)."""
    return {
        name: tuple(extent_of(d, sizes) for d in shape)
        for name in graph.inputs
        if (shape := graph.type_of(name).shape) is not None
    }


def extent_of(dimension: int | str, sizes: Mapping[str, int]) -> int:
    """An extent as a number. What is made of known symbols is worked out; with an unknown one it becomes 4."""
    found = substitute(dimension, sizes)
    return found if isinstance(found, int) else 4


def relations_of(graph: Graph) -> Relations:
    """The relations between the symbols of ``graph``, as far as its shapes tell them."""
    symbols = symbols_of(graph)
    scales = _SCALES if symbols else ()
    for scale in scales:  # extents that differ fit as they are: whatever else makes other extents fit is chance
        search = _Search(graph, symbols, scale)
        if search.state.misfit is None:
            return search.run()[0]
    best, reached = Relations(symbols), -1
    for fixed, scale in itertools.product((False, True), scales):
        found, misfit = _Search(graph, symbols, scale, fixed).run()
        if misfit is None:
            return found
        if misfit > reached:
            best, reached = found, misfit
    return best


class _Search:
    """``fixed``: a symbol may also turn out to be one number. That is the last resort, and of it 1, which broadcasts to any."""

    def __init__(self, graph: Graph, symbols: Sequence[str], scale: int, fixed: bool = False) -> None:
        self.graph = graph
        self.fixed = fixed
        self.numbers = dict(zip(symbols, _telling_numbers(len(symbols), scale, _extents_in(graph)), strict=True))
        self.found = Relations(tuple(symbols))
        self.state = self._shapes(self.found)
        self._leading = leading_symbols(graph)
        self._left = _MOST_TRIES

    def run(self) -> tuple[Relations, int | None]:
        """The relations found, and the node that they do not take the shapes past, if there is one."""
        start = self.found
        self._settle()
        alike = _alike(self.graph, start)
        if self.state.misfit is not None and alike is not None:
            self._left = _MOST_TRIES
            if self._accept(alike, self.state.misfit + 1):
                self._settle()
        return self.found, self.state.misfit

    def _settle(self) -> None:
        self._bind_totals()
        while self.state.misfit is not None and self._step(self.state.misfit):
            pass
        self._bind_totals()

    def _step(self, misfit: int) -> bool:
        """Takes the first relation that brings the shapes past the node, or at least more of its axes into agreement."""
        proposals = list(self._proposals())
        if any(self._accept(self.found.binding(*proposal), misfit + 1) for proposal in proposals):
            return True
        wrong = len(_differing(self.graph, self.state)[0])
        for proposal in proposals if kind_of(self.graph.nodes[misfit]) is Kind.ELEMENTWISE else ():
            bound = self.found.binding(*proposal)
            state = self._shapes(bound)
            if state.misfit == misfit and len(_differing(self.graph, state)[0]) < wrong:
                self.found, self.state = bound, state
                return True
        return False

    def _bind_totals(self) -> None:
        """Takes a symbol for the sum of two others whose sum is an extent somewhere, where nothing speaks against it.

        A mask over stored and new keys may be longer than both: no operand contradicts, but that is not how it is used.
        Batches are no lengths.
        """
        extents = {d for t in self.state.types.values() for d in t.shape or ()}
        lengths = [s for s in self.found.free if s not in self._leading]
        for total, one, two in itertools.permutations(lengths, 3):
            if self.numbers[one] + self.numbers[two] in extents and {total, one, two} <= set(self.found.free):
                beyond = None if self.state.misfit is None else self.state.misfit + 1
                self._accept(self.found.binding(total, add(one, two)), beyond)

    def _accept(self, relations: Relations, stop: int | None) -> bool:
        """Takes ``relations`` if with them the shapes get to node ``stop`` (to the end if that is ``None``)."""
        self._left -= 1
        if self._left < 0 or self._shapes(relations, stop).misfit is not None:
            return False
        self.found, self.state = relations, self._shapes(relations)
        return True

    def _shapes(self, relations: Relations, stop: int | None = None) -> Sized:
        return sized(self.graph, input_shapes(self.graph, relations.complete(self.numbers)), stop)

    def _proposals(self) -> Iterator[tuple[str, Dim]]:
        """What could make the operands of the node agree that refused them, most likely first."""
        proposed: set[tuple[str, Dim]] = set()
        for a, b in _pairs(self.graph, self.state):
            said = (a, b) == self.state.wanted
            meant = self._meant(b) if said else self._readings(b)
            for left, right in itertools.product(self._readings(a), meant):
                for found in _solutions(subtract(left, right), self.found.free):
                    if found not in proposed and (isinstance(found[1], str) or self.fixed or said):
                        proposed.add(found)
                        yield found
        if self.fixed:
            yield from self._broadcasting()

    def _broadcasting(self) -> Iterator[tuple[str, Dim]]:
        """Symbols that may be 1 where an extent does not broadcast: decoders that take many tokens, or one behind stored keys."""
        for extents in _pairs(self.graph, self.state):
            yield from ((s, 1) for n in extents for s in self.found.free if self.numbers[s] == n)

    def _meant(self, extent: int) -> list[Dim]:
        """What an extent is that a definition asks for: a sum of symbols if it is one exactly, else the number."""
        numbers, pairs = self.numbers, itertools.combinations(self.found.free, 2)
        return [add(s, t) for s, t in pairs if numbers[s] + numbers[t] == extent] or [extent]

    def _readings(self, extent: int) -> list[Dim]:
        """The sums of free symbols that have this value, and the number itself."""
        found: list[Dim] = []
        for s in self.found.free:
            left = extent - self.numbers[s]
            if left == self.numbers[s]:
                found.append(multiply(2, s))
            elif abs(left) <= 1:
                found.append(add(s, left))
        for s, t in itertools.combinations(self.found.free, 2):
            if abs(left := extent - self.numbers[s] - self.numbers[t]) <= 1:
                found.append(add(add(s, t), left))
        return [*found, extent]


def _extents_in(graph: Graph) -> frozenset[int]:
    types = (*graph.types.values(), *(c.type for c in graph.constants.values()))
    return frozenset(d for t in types for d in t.shape or () if isinstance(d, int))


def _telling_numbers(count: int, scale: int, known: Set[int]) -> list[int]:
    """Multiples of ``scale`` of which no two sums of up to two are equal, or near to each other or to ``known``."""
    found: list[int] = []
    taken = set(known)
    candidate = 7 * scale
    while len(found) < count:
        sums = {candidate, 2 * candidate, *(candidate + n for n in found)}
        near = {s + k for s in sums for k in (-1, 0, 1)}
        if taken.isdisjoint(near):
            found.append(candidate)
            taken |= sums
        candidate += scale
    return found


def _alike(graph: Graph, relations: Relations) -> Relations | None:
    """With the symbols of inputs of one dtype, rank (3 or more) and known extents equal axis by axis: stored keys and
    values of many layers."""
    first: dict[object, str] = {}
    found = relations
    for name in graph.inputs:
        tensor = graph.type_of(name)
        if tensor.shape is None or len(tensor.shape) < 3:
            continue
        form = (tensor.dtype, tuple(d if isinstance(d, int) else None for d in tensor.shape))
        for axis, d in enumerate(tensor.shape):
            other = first.setdefault((form, axis), d) if isinstance(d, str) else d
            if isinstance(d, str) and isinstance(other, str) and other != d and {d, other} <= set(found.free):
                found = found.binding(d, other)
    return found if found.bound else None


def _pairs(graph: Graph, state: Sized) -> list[tuple[int, int]]:
    """Extents of the operands of the node that refused them, in pairs: what its definition says, then those of one axis, counted
    from the last, then others."""
    said = () if state.wanted is None else (state.wanted,)
    aligned, others = _differing(graph, state)
    return [*said, *aligned, *(pair for pair in others if pair not in aligned)]


def _differing(graph: Graph, state: Sized) -> tuple[dict[tuple[int, int], None], dict[tuple[int, int], None]]:
    """Those of one axis, and others."""
    assert state.misfit is not None
    node = graph.nodes[state.misfit]
    lists: list[Sequence[int | str]] = []
    for value in node.inputs:
        shape = state.type_of(value).shape
        if shape is not None:
            lists.append(shape)
        numbers = state.numbers.get(value)
        if numbers is not None and numbers.dtype == np.int64 and numbers.ndim == 1:
            lists.append(numbers.tolist())
    aligned: dict[tuple[int, int], None] = {}
    others: dict[tuple[int, int], None] = {}
    for one, two in itertools.combinations(lists, 2):
        for i, j in itertools.product(range(len(one)), range(len(two))):
            a, b = one[len(one) - 1 - i], two[len(two) - 1 - j]
            if isinstance(a, int) and isinstance(b, int) and a != b and min(a, b) > 1:
                (aligned if i == j else others)[a, b] = None
    return aligned, others


def _solutions(difference: Dim, order: Sequence[str]) -> Iterator[tuple[str, Dim]]:
    """What each symbol has to be for ``difference`` to be 0, without anything negative in it; the last symbol first."""
    for symbol in reversed(order):
        rest = substitute(difference, {symbol: 0})
        values = {symbol: subtract(0, rest), multiply(-1, symbol): rest}
        value = values.get(subtract(difference, rest), 0)
        if value != 0 and at_least(value, 0):
            yield symbol, value
