"""Images and volumes that are resized, as ONNX Runtime resizes fast.

It repeats elements fast in images where places are counted from the corner and rounded down: two by two, or on blocks of
channels, behind convolutions. Otherwise it computes the place of each element, in 2 to 5 times as long, in volumes 20 times
(72 ns for an element of (1, 32, 8, 16, 16)). Where factors are whole, centres and corners choose the same elements. Linear
interpolation is done on blocks, too, but not by the name of half pixels that PyTorch has for it, which differs for a single
element (440 and 170 us).

Cubic interpolation takes 280 ns for an element of (1, 64, 32, 32), linear one of volumes 24. Both are linear in the image, axis
by axis: products with matrices that are known where the extents are, in 5 and 6 ns.
"""

import math
from collections.abc import Sequence

import numpy as np

from eqsat.conditions import constant, kernels, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.extents import differ
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, apply, literal
from eqsat.rules.terms import int64s, matmul, reshape

Factors = tuple[float, ...]


def factors(r: Ref, x: Ref, scales: Ref | None, sizes: Ref | None) -> Factors:
    """By what each axis of ``x`` is resized; nothing where that is not known."""
    axes: list[int] = [axis % x.rank for axis in r.attr("axes", range(x.rank))]
    if sizes is not None:
        stretches = r.attr("keep_aspect_ratio_policy", "stretch") == "stretch" and 0 not in x.static_shape
        pairs = zip(sizes.value.tolist(), axes, strict=True) if stretches else ()
        given = [float(size / x.static_shape[axis]) for size, axis in pairs]
    else:
        given = [] if scales is None else [float(scale) for scale in scales.value]
    found = dict(zip(axes, given, strict=False))
    return tuple(found.get(axis, 1.0) for axis in range(x.rank)) if len(given) == len(axes) else ()


# --- elements that are repeated

CENTRES = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
PLAIN = ("asymmetric", "floor")


def way(r: Ref) -> tuple[str, str]:
    """Where elements are looked for, and how their places are rounded."""
    places: str = r.attr("coordinate_transformation_mode", "half_pixel")
    return places, r.attr("nearest_mode", "round_prefer_floor")


def repeats(r: Ref, by: Factors) -> bool:
    """Whether each element is repeated as often as the factors say.

    By a factor ``f`` element ``q f + t`` of the result lies at ``q + (t + 1/2) / f - 1/2`` by centres, less
    than 1/2 from ``q``; at ``q + t / f`` by corners. Where corners are aligned the last of many elements are
    too near to 1/2 for single precision.
    """
    if (
        not by
        or not all(f.is_integer() and f >= 1 for f in by)
        or r.attr("exclude_outside", 0)
        or r.attr("antialias", 0)
    ):
        return False
    places, rounding = way(r)
    if rounding.startswith("round"):
        down = places == "asymmetric" and rounding == "round_prefer_floor"
        return places in CENTRES or (down and max(by) <= 2)
    return (places, rounding) == PLAIN


def is_plain(r: Ref, sizes: Ref | None) -> bool:
    return way(r) == PLAIN and sizes is None and r.attr("axes") is None


def repeated(value: Term, by: Sequence[float]) -> Term:
    """Each element of ``value`` as often as the factors say; ``value`` itself where that is once."""
    if max(by) == 1:
        return value
    places, rounding = PLAIN
    scales = literal(np.array(by, np.float32))
    return apply("Resize", value, None, scales, coordinate_transformation_mode=places, nearest_mode=rounding)


def repeated_volume(x: Ref, by: Sequence[float], result: Ref) -> Term:
    """Each slice of a volume as an image, and that as often as the first of the last three factors says."""
    images, channels, depth, *plane = x.static_shape
    slices, times = images * channels * depth, int(by[2])
    image = repeated(reshape(x, (images, channels * depth, *plane)), (1, 1, *by[3:]))
    elements = math.prod(result.static_shape[3:])
    if times > 1:
        image = apply("Expand", reshape(image, (slices, 1, elements)), int64s((slices, times, elements)))
    return reshape(image, result.static_shape)


