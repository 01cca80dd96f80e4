"""What a pattern matched, and the conditions on it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from eqsat.ir.types import DType
from eqsat.rewrite.terms import NOT_ESTABLISHED, Ref, Unmet


@dataclass(frozen=True, slots=True)
class AttributeOf:
    """Attribute ``name`` of the node called ``node``; ``default`` gives what it is where the node has none."""

    node: str
    name: str
    default: Callable[[Ref], Any]

    def of(self, node: Ref) -> Any:
        return node.attributes[self.name] if self.name in node.attributes else self.default(node)


class Match:
    """What the names of a pattern matched.

    ``m.x`` is a `Ref` for a variable or a node, ``None`` for an absent input, and the value of a named attribute; what a
    group rule has found may be anything. ``root`` is the value of the whole, or of the node that is called so. ``key``: what the
    match consists of where a group rule found more than values and plain data, see `key`.
    """

    def __init__(
        self,
        bindings: Mapping[str, Any],
        root: Ref,
        attributes: Mapping[str, AttributeOf] = MappingProxyType({}),
        key: Hashable | None = None,
    ) -> None:
        self._bindings = bindings
        self._attributes = attributes
        self._key = key
        self.root = bindings.get("root") or root

    def key(self) -> Hashable | None:
        """What conditions and right side depend on: two matches of one rule with equal keys come to the same. ``None`` if
        something is bound of which that cannot be said."""
        parts = self._bindings.items() if self._key is None else (("key", self._key),)
        try:
            key = (_known_of(self.root), *((name, _known_of(found)) for name, found in parts))
            hash(key)
        except TypeError:
            return None
        return key

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, name: str) -> Any:
        if name in self._bindings:
            return self._bindings[name]
        if name == "root":
            return self.root
        found = self._attributes[name]
        return found.of(self[found.node])

    def refs(self) -> dict[str, Ref]:
        """The values among what is bound."""
        return {name: found for name, found in self._bindings.items() if isinstance(found, Ref)}

    def check(self, conditions: Iterable[Condition]) -> None:
        """Raises `Unmet` with the name of the first condition that does not hold."""
        for condition in conditions:
            if not condition.holds(self):
                raise Unmet(condition.name)

    def require(self, holds: object, reason: str) -> None:
        """Raises `Unmet` with ``reason`` unless ``holds``."""
        if not holds:
            raise Unmet(reason)


def _known_of(found: Any) -> Any:
    """What is bound to a name, and, of values, what is known of them."""
    if isinstance(found, Ref):
        return found.handle, found.enode, found.values.lessons(found.handle)
    if isinstance(found, (list, tuple)):
        return tuple(map(_known_of, found))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return found


@dataclass(frozen=True, slots=True)
class Hint:
    """What a condition asks of the value bound to ``name``: what a random instance draws for it, most of the time.

    A constant; elements that are all ``value``; elements known to be from ``low`` to ``high``; one of some element types; for
    a node the value of an attribute. ``whole``: the value has the shape of the result; ``vector``: it varies along one axis of
    what stands beside it at most; ``single``: it has one element; ``ranks``: numbers of axes that it may have. ``opposite``: of a
    condition that is dropped, to see what it is needed for: half of the instances are drawn otherwise.
    """

    name: str
    constant: bool = False
    value: float | None = None
    low: float = -np.inf
    high: float = np.inf
    dtypes: frozenset[DType] = frozenset()
    attribute: tuple[str, Any] | None = None
    whole: bool = False
    single: bool = False
    vector: bool = False
    ranks: frozenset[int] = frozenset()
    opposite: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """A named side condition.

    ``fact``: variables that must be constant, which the e-graph checks while matching. ``worthwhile``: without the condition the
    equation is as true, but leads nowhere, or to ever more e-nodes.
    """

    name: str
    holds: Callable[[Match], bool]
    fact: tuple[str, ...] = ()
    hints: Sequence[Hint] = ()
    worthwhile: bool = False


def unmet(conditions: Iterable[Condition], match: Match) -> Exception | None:
    """Why the first of the conditions that does not hold does not; ``None`` where all do."""
    try:
        match.check(conditions)
    except NOT_ESTABLISHED as reason:
        return reason.with_traceback(None)  # whose frames would keep alive all that they know
    return None
