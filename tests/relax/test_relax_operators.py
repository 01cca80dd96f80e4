"""Operators of Relax mean what we read them as: each is built by TVM and compared with our reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eqsat

pytest.importorskip("tvm", reason="the extra eqsat[tvm] is not installed")

from eqsat.frontends.relax.library import relax, tvm
from eqsat.frontends.relax.site import READINGS
from eqsat.relax import from_module
from eqsat.relax.execution import load

R = relax.op
RNG = np.random.default_rng(3)
SHAPE = (2, 4, 6, 6)
UNIT = RNG.uniform(0.1, 0.9, SHAPE).astype(np.float32)
SIGNED = RNG.normal(size=SHAPE).astype(np.float32)
MASK = SIGNED > 0
WIDE = (RNG.integers(-400, 400, SHAPE) / 4).astype(np.float32)
"""Among others halves, which are rounded to even, and values beyond the range of a byte."""
BYTES = RNG.integers(-128, 128, SHAPE).astype(np.int8)
SCALES = np.array([0.25, 0.5, 1, 2], np.float32)
ZEROS = np.array([-3, 0, 5, 100], np.int8)


def const(array: Any) -> Any:
    return relax.const(tvm.runtime.tensor(np.ascontiguousarray(array)))


def floats(*shape: int) -> Any:
    return const(RNG.normal(size=shape).astype(np.float32))


def batch_norm(x: Any, output: int) -> Any:
    variance = const(UNIT[0, :, 0, 0])
    return relax.TupleGetItem(
        R.nn.batch_norm(x, floats(4), floats(4), floats(4), variance, 1, 0.1, training=False), output
    )


Case = tuple[list[np.ndarray], Callable[..., Any]]

UNARY_ON_UNIT = ["acos", "asin", "atanh", "log", "sqrt", "rsqrt"]
UNARY = [
    "abs",
    "asinh",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "exp",
    "floor",
    "isnan",
    "negative",
    "sigmoid",
    "sin",
    "sinh",
    "square",
    "tan",
    "tanh",
]
BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "equal",
    "not_equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
]

CASES: dict[str, Case] = {
    **{name: ([UNIT], getattr(R, name)) for name in UNARY_ON_UNIT},
    **{name: ([SIGNED], getattr(R, name)) for name in UNARY},
    **{name: ([SIGNED, UNIT[:1, :, :1]], getattr(R, name)) for name in BINARY},
    **{name: ([MASK, UNIT > 0.5], getattr(R, name)) for name in ("logical_and", "logical_or", "logical_xor")},
    "acosh": ([UNIT + 1], R.acosh),
    "power": ([UNIT, SIGNED], R.power),
    "logical_not": ([MASK], R.logical_not),
    "where": ([MASK, SIGNED, UNIT], R.where),
    "nn.relu": ([SIGNED], R.nn.relu),
    "nn.silu": ([SIGNED], R.nn.silu),
    "nn.gelu": ([SIGNED], R.nn.gelu),
    "nn.gelu_tanh": ([SIGNED], R.nn.gelu_tanh),
    "nn.leakyrelu": ([SIGNED], lambda x: R.nn.leakyrelu(x, 0.2)),
    "round": ([WIDE], R.round),
    "clip": ([SIGNED], lambda x: R.clip(x, -0.5, 1)),
    "astype": ([SIGNED], lambda x: R.astype(x, "int32")),
    "astype to bool": ([SIGNED], lambda x: R.astype(x, "bool")),
    "divide integers": ([np.array([-7, 7, 9], np.int32), np.array([2, -2, 3], np.int32)], R.divide),
    "reshape": ([SIGNED], lambda x: R.reshape(x, (8, 36))),
    "expand_dims": ([SIGNED], lambda x: R.expand_dims(x, [0, -1])),
    "squeeze": ([SIGNED[:1, :, :1]], R.squeeze),
    "flatten": ([SIGNED], R.flatten),
    "nn.batch_flatten": ([SIGNED], R.nn.batch_flatten),
    "broadcast_to": ([SIGNED[:1, :, :1]], lambda x: R.broadcast_to(x, (3, 4, 5, 6))),
    "permute_dims": ([SIGNED], lambda x: R.permute_dims(x, [0, 2, 1, -1])),
    "permute_dims reversed": ([SIGNED], R.permute_dims),
    "concat": ([SIGNED, UNIT], lambda x, y: R.concat([x, y], axis=-1)),
    "split": ([SIGNED], lambda x: relax.TupleGetItem(R.split(x, 2, axis=1), 1)),
    "split unevenly": ([SIGNED[..., :5]], lambda x: relax.TupleGetItem(R.split(x, 3, axis=-1), 2)),
    "split at": ([SIGNED], lambda x: relax.TupleGetItem(R.split(x, [1, 4], axis=3), 2)),
    "strided_slice": ([SIGNED], lambda x: R.strided_slice(x, [1, 3], [1, -4], [4, 100], [2, 1])),
    "take": ([SIGNED, np.array([[1, 0], [3, 2]])], lambda x, i: R.take(x, i, axis=1)),
    "take wrapping": ([SIGNED], lambda x: R.take(x, const(np.array([3, 0])), axis=1, mode="wrap")),
    "gather_nd": ([SIGNED, np.array([[1, 0], [0, 2]])], R.gather_nd),
    "nn.pad": ([SIGNED], lambda x: R.nn.pad(x, (0, 0, 1, 2, 0, 3, 0, 0), pad_value=0.5)),
    "quantize": ([WIDE], lambda x: R.quantize(x, const(np.float32(0.5)), const(np.uint8(7)), 0, "uint8")),
    "quantize by one element": (
        [WIDE],
        lambda x: R.quantize(x, const(np.array([0.5], np.float32)), const(np.array([-3], np.int8)), 1, "int8"),
    ),
    "quantize channels": ([WIDE], lambda x: R.quantize(x, const(SCALES), const(ZEROS), 1, "int8")),
    "dequantize": ([BYTES], lambda x: R.dequantize(x, const(np.float32(0.1)), const(np.int8(5)), 0, "float32")),
    "dequantize channels": ([BYTES], lambda x: R.dequantize(x, const(SCALES), const(ZEROS), 1, "float32")),
    "mean": ([SIGNED], lambda x: R.mean(x, [1, -1], keepdims=True)),
    "sum": ([SIGNED], R.sum),
    "variance": ([SIGNED], lambda x: R.variance(x, [1, 2])),
    "variance of all": ([SIGNED], lambda x: R.variance(x, keepdims=True)),
    "max": ([SIGNED], lambda x: R.max(x, 2)),
    "min": ([SIGNED], lambda x: R.min(x, -1, keepdims=True)),
    "prod": ([SIGNED], lambda x: R.prod(x, [2, 3])),
    "nn.softmax": ([SIGNED], lambda x: R.nn.softmax(x, 1)),
    "nn.log_softmax": ([SIGNED], R.nn.log_softmax),
    "nn.layer_norm": ([SIGNED], lambda x: R.nn.layer_norm(x, floats(6, 6), floats(6, 6), [-2, -1], epsilon=0.1)),
    "nn.batch_norm": ([SIGNED], lambda x: batch_norm(x, 0)),
    "nn.batch_norm mean": ([SIGNED], lambda x: batch_norm(x, 1)),
    "nn.batch_norm variance": ([SIGNED], lambda x: batch_norm(x, 2)),
    "matmul": ([SIGNED, RNG.normal(size=(6, 3)).astype(np.float32)], R.matmul),
    "matmul of vectors": ([SIGNED[0, 0, 0], SIGNED[0, 0, 1]], R.matmul),
    "nn.conv1d": ([SIGNED[0]], lambda x: R.nn.conv1d(x, floats(5, 6, 3), strides=2, padding=(1, 2))),
    "nn.conv2d": (
        [SIGNED],
        lambda x: R.nn.conv2d(x, floats(8, 2, 3, 3), strides=(1, 2), padding=(0, 1, 2, 3), dilation=2, groups=2),
    ),
    "nn.conv3d": ([SIGNED[None]], lambda x: R.nn.conv3d(x, floats(3, 2, 2, 3, 3), padding=(1, 0, 1, 0, 1, 0))),
    "nn.max_pool1d": ([SIGNED[0]], lambda x: R.nn.max_pool1d(x, 3, strides=2, padding=(1, 0))),
    "nn.max_pool2d": ([SIGNED], lambda x: R.nn.max_pool2d(x, (3, 2), (2, 1), (1, 0, 0, 1), ceil_mode=True)),
    "nn.max_pool3d": ([SIGNED[None]], lambda x: R.nn.max_pool3d(x, (2, 2, 2))),
    "nn.avg_pool1d": ([SIGNED[0]], lambda x: R.nn.avg_pool1d(x, 3, padding=(1, 1))),
    "nn.avg_pool2d": ([SIGNED], lambda x: R.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1, 0, 1), count_include_pad=True)),
    "nn.avg_pool3d": ([SIGNED[None]], lambda x: R.nn.avg_pool3d(x, (2, 2, 2))),
    "nn.adaptive_avg_pool1d": ([SIGNED[0]], lambda x: R.nn.adaptive_avg_pool1d(x, 1)),
    "nn.adaptive_avg_pool2d": ([SIGNED], lambda x: R.nn.adaptive_avg_pool2d(x, (1, 1))),
    "nn.adaptive_avg_pool3d": ([SIGNED[None]], lambda x: R.nn.adaptive_avg_pool3d(x, (1, 1, 1))),
}

UNREAD: dict[str, Case] = {
    "take clipping": ([SIGNED, np.array([9, -9])], lambda x, i: R.take(x, i, axis=1, mode="clip")),
    "channels last": ([SIGNED], lambda x: R.nn.max_pool2d(x, (2, 2), layout="NHWC")),
    "average of windows beyond the end": ([SIGNED], lambda x: R.nn.avg_pool2d(x, (3, 3), (2, 2), ceil_mode=True)),
    "norm over an axis that is not the last": ([SIGNED], lambda x: R.nn.layer_norm(x, floats(4), floats(4), [1])),
    "slice backwards": ([SIGNED], lambda x: R.strided_slice(x, [1], [3], [0], [-1])),
    "accumulation in a wider type": ([SIGNED], lambda x: R.matmul(x, floats(6, 3), out_dtype="float64")),
    "quantisation in another type": (
        [WIDE],
        lambda x: R.quantize(x, const(np.float32(0.5)), const(np.int32(7)), 0, "uint8"),
    ),
    "pad by reflection": ([SIGNED], lambda x: R.nn.pad(x, (0, 0, 0, 0, 1, 1, 1, 1), pad_mode="reflect")),
    "an operator that we do not read": ([SIGNED], lambda x: R.cumsum(x, 1)),
}


def module_of(case: Case) -> Any:
    arrays, call = case
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"p{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arrays)]
    with builder.function("main", parameters):
        with builder.dataflow():
            made = call(*parameters)
            if isinstance(made, relax.TupleGetItem):
                made = relax.TupleGetItem(builder.emit(made.tuple_value), made.index)
            output = builder.emit_output(made)
        builder.emit_func_output(output)
    return builder.get()


@pytest.mark.parametrize("name", CASES)
def test_operators_mean_what_they_are_read_as(name: str) -> None:
    module = module_of(CASES[name])
    reading = from_module(module)
    assert not reading.calls
    arrays = CASES[name][0]
    expected = load(module)["main"](*map(tvm.runtime.tensor, map(np.ascontiguousarray, arrays))).numpy()
    found = eqsat.run(reading.graph, dict(zip(reading.graph.inputs, arrays, strict=True)))["y0"]
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_all_operators_that_are_read_have_a_case() -> None:
    assert {name.split(" ")[0] for name in CASES} == set(READINGS)


@pytest.mark.parametrize("name", UNREAD)
def test_what_our_operators_do_not_mean_is_passed_through(name: str) -> None:
    assert len(from_module(module_of(UNREAD[name])).calls) == 1
