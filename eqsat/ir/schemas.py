"""What the ONNX schema of an operator of the default domain allows at an opset: operands, attributes, element types."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from eqsat.ir.types import DType


@dataclass(frozen=True, slots=True)
class Schema:
    """``inputs``, ``outputs``: ``FormalParameter`` of the onnx package. ``needed``: inputs that must be there, by position.

    ``required``: names of attributes. ``attributes``: name -> number of its ``AttributeType``. ``types``: type parameter -> the
    types it may stand for.
    """

    least_inputs: int
    most_inputs: int
    least_outputs: int
    most_outputs: int
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    needed: tuple[int, ...]
    required: frozenset[str]
    attributes: Mapping[str, int]
    types: Mapping[str, frozenset[str]]


@cache
def declaration(op: str, opset: int) -> Any:
    """The schema of the onnx package that holds at ``opset``, deprecated or not; ``None`` if there is none."""
    import onnx

    try:
        return onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None


@cache
def schema_of(op: str, opset: int) -> Schema | None:
    """What `declaration` says, in types of our own, which are faster to ask."""
    found = declaration(op, opset)
    if found is None:
        return None
    declared: dict[str, Any] = dict(found.attributes)
    return Schema(
        found.min_input,
        found.max_input,
        found.min_output,
        found.max_output,
        tuple(found.inputs),
        tuple(found.outputs),
        tuple(i for i, formal in enumerate(found.inputs) if formal.option.name == "Single"),
        frozenset(name for name, a in declared.items() if a.required),
        {name: a.type.value for name, a in declared.items()},
        {c.type_param_str: frozenset(c.allowed_type_strs) for c in found.type_constraints},
    )


@cache
def refused_types(op: str, opset: int, inputs: tuple[DType, ...], outputs: tuple[DType, ...]) -> str:
    """Why the operator does not take these element types (``UNDEFINED``: absent or unknown); empty if it does."""
    schema = schema_of(op, opset)
    if schema is None:
        return f"there is no {op} at opset {opset}"
    bound: dict[str, tuple[str, DType]] = {}
    for side, formals, actual in (("input", schema.inputs, inputs), ("output", schema.outputs, outputs)):
        for i, dtype in enumerate(actual):
            if dtype is DType.UNDEFINED or not formals:
                continue
            formal = formals[min(i, len(formals) - 1)]
            where = f"{side} {i} ({formal.name})"
            allowed = schema.types.get(formal.type_str, frozenset({formal.type_str}))
            if type_string(dtype) not in allowed:
                listed = ", ".join(sorted(t.removeprefix("tensor(").removesuffix(")") for t in allowed))
                reason = f"{where} is of type {dtype.name.lower()}; at opset {opset} it may be {listed}"
                later = _opset_that_takes(op, opset, inputs, outputs)
                return (
                    f"{reason} (from opset {later} on this type, too: export the model with that)" if later else reason
                )
            if formal.type_str in schema.types and formal.is_homogeneous:
                first, other = bound.setdefault(formal.type_str, (where, dtype))
                if other is not dtype:
                    return f"{where} is of type {dtype.name.lower()}, {first} of type {other.name.lower()}; they must be equal"
    return ""


def _opset_that_takes(op: str, opset: int, inputs: tuple[DType, ...], outputs: tuple[DType, ...]) -> int | None:
    """The first opset behind this one at which the operator takes these element types."""
    import onnx

    later = range(opset + 1, onnx.defs.onnx_opset_version() + 1)
    return next((n for n in later if not refused_types(op, n, inputs, outputs)), None)


@cache
def type_string(dtype: DType) -> str:
    """What schemas call a tensor of an element type."""
    return f"tensor({dtype.name.lower()})"
