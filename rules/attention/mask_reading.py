"""Masks as the e-graph has them: values that are added to the scores, and numbers that take their place."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Ref, Term, apply, literal
from eqsat.rules.attention.elements import bounds_of, elements_of, is_of_products, least_row_of, levels_of
from eqsat.rules.attention.magnitudes import ABSORBING, FORBIDDING, LARGEST, MASK_FLOOR
from eqsat.rules.attention.masks import (
    REPLACED,
    Mask,
    broadcast,
    mask_as_scores,
    mask_of_elements,
    unknown_mask,
)
from eqsat.rules.attention.reading import Reader
from eqsat.rules.attention.scores import Step, is_number
from eqsat.rules.attention.triangles import of_condition, sides_of


def added_mask(reader: Reader, mask: Ref, around: frozenset[int] = frozenset()) -> Mask:
    """A value that is added to the scores. ``around``: e-classes of which it is a part: ``0 + m`` is in the e-class of ``m``."""
    array = elements_of(reader, mask)
    if array is not None:
        return mask_of_elements(mask, mask.shape, mask.dtype, array)
    sides = sides_of(reader, mask)
    levels = levels_of(reader, mask) if sides is None else frozenset(sides)
    bounds = (*mask.interval, False) if levels is None else bounds_of(np.array(sorted(levels)))
    if bounds is None or not -LARGEST <= bounds[0] <= bounds[1] <= LARGEST:
        make = mask_as_scores if is_of_products(reader, mask) else unknown_mask
        return make(mask, mask.shape, mask.dtype)
    least, _, infinite = bounds
    raised = _raised_choice(reader, mask) if least < MASK_FLOOR and not infinite else None
    allowed = _truth_values(reader, mask) if infinite else None
    row = least_row_of(reader, mask)
    parts = _summands(reader, mask, around | {mask.handle}) if levels is None else ()
    found = Mask(mask, mask.shape, mask.dtype, *bounds, None, levels, row, allowed, raised=raised, parts=parts)
    return found.with_sides(sides)


def _summands(reader: Reader, mask: Ref, around: frozenset[int]) -> tuple[Mask, ...]:
    """The two masks that a mask is the sum of, where few numbers are in one of them.

    ``Where(c, m, v) == m + Where(c, 0, v)`` for a number ``v`` beside which nothing of ``m`` is left.
    """
    for _, _, inputs in reader.nodes(mask, "Add"):
        if around.isdisjoint(x.handle for x in inputs) and any(levels_of(reader, x) is not None for x in inputs):
            return tuple(added_mask(reader, x, around) for x in inputs)
    for condition, number, other, swapped in _choices(reader, mask):
        if other.handle in around:
            continue
        levels = frozenset((0.0, number.low))
        chosen = _choice(condition, number.low, mask.dtype, swapped)
        far = Mask(chosen, condition.shape, mask.dtype, number.low, 0.0, levels=levels)
        near = added_mask(reader, other, around)
        step = float(np.nextafter(number.value.reshape(()), number.dtype.numpy.type(0))) - number.low
        if max(-near.least, near.high) < step / 4:
            return near, far
    return ()


def _choices(reader: Reader, mask: Ref) -> Iterator[tuple[Ref, Ref, Ref, bool]]:
    """Condition, number and other branch of a choice between a forbidding number, where the condition holds if the last is true,
    and what is no number."""
    for _, _, (condition, a, b) in reader.nodes(mask, "Where"):
        for other, number, swapped in ((a, b, False), (b, a, True)):
            if is_number(number) and not is_number(other) and number.low <= FORBIDDING[mask.dtype]:
                yield condition, number, other, swapped


def selecting_mask(reader: Reader, step: Step, *, lowered: bool) -> Mask:
    """``Where(c, s, v) == s + Where(c, 0, v)``, assuming a ``v`` so low that nothing of ``s`` is left beside it.

    ``lowered``: any lower number does as well in place of ``v``.
    """
    condition, number, value = _selection(step)
    value = min(value, ABSORBING) if lowered else value
    dtype = number.dtype
    infinite = value == -math.inf
    term = _choice(condition, value, dtype, step.swapped)
    floor = value if dtype is DType.FLOAT16 else max(min(value, ABSORBING), MASK_FLOOR)
    raised = term if infinite else _choice(condition, floor, dtype, step.swapped)
    holds = elements_of(reader, condition)
    if holds is not None:
        array = np.where(holds, value, 0.0) if step.swapped else np.where(holds, 0.0, value)
        found = mask_of_elements(term, condition.shape, dtype, array, replaces=not infinite, raised=raised)
    elif infinite:
        allowed = apply("Not", condition) if step.swapped else condition
        found = Mask(term, condition.shape, dtype, 0.0, 0.0, True, allowed=allowed)
    else:
        found = Mask(term, condition.shape, dtype, min(value, 0.0), max(value, 0.0), replaces=True, raised=raised)
    if holds is None:
        sides = sides_of(reader, condition)
        sides = sides and of_condition(sides, *((value, 0.0) if step.swapped else (0.0, value)))
        found = replace(found, levels=frozenset((0.0, value))).with_sides(sides)
    return found.assuming(lowered or lowest_of(step) <= FORBIDDING[dtype], REPLACED)


def selected_mask(mask: Mask, step: Step) -> Mask:
    """The mask where scores with it are replaced by a number: `selecting_mask` where the two cannot be added."""
    condition, number, value = _selection(step)
    term = apply("Where", condition, *((number, mask.term) if step.swapped else (mask.term, number)))
    shape = broadcast(mask.shape, condition.shape)
    found = unknown_mask(term, shape, mask.dtype, replaces=value > -math.inf, doubts=mask.doubts)
    return found.assuming(lowest_of(step) <= ABSORBING, REPLACED)


def lowest_of(step: Step) -> float:
    """The number that replaces scores in a choice."""
    return float(step.operands[1].value.reshape(()))


def _selection(step: Step) -> tuple[Ref, Ref, float]:
    """Condition and number of a choice between the scores and a number, and what that is in effect: minus infinity, if the
    probabilities are zeros there."""
    condition, number = step.operands
    return condition, number, -math.inf if step.op == "Forbid" else lowest_of(step)


def _choice(condition: Ref, value: float, dtype: DType, swapped: bool) -> Apply:
    zero, low = literal(0.0, dtype), literal(value, dtype)
    return apply("Where", condition, *((low, zero) if swapped else (zero, low)))


def _truth_values(reader: Reader, mask: Ref) -> Term | None:
    """``c`` of ``Where(c, 0, -inf)``, negated if the branches are exchanged, where it has all axes of the mask."""
    for _, _, (condition, a, b) in reader.nodes(mask, "Where"):
        if condition.shape == mask.shape and {a.interval, b.interval} == {(0.0, 0.0), (-math.inf, -math.inf)}:
            return condition if b.interval[0] < 0 else apply("Not", condition)
    return None


def _raised_choice(reader: Reader, mask: Ref) -> Term | None:
    """A choice between a number and what is absorbed by it, or another one, with the number raised to the floor at once."""
    floor = literal(MASK_FLOOR, mask.dtype)
    for _, _, (condition, a, b) in reader.nodes(mask, "Where"):
        if a.is_constant and b.is_constant:
            return apply("Where", condition, apply("Max", a, floor), apply("Max", b, floor))
    for condition, number, other, swapped in _choices(reader, mask):
        if number.low <= MASK_FLOOR and added_mask(reader, other).is_absorbed():
            return apply("Where", condition, *((floor, other) if swapped else (other, floor)))
    return None
