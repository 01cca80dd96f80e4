"""Convolutions on blocks of channels, as ONNX Runtime computes those of images at its highest level.

Convolutions in groups of fewer channels than fill a block stay outside, and the image is rearranged around them. So groups become
wider: the filters of several get zeros for the channels of the others. That is as many times the work, and less time: 0.45 to 0.7
of that of groups of 8 channels, 0.6 to 0.9 of that of 4.

Sequences are no images, and of them each channel that has a filter of its own is a product for itself: of 256 channels and 1000
places, by 31 weights each, 1.0 ms, and 0.27 ms as an image of one row; of 2048 channels and 4 places 0.25 and 0.015 ms.
"""

import numpy as np

from eqsat.conditions import constant, finite, kernels, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.operators.onnxruntime_products import BLOCK, POOLS, pools_blocks
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, literal
from eqsat.rules.terms import int64s, mul, reshape


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
    drawn=(
        """K = 1 | 3; C = d.choose((8, 4, 2)) | 3; G = d.choose((2, 4, 8)) | 3; x: float32[N, G * C, 4, 3]; b: float32[G * 8]
           w: float32[G * 8, C, K, K]; g = G; p.pads = (K // 2,) * 4; p.strides = (1 | 2,) * 2
           p.auto_pad = None; p.dilations = None""",
        "w = d.floats([G * 8, C, K, K], infinite=True)",
    ),
)


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
    drawn=(
        """K = 1 | 3 | 4; x: [N, C, 9]; w: [C, 1, K]; b: [C]; g = C; p.kernel_shape = (K,); p.pads = (d.integer(0, 2), 1)
           p.auto_pad = None; p.strides = None | (2,); p.dilations = None | (2,)""",
        'p.pads = None; p.auto_pad = "SAME_UPPER"',
        "x: [N, C, 9, 1]; w: [C, 1, K, 1]; p.kernel_shape = None; p.pads = None",
    ),
)
for op in POOLS:
    of_sequences(
        f"take_{op.lower()}_of_sequence_as_image_of_one_row",
        f"{op}(x, **p) == Squeeze({op}(Unsqueeze(x, int64s([2])), **of_one_row(p)), int64s([2]))",
        worthwhile("whole blocks of channels: pools_blocks((1, x.shape[1], 1, 1))"),
        drawn=(
            f"""K = 1 | 2 | 3; x: [N, {BLOCK} | 3, 9]; p.kernel_shape = (K,); p.strides = (1 | 2,); p.pads = (K // 2, 0)
                p.ceil_mode = 0 | 1; p.auto_pad = None; p.dilations = None""",
            f"x: [N, {BLOCK}, 9, 1]; p.kernel_shape = (K, 1); p.strides = None; p.pads = None",
        ),
    )
