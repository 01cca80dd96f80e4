"""Random applications of operators: pools, reductions, normalisations and quantisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ir.operator_drawing import (
    Rng,
    axis_in,
    extents,
    i64,
    instance,
    numbers,
    pick,
    scales,
    window,
)


@instance("MaxPool", "AveragePool")
def _pool(rng: Rng, op: str) -> tuple[Any, ...]:
    rank = pick(rng, 1, 2, 2, 3)
    kernel = tuple(int(d) for d in rng.integers(1, 4, rank))
    attributes, spatial = window(rng, rank, kernel)
    attributes["kernel_shape"] = list(kernel)
    if "auto_pad" not in attributes and rng.random() < 0.4:
        attributes["ceil_mode"] = 1
    if op == "AveragePool" and rng.random() < 0.5:
        attributes["count_include_pad"] = 1
    x = numbers(rng, (int(rng.integers(1, 3)), int(rng.integers(1, 4)), *spatial), special=False)
    return [x], attributes, 2 if op == "MaxPool" and rng.random() < 0.5 else 1


@instance("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng, 3, 5), special=False)], {}


@instance(
    *(f"Reduce{n}" for n in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"))
)
def _reduce(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng)
    dtype = pick(rng, np.float32, np.float32, np.float64, np.int32)
    if "Log" in op or op in ("ReduceL2", "ReduceMean"):
        dtype = np.float32
    x = numbers(rng, shape, dtype, special=False)
    x = np.asarray(np.abs(x) if op == "ReduceLogSum" else x % 5 if op == "ReduceProd" else x)
    attributes: dict[str, Any] = {"keepdims": pick(rng, 0, 1)} if rng.random() < 0.7 else {}
    if rng.random() < 0.3:
        attributes["noop_with_empty_axes"] = pick(rng, 0, 1) if op in ("ReduceSum", "ReduceMax", "ReduceMin") else 0
    if rng.random() < 0.3 or not shape:
        return [x], attributes
    axes = rng.permutation(len(shape))[: int(rng.integers(0, len(shape) + 1))]
    return [x, i64((axes - len(shape) * rng.integers(0, 2, len(axes))).tolist())], attributes


@instance("ArgMax", "ArgMin")
def _arg(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    attributes = {k: pick(rng, 0, 1) for k in ("keepdims", "select_last_index") if rng.random() < 0.6}
    return [rng.integers(0, 3, shape).astype(pick(rng, np.float32, np.int32))], {
        "axis": axis_in(rng, len(shape)),
        **attributes,
    }


@instance("Softmax", "LogSoftmax")
def _softmax(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    x = numbers(rng, shape, pick(rng, np.float32, np.float64), special=False, spread=pick(rng, 1.0, 100.0))
    return [x], pick(rng, {}, {"axis": axis_in(rng, len(shape))})


@instance("LayerNormalization", "RMSNormalization")
def _layer(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    axis = axis_in(rng, len(shape))
    attributes: dict[str, Any] = {} if rng.random() < 0.2 else {"axis": axis}
    normal = shape[attributes.get("axis", -1) :]
    if rng.random() < 0.5:
        attributes["epsilon"] = float(10.0 ** rng.integers(-8, 0))
    inputs = [numbers(rng, s, special=False) for s in (shape, normal)]
    if op == "RMSNormalization":
        return inputs, attributes
    more = [numbers(rng, normal, special=False)] if rng.random() < 0.6 else []
    return [*inputs, *more], attributes, pick(rng, 1, 3)


@instance("GroupNormalization", "InstanceNormalization", "BatchNormalization")
def _channel_norm(rng: Rng, op: str) -> tuple[Any, ...]:
    groups, each = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    channels = groups * each
    shape = (int(rng.integers(1, 4)), channels, *(int(d) for d in rng.integers(2, 5, int(rng.integers(1, 4)))))
    x, scale, bias = (numbers(rng, s, special=False) for s in (shape, (channels,), (channels,)))
    attributes: dict[str, Any] = {"epsilon": 1e-3} if rng.random() < 0.5 else {}
    if op == "GroupNormalization":
        return [x, scale, bias], {**attributes, "num_groups": groups}
    if op == "InstanceNormalization":
        return [x, scale, bias], attributes
    mean, variance = numbers(rng, (channels,), special=False), np.abs(numbers(rng, (channels,), special=False))
    if rng.random() < 0.5:
        return [x, scale, bias, mean, variance], attributes
    return [x, scale, bias, mean, variance], {**attributes, "training_mode": 1, "momentum": 0.75}, 3


@instance("LRN")
def _local_response(rng: Rng, op: str) -> tuple[Any, ...]:
    x = numbers(rng, (int(rng.integers(1, 4)), int(rng.integers(1, 8)), *extents(rng, 2, 2)), special=False)
    more = {"alpha": 0.5, "beta": pick(rng, 0.5, 1.0), "bias": 2.0} if rng.random() < 0.5 else {}
    return [x], {"size": pick(rng, 1, 3, 5), **more}


@instance("QuantizeLinear", "DequantizeLinear")
def _quantize(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    axis = axis_in(rng, len(shape))
    per_axis = rng.random() < 0.5
    granularity = (shape[axis],) if per_axis else ()
    integer = pick(rng, np.int8, np.uint8, np.int16, np.uint16)
    attributes: dict[str, Any] = {"axis": axis} if per_axis else {}
    if op == "QuantizeLinear":
        x = numbers(rng, shape, spread=20.0)
        x = np.where(np.isnan(x), 0, x).astype(np.float32)
        ties = (rng.integers(-300, 300, shape) * 0.5).astype(np.float32)
        scale = scales(rng, *granularity) if rng.random() < 0.6 else np.ones(granularity, np.float32)
        x = np.where(rng.random(shape) < 0.3, ties, x).astype(np.float32)
    else:
        integer = pick(rng, integer, np.int32)
        x, scale = numbers(rng, shape, integer), scales(rng, *granularity)
    zeros = [numbers(rng, granularity, integer)] if rng.random() < 0.7 and integer != np.int32 else []
    if op == "QuantizeLinear" and not zeros:
        attributes |= pick(rng, {}, {"output_dtype": {np.int8: 3, np.uint8: 2, np.int16: 5, np.uint16: 4}[integer]})
    return [x, scale, *zeros], attributes


@instance("DynamicQuantizeLinear")
def _dynamic(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng, 1), special=False) + np.float32(pick(rng, 0, 5, -5))], {}, 3
