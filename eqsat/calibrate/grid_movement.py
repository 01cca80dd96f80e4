"""What moves data: rows and elements to other places, parts, look-ups, borders, images that are resized."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from eqsat.calibrate.case import Cases, Kernels, data, value, weight
from eqsat.calibrate.grid_others import IMAGES, ROWS, SCORES, F


def _split(dtype: str, parts: int, sizes: Iterable[tuple[int, int]]) -> Cases:
    """Rows, in equal parts."""
    return Kernels(
        "Split",
        sizes,
        lambda r, c: [data(dtype, 1, r, c), value("int64", [c // parts] * parts)],
        {"axis": -1},
        outputs=parts,
    )


def _movement() -> Iterator[Cases]:
    heads = ((128, 12, 64), (197, 12, 64), (3072, 12, 64), (256, 8, 8), (1024, 8, 4))
    for parts, columns in ((2, (256, 2048, 8192)), (3, (192, 1536, 6144))):  # products side by side, of one row or few
        yield _split(F, parts, [(rows, c) for rows in (1, 16) for c in columns])
    for dtype in (F, "int8", "uint8"):
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 3, 2, 1]):
            yield Kernels("Transpose", heads, lambda s, h, d, t=dtype: [data(t, 1, s, h, d)], {"perm": perm})
        yield Kernels("Transpose", ROWS, lambda r, c, t=dtype: [data(t, r, c)], {"perm": [1, 0]})
        yield Kernels("Transpose", SCORES, lambda h, s, t=dtype: [data(t, 1, h, s, 64)], {"perm": [0, 1, 3, 2]})
        yield Kernels("Transpose", IMAGES, lambda c, s, t=dtype: [data(t, 1, c, s, s)], {"perm": [0, 2, 3, 1]})
        for axis in (1, -1):
            yield Kernels(
                "Concat", IMAGES, lambda c, s, t=dtype: [data(t, 1, c, s, s), data(t, 1, c, s, s)], {"axis": axis}
            )
        yield _split(dtype, 3, ((128, 2304), (197, 2304), (3072, 2304), (1024, 96), (64, 384)))
        yield _split(dtype, 8, ((1, 4096), (128, 768), (197, 2304)))
        yield Kernels(
            "Split",
            IMAGES[1:6],
            lambda c, s, t=dtype: [data(t, 1, c, s, s), value("int64", [c // 2] * 2)],
            {"axis": 1},
            outputs=2,
        )
        yield Kernels(
            "Slice",
            ((128, 768), (128, 3072), (1024, 256), (64, 1024), (1024, 64), (128, 64)),
            lambda r, c, t=dtype: [
                data(t, 1, r, c), value("int64", [0]), value("int64", [c // 2]), value("int64", [2]),
            ],
        )  # fmt: skip
        yield Kernels(
            "Gather",
            ((30522, 768, 128), (512, 768, 128), (2, 768, 128), (8000, 512, 128), (30522, 768, 3072)),
            lambda r, c, n, t=dtype: [weight(t, r, c), data("int64", 1, n, limit=r)],
            {"axis": 0},
        )


_LOOKED_UP: dict[int, Sequence[tuple[int, ...]]] = {
    1: ((128, 768), (128, 3072), (384, 3072)),
    0: ((128, 768), (128, 2304), (384, 2304)),
    2: ((1, 36, 128, 64), (1, 12, 128, 64), (1, 36, 384, 64)),
}
"""Axis -> shapes that are looked up along it, in a table for each index of the others."""


def _tables() -> Iterator[Cases]:
    yield Kernels(  # windows along the last axis, which is copied element by element
        "Gather",
        ((128, 136, 9, 128), (384, 64, 3, 31), (512, 56, 7, 13), (64, 1032, 9, 1024)),
        lambda r, c, k, n: [data(F, 1, r, c), value("int64", [list(range(i, i + n)) for i in range(k)])],
        {"axis": 2},
    )
    yield Kernels(
        "Gather",
        ((128, 768), (128, 3072)),
        lambda r, c: [weight("int8", 256), data("int32", r, c, limit=256)],
        {"axis": 0},
    )
    for axis, shapes in _LOOKED_UP.items():
        yield Kernels(
            "GatherElements",
            [(shape,) for shape in shapes],
            lambda shape, axis=axis: [
                weight("uint8", *shape[:axis], 256, *shape[axis + 1 :]), data("int32", *shape, limit=256),
            ],
            {"axis": axis},
        )  # fmt: skip
    yield Kernels(
        "GatherElements",
        ((4, 128, 32, 128), (12, 128, 64, 128), (12, 384, 512, 384), (1, 128, 256, 16)),
        lambda h, r, c, n: [data(F, h, r, c), data("int64", h, r, n, limit=c)],
        {"axis": -1},
    )


def _borders() -> Iterator[Cases]:
    yield Kernels(
        "Expand",
        ((12, 128), (2, 512), (1, 1)),
        lambda h, s: [data(F, 1, h, 1, s, 64), value("int64", [1, h, 4, s, 64])],
    )
    for before, images in ((0, ((96, 165), (168, 83), (336, 42))), (1, ((3, 224), (64, 16), (16, 8), (128, 28)))):
        yield Kernels(
            "Pad",
            images,
            lambda c, s, n=before: [data(F, 1, c, s, s), value("int64", [0, 0, n, n, 0, 0, 1, 1]), value(F, 0.0)],
        )
    for rows, columns, sizes in (
        (1, 0, ((128, 128), (127, 128), (128, 768), (1024, 256), (16, 64))),
        (0, 1, ((128, 64), (512, 512), (64, 3136), (1, 16))),
    ):
        yield Kernels(
            "Pad",
            sizes,
            lambda r, c, n=rows, m=columns: [data(F, 1, r, c), value("int64", [0, n, m, 0, n, m]), value(F, 0.0)],
        )
    yield Kernels(
        "Pad",
        ((56, 96), (14, 384), (128, 1)),
        lambda s, c: [data(F, 1, s, s, c), value("int64", [0, 4, 4, 0, 0, 4, 4, 0]), value(F, 0.0)],
    )


_CORNER = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_CENTRE = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor"}
_LINEAR, _CUBIC = {"mode": "linear"}, {"mode": "cubic"}
_PYTORCH = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}

_RESIZED: Sequence[tuple[float, Sequence[Mapping[str, str]], Sequence[tuple[int, ...]]]] = (
    (2.0, (_CORNER,), ((2, 128, 4, 4), (2, 128, 8, 8), (2, 64, 16, 16))),
    (
        2.0,
        (_CORNER, _CENTRE, _LINEAR),
        (
            *((1, 256, 16, 16), (1, 64, 64, 64), (1, 128, 20, 20), (1, 3, 128, 128), (1, 512, 7, 7)),
            *((1, 32, 8, 16, 16), (1, 16, 16, 16, 16), (1, 64, 4, 8, 8), (1, 8, 32, 32, 32)),
        ),
    ),
    (0.5, (_LINEAR, _CUBIC), ((1, 16, 56, 56), (1, 3, 128, 128), (1, 64, 32, 32))),
    (2.0, (_LINEAR, _CUBIC), ((1, 16, 14, 14), (1, 64, 30, 30), (1, 3, 64, 64), (1, 256, 8, 8))),
    (2.5, (_LINEAR, _CUBIC), ((1, 16, 20, 20), (1, 64, 24, 24), (1, 21, 40, 40), (1, 256, 10, 10))),
    (6.0, (_LINEAR, _CUBIC), ((1, 512, 6, 6), (1, 21, 33, 33), (1, 128, 3, 3))),
    (4.0, (_CORNER, _CENTRE, _LINEAR), ((1, 64, 31, 31), (1, 128, 15, 15), (1, 256, 9, 9), (1, 32, 48, 48))),
    (3.0, (_CORNER, _CENTRE, _LINEAR), ((1, 64, 33, 33), (1, 128, 17, 17), (1, 256, 11, 11))),
    (2.0, (_PYTORCH,), ((1, 64, 31, 31), (1, 128, 20, 20), (1, 256, 9, 9), (1, 21, 65, 65))),
)
"""Factor, ways, and images and volumes: of no two factors the same in one way, for timings are told apart by what goes in."""


def _images() -> Iterator[Cases]:
    for factor, ways, shapes in _RESIZED:
        for how in ways:
            yield Kernels(
                "Resize",
                [(shape,) for shape in shapes],
                lambda shape, f=factor: [data(F, *shape), None, value(F, [1.0, 1.0, *[f] * (len(shape) - 2)])],
                how,
            )
    for mode in ("linear", "nearest", "cubic"):
        for outside in ("zeros", "border"):
            yield Kernels(
                "GridSample",
                ((64, 64), (3, 128), (32, 32), (128, 16)),
                lambda c, s: [data(F, 1, c, s, s), data(F, 1, s, s, 2)],
                {"mode": mode, "padding_mode": outside},
            )
    yield Kernels(
        "DepthToSpace",
        ((64, 64, 2), (48, 128, 4), (256, 16, 2), (9, 224, 3), (1024, 7, 2), (32, 112, 2)),
        lambda c, s, b: [data(F, 1, c, s, s)],
        lambda c, s, b: {"blocksize": b, "mode": "CRD"},
    )


MOVEMENT: tuple[Cases, ...] = (*_movement(), *_tables(), *_borders(), *_images())
