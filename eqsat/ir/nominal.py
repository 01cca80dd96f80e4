"""What symbolic extents count as when work is estimated.

A symbol counts as the number that the operator says it is equal to: of ``x[n, k] @ w[64, 8]`` the extent ``k`` is 64. Any other
counts as what is assumed of it (`assuming`), and as `NOMINAL_EXTENT` where nothing is.
"""

import itertools
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from eqsat.errors import EqsatError, OptionError, choices
from eqsat.ir.extents import evaluate, symbols
from eqsat.ir.graph import Graph
from eqsat.ir.operator import Application, Operator
from eqsat.ir.types import Dim, TensorType, Type

NOMINAL_EXTENT = 32
"""What a symbolic dimension counts as when nothing tells its extent."""

TYPICAL_EXTENT = 128
"""What an extent of an input is assumed to be that is no batch, or that times `_STEP` until `_LEAST` is left of it everywhere."""

_LEAST = {True: 8, False: 64}
"""Elements that are left where a model has strides: of an extent beside another (images), and of one alone (sound)."""

_STEP, _STEPS = 4, 5
"""How far and how often an extent grows for that."""

_COUNTED = ("length", "seq", "time", "frame", "token", "node", "edge", "atom", "point")
"""What names of extents say that are no batch, though they come first: steps of one sound, atoms of one molecule."""

_STORED = 4
"""Axes of stored keys and values: batch, heads, tokens, size of a head."""

RANGE_POINTS = (5, 3)
"""Extents that are tried of each range: of one, and of two."""

Assumed = int | tuple[int, int]
"""An extent, or the least and the largest one."""

_NONE: Mapping[str, int] = {}
_assumed: ContextVar[Mapping[str, int]] = ContextVar("assumed", default=_NONE)
_watched: list[tuple[Dim, Dim]] | None = None


def note_equal(a: Dim, b: Dim) -> None:
    """Shape rules say here which extents must be the same."""
    if _watched is not None:
        _watched.append((a, b))


@contextmanager
def _watching() -> Generator[list[tuple[Dim, Dim]]]:
    global _watched
    outer, _watched = _watched, []
    try:
        yield _watched
    finally:
        _watched = outer


def nominal(type: Type | None, extents: Mapping[str, int] = _NONE) -> Type | None:
    """A type with numbers for symbolic dimensions: those in ``extents``, `NOMINAL_EXTENT` for the rest."""
    if type is None or type.shape is None or type.is_static:
        return type
    return TensorType(type.dtype, tuple(number_of(d, extents) for d in type.shape))


def nominal_bytes(type: Type) -> int:
    """Bytes of a value, with numbers for symbolic dimensions; 0 if they are not known."""
    found = nominal(type)
    return 0 if found is None else found.bytes or 0


def number_of(dim: Dim, extents: Mapping[str, int] = _NONE) -> int:
    """The number that an extent counts as: that in ``extents``, or what it is made of, each symbol `NOMINAL_EXTENT`; 0 where the
    model does not run at such extents (``batch - 4``)."""
    if isinstance(dim, int):
        return dim
    found = extents.get(dim)
    if found is not None:
        return found
    assumed = _assumed.get()
    return max(evaluate(dim, lambda s: extents.get(s, assumed.get(s, NOMINAL_EXTENT))), 0)


@contextmanager
def assuming(sizes: Mapping[str, int]) -> Generator[None]:
    """Estimates work for these extents of symbols."""
    token = _assumed.set(sizes)
    try:
        yield
    finally:
        _assumed.reset(token)


def leading_symbols(graph: Graph) -> frozenset[str]:
    """Symbols that are the first extent of inputs of two axes or more, and no other extent: batches."""
    return _leading(_shapes(graph, graph.inputs))


def _leading(shapes: Sequence[tuple[Dim, ...]]) -> frozenset[str]:
    first = {shape[0] for shape in shapes if len(shape) > 1}
    others = {d for shape in shapes for d in shape[1:]}
    return frozenset(d for d in first - others if isinstance(d, str))


def _batches(graph: Graph) -> frozenset[str]:
    """Symbols that are batches by where they stand, or by their name, unless that says what they count.

    Beside an input with a batch one with a symbol between two numbers is the state of a recurrent model: layers, batch, features.
    """
    shapes = _shapes(graph, graph.inputs)
    states = [s for s in shapes if [type(d) for d in s] == [int, str, int]]
    leading = _leading([s for s in shapes if s not in states])
    beside = {d for s in states for d in s if isinstance(d, str)} if leading else set[str]()
    names = {d: _name(graph, d) for s in shapes for d in s if isinstance(d, str)}
    named = {d for d, name in names.items() if "batch" in name}
    return frozenset(d for d in leading | beside | named if not any(word in names[d] for word in _COUNTED))


def _name(graph: Graph, extent: str) -> str:
    """What the file calls an extent; empty where it is called by its input and axis."""
    return "" if extent.rpartition(".")[0] in graph.inputs else extent.lower()


def appended_symbols(graph: Graph) -> frozenset[str]:
    """How many keys and values a call appends to those that are stored: extents of inputs, that of the tokens of a decoder.

    Stored are inputs of four axes, where an output is longer along the third one and otherwise the same. By the symbols that its
    extent there has beside, or else those that are the second extent of inputs and not that one.
    """
    inputs, outputs = _shapes(graph, graph.inputs), _shapes(graph, graph.outputs)
    rest = {(*t[:2], *t[3:]): t[2] for t in outputs if len(t) == _STORED}
    grown = {(t[2], rest[other]) for t in inputs if len(t) == _STORED and (other := (*t[:2], *t[3:])) in rest}
    grown = {(before, after) for before, after in grown if isinstance(before, str) and before != after}
    added = {
        s for before, after in grown for s in symbols(after) - symbols(before) if symbols(before) <= symbols(after)
    }
    if grown and not added:
        taken = {extent for pair in grown for extent in pair}
        added = {t[1] for t in inputs if len(t) in (2, 3) and isinstance(t[1], str)} - taken
    return frozenset(added)


