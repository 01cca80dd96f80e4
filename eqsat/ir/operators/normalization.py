"""Normalisations: layer, RMS, group, instance, batch, local response; Softmax, LogSoftmax, the maximum of the axis taken out."""

from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import axis_of, check_broadcasts_to, check_vector, unknown_dims
from eqsat.ir.operators.elementwise import defines, double, infer_same, narrow, wide
from eqsat.ir.traits import Rows, Traits
from eqsat.ir.types import DType, TensorType, Type

EPSILON = float(np.float32(1e-5))
"""Default of the attribute ``epsilon``: attributes are float32 whatever the data is."""

ALPHA = float(np.float32(1e-4))
"""Default of ``alpha`` of LRN."""


def _rows(structure: str, **more: Any) -> Traits:
    return Traits(rows=Rows.FROM, structure=structure, **more)


def _per_channel(structure: str, **more: Any) -> Traits:
    return Traits(vectors=(1, 2), structure=structure, **more)


def _by_channel(v: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A vector shaped to broadcast along axis 1 of ``x``, or along its only one."""
    return wide(v).reshape((1, -1, *(1,) * (x.ndim - 2)) if x.ndim > 1 else (-1,))


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


@defines(
    "LayerNormalization",
    infer=_infer_layer,
    kind=Kind.REDUCTION,
    flops=8,
    traits=_rows("layer_norm", zero_if_absent=(2,)),
)
def _layer(attributes: Attributes, x: Any, scale: Any, bias: Any = None) -> Any:
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the axes from ``axis`` on."""
    axes = tuple(range(attributes.get("axis", -1) % x.ndim, x.ndim))
    normal, mean, inverse = _normalized(wide(x), axes, attributes.get("epsilon", EPSILON))
    result = narrow(normal, x) * scale if x.dtype.itemsize == 2 else normal * scale
    if bias is not None:
        result = result + bias
    statistics = DType(attributes.get("stash_type", 1)).numpy
    return narrow(result, x), *(v.astype(statistics, copy=False) for v in (mean, inverse))


def _infer_rms(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is not None:
        axis_of(app, app.attr("axis", -1), len(x.shape))
        check_broadcasts_to(app, 1, x.shape, "the scale")
    return (TensorType(app.tensor(1).dtype, x.shape),)


@defines("RMSNormalization", infer=_infer_rms, kind=Kind.REDUCTION, flops=5, traits=_rows("rms_norm"))
def _rms(attributes: Attributes, x: Any, scale: Any) -> Any:
    """``x / sqrt(mean(x^2) + epsilon) * scale`` over the axes from ``axis`` on."""
    axes = tuple(range(attributes.get("axis", -1) % x.ndim, x.ndim))
    data = wide(x)
    mean = (data * data).mean(axis=axes, keepdims=True, dtype=data.dtype)
    normal = data / np.sqrt(mean + data.dtype.type(attributes.get("epsilon", EPSILON)))
    return narrow(narrow(normal, x) * scale, scale)


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


@defines("GroupNormalization", infer=_infer_group, kind=Kind.REDUCTION, flops=8, traits=_per_channel("group_norm"))
def _group(attributes: Attributes, x: Any, scale: Any, bias: Any) -> Any:
    """Normalised over each group of channels and all positions, then ``scale`` and ``bias`` per channel."""
    data = wide(x).reshape(x.shape[0], attributes["num_groups"], -1)
    normal = _normalized(data, (2,), attributes.get("epsilon", EPSILON))[0].reshape(x.shape)
    return narrow(normal * _by_channel(scale, x) + _by_channel(bias, x), x)


@defines(
    "InstanceNormalization",
    infer=_infer_instance,
    kind=Kind.REDUCTION,
    flops=8,
    traits=_per_channel("instance_norm", spatial=True),
)
def _instance(attributes: Attributes, x: Any, scale: Any, bias: Any) -> Any:
    """Normalised over the positions of each channel, then ``scale`` and ``bias`` per channel."""
    normal = _normalized(wide(x), tuple(range(2, x.ndim)), attributes.get("epsilon", EPSILON))[0]
    return narrow(normal * _by_channel(scale, x) + _by_channel(bias, x), x)


def _infer_batch(app: Application) -> tuple[Type, ...]:
    x = _check_channels(app, "the scale", "the bias", "the mean", "the variance")
    if not app.attr("training_mode", 0):
        return (x,)
    channels = x.shape[1:2] if x.shape is not None and len(x.shape) > 1 else unknown_dims(1)
    return (x, TensorType(app.tensor(3).dtype, channels), TensorType(app.tensor(4).dtype, channels))


@defines(
    "BatchNormalization",
    infer=_infer_batch,
    kind=Kind.ELEMENTWISE,
    flops=2,
    traits=Traits(vectors=(1, 2, 3, 4), structure="batch_norm"),
    needed=(1, 2),
)
def _batch(attributes: Attributes, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` per channel.

    Inference takes the given statistics. Training takes those of the batch, and returns the running ones as well:
    ``running * momentum + batch * (1 - momentum)``.
    """
    momentum, data = attributes.get("momentum", 0.9), wide(x)
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
    factor = wide(scale) / np.sqrt(wide(variance) + data.dtype.type(attributes.get("epsilon", EPSILON)))
    result = (data - _by_channel(mean, x)) * _by_channel(factor, x) + _by_channel(bias, x)
    return narrow(result, x), *extra


# --- softmax ---------------------------------------------------------------------------------------------------------


_CHANCES = Traits(rows=Rows.ALONG, bounds=(0.0, 1.0), structure="softmax")
_LOGARITHMS = Traits(rows=Rows.ALONG, structure="log_softmax")


def _infer_softmax(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is not None:
        axis_of(app, app.attr("axis", -1), len(x.shape))
    return (x,)


@defines("Softmax", infer=_infer_softmax, kind=Kind.REDUCTION, flops=5, traits=_CHANCES)
def _softmax(attributes: Attributes, x: Any) -> Any:
    """``exp(x - max x) / sum exp(x - max x)`` along the axis."""
    axis, data = attributes.get("axis", -1), wide(x)
    e = narrow(np.exp(double(data - data.max(axis=axis, keepdims=True, initial=-np.inf))), data)
    return narrow(e / e.sum(axis=axis, keepdims=True), x)


@defines("LogSoftmax", infer=_infer_softmax, kind=Kind.REDUCTION, flops=6, traits=_LOGARITHMS)
def _log_softmax(attributes: Attributes, x: Any) -> Any:
    """``x - max x - log(sum exp(x - max x))`` along the axis."""
    axis, data = attributes.get("axis", -1), wide(x)
    shifted = double(data - data.max(axis=axis, keepdims=True, initial=-np.inf))
    return narrow(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)), x)


@defines("LRN", infer=infer_same, kind=Kind.REDUCTION, flops=10)
def _local_response(attributes: Attributes, x: Any) -> Any:
    """``x / (bias + alpha / size * s) ** beta``: ``s`` sums the squares of a channel and of those around it, ``size`` in all."""
    size, channels = attributes["size"], x.shape[1]
    data = wide(x)
    squares = data * data
    total = np.zeros_like(data)
    for step in range(-((size - 1) // 2), size // 2 + 1):
        first, end = max(step, 0), min(channels + step, channels)
        total[:, max(first - step, 0) : max(end - step, 0)] += squares[:, first : max(end, first)]
    alpha, beta, bias = (
        attributes.get(name, value) for name, value in (("alpha", ALPHA), ("beta", 0.75), ("bias", 1.0))
    )
    return narrow(data / double(bias + alpha / size * total) ** beta, x)
