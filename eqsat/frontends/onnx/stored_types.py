"""Types of values whose nodes we do not read: what the ONNX package can infer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eqsat.frontends.onnx.types import Symbols, read_type
from eqsat.ir.infer import VALUE_SIZE_LIMIT
from eqsat.ir.types import Type


def infer_at_opset(
    proto: Any, opset: int, types: Mapping[str, Type], values: Mapping[str, np.ndarray]
) -> dict[str, Type]:
    """Types of a node's outputs by its schema at ``opset``, as far as the ONNX package can tell."""
    import onnx
    from onnx import helper, numpy_helper, shape_inference

    from eqsat.ir.schema_operator import to_type_proto

    try:
        schema = onnx.defs.get_schema(proto.op_type, opset, "")
        found = shape_inference.infer_node_outputs(
            schema,
            proto,
            {name: to_type_proto(type) for name, type in types.items()},
            {name: numpy_helper.from_array(value, name) for name, value in values.items() if value.dtype != object},
            opset_imports=[helper.make_opsetid("", opset)],
        )
    except Exception:  # it raises many kinds, and an unknown type is a fair answer
        return {}
    return {name: read_type(type, Symbols(ours=True), f"value {name!r}") for name, type in found.items()}


def fill_stored_types(model: Any, stored: dict[str, Type], wanted: Sequence[str], symbols: Symbols) -> None:
    """Adds types of ``wanted`` values that the ONNX package can infer, bodies of control flow included."""
    import onnx
    from onnx import shape_inference

    light = onnx.ModelProto()
    light.CopyFrom(_without_weights(model))
    try:
        inferred = shape_inference.infer_shapes(light)
    except Exception:  # partial models of old opsets make it raise; what is unknown stays unknown
        return
    names = set(wanted)
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        if info.name in names:
            stored.setdefault(info.name, read_type(info.type, symbols, f"value {info.name!r}"))


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