def _shapes(graph: Graph, values: Iterable[str]) -> list[tuple[Dim, ...]]:
    """Those of the values that have axes, as far as they are known."""
    return [t.shape for t in map(graph.type_of, values) if t.shape]


def sizes_within(graph: Graph, given: Mapping[str, Assumed]) -> list[dict[str, int]]:
    """What is assumed of the symbols of the inputs of a graph, from the least to the largest extents of ranges: in steps of equal
    ratio, and each of one range with each of another. Raises `OptionError` as `assumed_sizes` does, and for three ranges."""
    ranges = {name: extents for name, extents in given.items() if not isinstance(extents, int)}
    for name, (low, high) in ranges.items():
        if not 0 < low < high:
            raise OptionError(
                f"assume: {name} = {low}..{high}: a range goes from an extent of at least 1 to a larger one"
            )
    if len(ranges) > len(RANGE_POINTS):
        raise OptionError(f"assume: {len(ranges)} ranges ({', '.join(ranges)}); at most {len(RANGE_POINTS)} at once")
    steps = RANGE_POINTS[len(ranges) - 1] - 1
    points = [
        [(name, n) for n in dict.fromkeys(round(low * (high / low) ** (i / steps)) for i in range(steps + 1))]
        for name, (low, high) in ranges.items()
    ]
    fixed = {name: extent for name, extent in given.items() if isinstance(extent, int)}
    return [assumed_sizes(graph, {**fixed, **dict(chosen)}) for chosen in itertools.product(*points)]


def assumed_sizes(graph: Graph, given: Mapping[str, Assumed]) -> dict[str, int]:
    """What is assumed of the symbols of the inputs of a graph: ``given``; of others a batch of 1, one token where keys are
    stored, since most calls of a decoder are for one, and `TYPICAL_EXTENT` or more.

    Batches are the `_batches`, tokens the `appended_symbols`. Raises `OptionError` for a symbol that no input has, an
    extent that is not positive, and a range: see `sizes_within`.
    """
    shapes = _shapes(graph, graph.inputs)
    known = dict.fromkeys(s for shape in shapes for d in shape for s in sorted(symbols(d)) if not s.startswith("?"))
    for name, size in given.items():
        if name not in known:
            raise OptionError(f"assume: the model has no symbolic dimension {name!r}; {choices(name, known)}")
        if not isinstance(size, int):
            raise OptionError(f"assume: {name} = {size[0]}..{size[1]}: ranges are for optimize; give one extent here")
        if size <= 0:
            raise OptionError(f"assume: {name} = {size}: an extent is an integer of at least 1")
    ones = _batches(graph) | appended_symbols(graph)
    numbers = {name: size for name, size in given.items() if isinstance(size, int)}
    sizes = {s: numbers.get(s, 1 if s in ones else TYPICAL_EXTENT) for s in known}
    if free := sorted(sizes.keys() - numbers.keys() - ones):
        made = {d for shape in _shapes(graph, graph.types) for d in shape if isinstance(d, str)}
        for name in free:
            # of squares both sides are one symbol
            beside = any(name in shape and sum(d in free for d in shape) > 1 for shape in shapes)
            sizes[name] = _grown(name, sizes, [d for d in made if name in symbols(d)], _LEAST[beside])
    return sizes


def _grown(symbol: str, sizes: Mapping[str, int], made: Sequence[Dim], least: int) -> int:
    """The extent of an input of which ``least`` are left where the model has strides; ``made``: what extents are made of it."""

    def left(size: int) -> list[int]:
        return [evaluate(d, lambda s: size if s == symbol else sizes.get(s, NOMINAL_EXTENT)) for d in made]

    size = sizes[symbol]
    for _ in range(_STEPS):
        if all(now >= least or now >= more for now, more in zip(left(size), left(_STEP * size), strict=True)):
            break
        size *= _STEP
    return size


def nominal_work(
    definition: Operator | None, app: Application, outputs: Sequence[Type]
) -> tuple[float, list[Type | None], list[Type]]:
    """Operations of an operator, and the types of its operands and results, with numbers for all extents."""
    extents = _NONE if definition is None else _known_extents(definition, app)
    types = [nominal(t, extents) for t in app.types]
    results = [r for t in outputs if (r := nominal(t, extents)) is not None]
    if definition is None:
        return 0.0, types, results
    if definition.counts_parts:
        return definition.flops(app, outputs), types, results
    return definition.flops(replace(app, types=types), results), types, results


def _known_extents(definition: Operator, app: Application) -> Mapping[str, int]:
    """The numbers that symbols of the operands must be equal to, by the operator's own shape rule."""
    dims = [d for t in app.types if t is not None for d in t.shape or ()]
    if not any(isinstance(d, str) for d in dims) or not any(isinstance(d, int) for d in dims):
        return _NONE
    with _watching() as equal:
        try:
            definition.infer(app)
        except EqsatError:
            return _NONE
    known: dict[str, int] = {}
    changed = True
    while changed:
        changed = False
        for pair in equal:
            a, b = (known.get(d, d) if isinstance(d, str) else d for d in pair)
            for symbol, number in ((a, b), (b, a)):
                if isinstance(symbol, str) and isinstance(number, int):
                    known[symbol] = number
                    changed = True
    return known
