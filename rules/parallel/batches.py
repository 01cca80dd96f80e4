"""Products side by side as one batch: right operands of one shape stacked, or left operands of one right operand in one.

Both are further ways to have one kernel instead of many, beside the wide product of `eqsat.rules.parallel.products`.
"""

from collections.abc import Hashable, Iterator

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations, form, stated
from eqsat.exactness import Exactness
from eqsat.rewrite import GroupView, Merge, Ref, apply
from eqsat.rules.parallel.groups import Branch, Products, computed_from
from eqsat.rules.parallel.products import MERGEABLE, NO_VECTORS, parts_of, products
from eqsat.rules.terms import int64s
from eqsat.samples import Drawing, Instance, Sampler

group_rule = Equations(
    __name__, exactness=Exactness.ROUNDING, source="block matrices; TVM CombineParallelDense"
).over_groups


def _stack_sample(d: Sampler) -> Instance:
    """Products of one input by matrices, mostly of one shape."""
    drawing = Drawing()
    m, k, n, batch = d.extents(4, ones=0.2)
    x = drawing.value(d.floats(d.choose(((m, k), (m, k), (m, k), (batch, m, k), (batch, m, k), (batch, m, k), (k,)))))
    values: list[str] = []
    usual = (k, n) if d.chance(0.85) else (batch, k, n)
    symbolic = d.subset((k, n), 0.5) if d.chance(0.2) else ()
    for _ in range(d.integer(2, 4)):
        shape = d.choose((usual, usual, usual, usual, (k, n + 1), (batch, k, n), (k,)))
        values.append(drawing.op("MatMul", x, drawing.value(d.either(d.floats(shape), 0.25), symbolic)))
    return drawing.finish(*values)


STACKED = stated(
    "w",
    "the right operand is a matrix: w.rank == 2",
    "its extents are known: w.type.is_static",
    worthwhile("it is computed: not w.is_constant"),  # of constant matrices the wide product is never dearer
)


@group_rule(where=[*MERGEABLE, *NO_VECTORS, *STACKED], sample=_stack_sample)
def stack_matmuls_of_one_input(view: GroupView) -> Iterator[Merge]:
    """``(x @ w1, x @ w2, ...) == Squeeze(Split(x @ Stack(w1, w2, ...)))`` for matrices of one shape that are computed."""

    def shape(branch: Branch) -> Hashable:
        w = branch.w
        is_alike = view.meets(NO_VECTORS, x=branch.x, w=w) and view.meets(STACKED, w=w)
        return (w.dtype, w.shape) if is_alike else None

    for group in Products(view, products(view, "MatMul")).groups(shape):
        x, w = group[0].x, group[0].w
        single = int64s([1] * (x.rank - 1) + [int(n) for n in w.static_shape])
        stacked = apply("Concat", *(apply("Reshape", branch.w, single) for branch in group), axis=0)
        for node, part in parts_of(apply("MatMul", x, stacked), group, [1] * len(group), axis=0):
            yield node, apply("Squeeze", part, int64s([0]))


OF_ROWS = stated(
    "x w",
    worthwhile("the matrix is constant, its rows are not: w.is_constant and not x.is_constant"),
    "the right operand is a matrix: w.rank == 2",
    "the number of rows is known: isinstance(x.shape[-2], int) and x.shape[-2] > 0",
)


@group_rule(
    where=[*MERGEABLE, *NO_VECTORS, *OF_ROWS],
    forms=[form(text, constant("w")) for text in ("x @ w + y @ w", "Concat(x @ w, y @ w, axis=a)", "(x @ w) @ w")],
)
def merge_matmuls_of_one_matrix(view: GroupView) -> Iterator[Merge]:
    """``(x1 @ w, x2 @ w, ...) == Split(Concat(x1, x2, ...) @ w)`` along the rows, for constant ``w`` of two axes.

    The inputs agree in all extents but the rows, and none is computed from another, or from one of the products.
    """
    alike: dict[Hashable, dict[int, Branch]] = {}
    for branch in products(view, "MatMul"):
        x, w = branch.x, branch.w
        if view.meets(NO_VECTORS, x=x, w=w) and view.meets(OF_ROWS, x=x, w=w):
            alike.setdefault((w.handle, x.shape[:-2], x.dtype), {}).setdefault(branch.node.handle, branch)
    for branches in alike.values():
        group = _independent(view, list(branches.values()))
        if len(group) > 1:
            axis = group[0].x.rank - 2
            rows = apply("Concat", *(branch.x for branch in group), axis=axis)
            yield from parts_of(apply("MatMul", rows, group[0].w), group, [int(b.x.shape[-2]) for b in group], axis)


def _independent(view: GroupView, group: list[Branch]) -> list[Branch]:
    """The branches whose input is computed neither from a product nor from the input of another, nor joined of several already.

    The inputs of others are mostly other forms of one product: ``(x + c) @ w`` is there as ``x @ w``, too.
    """
    if len(group) < 2:
        return group
    products = {branch.node.handle for branch in group}
    inputs = {branch.x.handle for branch in group}

    def is_independent(x: Ref) -> bool:
        return not computed_from(view, [x], products | (inputs - {x.handle})) and not any(
            op == "Concat" for op, _ in view.spellings(x)
        )

    return [branch for branch in group if is_independent(branch.x)]
