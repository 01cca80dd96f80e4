"""Convolutions: Conv, ConvTranspose and the integer forms.

All are computed tap by tap: for each element of the kernel one matrix product of its channel matrix with the shifted
input. That needs no patch matrix and covers groups, strides, dilations and any number of spatial axes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.infer import fresh_symbol
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import check_vector, common_dtype, count, format_shape, unknown_dims
from eqsat.ir.operators.elementwise import defines, narrow, wide
from eqsat.ir.operators.matmul import matmul
from eqsat.ir.operators.windows import Window, spatial_rank
from eqsat.ir.traits import Product, ProductAxes, Traits
from eqsat.ir.types import DType, Shape, TensorType, Type

_CHANNELS = Product(
    bias=2,
    slides=True,
    axes=lambda attributes: ProductAxes(
        data=1, inner=1, outer=0, result=1, groups=attributes.get("group", 1), grouped_inside=True
    ),
)


def convolution_shape(app: Application, x: Shape | None, w: Shape | None) -> Shape | None:
    """``[N, M, ...]`` for an input ``[N, C, ...]`` and weights ``[M, C/group, ...]``."""
    if x is None:
        return None
    rank = spatial_rank(app, x)
    group = app.attr("group", 1)
    kernel: Any = app.attr("kernel_shape")
    if w is not None:
        if len(w) != len(x):
            raise app.fail(f"ranks differ: input {format_shape(x)}, weights {format_shape(w)}")
        if isinstance(x[1], int) and isinstance(w[1], int) and x[1] != w[1] * group:
            raise app.fail(
                f"channels differ: input {format_shape(x)}, weights {format_shape(w)}, group {group} "
                f"({x[1]} != {w[1]} * {group})"
            )
        if isinstance(w[0], int) and w[0] % group:
            raise app.fail(f"{w[0]} output channels are no multiple of group {group}")
        if kernel is None and all(isinstance(d, int) for d in w[2:]):
            kernel = w[2:]
        elif kernel is not None and any(isinstance(d, int) and d != k for d, k in zip(w[2:], kernel, strict=False)):
            raise app.fail(f"kernel_shape {format_shape(kernel)} contradicts weights {format_shape(w)}")
    channels = fresh_symbol() if w is None else w[0]
    if kernel is None:
        return (x[0], channels, *unknown_dims(rank))
    window = Window.of(app.attributes, kernel)
    window.check(app, rank)
    return (x[0], channels, *[window.output(app, i, d) for i, d in enumerate(x[2:])])


def convolve(attributes: Attributes, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """``Y[n,m,o..] = sum over c,k.. of X[n, c, o*stride + k*dilation - pad..] * W[m,c,k..]``, group by group."""
    window = Window.of(attributes, w.shape[2:])
    group: Any = attributes.get("group", 1)
    data, numbers = window.padded(x, 0)
    batch, area = x.shape[0], int(np.prod(numbers))
    weights = w.reshape(group, w.shape[0] // group, *w.shape[1:])
    result = np.zeros((batch, group, w.shape[0] // group, area), x.dtype)
    for tap, where in window.taps(numbers):
        columns = data[where].reshape(batch, group, w.shape[1], area)
        matrix = weights[(..., *tap)]
        if w.shape[1] == 1:  # depthwise: a product of one row and one column is a multiplication
            result += matrix * columns
        else:
            result += matmul(matrix, columns)
    return result.reshape(batch, w.shape[0], *numbers)


def convolution_flops(weights: int) -> Callable[[Application, Sequence[Type | None]], float]:
    """A multiply-add for each element of a value and each element of its window, by the weights, which are that input."""

    def flops(app: Application, values: Sequence[Type | None]) -> float:
        shape = app.shape(weights)
        return 2.0 * count(values[0]) * (1.0 if shape is None else count(TensorType(DType.FLOAT, shape[1:])))

    return flops


def along_channels(v: np.ndarray, rank: int) -> np.ndarray:
    """A number for each channel, shaped to broadcast along axis 1 of ``rank`` axes."""
    return v.reshape(1, -1, *(1,) * (rank - 2))


def _infer_conv(app: Application) -> tuple[Type, ...]:
    x, w = app.tensor(0), app.tensor(1)
    check_vector(app, 2, None if not w.shape else w.shape[0], "the bias")
    return (TensorType(common_dtype(app, 0, 1, optional=2), convolution_shape(app, x.shape, w.shape)),)


def _conv_flops(app: Application, outputs: Sequence[Type]) -> float:
    return convolution_flops(1)(app, outputs) + (count(outputs[0]) if app.has(2) else 0.0)


@defines(
    "Conv",
    infer=_infer_conv,
    kind=Kind.ANCHOR,
    flops=_conv_flops,
    traits=Traits(product=_CHANNELS, affine=(0, 1, 2), vectors=(2,), keeps_whole=True, zero_if_absent=(2,)),
)
def _conv(attributes: Attributes, x: Any, w: Any, bias: Any = None) -> Any:
    """``Y = X * W + B``"""
    result = convolve(attributes, wide(x), wide(w))
    if bias is not None:
        result = result + along_channels(wide(bias), x.ndim)
    return narrow(result, x)


def _infer_conv_integer(app: Application) -> tuple[Type, ...]:
    return (TensorType(DType.INT32, convolution_shape(app, app.shape(0), app.shape(1))),)


@defines(
    "ConvInteger",
    infer=_infer_conv_integer,
    kind=Kind.ANCHOR,
    flops=convolution_flops(1),
    bit_exact=True,
    traits=Traits(product=replace(_CHANNELS, bias=None, columns={3: 0}), differences=((0, 2), (1, 3))),
)
def _conv_integer(attributes: Attributes, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    """``Y = (X - x_zero_point) * (W - w_zero_point)`` in int32; the border is ``x_zero_point``, so 0 after the shift"""
    return _integer_convolve(attributes, x, x_zero, w, w_zero)


def _integer_convolve(
    attributes: Attributes, x: np.ndarray, x_zero: np.ndarray | None, w: np.ndarray, w_zero: np.ndarray | None
) -> np.ndarray:
    # float64 holds every partial sum of products of 9-bit integers exactly, and has a fast product.
    data = x.astype(np.float64) - (0 if x_zero is None else x_zero.astype(np.float64).reshape(()))
    weights = w.astype(np.float64)
    if w_zero is not None:
        weights = weights - w_zero.astype(np.float64).reshape(-1, *(1,) * (w.ndim - 1))
    return convolve(attributes, data, weights).astype(np.int64).astype(np.int32)


def _infer_qlinear_conv(app: Application) -> tuple[Type, ...]:
    weights = app.shape(3)
    check_vector(app, 8, None if not weights else weights[0], "the bias")
    return (TensorType(app.tensor(7).dtype, convolution_shape(app, app.shape(0), weights)),)


@defines(
    "QLinearConv",
    infer=_infer_qlinear_conv,
    kind=Kind.ANCHOR,
    flops=convolution_flops(3),
    traits=Traits(product=replace(_CHANNELS, weights=3, bias=8), quantises=True, differences=((0, 2), (3, 5))),
)
def _qlinear_conv(attributes: Attributes, *inputs: Any) -> Any:
    """``Y = saturate(round(((X - x_zero) * (W - w_zero) + B) * (x_scale*w_scale/y_scale)) + y_zero)``"""
    from eqsat.ir.operators.quantization import requantize

    given: Any = (*inputs, None)
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = given[:9]
    total = _integer_convolve(attributes, x, x_zero, w, w_zero)
    if bias is not None:
        total = total + along_channels(bias, x.ndim)
    return requantize(total, x_scale, along_channels(w_scale, x.ndim), y_scale, y_zero)
