"""Operators of Relax in terms of ours: what a call computes where the meanings agree, nothing where they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.ir.build import GraphBuilder


@dataclass(frozen=True)
class Site:
    """A call of Relax that is read: ``operands`` are names of tensors, tuples of those, or expressions that are no tensors.

    ``shape`` and ``dtype`` are those of its result, of the first one if it has several; ``results`` is how many it has.
    """

    builder: GraphBuilder
    operands: Sequence[Any]
    attributes: Any
    shape: tuple[int, ...]
    dtype: str
    results: int

    def op(self, op: str, *inputs: str, **attributes: Any) -> Any:
        """Applies one of our operators."""
        return self.builder.op(op, *inputs, **attributes)

    def integers(self, values: Any) -> str:
        """A constant list of integers."""
        return self.builder.constant(np.array(_integers(values), np.int64))

    def like(self, value: float) -> str:
        """A constant scalar of the element type of the result."""
        return self.builder.constant(np.array(value), self.dtype)

    @property
    def rank(self) -> int:
        """Rank of the first operand."""
        return len(self.extents(self.operands[0]))

    def extents(self, value: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self.builder.type_of(value).shape  # type: ignore[union-attr, return-value]  # the reader admits no others


Reading = Callable[[Site], Any]
"""Name of the value, or names, that a call computes; ``None`` where our operators do not mean the same."""

READINGS: dict[str, Reading] = {}
"""Operator of Relax, without its prefix -> how a call of it is read."""


def _reads(*names: str) -> Callable[[Reading], Reading]:
    def register(reading: Reading) -> Reading:
        READINGS.update((name, reading) for name in names)
        return reading

    return register


_SAME = {
    "abs": "Abs",
    "acos": "Acos",
    "acosh": "Acosh",
    "add": "Add",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atanh": "Atanh",
    "ceil": "Ceil",
    "cos": "Cos",
    "cosh": "Cosh",
    "divide": "Div",
    "equal": "Equal",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "isnan": "IsNaN",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "log": "Log",
    "logical_and": "And",
    "logical_not": "Not",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "maximum": "Max",
    "minimum": "Min",
    "multiply": "Mul",
    "negative": "Neg",
    "nn.gelu": "Gelu",
    "nn.relu": "Relu",
    "power": "Pow",
    "sigmoid": "Sigmoid",
    "sin": "Sin",
    "sinh": "Sinh",
    "sqrt": "Sqrt",
    "subtract": "Sub",
    "tan": "Tan",
    "tanh": "Tanh",
    "where": "Where",
}


def _same(op: str) -> Reading:
    return lambda site: site.op(op, *site.operands)


READINGS.update((name, _same(op)) for name, op in _SAME.items())


def _integers(values: Any) -> list[int]:
    """Integers, from any of TVM's lists of them."""
    return [int(v) for v in values]


# ---- elementwise


@_reads("nn.silu")
def _silu(site: Site) -> Any:
    return site.op("Mul", site.operands[0], site.op("Sigmoid", site.operands[0]))


@_reads("nn.gelu_tanh")
def _gelu_tanh(site: Site) -> Any:
    return site.op("Gelu", site.operands[0], approximate="tanh")


@_reads("rsqrt")
def _rsqrt(site: Site) -> Any:
    return site.op("Reciprocal", site.op("Sqrt", site.operands[0]))


@_reads("square")
def _square(site: Site) -> Any:
    return site.op("Mul", site.operands[0], site.operands[0])


@_reads("not_equal")
def _not_equal(site: Site) -> Any:
    return site.op("Not", site.op("Equal", *site.operands))


@_reads("nn.leakyrelu")
def _leaky_relu(site: Site) -> Any:
    return site.op("LeakyRelu", site.operands[0], alpha=float(site.attributes.alpha))


@_reads("clip")
def _clip(site: Site) -> Any:
    low, high = (getattr(v, "value", None) for v in site.operands[1:])
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return None
    return site.op("Clip", site.operands[0], site.like(low), site.like(high))


@_reads("astype")
def _astype(site: Site) -> Any:
    from eqsat.ir.types import DType

    return site.op("Cast", site.operands[0], to=int(DType.of(site.dtype)))


# ---- where elements go


@_reads("reshape", "expand_dims", "squeeze", "flatten", "nn.batch_flatten")
def _reshape(site: Site) -> Any:
    if 0 in site.shape:
        return None
    return site.op("Reshape", site.operands[0], site.integers(site.shape))


@_reads("broadcast_to")
def _broadcast_to(site: Site) -> Any:
    return site.op("Expand", site.operands[0], site.integers(site.shape))


@_reads("permute_dims")
def _permute_dims(site: Site) -> Any:
    axes = site.attributes.axes
    perm = range(site.rank)[::-1] if axes is None else [a % site.rank for a in _integers(axes)]
    return site.op("Transpose", site.operands[0], perm=tuple(perm))


@_reads("concat")
def _concat(site: Site) -> Any:
    if not isinstance(site.operands[0], tuple):
        return None
    axis = site.attributes.axis
    return None if axis is None else site.op("Concat", *site.operands[0], axis=int(axis))


@_reads("split")
def _split(site: Site) -> Any:
    axis = int(site.attributes.axis)
    extent = site.extents(site.operands[0])[axis]
    parts = site.attributes.indices_or_sections
    if hasattr(parts, "value"):
        ends = [min(extent, site.shape[axis] * (i + 1)) for i in range(int(parts))]
    else:
        ends = [*_integers(parts), extent]
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    if min(sizes) <= 0 or len(sizes) != site.results:
        return None
    return site.builder.op("Split", site.operands[0], site.integers(sizes), outputs=len(sizes), axis=axis)


