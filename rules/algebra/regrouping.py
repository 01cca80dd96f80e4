"""Associativity towards what exists: a sum or product is regrouped where a part of the new grouping is computed anyway.

Nothing but the regrouped operator is new, and all its operands are e-classes that exist: so this ends, and adds few e-nodes.
Spellings of one structure meet so that share a value: ``x + (r - mean)`` with ``(x + r) - mean`` where ``mean`` is that of
``x + r``, ``x * (c * g)`` with ``(x * c) * g`` where ``x * c`` is used beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import GroupView, Merge, Ref, Unmet, apply, group_rule
from eqsat.rules.algebra.associativity import is_ordinary_factor, is_ordinary_summand
from eqsat.rules.terms import mul
from eqsat.samples import Drawing, Instance, Sampler, fixed

SOURCE = "associativity over the reals"

Existing = dict[tuple[int, int], Ref]
"""The handles of two operands in either order -> the value that combines them."""


def _existing(view: GroupView, op: str) -> Existing:
    found: Existing = {}
    for node, (a, b) in view.nodes(op):
        assert a is not None
        assert b is not None
        found.setdefault((a.handle, b.handle), node)
        found.setdefault((b.handle, a.handle), node)
    return found


def _operands(view: GroupView, op: str, *, constants: bool = False) -> Iterator[tuple[Ref, Ref, Ref]]:
    """Each ``op`` of floats with its operands, in both orders. ``constants``: those with two constant operands, too."""
    for node, (a, b) in view.nodes(op):
        assert a is not None
        assert b is not None
        if node.type.dtype.is_float and (constants or not node.is_constant):
            yield node, a, b
            yield node, b, a


def _ordinary(values: tuple[Ref, ...], is_ordinary: Callable[[Ref], bool], most: int = 1) -> bool:
    """Whether at most ``most`` of the values are constant, and those of ordinary size."""
    constants = [v for v in values if v.is_constant]
    try:
        return len(constants) <= most and all(map(is_ordinary, constants))
    except Unmet:
        return False


def _draw_sum(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.shape(1, 3)
    dtype = d.choose(("float32", "float32", "float16", "int32"))
    values = []
    huge = d.integer(0, 2) if d.chance(0.1) else -1  # rounds off what it is added to
    for i in range(3):
        own = d.broadcast_with(shape) if d.chance(0.3) else shape
        array = d.integers(own, dtype, -99, 99) if dtype == "int32" else d.floats(own, dtype, infinite=d.chance(0.1))
        if i == huge and dtype == "float32":
            array = np.full_like(array, 12582912)
        values.append(drawing.value(d.either(array, 0.9 if i == huge else 0.15)))
    a, b, c = values
    inner = drawing.op(d.choose(("Add", "Sub")), *((b, c) if d.chance(0.7) else (c, b)))
    root = drawing.op("Add", *((a, inner) if d.chance() else (inner, a)))
    return drawing.finish(root, *([drawing.op("Add", b, a)] if d.chance(0.9) else []), *d.subset([inner], 0.3))


@group_rule(exactness=Exactness.ROUNDING, source=SOURCE, sample=_draw_sum)
def regroup_sum_around_existing(view: GroupView) -> Iterator[Merge]:
    """``a + (b + c) == (a + b) + c`` and ``a + (b - c) == (a + b) - c`` where ``a + b`` exists, constants of ordinary size."""
    existing = _existing(view, "Add")
    inner: dict[int, list[tuple[str, Ref, Ref]]] = {}
    for node, b, c in _operands(view, "Add"):
        inner.setdefault(node.handle, []).append(("Add", b, c))
    for node, (b, c) in view.nodes("Sub"):
        assert b is not None
        assert c is not None
        inner.setdefault(node.handle, []).append(("Sub", b, c))
    for node, a, middle in list(_operands(view, "Add")):
        for op, b, c in inner.get(middle.handle, ()):
            found = existing.get((a.handle, b.handle))
            if found is None or node.handle in (a.handle, middle.handle, found.handle):
                continue
            if _ordinary((a, b, c), is_ordinary_summand):
                yield node, apply(op, found, c)


def _draw_product(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.shape(1, 3)
    dtype = d.choose(("float32", "float32", "float16"))
    x, g = (drawing.value(d.floats(shape, dtype, infinite=d.chance(0.1))) for _ in range(2))
    factor = d.scale(d.broadcast_with(shape) if d.chance(0.3) else (), dtype)
    if d.chance(0.15):  # so small that the product with the value is 0
        factor = factor * d.choose((1e-7, 1e-30))
    c = drawing.value(d.either(fixed(factor.astype(dtype)).array, 0.9))
    a, b, c = d.choose(((x, c, g), (c, x, g), (x, g, c)))
    if d.chance(0.2):
        a, b, c = x, *(drawing.value(fixed(d.scale(form, dtype))) for form in ((), shape[-1:]))
    root = drawing.op("Mul", a, drawing.op("Mul", *((b, c) if d.chance() else (c, b))))
    return drawing.finish(root, *([drawing.op("Mul", b, a)] if d.chance(0.9) else []))


@group_rule(exactness=Exactness.ROUNDING, source=SOURCE, sample=_draw_product)
def regroup_product_around_existing(view: GroupView) -> Iterator[Merge]:
    """``a * (b * c) == (a * b) * c`` where ``a * b`` exists.

    One of the three is a constant of ordinary size, or ``b`` is a number and ``c`` a vector: ``sum * (1 / n * gain)`` has a mean
    in it.
    """
    existing = _existing(view, "Mul")
    inner: dict[int, list[tuple[Ref, Ref]]] = {}
    for node, b, c in _operands(view, "Mul", constants=True):
        inner.setdefault(node.handle, []).append((b, c))
    for node, a, middle in list(_operands(view, "Mul")):
        for b, c in inner.get(middle.handle, ()):
            found = existing.get((a.handle, b.handle))
            if found is None or not any(v.is_constant for v in (a, b, c)):
                continue
            if node.handle in (a.handle, middle.handle, found.handle) or middle.handle == c.handle:
                continue
            if middle.is_constant and not _is_number_times_vector(b, c):
                continue
            most = 2 if middle.is_constant else 1
            if found.handle != a.handle and _ordinary((a, b, c), is_ordinary_factor, most):
                yield node, mul(found, c)


def _is_number_times_vector(b: Ref, c: Ref) -> bool:
    """Whether a product of constants is that of a number and others; any others would be taken apart in ever new ways."""
    try:
        return b.type.size == 1 and c.type.size != 1
    except Unmet:
        return False


__all__ = ["regroup_product_around_existing", "regroup_sum_around_existing"]
