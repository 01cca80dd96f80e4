"""The forms in which the operator takes a mask: as numbers, as truth values, or as causality.

Finite numbers stay finite; those from `MASK_FLOOR` on, the lowest of which ONNX Runtime takes for minus infinity, are raised to
it if they are all the same, and what is added is then the same to the last bit as long as the scores stay below 1e30.

Of other masks, those of which nothing is known among them, rows in which all is low are shifted, see `_shifted`: that takes three
more operators and leaves ordinary rows as they are. In half precision there is no room to know more: a mask of known numbers is
small there, or leaves every row open.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.ir.types import Dim, DType
from eqsat.rewrite import GroupView, Ref, Term, apply, literal
from eqsat.rules.attention.elements import is_causal
from eqsat.rules.attention.magnitudes import ABSORBING, FORBIDDING, LOW_ROW, MASK_FLOOR, SMALL
from eqsat.rules.attention.masks import Mask, mask_of_elements
from eqsat.rules.attention.triangles import Sides, spans
from eqsat.rules.terms import add, by_class, complete_nodes, int64s, sub

Form = tuple[Mask | None, dict[str, Any]]
"""The mask that the operator is given, if any, and attributes."""


def forms(mask: Mask, dtype: DType, queries: Dim, keys: Dim, *, guarded: bool) -> Iterator[Form]:
    """The mask as an operator on elements of ``dtype`` may take it: as numbers, as truth values, or as causality.

    ``guarded``: rows in which every key is forbidden give zeros. Of equally good forms the first is taken; in float16 there
    may be none.
    """
    if mask.levels == frozenset((0.0,)):
        yield None, {}
        return
    if mask.unknown or (mask.infinite and not (mask.is_open or guarded)):
        if dtype is mask.dtype and dtype in LOW_ROW and (mask.unknown or dtype is DType.FLOAT or mask.leaves_digits()):
            yield _shifted(mask), {}
        return
    if mask.array is not None and is_causal(mask.array, queries, keys, forbidding=FORBIDDING[mask.dtype]):
        yield None, {"is_causal": 1}
        return
    earlier = mask.sides is not None and _forbids_later(mask.sides, mask.dtype)
    if earlier and all(map(spans, mask.shape[-2:], (queries, keys))):
        yield None, {"is_causal": 1}
        return
    if mask.allowed is not None and mask.infinite:
        yield replace(mask, term=mask.allowed, dtype=DType.BOOL), {}
    numbers = _with_infinities(mask, dtype) if mask.infinite else _finite(mask, dtype)
    if numbers is not None:
        yield numbers, {}


def _forbids_later(sides: Sides, dtype: DType) -> bool:
    below, on, above = sides
    return below == on == 0 and above <= FORBIDDING[dtype]


def _finite(mask: Mask, dtype: DType) -> Mask | None:
    if dtype is DType.FLOAT16 or (dtype is DType.BFLOAT16 and not _absorbs_all(mask)):
        return _finite_half(mask, dtype)
    if mask.least >= MASK_FLOOR and not (mask.replaces and mask.least > ABSORBING):
        return mask
    raised = _raised(mask)
    return _shifted(mask) if raised is None else replace(mask, term=raised)


def _raised(mask: Mask) -> Term | None:
    """The mask with `MASK_FLOOR` in place of the one number below it, if it is one, or no row has such numbers only."""
    low = mask.levels if mask.array is None else frozenset(np.unique(mask.array[mask.array <= MASK_FLOOR]).tolist())
    if low is not None and not mask.is_open and sum(x <= MASK_FLOOR for x in low) > 1:
        return None
    if mask.raised is not None:
        return mask.raised
    if low is not None or mask.is_open:
        return apply("Max", mask.term, literal(MASK_FLOOR, mask.dtype))
    for near, far in (mask.parts, mask.parts[::-1]) if mask.parts else ():
        raised = _raised(far) if near.is_absorbed() else None
        if raised is not None:
            return add(near.term, raised)
    return None


def _absorbs_all(mask: Mask) -> bool:
    """Whether scores beside the numbers are whole, or nothing is left of them, in whatever precision."""
    found = mask.numbers()
    return found is not None and all(x <= ABSORBING or abs(x) <= SMALL for x in found)


def _finite_half(mask: Mask, dtype: DType) -> Mask | None:
    if mask.is_small() or mask.as_scores:
        return _cast(mask, dtype)
    if mask.array is None or not mask.is_open:
        return None
    array = np.where(mask.array <= FORBIDDING[dtype], -np.inf, mask.array)
    forbidding = mask_of_elements(literal(array, dtype), mask.shape, dtype, array)
    return _with_infinities(forbidding, dtype) if forbidding.is_open else None


def _with_infinities(mask: Mask, dtype: DType) -> Mask | None:
    if dtype is not DType.FLOAT:
        return _cast(mask, dtype) if mask.leaves_digits() else None
    return mask if mask.least >= MASK_FLOOR or (mask.is_open and mask.array is not None) else None


def _shifted(mask: Mask) -> Mask:
    """The mask ``m - f(r)`` for the greatest number ``r`` of each row, where ``f`` is 0 for ordinary numbers.

    A softmax is the same for a row to which one number was added, and takes nothing of the scores in where that row is
    as far from zero as `LOW_ROW`. A row of minus infinities becomes NaN, as do those with NaN or infinity among them.
    """
    largest = mask.term
    if mask.shape and mask.shape[-1] != 1:
        largest = apply("ReduceMax", largest, int64s((-1,)), keepdims=1)
    low = LOW_ROW[mask.dtype]
    return replace(mask, term=sub(mask.term, apply("Shrink", largest, lambd=low, bias=low)))


def _cast(mask: Mask, dtype: DType) -> Mask:
    return mask if mask.dtype is dtype else replace(mask, term=apply("Cast", mask.term, to=int(dtype)), dtype=dtype)


def before_shift(view: GroupView) -> dict[int, list[Term]]:
    """By class of a mask as `_shifted` makes it, or as it is repeated: the mask before that.

    Of a softmax both make the same, over the reals, and NaN of a row of minus infinities.
    """
    largest = {(node.handle, x.handle) for node, x in _largest_of_rows(view)}
    shrunk = by_class((node, x.handle) for node, (x,) in complete_nodes(view, "Shrink"))
    found: dict[int, list[Term]] = {}
    for node, (mask, less) in complete_nodes(view, "Sub"):
        single = mask.type.shape is not None and mask.shape[-1:] in ((), (1,))
        rows = shrunk.get(less.handle, ())
        if any((row, mask.handle) in largest or (single and row == mask.handle) for row in rows):
            found.setdefault(node.handle, []).append(mask)
    for node, (shifted, extents) in complete_nodes(view, "Expand"):
        masks = [mask for mask in found.get(shifted.handle, ()) if isinstance(mask, Ref)]
        if masks and shifted.handle != node.handle:
            found.setdefault(node.handle, []).extend(apply("Expand", mask, extents) for mask in masks)
    return found


def _largest_of_rows(view: GroupView) -> Iterator[tuple[Ref, Ref]]:
    """What has the greatest element of each row of a value, and the value."""
    for node, (x, *given) in complete_nodes(view, "ReduceMax"):
        axes = [int(a) for a in given[0].value.reshape(-1)] if given and given[0].is_constant else []
        if x.type.rank and len(axes) == 1 and axes[0] % x.rank == x.rank - 1 and node.attr("keepdims", 1):
            yield node, x
