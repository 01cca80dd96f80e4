"""What follows every part of a Split alike moves before the Split: biases, scales, functions of single elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import operator, traits_of
from eqsat.rewrite import PROJECTION, Apply, GroupView, Merge, Ref, Unmet, apply, group_rule, literal
from eqsat.rules.linear.alignment import spread
from eqsat.rules.parallel.products import split_last
from eqsat.samples import Drawing, Sampler, fixed
from eqsat.samples.linear import shape_along

Parts = tuple[Ref, list[int], list[Ref], int]
"""Value that is cut, extents of the parts, the parts in order, axis counted from the front."""


def _cuts(view: GroupView) -> Iterator[Parts]:
    """Every Split whose sizes are known and whose parts all exist."""
    for split, inputs in view.nodes("Split"):
        value = inputs[0]
        sizes = inputs[1] if len(inputs) > 1 else None
        if value is None or sizes is None:
            continue
        by_index: dict[int, Ref] = {}
        for op, user, _ in view.users(split):
            if op == PROJECTION:
                by_index[int(user.attr("index"))] = user
        try:
            extents = [int(n) for n in sizes.value.reshape(-1)]
            axis = split.attr("axis", 0) % value.rank
        except Unmet:
            continue
        if len(by_index) == len(extents) > 1:
            yield value, extents, [by_index[i] for i in range(len(extents))], axis


def _sample(d: Sampler, ops: Sequence[str], *, last: bool) -> Any:
    """A Split, mostly along the last axis, with the same operator behind most parts."""
    drawing = Drawing()
    rank = d.integer(1, 3)
    sizes = [d.integer(1, 4) for _ in range(d.integer(2, 4))]
    axis = rank - 1 if last and d.chance(0.85) else d.integer(0, rank - 1)
    shape = [*d.extents(rank)]
    shape[axis] = sum(sizes)
    value = drawing.value(d.floats(shape))
    parts = drawing.op(
        "Split", value, drawing.value(fixed(sizes, "int64")), outputs=len(sizes), axis=d.choose((axis, axis - rank))
    )
    common = d.choose(ops)
    results = [
        _behind(d, drawing, d.choose(ops) if d.chance(0.1) else common, p, (*shape[:axis], n, *shape[axis + 1 :]))
        for p, n in zip(parts, sizes, strict=True)
    ]
    return drawing.finish(*results, *d.subset(parts, 0.2))


def _behind(d: Sampler, drawing: Drawing, op: str, part: str, shape: Sequence[int]) -> str:
    if traits_of(op).operands == 1:
        return drawing.op(op, part)
    operand = drawing.value(d.either(d.floats(shape_along(d, shape, -1)), 0.95))
    return drawing.op(op, *((part, operand) if d.chance() else (operand, part)))


@group_rule(
    exactness=Exactness.EXACT,
    source="a function of single elements does not see its neighbours",
    sample=partial(_sample, ops=("Relu", "Tanh", "Neg", "Erf"), last=False),
)
def merge_activations_of_one_split(view: GroupView) -> Iterator[Merge]:
    """``(f(p1), f(p2), ...) == Split(f(v))`` where ``(p1, p2, ...) == Split(v)``, for one function of single elements."""
    for value, sizes, parts, axis in _cuts(view):
        readers = [_unary_readers(view, part) for part in parts]
        for key in readers[0]:
            op, attributes = key
            if all(key in found for found in readers):
                inner = Apply(op, (value,), attributes)
                split = apply("Split", inner, literal(np.array(sizes, np.int64)), outputs=len(sizes), axis=axis)
                for index, found in enumerate(readers):
                    yield found[key], split.output(index)


def _unary_readers(view: GroupView, part: Ref) -> dict[tuple[str, Attributes], Ref]:
    found: dict[tuple[str, Attributes], Ref] = {}
    for op, user, inputs in view.users(part):
        if len(inputs) == 1 and traits_of(op).operands == 1 and not traits_of(op).converts:
            found.setdefault((op, user.attributes), user)
    return found


@group_rule(
    exactness=Exactness.EXACT,
    source="addition of single elements",
    sample=partial(_sample, ops=("Add",), last=True),
)
def merge_biases_of_one_split(view: GroupView) -> Iterator[Merge]:
    """``(p1 + b1, p2 + b2, ...) == Split(v + Concat(b1, b2, ...))`` where ``(p1, p2, ...) == Split(v)`` on the last axis.

    Each ``b`` is constant and lies along the last axis; a single number is repeated for every column of its part.
    """
    yield from _merge_constants(view, "Add")


@group_rule(
    exactness=Exactness.EXACT,
    source="multiplication of single elements",
    sample=partial(_sample, ops=("Mul",), last=True),
)
def merge_scales_of_one_split(view: GroupView) -> Iterator[Merge]:
    """``(p1 * s1, p2 * s2, ...) == Split(v * Concat(s1, s2, ...))`` where ``(p1, p2, ...) == Split(v)`` on the last axis.

    Each ``s`` is constant and lies along the last axis; a single number is repeated for every column of its part.
    """
    yield from _merge_constants(view, "Mul")


def _merge_constants(view: GroupView, op: str) -> Iterator[Merge]:
    for value, sizes, parts, axis in _cuts(view):
        if axis != value.rank - 1:
            continue
        found = [_constant_reader(view, op, part, size) for part, size in zip(parts, sizes, strict=True)]
        if any(pair is None for pair in found):
            continue
        pairs = [pair for pair in found if pair is not None]
        vectors = [spread(operand, size) for (_, operand), size in zip(pairs, sizes, strict=True)]
        split = split_last(apply(op, value, apply("Concat", *vectors, axis=0)), value.rank, sizes)
        for index, (reader, _) in enumerate(pairs):
            yield reader, split.output(index)


def _constant_reader(view: GroupView, op: str, part: Ref, size: int) -> tuple[Ref, Ref] | None:
    """The oldest ``op`` of ``part`` and a constant along its last axis, with that constant; a neutral one last of all."""
    neutral: tuple[Ref, Ref] | None = None
    for name, user, inputs in view.users(part):
        if name != op or len(inputs) != 2:
            continue
        for own, other in (inputs, inputs[::-1]):
            if own is not None and other is not None and own.handle == part.handle and _lies_last(other, part, size):
                if user.handle != part.handle:
                    return user, other
                neutral = neutral or (user, other)
    return neutral


def _lies_last(operand: Ref, part: Ref, size: int) -> bool:
    """Whether ``operand`` is constant, has one element or ``size`` along the last axis, and does not enlarge ``part``."""
    if not operand.is_constant or not operand.type.is_static or operand.rank > part.rank:
        return False
    extents = operand.static_shape
    return math.prod(extents[:-1]) == 1 and math.prod(extents) in (1, size)


def _pairs_sample(d: Sampler) -> Any:
    """Two or three Splits, mostly alike, with the same operator behind most pairs of parts."""
    drawing = Drawing()
    sizes = [d.integer(1, 3) for _ in range(d.integer(2, 3))]
    rows = d.integer(2, 4)
    cuts = []
    for _ in range(d.integer(2, 3)):
        own = list(sizes) if d.chance(0.8) else sizes[::-1]
        shape = (1 if d.chance(0.1) else rows, sum(own))
        names = drawing.value(d.floats(shape)), drawing.value(fixed(own, "int64"))
        cuts.append((own, drawing.op("Split", *names, outputs=len(own), axis=1)))
    op = d.choose(("Add", "Sub", "Mul"))
    (left, first), (right, second) = cuts[0], cuts[-1]
    results = [
        drawing.op(op, *((p, q) if d.chance(0.9) else (q, p)))
        for p, q, n, k in zip(first, second, left, right, strict=True)
        if n == k or 1 in (n, k)
    ]
    return drawing.finish(*results, *d.subset((*first, *second), 0.1), *([] if results else first))


@group_rule(
    exactness=Exactness.EXACT,
    source="a function of single elements does not see its neighbours",
    sample=_pairs_sample,
)
def merge_pairs_of_two_splits(view: GroupView) -> Iterator[Merge]:
    """``(f(p1, q1), f(p2, q2), ...) == Split(f(v, u))`` where ``(p1, ...) == Split(v)`` and ``(q1, ...) == Split(u)``.

    Both values have the same shape and are cut alike, so no part is broadcast.
    """
    cuts = list(_cuts(view))
    of_part: dict[int, list[int]] = {}
    for number, (_, _, parts, _) in enumerate(cuts):
        of_part.setdefault(parts[0].handle, []).append(number)
    for value, sizes, parts, axis in cuts:
        for op, _, inputs in view.users(parts[0]):
            if traits_of(op).operands < 2 or len(inputs) != 2 or inputs[0] is None or inputs[1] is None:
                continue
            if inputs[0].handle != parts[0].handle:
                continue
            for number in of_part.get(inputs[1].handle, ()):
                other, sizes2, parts2, axis2 = cuts[number]
                if (sizes, axis, value.type) != (sizes2, axis2, other.type):
                    continue
                readers = [_pair_reader(view, op, p, q) for p, q in zip(parts, parts2, strict=True)]
                if any(reader is None for reader in readers):
                    continue
                inner = apply(op, value, other)
                split = apply("Split", inner, literal(np.array(sizes, np.int64)), outputs=len(sizes), axis=axis)
                for index, reader in enumerate(readers):
                    assert reader is not None
                    yield reader, split.output(index)


def _pair_reader(view: GroupView, op: str, left: Ref, right: Ref) -> Ref | None:
    """The oldest ``op`` of two parts, in this order unless it does not matter."""
    definition = operator(op)
    commutes = definition is not None and definition.commutative
    for name, user, inputs in view.users(left):
        handles = [i.handle for i in inputs if i is not None]
        exchanged = commutes and handles == [right.handle, left.handle]
        if name == op and (handles == [left.handle, right.handle] or exchanged):
            return user
    return None
