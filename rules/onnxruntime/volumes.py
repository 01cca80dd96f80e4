"""Convolutions of volumes as convolutions of images, which ONNX Runtime computes on blocks of channels; volumes it does not.

A filter along the first axis of volumes only, as for time in video, is one of images whose rows are planes. Filters within the
planes are those of a batch of planes, for which the channels go behind the first axis. Those of all three axes are, too, with a
copy of the planes for each tap along the first axis, side by side as channels. Where each channel has a filter of its own the
taps are convolutions by themselves, whose results are added.
"""

from eqsat.conditions import constant, kernels, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, apply
from eqsat.rules.terms import int64s, reshape, total, transpose

_TAPS = {"strides": (1, 1, 1), "dilations": (1, 1, 1), "pads": (0,) * 6}


def steps(p: Ref, name: str) -> tuple[int, ...]:
    """Strides, dilations or pads of a convolution of volumes."""
    return tuple(p.attr(name) or _TAPS[name])


def of_planes(p: Ref) -> Attributes:
    """The attributes of a convolution for images, the planes of its volumes."""
    strides, dilations, pads = (steps(p, name) for name in _TAPS)
    return p.attributes.updated(
        kernel_shape=None, strides=strides[1:], dilations=dilations[1:], pads=pads[1:3] + pads[4:]
    )


def of_rows(p: Ref) -> Attributes:
    """Those for images whose rows are planes."""
    strides, dilations, pads = (steps(p, name) for name in _TAPS)
    return p.attributes.updated(
        kernel_shape=None, strides=(strides[0], 1), dilations=(dilations[0], 1), pads=(pads[0], 0, pads[3], 0)
    )


def is_along_first(p: Ref, w: Ref) -> bool:
    """Whether windows are one element wide and high, at every place of a plane."""
    pads = steps(p, "pads")
    still = steps(p, "strides")[1:] == (1, 1) and not any(pads[1:3] + pads[4:])
    return w.static_shape[3:] == (1, 1) and still


def rows_of_planes(value: Ref) -> Term:
    """Volumes, or filters, as images of which each row is a plane."""
    return reshape(value, (*value.static_shape[:3], value.static_shape[3] * value.static_shape[4]))


def seen_by_taps(x: Ref, w: Ref, p: Ref, result: Ref) -> list[Term]:
    """For each tap along the first axis the planes that it meets, as many as the result has."""
    taps, kept = w.static_shape[2], result.static_shape[2]
    (stride, *_), (dilation, *_), pads = (steps(p, name) for name in _TAPS)
    seen: Term = x
    if pads[0] or pads[3]:
        seen = apply("Pad", x, int64s((0, 0, pads[0], 0, 0, 0, 0, pads[3], 0, 0)))
    if taps == stride == 1:
        return [seen]
    ends = [(first, first + (kept - 1) * stride + 1) for first in range(0, taps * dilation, dilation)]
    return [apply("Slice", seen, *map(int64s, ([first], [end], [2], [stride]))) for first, end in ends]


def in_batch(seen: Term, x: Ref, taps: int, result: Ref) -> Term:
    """Planes of ``x`` that are seen by so many taps, for each plane of the result, as a batch of images."""
    images, channels, _, *plane = x.static_shape
    return reshape(transpose(seen, (0, 2, 1, 3, 4)), (images * result.static_shape[2], taps * channels, *plane))


def planes(x: Ref, w: Ref, p: Ref, result: Ref) -> Term:
    """A batch of images: for each plane of the result those that its filters see, their channels side by side."""
    parts = seen_by_taps(x, w, p, result)
    return in_batch(apply("Concat", *parts, axis=1) if len(parts) > 1 else parts[0], x, len(parts), result)


def sum_of_taps(x: Ref, w: Ref, b: Ref | None, p: Ref, result: Ref) -> Term:
    """A convolution of planes for each tap along the first axis, added up."""
    filters, own, _, *window = w.static_shape
    found: Term | None = None
    for tap, seen in enumerate(seen_by_taps(x, w, p, result)):
        weights = reshape(apply("Slice", w, *map(int64s, ([tap], [tap + 1], [2]))), (filters, own, *window))
        part = apply("Conv", in_batch(seen, x, 1, result), weights, b if tap == 0 else None, **of_planes(p))
        found = total(found, part)
    assert found is not None
    return from_planes(found, result)


