"""Extents to run a model at, most telling first, within a bound on memory."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from eqsat.ir.graph import Graph
from eqsat.ir.nominal import leading_symbols
from eqsat.ir.order import reached
from eqsat.ir.parts import part_at
from eqsat.verification.extents import Sized, sized
from eqsat.verification.relations import input_shapes, relations_of, symbols_of

TRIAL_BYTES = 1 << 29
"""Extents are chosen so that the values alive at once are estimated to take no more than this, constants aside. (What a run
takes: some operators need as much again while they work, and noise is of the size of what it disturbs.)"""

_HINTS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("batch", (2, 3, 4)),
    ("height", (64, 32, 224)),
    ("width", (48, 32, 224)),
    ("past", (3, 4, 8)),
    ("seq", (7, 12, 16)),
    ("len", (7, 12, 16)),
)
_LEADING = ((2, 3, 4), (3, 4, 8), (4, 2, 6))
_OTHERS = ((5, 9, 8), (3, 4, 8), (11, 6, 8), (13, 10, 8))
_UNJUDGED = 3
"""Extents tried although the shape rules refuse all: the runtime may know better."""

_GROWN = (2, 4, 8, 16, 32, 64, 128, 224, 1024, 512, 4096, 16384, 65536, 1 << 18, 1 << 20)
"""Extents tried where hints do not fit: of everything but batches together, of each alone, of all.

