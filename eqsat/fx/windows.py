"""Convolutions and pools of torch, resizing, sampling and folding."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from eqsat.fx.site import Site, Unwritten, writes
from eqsat.ir.operators.windows import Window
from eqsat.ir.types import Dim

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _spatial(site: Site, table: dict[int, Any]) -> tuple[int, Any]:
    """How many spatial axes there are, and torch's function for as many."""
    rank = site.rank() - 2
    if rank not in table:
        raise Unwritten(f"it has {rank} spatial axes")
    return rank, table[rank]


def _border(site: Site, window: Window) -> tuple[list[int], list[int]]:
    """Padding before and after each spatial axis."""
    found: list[tuple[int, int]] = []
    for axis, d in enumerate((site.type(0).shape or ())[2:]):
        if window.auto_pad.startswith("SAME") and not isinstance(d, int):
            if window.strides[axis] != 1:
                raise Unwritten("its padding depends on an extent that is not known")
            d = window.reach(axis)  # with steps of 1 any extent needs the same
        begin = window.pads[axis], window.pads[axis + len(window.kernel)]
        found.append(window.border(axis, d) if isinstance(d, int) else begin)
    return [a for a, _ in found], [b for _, b in found]


def _widths(before: list[int], after: list[int]) -> list[int]:
    """As torch lists them: the last axis first."""
    return [n for pair in reversed(list(zip(before, after, strict=True))) for n in pair]


def convolution(site: Site, x: Any, w: Any, bias: Any, weights: int) -> Any:
    """``x * w + bias``, where input number ``weights`` gives the extents of the kernel."""
    _, function = _spatial(site, _CONV)
    kernel = (site.type(weights).shape or ())[2:]
    if not all(isinstance(d, int) for d in kernel):
        raise Unwritten("the extents of its kernel are not known")
    window = Window.of(site.node.attributes, kernel)  # type: ignore[arg-type]
    before, after = _border(site, window)
    if before != after:
        x, before = site.call(F.pad, x, _widths(before, after)), [0] * len(before)
    strides, dilations = list(window.strides), list(window.dilations)
    return site.call(function, x, w, bias, strides, before, dilations, site.attr("group"))


@writes("Conv")
def _conv(site: Site) -> Any:
    return convolution(site, site.operands[0], site.operands[1], site.operand(2), 1)


@writes("ConvTranspose")
def _conv_transpose(site: Site) -> Any:
    rank, function = _spatial(site, _TRANSPOSED)
    attributes = site.node.attributes
    if attributes.get("output_shape") or attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Unwritten("its padding follows from the extents of its output")
    strides, dilations, pads, more = (
        list(attributes.get(name) or (default,) * count)
        for name, default, count in (
            ("strides", 1, rank), ("dilations", 1, rank), ("pads", 0, 2 * rank), ("output_padding", 0, rank)
        )
    )  # fmt: skip
    x, w = site.operands[:2]
    before, after = pads[:rank], pads[rank:]
    even = before == after
    y = site.call(
        function, x, w, site.operand(2), strides, before if even else [0] * rank, more, site.attr("group"), dilations
    )
    return y if even else site.call(F.pad, y, _widths([-a for a in before], [-b for b in after]))


# --- pools


def _kernel(site: Site) -> tuple[Window, list[int], list[int], bool]:
    """The window, its padding, and whether torch's pools pad like that themselves."""
    window = Window.of(site.node.attributes, site.attr("kernel_shape"))
    before, after = _border(site, window)
    fits = before == after and all(2 * p <= k for p, k in zip(before, window.kernel, strict=True))
    return window, before, after, fits


def _exact(site: Site, window: Window, before: list[int]) -> list[int]:
    """Padding after each axis with which all windows fit exactly. Raises `Unwritten` unless all extents are known."""
    found: list[int] = []
    for axis, (d, n) in enumerate(zip((site.type(0).shape or ())[2:], (site.result.shape or ())[2:], strict=True)):
        if not isinstance(d, int) or not isinstance(n, int):
            raise Unwritten("uneven padding of an extent that is not known")
        found.append((n - 1) * window.strides[axis] + window.reach(axis) - d - before[axis])
    return found


@writes("MaxPool")
def _max_pool(site: Site) -> Any:
    if len(site.node.outputs) > 1 and site.node.outputs[1]:
        raise Unwritten("it returns the positions of what it picks")
    _, function = _spatial(site, _MAX)
    window, before, _, fits = _kernel(site)
    x, ceil = site.operands[0], window.ceil
    if not site.result.dtype.is_float:  # torch pools no integers
        x = x.to(torch.float64)
    if not fits:
        after = _exact(site, window, before)
        x, before, ceil = site.call(F.pad, x, _widths(before, after), value=-math.inf), [0] * len(before), False
    kernel, strides, dilations = (list(v) for v in (window.kernel, window.strides, window.dilations))
    y = site.call(function, x, kernel, strides, before, dilations, ceil)
    return y if site.result.dtype.is_float else y.to(site.dtype)


