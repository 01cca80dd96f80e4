"""Shapes, attributes and element types that fit an operator: from a wanted shape of the result to those of the operands.

The plans are hints, not guarantees: the operator's own shape rule decides, and an instance that it rejects is drawn again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind, defined, operator, traits_of
from eqsat.ir.operators.onnxruntime_products import CONV, FUSED_CONV, FUSED_MATMUL
from eqsat.ir.types import DType, TensorType
from eqsat.samples import Sampler
from eqsat.samples.products import Operand, Shape, indices, plan_product, plan_windows

Stated = dict[str, Any]
"""Attributes by name, to which a plan adds those that it chooses."""

Known = Sequence[Shape | None]
"""The shapes of operands, as far as they are chosen already."""

Plan = Callable[[Sampler, Shape, int, Stated, Known], list[Operand]]
"""(sampler, wanted shape, number of operands, attributes, shapes already known) -> operands."""

_PLANS: dict[str, Plan] = {}


def plan(*ops: str) -> Callable[[Plan], Plan]:
    """Makes the decorated function the plan of some operators."""

    def register(plan: Plan) -> Plan:
        _PLANS.update(dict.fromkeys(ops, plan))
        return plan

    return register


def plan_operands(op: str, d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    """Operands of ``op`` whose result has, if possible, the shape ``wanted``."""
    if op in _PLANS:
        return _PLANS[op](d, wanted, count, attributes, known)
    traits = traits_of(op)
    if traits.product is not None and traits.product.axes is not None:
        return plan_product(traits, d, wanted, count, attributes, known)
    if traits.spatial:
        return plan_windows(op, d, wanted, known, attributes)
    if traits.reduces:
        return _reduce(op, d, wanted, count, attributes, known)
    definition = operator(op)
    if definition is not None and definition.kind is Kind.ELEMENTWISE:
        return _elementwise(op, d, wanted, count, known)
    return [Operand(k or wanted) for k in known]


def _elementwise(op: str, d: Sampler, wanted: Shape, count: int, known: Known) -> list[Operand]:
    first = next((k for k in known if k is not None), wanted)
    full = d.integer(0, min(count, traits_of(op).operands or count) - 1)
    shapes: list[Shape] = []
    for i, shape in enumerate(known):
        if shape is not None:
            shapes.append(shape)
        elif 0 < traits_of(op).operands <= i:  # single numbers
            shapes.append(())
        elif i == full or first is not wanted:
            shapes.append(d.broadcast_with(first) if first is not wanted and d.chance(0.3) else first)
        else:
            shapes.append(d.broadcast_with(first))
    return [Operand(s, "bool" if i in traits_of(op).truths else "data") for i, s in enumerate(shapes)]


@plan(FUSED_MATMUL)
def _fused_matmul(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    planned = plan_product(traits_of("MatMul"), d, wanted, count, {}, known)
    flags = (attributes.get("transA"), attributes.get("transB"))
    return [
        o if k or not flag else replace(o, shape=(*o.shape[:-2], *o.shape[:-3:-1]))
        for o, k, flag in zip(planned, known, flags, strict=True)
    ]


@plan("Transpose")
def _transpose(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    if known[0] is not None:
        attributes.setdefault("perm", d.permutation(len(known[0])))
        return [Operand(known[0])]
    perm = attributes.setdefault("perm", d.permutation(len(wanted)))
    if len(perm) != len(wanted):
        wanted = d.extents(len(perm))
    shape = [0] * len(perm)
    for to, source in enumerate(perm):
        shape[source] = wanted[to]
    return [Operand(tuple(shape))]


@plan(FUSED_CONV)
def _fused_conv(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    planned = plan_product(traits_of("Conv"), d, wanted, min(count, 3), attributes, known[:3])
    convolution = Attributes({k: v for k, v in attributes.items() if k in CONV})
    types = [TensorType(DType.FLOAT, o.shape) for o in planned]
    result: Any = defined("Conv").infer(Application("Conv", convolution, types))[0].shape
    return [*planned, *(Operand(k or result) for k in known[3:])]


@plan("LayerNormalization", "RMSNormalization")
def _normalised(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = known[0] or (wanted if len(wanted) > 1 else d.shape(2, 4))
    axis = attributes.setdefault("axis", d.choose((-1, -1, -2)))
    return [Operand(shape), *(Operand(k or shape[axis:]) for k in known[1:])]


@plan("BatchNormalization")
def _batch_norm(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = known[0] or (wanted if len(wanted) > 1 else d.shape(2, 4))
    kinds = ("data", "data", "data", "data", "positive")
    return [Operand(shape), *(Operand(shape[1:2], kinds[i]) for i in range(1, count))]


def _reduce(op: str, d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = known[0] or (wanted if wanted else d.shape(1, 3))
    axis = d.integer(0, max(len(shape) - 1, 0))
    if known[0] is None and not attributes.get("keepdims", 1):
        axis = d.integer(0, len(wanted))
        shape = (*wanted[:axis], d.integer(2, 6), *wanted[axis:])
    if known[0] is None and traits_of(op).sources and d.chance(0.2):  # the greatest of nothing
        shape = (*shape[:axis], 0, *shape[axis + 1 :])
    return [Operand(shape), indices([axis - len(shape) if d.chance(0.3) else axis])][:count]


@plan("Reshape")
def _reshape(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    cut, source, target = d.integer(0, len(wanted)), known[0], list(wanted)
    if source is not None:
        target = list(d.choose([(math.prod(source),), (1, *source), source]))
    else:
        source = d.choose([(math.prod(wanted[:cut]), math.prod(wanted[cut:])), (math.prod(wanted),), (*wanted, 1)])
    if target and d.chance(0.3):  # extents that are copied, and one that follows from the others
        target = [0 if source[i : i + 1] == (n,) and d.chance() else n for i, n in enumerate(target)]
        target[d.integer(0, len(target) - 1)] = -1
    return [Operand(source), indices(target)]


@plan("Expand")
def _expand(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    return [Operand(known[0] or d.broadcast_of(wanted)), indices(known[0] or wanted)]


@plan("Squeeze")
def _squeeze(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    axis = d.integer(0, len(wanted))
    return [Operand((*wanted[:axis], 1, *wanted[axis:])), indices([axis])][:count]


@plan("Unsqueeze")
def _unsqueeze(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = known[0] or wanted[1:]
    return [Operand(shape), indices([d.integer(0, len(shape))])]


@plan("Concat")
def _concat(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = next((k for k in known if k), wanted or (3,))
    axis = attributes["axis"] = attributes.get("axis", d.integer(0, len(shape) - 1))
    at: int = axis % len(shape)
    alike = d.chance(0.3)
    return [Operand(k or (*shape[:at], shape[at] if alike else d.integer(1, 5), *shape[at + 1 :])) for k in known]


@plan("Split")
def _split(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = known[0] or wanted or (2,)
    parts = int(attributes.get("num_outputs", 2))
    axis: int = attributes.setdefault("axis", d.integer(0, len(shape) - 1)) % len(shape)
    if count == 1:
        attributes.setdefault("num_outputs", parts)
        return [Operand(known[0] or (*shape[:axis], shape[axis] * parts, *shape[axis + 1 :]))]
    sizes = [d.integer(1, 4) for _ in range(parts)]
    return [Operand((*shape[:axis], sum(sizes), *shape[axis + 1 :])), indices(sizes)]


@plan("Slice")
def _slice(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    """Some axes in any spelling, in steps where these are an input; at times nothing of one, or one backward."""
    shape = known[0] or wanted or (4,)
    cut = d.subset(range(len(shape)), 0.6) or [0]
    bounds: list[tuple[int, int, int, int]] = []
    for axis in cut if count > 3 else range(len(cut)):
        extent = shape[axis]
        first, step = d.integer(0, max(extent - 1, 0)), d.choose((1, 1, 2)) if count > 4 else 1
        last = extent if d.chance() or not extent else d.integer(first + 1, extent)
        last = first if d.chance(0.05) else 2**31 - 1 if last == extent and d.chance() else last
        bounds.append((first - d.choose((0, 0, extent)), last, axis - d.choose((0, 0, 0, len(shape))), step))
    if count > 4 and d.chance(0.15):
        bounds = [(-1, -(2**63), cut[0], -1)]
    return [Operand(shape), *map(indices, zip(*bounds, strict=True))][:count]


@plan("Gather")
def _gather(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = known[0] or wanted or (4,)
    axis: int = attributes.get("axis", 0) % len(shape)
    if d.chance(0.4):
        place = np.asarray(d.integer(-shape[axis], shape[axis] - 1), np.int64)
        return [Operand(shape), Operand((), "fixed", place)]
    return [Operand(shape), indices([d.integer(0, shape[axis] - 1) for _ in range(d.integer(1, 4))])]


@plan("Pad")
def _pad(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    """Mostly of spatial axes, at times with less than nothing."""
    rank = len(known[0] or wanted)
    anywhere = d.chance(0.12)
    pads = [d.integer(0, 1) if i % max(rank, 1) > 1 or anywhere else 0 for i in range(2 * rank)]
    if rank and d.chance(0.1):
        pads[d.integer(0, 2 * rank - 1)] = -1
    shape = known[0] or tuple(max(n - pads[i] - pads[i + rank], 1) for i, n in enumerate(wanted))
    axes = d.permutation(rank) if count > 3 else range(rank)
    both = [pads[a + side] for side in (0, rank) for a in axes]
    return [Operand(shape), indices(both), Operand(()), indices(axes)][:count]


@plan("CastLike")
def _cast_like(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    return [Operand(known[0] or wanted), Operand(known[1] or d.shape(), "other")]


@plan("Tile")
def _tile(d: Sampler, wanted: Shape, count: int, attributes: Stated, known: Known) -> list[Operand]:
    shape = known[0] or wanted
    most = 1 if d.chance() else 2
    return [Operand(shape), indices([d.integer(1, most) for _ in shape])]
