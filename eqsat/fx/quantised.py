"""Quantisation in operators of torch: scaled, rounded and clamped, as the definitions say; products in `products`."""

from typing import Any

import torch

from eqsat.fx.products import integer_product
from eqsat.fx.site import SUPPORTED, Site, Unwritten, torch_type, writes
from eqsat.fx.windows import convolution
from eqsat.ir.types import DType


def _spread(site: Site, index: int, axis: int, rank: int) -> Any:
    """A scale or zero point as a number, or shaped to broadcast along ``axis``."""
    if site.value(index) is not None and site.type(index).size == 1:
        return site.number(index)
    return _aligned(site, index, axis, rank)


def _aligned(site: Site, index: int, axis: int, rank: int) -> Any:
    """The same as a tensor: on CUDA a division by a number is a product with its reciprocal."""
    x, found = site.operands[index], site.type(index)
    if found.size == 1 or not found.shape:
        return x.reshape(())
    return x.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def _saturated(site: Site, steps: Any, zero: Any) -> Any:
    """``steps + zero`` clamped to the range of the integers of the result."""
    to = site.result.dtype
    if not to.is_integer or to not in SUPPORTED or to.bits > 32:
        raise Unwritten(f"it makes {to.name}")
    if to.bits > 16:
        steps = steps.to(torch.float64)
    zero = zero if isinstance(zero, int | float) else zero.to(torch.float64 if to.bits > 16 else torch.float32)
    shifted = steps if isinstance(zero, int | float) and zero == 0 else steps + zero
    limits = torch.iinfo(torch_type(to))
    return site.call(torch.clamp, shifted, limits.min, limits.max).to(torch_type(to))


@writes("QuantizeLinear")
def _quantize(site: Site) -> Any:
    if site.attr("block_size"):
        raise Unwritten("it has scales by block")
    rank, axis = site.rank(), site.attr("axis")
    precision = torch_type(DType(site.attr("precision") or site.type(1).dtype))
    x = site.operands[0]
    x = x if torch_type(site.type(0).dtype) is precision else x.to(precision)
    steps = site.call(torch.round, x / _aligned(site, 1, axis, rank).to(precision))
    if precision in (torch.float16, torch.bfloat16):
        steps = steps.to(torch.float32)  # which holds their sum with a zero point
    zero = _spread(site, 2, axis, rank) if site.has(2) else 0
    return _saturated(site, steps, zero)


@writes("DequantizeLinear")
def _dequantize(site: Site) -> Any:
    if site.attr("block_size") or not site.type(0).dtype.is_integer:
        raise Unwritten("it has scales by block, or reads floats of 8 bits")
    rank, axis = site.rank(), site.attr("axis")
    x = site.operands[0]
    if site.has(2):
        zero = _spread(site, 2, axis, rank)
        if not isinstance(zero, int):
            x = x.to(torch.int32) - zero.to(torch.int32)
        elif zero:
            x = x.to(torch.int32) - zero
    scale = _spread(site, 1, axis, rank)
    x = x.to(torch.float32)
    # a scale for each column in front: see `pointwise` on Mul
    product = x * scale if isinstance(scale, float) else scale.to(torch.float32) * x
    return product if site.dtype is torch.float32 else product.to(site.dtype)


@writes("DynamicQuantizeLinear")
def _dynamic(site: Site) -> Any:
    x = site.operands[0]
    high, low = (site.call(torch.clamp, f(), **{k: 0.0}) for f, k in ((x.max, "min"), (x.min, "max")))
    range_ = (high - low) / site.call(torch.full_like, high, 255.0)
    scale = site.call(torch.where, range_ == 0, 1.0, range_)
    zero = site.call(torch.clamp, site.call(torch.round, (0.0 - low) / scale), 0, 255)
    steps = site.call(torch.round, x / scale) + zero
    return site.call(torch.clamp, steps, 0, 255).to(torch.uint8), scale, zero.to(torch.uint8)


def _requantized(site: Site, total: Any, a: Any, b: Any) -> Any:
    """``total`` times two scales over that of the result, the factor rounded to float32."""
    y, zero = site.operands[6:8]
    steps = site.call(torch.round, total.to(torch.float32) * (a * b / y))
    return _saturated(site, steps, zero)


@writes("QLinearMatMul")
def _qlinear_matmul(site: Site) -> Any:
    total = integer_product(site, (0, 2), (3, 5))
    rows = site.operands[1]
    rows = rows.unsqueeze(1) if site.rank(1) == 1 and site.type(1).size != 1 else rows
    return _requantized(site, total, rows, site.operands[4])


def _integer_convolution(site: Site, data: tuple[int, int], weights: tuple[int, int]) -> Any:
    """The exact convolution, in int32; the border is the zero point, so 0 once that is taken off."""
    x, w = (site.operands[i].to(torch.float64) for i in (data[0], weights[0]))
    if site.has(data[1]):
        x = x - site.operands[data[1]].to(torch.float64).reshape(())
    if site.has(weights[1]):
        points = site.operands[weights[1]].to(torch.float64)
        w = w - points.reshape([-1] + [1] * (site.rank(weights[0]) - 1))
    return convolution(site, x, w, None, weights[0]).to(torch.int64).to(torch.int32)


@writes("ConvInteger")
def _conv_integer(site: Site) -> Any:
    return _integer_convolution(site, (0, 2), (1, 3))


@writes("QLinearConv")
def _qlinear_conv(site: Site) -> Any:
    total = _integer_convolution(site, (0, 2), (3, 5))
    channels = [1, -1] + [1] * (site.rank(0) - 2)
    if site.has(8):
        total = total + site.operands[8].reshape(channels)
    return _requantized(site, total, site.operands[1], site.operands[4].reshape(channels))
