"""Products by constants one after the other, and side by side in a sum, as one product.

An adapter of low rank merges with the weights beside it: ``x @ w + (x @ a) @ b == x @ (w + a @ b)``. Alone, ``(x @ a) @ b`` is
one product only where that is no larger: two small factors in place of a large matrix are there to save memory.
"""

from eqsat.conditions import constant, varies, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.rewrite import Ref
from eqsat.rules.linear.alignment import FLOAT, finite_sum, largest, limit, not_all, stay_normal


def bound(a: Ref, b: Ref) -> float:
    """What no partial sum of the elements of ``a @ b`` exceeds."""
    return largest(a) * largest(b) * a.static_shape[-1]


equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source="associativity and distributivity of the matrix product; Hu et al. 2021",
    functions=named(largest, limit, stay_normal),
)
MATRICES = worthwhile("the factors are matrices: a.rank == 2 and b.rank == 2")
ONE_SHAPE = "matrices of one shape: w.rank >= 2 and w.static_shape == v.static_shape"
ADAPTED = (
    constant("w", "a", "b"),
    varies("x"),
    FLOAT,
    MATRICES,
    "the products are of one shape: w.static_shape == (a.static_shape[0], b.static_shape[1])",
    "w + a @ b finite: largest(w) + bound(a, b) < limit(w)",
)
SUMMED = (constant("w", "v"), varies("x"), FLOAT, ONE_SHAPE, finite_sum("w", "v"))

equation(
    "multiply_constant_factors_first",
    "(p := x @ a) @ b == x @ (a @ b)",
    constant("a", "b"),
    varies("x"),
    FLOAT,
    MATRICES,
    worthwhile("the product is another value: root.handle != p.handle"),
    worthwhile(not_all("a", 0)),  # else all products of ``x @ 0`` are one value, which scales by anything
    worthwhile("a @ b is no larger than both: a.static_shape[0] * b.static_shape[1] <= a.type.size + b.type.size"),
    "a @ b finite: bound(a, b) < limit(a)",
    "a @ b keeps its digits: stay_normal(largest(a), b)",
)
equation(
    "add_constant_factors_first",
    "x @ w + x @ v == x @ (w + v)",
    *SUMMED,
    worthwhile("not the other way round: w.handle <= v.handle"),
)
equation("add_constant_factors_beside_bias", "(x @ w + c) + x @ v == x @ (w + v) + c", *SUMMED, constant("c"))
equation("merge_adapter_into_weights", "x @ w + (x @ a) @ b == x @ (w + a @ b)", *ADAPTED)
equation(
    "merge_adapter_into_weights_beside_bias",
    "(x @ w + c) + (x @ a) @ b == x @ (w + a @ b) + c",
    *ADAPTED,
    constant("c"),
)
