"""A constant scale passes movement, Clip and PRelu where that brings it to weights that absorb it.

Silent where no weights are in sight: before the operator for the way back, behind it for the way on.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.operator import operators_with, traits_of
from eqsat.ir.types import TensorType
from eqsat.rewrite import Condition, GroupView, Merge, Ref, Unmet, group_rule, shared
from eqsat.rules.linear.folding import is_linear
from eqsat.rules.linear.scale_carrying import (
    BOUNDED,
    BOUNDS,
    MOVEMENT,
    MOVES,
    SCALES,
    Node,
    passes,
    scaled_concat,
    scaled_operand,
    scaled_result,
)
from eqsat.rules.linear.scale_motion import absorbing, factors, is_passable
from eqsat.rules.terms import by_class
from eqsat.samples import Drawing, Instance, Sampler, fixed

PASSED_BACK = tuple(op for op in MOVEMENT if op != "Slice")
"""Before a Slice more elements would be scaled, in another product than the one that other readers need."""


# --- where weights are in sight ------------------------------------------------------------------------------------------


def _nodes(view: GroupView, ops: Sequence[str]) -> Iterator[Node]:
    for op in ops:
        for ref, (x, *rest) in view.nodes(op):
            if x is not None and not ref.is_constant:
                yield Node(op, ref, x, tuple(rest))


@shared
def _before_weights(view: GroupView) -> Collection[int]:
    """Classes that a linear operator with constant weights reads, with no more than what a scale may pass in between."""
    linear = _nodes(view, operators_with(is_linear))
    found = {node.x.handle for node in linear if node.rest[0] is not None and node.rest[0].is_constant}
    return _closure(view, found, MOVEMENT, lambda node: ((node.ref,), node.operands))


@shared
def _behind_weights(view: GroupView) -> Collection[int]:
    """Classes that a linear operator with constant weights gives, with no more than what a scale may pass in between."""
    return _closure(view, absorbing(view), PASSED_BACK, lambda node: (node.operands, (node.ref,)))


def _closure(
    view: GroupView,
    found: Collection[int],
    ops: Sequence[str],
    step: Callable[[Node], tuple[Sequence[Ref], Sequence[Ref]]],
) -> set[int]:
    """``found`` and what is reached from it: ``step`` gives the classes that an operator needs, and those that it adds."""
    found = set(found)
    steps = [step(node) for node in _nodes(view, (*ops, *BOUNDED, *operators_with(is_passable)))]
    size = -1
    while size < len(found):
        size = len(found)
        for needed, reached in steps:
            if all(n.handle in found or n.is_constant for n in needed):
                found.update(r.handle for r in reached)
    return found


def _back(view: GroupView, ops: Sequence[str]) -> Iterator[Merge]:
    """Scaled results of ``ops`` with weights in sight before them, with the scale before the operator."""
    reached = _behind_weights(view)
    behind = (node for node in _nodes(view, ops) if all(o.handle in reached for o in node.operands))
    passable = by_class((node.ref, node) for node in behind)
    for product, value, scale in factors(view):
        for node in passable.get(value.handle, ()):
            try:
                if _may_pay(view, value, scale, product) and passes(view, node, scale, back=True):
                    yield product, scaled_operand(node, scale)
            except Unmet:
                continue


def _may_pay(view: GroupView, value: Ref, scale: Ref, product: Ref) -> bool:
    """Not for one number where other readers need the unscaled value, or where products and views alone read the scaled one.

    In the first case the weights would be applied twice; the second are queries and keys: attention takes the number as it is.
    """
    if math.prod(scale.static_shape) > 1:
        return True
    uses = {op for op, _, _ in view.users(product)}
    if uses and all(op == "MatMul" or traits_of(op).permutes for op in uses):
        return False
    readers = [inputs for op, _, inputs in view.users(value) if op == "Mul"]
    number_only = all(any(i is not None and i.is_constant for i in inputs) for inputs in readers)
    return number_only and len(readers) == sum(1 for _ in view.users(value))


def _on(view: GroupView, ops: Sequence[str]) -> Iterator[Merge]:
    """Operators ``ops`` on scaled operands with weights in sight behind them, with the scale behind the operator."""
    reached = _before_weights(view)
    scaled = by_class((product, (value, scale)) for product, value, scale in factors(view))
    for node in _nodes(view, ops):
        if node.ref.handle not in reached or not any(o.handle in scaled for o in node.operands):
            continue
        try:
            if node.op == "Concat":
                found = scaled_concat(view, node, scaled)
                yield from () if found is None else ((node.ref, found),)
                continue
            for x, scale in scaled[node.x.handle]:
                of_x = node._replace(x=x)
                if passes(view, of_x, scale, back=False):
                    yield node.ref, scaled_result(of_x, scale)
        except Unmet:
            continue


# --- samples -------------------------------------------------------------------------------------------------------------


def _shape_of(drawing: Drawing, value: str) -> tuple[int, ...]:
    found = drawing.builder.type_of(value)
    assert isinstance(found, TensorType)
    assert found.shape is not None
    return tuple(int(d) for d in found.shape)


def _applied(d: Sampler, drawing: Drawing, op: str, value: str) -> str:
    """``op`` on a value of three axes."""
    shape, axis = _shape_of(drawing, value), d.integer(0, 2)
    if op == "Transpose":
        return drawing.op(op, value, perm=d.permutation(3))
    if op == "Reshape":
        made = d.choose(
            ((shape[0], 1, *shape[1:]), (shape[0], math.prod(shape[1:])), (math.prod(shape), 1), shape[::-1])
        )
        return drawing.op(op, value, drawing.value(fixed(made, "int64")))
    if op == "Slice":
        start = min(d.integer(0, 1), shape[axis] - 1)
        return drawing.op(op, value, *(drawing.value(fixed([v], "int64")) for v in (start, shape[axis], axis)))
    if op == "Pad":
        pads = [d.integer(-1, 1) * (i % 3 == axis and shape[axis] > 2) for i in range(6)]
        border = [drawing.value(fixed(d.choose((0.0, 1.5)), "float32"))] if d.chance(0.7) else []
        return drawing.op(op, value, drawing.value(fixed(pads, "int64")), *border)
    if op == "Concat":
        other = tuple(d.integer(1, 3) if i == axis else n for i, n in enumerate(shape))
        beside = _multiplied(d, drawing, drawing.value(d.floats(other)), other[-1])
        if d.chance():
            scale = (
                np.broadcast_to(d.scale(()), d.broadcast_of(other)) if d.chance() else d.scale(d.broadcast_of(other))
            )
            beside = drawing.op("Mul", beside, drawing.value(fixed(scale)))
        return drawing.op(op, *d.choose(((value, beside), (beside, value))), axis=d.choose((axis, axis - 3)))
    if op == "Clip":
        bounds = [d.choose((-1.0, 0.0, 0.5)), d.choose((1.0, 6.0, 3e38))]
        return drawing.op(op, value, *(drawing.value(fixed(b, "float32")) for b in bounds))
    return drawing.op(op, value, drawing.value(d.either(d.floats(d.broadcast_of(shape)))))


def _scaled(d: Sampler, drawing: Drawing, value: str, op: str, *, enlarging: bool) -> str:
    """A product by a scale: mostly along one axis; at times a number, infinite, along several axes, or enlarging."""
    shape = _shape_of(drawing, value)
    if d.chance(0.4):
        scale = d.scale(d.choose(((), (1,), d.broadcast_with(shape) if enlarging else d.broadcast_of(shape))))
    else:
        axis = d.integer(0, len(shape) - 1)
        scale = d.scale(tuple(n if i == axis else 1 for i, n in enumerate(shape))[d.integer(0, axis) :])
    scale = np.full_like(scale, np.inf) if d.chance(0.3 if op == "Pad" else 0.05) else scale
    return drawing.op("Mul", value, drawing.value(d.either(scale, 0.9)))


def _multiplied(d: Sampler, drawing: Drawing, value: str, columns: int) -> str:
    weights = d.floats((_shape_of(drawing, value)[-1], columns))
    return drawing.op("MatMul", value, drawing.value(d.either(weights, 0.9)))


def _draw_back(d: Sampler, ops: Sequence[str]) -> Instance:
    drawing, op = Drawing(), d.choose(ops)
    product = _multiplied(d, drawing, drawing.value(d.floats(d.extents(3))), d.integer(2, 4))
    passed = _applied(d, drawing, op, product)
    return drawing.finish(_scaled(d, drawing, passed, op, enlarging=True), *d.subset((product, passed), 0.2))


def _draw_on(d: Sampler, ops: Sequence[str]) -> Instance:
    drawing, op = Drawing(), d.choose(ops)
    shape = d.extents(3)
    value = drawing.value(d.floats(shape))
    if d.chance(0.1):  # the scale enlarges what it scales
        value = drawing.value(d.floats((1, *shape[1:])))
        scaled = drawing.op("Mul", value, drawing.value(fixed(d.scale((shape[0], 1, 1)))))
    else:
        scaled = _scaled(d, drawing, value, op, enlarging=False)
    passed = _applied(d, drawing, op, scaled)
    read = drawing.op("Relu", passed) if d.chance(0.3) else passed
    return drawing.finish(_multiplied(d, drawing, read, d.integer(2, 4)), *d.subset((scaled, passed), 0.2))


# --- rules ---------------------------------------------------------------------------------------------------------------


def _define(
    words: str, back: Sequence[str], on: Sequence[str], where: Sequence[Condition], exactness: Exactness, ending: str
) -> None:
    """The rules of both directions, for operators before which, and behind which, a scale may come to stand."""
    ways = (
        ("before", "f(x) * s == f(x * s')", _back, back, _draw_back),
        ("behind", "f(x * s) == f(x) * s'", _on, on, _draw_on),
    )
    for side, equation, merges, ops, draw in ways:

        def rule(view: GroupView, merges: Any = merges, ops: Sequence[str] = ops) -> Iterator[Merge]:
            return merges(view, ops)

        rule.__name__ = f"move_scale_{side}_{words}"
        rule.__doc__ = f"""``{equation}`` {ending}, where weights {side} ``f`` absorb the scale."""
        source = "each element is scaled by itself"
        group_rule(where=where, exactness=exactness, source=source, sample=partial(draw, ops=ops))(rule)


_define("movement", PASSED_BACK, MOVEMENT, [*SCALES, *MOVES], Exactness.EXACT, "for an ``f`` that moves elements")
_define(
    "bounds", BOUNDED, BOUNDED, [*SCALES, *BOUNDS], Exactness.ROUNDING, "for a positive ``s`` and ``f`` Clip or PRelu"
)
