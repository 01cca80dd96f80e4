"""ConvTranspose: the adjoint of Conv, each input element spread over a window of the output."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.ir.extents import add, multiply, subtract
from eqsat.ir.graph import Attributes
from eqsat.ir.infer import fresh_symbol
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.convolution import along_channels, convolution_flops
from eqsat.ir.operators.dims import check_vector, common_dtype, format_shape, unknown_dims
from eqsat.ir.operators.elementwise import defines, narrow, wide
from eqsat.ir.operators.matmul import matmul
from eqsat.ir.operators.windows import Window
from eqsat.ir.traits import Product, ProductAxes, Traits
from eqsat.ir.types import Dim, TensorType, Type


def _full_extent(window: Window, attributes: Attributes, axis: int, d: Dim) -> Any:
    """``stride*(in - 1) + output_padding + dilation*(kernel - 1) + 1``: the output before its border is cut off."""
    extra: Any = attributes.get("output_padding") or (0,) * len(window.kernel)
    return add(multiply(subtract(d, 1), window.strides[axis]), extra[axis] + window.reach(axis))


def _cut(window: Window, attributes: Attributes, axis: int, d: int) -> tuple[int, int]:
    """What ``pads``, ``auto_pad`` or ``output_shape`` cut off before and after."""
    wanted: Any = attributes.get("output_shape")
    rank = len(window.kernel)
    if wanted is not None:
        excess = _full_extent(window, attributes, axis, d) - wanted[len(wanted) - rank + axis]
    elif window.auto_pad.startswith("SAME"):
        excess = _full_extent(window, attributes, axis, d) - d * window.strides[axis]
    else:
        return window.pads[axis], window.pads[axis + rank]
    small = excess // 2
    return (small, excess - small) if window.auto_pad == "SAME_UPPER" else (excess - small, small)


def _output(window: Window, app: Application, axis: int, d: Dim) -> Dim:
    wanted = app.attr("output_shape")
    if wanted is not None:
        return wanted[len(wanted) - len(window.kernel) + axis]
    if window.auto_pad.startswith("SAME"):
        stride = window.strides[axis]
        undisputed = (
            isinstance(d, int) or window.reach(axis) >= stride
        )  # ONNX Runtime pads nothing where there are gaps
        return multiply(d, stride) if undisputed else fresh_symbol()
    before, after = window.pads[axis], window.pads[axis + len(window.kernel)]
    found = subtract(_full_extent(window, app.attributes, axis, d), before + after)
    if isinstance(found, int) and found < 0:
        raise app.fail(f"pads {before} and {after} cut off more than axis {axis} has")
    return found


def _infer(app: Application) -> tuple[Type, ...]:
    x, w = app.tensor(0), app.tensor(1)
    dtype = common_dtype(app, 0, 1, optional=2)
    if x.shape is None or w.shape is None:
        return (TensorType(dtype, None),)
    if len(x.shape) != len(w.shape) or len(x.shape) < 3:
        raise app.fail(f"ranks differ: input {format_shape(x.shape)}, weights {format_shape(w.shape)}")
    if isinstance(x.shape[1], int) and isinstance(w.shape[0], int) and x.shape[1] != w.shape[0]:
        raise app.fail(
            f"channels differ: input {format_shape(x.shape)}, weights {format_shape(w.shape)} "
            f"({x.shape[1]} != {w.shape[0]})"
        )
    group, each = app.attr("group", 1), w.shape[1]
    channels = multiply(each, group)
    check_vector(app, 2, channels, "the bias")
    kernel: Any = app.attr("kernel_shape") or w.shape[2:]
    rank = len(x.shape) - 2
    if not all(isinstance(d, int) for d in kernel):
        return (TensorType(dtype, (x.shape[0], channels, *unknown_dims(rank))),)
    window = Window.of(app.attributes, kernel)
    window.check(app, rank)
    extents = [_output(window, app, i, d) for i, d in enumerate(x.shape[2:])]
    return (TensorType(dtype, (x.shape[0], channels, *extents)),)


def _flops(app: Application, outputs: Sequence[Type]) -> float:
    """A multiply-add for each input element and element of its window."""
    return convolution_flops(1)(app, app.types)


def _axes(attributes: Attributes) -> ProductAxes:
    groups: Any = attributes.get("group", 1)
    return ProductAxes(data=1, inner=0, outer=1, result=1, groups=groups, grouped_inside=False)


@defines(
    "ConvTranspose",
    infer=_infer,
    kind=Kind.ANCHOR,
    flops=_flops,
    traits=Traits(
        product=Product(bias=2, slides=True, scatters=True, axes=_axes),
        affine=(0, 1, 2),
        vectors=(2,),
        keeps_whole=True,
        zero_if_absent=(2,),
    ),
)
def _evaluate(attributes: Attributes, image: Any, w: Any, bias: Any = None) -> Any:
    """``Y[n, m, o*stride + k*dilation - pad..] += X[n, c, o..] * W[c,m,k..]``, plus the bias"""
    x, w = wide(image), wide(w)
    window = Window.of(attributes, w.shape[2:])
    group: Any = attributes.get("group", 1)
    batch, spatial = x.shape[0], x.shape[2:]
    channels = w.shape[1] * group
    full = [_full_extent(window, attributes, i, d) for i, d in enumerate(spatial)]
    cuts = [_cut(window, attributes, i, d) for i, d in enumerate(spatial)]
    room = [n + max(-a, 0) + max(-b, 0) for n, (a, b) in zip(full, cuts, strict=True)]
    data = x.reshape(batch, group, x.shape[1] // group, -1)
    weights = w.reshape(group, w.shape[0] // group, *w.shape[1:])
    result = np.zeros((batch, channels, *room), x.dtype)
    inner = result[(slice(None), slice(None), *(slice(max(-a, 0), None) for a, _ in cuts))]
    for tap, where in window.taps(spatial):
        spread = matmul(np.swapaxes(weights[(..., *tap)], -1, -2), data)
        inner[where] += spread.reshape(batch, channels, *spatial)
    kept = (slice(max(a, 0), max(a, 0) + n - a - b) for n, (a, b) in zip(full, cuts, strict=True))
    result = result[(slice(None), slice(None), *kept)]
    if bias is not None:
        result = result + along_channels(wide(bias), x.ndim)
    return narrow(result, image)
