"""A constant scale passes what is positively homogeneous, and sums, on its way to the weights that absorb it.

Both directions are offered: forwards to the operator that follows, backwards to the one before. Each passes one operator at a
time and adds one product at most, which is chosen only where it meets weights.
"""

from collections.abc import Collection, Iterator, Sequence

from eqsat.conditions import constant, varies, worthwhile
from eqsat.equations import Equations, form, group_rule, named, spelled, stated
from eqsat.exactness import Exactness
from eqsat.ir.operator import Operator, operators_with, traits_of
from eqsat.ir.traits import whatever
from eqsat.rewrite import GroupView, Merge, Ref, for_each_operator, shared
from eqsat.rules.algebra.associativity import chains
from eqsat.rules.linear.alignment import FLOATS, extremes, largest, least_normal, lies_along, limit, not_all
from eqsat.rules.linear.operators import is_linear
from eqsat.rules.terms import add, by_class, closure, complete_nodes, mul

SOURCE = "positive homogeneity of the operator; TVM FoldScaleAxis"


FUNCTIONS = named(extremes, largest, least_normal, lies_along, limit, traits_of) | {"FLOATS": FLOATS}
equation = Equations(__name__, source=SOURCE, functions=FUNCTIONS)

equation(
    "divide_by_constant_as_multiplication",
    "x / s == x * (1 / s)",
    constant("s"),
    varies("x"),
    "x.dtype in FLOATS",
    "no reciprocal overflows: extremes(s)[0] > 1 / limit(s)",
    "no reciprocal is subnormal: largest(s) < 1 / least_normal(s)",
    exactness=Exactness.ROUNDING,
    source="definition of the reciprocal",
    drawn="s = ... | 1e-39",
)


def is_passable(op: Operator) -> bool:
    """Whether a scale passes it by a rule of its own: pools and functions of single elements that rise.

    Neg and Abs have rules of their own; reductions drop axes.
    """
    return op.traits.homogeneous and op.traits.rising and (op.traits.operands == 1 or op.traits.spatial)


@for_each_operator(is_passable)
def pass_scales(key: str) -> None:
    """``f(x * s) == f(x) * s`` for a positive ``s``, of any sign where ``f`` is affine; exact where ``f`` chooses elements."""
    f, traits = spelled(key), traits_of(key)
    sign = "s finite: largest(s) < inf" if traits.affine else "s positive and finite: s.low > 0 and s.high < inf"
    along = "s lies along the channels: lies_along(s, x, 1)"
    limited = "so with these attributes: traits_of(op).holds(n.attributes)"
    for name, text in (
        ("behind", f"{f}(x * s, **n) == {f}(x, **n) * s"),
        ("before", f"{f}(x, **n) * s == {f}(x * s, **n)"),
    ):
        equation(
            f"move_scale_{name}_{f.lower().replace('.', '_')}",
            text,
            constant("s"),
            varies("x"),
            "x.dtype in FLOATS",
            not_all("s", 1),
            sign,
            *([along] if traits.spatial else []),
            *([limited] if traits.holds is not whatever else []),
            exactness=Exactness.EXACT if traits.sources else Exactness.ROUNDING,
            functions=FUNCTIONS | {"op": key},
        )


# --- sums ----------------------------------------------------------------------------------------------------------------


def by_constant_weights(view: GroupView) -> Iterator[tuple[Ref, Ref]]:
    """What linear operators with constant weights give, and what they read."""
    for op in operators_with(is_linear):
        for node, (x, w, *_) in view.nodes(op):
            if x is not None and w is not None and w.is_constant:
                yield node, x


@shared
def absorbing(view: GroupView) -> Collection[int]:
    """Classes that a scale can enter: linear operators with constant weights, rectified or not, and sums of such."""
    found = {node.handle for node, _ in by_constant_weights(view)}
    passed = ("Add", *(p for p in operators_with(is_passable) if traits_of(p).operands))
    nodes = ((op, node, inputs) for op in passed for node, inputs in complete_nodes(view, op))
    return closure(
        found,
        (
            ([i.handle for i in inputs if op != "Add" or not i.is_constant], (node.handle,))
            for op, node, inputs in nodes
        ),
    )


@shared
def factors(view: GroupView) -> Sequence[tuple[Ref, Ref, Ref]]:
    """Products of floats with one constant operand that are another value: the product, the other operand, the constant."""
    return [(node, value, scale) for node, value, scale in chains(view, "Mul") if value.handle != node.handle]


DISTRIBUTED = stated(
    "s",
    "s finite: largest(s) < inf",
    worthwhile("s positive: s.low > 0"),
    worthwhile("s.dtype in FLOATS"),
    functions=FUNCTIONS,
)


@group_rule(
    where=DISTRIBUTED,
    exactness=Exactness.ROUNDING,
    source="distributivity; TVM FoldScaleAxis",
    forms=[
        form(f"({total}) * s", constant("w", "v", "s"))
        for total in ("x @ w + y @ v", "Relu(x @ w) + y @ v", "x @ w + Relu(x @ v)")
    ],
)
def distribute_scale_over_absorbing_sum(view: GroupView) -> Iterator[Merge]:
    """``(a + b) * s == a * s + b * s`` for a positive constant ``s`` where weights absorb it in both ``a`` and ``b``.

    Not of ``a + a``, which is a product: where ``a`` is half of the sum, distributing would make halves of halves without end.
    """
    reached = absorbing(view)
    found = ((node, p, q) for node, (p, q) in complete_nodes(view, "Add") if p.handle != q.handle)
    sums = by_class((node, (p, q)) for node, p, q in found if p.handle in reached and q.handle in reached)
    for node, value, scale in factors(view):
        for a, b in sums.get(value.handle, ()):
            if view.meets(DISTRIBUTED, s=scale):
                yield node, add(mul(a, scale), mul(b, scale))
