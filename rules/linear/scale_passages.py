"""A constant scale passes movement, Clip and PRelu where that brings it to weights that absorb it.

Silent where no weights are in sight: before the operator for the way back, behind it for the way on.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from eqsat.conditions import constant
from eqsat.equations import form, group_rule
from eqsat.exactness import Exactness
from eqsat.ir.operator import operators_with, traits_of
from eqsat.rewrite import Condition, GroupView, Hint, Merge, Ref, Rule, Unmet, shared
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
from eqsat.rules.linear.scale_motion import absorbing, by_constant_weights, factors, is_passable
from eqsat.rules.terms import by_class, closure

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
    found = {x.handle for _, x in by_constant_weights(view)}
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
    steps = (step(node) for node in _nodes(view, (*ops, *BOUNDED, *operators_with(is_passable))))
    return closure(
        found,
        (([n.handle for n in needed if not n.is_constant], [r.handle for r in reached]) for needed, reached in steps),
    )


def _back(view: GroupView, ops: Sequence[str]) -> Iterator[Merge]:
    """Scaled results of ``ops`` with weights in sight before them, with the scale before the operator."""
    found = list(factors(view))
    reached = _behind_weights(view) if found else ()
    behind = (node for node in _nodes(view, ops) if all(o.handle in reached for o in node.operands))
    passable = by_class((node.ref, node) for node in behind)
    for product, value, scale in found:
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
    scaled = by_class((product, (value, scale)) for product, value, scale in factors(view))
    reached = _before_weights(view) if scaled else ()
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


# --- rules ---------------------------------------------------------------------------------------------------------------


_Way = tuple[Sequence[str], list[Rule]]
"""Operators that a scale passes, and instances of them."""

_CONSTANTS = constant(*"swvtlhr")
_VECTOR = Condition("a vector", lambda m: True, hints=(Hint("s", vector=True),))


def _forms(form_of: str, moved: Sequence[str] = (), others: Sequence[str] = ()) -> list[Rule]:
    """Terms of operators, those by a vector where each element of the result is ``moved`` from one of theirs."""
    along = [form(form_of.format(f), _CONSTANTS, _VECTOR) for f in moved]
    return [*along, *(form(form_of.format(f), _CONSTANTS) for f in others)]


def _define(words: str, where: Sequence[Condition], exactness: Exactness, ending: str, back: _Way, on: _Way) -> None:
    """The rules of both directions, for operators before which, and behind which, a scale may come to stand."""
    ways = (("before", "f(x) * s == f(x * s')", _back, *back), ("behind", "f(x * s) == f(x) * s'", _on, *on))
    for side, equation, merges, ops, forms in ways:

        def rule(view: GroupView, merges: Any = merges, ops: Sequence[str] = ops) -> Iterator[Merge]:
            return merges(view, ops)

        rule.__name__ = f"move_scale_{side}_{words}"
        rule.__doc__ = f"""``{equation}`` {ending}, where weights {side} ``f`` absorb the scale."""
        source = "each element is scaled by itself"
        group_rule(where=where, exactness=exactness, source=source, forms=forms)(rule)


_define(
    "movement",
    [*SCALES, *MOVES],
    Exactness.EXACT,
    "for an ``f`` that moves elements",
    (
        PASSED_BACK,
        _forms(
            "{} * s",
            moved=("Transpose(x @ w, perm=p)", "Reshape(x @ w, t)"),
            others=("Pad(x @ w, p, *b)", "Concat(x @ w, y @ v, axis=a)"),
        ),
    ),
    (
        MOVEMENT,
        _forms(
            "{} @ w",
            moved=("Transpose(x * s, perm=p)", "Reshape(x * s, t)", "Slice(x * s, t, u, *e)"),
            others=("Pad(x * s, p, *b)", "Concat(x * s, y, axis=a)", "Concat(x * s, y * v, axis=a)"),
        ),
    ),
)
_define(
    "bounds",
    [*SCALES, *BOUNDS],
    Exactness.ROUNDING,
    "for a positive ``s`` and ``f`` Clip or PRelu",
    (BOUNDED, _forms("{} * s", others=("Clip(x @ w, *l, *h)", "PRelu(x @ w, r)"))),
    (BOUNDED, _forms("{} @ w", others=("Clip(x * s, *l, *h)", "PRelu(x * s, r)"))),
)
