"""What samples seldom draw, made of any instance: symbols that are 1, constants that broadcasting enlarges them by, NaN.

A sample draws what its author thought of. A symbol may be 1 where it drew 5, and then a constant of extent 5 enlarges the value;
a float may be infinite or NaN wherever one is read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from eqsat.egraph.difference import is_float
from eqsat.errors import EqsatError
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph
from eqsat.ir.infer import infer_types
from eqsat.ir.interpret import FAILURES, run
from eqsat.ir.operator import definition_of
from eqsat.ir.operators.elementwise import infer_broadcast, infer_comparison, infer_variadic
from eqsat.ir.types import Type
from eqsat.samples import Instance

Feeds = Mapping[str, np.ndarray]

_SHARE = 0.2
"""Share of the floats that become infinite or NaN."""


def narrowed(instance: Instance) -> Iterator[Feeds]:
    """The feeds with symbols at 1, all and each of them, where the graph means something then."""
    sizes = _symbols(instance)
    names = sorted(sizes)
    for chosen in (names, *([name] for name in names)) if len(names) > 1 else (names,) if names else ():
        feeds: dict[str, np.ndarray] = {}
        for name, array in instance.feeds.items():
            feeds[name] = array[tuple(slice(0, 1 if d in chosen else None) for d in _shape(instance.graph, name))]
        if _means_something(instance.graph, feeds, sizes | dict.fromkeys(chosen, 1)):
            yield feeds


def enlarged(instance: Instance) -> Instance | None:
    """The instance with every constant that broadcasts as large as a symbolic extent beside it.

    ``x[n, 2] * c[1]`` becomes ``x[n, 2] * c[5, 1]``, which is as large as ``x`` for one ``n`` only. ``None`` where no constant
    meets a symbol.
    """
    graph, sizes = instance.graph, _symbols(instance)
    constants = dict(graph.constants)
    for node in graph.nodes if sizes else ():
        definition = definition_of(node)
        if definition is None or definition.infer not in (infer_broadcast, infer_variadic, infer_comparison):
            continue
        for name in node.inputs:
            for other in node.inputs:
                if name in graph.constants and other and other not in graph.constants:
                    grown = _grown(constants[name].numpy(), [sizes.get(str(d)) for d in _shape(graph, other)])
                    constants[name] = Constant.of(grown)
    if all(constants[name].type == graph.constants[name].type for name in constants):
        return None
    types: dict[str, Type] = {name: graph.type_of(name) for name in graph.inputs}
    for node in graph.nodes:
        operands = [constants[i].type if i in constants else types[i] if i else None for i in node.inputs]
        values = [constants[i].numpy() if i in constants else None for i in node.inputs]
        try:
            types.update(zip(node.outputs, infer_types(node, operands, values), strict=True))
        except EqsatError:
            return None
    made = replace(graph, types=types, constants=constants)
    return replace(instance, graph=made) if _means_something(made, instance.feeds, sizes) else None


def with_specials(instance: Instance, rng: np.random.Generator) -> Iterator[Feeds]:
    """The feeds with NaN, then infinities, here and there among the floats."""
    if not any(is_float(a) and a.size for a in instance.feeds.values()):
        return
    for specials in ((np.nan,), (np.inf, -np.inf)):
        feeds: dict[str, np.ndarray] = {}
        for name, array in instance.feeds.items():
            chosen = rng.random(array.shape) < _SHARE
            if is_float(array):
                array = np.where(chosen, rng.choice(specials, array.shape).astype(array.dtype), array)
            feeds[name] = array
        yield feeds


def _symbols(instance: Instance) -> dict[str, int]:
    """The symbols that the inputs declare, with their values."""
    found: dict[str, int] = {}
    for name, array in instance.feeds.items():
        pairs = zip(_shape(instance.graph, name), array.shape, strict=True)
        found.update((d, n) for d, n in pairs if isinstance(d, str))
    return found


def _shape(graph: Graph, name: str) -> tuple[int | str, ...]:
    return graph.type_of(name).shape or ()


def _grown(array: np.ndarray, extents: list[int | None]) -> np.ndarray:
    """The array repeated along each axis for which an extent is given, if it has one element there."""
    array = array.reshape((1,) * (len(extents) - array.ndim) + array.shape)
    for axis, extent in enumerate(extents, array.ndim - len(extents)):
        if extent is not None and array.shape[axis] == 1:
            array = np.repeat(array, extent, axis)
    return array


def _means_something(graph: Graph, feeds: Feeds, sizes: Mapping[str, int]) -> bool:
    """Whether the graph computes on these feeds what its types say: no kernel shape or scale contradicts them."""
    names = [value for node in graph.nodes for value in node.outputs if value]
    try:
        values = run(graph, feeds, names)
    except FAILURES:
        return False
    for name in names:
        found, declared = np.asarray(values[name]).shape, _shape(graph, name)
        if len(found) == len(declared):
            expected = (d if isinstance(d, int) else sizes.get(d, n) for d, n in zip(declared, found, strict=True))
            if tuple(expected) != found:
                return False
    return True
