"""Element types of torch that operators do not take in ONNX: they are computed in wider ones, which loses nothing."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eqsat.ir.schemas import Schema, refused_types, schema_of, type_string
from eqsat.ir.types import DType

if TYPE_CHECKING:
    import onnx_ir

_WIDER: Mapping[DType, Sequence[DType]] = {
    DType.BOOL: (DType.INT32, DType.FLOAT),
    DType.INT8: (DType.INT32, DType.FLOAT),
    DType.UINT8: (DType.INT32, DType.FLOAT),
    DType.INT16: (DType.INT32, DType.FLOAT),
    DType.INT32: (DType.INT64, DType.DOUBLE),
    DType.BFLOAT16: (DType.FLOAT,),
}
"""What holds all values of a type, and sums and products up to multiples of what its integers wrap around at. Of truth values a
sum is *or* and a product *and*, once it is a truth value again."""

_Taken = Mapping[str, DType]
"""Type parameter of an operator -> the type that it is to stand for."""


def widen(model: onnx_ir.Model) -> list[tuple[Any, str]]:
    """Has nodes compute in wider types that do not take the ones they are given. Returns those that this does not help, with the
    reasons."""
    opset = model.graph.opset_imports.get("", 0)
    refused: list[tuple[Any, str]] = []
    for node in [*model.graph.all_nodes()]:
        schema = None if node.domain else schema_of(node.op_type, opset)
        if schema is None or not (reason := _refusal(node, schema, opset, {})):
            continue
        if taken := _wider(node, schema, opset):
            _compute_in(node, schema, taken)
        else:
            refused.append((node, reason))
    return refused


def mend_outputs(program: Any) -> None:
    """Gives outputs the types that they have in torch, whose exporter computes some operators in wider ones, as sums in half
    precision, and forgets to convert what is an output back (2.14). And each a name of its own, where one value is several."""
    import onnx_ir

    graph, taken = program.model.graph, set[str]()
    (returned,) = program.exported_program.graph.output_node().args
    named = [(value, value.name) for value in graph.outputs]
    for i, ((found, name), node) in enumerate(zip(named, returned, strict=False)):
        dtype = getattr(getattr(node, "meta", {}).get("val"), "dtype", None)
        own = "" if dtype is None or dtype.is_complex else str(dtype).removeprefix("torch.").upper()
        expected = getattr(onnx_ir.DataType, own, found.dtype)
        if expected == found.dtype and name not in taken:
            taken.add(name)
            continue
        same = expected == found.dtype
        made = onnx_ir.node("Identity", [found]) if same else onnx_ir.node("Cast", [found], {"to": int(expected)})
        result = graph.outputs[i] = made.outputs[0]
        if name not in taken:
            found.name = f"{name}_wide"
        result.name = f"{name}_alias_{i}" if name in taken else name
        result.dtype, result.shape = expected, found.shape
        graph.append(made)
        taken.add(name)


def mend_numbers(program: Any) -> None:
    """Gives numbers of Python that are converted to double precision their digits, which torch's exporter rounds to single
    precision first (2.14). Tensors are no nodes of their own before constants are folded."""
    import onnx_ir

    numbers = _numbers(program.exported_program)
    for node in [*program.model.graph.all_nodes()]:
        if node.op_type not in ("Cast", "CastLike") or node.inputs[0] is None:
            continue
        to = node.attributes["to"].value if node.op_type == "Cast" else node.inputs[1].dtype
        rounded = _single(node.inputs[0].producer())
        if to == onnx_ir.DataType.DOUBLE and rounded is not None and rounded in numbers:
            exact = onnx_ir.tensor(numbers[rounded], dtype=onnx_ir.DataType.DOUBLE)
            made = onnx_ir.node("Constant", [], {"value": exact}, metadata_props=dict(node.metadata_props))
            node.graph.insert_before(node, made)
            node.replace_input_with(0, made.outputs[0])


def _single(node: Any) -> float | None:
    """The number of single precision that a node is, if it is one."""
    if node is None or node.op_type != "Constant":
        return None
    if (number := node.attributes.get("value_float")) is not None:
        return float(np.float32(number.value))
    if "value" not in node.attributes:
        return None
    tensor = node.attributes["value"].value
    return tensor.numpy().item() if DType(int(tensor.dtype)) is DType.FLOAT and not tensor.shape else None


_USED = (math.pi, math.pi / 180, 180 / math.pi)
"""Numbers that torch's exporter itself writes down."""


