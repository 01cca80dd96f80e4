"""Sliding windows over spatial axes: the geometry that convolutions and pools share.

The output extent along an axis is ``floor((in + pads - dilation*(kernel - 1) - 1) / stride) + 1``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.ir.extents import add, floor_divide, minimum
from eqsat.ir.graph import Attributes
from eqsat.ir.infer import fresh_symbol
from eqsat.ir.operator import Application
from eqsat.ir.operators.dims import format_shape
from eqsat.ir.types import Dim, Shape


def spatial_rank(app: Application, shape: Shape) -> int:
    """Number of spatial axes of an image, signal or volume. Raises `ShapeError` unless there is one."""
    if len(shape) < 3:
        raise app.fail(f"the input must be [batch, channels, extents...], got {format_shape(shape)}")
    return len(shape) - 2


@dataclass(frozen=True, slots=True)
class Window:
    """Kernel, strides and dilations of each spatial axis, and how the border is padded."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str
    ceil: bool

    @staticmethod
    def of(attributes: Attributes, kernel: Sequence[int]) -> Window:
        """The window that ``attributes`` describe around ``kernel``, with ONNX's defaults."""
        rank = len(kernel)
        get: Any = attributes.get
        auto_pad = str(get("auto_pad", "NOTSET") or "NOTSET")
        return Window(
            tuple(kernel),
            tuple(get("strides") or (1,) * rank),
            tuple(get("dilations") or (1,) * rank),
            (0,) * (2 * rank) if auto_pad != "NOTSET" else tuple(get("pads") or (0,) * (2 * rank)),
            auto_pad,
            bool(get("ceil_mode", 0)),
        )

    def check(self, app: Application, rank: int) -> None:
        """Raises `ShapeError` unless every list fits ``rank`` spatial axes."""
        if len(self.kernel) != rank:
            raise app.fail(f"a kernel of rank {len(self.kernel)} on {rank} spatial axes")
        if len(self.strides) != rank or len(self.dilations) != rank or len(self.pads) != 2 * rank:
            raise app.fail(f"strides, dilations and pads must fit {rank} spatial axes")
        if min(*self.kernel, *self.strides, *self.dilations, 1) < 1:
            raise app.fail(
                f"kernel {list(self.kernel)}, strides {list(self.strides)} and dilations {list(self.dilations)} must be positive"
            )

    def reach(self, axis: int) -> int:
        """Extent that one window covers."""
        return self.dilations[axis] * (self.kernel[axis] - 1) + 1

    def output(self, app: Application, axis: int, d: Dim) -> Dim:
        """Number of windows along an axis of extent ``d``."""
        if not isinstance(d, int):
            begin, end = self.pads[axis], self.pads[axis + len(self.kernel)]
            stride, reach = self.strides[axis], self.reach(axis)
            if self.auto_pad.startswith("SAME"):
                undisputed = (
                    stride == 1 or self.dilations[axis] == 1
                )  # ONNX Runtime pads pools as if nothing were dilated
                return floor_divide(add(d, stride - 1), stride) if undisputed else fresh_symbol()
            if not self.ceil:
                return add(floor_divide(add(d, begin + end - reach), stride), 1)
            if end > reach:
                return fresh_symbol()
            # Windows that start in front of the end of the data.
            begun = floor_divide(add(d, begin + stride - 1), stride)
            number = add(floor_divide(add(d, begin + end - reach + stride - 1), stride), 1)
            return number if reach - end >= stride else minimum(number, begun)
        number = self.windows(axis, d)
        if number < 1:
            begin, end = self.border(axis, d)
            raise app.fail(f"a window of {self.reach(axis)} does not fit into extent {d} padded by {begin} and {end}")
        return number

    def windows(self, axis: int, d: int) -> int:
        begin, end = self.border(axis, d)
        stride = self.strides[axis]
        room = d + begin + end - self.reach(axis)
        if not self.ceil:
            return room // stride + 1
        number = -(-room // stride) + 1
        return number - 1 if (number - 1) * stride >= d + begin else number  # no window may start beyond the data

    def border(self, axis: int, d: int) -> tuple[int, int]:
        """Padding before and after an axis of extent ``d``."""
        if not self.auto_pad.startswith("SAME"):
            return self.pads[axis], self.pads[axis + len(self.kernel)]
        stride = self.strides[axis]
        missing = max((-(-d // stride) - 1) * stride + self.reach(axis) - d, 0)
        small, large = missing // 2, missing - missing // 2
        return (large, small) if self.auto_pad == "SAME_LOWER" else (small, large)

    def padded(self, x: np.ndarray, value: Any) -> tuple[np.ndarray, list[int]]:
        """``x`` with a border of ``value`` wide enough for every window, and the number of windows along each axis."""
        spatial = x.shape[2:]
        numbers = [self.windows(i, d) for i, d in enumerate(spatial)]
        widths: list[tuple[int, int]] = []
        for i, d in enumerate(spatial):
            begin, end = self.border(i, d)
            beyond = (numbers[i] - 1) * self.strides[i] + self.reach(i) - (d + begin + end)
            widths.append((begin, end + max(beyond, 0)))
        if not any(map(any, widths)):
            return x, numbers
        shape = [d + a + b for d, (a, b) in zip(spatial, widths, strict=True)]
        result = np.full((*x.shape[:2], *shape), value, x.dtype)
        inside = tuple(slice(a, a + d) for d, (a, _) in zip(spatial, widths, strict=True))
        result[(slice(None), slice(None), *inside)] = x
        return result, numbers

    def taps(self, numbers: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """Each element of the kernel, with the slices of the padded data it meets as the window slides."""
        for tap in itertools.product(*map(range, self.kernel)):
            where = (
                slice(t * dilation, t * dilation + (n - 1) * stride + 1, stride)
                for t, dilation, stride, n in zip(tap, self.dilations, self.strides, numbers, strict=True)
            )
            yield tap, (slice(None), slice(None), *where)


def covers_data(attributes: Mapping[str, Any]) -> bool:
    """Whether every window of a pool covers an element of its input: no dilation, and pads less than the kernel."""
    kernel = attributes["kernel_shape"]
    plain = all(d == 1 for d in attributes.get("dilations", ()))
    return plain and all(p < k for p, k in zip(attributes.get("pads", ()), (*kernel, *kernel), strict=False))
