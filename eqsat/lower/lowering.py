"""Selection -> Program: names, order, constants, kernels."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Protocol

from eqsat.egraph.encode import Encoding
from eqsat.egraph.enode import INPUT, ENode, TupleType
from eqsat.egraph.explain import Explainer
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.egraph.snapshot import Snapshot
from eqsat.exactness import Exactness
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import Kind, kind_of, operator, traits_of
from eqsat.ir.order import dependency_order, reached
from eqsat.ir.types import TensorType, Type
from eqsat.lower.materialize import Materializer
from eqsat.lower.program import Kernel, Program
from eqsat.lower.selection import Selection
from eqsat.rewrite import PROJECTION

_OF_FUSIONS = re.compile(r"(^gemm_(input|output)_shape|_token_\d+)$")
"""Names that ONNX Runtime's fusions give to constants, as in files that it has optimised before. It gives them again, without
asking whether a constant has one, and then refuses the file."""


def lower(encoding: Encoding, snapshot: Snapshot, selection: Selection, exactness: Mapping[str, Exactness]) -> Program:
    """The program that computes the selection.

    Values that the original computes too keep their names; outputs always do. ``exactness`` gives the class of each rule by
    name.
    """
    moved = _moved(snapshot, selection.choice)
    stored = replace(snapshot, constants=snapshot.constants - moved.keys())
    return Lowering(encoding, stored, {**selection.choice, **moved}, exactness).run()


_LARGE_BYTES = 1 << 20


def _moved(snapshot: Snapshot, choice: Mapping[int, int]) -> dict[int, int]:
    """Large weights that are others which the program reads as well, moved, as an embedding that is also the last layer's: by
    what moves them. The program holds one of the two, and a runtime makes the other when it loads it."""
    egraph = snapshot.egraph
    read = snapshot.constants.intersection(c for handle in choice.values() for c in egraph.canonical_children(handle))

    def is_large(type: Type) -> bool:
        return isinstance(type, TensorType) and type.dtype.is_float and (type.bytes or 0) >= _LARGE_BYTES

    def moves(handle: int) -> bool:
        node = egraph.nodes[handle]
        return traits_of(node.key, node.attributes).moves and egraph.canonical_children(handle)[0] in read

    large = {cls: egraph.known.computed_by(cls) for cls in sorted(read) if is_large(egraph.type_of(cls))}
    return {cls: handle for cls, handle in large.items() if moves(handle)}


class Spellings(Protocol):
    """What lowering asks of the e-graph."""

    @property
    def nodes(self) -> Sequence[ENode]: ...
    def find(self, handle: int) -> int: ...
    def canonical_children(self, handle: int) -> tuple[int, ...]: ...
    def type_of(self, handle: int) -> Type: ...
    def full_type_of(self, handle: int) -> Type | TupleType: ...
    def members(self, handle: int) -> Sequence[int]: ...


class Lowering:
    """The work of `lower`; placement gives it e-classes that stand for a value on a device. ``names``: of e-classes, once run."""

    def __init__(
        self, encoding: Encoding, snapshot: Snapshot, choice: Mapping[int, int], exactness: Mapping[str, Exactness]
    ) -> None:
        self._encoding = encoding
        self._graph = encoding.graph
        self._egraph: Spellings = snapshot.egraph
        self._constant_classes = snapshot.constants
        self._choice = choice
        self._exactness = exactness
        self._explainer = Explainer(snapshot.egraph)
        self._materializer = Materializer(snapshot.egraph, self._explainer)
        self._original_nodes: dict[int, Node] = {}
        for node, handle in zip(self._graph.nodes, encoding.node_handles, strict=True):
            self._original_nodes.setdefault(handle, node)
        self._original_values: dict[int, str] = {}
        for value, handle in encoding.handles.items():
            if value:
                self._original_values.setdefault(self._egraph.find(handle), value)
        self.names: dict[int, str] = {}
        self._taken = set(encoding.handles) | set(self._graph.types) | set(self._graph.constants)
        self._fresh = 0
        self._constants: dict[str, Constant] = {}
        self._constant_rules: dict[str, frozenset[str]] = {}
        self._types: dict[str, Type] = {name: self._graph.type_of(name) for name in self._graph.inputs}

    def run(self) -> Program:
        egraph = self._egraph
        outputs = [(name, self._output_class(name)) for name in self._graph.outputs]
        for cls, handle in self._choice.items():
            if egraph.nodes[handle].key == INPUT:
                self.names[cls] = str(egraph.nodes[handle].attributes["name"])
        aliases: list[tuple[str, int]] = []
        for name, cls in outputs:
            if cls in self.names and self.names[cls] != name:
                aliases.append((name, cls))
            else:
                self.names[cls] = name
        nodes: list[Node] = []
        kernels: list[Kernel] = []
        for cls in self._order({c for _, c in outputs}):
            handle = self._choice[cls]
            if egraph.nodes[handle].op == PROJECTION or egraph.nodes[handle].op == INPUT:
                continue
            node = self._node(cls, handle)
            kernels.append(self._kernel(len(nodes), node, self._proof(cls, handle, outputs)))
            nodes.append(node)
        constant: set[str] = set()
        for name, cls in outputs:
            if cls in self._constant_classes and self.names[cls] == name:
                constant |= self._explainer.rules_for(self._encoding.handles[name])
                constant |= self._constant_rules[self._value(cls)]
        for name, cls in aliases:
            node = Node("Identity", (self._value(cls),), (name,), name=f"alias_{name}")
            self._types[name] = egraph.type_of(cls)
            rules = self._explainer.rules_for(self._encoding.handles[name])
            kernels.append(self._kernel(len(nodes), node, rules))
            nodes.append(node)
        graph = replace(self._graph, nodes=tuple(nodes), types=self._types, constants=self._constants)
        return Program(graph, tuple(kernels), self._origins(graph), tuple(sorted(constant)), self._worst(constant))

    def _proof(self, cls: int, handle: int, outputs: Sequence[tuple[str, int]]) -> frozenset[str]:
        """Rules by which a kernel computes what the original does: its e-node, the outputs of it that are read, and what the
        outputs of the program are called."""
        parts = self._projected.get(cls, {}).values()
        rules = self._rules_of(handle).union(*(self._rules_of(self._choice[part]) for part in parts))
        named = (name for name, of in outputs if (of == cls or of in parts) and self.names[of] == name)
        return rules.union(*(self._explainer.rules_for(self._encoding.handles[name]) for name in named))

    def _output_class(self, name: str) -> int:
        return self._egraph.find(self._encoding.handles[name])

    def _rules_of(self, handle: int) -> frozenset[str]:
        return self._explainer.rules_of(handle)

    def _worst(self, rules: Iterable[str]) -> Exactness:
        return max((self._exactness[r] for r in rules), default=Exactness.EXACT)

    def _order(self, roots: Set[int]) -> list[int]:
        """Needed classes, operands first; among the ready ones the oldest e-node first, so that the original order stays."""
        egraph, choice = self._egraph, self._choice

        def children(cls: int) -> set[int]:
            return choice.keys() & egraph.canonical_children(choice[cls])

        needed = {cls: children(cls) for cls in reached(choice.keys() & roots, children)}
        order = dependency_order(needed, choice.__getitem__)
        assert len(order) == len(needed), "the selection is cyclic"
        self._projected: dict[int, dict[int, int]] = {}
        for cls in order:
            handle = choice[cls]
            if egraph.nodes[handle].op == PROJECTION:
                of = egraph.canonical_children(handle)[0]
                self._projected.setdefault(of, {})[egraph.nodes[handle].attribute_number] = cls
        return order

    def _node(self, cls: int, handle: int) -> Node:
        enode = self._egraph.nodes[handle]
        inputs = tuple("" if c == ABSENT_INPUT else self._value(c) for c in self._egraph.canonical_children(handle))
        full = self._egraph.full_type_of(cls)
        original = self._original_nodes.get(handle)
        if isinstance(full, TupleType):
            parts = self._projected.get(cls, {})
            outputs = tuple(
                self._define(parts[i], enode.op) if i in parts else self._unused(original, i, enode, full.items[i])
                for i in range(enode.outputs)
            )
        else:
            outputs = (self._define(cls, enode.op),)
        if original is not None and original.opaque:
            return replace(original, inputs=inputs, outputs=outputs)
        name = original.name if original is not None else f"{enode.rule}_{outputs[0]}"
        return Node(enode.op, inputs, outputs, enode.attributes, enode.domain, name)

    def _unused(self, original: Node | None, index: int, enode: ENode, type: Type) -> str:
        """Name of an output that nobody reads: absent only where the original left it out (it may not be optional), or
        where the operator is composite, all of whose outputs are, unless its kernel works in them."""
        definition, stem = operator(enode.op, enode.domain), enode.op
        if original is None and "::" in enode.key and (definition is None or index not in definition.needed):
            return ""
        name = original.outputs[index] if original is not None else self._fresh_name(stem)
        handle = self._encoding.handles.get(name)
        cls = None if handle is None else self._egraph.find(handle)
        if name and (cls in self._choice or cls in self._constant_classes):
            name = self._fresh_name(stem)  # the value is computed in another way, under this very name
        if name:
            self._types[name] = type
        return name

    def _kernel(self, index: int, node: Node, rules: frozenset[str]) -> Kernel:
        for value in node.inputs:
            rules |= self._constant_rules.get(value, frozenset())
        template = "view" if kind_of(node) is Kind.VIEW else node.key
        inputs = tuple(dict.fromkeys(v for v in node.inputs if v))
        name = node.name or f"{node.op}_{index}"
        outputs = tuple(v for v in node.outputs if v)
        return Kernel(name, template, (index,), inputs, outputs, tuple(sorted(rules)), self._worst(rules))

    def _define(self, cls: int, stem: str) -> str:
        name = self._name(cls, stem)
        self._types[name] = self._egraph.type_of(cls)
        return name

    def _value(self, cls: int) -> str:
        """Name under which the value of a class can be read; a constant is computed on first use."""
        name = self._name(cls, "folded")
        if cls in self._constant_classes and name not in self._constants:
            self._constants[name] = self._materializer.constant(cls)
            self._constant_rules[name] = self._materializer.rules(cls)
        return name

    def _name(self, cls: int, stem: str) -> str:
        name = self.names.get(cls)
        if name is None:
            name = self._original_values.get(cls, "")
            of_fusion = cls in self._constant_classes and _OF_FUSIONS.search(name)
            if not name or of_fusion or name in self._graph.outputs or name in self._graph.inputs:
                name = self._fresh_name(stem)
            self.names[cls] = name
        return name

    def _fresh_name(self, stem: str) -> str:
        while True:
            self._fresh += 1
            name = f"eqsat_{stem.lower()}_{self._fresh}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def _origins(self, graph: Graph) -> dict[str, str]:
        """Value of the program -> value of the original that it equals."""
        origins: dict[str, str] = {name: name for name in graph.inputs}
        defined = {v for node in graph.nodes for v in node.outputs if v}
        for cls, name in self.names.items():
            original = self._original_values.get(cls)
            if original is not None and name in defined:
                origins[name] = original
        for name in graph.outputs:
            origins[name] = name
        return origins
