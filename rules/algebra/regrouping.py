"""Associativity towards what exists: a sum or product is regrouped where a part of the new grouping is computed anyway.

Nothing but the regrouped operator is new, and all its operands are e-classes that exist: so this ends, and adds few e-nodes.
Spellings of one structure meet so that share a value: ``x + (r - mean)`` with ``(x + r) - mean`` where ``mean`` is that of
``x + r``, ``x * (c * g)`` with ``(x * c) * g`` where ``x * c`` is used beside it.
"""

from collections.abc import Iterator
from functools import partial

from eqsat.conditions import worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.rewrite import GroupView, Match, Ref, Term, apply
from eqsat.rules.algebra.associativity import are_ordinary_factors, draw, ordinary
from eqsat.rules.linear.alignment import are_ordinary_summands
from eqsat.rules.terms import mul


def _operands(view: GroupView, op: str) -> Iterator[tuple[Ref, Ref, Ref]]:
    """Each commutative ``op`` of floats with its operands, in both orders."""
    for node, (a, b) in view.nodes(op):
        if a is not None and b is not None and node.type.dtype.is_float:
            yield node, a, b
            yield node, b, a


def _groupings(view: GroupView, op: str, inverse: str = "") -> Iterator[Match]:
    """Each ``a op (b op c)`` for which there is ``found``, ``a op b``; likewise with the ``inverse`` inside."""
    existing: dict[tuple[int, int], Ref] = {}
    inner: dict[int, list[tuple[str, Ref, Ref]]] = {}
    for node, a, b in _operands(view, op):
        existing.setdefault((a.handle, b.handle), node)
        inner.setdefault(node.handle, []).append((op, a, b))
    for node, (b, c) in view.nodes(inverse):
        if b is not None and c is not None:
            inner.setdefault(node.handle, []).append((inverse, b, c))
    for node, a, middle in _operands(view, op):
        for within, b, c in inner.get(middle.handle, ()) if not node.is_constant else ():
            found = existing.get((a.handle, b.handle))
            if found is not None:
                yield Match({"a": a, "b": b, "c": c, "middle": middle, "found": found, "op": within}, node)


def constants(*values: Ref) -> int:
    return sum(v.is_constant for v in values)


def one_factor(a: Ref, b: Ref, c: Ref, middle: Ref) -> bool:
    """Any other product of constants would be taken apart in ever new ways."""
    if middle.is_constant:
        return constants(a, b, c) == 2 and b.type.size == 1 and c.type.size != 1
    return constants(a, b, c) == 1


group_rule = Equations(__name__, exactness=Exactness.ROUNDING, source="associativity over the reals").over_groups
NO_PART = worthwhile("the result is none of its parts: root.handle not in (a.handle, middle.handle, found.handle)")


@group_rule(
    find=partial(_groupings, op="Add", inverse="Sub"),
    where=[
        worthwhile("one constant at most: constants(a, b, c) <= 1"),
        NO_PART,
        ordinary(are_ordinary_summands, "a", "b", "c"),
    ],
    sample=partial(draw, op="Add", kinds=("xyz", "xyc", "xcy", "cxy", "cxc"), inverse="Sub"),
)
def regroup_sum_around_existing(m: Match) -> Term:
    """``a + (b + c) == (a + b) + c`` and ``a + (b - c) == (a + b) - c`` where ``a + b`` exists, constants of ordinary size."""
    return apply(m.op, m.found, m.c)


@group_rule(
    find=partial(_groupings, op="Mul"),
    where=[
        worthwhile("one constant, or a number times a vector: one_factor(a, b, c, middle)"),
        NO_PART,
        worthwhile("no factor is one: middle.handle != c.handle and found.handle != a.handle"),
        ordinary(are_ordinary_factors, "a", "b", "c"),
    ],
    sample=partial(draw, op="Mul", kinds=("xyc", "xcy", "cxy", "xcc", "cxc")),
)
def regroup_product_around_existing(m: Match) -> Term:
    """``a * (b * c) == (a * b) * c`` where ``a * b`` exists.

    One of the three is a constant of ordinary size, or ``b`` is a number and ``c`` a vector: ``sum * (1 / n * gain)`` has a mean
    in it.
    """
    return mul(m.found, m.c)