def _numbers(exported: Any) -> Mapping[float, float]:
    """Numbers among the arguments of a program, by what single precision makes of them."""
    from torch.fx import GraphModule
    from torch.utils._pytree import tree_leaves

    graphs = (module.graph for module in exported.graph_module.modules() if isinstance(module, GraphModule))
    given = (v for graph in graphs for node in graph.nodes for v in tree_leaves((node.args, node.kwargs)))
    return {float(np.float32(v)): v for v in (*_USED, *given) if isinstance(v, float)}


def _parameters(formals: Sequence[Any], values: Sequence[Any]) -> Iterator[tuple[str, DType]]:
    """Type parameter and element type of each operand or result."""
    for i, value in enumerate(values):
        dtype = getattr(value, "dtype", None)
        yield formals[min(i, len(formals) - 1)].type_str, DType(int(dtype or 0))


def _refusal(node: Any, schema: Schema, opset: int, taken: _Taken) -> str:
    sides = ((schema.inputs, node.inputs), (schema.outputs, node.outputs))
    types = [tuple(taken.get(p, d) if d else d for p, d in _parameters(*side)) for side in sides]
    return refused_types(node.op_type, opset, *types)


def _wider(node: Any, schema: Schema, opset: int) -> _Taken:
    """Empty where nothing helps."""
    taken: dict[str, DType] = {}
    for parameter, dtype in (*_parameters(schema.inputs, node.inputs), *_parameters(schema.outputs, node.outputs)):
        allowed = schema.types.get(parameter, frozenset((parameter,)))  # some are types themselves
        names = {d: type_string(d) for d in (dtype, *_WIDER.get(dtype, ()))}
        if names[dtype] not in allowed:
            taken.update((parameter, d) for d in [*names][:0:-1] if names[d] in allowed)
    return {} if _refusal(node, schema, opset, taken) else taken


def _compute_in(node: Any, schema: Schema, taken: _Taken) -> None:
    import onnx_ir

    def cast(value: Any, dtype: DType) -> Any:
        made = onnx_ir.node("Cast", [value], {"to": int(dtype)}, metadata_props=dict(node.metadata_props))
        made.outputs[0].dtype, made.outputs[0].shape = onnx_ir.DataType(int(dtype)), value.shape
        return made

    before, behind, inputs, results = list[Any](), list[Any](), list[Any](), list[Any]()
    operands, found = ([*_parameters(*s)] for s in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)))
    own = {parameter: dtype for parameter, dtype in (*operands, *found) if dtype}
    for value, (parameter, _) in zip(node.inputs, operands, strict=True):
        if parameter in taken and value is not None:
            before.append(cast(value, taken[parameter]))
            value = before[-1].outputs[0]
        inputs.append(value)
    wide = onnx_ir.Node(
        "",
        node.op_type,
        inputs,
        [*node.attributes.values()],
        num_outputs=len(node.outputs),
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )
    for old, new, (parameter, _) in zip(node.outputs, wide.outputs, found, strict=True):
        new.shape, new.type = old.shape, old.type
        if parameter in taken:
            new.type = onnx_ir.TensorType(onnx_ir.DataType(int(taken[parameter])))
            behind.append(cast(new, own[parameter]))
            new = behind[-1].outputs[0]
        results.append(new)
    onnx_ir.convenience.replace_nodes_and_values(
        node.graph, node, [node], [*before, wide, *behind], node.outputs, results
    )
