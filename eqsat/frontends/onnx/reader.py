"""From nodes of the file to nodes of the program, in one pass: upgraded, typed, small values folded."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from eqsat.errors import EqsatError, ShapeError
from eqsat.frontends.onnx.bodies import ReadGraph, read_body
from eqsat.frontends.onnx.branches import taken_branch
from eqsat.frontends.onnx.counts import Counts
from eqsat.frontends.onnx.nodes import (
    RawNode,
    about_node,
    check_bodies,
    check_node,
    in_order,
    read_attributes,
    read_opaque_attributes,
)
from eqsat.frontends.onnx.sequences import Sequences
from eqsat.frontends.onnx.subgraphs import captures_of
from eqsat.frontends.onnx.tensors import ExternalFiles
from eqsat.frontends.onnx.types import infer_at_opset
from eqsat.frontends.onnx.versions.steps import Refusal, upgrade
from eqsat.ir.constants import Constant, ConstantPool
from eqsat.ir.extents import is_nameless, product
from eqsat.ir.graph import Node, Subgraph, fresh_name
from eqsat.ir.infer import VALUE_SIZE_LIMIT, join
from eqsat.ir.interpret import FAILURES
from eqsat.ir.operator import Application, defined, operator, opset_elsewhere
from eqsat.ir.outlines import outlined
from eqsat.ir.shape_values import shape_value
from eqsat.ir.types import UNKNOWN, Dim, DType, OpaqueType, TensorType, Type, compatible, meet


class StaleTypes(Exception):
    """The types stored in the file contradict those that follow from its nodes: none of them can be trusted."""


class Reader:
    """The pass over the nodes. Implements `eqsat.frontends.onnx.versions.Values`.

    ``stored`` are the types the file gives to intermediate values; they fill in what inference cannot know. ``needed`` are the
    values that are read.
    """

    def __init__(
        self,
        opset: int,
        types: Mapping[str, Type],
        stored: Mapping[str, Type],
        constants: Mapping[str, Constant],
        pool: ConstantPool,
        files: ExternalFiles,
        names: set[str],
        needed: set[str],
        read_graph: ReadGraph,
        counts: Counts,
    ) -> None:
        self.opset = opset
        self.types: dict[str, Type] = dict(types)
        self.stored = stored
        self.constants: dict[str, Constant] = dict(constants)
        self.nodes: list[Node] = []
        self.known: dict[str, np.ndarray] = {}
        self._pool = pool
        self._files = files
        self._names = names
        self._needed = needed
        self._read_graph = read_graph
        self.counts = counts
        self._small: dict[str, np.ndarray | None] = {}
        self._lists: dict[str, np.ndarray] = {}
        self._sequences = Sequences(weakref.proxy(self))
        self._without_zeros: set[str] = set()

    # what versions.upgrade asks

    def type_of(self, value: str) -> Type:
        constant = self.constants.get(value)
        return constant.type if constant is not None else self.types.get(value, UNKNOWN)

    def constant(self, value: str) -> np.ndarray | None:
        found = self.constants.get(value)
        return found.numpy() if found is not None else self.known.get(value)

    def add_constant(self, array: np.ndarray, stem: str) -> str:
        name = self.fresh_name(stem)
        array = np.array(array)
        array.flags.writeable = False
        self.constants[name] = self._pool.intern(Constant.of(array))
        return name

    def fresh_name(self, stem: str) -> str:
        return fresh_name(stem, self._names)

    def is_read(self, value: str) -> bool:
        return value in self._needed

    # the pass

    def read(self, raw: RawNode) -> None:
        """Adds a node of the file, in the form of the program."""
        if not raw.domain:
            check_node(raw, self.opset, self.type_of)
        if raw.captures:
            check_bodies(raw, self.constants, self._files)
        if (instead := self._instead_of_choice(raw)) is not None:
            for node in instead:
                self.read(node)
            return
        for node in self._convert(raw):
            try:
                if node.opaque:
                    self._infer_opaque(node, raw)
                else:
                    self._infer(node)
            except ShapeError as error:
                label = f"{raw.op} node {raw.proto.name!r}" if raw.proto.name else f"node {raw.label}"
                raise ShapeError(f"{label}: {error}") from None
            self.nodes.append(node)

    def _instead_of_choice(self, raw: RawNode) -> Sequence[RawNode] | None:
        """The nodes of the branch that is taken where ``raw`` is an If whose condition is known."""
        known = self.constant(raw.inputs[0]) if raw.op == "If" and not raw.domain else None
        if known is None or known.size != 1:
            return None
        opened = taken_branch(raw, bool(known.item()), self._names, self._files)
        if opened is None:
            return None
        nodes, constants = opened
        self.stored = {name: t for name, t in self.stored.items() if name not in raw.outputs}  # said of either branch
        self.constants.update((name, self._pool.intern(constant)) for name, constant in constants.items())
        self._needed.update(name for node in nodes for name in (*node.inputs, *node.captures))
        return in_order(nodes, {*self.constants, *self.types})

    def _convert(self, raw: RawNode) -> Sequence[Node]:
        found = self._understood(raw)
        if not isinstance(found, str):
            return found
        attributes = read_opaque_attributes(raw.proto.attribute, self._files, lambda body: self._body(raw, body))
        inputs, about = raw.inputs + raw.captures, about_node(raw.proto)
        return [Node(raw.op, inputs, raw.outputs, attributes, raw.domain, raw.proto.name, found, about)]

    def _understood(self, raw: RawNode) -> Sequence[Node] | str:
        """The nodes at our opset that mean what ``raw`` does, or why there are none."""
        reason = self._why_opaque(raw)
        if reason and not _is_of_sequences(raw):
            return reason
        attributes = read_attributes(raw.proto.attribute, self._files, self._pool, raw.label)
        if isinstance(attributes, str):
            return attributes
        if reason:
            return self._sequences.read(Node(raw.op, raw.inputs, raw.outputs, attributes)) or reason
        inputs = raw.inputs
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        node = Node(raw.op, inputs, raw.outputs, attributes, raw.domain, raw.proto.name)
        opset = opset_elsewhere(raw.op, raw.domain) if raw.domain else self.opset
        if not opset:
            return self._why_not_covered(node) or [node]
        upgraded = upgrade(replace(node, domain=""), opset, self)
        if isinstance(upgraded, Refusal):
            return upgraded.reason
        missing = next((n.op for n in upgraded if operator(n.op) is None), None)
        if missing:
            return f"no definition of {missing}"
        return [part for n in upgraded for part in self.counts.read(n, self._lists, self)]

    def _body(self, raw: RawNode, proto: Any) -> Subgraph:
        captures = tuple(captures_of(proto))
        data = proto.SerializeToString(deterministic=True)
        known = {c: self.constants.get(c) or self._known_constant(c) or self.type_of(c) for c in captures}
        types = [self.type_of(i) if i else UNKNOWN for i in raw.inputs]
        try:
            graph = read_body(raw, proto, self.opset, types, known, self._read_graph)
        except EqsatError as error:
            return Subgraph(data, captures, self.opset, None, str(error))
        return Subgraph(data, captures, self.opset, graph)

    def _known_constant(self, value: str) -> Constant | None:
        known = self.known.get(value)
        return None if known is None else Constant.of(known)

    def _why_not_covered(self, node: Node) -> str:
        """Why the definition of an operator of another domain does not cover its use in a node, if it does not."""
        try:
            defined(node.op, node.domain).infer(self._application(node))
        except EqsatError as error:
            return str(error)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # no schema of ONNX checks them
            return f"attributes {node.attributes} are not covered by the definition: {error!r}"
        return ""

    def _why_opaque(self, raw: RawNode) -> str:
        if raw.domain and operator(raw.op, raw.domain) is None and not opset_elsewhere(raw.op, raw.domain):
            return f"domain {raw.domain}"
        if raw.has_body:
            return "control flow"
        if any(isinstance(self.type_of(i), OpaqueType) for i in raw.inputs if i):
            return "input is no tensor"
        if _is_of_sequences(raw) or raw.op.startswith("Optional"):
            return "sequence or optional value"
        return ""

    def _value(self, name: str) -> np.ndarray | None:
        try:
            return self._small[name]
        except KeyError:
            constant = self.constants.get(name)
            found = constant.numpy() if constant is not None and constant.size <= VALUE_SIZE_LIMIT else None
            self._small[name] = found
            return found

    def _application(self, node: Node) -> Application:
        types = [self.type_of(i) if i else None for i in node.inputs]
        values = [self._value(i) if i else None for i in node.inputs]
        lists = [self._lists.get(i) for i in node.inputs]
        return Application(node.key, node.attributes, types, values, len(node.outputs), lists)

    def _infer_opaque(self, node: Node, raw: RawNode) -> None:
        found: dict[str, Type] = {}
        if not node.domain and not raw.has_body:
            types = {i: t for i in raw.inputs if i and (t := self.type_of(i)) != UNKNOWN}
            values = {i: v for i in types if (v := self._value(i)) is not None}
            found = infer_at_opset(raw.proto, self.opset, types, values)
        found |= self._outlined(node)
        bodies = [body.graph for body in node.attributes.bodies]
        for i, name in enumerate(node.outputs):
            if not name:
                continue
            own, stored = found.get(name, UNKNOWN), self.stored.get(name, UNKNOWN)
            if node.key == "If":
                types = [b.type_of(b.outputs[i]) if b is not None and i < len(b.outputs) else UNKNOWN for b in bodies]
                own = reduce(join, types)
            try:
                self.types[name] = _merge(own, stored)
            except StaleTypes:
                if not raw.has_body:
                    raise
                self.types[name] = own  # the bodies say more than the file

    def _outlined(self, node: Node) -> dict[str, Type]:
        """The types of what a node makes by its outline."""
        app = self._application(node)
        try:
            return dict(zip(node.outputs, outlined(node, app.types, app.values), strict=False))
        except EqsatError:
            return {}

    def _infer(self, node: Node) -> None:
        definition, app = defined(node.op, node.domain), self._application(node)
        found = self._places(node) or definition.infer(app)
        for i, name in enumerate(node.outputs):
            if not name:
                continue
            own = found[i] if i < len(found) else UNKNOWN
            stored = self.stored.get(name)
            self.types[name] = own if stored is None else _merge(own, stored)
        results: Sequence[np.ndarray | None] | None = None
        if definition.folds_exactly(node.attributes, app.types) and definition.deterministic:
            results = self._fold(node, app.values)
        if results is None:
            given = definition, node.attributes, app.types, app.values, app.lists
            results = [shape_value(*given, output=i) for i in range(len(node.outputs))]
        for name, result in zip(node.outputs, results, strict=False):
            if name and result is not None and result.size <= VALUE_SIZE_LIMIT:
                self._know(name, result)

    def _places(self, node: Node) -> Sequence[Type] | None:
        """The type of the places where a value is not zero that is zero nowhere, by which exporters count before opset 11."""
        if node.key == "ConstantOfShape":
            value = node.attributes.get("value")
            if isinstance(value, Constant) and value.numpy().all():
                self._without_zeros.update(node.outputs)
        elif node.key == "NonZero" and node.inputs[0] in self._without_zeros:
            shape = self.types[node.inputs[0]].shape
            return None if shape is None else [TensorType(DType.INT64, (len(shape), product(shape)))]
        return None

    def _know(self, name: str, value: np.ndarray) -> None:
        if (
            value.dtype == object
            and isinstance(found := self.types[name], TensorType)
            and found.dtype is not DType.STRING
        ):
            self._lists[name] = value
        else:
            self.known[name] = self._small[name] = value

    def _fold(self, node: Node, values: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...] | None:
        if any(v is None and name for v, name in zip(values, node.inputs, strict=True)):
            return None
        for name in node.outputs:
            size = self.types[name].size if name in self.types else None
            if name and (size is None or size > VALUE_SIZE_LIMIT):
                return None
        definition = defined(node.op, node.domain)
        if definition.is_disputed(node.attributes, values):
            return None
        try:
            with np.errstate(all="ignore"):
                return tuple(np.asarray(r) for r in definition.evaluate(node.attributes, values))
        except FAILURES:
            return None  # no value is known at compile time; the program may never run this node


def _merge(own: Type, stored: Type) -> Type:
    """What inference found, completed from the file. Raises `StaleTypes` on a contradiction."""
    if own == stored:
        return own
    if not isinstance(own, TensorType) or not isinstance(stored, TensorType):
        return meet(own, stored)
    if not compatible(own, stored):
        raise StaleTypes
    if own.shape is None or stored.shape is None:
        return meet(own, stored)
    shape: list[Dim] = []
    for mine, theirs in zip(own.shape, stored.shape, strict=True):
        fresh = is_nameless(mine)
        if isinstance(mine, str) and isinstance(theirs, int) and not fresh:
            raise StaleTypes  # the dimension was made symbolic after the types were stored
        shape.append(theirs if fresh else mine)
    return replace(own, dtype=own.dtype or stored.dtype, shape=tuple(shape))


def _is_of_sequences(raw: RawNode) -> bool:
    """Whether a node makes a sequence of tensors, or takes one."""
    named = raw.op.startswith("Sequence") or raw.op in ("SplitToSequence", "ConcatFromSequence")
    return named and not raw.domain and not raw.has_body
