"""Operators without a definition of our own: shapes from their ONNX schema, meaning from the ONNX reference evaluator."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference

from eqsat.errors import ModelError, ShapeError, choices
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, RawAttribute, Subgraph
from eqsat.ir.operator import OPSET, Application, Evaluate, InferRule, Kind, Operator, traits_of
from eqsat.ir.schemas import declaration, refused_types
from eqsat.ir.traits import NO_TRAITS, Traits
from eqsat.ir.types import UNKNOWN, Dim, DType, OpaqueType, TensorType, Type, is_sequence

_OPSETS = [helper.make_opsetid("", OPSET)]


def operator_from_schema(name: str) -> Operator | None:
    """A definition of ``name`` read off its schema at `OPSET`.

    ``None`` if there is no such operator, it is deprecated, or it has bodies (their meaning needs the enclosing graph).
    """
    from eqsat.ir.operators.by_schema import BIT_EXACT, DISPUTED, EXTENTS, KINDS, RANDOM, TRAITS

    schema = _schema(name)
    if schema is None or any(a.type in (_ATTR.GRAPH, _ATTR.GRAPHS) for a in schema.attributes.values()):
        return None
    return Operator(
        name,
        infer=_with_symbols(_inference(schema), EXTENTS[name]) if name in EXTENTS else _inference(schema),
        evaluate=_evaluation(name, TRAITS.get(name, NO_TRAITS)),
        kind=KINDS.get(name, Kind.OPAQUE),
        bit_exact=name in BIT_EXACT,
        deterministic=name not in RANDOM,
        traits=TRAITS.get(name, NO_TRAITS),
        disputed=DISPUTED.get(name),
    )


_ATTR = defs.OpSchema.AttrType
_OPTIONAL = defs.OpSchema.FormalParameterOption.Optional


_ANY_NUMBER = 2**31 - 1


def _schema(name: str) -> defs.OpSchema | None:
    schema = declaration(name, OPSET)
    return None if schema is None or schema.deprecated else schema


def attributes_of_schema(key: str) -> Mapping[str, Any] | None:
    """The attributes that an operator may have and their defaults, ``None`` for one without; ``None`` without a schema."""
    schema = _schema(key)
    return None if schema is None else {name: default_of_schema(key, name) for name in schema.attributes}


def refused_number(key: str, operands: int) -> str:
    """What to say of a number of operands that an operator does not take; nothing where no schema says."""
    schema = _schema(key)
    if schema is None or schema.min_input <= operands <= schema.max_input:
        return ""
    least, most = schema.min_input, schema.max_input
    wanted = str(least) if least == most else f"{least} to {most}" if most < _ANY_NUMBER else f"{least} or more"
    return f"{key} is given {operands} operands; it takes {wanted}"


def unknown_attribute(key: str, names: Iterable[str]) -> str:
    """What to say of the first of ``names`` that is no attribute of an operator; nothing where no schema says."""
    known = _attribute_names(key)
    for name in names:
        if known is not None and name not in known:
            return f"{key} has no attribute {name!r}; {choices(name, sorted(known)) if known else 'it has none'}"
    return ""


@cache
def _attribute_names(key: str) -> frozenset[str] | None:
    schema = _schema(key)
    return None if schema is None else frozenset(schema.attributes)


def is_in_schema(key: str) -> bool:
    """Whether a schema has the operator, whether or not we know what it means."""
    return _schema(key) is not None


def further_inputs(key: str) -> str:
    """The inputs of an operator behind the first as an equation writes them, ``, starts, ends, *axes``: a starred one may be
    absent. None where no schema says."""
    schema = _schema(key)
    inputs = () if schema is None else schema.inputs[1:]
    return "".join(f", {'*' if i.option is _OPTIONAL else ''}{i.name}" for i in inputs)


def has_one_output(key: str) -> bool:
    """Whether nodes of an operator have one output, no less and no more; ``True`` where no schema says."""
    schema = _schema(key)
    return schema is None or schema.max_output == 1


def outputs_asked_for(key: str, outputs: Sequence[str], read: Collection[str]) -> int:
    """How many outputs a node has to have where ``read`` are read: those at its end that are not, and that nodes of the operator
    need not have, are not counted. All of them where no schema says."""
    schema = _schema(key)
    optional = [] if schema is None else [output.option is _OPTIONAL for output in schema.outputs]
    count = len(outputs)
    while 1 < count <= len(optional) and optional[count - 1] and outputs[count - 1] not in read:
        count -= 1
    return count


def takes_types(key: str, types: Sequence[Type | None]) -> bool:
    """Whether the operator's schema allows inputs of these element types; ``True`` where no schema says."""
    dtypes = tuple(DType.UNDEFINED if type is None else type.dtype for type in types)
    return _schema(key) is None or not refused_types(key, OPSET, dtypes, ())


