"""Products by constants before a recurrent operator, which multiplies what it reads by weights itself."""

from __future__ import annotations

from collections.abc import Iterator

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations, form, named, stated
from eqsat.exactness import Exactness
from eqsat.ir.operator import Operator, operators_with
from eqsat.rewrite import Apply, GroupView, Merge, Ref, Term, apply, literal, present
from eqsat.rules.linear.alignment import largest, limit, stay_normal
from eqsat.rules.linear.low_rank import bound
from eqsat.rules.terms import matmul, outputs_of, total, transpose, transposes

_BATCH_FIRST = (1, 0, 2)


def _starts_from_a_state(op: Operator) -> bool:
    return 5 in op.traits.zero_if_absent


FOLDED = stated(
    "x w v b c",
    constant("w", "v", "b", "c"),
    "a matrix, and a number for each column: w.rank == 2 and (c is None or c.shape == w.shape[1:])",
    worthwhile("v @ w is no larger than both: v.static_shape[1] * w.static_shape[0] <= v.type.size + w.type.size"),
    "v @ w finite: bound(v, w) < limit(v)",
    "v @ w keeps its digits: stay_normal(largest(v), w)",
    "v @ c and b finite: c is None or bound(v, c) + (0 if b is None else largest(b)) < limit(v)",
    functions=named(bound, largest, limit, stay_normal),
)


def _products(view: GroupView, value: Ref) -> Iterator[tuple[Ref, Ref, Ref | None]]:
    """What a value is a product of, and what is added to it."""
    for op, inputs in view.spellings(value):
        if op == "MatMul" and inputs[0] is not None and inputs[1] is not None:
            yield inputs[0], inputs[1], None
        for a, c in (inputs, inputs[::-1]) if op == "Add" else ():
            if a is not None and c is not None and c.is_constant:
                found = (i for o, i in view.spellings(a) if o == "MatMul")
                yield from ((i[0], i[1], c) for i in found if i[0] is not None and i[1] is not None)


def _in_order(view: GroupView, value: Ref) -> Iterator[tuple[Ref, tuple[int, ...]]]:
    """A value, or what it is the transpose of, and how."""
    yield value, (0, 1, 2)
    for node, x, perm in transposes(view):
        if node.handle == value.handle and perm == _BATCH_FIRST:
            yield x, perm


_DRAWN = """x = d.floats([T, B, K]); w = fixed(d.floats([K, C])); h = H; v = fixed(d.floats([1, {0} * H, C])); p = (1, 0, 2)
            r = fixed(d.floats([1, {0} * H, H])); b = fixed(d.floats([1, 2 * {0} * H])); z = d.floats([1, {1}, H])
            c = fixed(d.floats([C]) | d.floats([1, C]))"""

group_rule = Equations(__name__, exactness=Exactness.ROUNDING, source="associativity of the matrix product").over_groups


@group_rule(
    where=FOLDED,
    forms=[
        form("GRU(x @ w, v, r, *b, None, z, outputs=2, hidden_size=h)[0]", drawn=_DRAWN.format(3, "B")),
        form("LSTM(x @ w + c, v, r, *b, outputs=2, hidden_size=h)[1]", drawn=_DRAWN.format(4, "B")),
        form("RNN(Transpose(x @ w, perm=p), v, r, *b, hidden_size=h)", drawn=_DRAWN.format(1, "T")),
    ],
)
def multiply_into_recurrent_weights(view: GroupView) -> Iterator[Merge]:
    """``f(x @ w + c, v, r, b) == f(x, v @ w', r, b + v @ c)`` where ``f`` is recurrent, and with a transpose between."""
    for op in operators_with(_starts_from_a_state):
        for node, (value, v, *others) in view.nodes(op):
            assert value is not None
            assert v is not None
            b = others[1] if len(others) > 1 else None
            for x, w, c, perm in _read(view, value):
                if view.meets(FOLDED, x=x, w=w, v=v, b=b, c=c):
                    more = None if c is None else _of_what_is_given(matmul(v, c), v)
                    weights = matmul(v, transpose(w, (1, 0)))
                    operands = present(transpose(x, perm), weights, others[0], total(b, more), *others[2:])
                    results = outputs_of(view, node)
                    made = Apply(op, operands, node.attributes, "", max(results, default=0) + 1)
                    yield from ((y, made.output(i)) for i, y in results.items()) if results else ((node, made),)


def _read(view: GroupView, value: Ref) -> Iterator[tuple[Ref, Ref, Ref | None, tuple[int, ...]]]:
    for source, perm in _in_order(view, value):
        yield from ((*found, perm) for found in _products(view, source))


def _of_what_is_given(c: Term, v: Ref) -> Term:
    """Biases of which those beside the state are 0."""
    return apply("Concat", c, literal([[0.0] * v.static_shape[1]], v.dtype), axis=1)
