"""Whether the schema of its operator allows a node of the file. What it refuses, ONNX Runtime refuses to load, too."""

from collections.abc import Callable, Sequence
from typing import Any

from eqsat.errors import ModelError, ShapeError
from eqsat.frontends.onnx.nodes import INT, RawNode, check_field, kind_name, kind_of
from eqsat.ir.schemas import Schema, refused_types, schema_of
from eqsat.ir.types import DType, Type

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
