"""What a program says about the largest extents: where one is too large it fails, so nothing needs to hold beyond."""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import permutations

from eqsat.ir.extents import at_least, is_nameless, operands, substitute, symbols, terms
from eqsat.ir.graph import Graph, Node
from eqsat.ir.normal_form import form_of, function_of
from eqsat.ir.operator import definition_of
from eqsat.ir.types import Dim

Limits = Mapping[str, int]
"""The largest number that each of some symbols stands for."""


def limits_of(graph: Graph) -> Limits:
    """The limits of symbols that the operators of a graph imply.

    What is broadcast with 512 elements, or with ``min(512, seq)`` of them as the first rows of a table are, has at most 512.
    """
    limits: dict[str, int] = {}
    for symbol, other in (pair for node in graph.nodes for pair in _broadcast_extents(graph, node)):
        limit = _limit(symbol, other)
        if limit is not None:
            limits[str(symbol)] = min(limit, limits.get(str(symbol), limit))
    return limits


def _broadcast_extents(graph: Graph, node: Node) -> Iterator[tuple[Dim, Dim]]:
    """Extents of two operands along one axis, either first."""
    definition = definition_of(node)
    count = 0 if definition is None else definition.traits.operands
    types = map(graph.type_of, filter(None, node.inputs[:count]))
    for a, b in permutations([type.shape for type in types if type.shape is not None], 2):
        yield from zip(reversed(a), reversed(b), strict=False)


def _limit(symbol: Dim, other: Dim) -> int | None:
    """The largest ``symbol`` that broadcasts with ``other``, if there is one and ``symbol`` is one."""
    if isinstance(symbol, int) or symbols(symbol) != frozenset({symbol}) or is_nameless(symbol):
        return None
    if isinstance(other, int):
        return other if other > 1 else None
    return next((number for extent, number in limits_of_broadcast(symbol, other) if extent == symbol), None)


def largest(dim: Dim, limits: Limits) -> float:
    """A number that an extent does not exceed; infinite where none is known."""
    if isinstance(dim, int):
        return dim
    bound = 0.0
    for number, factors in terms(dim):
        if number > 0:
            bound += number * math.prod(_largest_factor(f, limits) for f in factors)
        elif any(function_of(f) for f in factors):  # it may be negative
            return math.inf
    return bound


def _largest_factor(atom: str, limits: Limits) -> float:
    if function_of(atom) is None:
        return limits.get(atom, math.inf)
    return min((largest(o, limits) for o in operands(atom, "min")), default=math.inf)


def limits_of_broadcast(*dims: Dim) -> Iterator[tuple[Dim, int]]:
    """Extents, and numbers that they do not exceed where ``dims`` broadcast: ``n`` for ``x`` beside ``min(n, x)``.

    >>> list(limits_of_broadcast("broadcast(min(512, seq), n)", "seq"))
    [('seq', 512)]
    """
    parts = {part for d in dims if isinstance(d, str) for part in operands(d, "broadcast") or (d,)}
    for part in sorted(part for part in parts if isinstance(part, str) and part.startswith("min(")):
        first = operands(part, "min")
        numbers = [n for n in first if isinstance(n, int) and n > 1]
        others = parts.intersection(first)
        if numbers and {*numbers, *others} == set(first) and len(others) == 1:
            yield others.pop(), min(numbers)


def at_most(dim: Dim, larger: Dim, limit: int) -> Dim:
    """An extent where ``larger`` is ``limit`` or less: the first so many of what is never larger are all of it.

    >>> at_most("max(0, min(256, past + seq) - min(256, past))", "past + seq", 256)
    'seq'
    """
    whole: dict[str, Dim] = {}
    for atom in _functions(dim):
        first = operands(atom, "min")
        others = [d for d in first if not isinstance(d, int)]
        if len(others) == 1 and min(d for d in first if isinstance(d, int)) >= limit and at_least(larger, others[0]):
            whole[atom] = others[0]
    return substitute(dim, whole)


@cache
def _functions(dim: Dim) -> frozenset[str]:
    """The functions of extents that an extent is made of."""
    called = {atom: found for factors in form_of(dim) for atom in factors if (found := function_of(atom))}
    return frozenset(called).union(*(_functions(d) for _, operands in called.values() for d in operands))
