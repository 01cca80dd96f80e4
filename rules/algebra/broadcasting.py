"""Broadcasting: what an operator broadcasts anyway need not be expanded before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.operator import operators_with
from eqsat.ir.types import Dim
from eqsat.rewrite import Apply, GroupView, Merge, Ref, Unmet, apply, group_rule
from eqsat.rules.views.transposes import is_broadcasting, is_elementwise
from eqsat.samples import Drawing, Instance, Sampler, fixed


def _broadcasts_to(operands: Sequence[Sequence[Dim]], result: Sequence[Dim]) -> bool:
    """Whether operands of these shapes give exactly ``result``: on each axis, each extent is that of the result or 1."""
    rank = len(result)
    if any(len(shape) > rank for shape in operands):
        return False
    for axis in range(rank):
        extents = [s[axis - rank + len(s)] for s in operands if axis >= rank - len(s)]
        if any(d not in (1, result[axis]) for d in extents) or result[axis] not in extents:
            return False
    return True


def _expanded(view: GroupView) -> dict[int, list[Ref]]:
    """Class of each Expand -> what is expanded; likewise for a Tile that repeats only axes of extent 1, and for a view that only
    adds leading axes."""
    found: dict[int, list[Ref]] = {}
    for op in ("Expand", "Tile"):
        for node, (x, _) in view.nodes(op):
            assert x is not None
            try:
                if x.handle != node.handle and _broadcasts_to([x.shape, node.shape], node.shape):
                    found.setdefault(node.handle, []).append(x)
            except Unmet:
                continue
    for node, (x, _) in view.nodes("Reshape"):
        try:
            if x is not None and x.rank < node.rank and node.shape == (1,) * (node.rank - x.rank) + tuple(x.shape):
                found.setdefault(node.handle, []).append(x)
        except Unmet:
            continue
    return found


def _draw(d: Sampler, op: str | None) -> Instance:
    drawing = Drawing()
    result = d.shape(2, 4, ones=0.05)
    small = (*d.broadcast_of(result[:-2]), *result[-2:]) if op == "MatMul" and d.chance(0.8) else d.broadcast_of(result)
    if d.chance(0.5):
        expanded = drawing.op("Expand", drawing.value(np.round(d.floats(small))), drawing.value(fixed(result, "int64")))
    else:
        repeats = [d.choose((1, n)) for n in result]
        source = [1 if r > 1 and d.chance(0.9) else n // r for n, r in zip(result, repeats, strict=True)]
        repeats = [n // s for n, s in zip(result, source, strict=True)]
        expanded = drawing.op("Tile", drawing.value(d.floats(source)), drawing.value(fixed(repeats, "int64")))
    if op == "MatMul":
        other = (*d.broadcast_of(result[:-2]), result[-1], d.integer(2, 6))
        if d.chance(0.6):
            other = (*result[:-2], *other[-2:])
        return drawing.finish(drawing.op(op, expanded, drawing.value(d.floats(other))))
    numbers = d.floats(result if d.chance(0.7) else d.broadcast_of(result))
    other = drawing.value(np.round(numbers) if d.chance() else numbers)
    operands = [expanded, other] if d.chance() else [other, expanded]
    chosen = d.choose(("Add", "Sub", "Mul", "Less", "Where"))
    if chosen == "Where":
        operands.insert(0, drawing.value(d.booleans(d.broadcast_of(result))))
    return drawing.finish(drawing.op(chosen, *operands))


_SOURCE = "ONNX multidirectional broadcasting"


@group_rule(exactness=Exactness.EXACT, source=_SOURCE, sample=lambda d: _draw(d, None))
def remove_expand_before_elementwise(view: GroupView) -> Iterator[Merge]:
    """``f(Expand(x), y) == f(x, y)`` for a broadcasting ``f`` whose result keeps its shape."""
    expanded = _expanded(view)
    for op in operators_with(is_broadcasting) if expanded else ():
        for node, inputs in view.nodes(op):
            for i, operand in enumerate(inputs):
                for x in expanded.get(operand.handle, ()) if operand is not None else ():
                    operands = [x if j == i else p for j, p in enumerate(inputs) if p is not None]
                    try:
                        if _broadcasts_to([p.shape for p in operands], node.shape):
                            yield node, Apply(op, tuple(operands), node.attributes)
                    except Unmet:
                        continue


@group_rule(exactness=Exactness.ROUNDING, source=_SOURCE, sample=lambda d: _draw(d, "MatMul"))
def remove_expand_before_matmul(view: GroupView) -> Iterator[Merge]:
    """``Expand(x) @ y == x @ y`` where only batch axes were expanded and the result keeps its shape."""
    expanded = _expanded(view)
    for node, inputs in view.nodes("MatMul") if expanded else ():
        for i, operand in enumerate(inputs):
            for x in expanded.get(operand.handle, ()) if operand is not None else ():
                operands = [x if j == i else p for j, p in enumerate(inputs) if p is not None]
                try:
                    matrices = x.rank >= 2 and operand is not None and x.shape[-2:] == operand.shape[-2:]
                    if matrices and _broadcasts_to([p.shape[:-2] for p in operands], node.shape[:-2]):
                        yield node, Apply("MatMul", tuple(operands))
                except Unmet:
                    continue


def _sinking(d: Sampler) -> Instance:
    drawing = Drawing()
    result = d.shape(1, 3)
    small = d.broadcast_of(result)
    chosen = d.choose(("Where", "Mul", "Neg", "Add"))
    value = d.booleans(small) if chosen == "Where" else d.floats(small)
    expanded = drawing.op("Expand", drawing.value(value), drawing.value(fixed(result, "int64")))
    extents = [() if d.chance(0.9) else result for _ in range(2)]
    others = [drawing.value(fixed(d.floats(e))) for e in extents[: {"Where": 2, "Neg": 0}.get(chosen, 1)]]
    return drawing.finish(drawing.op(chosen, expanded, *others))


@group_rule(exactness=Exactness.EXACT, source=_SOURCE, sample=_sinking)
def sink_expand_behind_elementwise(view: GroupView) -> Iterator[Merge]:
    """``f(Expand(x), c) == Expand(f(x, c))`` for a number ``c``."""
    for expand, (x, shape) in view.nodes("Expand"):
        if x is None or shape is None or x.is_constant or x.handle == expand.handle:
            continue
        for op, node, inputs in view.users(expand):
            try:
                others = [i for i in inputs if i is not None and i.handle != expand.handle]
                if op not in operators_with(is_elementwise) or len(others) != len(inputs) - 1:
                    continue
                if node.shape == expand.shape and all(o.is_constant and o.shape == () for o in others):
                    operands = tuple(x if i is not None and i.handle == expand.handle else i for i in inputs)
                    yield node, apply("Expand", Apply(op, operands, node.attributes), shape)  # type: ignore[arg-type]
            except Unmet:
                continue
