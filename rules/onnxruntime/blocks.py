"""Convolutions on blocks of channels, as ONNX Runtime computes those of images at its highest level.

Convolutions in groups of fewer channels than fill a block stay outside, and the image is rearranged around them. So groups become
wider: the filters of several get zeros for the channels of the others. That is as many times the work, and less time: 0.45 to 0.7
of that of groups of 8 channels, 0.6 to 0.9 of that of 4.
"""

from typing import Any

import numpy as np

from eqsat.conditions import constant, finite, kernels, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.operators.onnxruntime_products import BLOCK
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, literal
from eqsat.rules.terms import mul, reshape
from eqsat.samples import Sampler, fixed


def together(w: Ref) -> int:
    """How many groups fill a block."""
    return max(BLOCK // max(w.static_shape[1], 1), 1)


def fill_blocks(w: Ref, group: int) -> bool:
    """Whether the channels and the filters of several groups of an image fill whole blocks, where those of one fill none."""
    filters, own, *kernel = w.static_shape
    return len(kernel) == 2 and 1 < own < BLOCK and BLOCK % own == 0 and filters // group * together(w) % BLOCK == 0


def in_wider_groups(w: Ref, group: int) -> Term:
    """Filters with zeros for the channels of the other groups that theirs is joined with."""
    count, (filters, own, *kernel) = together(w), w.static_shape
    apart = reshape(w, (group // count, count, filters // group, 1, own, *kernel))
    themselves = np.eye(count, dtype=w.dtype.numpy).reshape(count, 1, count, *(1,) * (1 + len(kernel)))
    return reshape(mul(apart, literal(themselves)), (filters, count * own, *kernel))


def _draw(d: Sampler) -> dict[str, Any]:
    own, outside = d.choose((8, 8, 4, 2, 3)), d.choose((8, 8, 4, 16))
    group, kernel = d.choose((2, 4, 8, 8, 3)), d.choose((1, 3))
    p: dict[str, Any] = {"group": group, "pads": (kernel // 2,) * 4, "strides": (d.choose((1, 1, 2)),) * 2}
    w = d.floats((group * outside, own, kernel, kernel), infinite=d.chance(0.15))
    bias = {"b": d.floats((group * outside,))} if d.chance() else {}
    return {"x": d.floats((d.integer(1, 2), group * own, 4, 3)), "w": fixed(w), "p": p, **bias}


equation = Equations(__name__, domain="com.microsoft")
equation(
    "widen_groups_to_blocks",
    "Conv(x, w, *b, group=g, **p) == Conv(x, in_wider_groups(w, g), *b, group=g // together(w), **p)",
    kernels("w", DType.FLOAT),
    worthwhile("an image whose groups fill no block, but several together do: fill_blocks(w, g)"),
    "whole groups are joined: g % together(w) == 0",
    constant("w"),
    finite("w"),
    exactness=Exactness.ROUNDING,
    source="definition of groups; kernels of ONNX Runtime on blocks of channels, tried and timed",
    sample=_draw,
)