def default_of_schema(key: str, name: str) -> Any:
    """The default of an attribute as the operator's schema states it; ``None`` if it states none."""
    schema = _schema(key)
    stated = schema.attributes.get(name) if schema is not None else None
    if stated is None or not stated.default_value.name:
        return None
    value = helper.get_attribute_value(stated.default_value)
    return value.decode() if isinstance(value, bytes) else tuple(value) if is_sequence(value) else value


# --- types ---------------------------------------------------------------------------------------------------------------


def to_type_proto(type: Type) -> onnx.TypeProto:
    proto = onnx.TypeProto()
    if isinstance(type, OpaqueType):
        proto.ParseFromString(type.proto)
        return proto
    tensor = proto.tensor_type
    tensor.elem_type = int(type.dtype)
    if type.shape is not None:
        tensor.shape.SetInParent()
        for d in type.shape:
            if isinstance(d, int):
                tensor.shape.dim.add().dim_value = d
            else:
                tensor.shape.dim.add().dim_param = d
    return proto


def from_type_proto(proto: onnx.TypeProto, read: Callable[[str], Dim] = str) -> Type:
    """The type a ``TypeProto`` describes; ``read``: the extent that has a name."""
    which = proto.WhichOneof("value")
    if which is None:
        return UNKNOWN
    if which != "tensor_type":
        return OpaqueType(proto.SerializeToString(deterministic=True))
    tensor = proto.tensor_type
    dims = tuple(_dim(d, read) for d in tensor.shape.dim) if tensor.HasField("shape") else None
    return TensorType(DType(tensor.elem_type), dims)


def element_type(type: Type) -> Type | None:
    """The type of what a sequence consists of; ``None`` for what is no sequence."""
    proto = onnx.TypeProto.FromString(type.proto) if isinstance(type, OpaqueType) else onnx.TypeProto()
    return from_type_proto(proto.sequence_type.elem_type) if proto.HasField("sequence_type") else None


def types_in_map(type: Type) -> tuple[DType, Type] | None:
    """The types of the keys and of the values of a map; ``None`` for what is no map."""
    proto = onnx.TypeProto.FromString(type.proto) if isinstance(type, OpaqueType) else onnx.TypeProto()
    if not proto.HasField("map_type"):
        return None
    return DType(proto.map_type.key_type), from_type_proto(proto.map_type.value_type)


def _dim(proto: Any, read: Callable[[str], Dim]) -> Dim:
    """An extent; a fresh symbol for one with neither number nor name, or a negative number, by which exporters say "any"."""
    from eqsat.ir.infer import fresh_symbol

    name = proto.dim_param  # bytes where it is no UTF-8
    if proto.HasField("dim_value") and proto.dim_value >= 0:
        return proto.dim_value
    return read(name) if name and isinstance(name, str) else fresh_symbol()


def _inference(schema: defs.OpSchema) -> InferRule:
    """The rule of ONNX, which is told the defaults of attributes: that of STFT takes an absent ``onesided`` for 0, which is 1."""
    defaults = {name: value for name, value in (attributes_of_schema(schema.name) or {}).items() if value is not None}

    def infer(app: Application) -> tuple[Type, ...]:
        present = tuple(t is not None for t in app.types)
        node = to_node_proto(schema.name, Attributes({**defaults, **app.attributes}), present, app.outputs)
        types = {f"i{i}": to_type_proto(t) for i, t in enumerate(app.types) if t is not None}
        data = {f"i{i}": numpy_helper.from_array(v) for i, v in enumerate(app.values) if v is not None}
        try:
            found = shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=_OPSETS)
        except Exception as error:  # onnx raises a dozen types here, RuntimeError among them
            if any(_is_partial(t) for t in app.types) or _lacks_length(app):
                return (UNKNOWN,) * app.outputs  # it complains of what we do not know, not of a contradiction
            message = " ".join(str(error).split())
            raise ShapeError(f"{app.op}: {message}; inputs {', '.join(str(t) for t in app.types)}") from None
        return tuple(from_type_proto(found[o]) if o in found else UNKNOWN for o in node.output)

    return infer


