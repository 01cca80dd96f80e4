"""Nodes, tensors and types as ONNX messages."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from eqsat.backends.onnx_form import form_of_body
from eqsat.frontends.onnx.envelope import envelope_of
from eqsat.frontends.onnx.subgraphs import rename_captures
from eqsat.ir.constants import Constant, pack
from eqsat.ir.extents import is_nameless
from eqsat.ir.graph import AttributeValue, Graph, Node, RawAttribute, Subgraph, captures_of
from eqsat.ir.operator import domain_in_files, traits_of
from eqsat.ir.schema_operator import to_type_proto
from eqsat.ir.schemas import schema_of
from eqsat.ir.types import DType, TensorType, Type

_KIND = onnx.AttributeProto


def write_node(node: Node, opset: int, taken: set[str]) -> onnx.NodeProto:
    """The ``NodeProto`` of a node in the form of ``opset``; ``taken`` are the names of the graph around it.

    Trailing inputs that only tell what the bodies capture become names inside the bodies again.
    """
    proto = onnx.NodeProto.FromString(node.about)
    proto.op_type = node.op
    domain = domain_in_files(node.op, node.domain)
    if domain:
        proto.domain = domain
    if node.name:
        proto.name = node.name
    proto.output.extend(node.outputs)
    own = len(node.inputs) - captures_of(node.attributes)
    proto.input.extend(node.inputs[:own])
    captured = iter(node.inputs[own:])
    schema = None if node.opaque or node.domain else schema_of(node.op, opset)
    kinds: Mapping[str, int] = schema.attributes if schema else {}
    value: AttributeValue
    for name, value in node.attributes.items():
        attribute = proto.attribute.add()
        if isinstance(value, RawAttribute):
            attribute.ParseFromString(value.proto)
        elif isinstance(value, Subgraph):
            attribute.name, attribute.type = name, _KIND.GRAPH
            attribute.g.CopyFrom(_write_body(value, captured, opset, taken))
        elif isinstance(value, tuple) and value and isinstance(value[0], Subgraph):
            attribute.name, attribute.type = name, _KIND.GRAPHS
            attribute.graphs.extend(_write_body(body, captured, opset, taken) for body in value)
        else:
            _write_attribute(attribute, name, value, kinds.get(name, 0))
    return proto


def _write_body(body: Subgraph, captured: Any, opset: int, taken: set[str]) -> onnx.GraphProto:
    if body.graph is None or body.opset == opset:
        proto = onnx.GraphProto.FromString(body.proto)
    else:
        proto = write_body(body.graph, body.captures, opset, taken)
    rename_captures(proto, {old: next(captured) for old in body.captures}, taken)
    return proto


def write_body(graph: Graph, captures: Sequence[str], opset: int, taken: Set[str] = frozenset()) -> onnx.GraphProto:
    """The ``GraphProto`` of a body, which reads ``captures`` under their own names; its bodies define no names in ``taken``."""
    form = form_of_body(graph, opset)
    proto = onnx.GraphProto()
    names = {*form.constants, *graph.inputs, *(o for n in form.nodes for o in n.outputs if o)}
    proto.node.extend(write_node(n, opset, {*names, *taken}) for n in form.nodes)
    describe_graph(proto, graph, [v for v in graph.inputs if v not in captures], names)
    proto.value_info.extend(declare(graph, inside=True))
    proto.initializer.extend(write_tensor(k, c) for k, c in sorted(form.constants.items()) if k not in captures)
    return proto


def describe_graph(proto: onnx.GraphProto, graph: Graph, inputs: Sequence[str], names: Set[str]) -> None:
    """Name, inputs, outputs and what the source said of them, and of other values if they are among ``names`` still."""
    envelope = envelope_of(graph)
    proto.name, proto.doc_string = graph.name, envelope.graph_doc
    proto.input.extend(write_value_info(v, graph.type_of(v), envelope.inputs.get(v)) for v in inputs)
    proto.output.extend(write_value_info(v, graph.type_of(v), envelope.outputs.get(v)) for v in graph.outputs)
    for annotation in map(onnx.TensorAnnotation.FromString, envelope.quantization):
        if annotation.tensor_name in names:
            proto.quantization_annotation.append(annotation)


def declare(graph: Graph, *, inside: bool = False) -> list[onnx.ValueInfoProto]:
    """The types of what nodes hand on, where there are symbols, or ``inside`` bodies, to which numbers of the graph around them
    are not known: those that read the file follow these less far.

    ONNX's shape inference takes the result of attention in rows whose heads' width it does not find out to be 0 wide, and refuses
    the model. ONNX Runtime adds images whose extents it does not know to be equal outside the layout of its convolutions.
    Otherwise extents that are symbols have no names, which would have it plan memory by them (see
    `eqsat.backends.onnxruntime_form`), and, from 1.30 on, add and normalise rows in one operator that takes several times as long
    as the two (`eqsat.lower.at_load`).
    """
    made = {v: graph.type_of(v) for v in graph.producers() if v not in graph.outputs}
    types = {
        v: t
        for v, t in made.items()
        if isinstance(t, TensorType) and t.dtype is not DType.UNDEFINED and t.shape is not None
    }
    if not inside and all(t.is_static for t in types.values()):
        return []
    images = _images(graph)
    return [write_value_info(v, t if v in images else _nameless(t), None) for v, t in types.items()]


def _images(graph: Graph) -> set[str]:
    """What windows slide over, what is read beside it, and what follows of it as long as no axes are moved."""
    found: set[str] = set()
    for node in graph.nodes:
        facts = traits_of(node.key, node.attributes)
        slides = facts.spatial or (facts.product is not None and facts.product.slides)
        if slides or not (facts.permutes or found.isdisjoint(node.inputs)):
            found.update(node.inputs, node.outputs)
    return found


def _nameless(type: TensorType) -> TensorType:
    return replace(type, shape=tuple(d if isinstance(d, int) else "?" for d in type.shape or ()))


def _write_attribute(attribute: onnx.AttributeProto, name: str, value: AttributeValue, kind: int) -> None:
    attribute.name = name
    kind = kind or _kind_of(value)
    attribute.type = kind  # type: ignore[assignment]  # an int where the stubs want the enum
    items: Any = value
    if kind == _KIND.INT:
        attribute.i = int(items)
    elif kind == _KIND.FLOAT:
        attribute.f = float(items)
    elif kind == _KIND.STRING:
        attribute.s = _raw(items)
    elif kind == _KIND.INTS:
        attribute.ints.extend(int(v) for v in items)
    elif kind == _KIND.FLOATS:
        attribute.floats.extend(float(v) for v in items)
    elif kind == _KIND.STRINGS:
        attribute.strings.extend(_raw(v) for v in items)
    elif kind == _KIND.TENSOR:
        attribute.t.CopyFrom(write_tensor("", items))
    else:
        raise TypeError(f"attribute {name!r}: cannot write {value!r}")


def _kind_of(value: AttributeValue) -> int:
    first = value[0] if isinstance(value, tuple) and value else value
    many = isinstance(value, tuple)
    if isinstance(first, Constant):
        return _KIND.TENSORS if many else _KIND.TENSOR
    if isinstance(first, float):
        return _KIND.FLOATS if many else _KIND.FLOAT
    if isinstance(first, str | bytes):
        return _KIND.STRINGS if many else _KIND.STRING
    return _KIND.INTS if many else _KIND.INT


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def write_tensor(name: str, constant: Constant) -> onnx.TensorProto:
    """The ``TensorProto`` of a constant, with its data inside."""
    proto = describe_tensor(name, constant)
    if constant.dtype is DType.STRING:
        proto.string_data.extend(_raw(s) for s in constant.numpy().reshape(-1).tolist())
    else:
        proto.raw_data = bytes(tensor_bytes(constant))
    return proto


def describe_tensor(name: str, constant: Constant) -> onnx.TensorProto:
    """The ``TensorProto`` of a constant without its data."""
    proto = onnx.TensorProto(name=name, data_type=int(constant.dtype))
    proto.dims.extend(constant.shape)
    return proto


def tensor_bytes(constant: Constant) -> memoryview:
    """The elements as they are stored in a file: little-endian, row-major, sub-byte elements packed low bits first."""
    array = np.ascontiguousarray(constant.numpy()).reshape(-1)
    if constant.dtype.bits < 8:
        return pack(array, constant.dtype).data
    return array.view(np.uint8).data if array.size else memoryview(b"")


def write_type(type: Type) -> onnx.TypeProto:
    """The ``TypeProto`` of a type. Extents about which nothing is known stay nameless."""
    if isinstance(type, TensorType) and type.dtype is DType.UNDEFINED:
        return onnx.TypeProto()
    proto = to_type_proto(type)
    for dim in proto.tensor_type.shape.dim:
        if is_nameless(dim.dim_param):
            dim.ClearField("dim_param")
    return proto


def write_value_info(name: str, type: Type, stored: bytes | None) -> onnx.ValueInfoProto:
    """Declares an input or output: as the source did, unless ``type`` contradicts that."""
    if stored is not None:
        proto = onnx.ValueInfoProto.FromString(stored)
        if not isinstance(type, TensorType) or _agrees(proto.type, type):
            return proto
    return onnx.ValueInfoProto(name=name, type=write_type(type))


def _agrees(proto: onnx.TypeProto, type: TensorType) -> bool:
    if proto.WhichOneof("value") != "tensor_type":
        return type.dtype is DType.UNDEFINED
    tensor = proto.tensor_type
    if type.dtype is not DType.UNDEFINED and tensor.elem_type != int(type.dtype):
        return False
    if not tensor.HasField("shape") or type.shape is None:
        return True
    if len(tensor.shape.dim) != len(type.shape):
        return False
    return all(
        not (d.HasField("dim_value") and isinstance(e, int) and d.dim_value != e and d.dim_value > 0)
        for d, e in zip(tensor.shape.dim, type.shape, strict=True)
    )
