"""Changes of form in activations and normalizations: bounds, ratios, training outputs, scales per group."""

from dataclasses import replace

import numpy as np

from eqsat.frontends.onnx.versions.attributes import without_neutral
from eqsat.frontends.onnx.versions.steps import (
    Values,
    add_step,
    first_output_only,
    get_input,
    set_attributes,
    set_inputs,
    unchanged,
)
from eqsat.ir.graph import Node
from eqsat.ir.types import DType

_FLOAT32_MAX = float(np.finfo(np.float32).max)

# Clip: bounds from attributes to inputs


def _clip_up(node: Node, values: Values) -> Node | None:
    dtype = values.type_of(node.inputs[0]).dtype
    if not dtype.is_float or dtype is DType.UNDEFINED:
        return None
    bounds: list[str] = []
    for name, default in (("min", -_FLOAT32_MAX), ("max", _FLOAT32_MAX)):
        bound = node.attributes.get(name, default)
        if dtype is DType.FLOAT16 and name not in node.attributes:
            bounds.append("")
        else:
            bounds.append(values.add_constant(np.array(bound, dtype.numpy), f"{node.outputs[0]}_{name}"))
    return set_attributes(set_inputs(node, [node.inputs[0], *bounds]), min=None, max=None)


def _clip_down(node: Node, values: Values) -> Node | None:
    found: dict[str, float] = {}
    for index, name, absent in ((1, "min", -np.inf), (2, "max", np.inf)):
        if not get_input(node, index):
            found[name] = absent
            continue
        bound = values.constant(node.inputs[index])
        if bound is None or bound.size != 1 or float(np.float32(bound.item())) != float(bound.item()):
            return None
        found[name] = float(bound.item())
    default = {"min": -_FLOAT32_MAX, "max": _FLOAT32_MAX}
    return set_attributes(
        set_inputs(node, node.inputs[:1]), **{k: None if v == default[k] else v for k, v in found.items()}
    )


add_step("Clip", 11, _clip_up, _clip_down)


# Dropout: in inference an identity whose second output used to be unspecified


def _dropout_up(node: Node, values: Values) -> Node | None:
    if any(map(values.is_read, node.outputs[1:])):
        return None
    plain, ratio = replace(node, outputs=node.outputs[:1]), node.attributes.get("ratio")
    if ratio is None:
        return plain
    name = values.add_constant(np.array(ratio, np.float32), f"{node.outputs[0]}_ratio")
    return set_attributes(set_inputs(plain, [node.inputs[0], name]), ratio=None)


def _dropout_down(node: Node, values: Values) -> Node | None:
    ratio = values.constant(node.inputs[1]) if get_input(node, 1) else np.float32(0.5)
    training = values.constant(node.inputs[2]) if get_input(node, 2) else np.False_
    if any(map(values.is_read, node.outputs[1:])) or ratio is None or training is None or bool(training):
        return None
    kept = replace(set_inputs(node, node.inputs[:1]), outputs=node.outputs[:1])
    return set_attributes(kept, ratio=float(ratio) if get_input(node, 1) else None, seed=None)


add_step("Dropout", 12, _dropout_up, _dropout_down)


# BatchNormalization: inference only before 14


def _of_inference(node: Node, values: Values) -> Node | None:
    if node.attributes.get("training_mode", 0):
        return None
    return first_output_only(set_attributes(node, training_mode=None), values)


add_step("BatchNormalization", 9, without_neutral(spatial=1), unchanged)
add_step("BatchNormalization", 14, first_output_only, _of_inference)


# GroupNormalization: scale and bias per group before 21, per channel since


def _group_norm_up(node: Node, values: Values) -> Node | None:
    data, groups = values.type_of(node.inputs[0]), node.attributes.get("num_groups")
    if not data.shape or not isinstance(groups, int):
        return None
    channels = data.shape[1] if len(data.shape) > 1 else None
    parameters = [values.constant(v) for v in node.inputs[1:3]]
    if not isinstance(channels, int) or channels % groups or any(p is None for p in parameters):
        return None
    names = [
        values.add_constant(np.repeat(p, channels // groups), v)
        for p, v in zip(parameters, node.inputs[1:3], strict=True)
        if p is not None
    ]
    return set_inputs(node, [node.inputs[0], *names])


def _group_norm_down(node: Node, values: Values) -> Node | None:
    groups, names = node.attributes.get("num_groups"), list[str]()
    for value in node.inputs[1:3]:
        found = values.constant(value)
        if found is None or not isinstance(groups, int) or found.size % groups:
            return None
        rows = found.reshape(groups, -1)
        if not (rows.view(np.uint8).reshape(groups, rows.shape[1], -1) == _first_column(rows)).all():
            return None
        names.append(values.add_constant(np.ascontiguousarray(rows[:, 0]), value))
    return set_inputs(node, [node.inputs[0], *names])


def _first_column(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows[:, :1]).view(np.uint8).reshape(rows.shape[0], 1, -1)


add_step("GroupNormalization", 21, _group_norm_up, _group_norm_down)
