"""Products side by side as one batch: right operands of one shape stacked, or left operands of one right operand in one.

Both are further ways to have one kernel instead of many, beside the wide product of `eqsat.rules.parallel.products`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from eqsat.exactness import Exactness
from eqsat.rewrite import GroupView, Merge, Ref, apply, group_rule
from eqsat.rules.parallel.products import Branch, Products, computed_from, matmuls
from eqsat.rules.terms import int64s
from eqsat.samples import Drawing, Sampler, fixed

SOURCE = "block matrices; TVM CombineParallelDense"


def _stack_sample(d: Sampler) -> Any:
    """Products of one input by matrices, mostly of one shape."""
    drawing = Drawing()
    m, k, n, batch = d.extents(4, ones=0.2)
    x = drawing.value(d.floats(d.choose(((m, k), (batch, m, k)))))
    values = []
    for _ in range(d.integer(2, 4)):
        shape = d.choose(((k, n), (k, n), (k, n), (k, n + 1), (batch, k, n)))
        values.append(drawing.op("MatMul", x, drawing.value(d.either(d.floats(shape)))))
    return drawing.finish(*values)


@group_rule(exactness=Exactness.ROUNDING, source=SOURCE, sample=_stack_sample)
def stack_matmuls_of_one_input(view: GroupView) -> Iterator[Merge]:
    """``(x @ w1, x @ w2, ...) == Squeeze(Split(x @ Stack(w1, w2, ...)))`` for matrices of one shape that are computed.

    Of constant matrices the wide product is never dearer.
    """
    products = Products(view, matmuls(view))
    for group in products.groups(_shape_of_matrix):
        x, _, first = group[0]
        rank, count = x.rank, len(group)
        single = int64s([1] * (rank - 1) + [int(n) for n in first.static_shape])
        stacked = apply("Concat", *(apply("Reshape", w, single) for _, _, w in group), axis=0)
        wide = apply("MatMul", x, stacked)
        split = apply("Split", wide, int64s([1] * count), outputs=count, axis=0)
        for index, (_, node, _) in enumerate(group):
            yield node, apply("Squeeze", split.output(index), int64s([0]))


def _shape_of_matrix(branch: Branch) -> Hashable:
    w = branch[2]
    return (w.dtype, w.shape) if w.rank == 2 and w.type.is_static and not w.is_constant else None


def _rows_sample(d: Sampler) -> Any:
    """Products of several inputs by one matrix, mostly of as many axes; at times one in a chain with another."""
    drawing = Drawing()
    k, batch = d.extents(2, ones=0.1)
    w = drawing.value(d.either(d.floats((k, k)), 0.8))
    values = []
    for _ in range(d.integer(2, 3)):
        shape = d.choose(((d.integer(1, 4), k), (d.integer(1, 4), k), (batch, d.integer(1, 3), k)))
        source = values[-1] if values and d.chance(0.15) else drawing.value(d.floats(shape))
        values.append(drawing.op("MatMul", source, w))
    if d.chance(0.3):
        other = drawing.value(fixed(d.floats((k, 3))))
        values.append(drawing.op("MatMul", values[0], other))
    return drawing.finish(*values)


@group_rule(exactness=Exactness.ROUNDING, source=SOURCE, sample=_rows_sample)
def merge_matmuls_of_one_matrix(view: GroupView) -> Iterator[Merge]:
    """``(x1 @ w, x2 @ w, ...) == Split(Concat(x1, x2, ...) @ w)`` along the rows, for constant ``w`` of two axes.

    The inputs agree in all extents but the rows, and none is computed from another, or from one of the products.
    """
    alike: dict[Hashable, dict[int, Branch]] = {}
    for x, node, w in matmuls(view):
        if _has_rows(x, w):
            key = (w.handle, x.shape[:-2], x.dtype)
            alike.setdefault(key, {}).setdefault(node.handle, (x, node, w))
    for branches in alike.values():
        group = _independent(view, list(branches.values()))
        if len(group) > 1:
            yield from _in_one(group)


def _has_rows(x: Ref, w: Ref) -> bool:
    return w.is_constant and w.rank == 2 and isinstance(x.shape[-2], int) and x.shape[-2] > 0 and not x.is_constant


def _independent(view: GroupView, group: list[Branch]) -> list[Branch]:
    """The branches whose input is computed neither from a product nor from the input of another.

    The latter are mostly other forms of one product: ``(x + c) @ w`` is there as ``x @ w``, too.
    """
    if len(group) < 2:
        return group
    products = {node.handle for _, node, _ in group}
    inputs = {x.handle for x, _, _ in group}
    found = []
    for branch in group:
        x = branch[0]
        if not computed_from(view, [x], products | (inputs - {x.handle})) and not _is_joined(view, x):
            found.append(branch)
    return found


def _is_joined(view: GroupView, x: Ref) -> bool:
    """Whether ``x`` is several inputs side by side already."""
    return any(op == "Concat" for op, _ in view.spellings(x))


def _in_one(group: list[Branch]) -> Iterator[Merge]:
    x, node, w = group[0]
    axis = x.rank - 2
    product = apply("MatMul", apply("Concat", *(x for x, _, _ in group), axis=axis), w)
    sizes = int64s(int(x.shape[-2]) for x, _, _ in group)
    split = apply("Split", product, sizes, outputs=len(group), axis=axis)
    for index, (_, node, _) in enumerate(group):
        yield node, split.output(index)
