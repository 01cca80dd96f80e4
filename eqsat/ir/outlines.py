"""Types of what operators of ONNX Runtime make whose meaning is not defined here.

A node of such an operator passes through as it is, and the tools that make it leave out the types of its results. Without them
nothing is known of the extents behind it, and no structure there is found.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import AttributeProto, helper

from eqsat.ir.extents import add, multiply
from eqsat.ir.graph import Attributes, AttributeValue, Node, RawAttribute
from eqsat.ir.infer import fresh_symbol
from eqsat.ir.operator import Application, InferRule, operator
from eqsat.ir.types import DType, TensorType, Type

_BLOCK = 16
"""Channels of the largest blocks on which ONNX Runtime computes convolutions."""


def rows_by(app: Application, columns: int) -> tuple[Type, ...]:
    """The first input with another last extent."""
    x = app.tensor(0)
    return (TensorType(x.dtype, None if x.shape is None else (*x.shape[:-1], columns)),)


def _of_packed_weights(app: Application) -> tuple[Type, ...]:
    """A product by weights [N, K] of 4 bits, which lie transposed unless ``transB`` says otherwise."""
    return rows_by(app, int(app.attributes["N" if app.attr("transB", 1) else "K"]))


def _of_packed_rows(app: Application) -> tuple[Type, ...]:
    """Rows that are looked up and dequantised: in bytes the last axis holds several integers in each."""
    data, indices, scales = app.tensor(0), app.tensor(1), app.tensor(2)
    if data.shape is None or indices.shape is None:
        return (TensorType(scales.dtype, None),)
    shape, axis = list(data.shape), int(app.attr("gather_axis", 0)) % len(data.shape)
    if data.dtype is DType.UINT8:
        shape[-1] = multiply(shape[-1], 8 // int(app.attr("bits", 4)))
    return (TensorType(scales.dtype, (*shape[:axis], *indices.shape, *shape[axis + 1 :])),)


def of_attention(app: Application) -> tuple[Type, ...]:
    """Attention on rows by the weights of queries, keys and values side by side; of the stored keys and values nothing."""
    columns = (app.shape(1) or ())[-1:]
    sizes = app.attr("qkv_hidden_sizes")
    if sizes:
        return rows_by(app, int(sizes[2]))
    return rows_by(app, columns[0] // 3) if columns and isinstance(columns[0], int) else ()


def _of_quantised_attention(app: Application) -> tuple[Type, ...]:
    found = of_attention(app)
    return tuple(TensorType(app.tensor(3).dtype, t.shape) for t in found if isinstance(t, TensorType))


def _of_quantised_lstm(app: Application) -> tuple[Type, ...]:
    """All states, the last ones and the last cells, for each direction; the weights of a gate are columns."""
    x, w, r = app.tensor(0), app.shape(1), app.shape(2)
    if x.shape is None or w is None or r is None:
        return ()
    (steps, batch, _), directions, hidden = x.shape, w[0], r[1]
    last = TensorType(x.dtype, (directions, batch, hidden))
    return (TensorType(x.dtype, (steps, directions, batch, hidden)), last, last)


def as_the_first(app: Application) -> tuple[Type, ...]:
    return (app.tensor(0),)


def _on_blocks(app: Application) -> tuple[Type, ...]:
    """What the operator of ONNX of that name makes: channels in blocks are as many, and so are filters."""
    op = app.op.rpartition("::")[2]
    definition = operator(op)
    assert definition is not None
    return tuple(definition.infer(replace(app, op=op, outputs=1)))


def _into_blocks(app: Application) -> tuple[Type, ...]:
    """Channels second, and filled up to whole blocks, of 8 or 16."""
    x = app.tensor(0)
    if x.shape is None:
        return (x,)
    batch, *extents = x.shape
    channels = extents.pop(-1 if app.attr("channels_last", 0) else 0)
    whole = isinstance(channels, int) and channels % _BLOCK == 0
    return (TensorType(x.dtype, (batch, channels if whole else fresh_symbol(), *extents)),)


def _out_of_blocks(app: Application) -> tuple[Type, ...]:
    x, channels = app.tensor(0), int(app.attributes["channels"])
    if x.shape is None:
        return (x,)
    batch, _, *extents = x.shape
    last = app.attr("channels_last", 0)
    return (TensorType(x.dtype, (batch, *extents, channels) if last else (batch, channels, *extents)),)


def _cropped(app: Application) -> tuple[Type, ...]:
    """An image without its borders: left, top, right and bottom; or so many rows and columns behind the first two."""
    x = app.tensor(0)
    if x.shape is None:
        return (x,)
    batch, channels, rows, columns = x.shape
    left, top, right, bottom = app.attributes["border"]
    sizes = app.attr("scale") or (add(rows, -top - bottom), add(columns, -left - right))
    return (TensorType(x.dtype, (batch, channels, *sizes)),)


_BLOCKS = "com.microsoft.nchwc"

OUTLINES: Mapping[str, InferRule] = {
    "com.microsoft::DynamicQuantizeLSTM": _of_quantised_lstm,
    "com.microsoft::GatherBlockQuantized": _of_packed_rows,
    "com.microsoft::MatMulBnb4": _of_packed_weights,
    "com.microsoft::QAttention": _of_quantised_attention,
    "com.microsoft::QMoE": as_the_first,
    f"{_BLOCKS}::ReorderInput": _into_blocks,
    f"{_BLOCKS}::ReorderOutput": _out_of_blocks,
    # ONNX dropped these, which converters from Core ML wrote; ONNX Runtime runs them below opset 10
    "Affine": as_the_first,
    "Crop": _cropped,
    "ImageScaler": as_the_first,
    "ParametricSoftplus": as_the_first,
    "ScaledTanh": as_the_first,
}


def _outline_of(node: Node) -> InferRule | None:
    definition = operator(node.op, node.domain) if node.domain else None
    if definition is not None:
        return definition.outline
    standard = node.domain == _BLOCKS and operator(node.op) is not None
    return _on_blocks if standard else OUTLINES.get(node.key)


def outlined(node: Node, types: Sequence[Type | None], values: Sequence[np.ndarray | None]) -> tuple[Type, ...]:
    """The types of what a node makes whose operator is known, though not the meaning of this use of it, as far as they are known.

    Raises `ShapeError` where the inputs contradict the operator.
    """
    outline = _outline_of(node)
    if outline is None:
        return ()
    try:
        attributes = Attributes({name: as_in_file(value) for name, value in node.attributes.items()})
        return outline(Application(node.key, attributes, types, values, len(node.outputs)))
    except (LookupError, TypeError, ValueError):  # attributes that are missing, or of another kind
        return ()


def as_in_file(value: AttributeValue) -> Any:
    """An attribute, as the file has it where nobody knows the meaning of the node."""
    if not isinstance(value, RawAttribute):
        return value
    found = helper.get_attribute_value(AttributeProto.FromString(value.proto))
    return found.decode() if isinstance(found, bytes) else found