A window of 512 in a signal of 1024 can be moved, in one of 512 it cannot."""

_TRACED, _TRACED_NODES = 1024, 100_000
"""Where none of these fits, each extent up to this one is tried, and so many nodes are sized for it, at most: a model whose
tables belong to one size (positions of patches) runs at no other, whatever its inputs say."""


class Sizes:
    """Extents of the symbolic dimensions of ``graph``."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.relations = relations_of(graph)
        self._leading = leading_symbols(graph)
        self._batches = {s for s in self.relations.free if s in self._leading or "batch" in s.lower()}

    def candidates(self) -> Iterator[dict[str, int]]:
        """Extents that fit, most telling first: pairwise different ones; all 1; batches of 1; equal ones, larger and larger."""
        if not symbols_of(self.graph):
            yield {}
            return
        seen: list[dict[str, int]] = []
        large: dict[int, dict[str, int]] = {}
        for sizes, found in itertools.chain(map(self._mended, self._proposed()), self._traced(seen)):
            if sizes not in seen and (needed := _bytes(found)) is not None:
                if needed <= TRIAL_BYTES:
                    yield sizes
                else:
                    large.setdefault(needed, sizes)
                seen.append(sizes)
        if large and len(large) == len(seen):
            yield large[min(large)]  # the known extents alone take more: there is nothing smaller to run
        if not seen:
            yield from itertools.islice(self._proposed(), _UNJUDGED)

    def empty(self, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """``sizes`` with one symbol 0, each that can be: nothing stored yet, no rows. Lengths come before batches."""
        for symbol in sorted(self.relations.free, key=self._leading.__contains__):
            changed = self.relations.complete({**sizes, symbol: 0})
            needed = _bytes(self._sized(changed))
            if needed is not None and needed <= TRIAL_BYTES:
                yield changed

    def _proposed(self) -> Iterator[dict[str, int]]:
        complete = self.relations.complete
        free = self.relations.free
        batches = self._batches
        general = [_distinct(free, self._leading, k) for k in range(3)]
        yield complete(general[0])
        # What has to be some number where operands broadcast may be 1 as well.
        ones = complete(dict.fromkeys(free, 1))
        yield {**ones, **{s: 1 for s, value in self.relations.bound.items() if isinstance(value, int)}}
        yield ones
        yield complete({s: 1 if s in batches else general[1][s] for s in free})
        yield from map(complete, general[1:])
        lengths = [s for s in free if s not in batches]
        for extent in _GROWN:
            for rows in (2, 1):
                yield self._alike(rows, extent)
            yield from (complete({**general[0], s: extent}) for s in lengths)
            yield complete(dict.fromkeys(free, extent))

    def _traced(self, seen: Sequence[Mapping[str, int]]) -> Iterator[tuple[dict[str, int], Sized]]:
        """Extents that fit where nothing was ``seen`` to: where a node refuses its operands the least one at which it takes them,
        of all inputs that it is computed from, batches aside; so from node to node. A text is as long as before where an image
        has to have one size."""
        complete = self.relations.complete
        sizes = complete(_distinct(self.relations.free, self._leading, 0))
        found, left, place = self._sized(sizes), _TRACED_NODES, -1
        while not seen and found.misfit is not None and found.misfit > place:
            place = found.misfit
            part = self._computing(place)
            lengths = [s for s in symbols_of(part) if s in self.relations.free and s not in self._batches]
            most = min(_TRACED, left // len(part.nodes)) if lengths else 0
            tried = (complete({**sizes, **dict.fromkeys(lengths, extent)}) for extent in range(1, most + 1))
            sizes = next((s for s in tried if sized(part, input_shapes(part, s)).misfit is None), sizes)
            left -= max((sizes[s] for s in lengths), default=0) * len(part.nodes)
            found = self._sized(sizes)
        if not seen and found.misfit is None:
            yield sizes, found
            yield (single := complete({**sizes, **dict.fromkeys(self._batches, 1)})), self._sized(single)

    def _computing(self, place: int) -> Graph:
        """The node at ``place``, with all that it is computed from."""
        producers = self.graph.producers()
        read = reached(self.graph.nodes[place].inputs, lambda v: producers[v].inputs if v in producers else ())
        made = {v for v in read if v in producers}
        places = [i for i, node in enumerate(self.graph.nodes[:place]) if not made.isdisjoint(node.outputs)]
        return part_at(self.graph, {*places, place})

    def _alike(self, rows: int, extent: int) -> dict[str, int]:
        """``rows`` in batches, and all else ``extent``."""
        return self.relations.complete({s: rows if s in self._batches else extent for s in self.relations.free})

    def _mended(self, sizes: dict[str, int]) -> tuple[dict[str, int], Sized]:
        """``sizes`` with what the definition of an operator asks for in place of an extent: a buffer as long as a window; and the
        graph at these."""
        found = self._sized(sizes)
        for _ in self.relations.free:
            if found.wanted is None or sizes != self.relations.complete(sizes):
                break
            extent, wanted = found.wanted
            for symbol in self.relations.free:
                other = self.relations.complete({**sizes, symbol: wanted})
                if sizes[symbol] == extent and _said(better := self._sized(other)) != _said(found):
                    sizes, found = other, better
                    break
        return sizes, found

    def _sized(self, sizes: Mapping[str, int]) -> Sized:
        return sized(self.graph, input_shapes(self.graph, sizes))


def _bytes(found: Sized) -> int | None:
    """What a run takes; ``None`` if the extents do not fit."""
    return found.peak_bytes() if found.misfit is None else None


def _said(found: Sized) -> str:
    """What does not fit, without the types."""
    return found.problem.partition("; inputs ")[0]


def described(sizes: Mapping[str, int]) -> str:
    """``batch=2, seq=7``; a dimension without a name is ``?``."""
    return ", ".join(f"{'?' if symbol.startswith('?') else symbol}={extent}" for symbol, extent in sizes.items())


def _distinct(symbols: tuple[str, ...], leading: frozenset[str], attempt: int) -> dict[str, int]:
    """An extent for each symbol by what its name says or where it stands; as far as there are enough, all different."""
    sizes: dict[str, int] = {}
    for symbol in symbols:
        hinted = next((h for word, h in _HINTS if word in symbol.lower()), None)
        lists = [hinted] if hinted else [*_LEADING, *_OTHERS] if symbol in leading else [*_OTHERS, *_LEADING]
        fresh = (h[attempt] for h in lists if h[attempt] not in sizes.values() or attempt == 2)
        sizes[symbol] = next(fresh, max(sizes.values(), default=4) + (attempt < 2))
    return sizes