def filters_of_planes(w: Ref) -> Term:
    """Taps along the first axis as channels."""
    filters, own, taps, *window = w.static_shape
    return reshape(transpose(w, (0, 2, 1, 3, 4)) if taps > 1 else w, (filters, taps * own, *window))


def from_planes(value: Term, result: Ref) -> Term:
    """A batch of planes as volumes again."""
    images, filters, kept, *plane = result.static_shape
    return transpose(reshape(value, (images, kept, filters, *plane)), (0, 2, 1, 3, 4))


DRAWN = """G = 1 | 2; p.group = G; p.auto_pad = None | "SAME_UPPER"; p.dilations = None; p.strides = None | (2, 1, 1); b: [3 * G]
           x: [N, 2 * G, A + 3, B + 3, C + 3];"""
equation = Equations(
    __name__,
    where=[
        worthwhile("volumes: x.rank == 5"),  # asked of every convolution, first
        kernels("x", DType.FLOAT),
        worthwhile("known extents: 0 not in x.static_shape"),
    ],
    domain="com.microsoft",
    exactness=Exactness.ROUNDING,
    source="definition of the convolution; kernels of ONNX Runtime on blocks of channels, tried and timed",
    functions=named(reshape),
)
equation(
    "convolve_rows_of_planes",
    """Conv(x, w, *b, **p)
       == reshape(Conv(rows_of_planes(x), rows_of_planes(w), *b, **of_rows(p)), root.static_shape)""",
    "along the first axis only: is_along_first(p, w)",
    worthwhile("of several elements: w.shape[2] > 1"),
    worthwhile("borders as stated: p.attr('auto_pad', 'NOTSET') == 'NOTSET'"),
    drawn=(
        f"{DRAWN} K = 3 | 2 | 1; w: [3 * G, 2, K, 1, 1]; p.pads = (1, 0, 0, 1, 0, 0); p.dilations = None | (2, 1, 1)",
        "w: [3 * G, 2, K, 1, 2]",
        "p.pads = (1, 0, 1, 1, 0, 0)",
        "p.strides = (1, 2, 1)",
    ),
)
equation(
    "convolve_planes",
    """Conv(x, w, *b, **p)
       == from_planes(Conv(planes(x, w, p, root), filters_of_planes(w), *b, **of_planes(p)), root)""",
    constant("w"),
    "one tap along the first axis, or all channels at once: w.shape[2] == 1 or p.attr('group', 1) == 1",
    "borders as stated: p.attr('auto_pad', 'NOTSET') == 'NOTSET'",
    worthwhile("within planes: max(w.shape[3:]) > 1"),
    drawn=(
        f"{DRAWN} K = 3 | 2 | 1; w: [3 * G, 2, K, 3, 2]; p.pads = (d.integer(0, 1), 0, 1, 1, 1, 0)",
        "p.strides = (1, 2, 1); p.dilations = (2, 1, 2)",
        "K = 1; G = 2",
    ),
)
equation(
    "add_convolutions_of_planes_by_tap",
    "Conv(x, w, *b, **p) == sum_of_taps(x, w, b, p, root)",
    constant("w"),
    "borders as stated: p.attr('auto_pad', 'NOTSET') == 'NOTSET'",
    worthwhile("a filter for each channel: p.attr('group', 1) == x.shape[1] == w.shape[0] > 1"),
    worthwhile("several taps along the first axis, within planes: w.shape[2] > 1 and max(w.shape[3:]) > 1"),
    drawn=(
        f"""{DRAWN} K = 3 | 2 | 1; x: [N, M, A + 3, B + 3, C + 3]; w: [M, 1, K, 3, 2]; b: [M]; p.group = M
            p.pads = (1, 0, 1, 0, 1, 0)""",
        "p.strides = (1, 2, 1); p.dilations = (2, 1, 2)",
        "w: [M, M, K, 3, 2]; p.group = 1",
    ),
)