@_reads("strided_slice")
def _strided_slice(site: Site) -> Any:
    try:
        axes, starts, ends, *steps = (_integers(v) for v in site.operands[1:])
    except (TypeError, ValueError):
        return None
    lists = [starts, ends, axes, *(steps or [[1] * len(axes)])]
    if any(step <= 0 for step in lists[3]):
        return None
    return site.op("Slice", site.operands[0], *(site.integers(v) for v in lists))


@_reads("take")
def _take(site: Site) -> Any:
    if site.attributes.axis is None and site.rank != 1:
        return None
    axis = 0 if site.attributes.axis is None else int(site.attributes.axis)
    if site.attributes.mode != "fast":  # what is out of range is clipped or wraps around; "fast" leaves it undefined
        known = site.builder.constant_of(site.operands[1])
        extent = site.extents(site.operands[0])[axis]
        if known is None or not ((known.numpy() >= 0) & (known.numpy() < extent)).all():
            return None
    return site.op("Gather", site.operands[0], site.operands[1], axis=axis)


@_reads("gather_nd")
def _gather_nd(site: Site) -> Any:
    return site.op("GatherND", site.operands[0], site.operands[1], batch_dims=int(site.attributes.batch_dims))


@_reads("nn.pad")
def _pad(site: Site) -> Any:
    widths = _integers(site.attributes.pad_width)
    if site.attributes.pad_mode != "constant" or min(widths, default=0) < 0:
        return None
    pads = site.integers([*widths[::2], *widths[1::2]])
    return site.op("Pad", site.operands[0], pads, site.like(float(site.attributes.pad_value)))


# ---- reductions and norms


def _reduction(op: str) -> Reading:
    def reading(site: Site) -> Any:
        axes = site.attributes.axis
        given = () if axes is None else (site.integers(axes),)
        return site.op(op, site.operands[0], *given, keepdims=int(site.attributes.keepdims))

    return reading


for _name, _op in (("mean", "Mean"), ("sum", "Sum"), ("max", "Max"), ("min", "Min"), ("prod", "Prod")):
    READINGS[_name] = _reduction(f"Reduce{_op}")


@_reads("nn.softmax")
def _softmax(site: Site) -> Any:
    return site.op("Softmax", site.operands[0], axis=int(site.attributes.axis))


@_reads("nn.log_softmax")
def _log_softmax(site: Site) -> Any:
    return site.op("LogSoftmax", site.operands[0], axis=int(site.attributes.axis))


@_reads("nn.layer_norm")
def _layer_norm(site: Site) -> Any:
    axes = sorted(a % site.rank for a in _integers(site.attributes.axes))
    if axes != list(range(site.rank - len(axes), site.rank)) or not (site.attributes.center and site.attributes.scale):
        return None
    return site.op("LayerNormalization", *site.operands, axis=axes[0], epsilon=float(site.attributes.epsilon))


@_reads("nn.batch_norm")
def _batch_norm(site: Site) -> Any:
    attributes = site.attributes
    if attributes.training or not (attributes.center and attributes.scale) or int(attributes.axis) != 1:
        return None
    y = site.op("BatchNormalization", *site.operands, epsilon=float(attributes.epsilon))
    return y, site.operands[3], site.operands[4]


# ---- products, convolutions, windows


@_reads("matmul")
def _matmul(site: Site) -> Any:
    if site.builder.type_of(site.operands[0]).dtype.numpy != site.dtype:  # type: ignore[union-attr]
        return None
    return site.op("MatMul", *site.operands)


def _standard_layout(attributes: Any, rank: int) -> bool:
    spatial = "DHW"[5 - rank :]
    layouts = [attributes.out_layout, getattr(attributes, "data_layout", None) or attributes.layout]
    return all(v in ("", "NC" + spatial) for v in layouts) and getattr(attributes, "kernel_layout", "OI" + spatial) == (
        "OI" + spatial
    )


@_reads("nn.conv1d", "nn.conv2d", "nn.conv3d")
def _convolution(site: Site) -> Any:
    attributes = site.attributes
    if not _standard_layout(attributes, site.rank) or attributes.out_dtype not in (None, "", site.dtype):
        return None
    return site.op(
        "Conv",
        *site.operands,
        strides=tuple(_integers(attributes.strides)),
        pads=tuple(_integers(attributes.padding)),
        dilations=tuple(_integers(attributes.dilation)),
        group=int(attributes.groups),
    )


def _window(site: Site, op: str, **more: Any) -> Any:
    attributes = site.attributes
    return site.op(
        op,
        site.operands[0],
        kernel_shape=tuple(_integers(attributes.pool_size)),
        strides=tuple(_integers(attributes.strides)),
        pads=tuple(_integers(attributes.padding)),
        dilations=tuple(_integers(attributes.dilation)),
        ceil_mode=int(attributes.ceil_mode),
        **more,
    )


@_reads("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
def _max_pool(site: Site) -> Any:
    return _window(site, "MaxPool") if _standard_layout(site.attributes, site.rank) else None


@_reads("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
def _avg_pool(site: Site) -> Any:
    if site.attributes.ceil_mode or not _standard_layout(site.attributes, site.rank):
        return None
    return _window(site, "AveragePool", count_include_pad=int(site.attributes.count_include_pad))


@_reads("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d")
def _adaptive_avg_pool(site: Site) -> Any:
    if set(site.shape[2:]) != {1} or not _standard_layout(site.attributes, site.rank):
        return None
    return site.op("GlobalAveragePool", site.operands[0])
