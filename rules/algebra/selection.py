"""Logic and selection: double negation, and choices that are made at compile time."""

import math
from collections.abc import Iterator
from itertools import permutations

import numpy as np

from eqsat.conditions import asks, constant, finite, same_type, worthwhile
from eqsat.equations import Equations, form, named
from eqsat.exactness import Exactness
from eqsat.ir.operator import Operator, defined
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Match, Ref, Term, for_each_operator
from eqsat.rules.linear.alignment import FLOATS
from eqsat.rules.terms import complete_nodes, int64s
from eqsat.rules.views.extents import expanded
from eqsat.rules.views.transposes import inverse

SPEC = "ONNX operator specification"
equation = Equations(__name__, source=SPEC)

equation("cancel_double_not", "Not(Not(x)) == x", source="Boolean algebra")
equation("choose_first", "Where(1, x, y) == x", same_type("x"))
equation("choose_second", "Where(0, x, y) == y", same_type("y"))
equation("choose_either", "Where(c, x, x) == x", same_type("x"))
equation("exchange_choices", "Where(Not(c), x, y) == Where(c, y, x)")


def may_be_finite(value: Ref) -> bool:
    """Whether a value is no constant that holds infinities or NaN."""
    return not value.is_constant or all(map(math.isfinite, value.interval))


_FINITE = "finite if constant: may_be_finite(x) and may_be_finite(y)"
for name, exactness, *where in (
    ("floats", Exactness.ROUNDING, worthwhile("floats: x.dtype in FLOATS"), _FINITE),
    ("integers", Exactness.EXACT, "integers: x.dtype.is_integer"),
):
    equation(  # as exporters of TensorFlow write a choice
        f"choose_instead_of_adding_products_of_{name}",
        "Cast(c, **n) * x + Cast(Not(c), **k) * y == Where(c, x, y)",
        *where,
        exactness=exactness,
        functions={"FLOATS": FLOATS},
        drawn=(
            """I = 0 | 1 | 2 | 3; T = (float32, float16, int64, int8)[I]; c: bool[A, K] | bool[K]; x: T[A, K] | T[K]
               y: T[A, K] | T[2, A, K]; n.to = (1, 10, 7, 3)[I]; k.to = (1, 10, 7, 3)[I]""",
            "x = fixed(d.floats([A, K], infinite=True)); y: float32[A, K]; n.to = 1; k.to = 1",
        ),
        source="one factor is 1 and the other is 0",
    )


equation(
    "and_instead_of_multiplying_truth_values",
    "Cast(Cast(x, **p) * Cast(y, **q), **n) == And(x, y)",
    "truth values: {x.dtype, y.dtype, root.dtype} == {BOOL}",
    functions={"BOOL": DType.BOOL},
    source="a product is zero where a factor is",
)


equation(
    "choose_second_where_nothing_is_nan",  # quantised probabilities need no guard against NaN
    "Where(IsNaN(DequantizeLinear(q, s, *z, **n)), x, y) == y",
    constant("s"),
    finite("s"),
    same_type("y"),
    "integers, as floats of 8 bits may be NaN: q.dtype.is_integer",
    source="integers times a finite number",
    drawn=(
        "",
        's = fixed(inf | inf - inf | 3e36, "float32"); q = d.integers([A, K], "int8", -4, 4); z: None',
        'q = d.floats([A, K], "float8_e4m3fn", infinite=True); s = fixed(0.5, "float32"); z: None',
    ),
)


def _conjunctions(view: GroupView) -> Iterator[Match]:
    for node, operands in complete_nodes(view, "And"):
        for x, y in permutations(operands):
            yield Match({"x": x, "y": y}, node)


@equation.over_groups(
    find=_conjunctions,
    where=["y is true: y.low >= 1"],
    source="Boolean algebra",
    forms=[form("And(x, y)", constant("y"))],
)
def drop_true_operand(m: Match) -> Term:
    """``And(x, y) == expanded(x)`` where ``y`` is true: what is known of it may come later than it does."""
    return expanded(m.x, m.root)