equation = Equations(__name__, domain="com.microsoft", source="ONNX Resize; kernels of ONNX Runtime, tried and timed")
NEAREST = "nearest elements: r.attr('mode', 'nearest') == 'nearest'"
REPEATS = "each is repeated: repeats(r, factors(r, x, s, z))"
equation(
    "repeat_elements_counted_from_corner",
    "Resize(x, *i, *s, *z, **r) == repeated(x, factors(r, x, s, z))",
    constant("s", "z"),
    NEAREST,
    REPEATS,
    worthwhile("more than once: max(factors(r, x, s, z)) > 1"),
    worthwhile("they are not counted so: not is_plain(r, z)"),
)
equation(
    "repeat_elements_of_volume_by_slices",
    "Resize(x, *i, *s, *z, **r) == repeated_volume(x, factors(r, x, s, z), root)",
    constant("s", "z"),
    NEAREST,
    REPEATS,
    worthwhile("a volume: x.rank == 5"),
    "of each channel by itself: factors(r, x, s, z)[:2] == (1, 1)",
    worthwhile("more than once: max(factors(r, x, s, z)) > 1"),
    worthwhile("known extents: x.static_shape"),
    drawn=(
        """I = 0 | 1; x: [N, C, A, B, D]; s = fixed([1, 1 | 2, 2 | 1, 2 | 3, 2 | 1.5], "float32"); z: None; r.axes = None; i: None
           r.mode = "nearest" | "linear"; r.coordinate_transformation_mode = ("asymmetric", "half_pixel")[I] | "align_corners"
           r.nearest_mode = ("floor", "round_prefer_floor")[I] | "ceil" """,
        "s: None; z = [N, C, 2 * A, B, 3 * D]",
        's = fixed([2, 2, 3], "float32"); r.axes = (2, 3, 4)',
    ),
)

# --- interpolation

_MOST_WEIGHTS = 1 << 18
"""Of an axis: a megabyte."""

_FEW = 32
"""Elements along an axis: linear interpolation of images reads two of them, a product all, of 64 in 1.4 times as long."""


def _places(r: Ref, factor: float, extent: int, wanted: int) -> np.ndarray:
    """Where the elements of the result lie among ``extent`` elements."""
    index = np.arange(wanted)
    mode, _ = way(r)
    if mode == "align_corners":
        return index * ((extent - 1) / max(wanted - 1, 1))
    if mode == "asymmetric":
        return index / factor
    return (index + 0.5) / factor - 0.5 if mode == "half_pixel" or wanted > 1 else np.zeros(1)


def weights(r: Ref, factor: float, extent: int, wanted: int) -> np.ndarray:
    """How much of each element (columns) is in each of the result (rows) along an axis."""
    places = _places(r, factor, extent, wanted)
    first = np.floor(places)
    part = places - first
    if r.attr("mode") == "linear":
        taps = [(0, 1 - part), (1, part)]
    else:
        a = r.attr("cubic_coeff_a", -0.75)
        taps = [(tap, _cubic(np.abs(part - tap), a)) for tap in (-1, 0, 1, 2)]
    found = np.zeros((wanted, extent))
    for tap, share in taps:  # what lies beyond an end is the last element there
        np.add.at(found, (np.arange(wanted), np.clip(first + tap, 0, extent - 1).astype(int)), share)
    return found


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel of convolution."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    return np.where(distance <= 1, near, ((distance - 5) * distance + 8) * distance * a - 4 * a)


