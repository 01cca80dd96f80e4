"""Convolutions on blocks of channels, as ONNX Runtime computes those of images at its highest level.

Convolutions in groups of fewer channels than fill a block stay outside, and the image is rearranged around them. So groups become
wider: the filters of several get zeros for the channels of the others. That is as many times the work, and less time: 0.45 to 0.7
of that of groups of 8 channels, 0.6 to 0.9 of that of 4.

Sequences are no images, and of them each channel that has a filter of its own is a product for itself: of 256 channels and 1000
places, by 31 weights each, 1.0 ms, and 0.27 ms as an image of one row; of 2048 channels and 4 places 0.25 and 0.015 ms.
"""

from typing import Any

import numpy as np

from eqsat.conditions import constant, finite, kernels, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.operators.onnxruntime_products import BLOCK, POOLS, pools_blocks
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, literal
from eqsat.rules.terms import int64s, mul, reshape
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


def of_one_row(node: Ref) -> Attributes:
    """The attributes of a convolution along one axis for images of one row."""
    stated = {name: node.attr(name) for name in ("kernel_shape", "strides", "dilations", "pads")}
    return node.attributes.updated(
        **{name: (0, v[0], 0, v[1]) if name == "pads" else (1, *v) for name, v in stated.items() if v}
    )


def _sequence(d: Sampler) -> dict[str, Any]:
    channels, kernel, images = d.choose((2, 3, 4)), d.choose((1, 3, 4)), d.chance(0.1)
    p: dict[str, Any] = {"group": channels if d.chance(0.9) else 1, "kernel_shape": (kernel,)} | (
        {"auto_pad": "SAME_UPPER"} if d.chance(0.1) else {"pads": (d.integer(0, 2), d.integer(0, 2))}
    )
    p |= {name: (2,) for name in ("strides", "dilations") if d.chance(0.3) and "pads" in p}
    x, w = d.floats((d.integer(1, 2), channels, 9)), d.floats((channels, channels // p["group"], kernel))
    if images:
        x, w = x[..., None], w[..., None]
        p = {"group": p["group"]}
    return {"x": x, "w": d.either(w), "p": p} | ({"b": d.floats((channels,))} if d.chance() else {})


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


def _pooled(d: Sampler) -> dict[str, Any]:
    """Sequences, mostly, and images."""
    kernel = d.choose((1, 2, 3))
    p: dict[str, Any] = {"kernel_shape": (kernel,), "strides": (d.choose((1, 2)),), "pads": (kernel // 2, 0)}
    p |= {"ceil_mode": 1} if d.chance(0.2) else {}
    x = d.floats((d.integer(1, 2), d.choose((BLOCK, BLOCK, 3)), 9))
    return {"x": x[..., None], "p": {"kernel_shape": (kernel, 1)}} if d.chance(0.1) else {"x": x, "p": p}


of_sequences = Equations(
    __name__,
    where=[kernels("x", DType.FLOAT), "a sequence: x.rank == 3"],
    domain="com.microsoft",
    exactness=Exactness.ROUNDING,
    source="definition of the operators; kernels of ONNX Runtime on blocks of channels, tried and timed",
    functions=named(int64s, pools_blocks),
)
of_sequences(
    "convolve_sequence_as_image_of_one_row",
    """Conv(x, w, *b, group=g, **p)
       == Squeeze(Conv(Unsqueeze(x, int64s([2])), Unsqueeze(w, int64s([2])), *b, **of_one_row(p)), int64s([2]))""",
    worthwhile("a filter for each channel: g > 1 and w.shape[1] == 1"),
    sample=_sequence,
)
for op in POOLS:
    of_sequences(
        f"take_{op.lower()}_of_sequence_as_image_of_one_row",
        f"{op}(x, **p) == Squeeze({op}(Unsqueeze(x, int64s([2])), **of_one_row(p)), int64s([2]))",
        worthwhile("whole blocks of channels: pools_blocks((1, x.shape[1], 1, 1))"),
        sample=_pooled,
    )