def _with_symbols(infer: InferRule, extents_of: Callable[[Application], Sequence[Dim | None]]) -> InferRule:
    """A shape rule that says numbers, or nothing of the shape, with what another one says of symbols in each output."""

    def with_symbols(app: Application) -> tuple[Type, ...]:
        extents = extents_of(app)
        return tuple(_completed(made, extents) for made in infer(app)) if extents else infer(app)

    return with_symbols


def _completed(made: Type, extents: Sequence[Dim | None]) -> Type:
    if not isinstance(made, TensorType):
        return made
    stated = made.shape or extents
    shape = tuple(d if isinstance(d, int) or e is None else e for d, e in zip(stated, extents, strict=True))
    known = tuple(d for d in shape if d is not None)
    return made if len(known) < len(shape) else TensorType(made.dtype, known)


def _is_partial(type: Type | None) -> bool:
    return isinstance(type, TensorType) and (type.dtype is DType.UNDEFINED or type.shape is None)


def _lacks_length(app: Application) -> bool:
    """Whether extents are told by a list of unknown length, which ONNX takes for one of none."""
    lists = (app.types[i] for i in traits_of(app.op).counts if i < len(app.types))
    return any(isinstance(t, TensorType) and not t.is_static for t in lists)


# --- nodes ---------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def to_node_proto(name: str, attributes: Attributes, present: tuple[bool, ...], outputs: int) -> onnx.NodeProto:
    """A node reading ``i0, i1, ...`` and writing ``o0, o1, ...``."""
    inputs = [f"i{i}" if p else "" for i, p in enumerate(present)]
    node = helper.make_node(name, inputs, [f"o{i}" for i in range(outputs)])
    schema = _schema(name)
    for key, value in attributes.items():
        if isinstance(value, RawAttribute):
            node.attribute.add().ParseFromString(value.proto)
            continue
        declared = schema.attributes.get(key) if schema else None
        kind: Any = None if declared is None else declared.type
        node.attribute.append(helper.make_attribute(key, _plain(value), attr_type=getattr(kind, "value", kind)))
    return node


def _plain(value: Any) -> Any:
    if isinstance(value, Constant):
        return numpy_helper.from_array(np.asarray(value.numpy()))
    if isinstance(value, Subgraph):
        raise ModelError("an operator with a body has no schema definition")
    return [_plain(v) for v in value] if is_sequence(value) else value


# --- meaning -------------------------------------------------------------------------------------------------------------


def _evaluation(name: str, facts: Traits) -> Evaluate:
    copies = facts.moves and facts.sources == (0,) and not facts.or_zero

    def evaluate(attributes: Attributes, inputs: Sequence[Any]) -> tuple[Any, ...]:
        if not copies or not facts.holds(attributes):
            return evaluate_by_reference(name, attributes, inputs)
        # What only moves elements moves their numbers: the reference evaluator makes NaN of 0 * inf in a Resize.
        x: np.ndarray = inputs[0]
        numbers = np.arange(x.size, dtype=np.float64).reshape(x.shape)
        (moved,) = evaluate_by_reference(name, attributes, (numbers, *inputs[1:]))
        return (x.reshape(-1)[np.rint(moved).astype(np.int64)],)

    return evaluate


def evaluate_by_reference(name: str, attributes: Attributes, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """All outputs of an operator as the ONNX reference evaluator computes them."""
    present = tuple(x is not None for x in inputs)
    session = _session(name, attributes, present)
    feeds = {f"i{i}": x for i, x in enumerate(inputs) if x is not None}
    try:
        return tuple(session.run(None, feeds))
    except Exception as error:
        message = " ".join(str(error).split())[:300]
        raise ModelError(f"{name}: the ONNX reference evaluator fails: {message}") from error


@lru_cache(maxsize=512)
def _session(name: str, attributes: Attributes, present: tuple[bool, ...]) -> Any:
    from onnx.reference import ReferenceEvaluator

    schema = _schema(name)
    if schema is None:
        raise ModelError(f"{name}: no such operator at opset {OPSET}")
    # A variadic result is asked for as one output: no operator of that kind comes here.
    outputs = 1 if schema.max_output > 16 else schema.max_output
    node = to_node_proto(name, attributes, present, outputs)
    graph = helper.make_graph(
        [node],
        name,
        [helper.make_value_info(i, onnx.TypeProto()) for i in node.input if i],
        [helper.make_value_info(o, onnx.TypeProto()) for o in node.output],
    )
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=_OPSETS))
