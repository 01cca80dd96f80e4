"""The graph: immutable, typed, in static single assignment form, nodes in topological order.

A value is named by a string that is unique in the graph. A node reads values and defines values; an absent optional input
and an unused output are the empty string.
"""

from __future__ import annotations

import copyreg
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from eqsat.errors import ModelError
from eqsat.ir.constants import Constant
from eqsat.ir.types import UNKNOWN, Type

if TYPE_CHECKING:
    import networkx as nx

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _read_only(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


# Python pickles no view of a dictionary by itself, and graphs, with the programs and results around them, go to other processes.
copyreg.pickle(MappingProxyType, lambda view: (_read_only, (dict(view),)))


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The body of a control-flow operator: the bytes of its ``GraphProto``, valid at ``opset``, which identify it.

    ``captures`` are the values of the enclosing graph that the body reads, by the names the body uses. The node lists the
    same values, in the same order over all its bodies, as its last inputs, so that data flow is visible to everyone.
    ``graph`` is the body as a graph, whose last inputs, and some of whose constants, are the captures; ``None`` where it
    cannot be read, and ``unread`` says why.
    """

    proto: bytes
    captures: tuple[str, ...]
    opset: int = 0
    graph: Graph | None = field(default=None, compare=False, repr=False)
    unread: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class RawAttribute:
    """An attribute of an operator we do not define, kept as the bytes of its ``AttributeProto``."""

    proto: bytes


AttributeValue = int | float | str | bytes | tuple[Any, ...] | Constant | Subgraph | RawAttribute


class Attributes(Mapping[str, Any]):
    """Immutable, hashable attributes of a node, ordered by name.

    Lists are tuples; floats are rounded to float32, as ONNX stores them.
    """

    __slots__ = ("_bodies", "_hash", "_items", "_key", "_map")

    def __init__(self, items: Mapping[str, AttributeValue] | Iterable[tuple[str, AttributeValue]] = ()) -> None:
        pairs = sorted(dict(items).items())
        self._items: tuple[tuple[str, AttributeValue], ...] = tuple((k, _plain(v)) for k, v in pairs)
        self._map = dict(self._items)
        self._key = tuple((k, type(v), _bits(v)) for k, v in self._items)
        self._hash = hash(self._key)
        self._bodies: tuple[Subgraph, ...] | None = None

    def __getitem__(self, key: str) -> Any:
        return self._map[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._map)

    def __len__(self) -> int:
        return len(self._map)

    def get(self, key: str, default: Any = None) -> Any:  # that of `Mapping` raises and catches where there is none
        return self._map.get(key, default)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Attributes) else NotImplemented

    @property
    def bodies(self) -> tuple[Subgraph, ...]:
        """The bodies of a control-flow operator, in the order of their attributes."""
        if self._bodies is None:
            several = (value if isinstance(value, tuple) else (value,) for _, value in self._items)
            self._bodies = tuple(v for values in several for v in values if isinstance(v, Subgraph))
        return self._bodies

    def updated(self, **changes: AttributeValue | None) -> Attributes:
        """A copy with ``changes`` applied; ``None`` removes an attribute."""
        merged = {**self._map, **changes}
        return Attributes({k: v for k, v in merged.items() if v is not None})

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{k}={v!r}" for k, v in self._items) + "}"


def _plain(value: AttributeValue | list[Any]) -> Any:
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value


def _bits(value: AttributeValue) -> object:
    """Distinguishes 0.0 from -0.0 and makes NaN equal to itself."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, tuple):
        return tuple(map(_bits, value))
    return value


NO_ATTRIBUTES = Attributes()


def captures_of(attributes: Attributes) -> int:
    """How many of a node's inputs, the last ones, only tell what its bodies capture."""
    return sum(len(body.captures) for body in attributes.bodies)


def nodes_within(nodes: Iterable[Node]) -> Iterator[Node]:
    """Nodes and those in their bodies that are understood."""
    for node in nodes:
        yield node
        for body in node.attributes.bodies:
            yield from nodes_within(body.graph.nodes if body.graph is not None else ())


def with_bodies(node: Node, change: Callable[[Subgraph, tuple[str, ...]], tuple[Subgraph, tuple[str, ...]]]) -> Node:
    """``node`` with other bodies: ``change`` takes each with the outer values it captures, and gives another with those
    that this one captures."""
    own = len(node.inputs) - captures_of(node.attributes)
    inputs, rest = list(node.inputs[:own]), node.inputs[own:]
    changed: dict[str, AttributeValue] = {}
    value: AttributeValue
    for name, value in node.attributes.items():
        several = value if isinstance(value, tuple) else (value,)
        made: list[Any] = []
        for body in several:
            if isinstance(body, Subgraph):
                captured, rest = rest[: len(body.captures)], rest[len(body.captures) :]
                body, captured = change(body, captured)
                inputs.extend(captured)
            made.append(body)
        changed[name] = tuple(made) if isinstance(value, tuple) else made[0]
    return replace(node, inputs=tuple(inputs), attributes=Attributes(changed))


@dataclass(frozen=True, slots=True)
class Node:
    """One application of an operator.

    ``opaque`` is empty for an operator whose meaning we know; otherwise it says why the optimizer passes the node through
    untouched (its attributes are then `RawAttribute` and `Subgraph`, valid at the opset the model came with). ``about``: what its
    file says of such a node besides, as a message.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes = NO_ATTRIBUTES
    domain: str = ""
    name: str = ""
    opaque: str = ""
    about: bytes = b""

    @property
    def key(self) -> str:
        """Operator type as reports print it: with its domain unless that is the default one."""
        return f"{self.domain}::{self.op}" if self.domain else self.op


def fresh_name(stem: str, taken: set[str]) -> str:
    """``stem``, with a number if it is taken; it is then."""
    name, count = stem, 0
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    taken.add(name)
    return name


HANDED_BYTES = 1 << 12
"""Constants of so many bytes that rules make in a body belong to the graph around it, where branches share equal ones."""


@dataclass(frozen=True)
class Shared:
    """Constants that others beside a body read, too, by the ``names`` it has for them. Rules make nothing large of them but what
    is ``made`` in others as well: a file would hold both, and what they were made of."""

    names: frozenset[str]
    made: tuple[Constant, ...]


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order, with the types of their values and the constants they read.

    ``devices``: value -> name of the device on which its node computes it, or on which an input lives; a value that is not in
    it may be anywhere. ``envelope`` carries what a front end needs to write a file like the one it read (opset, metadata,
    ...); nobody else looks inside. ``shared``: of a body, if others are to agree with it about the constants it captures.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, Type]
    constants: Mapping[str, Constant]
    name: str = "graph"
    envelope: Any = field(default=None, compare=False, repr=False)
    devices: Mapping[str, str] = field(default_factory=dict[str, str])
    shared: Shared | None = field(default=None, compare=False, repr=False)
    notes: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any], init=False, compare=False, repr=False)
    """What was found out about this graph, for those who ask again; no part of it, and another graph starts without."""

    def __post_init__(self) -> None:
        for name in ("types", "constants", "devices"):
            found = getattr(self, name)
            object.__setattr__(self, name, found if isinstance(found, MappingProxyType) else MappingProxyType(found))

    def names(self) -> set[str]:
        """The names of values, to which `fresh_name` may add."""
        return {*self.types, *self.constants, *self.inputs}

    def type_of(self, value: str) -> Type:
        constant = self.constants.get(value)
        return constant.type if constant is not None else self.types.get(value, UNKNOWN)

    def operand_types(self, node: Node) -> tuple[Type | None, ...]:
        """The types of what a node reads, ``None`` for an absent input."""
        return tuple(self.type_of(v) if v else None for v in node.inputs)

    def operator_counts(self) -> dict[str, int]:
        """Operator type -> number of nodes, most frequent first, then by name."""
        counts = Counter(node.key for node in self.nodes)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def producers(self) -> dict[str, Node]:
        """Value -> the node that defines it."""
        return {value: node for node in self.nodes for value in node.outputs if value}

    def reads(self) -> Counter[str]:
        """Value -> how often nodes read it; an output of the graph counts as read once more."""
        return Counter([*(value for node in self.nodes for value in node.inputs), *self.outputs])

    def with_nodes(
        self, nodes: Iterable[Node], types: Mapping[str, Type] = _NOTHING, constants: Mapping[str, Constant] = _NOTHING
    ) -> Graph:
        """With other nodes, and the types and constants of further values."""
        return replace(
            self,
            nodes=tuple(nodes),
            types={**self.types, **types} if types else self.types,
            constants={**self.constants, **constants} if constants else self.constants,
        )

    def pruned(self) -> Graph:
        """Without the nodes and constants on which no output depends."""
        live = set(self.outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if not live.isdisjoint(node.outputs):
                live.update(node.inputs)
                kept.append(node)
        live.update(self.inputs)
        return replace(
            self,
            nodes=tuple(reversed(kept)),
            constants={k: c for k, c in self.constants.items() if k in live},
        )

    def check(self) -> None:
        """Raises `ModelError` unless every value is defined once, before it is read."""
        defined = set(self.constants) | set(self.inputs)
        for node in self.nodes:
            for value in node.inputs:
                if value and value not in defined:
                    raise ModelError(f"{node.key} {node.name!r}: input {value!r} is not defined before the node")
            for value in node.outputs:
                if value in defined:
                    raise ModelError(f"{node.key} {node.name!r}: output {value!r} is defined twice")
                if value:
                    defined.add(value)
        for value in self.outputs:
            if value not in defined:
                raise ModelError(f"output {value!r} of the graph is not defined by any node")

    def __str__(self) -> str:
        from eqsat.ir.text import graph_to_text

        return graph_to_text(self)

    def to_networkx(self) -> nx.MultiDiGraph[Any]:
        """The graph as a `networkx.MultiDiGraph`, from what is read to what reads it.

        Its nodes are indices into ``nodes`` and pairs ``("input", name)``, ``("constant", name)``, ``("output", name)``. All have
        ``role`` (``operator``, ``input``, ``constant``, ``output``) and ``label``; operators also ``op``, ``name``, ``kind``
        (`eqsat.ir.operator.Kind`), ``attributes``, ``opaque`` and ``device``; the others ``type``. An edge for each value that is
        read, at each ``position``, has ``value``, ``type`` and ``bytes`` (symbolic extents count as elsewhere, 0 if unknown).

        >>> import eqsat, networkx
        >>> b = eqsat.GraphBuilder()
        >>> x = b.input("x", "float32", (2, 3))
        >>> network = b.finish({"y": b.op("Mul", b.op("Exp", x), x)}).to_networkx()
        >>> [network.nodes[n]["label"] for n in networkx.lexicographical_topological_sort(network, key=str)]
        ['x', 'Exp', 'Mul', 'y']
        >>> sorted((b, data["bytes"]) for _, b, data in network.out_edges(("input", "x"), data=True))
        [(0, 24), (1, 24)]
        """
        from eqsat.ir.networks import network_of

        return network_of(self)
