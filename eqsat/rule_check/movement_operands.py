"""Operands and attributes of operators that pick, move and compare elements."""

from typing import Any

import numpy as np

from eqsat.ir.constants import Constant
from eqsat.rule_check.operand_shapes import Known, Operand, Shape, Stated, indices, plan
from eqsat.samples import Sampler


def _chosen(array: Any, dtype: str = "int64") -> Operand:
    found = np.asarray(array, dtype)
    return Operand(found.shape, "fixed", found)


def _some_axis(d: Sampler, shape: Shape) -> int:
    return d.integer(-len(shape), len(shape) - 1)


@plan("Flatten")
def _flatten(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = known[0] or wanted
    if known[0] is None and len(wanted) == 2:
        shape, attributes["axis"] = (*_factors(wanted[0]), *_factors(wanted[1])), len(_factors(wanted[0]))
    else:
        attributes.setdefault("axis", d.integer(0, len(shape)))
    return [Operand(shape)]


def _factors(n: int) -> Shape:
    least = next((f for f in range(2, n) if n % f == 0), 1)
    return (least, n // least)


@plan("ConstantOfShape")
def _filled(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    if d.chance(0.8):
        attributes["value"] = Constant.of(d.array((1,)))
    return [Operand((len(wanted),), d.choose(("fixed", "drawn")), np.array(wanted, np.int64))]


@plan("GatherElements")
def _gather_elements(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = known[0] or wanted or (4,)
    axis: int = attributes.setdefault("axis", _some_axis(d, shape)) % len(shape)
    picked = tuple(d.integer(1, 4) if i == axis else n for i, n in enumerate(shape))
    return [Operand(shape), Operand(picked, "drawn", d.integers(picked, "int64", -shape[axis], shape[axis] - 1))]


@plan("GatherND")
def _gather_nd(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = known[0] or wanted or (4,)
    depth = d.integer(1, len(shape))
    found = np.stack([d.integers((3,), "int64", -n, n - 1) for n in shape[:depth]], axis=-1)
    return [Operand(shape), Operand(found.shape, "drawn", found)]


@plan("DepthToSpace", "SpaceToDepth")
def _blocks(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    attributes.setdefault("blocksize", 2)
    n, c, h, w = d.extents(4)
    return [Operand(known[0] or (n, 4 * c, 2 * h, 2 * w))]


@plan("Resize")
def _resize(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    """By a scale, cropped at times; where all optional operands are there by the extents: one of the two is to be absent."""
    shape = known[0] or (wanted if len(wanted) == 4 else d.extents(4))
    attributes.setdefault("mode", d.choose(("nearest", "nearest", "nearest", "linear")))
    attributes.setdefault("nearest_mode", "floor")
    transformation = d.choose(("asymmetric", "half_pixel", "asymmetric", "half_pixel", "tf_crop_and_resize"))
    if attributes.setdefault("coordinate_transformation_mode", transformation) == "tf_crop_and_resize":
        attributes["extrapolation_value"] = 7.25
    whole = (1,) * (len(shape) - 2)
    scales = (*whole, d.choose((1, 2)), 2)
    given = [_chosen((*(0,) * len(shape), *whole, 2, 2), "float32"), _chosen(scales, "float32")]
    return [Operand(shape), *given, _chosen([n * f for n, f in zip(shape, scales, strict=True)])][:count]


@plan("Compress")
def _compress(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = known[0] or wanted or (4,)
    axis: int = attributes.setdefault("axis", _some_axis(d, shape))
    return [Operand(shape), Operand((shape[axis],), "drawn", d.booleans((shape[axis],)))]


@plan("ReverseSequence")
def _reverse(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = known[0] or (wanted if len(wanted) > 1 else d.shape(2, 4))
    batch, time = d.choose(((0, 1), (1, 0)))
    attributes |= {"batch_axis": batch, "time_axis": time}
    lengths = d.integers((shape[batch],), "int64", 1, shape[time])
    return [Operand(shape), Operand(lengths.shape, "drawn", lengths)]


@plan("ArgMax", "ArgMin")
def _position(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = known[0] or wanted or (4,)
    attributes |= {"axis": _some_axis(d, shape), "keepdims": d.integer(0, 1)}
    if d.chance():
        attributes["select_last_index"] = 1
    return [Operand(shape)]


@plan("TopK")
def _greatest(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = known[0] or wanted or (4,)
    axis: int = attributes.setdefault("axis", _some_axis(d, shape))
    attributes |= {"largest": d.integer(0, 1), "sorted": int(d.chance(0.9))}
    return [Operand(shape), indices([d.integer(0, shape[axis])])]
