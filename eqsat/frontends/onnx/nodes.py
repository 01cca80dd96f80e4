"""Nodes of an ONNX file: attributes, bodies of control flow and what they capture, order; whether the schema of its operator
allows a node. What that refuses, ONNX Runtime refuses to load, too."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eqsat.errors import ModelError, ShapeError
from eqsat.frontends.onnx.invariants import without_invariants
from eqsat.frontends.onnx.source import text
from eqsat.frontends.onnx.subgraphs import captures_of, graphs_of
from eqsat.frontends.onnx.tensors import ExternalFiles, constant_of_strings, read_sparse, read_tensor
from eqsat.ir.constants import Constant, ConstantPool, same_constant
from eqsat.ir.graph import Attributes, AttributeValue, RawAttribute, Subgraph
from eqsat.ir.operator import DEFAULT_DOMAIN, domain_of_file
from eqsat.ir.operators.devices import METADATA_KEY
from eqsat.ir.order import dependency_order
from eqsat.ir.schemas import Schema, refused_types, schema_of
from eqsat.ir.types import DType, Type

FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS, TENSORS, GRAPHS, SPARSE = range(1, 12)
_FIELDS = {FLOAT: "f", INT: "i", STRING: "s", TENSOR: "t", GRAPH: "g", SPARSE: "sparse_tensor", 13: "tp"}
_LISTS = {FLOATS: "floats", INTS: "ints", STRINGS: "strings", TENSORS: "tensors", GRAPHS: "graphs",
          12: "sparse_tensors", 14: "type_protos"}  # fmt: skip
_PLAIN = {FLOAT, INT, STRING, FLOATS, INTS, STRINGS}
_ABOUT = {"name", "type", "doc_string", "ref_attr_name"}


@dataclass(slots=True)
class RawNode:
    """A node of the file. ``captures`` are the outer values its bodies read, in the order of their attributes."""

    proto: Any
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captures: tuple[str, ...]
    has_body: bool

    @property
    def label(self) -> str:
        return f"{self.op} {self.proto.name!r}" if self.proto.name else f"{self.op} -> {list(self.outputs)}"


def read_raw_node(proto: Any) -> RawNode:
    domain = proto.domain
    bodies = [a for a in proto.attribute if a.type in (GRAPH, GRAPHS)]
    captures = [c for a in sorted(bodies, key=lambda a: a.name) for g in graphs_of(a) for c in captures_of(g)]
    return RawNode(
        proto,
        proto.op_type,
        domain_of_file(proto.op_type, "" if domain == "ai.onnx" else domain),
        tuple(proto.input),
        tuple(proto.output),
        tuple(captures),
        bool(bodies),
    )


def check_bodies(raw: RawNode, constants: Mapping[str, Constant], files: ExternalFiles) -> None:
    """Raises `ModelError` where a body has an initializer by the name of an outer value that another body reads.

    ONNX forbids that. ONNX Runtime takes the outer value in both, but the initializer where no other body reads that name.
    """
    captured = set(raw.captures)
    for a in raw.proto.attribute:
        for tensor in (t for body in graphs_of(a) for t in body.initializer if t.name in captured):
            outer = constants.get(tensor.name)
            if outer is None or not same_constant(outer, read_tensor(tensor, files)):
                raise ModelError(
                    f"{raw.label}: {a.name} has an initializer {tensor.name!r}, the name of a value around it that another body"
                    " reads; a name has to mean one thing: rename the initializer"
                )


def about_node(proto: Any) -> bytes:
    """What a node says that does not change what it computes: a message with its text and metadata, but for its device."""
    about = type(proto)(doc_string=text(proto.doc_string))
    about.metadata_props.extend(p for p in proto.metadata_props if p.key != METADATA_KEY)
    return about.SerializeToString(deterministic=True)


def read_attributes(protos: Iterable[Any], files: ExternalFiles, pool: ConstantPool, where: str) -> Attributes | str:
    """Attributes as values; the reason as text if one of them is of a kind only its operator understands."""
    found: dict[str, AttributeValue] = {}
    for a in protos:
        kind = check_field(a, where)
        if kind in _PLAIN:
            found[a.name] = _plain(getattr(a, _FIELDS.get(kind) or _LISTS[kind]))
        elif kind == TENSOR:
            found[a.name] = pool.intern(read_tensor(a.t, files))
        else:
            return f"attribute {a.name!r} is a graph, a type or a list of tensors"
    return Attributes(found)


def read_opaque_attributes(
    protos: Iterable[Any], files: ExternalFiles, read_body: Callable[[Any], Subgraph]
) -> Attributes:
    """Attributes as bytes, bodies by ``read_body``."""
    from onnx import numpy_helper

    found: dict[str, AttributeValue] = {}
    for a in protos:
        if a.type == GRAPH:
            found[a.name] = read_body(a.g)
        elif a.type == GRAPHS:
            found[a.name] = tuple(map(read_body, a.graphs))
        else:
            if a.type == TENSOR and a.t.data_location:
                a.t.CopyFrom(numpy_helper.from_array(read_tensor(a.t, files).numpy(), a.t.name))
            found[a.name] = RawAttribute(_bytes(a))
    return Attributes(found)


def _bytes(message: Any) -> bytes:
    return message.SerializeToString(deterministic=True)


def _plain(value: Any) -> Any:
    """A number, a text, bytes that are no text, or a tuple of such."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value if isinstance(value, int | float) else tuple(map(_plain, value))


