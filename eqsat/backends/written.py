"""A graph that is written again, node by node, for those who read the file."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from eqsat.ir.constants import Constant
from eqsat.ir.graph import NO_ATTRIBUTES, Attributes, Graph, Node, fresh_name
from eqsat.ir.types import TensorType, Type


class Written:
    """A graph that is written again, node by node, with others in the place of some."""

    def __init__(self, old: Graph) -> None:
        self.old, self.producers = old, old.producers()
        self.reads = old.reads()
        self.nodes: list[Node] = []
        self.changed = False
        self._stays = True
        self._types, self._constants = dict(old.types), dict(old.constants)
        self._taken = old.names()
        self._made: dict[tuple[object, ...], str] = {}

    def each(self) -> Iterator[Node]:
        """The nodes of the old graph. Each stays as it is, unless something is `put` in its place."""
        for node in self.old.nodes:
            self._stays = True
            yield node
            if self._stays:
                self.nodes.append(node)

    def value(
        self, op: str, *inputs: str | float | tuple[int, ...], type: Type, attributes: Attributes = NO_ATTRIBUTES
    ) -> str:
        """What an operator of the default domain makes of values, numbers and lists of integers; once for all that ask."""
        key = (op, attributes, *inputs)
        if key not in self._made:
            names = [i if isinstance(i, str) else self.number(i, f"{inputs[0]}_{op}_operand") for i in inputs]
            self._made[key] = name = fresh_name(f"{inputs[0]}_{op}", self._taken)
            self._types[name] = type
            self.nodes.append(Node(op, tuple(names), (name,), attributes))
        return self._made[key]

    def constant(self, array: np.ndarray, stem: str) -> str:
        name = fresh_name(stem, self._taken)
        self._constants[name] = Constant.of(array)
        return name

    def number(self, value: float | tuple[int, ...], stem: str) -> str:
        """A constant: a number, or a list of integers."""
        return self.constant(np.asarray(value, np.int64 if isinstance(value, tuple) else np.float32), stem)

    def reshaped(self, value: str, shape: tuple[int, ...]) -> str:
        """A value in another shape, at once if it is constant."""
        constant = self._constants.get(value)
        if constant is None:
            found = TensorType(self.old.type_of(value).dtype, shape)
            return self.value("Reshape", value, shape, type=found)
        return self.constant(constant.numpy().reshape(shape), f"{value}_reshaped")

    def put(self, node: Node, like: Node, *inputs: str) -> None:
        """In the place of ``node`` an operator like another one, of other inputs."""
        self.nodes.append(replace(like, inputs=inputs, outputs=node.outputs, name=node.name))
        self.changed, self._stays = True, False

    def graph(self) -> Graph:
        return replace(self.old, nodes=tuple(self.nodes), types=self._types, constants=self._constants).pruned()


def changed(graph: Graph, *changes: Callable[[Written], None]) -> Graph:
    """``graph`` after each of ``changes``; itself if none changes anything."""
    for change in changes:
        written = Written(graph)
        change(written)
        graph = written.graph() if written.changed else graph
    return graph


def has_one_scale(graph: Graph, node: Node, op: str) -> bool:
    """Whether a node is one of an operator with a single scale."""
    single = all(graph.type_of(v).shape in ((), (1,)) for v in node.inputs[1:])
    return node.key == op and single and not node.attributes.get("block_size", 0)
