"""From nodes of the file to nodes of the program, in one pass: upgraded, typed, small values folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from eqsat.errors import EqsatError, ModelError, ShapeError
from eqsat.frontends.onnx_nodes import RawNode, read_attributes, read_opaque_attributes
from eqsat.frontends.onnx_tensors import ExternalFiles
from eqsat.ir.constants import Constant, ConstantPool
from eqsat.ir.graph import Node
from eqsat.ir.infer import VALUE_SIZE_LIMIT
from eqsat.ir.operator import Application, operator
from eqsat.ir.operators.static_value import static_outputs
from eqsat.ir.types import UNKNOWN, OpaqueType, TensorType, Type, compatible, meet
from eqsat.ir.versions import Refusal, upgrade


class StaleTypes(Exception):
    """The types stored in the file contradict those that follow from its nodes: none of them can be trusted."""


class Reader:
    """The pass over the nodes. Implements `eqsat.ir.versions.Values`.

    ``stored`` are the types the file gives to intermediate values; they fill in what inference cannot know.
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
        self._small: dict[str, np.ndarray | None] = {}

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
        name, count = stem, 0
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name

    # the pass

    def read(self, raw: RawNode) -> None:
        """Adds a node of the file, in the form of the program."""
        for node in self._convert(raw):
            try:
                self._infer(node)
            except ShapeError as error:
                label = f"{raw.op} node {raw.proto.name!r}" if raw.proto.name else f"node {raw.label}"
                raise ShapeError(f"{label}: {error}") from None
            self.nodes.append(node)

    def _convert(self, raw: RawNode) -> Sequence[Node]:
        reason = self._why_opaque(raw)
        if not reason:
            attributes = read_attributes(raw.proto.attribute, self._files, self._pool, raw.label)
            if isinstance(attributes, str):
                reason = attributes
            else:
                inputs = raw.inputs
                while inputs and not inputs[-1]:
                    inputs = inputs[:-1]
                upgraded = upgrade(Node(raw.op, inputs, raw.outputs, attributes, "", raw.proto.name), self.opset, self)
                if not isinstance(upgraded, Refusal):
                    missing = next((n.op for n in upgraded if operator(n.op) is None), None)
                    if missing is None:
                        return upgraded
                    upgraded = Refusal(f"no definition of {missing}")
                reason = upgraded.reason
        attributes = read_opaque_attributes(raw.proto.attribute, self._files)
        return [Node(raw.op, raw.inputs + raw.captures, raw.outputs, attributes, raw.domain, raw.proto.name, reason)]

    def _why_opaque(self, raw: RawNode) -> str:
        if raw.domain:
            return f"domain {raw.domain}"
        if raw.has_body:
            return "control flow"
        check_arity(raw, self.opset)
        if any(isinstance(self.type_of(i), OpaqueType) for i in raw.inputs if i):
            return "input is no tensor"
        if raw.op.startswith(("Sequence", "Optional")) or raw.op in ("SplitToSequence", "ConcatFromSequence"):
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

    def _infer(self, node: Node) -> None:
        definition = None if node.opaque else operator(node.op, node.domain)
        if definition is None:
            for name in node.outputs:
                if name:
                    self.types[name] = self.stored.get(name, UNKNOWN)
            return
        types = [self.type_of(i) if i else None for i in node.inputs]
        values = [self._value(i) if i else None for i in node.inputs]
        app = Application(node.key, node.attributes, types, values, len(node.outputs))
        found = definition.infer(app)
        for i, name in enumerate(node.outputs):
            if not name:
                continue
            own = found[i] if i < len(found) else UNKNOWN
            stored = self.stored.get(name)
            self.types[name] = own if stored is None else _merge(own, stored)
        results = static_outputs(app)
        if results is None and definition.bit_exact and definition.deterministic:
            results = self._fold(node, values)
        for name, result in zip(node.outputs, results or (), strict=False):
            if name and result is not None and result.size <= VALUE_SIZE_LIMIT:
                self.known[name] = result
                self._small[name] = result

    def _fold(self, node: Node, values: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...] | None:
        if any(v is None and name for v, name in zip(values, node.inputs, strict=True)):
            return None
        for name in node.outputs:
            size = found.size if isinstance(found := self.types.get(name), TensorType) else None
            if name and (size is None or size > VALUE_SIZE_LIMIT):
                return None
        definition = operator(node.op)
        assert definition is not None
        try:
            with np.errstate(all="ignore"):
                return tuple(np.asarray(r) for r in definition.evaluate(node.attributes, values))
        except (EqsatError, ArithmeticError, ValueError, TypeError, IndexError, NotImplementedError):
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
    shape = []
    for mine, theirs in zip(own.shape, stored.shape, strict=True):
        fresh = isinstance(mine, str) and mine.startswith("?")
        if isinstance(mine, str) and isinstance(theirs, int) and not fresh:
            raise StaleTypes  # the dimension was made symbolic after the types were stored
        shape.append(theirs if fresh else mine)
    return replace(own, dtype=own.dtype or stored.dtype, shape=tuple(shape))


@cache
def _signature(op: str, opset: int) -> tuple[int, int, int, int, frozenset[str]] | None:
    import onnx

    try:
        schema = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None
    required = frozenset(name for name, a in schema.attributes.items() if a.required)
    return schema.min_input, schema.max_input, schema.min_output, schema.max_output, required


def check_arity(raw: RawNode, opset: int) -> None:
    """Raises `ModelError` unless a node of the default domain has the operands and attributes its schema requires."""
    signature = _signature(raw.op, opset)
    if signature is None:
        return
    least, most, least_out, most_out, required = signature
    if not least <= len(raw.inputs) <= most and not (len(raw.inputs) > most and not any(raw.inputs[most:])):
        raise ModelError(f"{raw.label}: has {len(raw.inputs)} inputs, {raw.op} takes {_range(least, most)}")
    if not least_out <= len(raw.outputs) <= most_out:
        raise ModelError(f"{raw.label}: has {len(raw.outputs)} outputs, {raw.op} gives {_range(least_out, most_out)}")
    if required and (missing := required - {a.name for a in raw.proto.attribute}):
        raise ModelError(f"{raw.label}: required attribute {sorted(missing)[0]!r} is missing")


def _range(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} or more" if most > 1000 else f"{least} to {most}"


def fill_stored_types(model: Any, stored: dict[str, Type], wanted: Sequence[str], dims: Mapping[str, int]) -> None:
    """Adds types of ``wanted`` values that the ONNX package can infer, bodies of control flow included."""
    import onnx
    from onnx import shape_inference

    from eqsat.frontends.onnx_types import read_type

    light = onnx.ModelProto()
    light.CopyFrom(_without_weights(model))
    try:
        inferred = shape_inference.infer_shapes(light)
    except Exception:  # partial models of old opsets make it raise; what is unknown stays unknown
        return
    names = set(wanted)
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        if info.name in names:
            stored.setdefault(info.name, read_type(info.type, dims, f"value {info.name!r}"))


def _without_weights(model: Any) -> Any:
    """A copy in which large initializers are inputs."""
    import onnx
    from onnx import helper

    graph = onnx.GraphProto(name=model.graph.name or "graph")
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    listed = {i.name for i in graph.input}
    for tensor in model.graph.initializer:
        if not tensor.data_location and np.prod(tensor.dims, dtype=np.int64) <= VALUE_SIZE_LIMIT:
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return onnx.ModelProto(
        ir_version=max(model.ir_version, 4), opset_import=model.opset_import, functions=model.functions, graph=graph
    )
