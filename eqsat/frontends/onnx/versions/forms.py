"""Changes of form: lists and numbers that were attributes and became inputs."""

from collections.abc import Callable
from typing import Any

import numpy as np

from eqsat.frontends.onnx.versions.steps import (
    Change,
    Values,
    add_completion,
    add_step,
    get_input,
    set_attributes,
    set_inputs,
    unchanged,
)
from eqsat.ir.graph import Node
from eqsat.ir.types import DType

# lists from attributes to inputs


def _listed(node: Node, index: int, values: Values) -> tuple[Any, ...] | None:
    """The numbers of an input, none if it is absent; ``None`` if they are not known."""
    name = get_input(node, index)
    array = values.constant(name) if name else np.zeros(0)
    return None if array is None else tuple(array.reshape(-1).tolist())


def lists_to_inputs(*attributes: str, dtype: DType = DType.INT64) -> Change:
    """Attributes that became the inputs from 1 on, a number one of one element; empty ones are absent."""

    def up(node: Node, values: Values) -> Node:
        inputs, stem = [node.inputs[0]], node.outputs[0] or node.name
        for name in attributes:
            found = np.atleast_1d(node.attributes.get(name, ())).astype(dtype.numpy)
            inputs.append(values.add_constant(found, f"{stem}_{name}") if found.size else "")
        return set_attributes(set_inputs(node, inputs), **dict.fromkeys(attributes))

    return up


def input_to_list(attribute: str, *, required: bool = False) -> Callable[[Node, Values], Node | None]:
    """Input 1 becomes an attribute again."""

    def down(node: Node, values: Values) -> Node | None:
        found = _listed(node, 1, values)
        # An empty list means "absent", which is not the same for every operator.
        if found is None or (required and not found):
            return None
        return set_attributes(set_inputs(node, node.inputs[:1]), **{attribute: found or None})

    return down


def _reduce_down(node: Node, values: Values) -> Node | None:
    if node.attributes.get("noop_with_empty_axes", 0) and not _listed(node, 1, values):
        return None
    return input_to_list("axes")(set_attributes(node, noop_with_empty_axes=None), values)


for _name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare"):
    add_step(f"Reduce{_name}", 18, lists_to_inputs("axes"), _reduce_down)
add_step("ReduceSum", 13, lists_to_inputs("axes"), _reduce_down)
add_step("Squeeze", 13, lists_to_inputs("axes"), input_to_list("axes"))
add_step("Unsqueeze", 13, lists_to_inputs("axes"), input_to_list("axes", required=True))
add_step("Split", 13, lists_to_inputs("split"), input_to_list("split"))


def _split_up(node: Node, values: Values) -> Node:
    return node if get_input(node, 1) else set_attributes(node, num_outputs=len(node.outputs))


def _split_extent(node: Node, values: Values) -> int | None:
    """The extent that is split, if it is known."""
    shape, axis = values.type_of(node.inputs[0]).shape, node.attributes.get("axis", 0)
    extent = shape[axis] if shape and isinstance(axis, int) and -len(shape) <= axis < len(shape) else None
    return extent if isinstance(extent, int) else None


def _split_down(node: Node, values: Values) -> Node | None:
    if get_input(node, 1):
        return node
    if (_split_extent(node, values) or 0) % len(node.outputs):
        return None  # before 18 the parts are equal
    return set_attributes(node, num_outputs=None)


def _split_completed(node: Node, values: Values) -> Node:
    """ONNX Runtime runs a Split that says neither sizes nor their number where it learns the extent as it runs."""
    unsaid = "num_outputs" not in node.attributes and _split_extent(node, values) is None
    return _split_up(node, values) if unsaid else node


add_step("Split", 18, _split_up, _split_down)
add_completion("Split", _split_completed)


# Pad, Slice, TopK, DFT: numbers from attributes to inputs


def _pad_up(node: Node, values: Values) -> Node | None:
    stem, pads, value = node.outputs[0], node.attributes.get("pads", ()), node.attributes.get("value", 0.0)
    inputs = [node.inputs[0], values.add_constant(np.array(pads, np.int64), f"{stem}_pads")]
    if node.attributes.get("mode", "constant") == "constant" and (value != 0 or np.signbit(value)):  # type: ignore[arg-type]
        dtype = values.type_of(node.inputs[0]).dtype
        if not dtype.is_float:
            return None
        inputs.append(values.add_constant(np.array(value, dtype.numpy), f"{stem}_value"))
    return set_attributes(set_inputs(node, inputs), pads=None, value=None)


def _pad_down(node: Node, values: Values) -> Node | None:
    pads = _listed(node, 1, values)
    value = values.constant(node.inputs[2]) if get_input(node, 2) else np.float32(0)
    if pads is None or value is None:
        return None
    number = float(value.item())
    if float(np.float32(number)) != number and number == number:
        return None
    return set_attributes(
        set_inputs(node, node.inputs[:1]), pads=pads, value=number if number or np.signbit(number) else None
    )


def _pad_axes_down(node: Node, values: Values) -> Node | None:
    if not get_input(node, 3):
        return node
    axes, pads = _listed(node, 3, values), _listed(node, 1, values)
    rank = values.type_of(node.inputs[0]).rank
    if axes is None or pads is None or rank is None:
        return None
    full = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        full[axis % rank], full[axis % rank + rank] = pads[i], pads[i + len(axes)]
    name = values.add_constant(np.array(full, np.int64), f"{node.outputs[0]}_pads")
    return set_inputs(node, [node.inputs[0], name, get_input(node, 2)])


add_step("Pad", 11, _pad_up, _pad_down)
add_step("Pad", 18, unchanged, _pad_axes_down, additive=True)


def _slice_down(node: Node, values: Values) -> Node | None:
    starts, ends, axes, steps = (_listed(node, i, values) for i in range(1, 5))
    if starts is None or ends is None or axes is None or steps is None or any(s != 1 for s in steps):
        return None
    return set_attributes(set_inputs(node, node.inputs[:1]), starts=starts, ends=ends, axes=axes or None)


def _slice_axes_from_front(node: Node, values: Values) -> Node | None:
    axes = _listed(node, 3, values)
    if axes is None or all(a >= 0 for a in axes):
        return node
    rank = values.type_of(node.inputs[0]).rank
    if rank is None:
        return None
    name = values.add_constant(np.array([a % rank for a in axes], np.int64), f"{node.outputs[0]}_axes")
    return set_inputs(node, [*node.inputs[:3], name, *node.inputs[4:]])


add_step("Slice", 10, lists_to_inputs("starts", "ends", "axes"), _slice_down)
add_step("Slice", 11, unchanged, _slice_axes_from_front, additive=True)


def _top_k_down(node: Node, values: Values) -> Node | None:
    found = _listed(node, 1, values)
    return None if found is None else set_attributes(set_inputs(node, node.inputs[:1]), k=found[0])


add_step("TopK", 10, lists_to_inputs("k"), _top_k_down)


def _dft_up(node: Node, values: Values) -> Node:
    name = values.add_constant(np.array(node.attributes.get("axis", 1), np.int64), f"{node.outputs[0]}_axis")
    return set_attributes(set_inputs(node, [node.inputs[0], get_input(node, 1), name]), axis=None)


def _dft_down(node: Node, values: Values) -> Node | None:
    found = _listed(node, 2, values)
    return None if found is None else set_attributes(set_inputs(node, node.inputs[:2]), axis=(*found, -2)[0])


add_step("DFT", 20, _dft_up, _dft_down)


# Scan has no lengths of sequences, and no axis of batches, since opset 9

add_step("Scan", 9, lambda node, values: None, lambda node, values: None)
