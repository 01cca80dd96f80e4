"""Changes of meaning: softmax over flattened axes, resizing, sampling, scattering, transposed convolution."""

from dataclasses import replace

import numpy as np

from eqsat.frontends.onnx.versions.forms import input_to_list, lists_to_inputs
from eqsat.frontends.onnx.versions.steps import (
    Change,
    Values,
    add_step,
    get_input,
    set_attributes,
    set_inputs,
    unchanged,
    unless,
)
from eqsat.ir.graph import Attributes, Node
from eqsat.ir.types import DType

# Softmax, LogSoftmax, Hardmax: before 13 over all axes from `axis` on (default 1), since 13 over one axis (default -1)


def _extents_from(node: Node, axis: int, values: Values) -> tuple[object, ...] | None:
    shape = values.type_of(node.inputs[0]).shape
    return None if shape is None else shape[axis if axis >= 0 else axis + len(shape) :]


def _softmax_up(node: Node, values: Values) -> Node | list[Node]:
    axis = node.attributes.get("axis", 1)
    assert isinstance(axis, int)
    extents = _extents_from(node, axis, values)
    if axis == -1 or (extents is not None and len(extents) <= 1):
        return set_attributes(node, axis=-1)
    if extents is not None and all(e == 1 for e in extents[1:]):
        return set_attributes(node, axis=axis)
    stem, data = node.outputs[0], node.inputs[0]
    shape, flat, result = (values.fresh_name(f"{stem}_{s}") for s in ("shape", "flat", "normalized"))
    return [
        Node("Shape", (data,), (shape,)),
        Node("Flatten", (data,), (flat,), Attributes({"axis": axis})),
        replace(set_attributes(node, axis=-1), inputs=(flat,), outputs=(result,)),
        Node("Reshape", (result, shape), node.outputs),
    ]


def _softmax_down(node: Node, values: Values) -> Node | None:
    axis = node.attributes.get("axis", -1)
    assert isinstance(axis, int)
    if axis == -1:
        return set_attributes(node, axis=-1)
    extents = _extents_from(node, axis, values)
    return set_attributes(node, axis=axis) if extents is not None and all(e == 1 for e in extents[1:]) else None


for _op in ("Softmax", "LogSoftmax", "Hardmax"):
    add_step(_op, 13, _softmax_up, _softmax_down)


# Resize and its predecessor Upsample


def _renamed(op: str) -> Change:
    return lambda node, values: replace(node, op=op)


def _resize_10_up(node: Node, values: Values) -> Node | None:
    """Only enlarging: where it shrinks, "nearest" of version 10 is rounded differently by different runtimes."""
    scales = values.constant(get_input(node, 1))
    if scales is None or (scales < 1).any():
        return None
    moved = set_inputs(node, [node.inputs[0], "", node.inputs[1]])
    return set_attributes(moved, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def _resize_10_down(node: Node, values: Values) -> Node | None:
    attributes, scales = node.attributes, values.constant(get_input(node, 2))
    mode = attributes.get("mode", "nearest")
    if scales is None or scales.size == 0 or (scales < 1).any() or mode == "cubic" or get_input(node, 3):
        return None
    if attributes.get("coordinate_transformation_mode", "half_pixel") != "asymmetric":
        return None
    if mode == "nearest" and attributes.get("nearest_mode", "round_prefer_floor") != "floor":
        return None
    if attributes.get("exclude_outside", 0):
        return None
    kept = {"mode": mode} if "mode" in attributes else {}
    return set_inputs(replace(node, attributes=Attributes(kept)), [node.inputs[0], node.inputs[2]])


def _resize_11_up(node: Node, values: Values) -> Node | None:
    mode = node.attributes.get("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_half_pixel_for_nn":
        return None
    roi = get_input(node, 1) if mode == "tf_crop_and_resize" else ""
    scales, sizes = get_input(node, 2), get_input(node, 3)
    if scales and sizes:
        found = values.constant(scales)
        if found is None:
            return None
        scales, sizes = (scales, "") if found.size else ("", sizes)
    return set_inputs(node, [node.inputs[0], roi, scales, sizes])


def _resize_11_down(node: Node, values: Values) -> Node | None:
    empty = values.add_constant(np.zeros(0, np.float32), f"{node.outputs[0]}_none")
    return set_inputs(
        node, [node.inputs[0], get_input(node, 1) or empty, get_input(node, 2) or empty, get_input(node, 3)]
    )


add_step("Upsample", 9, lists_to_inputs("scales", dtype=DType.FLOAT), input_to_list("scales", required=True))
add_step("Upsample", 10, _renamed("Resize"), _renamed("Upsample"))
add_step("Resize", 10, unchanged, _renamed("Upsample"))
add_step("Resize", 11, _resize_10_up, _resize_10_down)
add_step("Resize", 13, _resize_11_up, _resize_11_down)
add_step("Resize", 19, unchanged, unless("coordinate_transformation_mode", "half_pixel_symmetric"), additive=True)


# Scatter is ScatterElements under its old name

add_step("Scatter", 11, _renamed("ScatterElements"), lambda node, values: None)
add_step("ScatterElements", 11, unchanged, _renamed("Scatter"))


# GridSample renamed its modes; RoiAlign moved the default of its coordinates

_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def _grid_sample_up(node: Node, values: Values) -> Node:
    mode = node.attributes.get("mode")
    return set_attributes(node, mode=_GRID_MODES.get(mode, mode)) if isinstance(mode, str) else node


def _grid_sample_down(node: Node, values: Values) -> Node | None:
    mode = node.attributes.get("mode")
    if values.type_of(node.inputs[0]).rank != 4:
        return None
    old = {new: old for old, new in _GRID_MODES.items()}
    return set_attributes(node, mode=old.get(mode, mode)) if isinstance(mode, str) else node


add_step("GridSample", 20, _grid_sample_up, _grid_sample_down)


def _roi_align_up(node: Node, values: Values) -> Node:
    return set_attributes(node, coordinate_transformation_mode="output_half_pixel")


def _roi_align_down(node: Node, values: Values) -> Node | None:
    if node.attributes.get("coordinate_transformation_mode", "half_pixel") != "output_half_pixel":
        return None
    return set_attributes(node, coordinate_transformation_mode=None)


add_step("RoiAlign", 16, _roi_align_up, _roi_align_down)


# ConvTranspose: which side gets the odd padding was written down the other way round before 11


def _transposed_padding(node: Node, values: Values) -> Node | None:
    automatic = str(node.attributes.get("auto_pad", "NOTSET")).startswith("SAME")
    return None if automatic or "output_shape" in node.attributes else node


add_step("ConvTranspose", 11, _transposed_padding, _transposed_padding)


# OneHot: negative indices select nothing before 11, and count from the back since


def _one_hot_up(node: Node, values: Values) -> Node | None:
    indices = values.constant(node.inputs[0])
    dtype = values.type_of(node.inputs[0]).dtype
    unsigned = dtype.is_integer and not dtype.is_signed
    return node if unsigned or (indices is not None and (indices >= 0).all()) else None


add_step("OneHot", 11, _one_hot_up, _one_hot_up)
