"""What is computed of the rows of a constant table is computed of the table, once, before the program runs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from eqsat.conditions import constant, dtype_in, finite, varies, worthwhile
from eqsat.equations import Equations, group_rule
from eqsat.ir.operator import traits_of
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, GroupView, Match, Ref, Term, apply, literal
from eqsat.rules.linear.alignment import reshaped
from eqsat.rules.terms import complete_nodes, int64s
from eqsat.rules.views.extents import repeated
from eqsat.rules.views.movement import SMALL
from eqsat.samples import Drawing, Instance, Sampler, fixed

# --- elementwise functions of rows


def along_row(others: Sequence[Ref], behind: int) -> bool:
    """Whether operands lie along the last axes, ``behind`` the one that is looked up."""
    return all(d == 1 for c in others for d in c.shape[: max(c.rank - behind, 0)])


def in_row(c: Ref, behind: int) -> Term:
    """An operand without the axes in front of those."""
    return reshaped(c, c.static_shape[max(c.rank - behind, 0) :])


def _functions_of_rows(view: GroupView) -> Iterator[Match]:
    look_ups = [(node, *inputs) for node, inputs in view.nodes("Gather") if len(inputs) == 2]
    found = {(rows.handle, i.handle) for rows, _, i in look_ups if i is not None}
    for rows, table, i in look_ups:
        if table is None or i is None or not table.is_constant:
            continue
        for op, result, inputs in view.users(rows):
            traits = traits_of(op, result.attributes)
            handles = [-1 if x is None else x.handle for x in inputs]
            elementwise = traits.operands and not traits.vectors
            single = rows.handle in handles[traits.operands :]  # as a bound of a Clip is
            if elementwise and not single and (result.handle, i.handle) not in found:
                others = tuple(x for x in inputs if x is not None and x.handle != rows.handle)
                axis = rows.attr("axis", 0) % table.rank
                bound: Mapping[str, Any] = {"t": table, "i": i, "axis": axis, "behind": table.rank - 1 - axis}
                yield Match({"rows": rows, "f": op, "inputs": inputs, "others": others, **bound}, result)


def _function_of_rows(d: Sampler) -> Instance:
    drawing = Drawing()
    table = d.floats(d.shape(1, 3))
    axis = d.integer(0, table.ndim - 1)
    places = d.integers(d.shape(0, 2), "int64", -table.shape[axis], table.shape[axis] - 1)
    given = drawing.value(fixed(table) if d.chance(0.9) else table), drawing.value(d.either(places, 0.1))
    rows = drawing.op("Gather", *given, axis=axis)
    if d.chance(0.2):
        return drawing.finish(drawing.op("Relu", rows))
    if table.ndim == 1 and places.ndim == 0:  # a bound is one number
        return drawing.finish(drawing.op("Clip", fixed(d.floats(())), rows))
    shape = (*table.shape[:axis], *places.shape, *table.shape[axis + 1 :])
    other = d.floats(table.shape[axis + 1 :] if d.chance(0.7) else d.broadcast_with(shape))
    if d.chance(0.2):
        other = other.reshape((1,) * (len(shape) + 1 - other.ndim) + other.shape)
    return drawing.finish(drawing.op("Sub", rows, drawing.value(d.either(other, 0.9))))


@group_rule(
    find=_functions_of_rows,
    where=(
        constant("t"),
        varies("i"),
        worthwhile("the other operands are constant: all(c.is_constant for c in others)"),
        "and lie along the rows: along_row(others, behind)",
        "no axis is added: root.rank == rows.rank",
        worthwhile("a small table: t.type.size <= SMALL"),
    ),
    functions={"SMALL": SMALL},
    source="an element of the result follows from one of the table",
    sample=_function_of_rows,
)
def compute_in_table(m: Match) -> Term:
    """``f(Gather(t, i), c, ...) == Gather(f(t, c, ...), i)`` for a constant table and an elementwise function.

    Where the result is a look-up of the same places already, it gets no other one: else there would be no end of tables where
    functions undo each other but for rounding.
    """
    rows = m.rows.handle
    arguments: Any = (x if x is None else m.t if x.handle == rows else in_row(x, m.behind) for x in m.inputs)
    return apply("Gather", Apply(m.f, tuple(arguments), m.root.attributes), m.i, axis=m.axis)


# --- one row for all


def _one_row(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, length, batch = d.extents(3, ones=0)
    x = drawing.value(d.floats((batch, length)), {batch, length})
    places = np.full((1, length), d.integer(-1, 1)) + (np.arange(length) if d.chance(0.2) else 0)
    shape = drawing.op("Shape", x)
    at = drawing.op("Expand", fixed(places if d.chance() else places[:, :1]), shape)
    table = fixed(d.floats((length + 1, *d.choose(((), (rows,))))))
    return drawing.finish(drawing.op("Gather", table, at, axis=0))


def _look_ups(view: GroupView) -> Iterator[Match]:
    for node, (t, i) in complete_nodes(view, "Gather"):
        if node.attr("axis", 0) == 0 and t.is_constant and not i.is_constant:
            yield Match({"t": t, "i": i}, node)


@group_rule(find=_look_ups, where=["every place is the same: i.low == i.high"], source="ONNX Gather", sample=_one_row)
def expand_row_instead_of_looking_it_up(m: Match) -> Term:
    """``Gather(t, i) == Expand(t[k])`` where every place is ``k``: the types of tokens of one sentence."""
    row = apply("Gather", m.t, literal(np.int64(m.i.low)), axis=0)
    return repeated(row, m.t.shape[1:], m.root.shape, m.i)


# --- products with one-hot rows


def counts_up(r: Ref, number: int) -> bool:
    """Whether a constant lists 0, 1, ... ``number - 1`` along its last axis, and has no other."""
    return r.shape[-1] == number and np.array_equal(r.value.reshape(-1), np.arange(number))


def is_place(i: Ref, w: Ref) -> bool:
    """Whether every element is provably the number of a row."""
    return i.low >= 0 and i.high < w.static_shape[0]


def places(i: Ref, w: Ref) -> Term:
    """``i`` without its last axis; a number of no row becomes that of a row of zeros behind the last one, from either end."""
    found = apply("Squeeze", i, int64s([-1]))
    bounds = (literal(np.asarray(n, i.dtype.numpy)) for n in (-1, w.static_shape[0]))
    return found if is_place(i, w) else apply("Clip", found, *bounds)


def rows_of(i: Ref, w: Ref) -> Term:
    """The rows, with one of zeros behind them if some number is that of none."""
    zeros = literal(np.zeros((1, w.static_shape[1]), w.dtype.numpy))
    return w if is_place(i, w) else apply("Concat", w, zeros, axis=0)


Equations(__name__)(
    "look_up_row_instead_of_multiplying_one_hot",
    "MatMul(Cast(Equal(i, r), **c), w) == Gather(rows_of(i, w), places(i, w), axis=0)",
    constant("r", "w"),
    finite("w"),
    dtype_in("i", DType.INT32, DType.INT64),
    "a table of rows: w.rank == 2",
    "one number for each row of the result: i.shape[-1:] == (1,) and root.shape[:-1] == i.shape[:-1]",
    "compared with the numbers of all rows: counts_up(r, w.shape[0])",
    source="all but one summand are zero",
    drawn=(
        """I = 0 | 1 | 2; T = ("int64", "int32", "float32")[I]; i = d.integers([*ANY, 1], "int64", -3, R + 2).astype(T); c.to = 1
           r = fixed([*range(R)] | [[*range(R)]] | [[[[*range(R)]]]] | [*range(R)][::-1], T); w: float32[R, N]""",
        'i = d.integers([R, R], "int64", 0, R - 1).astype(T)',
        "w = d.floats([R, N], infinite=True)",
        'i = d.integers([R, 2, 1], "int64", 0, R - 1).astype(T); w: float32[R, R, N]',
    ),
)