@writes("AveragePool")
def _average_pool(site: Site) -> Any:
    _, function = _spatial(site, _AVERAGE)
    window, before, after, fits = _kernel(site)
    kernel, strides = list(window.kernel), list(window.strides)
    if max(window.dilations) > 1:
        raise Unwritten("its window is dilated")
    x, counts = site.operands[0], bool(site.attr("count_include_pad"))
    if fits:
        return site.call(function, x, kernel, strides, before, window.ceil, counts)
    if window.ceil:
        raise Unwritten("uneven padding, rounded up")
    widths, zeros = _widths(before, after), [0] * len(before)
    total = site.call(function, site.call(F.pad, x, widths), kernel, strides, zeros)
    if counts:
        return total
    ones = site.call(F.pad, site.call(torch.ones_like, x), widths)
    return total / site.call(function, ones, kernel, strides, zeros)


@writes("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(site: Site) -> Any:
    function = torch.mean if site.node.op == "GlobalAveragePool" else torch.amax
    return site.call(function, site.operands[0], list(range(2, site.rank())), True)


@writes("Resize")
def _resize(site: Site) -> Any:
    """By torch's interpolation, where that places the samples alike."""
    before, after, scales = site.type(0).shape or (), site.result.shape or (), site.value(2)
    mode, place, nearest = (site.attr(n) for n in ("mode", "coordinate_transformation_mode", "nearest_mode"))
    if not 3 <= len(before) <= 5 or site.node.attributes.get("axes"):
        raise Unwritten("chosen axes, or other ranks than 3 to 5")
    factors: list[float] | None = None
    if scales is not None and scales.size == len(before) and (scales.reshape(-1)[:2] == 1).all():
        factors = scales.reshape(-1)[2:].tolist()
    elif (
        scales is not None
        or site.has(2)
        or before[:2] != after[:2]
        or site.attr("keep_aspect_ratio_policy") != "stretch"
    ):
        raise Unwritten("other axes than the spatial ones change, or by factors that are not known")
    to = {"scale_factor": factors} if factors is not None else {"size": site.dims(3)[2:]}
    if mode == "nearest" and not site.attr("antialias"):
        if factors is None and all(isinstance(d, int) for d in (*before[2:], *after[2:])):
            factors = [b / a for a, b in zip(before[2:], after[2:], strict=True)]  # type: ignore[operator]
        whole = factors is not None and all(f == int(f) for f in factors)
        floors = (place, nearest) == ("asymmetric", "floor") and (whole or "size" in to)
        if floors or (whole and place == "half_pixel" and nearest.startswith("round")):
            return site.call(F.interpolate, site.operands[0], mode="nearest", **to)
    smooth = _smooth(site, len(before)) if place in ("half_pixel", "align_corners") else None
    if smooth is not None and (factors is None or _fits(factors, before, after)):
        more = {"align_corners": place == "align_corners", "antialias": bool(site.attr("antialias"))}
        return site.call(F.interpolate, site.operands[0], mode=smooth, **more, **to)
    how = f"{mode}, antialiased" if site.attr("antialias") else mode
    raise Unwritten(f"mode {how}, {place}, by {'its sizes' if factors is None else factors}")


def _smooth(site: Site, rank: int) -> str | None:
    """Torch's name for an interpolation that is not the nearest, if it has it."""
    mode, inside = site.attr("mode"), bool(site.attr("exclude_outside"))
    if site.attr("antialias"):
        corners = site.attr("coordinate_transformation_mode") == "align_corners"
        has = rank == 4 and inside and not corners and (mode == "linear" or site.attr("cubic_coeff_a") == -0.5)
        return {"linear": "bilinear", "cubic": "bicubic"}.get(mode) if has else None
    if mode == "cubic":
        return "bicubic" if rank == 4 and site.attr("cubic_coeff_a") == -0.75 and not inside else None
    return {3: "linear", 4: "bilinear", 5: "trilinear"}[rank] if mode == "linear" else None


def _fits(factors: list[float], before: Sequence[Dim], after: Sequence[Dim]) -> bool:
    """Whether extents are exact multiples by the factors, so that these are the quotients of the extents."""
    extents = zip(factors, before[2:], after[2:], strict=True)
    return all(f == int(f) or (isinstance(a, int) and f * a == b) for f, a, b in extents)


@writes("GridSample")
def _grid_sample(site: Site) -> Any:
    mode, padding = site.attr("mode"), site.attr("padding_mode")
    # on borders ONNX does not say which place is moved
    if mode == "cubic" and (site.rank() != 4 or padding != "zeros"):
        raise Unwritten(f"mode cubic of {site.rank() - 2} spatial axes and padding {padding}")
    kind = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}[mode]
    return site.call(F.grid_sample, *site.operands, kind, padding, align_corners=bool(site.attr("align_corners")))


@writes("Col2Im")
def _fold(site: Site) -> Any:
    """Sums of windows where they overlap."""
    attributes, size, kernel = site.node.attributes, site.dims(1), site.dims(2)
    pads = attributes.get("pads") or (0,) * (2 * len(kernel))
    before, after = pads[: len(kernel)], pads[len(kernel) :]
    if len(kernel) != 2 or before != after:
        raise Unwritten("it has other than two spatial axes, or uneven padding")
    strides, dilations = (attributes.get(name) or (1, 1) for name in ("strides", "dilations"))
    return site.call(F.fold, site.operands[0], size, kernel, dilations, before, strides)