def kind_of(a: Any) -> int:
    """The ``AttributeType`` of an attribute, which files of the first IR version leave to be guessed."""
    if a.type:
        return a.type
    one = next((kind for kind, field in _FIELDS.items() if a.HasField(field)), 0)
    return one or next((kind for kind, field in _LISTS.items() if len(getattr(a, field))), INTS)


def kind_name(kind: int) -> str:
    """The kind of an attribute as errors print it."""
    from onnx import AttributeProto

    known: dict[int, str] = {number: name for name, number in AttributeProto.AttributeType.items()}
    return known.get(kind, f"of the unknown kind {kind}")


def check_field(a: Any, where: str) -> int:
    """The kind of an attribute. Raises `ModelError` unless it has a value of this kind and no other."""
    kind = kind_of(a)
    if a.ref_attr_name:
        raise ModelError(f"{where}: attribute {a.name!r} refers to a function's attribute, outside a function")
    one, many = _FIELDS.get(kind), _LISTS.get(kind)
    found = {f.name for f, _ in a.ListFields()} - _ABOUT
    if not (found == {one} if one else many and found <= {many}):
        values = ", ".join(sorted(found)) or "nothing"
        raise ModelError(
            f"{where}: attribute {a.name!r} is declared to be {kind_name(kind)} but holds {values}; "
            "is the file damaged?"
        )
    return kind


def read_constant_node(proto: Any, files: ExternalFiles) -> Constant:
    """The constant a ``Constant`` node gives. The kind of its attribute tells which; ONNX Runtime ignores the name, too."""
    where = f"Constant {proto.name!r}" if proto.name else f"Constant -> {list(proto.output)}"
    if len(proto.attribute) != 1:
        names = [a.name for a in proto.attribute]
        raise ModelError(f"{where}: needs exactly one value attribute, has {names}")
    a = proto.attribute[0]
    kind = check_field(a, where)
    if kind == TENSOR:
        return read_tensor(a.t, files)
    if kind == SPARSE:
        return read_sparse(a.sparse_tensor, files)
    if kind in (FLOAT, FLOATS):
        return Constant.of(a.f if kind == FLOAT else list(a.floats), DType.FLOAT)
    if kind in (INT, INTS):
        return Constant.of(a.i if kind == INT else list(a.ints), DType.INT64)
    if kind in (STRING, STRINGS):
        return constant_of_strings([a.s], ()) if kind == STRING else constant_of_strings(a.strings, (len(a.strings),))
    raise ModelError(f"{where}: attribute {a.name!r} is {kind_name(kind)}, which gives no tensor")


def raw_nodes(
    proto: Any, constants: dict[str, Constant], inputs: Mapping[str, Any], files: ExternalFiles
) -> list[RawNode]:
    """The nodes but for Constants, whose values are added to ``constants``, and states of loops that never change."""
    raw: list[RawNode] = []
    for node in proto.node:
        if node.op_type != "Constant" or node.domain not in DEFAULT_DOMAIN or len(node.output) != 1:
            raw.extend(map(read_raw_node, without_invariants(node)))
        elif node.output[0] in constants or node.output[0] in inputs:
            raise ModelError(f"Constant {node.name!r}: output {node.output[0]!r} is defined twice")
        else:
            constants[node.output[0]] = read_constant_node(node, files)
    return raw


