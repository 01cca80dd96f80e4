"""Changes of form: lists and numbers that were attributes and became inputs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.frontends.onnx.versions.steps import Values, add_step, unchanged
from eqsat.ir.graph import Node
from eqsat.ir.types import is_sequence


def set_inputs(node: Node, inputs: Sequence[str]) -> Node:
    """``node`` with other inputs, absent trailing ones dropped."""
    kept = list(inputs)
    while kept and not kept[-1]:
        kept.pop()
    return replace(node, inputs=tuple(kept))


def get_input(node: Node, index: int) -> str:
    """Name of an input, empty if it is absent."""
    return node.inputs[index] if index < len(node.inputs) else ""


def set_attributes(node: Node, **changes: Any) -> Node:
    """``node`` with attributes changed; ``None`` removes one."""
    return replace(node, attributes=node.attributes.updated(**changes))


def _ints(name: str, node: Node, values: Values) -> tuple[int, ...] | None:
    array = values.constant(name)
    return None if array is None else tuple(int(v) for v in array.reshape(-1))


# axes, and other lists of integers, from an attribute to input 1


def _list_to_input(attribute: str):
    def up(node: Node, values: Values) -> Node:
        found = node.attributes.get(attribute)
        if not found:
            return set_attributes(node, **{attribute: None})
        name = values.add_constant(np.array(found, np.int64), f"{node.outputs[0] or node.name}_{attribute}")
        return set_attributes(set_inputs(node, [node.inputs[0], name]), **{attribute: None})

    return up


def _input_to_list(attribute: str, *, required: bool = False):
    def down(node: Node, values: Values) -> Node | None:
        name = get_input(node, 1)
        if not name:
            return None if required else node
        found = _ints(name, node, values)
        if found is None:
            return None
        if not found:  # an empty list means "absent", which is not the same for every operator
            return None if required else set_inputs(node, node.inputs[:1])
        return set_attributes(set_inputs(node, node.inputs[:1]), **{attribute: found})

    return down


def _reduce_down(node: Node, values: Values) -> Node | None:
    if node.attributes.get("noop_with_empty_axes", 0):
        found = _ints(get_input(node, 1), node, values) if get_input(node, 1) else ()
        if not found:
            return None
    return _input_to_list("axes")(set_attributes(node, noop_with_empty_axes=None), values)


for _name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare"):
    add_step(f"Reduce{_name}", 18, _list_to_input("axes"), _reduce_down)
add_step("ReduceSum", 13, _list_to_input("axes"), _reduce_down)
add_step("Squeeze", 13, _list_to_input("axes"), _input_to_list("axes"))
add_step("Unsqueeze", 13, _list_to_input("axes"), _input_to_list("axes", required=True))
add_step("Split", 13, _list_to_input("split"), _input_to_list("split"))


def _unsqueeze_axes_from_front(node: Node, values: Values) -> Node | None:
    axes, rank = node.attributes.get("axes"), values.type_of(node.inputs[0]).rank
    if not is_sequence(axes) or all(a >= 0 for a in axes):
        return node
    if rank is None:
        return None
    return set_attributes(node, axes=tuple(a + rank + len(axes) if a < 0 else a for a in axes))


add_step("Unsqueeze", 11, unchanged, _unsqueeze_axes_from_front, additive=True)


def _split_up(node: Node, values: Values) -> Node:
    return node if get_input(node, 1) else set_attributes(node, num_outputs=len(node.outputs))


def _split_down(node: Node, values: Values) -> Node | None:
    if get_input(node, 1):
        return node
    data, axis = values.type_of(node.inputs[0]), node.attributes.get("axis", 0)
    if data.shape and isinstance(axis, int):
        extent = data.shape[axis]
        if isinstance(extent, int) and extent % len(node.outputs):
            return None  # before 18 the parts are equal
    return set_attributes(node, num_outputs=None)


add_step("Split", 18, _split_up, _split_down)


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
    pads = _ints(get_input(node, 1), node, values)
    value = values.constant(node.inputs[2]) if get_input(node, 2) else np.float32(0)
    if pads is None or value is None or not values.type_of(node.inputs[0]).dtype.is_float:
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
    axes, pads = _ints(node.inputs[3], node, values), _ints(get_input(node, 1), node, values)
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


def _slice_up(node: Node, values: Values) -> Node:
    inputs = [node.inputs[0]]
    for name in ("starts", "ends", "axes"):
        found = node.attributes.get(name)
        if found:
            inputs.append(values.add_constant(np.array(found, np.int64), f"{node.outputs[0]}_{name}"))
    return set_attributes(set_inputs(node, inputs), starts=None, ends=None, axes=None)


def _slice_down(node: Node, values: Values) -> Node | None:
    found = [_ints(get_input(node, i), node, values) if get_input(node, i) else () for i in range(1, 5)]
    if any(f is None for f in found):
        return None
    starts, ends, axes, steps = (f or () for f in found)
    if any(s != 1 for s in steps):
        return None
    return set_attributes(set_inputs(node, node.inputs[:1]), starts=starts, ends=ends, axes=axes or None)


def _slice_axes_from_front(node: Node, values: Values) -> Node | None:
    axes = _ints(get_input(node, 3), node, values) if get_input(node, 3) else ()
    if axes is None or all(a >= 0 for a in axes):
        return node
    rank = values.type_of(node.inputs[0]).rank
    if rank is None:
        return None
    name = values.add_constant(np.array([a % rank for a in axes], np.int64), f"{node.outputs[0]}_axes")
    return set_inputs(node, [*node.inputs[:3], name, *node.inputs[4:]])


add_step("Slice", 10, _slice_up, _slice_down)
add_step("Slice", 11, unchanged, _slice_axes_from_front, additive=True)


def _top_k_up(node: Node, values: Values) -> Node:
    name = values.add_constant(np.array([node.attributes.get("k", 1)], np.int64), f"{node.outputs[0] or node.name}_k")
    return set_attributes(set_inputs(node, [node.inputs[0], name]), k=None)


def _top_k_down(node: Node, values: Values) -> Node | None:
    found = _ints(get_input(node, 1), node, values)
    return None if found is None else set_attributes(set_inputs(node, node.inputs[:1]), k=found[0])


add_step("TopK", 10, _top_k_up, _top_k_down)


def _dft_up(node: Node, values: Values) -> Node:
    name = values.add_constant(np.array(node.attributes.get("axis", 1), np.int64), f"{node.outputs[0]}_axis")
    return set_attributes(set_inputs(node, [node.inputs[0], get_input(node, 1), name]), axis=None)


def _dft_down(node: Node, values: Values) -> Node | None:
    found = _ints(node.inputs[2], node, values) if get_input(node, 2) else (-2,)
    return None if found is None else set_attributes(set_inputs(node, node.inputs[:2]), axis=found[0])


add_step("DFT", 20, _dft_up, _dft_down)


# Scan has no lengths of sequences, and no axis of batches, since opset 9

add_step("Scan", 9, lambda node, values: None, lambda node, values: None)
