"""Normalisations: layer, RMS, group, instance and batch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind, define
from eqsat.ir.operators.dims import axis_of, check_broadcasts_to, check_vector, unknown_dims
from eqsat.ir.operators.elementwise import flops_per_element, narrow, wide
from eqsat.ir.traits import Rows, Traits
from eqsat.ir.types import DType, TensorType, Type

EPSILON = float(np.float32(1e-5))
"""Default of the attribute ``epsilon``: attributes are float32 whatever the data is."""


def _normalized(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(x - mean) / sqrt(variance + epsilon)`` over ``axes``, the mean, and ``1 / sqrt(variance + epsilon)``."""
    mean = x.mean(axis=axes, keepdims=True, dtype=x.dtype)
    centred = x - mean
    variance = (centred * centred).mean(axis=axes, keepdims=True, dtype=x.dtype)
    inverse = 1 / np.sqrt(variance + x.dtype.type(epsilon))
    return centred * inverse, mean, inverse


def _infer_layer(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is None:
        return (x, TensorType(DType.FLOAT, None), TensorType(DType.FLOAT, None))
    axis = axis_of(app, app.attr("axis", -1), len(x.shape))
    for i, what in ((1, "the scale"), (2, "the bias")):
        check_broadcasts_to(app, i, x.shape, what)
    statistics = TensorType(DType(app.attr("stash_type", 1)), (*x.shape[:axis], *(1,) * (len(x.shape) - axis)))
    return (x, statistics, statistics)[: max(app.outputs, 1)]


def _layer(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the axes from ``axis`` on."""
    x = inputs[0]
    start: Any = attributes.get("axis", -1)
    axes = tuple(range(start % x.ndim, x.ndim))
    epsilon: Any = attributes.get("epsilon", EPSILON)
    data = wide(x)
    normal, mean, inverse = _normalized(data, axes, epsilon)
    result = narrow(normal, x) * inputs[1] if x.dtype.itemsize == 2 else normal * inputs[1]
    if len(inputs) > 2 and inputs[2] is not None:
        result = result + inputs[2]
    return narrow(result, x), mean, inverse


def _infer_rms(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is not None:
        axis_of(app, app.attr("axis", -1), len(x.shape))
        check_broadcasts_to(app, 1, x.shape, "the scale")
    return (TensorType(app.tensor(1).dtype, x.shape),)


def _rms(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
    """``x / sqrt(mean(x^2) + epsilon) * scale`` over the axes from ``axis`` on."""
    x = inputs[0]
    start: Any = attributes.get("axis", -1)
    axes = tuple(range(start % x.ndim, x.ndim))
    epsilon: Any = attributes.get("epsilon", EPSILON)
    data = wide(x)
    mean = (data * data).mean(axis=axes, keepdims=True, dtype=data.dtype)
    normal = data / np.sqrt(mean + data.dtype.type(epsilon))
    return (narrow(narrow(normal, x) * inputs[1], inputs[1]),)


def _check_channels(app: Application, *names: str) -> TensorType:
    """The type of input 0. Raises `ShapeError` unless the inputs after it are vectors of one element for each channel."""
    x = app.tensor(0)
    channels = x.shape[1] if x.shape is not None and len(x.shape) > 1 else None
    for i, name in enumerate(names, 1):
        check_vector(app, i, channels, name)
    return x


def _infer_instance(app: Application) -> tuple[Type, ...]:
    return (_check_channels(app, "the scale", "the bias"),)


def _infer_group(app: Application) -> tuple[Type, ...]:
    x = _check_channels(app, "the scale", "the bias")
    groups = app.attr("num_groups")
    if x.shape is not None and len(x.shape) > 1 and isinstance(x.shape[1], int) and x.shape[1] % groups:
        raise app.fail(f"{x.shape[1]} channels are no multiple of {groups} groups")
    return (x,)


def _group(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
    """Normalised over each group of channels and all positions, then ``scale`` and ``bias`` per channel."""
    x = inputs[0]
    groups: Any = attributes["num_groups"]
    epsilon: Any = attributes.get("epsilon", EPSILON)
    data = wide(x).reshape(x.shape[0], groups, -1)
    normal = _normalized(data, (2,), epsilon)[0].reshape(x.shape)
    shape = (1, -1, *(1,) * (x.ndim - 2))
    return (narrow(normal * wide(inputs[1]).reshape(shape) + wide(inputs[2]).reshape(shape), x),)


def _instance(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
    """Normalised over the positions of each channel, then ``scale`` and ``bias`` per channel."""
    x = inputs[0]
    epsilon: Any = attributes.get("epsilon", EPSILON)
    data = wide(x)
    normal = _normalized(data, tuple(range(2, x.ndim)), epsilon)[0]
    shape = (1, -1, *(1,) * (x.ndim - 2))
    return (narrow(normal * wide(inputs[1]).reshape(shape) + wide(inputs[2]).reshape(shape), x),)


def _infer_batch(app: Application) -> tuple[Type, ...]:
    x = _check_channels(app, "the scale", "the bias", "the mean", "the variance")
    if not app.attr("training_mode", 0):
        return (x,)
    channels = x.shape[1:2] if x.shape is not None and len(x.shape) > 1 else unknown_dims(1)
    return (x, TensorType(app.tensor(3).dtype, channels), TensorType(app.tensor(4).dtype, channels))


def _batch(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` per channel.

    Inference takes the given statistics. Training takes those of the batch, and returns the running ones as well:
    ``running * momentum + batch * (1 - momentum)``.
    """
    x, scale, bias, mean, variance = inputs
    epsilon: Any = attributes.get("epsilon", EPSILON)
    momentum: Any = attributes.get("momentum", 0.9)
    data = wide(x)
    shape = (1, -1, *(1,) * (x.ndim - 2)) if x.ndim > 1 else (-1,)
    extra: tuple[np.ndarray, ...] = ()
    if attributes.get("training_mode", 0):
        axes = (0, *range(2, x.ndim))
        batch_mean = data.mean(axis=axes)
        batch_variance = data.var(axis=axes)
        extra = (
            narrow(mean * momentum + batch_mean * (1 - momentum), mean),
            narrow(variance * momentum + batch_variance * (1 - momentum), variance),
        )
        mean, variance = batch_mean, batch_variance
    factor = wide(scale) / np.sqrt(wide(variance) + data.dtype.type(epsilon))
    result = (data - wide(mean).reshape(shape)) * factor.reshape(shape) + wide(bias).reshape(shape)
    return (narrow(result, x), *extra)


_per_channel = Traits(vectors=(1, 2))

for _name, _infer, _evaluate, _kind, _flops, _traits in (
    ("LayerNormalization", _infer_layer, _layer, Kind.REDUCTION, 8, Traits(rows=Rows.FROM, structure="layer_norm")),
    ("RMSNormalization", _infer_rms, _rms, Kind.REDUCTION, 5, Traits(rows=Rows.FROM, structure="rms_norm")),
    ("GroupNormalization", _infer_group, _group, Kind.REDUCTION, 8, replace(_per_channel, structure="group_norm")),
    (
        "InstanceNormalization",
        _infer_instance,
        _instance,
        Kind.REDUCTION,
        8,
        replace(_per_channel, structure="instance_norm", spatial=True),
    ),
    (
        "BatchNormalization",
        _infer_batch,
        _batch,
        Kind.ELEMENTWISE,
        2,
        Traits(vectors=(1, 2, 3, 4), structure="batch_norm"),
    ),
):
    define(_name, infer=_infer, evaluate=_evaluate, kind=_kind, flops=flops_per_element(_flops), traits=_traits)