def interpolated(r: Ref, x: Ref, by: Factors, result: Ref) -> Term:
    """``x`` resized axis by axis by products, first along the axis that shrinks most, or grows least."""
    shape, wanted = list(x.static_shape), result.static_shape
    term: Term = x
    for axis in sorted((a for a, f in enumerate(by) if f != 1), key=lambda a: wanted[a] / shape[a]):
        matrix = weights(r, by[axis], shape[axis], wanted[axis]).astype(x.dtype.numpy)
        before, behind = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        own, shape[axis] = shape[axis], wanted[axis]
        if axis == x.rank - 1:
            term = matmul(term, literal(np.ascontiguousarray(matrix.T)))
        elif axis == x.rank - 2:
            term = matmul(literal(matrix), term)
        else:
            term = reshape(matmul(literal(matrix), reshape(term, (before, own, behind))), shape)
    return term


def is_slow(r: Ref, x: Ref, by: Factors, result: Ref) -> bool:
    """Whether products are faster, and of no more weights than are worth it: linear interpolation of images is fast by whole
    factors, on blocks of channels, and between few elements of many."""
    extents = [(n, m) for n, m, f in zip(x.static_shape, result.static_shape, by, strict=True) if f != 1]
    few = all(n * m <= _MOST_WEIGHTS for n, m in extents)
    if r.attr("mode") == "cubic" or x.rank != 4:
        return few
    return few and not all(f.is_integer() for f in by) and all(n <= _FEW for n, _ in extents)


equation(
    "interpolate_by_products",
    "Resize(x, *i, *s, *z, **r) == interpolated(r, x, factors(r, x, s, z), root)",
    kernels("x", DType.FLOAT),
    constant("s", "z"),
    "between elements: r.attr('mode') in ('linear', 'cubic')",
    "factors are known: factors(r, x, s, z)",
    "places are counted so: way(r)[0] in ('half_pixel', 'pytorch_half_pixel', 'align_corners', 'asymmetric')",
    "the last element goes on beyond an end: not r.attr('exclude_outside', 0)",
    "few elements take part: not r.attr('antialias', 0)",
    worthwhile("in less time: is_slow(r, x, factors(r, x, s, z), root)"),
    worthwhile("some of each axis: 0 not in x.static_shape and 0 not in root.static_shape"),
    exactness=Exactness.ROUNDING,
    source="ONNX Resize; Keys 1981",
    drawn=(
        """x: [N, C, A + 1, B + 1]; s = fixed([1, 1, 0.5 | 1.5 | 2.5, 2.0 | 1.5 | 3.0], "float32"); z: None; i: None
           r.axes = None; r.mode = "cubic" | "linear" | "nearest"; r.cubic_coeff_a = None | -0.5; r.antialias = None
           r.coordinate_transformation_mode = ("half_pixel" | "pytorch_half_pixel" | "align_corners" | "asymmetric"
                                               | "half_pixel_symmetric")""",
        'r.exclude_outside = 1; r.mode = "cubic"',
        'r.antialias = 1; r.mode = "linear"; r.cubic_coeff_a = None; s = fixed([1, 1, 0.5, 0.5], "float32")',
        's: None; z = [N, C, 2 * A, B + 3]; r.mode = "cubic"',
        'x: [N, C, A + 1]; s = fixed([1, 1, 1.5 | 3], "float32"); r.mode = "linear"; r.cubic_coeff_a = None',
        's = fixed([1.5, 2.5], "float32"); r.axes = (2, 3)',
    ),
)


def are_not_single(x: Ref, result: Ref) -> bool:
    return all(n == m or differ(m, 1) for n, m in zip(x.shape, result.shape, strict=True))


equation(
    "count_half_pixels_whatever_the_extent",
    """Resize(x, *i, *s, *z, coordinate_transformation_mode='pytorch_half_pixel', **r)
       == Resize(x, i, s, z, coordinate_transformation_mode='half_pixel', **r)""",
    worthwhile("an image: x.rank == 4"),
    "not a single element along an axis that is resized: are_not_single(x, root)",
    drawn=("", "x: [N, C, A, B]; s = fixed([1, 1, 1 / A, 1 / B], 'float32'); z: None; i: None; r.axes = None"),
)