def all_in_order(indices: np.ndarray, extents: tuple[int, ...]) -> bool:
    """Whether places of GatherND, which then has no batches, are those of all elements of a value, in order."""
    if indices.shape[-1] != len(extents) or not indices.size == math.prod(extents) * len(extents) > 0:
        return False
    places = np.ravel_multi_index(tuple(np.moveaxis(indices % extents, -1, 0)), extents).reshape(-1)
    return np.array_equal(places, np.arange(places.size))


equation(
    "gather_all_as_reshape",
    "GatherND(x, c, **n) == Reshape(x, int64s(c.value.shape[:-1]))",
    constant("c"),
    "all places in order: all_in_order(c.value, x.static_shape)",
    functions=named(int64s),
    drawn=(
        "x: [A, B]; c = fixed([[[a, b] for b in range(B)] for a in range(A)], 'int64'); n.batch_dims = None | 0",
        "x: [A]; c = fixed([[[a] for a in range(A)]] | [[a] for a in range(A)][::-1], 'int64')",
        "c = fixed([[[a] for b in range(B)] for a in range(A)], 'int64')",
    ),
)


equation(
    "gather_along_one_axis",
    "GatherND(x, i, **n) == Gather(x, Squeeze(i, int64s([-1])), axis=0)",
    "places along one axis: i.shape[-1] == 1",
    "no batches: n.attr('batch_dims', 0) == 0",
    functions=named(int64s),
    drawn=("", "x: [A, B]; i = d.integers([A, 1], 'int64', -B, B - 1); n.batch_dims = 1"),
)


equation(
    "gather_along_the_axis_itself",
    "Transpose(Gather(Transpose(x, perm=p, **s), i, axis=a, **g), perm=q, **t) == Gather(x, i, axis=p[a])",
    "the axes are back where they were: q == inverse(p)",
    functions=named(inverse),
)


# --- numbers chosen by truth values


def _is_arithmetic(op: Operator) -> bool:
    """Whether it adds, subtracts, multiplies or divides, which all do alike."""
    return op.bit_exact and op.traits.operands == 2 and bool(op.traits.affine)


@asks(values={"single": True})
def are_numbers(*values: Ref) -> bool:
    return all(value.type.size == 1 for value in values)


equation = Equations(
    __name__,
    functions={"FLOATS": FLOATS, "BOOL": DType.BOOL},
    source="each element is computed from one number of two, alike before and behind the choice",
)


def _choose(name: str, left: str, right: str, numbers: str, *where: str) -> None:
    equation(
        f"choose_between_results_of_{name}",
        f"{left} == {right}",
        constant(*numbers),
        worthwhile(f"numbers: are_numbers({', '.join(numbers)})"),
        *where,
        worthwhile(f"floats: {numbers[-1]}.dtype in FLOATS and root.dtype in FLOATS"),
        worthwhile("not a constant: not root.is_constant"),
        worthwhile("the choice has the shape of the result: y.shape == root.shape"),
    )


@for_each_operator(_is_arithmetic)
def _of_choice(op: str) -> None:
    """A number beside a choice between two, and beside truth values as floats, which are the choice between 1 and 0."""
    for side, f in (("", op + "({}, k)"), ("_from_number", op + "(k, {})"))[: 1 if defined(op).commutative else 2]:
        name = op.lower() + side
        _choose(name, f.format("(y := Where(c, p, q))"), f"Where(c, {f.format('p')}, {f.format('q')})", "pqk")
        right = f"Where(c, {f.format('1')}, {f.format('0')})"
        _choose(f"{name}_of_truth", f.format("Cast(c, **y)"), right, "k", "truth values: c.dtype is BOOL")


_choose("cast", "Cast((y := Where(c, p, q)), **t)", "Where(c, Cast(p, **t), Cast(q, **t))", "pq")