def in_order(nodes: Sequence[RawNode], defined: set[str]) -> list[RawNode]:
    """The nodes in topological order: the file's own order if it is one, else the closest to it.

    Raises `ModelError` for a value that is defined twice, never, or by way of itself.
    """
    producer: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in node.outputs:
            if not name:
                continue
            if name in producer or name in defined:
                raise ModelError(f"{node.label}: output {name!r} is defined twice; every value has one definition")
            producer[name] = i
    before: dict[int, set[int]] = {}
    for i, node in enumerate(nodes):
        sources = before[i] = set()
        for name in (*node.inputs, *node.captures):
            if name and name not in defined:
                source = producer.get(name)
                if source is None:
                    raise ModelError(
                        f"{node.label}: input {name!r} is no graph input, no initializer and no node's output"
                    )
                sources.add(source)
    order = dependency_order(before)
    if len(order) < len(nodes):
        stuck = nodes[min(before.keys() - set(order))]
        raise ModelError(
            f"{stuck.label}: depends on its own output; the graph has a cycle ({len(nodes) - len(order)} nodes cannot be ordered)"
        )
    return [nodes[i] for i in order]


def live(nodes: Sequence[RawNode], outputs: Iterable[str]) -> tuple[list[RawNode], set[str]]:
    """The nodes of an ordered list on which ``outputs`` depend, and the names they read."""
    needed, kept = set(outputs), list[RawNode]()
    for node in reversed(nodes):
        if any(o in needed for o in node.outputs if o):
            needed.update(node.inputs)
            needed.update(node.captures)
            kept.append(node)
    kept.reverse()
    return kept, needed


_ELEMENT_TYPES = {"to", "dtype", "output_datatype"}
_ELEMENT_TYPES_OR_ZERO = {"output_dtype", "precision", "softmax_precision", "stash_type"}


def check_node(raw: RawNode, opset: int, type_of: Callable[[str], Type]) -> None:
    """Raises `ModelError` unless a node of the default domain has the operands and attributes that its schema declares.

    An operator without a schema at ``opset`` passes.
    """
    schema = schema_of(raw.op, opset)
    if schema is None:
        return
    _check_arity(raw, schema)
    for attribute in raw.proto.attribute:
        _check_attribute(raw, attribute, schema)
    if missing := schema.required - {a.name for a in raw.proto.attribute}:
        raise ModelError(f"{raw.label}: required attribute {min(missing)!r} is missing")
    reason = refused_types(raw.op, opset, _dtypes(raw.inputs, type_of), ())
    if reason:
        raise ShapeError(f"{raw.label}: {reason}")


def _check_arity(raw: RawNode, schema: Schema) -> None:
    least, most = schema.least_inputs, schema.most_inputs
    if not least <= len(raw.inputs) <= most and not (len(raw.inputs) > most and not any(raw.inputs[most:])):
        raise ModelError(f"{raw.label}: has {len(raw.inputs)} inputs, {raw.op} takes {_range(least, most)}")
    for i in schema.needed:
        if not raw.inputs[i]:
            raise ModelError(f"{raw.label}: input {i} ({schema.inputs[i].name}) is absent, {raw.op} needs it")
    least, most = schema.least_outputs, schema.most_outputs
    if not least <= len(raw.outputs) <= most:
        raise ModelError(f"{raw.label}: has {len(raw.outputs)} outputs, {raw.op} gives {_range(least, most)}")


def _check_attribute(raw: RawNode, attribute: Any, schema: Schema) -> None:
    name = attribute.name
    declared = schema.attributes.get(name)
    if declared is None:
        if name.startswith("__"):
            return  # of a runtime, for itself
        known = ", ".join(sorted(schema.attributes)) or "none"
        raise ModelError(f"{raw.label}: {raw.op} has no attribute {name!r} (it has {known}); remove it from the node")
    kind = kind_of(attribute)
    if kind != declared:
        raise ModelError(
            f"{raw.label}: attribute {name!r} is {kind_name(kind)}, {raw.op} declares {kind_name(declared)}"
        )
    check_field(attribute, raw.label)
    is_type = name in _ELEMENT_TYPES or (name in _ELEMENT_TYPES_OR_ZERO and attribute.i != 0)
    if kind == INT and is_type and (not attribute.i or attribute.i not in set(DType)):
        raise ModelError(f"{raw.label}: attribute {name!r} is {attribute.i}, which is no element type of ONNX")


def _dtypes(names: Sequence[str], type_of: Callable[[str], Type]) -> tuple[DType, ...]:
    return tuple(type_of(n).dtype if n else DType.UNDEFINED for n in names)


def _range(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} or more" if most > 1000 else f"{least} to {most}"
