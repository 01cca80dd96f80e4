"""Operators on images whose kernels in ONNX Runtime go element by element, by others.

Local response normalisation raises a sum of each element's neighbours to a power by the functions of C, 25 ns an element; the
sums are a convolution by one element, the powers products of roots, in 3 to 6 ns. DepthToSpace is two transposes that each keep
elements together, in 0.4 of its time. Of the ways of GridSample one is fast, linear between zeros outside: what continues the
border is that at places that are clamped to the image, 8 times as fast. Averages over windows of channels that fill no block are
taken element by element from opset 19 on, 10 to 40 times as long as a convolution by equal weights.
"""

import math

import numpy as np

from eqsat.conditions import kernels, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operators.onnxruntime_products import BLOCK, on_blocks
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, Unmet, apply, literal
from eqsat.rules.algebra.powers import is_product, power
from eqsat.rules.terms import mul, reshape, transpose

# --- local response normalisation


def channels(x: Ref) -> int:
    """How many channels an image has, whatever else is known of it."""
    found = x.shape[1]
    if not isinstance(found, int):
        raise Unmet("the number of channels is unknown")
    return found


def neighbours(n: Ref, x: Ref) -> Term:
    """Filters that weigh a channel and those around it, as many as count."""
    size = int(n.attr("size"))
    distance = np.subtract.outer(*[np.arange(channels(x))] * 2)  # of the filter from the channel
    counts = (-((size - 1) // 2) <= -distance) & (-distance <= size // 2)
    weight = n.attr("alpha", 1e-4) / size
    return literal((counts * weight).astype(np.float32)[:, :, None, None])


def biases(n: Ref, x: Ref) -> Term:
    return literal(np.full(channels(x), n.attr("bias", 1.0), np.float32))


equation = Equations(
    __name__,
    where=[kernels("x", DType.FLOAT)],
    domain="com.microsoft",
    exactness=Exactness.ROUNDING,
    source="ONNX operator specification; kernels of ONNX Runtime, tried and timed",
    functions=named(is_product, power),
)
equation(
    "convolve_squares_of_neighbours",
    "LRN(x, **n) == x / power(Conv(x * x, neighbours(n, x), biases(n, x)), n.attr('beta', 0.75))",
    "an image of known channels: x.rank == 4 and channels(x) > 0",
    worthwhile("to a power of few roots: is_product(n.attr('beta', 0.75))"),
    drawn="""x: [N, 4 | 7 | 1, H, W] | [N, 4, W]; n.size = 3 | 1 | 5; n.alpha = 0.5 | 1e-4; n.beta = 0.75 | 0.5 | 1.0 | 0.7
             n.bias = None | 2.0 | 0.5 | -0.5""",
)

# --- averages over windows


def fill_no_block(x: Ref) -> bool:
    """Whether pools of an image are not on blocks, but convolutions are that have a filter for each channel."""
    count = channels(x)
    return x.rank == 4 and count > BLOCK and count % BLOCK > 0 and on_blocks(count, (1, count, 1, 1), (count, 1, 1, 1))


def shares(n: Ref, x: Ref) -> Term:
    """A filter for each channel that weighs the elements of a window alike."""
    kernel = n.attr("kernel_shape")
    return literal(np.full((channels(x), 1, *kernel), 1 / math.prod(kernel), np.float32))


def as_filters(n: Ref, x: Ref) -> Attributes:
    """The attributes of a convolution with the windows of a pool."""
    return n.attributes.updated(ceil_mode=None, count_include_pad=None, group=channels(x))


def counts_border(n: Ref) -> bool:
    """Whether each window has as many elements as the filter, be it zeros beyond the border."""
    return bool(n.attr("count_include_pad", 0)) or not any(n.attr("pads") or ())


def inside_share(n: Ref, x: Ref) -> np.ndarray:
    """How much of each window lies inside an image."""
    ones = np.ones((1, 1, *x.static_shape[2:]), np.float32)
    return evaluate_operator("AveragePool", n.attributes.updated(count_include_pad=1), [ones])[0]


def averaged(sums: Term, n: Ref, x: Ref) -> Term:
    """Weighted sums over windows, of which elements beyond the border do not count."""
    if counts_border(n):
        return sums
    with np.errstate(divide="ignore"):  # of nothing there is no average either
        return mul(sums, literal(1 / inside_share(n, x)))


equation(
    "average_by_equal_filters",
    "AveragePool(x, **n) == averaged(Conv(x, shares(n, x), **as_filters(n, x)), n, x)",
    worthwhile("channels that fill no block, on which filters are: fill_no_block(x)"),
    worthwhile("windows of several elements: max(n.attr('kernel_shape')) > 1"),
    "no window more than fit: not n.attr('ceil_mode', 0)",
    "a border that is stated: n.attr('auto_pad', 'NOTSET') == 'NOTSET'",
    drawn=(
        f"""K = 3 | 1 | 2; x: [N, 20 | 3 | {BLOCK}, H + 2, W + 2]; n.kernel_shape = (K, K); n.strides = (1 | 2,) * 2
            n.pads = (K // 2, 0, 0, K // 2) | None; n.auto_pad = None; n.dilations = None; n.count_include_pad = 0 | 1
            n.ceil_mode = 0 | 1""",
        'n.auto_pad = "SAME_UPPER"; n.pads = None',
        "x: [N, 20, W]; n.kernel_shape = (K,); n.strides = None; n.pads = None",
    ),
)

# --- pixels of channels


def woven(x: Ref, block: int, mode: str, result: Ref) -> Term:
    """Channels between the columns, and then the rows that they make between the rows."""
    images, channels, height, width = x.static_shape
    own, before = channels // block**2, images * block
    if mode == "CRD":
        apart, rows = (images * own * block, block, height * width), (images * own, block, height, width * block)
    else:
        apart, rows = (before, block, own * height * width), (images, block, own * height, width * block)
    columns = transpose(reshape(x, apart), (0, 2, 1))
    return reshape(transpose(reshape(columns, rows), (0, 2, 1, 3)), result.static_shape)


equation(
    "weave_pixels_in_two_steps",
    "DepthToSpace(x, **p) == woven(x, p.attr('blocksize'), p.attr('mode', 'DCR'), root)",
    worthwhile("known extents: x.static_shape and 0 not in x.static_shape"),
    worthwhile("more than one pixel: p.attr('blocksize') > 1"),
    exactness=Exactness.EXACT,
    source="ONNX operator specification",
)

# --- places between elements


def inside(grid: Ref, x: Ref, corners: int) -> Term:
    """Places no further out than the first and the last element of an image: their corners or, unless those count, centres."""
    height, width = x.static_shape[2:]
    ends = [1.0, 1.0] if corners else [1 - 1 / width, 1 - 1 / height]
    if ends[0] == ends[1]:
        return apply("Clip", grid, literal(-ends[0], grid.dtype), literal(ends[0], grid.dtype))
    most = np.array(ends, grid.dtype.numpy)
    return apply("Min", apply("Max", grid, literal(-most)), literal(most))


equation(
    "clamp_places_instead_of_going_on_beyond_border",
    "GridSample(x, g, mode='linear', padding_mode='border', **n) "
    "== GridSample(x, inside(g, x, n.attr('align_corners', 0)), mode='linear', align_corners=n.attr('align_corners', 0))",
    worthwhile("an image: x.rank == 4"),
    worthwhile("known extents: x.static_shape and 0 not in x.static_shape"),
)
