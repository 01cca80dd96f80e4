"""Broadcasting: what an operator broadcasts anyway need not be expanded before."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.operator import operators_with
from eqsat.ir.types import Dim
from eqsat.rewrite import Apply, Condition, GroupView, Match, Ref, Term, apply, group_rule, shared
from eqsat.rules.terms import by_class, complete_nodes
from eqsat.rules.views.transposes import is_broadcasting, is_elementwise, is_unary
from eqsat.samples import Drawing, Instance, Sampler, fixed

_SOURCE = "ONNX multidirectional broadcasting"


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


def _is_repeated(node: Ref, x: Ref) -> bool:
    """Whether ``x`` is repeated along axes of extent 1 only."""
    known = x.type.shape is not None and node.type.shape is not None
    return known and _broadcasts_to([x.shape, node.shape], node.shape)


def _has_more_axes(node: Ref, x: Ref) -> bool:
    """Whether a view only adds leading axes to ``x``."""
    known = x.type.shape is not None and node.type.shape is not None
    return known and x.rank < node.rank and node.shape == (1,) * (node.rank - x.rank) + tuple(x.shape)


@shared
def _expanded(view: GroupView) -> Mapping[int, Sequence[Ref]]:
    """Class -> what it repeats along an axis."""
    expanded: dict[int, list[Ref]] = {}
    for is_expanded, repeating in ((_is_repeated, ("Expand", "Tile")), (_has_more_axes, ("Reshape", "Unsqueeze"))):
        for node, (x, *_) in (found for op in repeating for found in view.nodes(op)):
            if x is not None and x.handle != node.handle and is_expanded(node, x):
                expanded.setdefault(node.handle, []).append(x)
    return expanded


def _expanded_operands(view: GroupView, ops: Sequence[str]) -> Iterator[Match]:
    """Each of the operators with an expanded operand, and its operands with ``x`` in place of that."""
    expanded = _expanded(view)
    for op in ops if expanded else ():
        for node, inputs in view.nodes(op):
            for i, operand in enumerate(inputs):
                for x in expanded.get(operand.handle, ()) if operand is not None else ():
                    operands = tuple(x if j == i else p for j, p in enumerate(inputs) if p is not None)
                    yield Match({"x": x, "expanded": operand, "operands": operands, "op": op}, node)


def _again(m: Match) -> Term:
    return Apply(m.op, m.operands, m.root.attributes)


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


KEEPS_SHAPE = Condition(
    "the result keeps its shape", lambda m: _broadcasts_to([p.shape for p in m.operands], m.root.shape)
)


@group_rule(
    find=lambda view: _expanded_operands(view, operators_with(is_broadcasting)),
    where=[KEEPS_SHAPE],
    exactness=Exactness.EXACT,
    source=_SOURCE,
    sample=partial(_draw, op=None),
)
def remove_expand_before_elementwise(m: Match) -> Term:
    """``f(Expand(x), y) == f(x, y)`` for a broadcasting ``f`` whose result keeps its shape; likewise for a Tile that repeats only
    axes of extent 1, and for a view that only adds leading axes."""
    return _again(m)


SAME_MATRICES = Condition(
    "only batch axes were expanded", lambda m: m.x.rank >= 2 and m.x.shape[-2:] == m.expanded.shape[-2:]
)
KEEPS_BATCH = Condition(
    "the result keeps its batch axes", lambda m: _broadcasts_to([p.shape[:-2] for p in m.operands], m.root.shape[:-2])
)


@group_rule(
    find=partial(_expanded_operands, ops=("MatMul",)),
    where=[SAME_MATRICES, KEEPS_BATCH],
    exactness=Exactness.ROUNDING,
    source=_SOURCE,
    sample=partial(_draw, op="MatMul"),
)
def remove_expand_before_matmul(m: Match) -> Term:
    """``Expand(x) @ y == x @ y`` where only batch axes were expanded and the result keeps its shape."""
    return _again(m)


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


def _users_of_expanded(view: GroupView) -> Iterator[Match]:
    """Each elementwise operator that reads an Expand, with ``x`` in its place, and its other operands."""
    for expand, (x, shape) in view.nodes("Expand"):
        if x is None or x.is_constant or x.handle == expand.handle:
            continue
        for op, node, inputs in view.users(expand):
            # Where the operator changes nothing, its result is the Expand: that would sink again and again, without end.
            if op in operators_with(is_elementwise) and node.handle != expand.handle:
                operands = tuple(x if i is not None and i.handle == expand.handle else i for i in inputs)
                others = [i for i in inputs if i is None or i.handle != expand.handle]
                bound = {"x": x, "shape": shape, "expand": expand, "op": op, "operands": operands, "others": others}
                yield Match(bound, node)


ONCE = Condition(
    "one operand is expanded", lambda m: None not in m.others and len(m.others) == len(m.operands) - 1, worthwhile=True
)
NUMBERS = Condition(
    "the others are numbers", lambda m: all(o.is_constant and o.shape == () for o in m.others), worthwhile=True
)
STAYS_EXPANDED = Condition(
    "the result keeps the expanded shape", lambda m: m.root.shape == m.expand.shape, worthwhile=True
)


@group_rule(
    find=_users_of_expanded,
    where=[ONCE, NUMBERS, STAYS_EXPANDED],
    exactness=Exactness.EXACT,
    source=_SOURCE,
    sample=_sinking,
)
def sink_expand_behind_elementwise(m: Match) -> Term:
    """``f(Expand(x), c) == Expand(f(x, c))`` for a number ``c``."""
    return apply("Expand", Apply(m.op, m.operands, m.root.attributes), m.shape)


def _functions_expanded(view: GroupView) -> Iterator[Match]:
    """Functions of each element of one value that are expanded alike."""
    expanded = by_class((y, (node, shape)) for node, (y, shape) in complete_nodes(view, "Expand") if not y.is_constant)
    found: dict[tuple[int, int], list[Match]] = {}
    for op in operators_with(is_unary) if len(expanded) > 1 else ():
        for f, (x, *numbers) in view.nodes(op):
            if x is None:
                continue
            for node, shape in expanded.get(f.handle, ()):
                match = Match({"op": op, "f": f, "x": x, "numbers": tuple(numbers), "shape": shape}, node)
                found.setdefault((x.handle, shape.handle), []).append(match)
    for alike in found.values():
        if len({m.root.handle for m in alike}) > 1:
            yield from alike


def _draw_alike(d: Sampler) -> Instance:
    drawing = Drawing()
    result = d.shape(1, 3)
    x = drawing.value(d.floats(d.broadcast_of(result)))
    shape = drawing.value(fixed(result, "int64"))
    return drawing.finish(*(drawing.op("Expand", drawing.op(op, x), shape) for op in ("Cos", "Sin")))


@group_rule(find=_functions_expanded, where=[], exactness=Exactness.EXACT, source=_SOURCE, sample=_draw_alike)
def expand_before_functions(m: Match) -> Term:
    """``Expand(f(x)) == f(Expand(x))`` where another function of ``x`` is expanded, too."""
    return Apply(m.op, (apply("Expand", m.x, m.shape), *m.numbers), m.f.attributes)
