"""Views: Reshape, Squeeze, Unsqueeze and Flatten have one normal form, a Reshape to a constant target.

Equal views of a value become one e-node, a chain of views one view, and the arithmetic that computed a dynamic target is dead
as soon as the types determine it. Symbolic extents stay: 0 copies the extent of the same axis, one other extent may be -1.
Both only where the program has the same -1: ONNX cannot tell what that is where a copied extent turns out to be 0.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from eqsat.conditions import constant, same_type, worthwhile
from eqsat.equations import Equations, form, named, stated
from eqsat.exactness import Exactness
from eqsat.ir.operator import operators_with
from eqsat.rewrite import Apply, GroupView, Match, Ref, Term, Unmet, group_rule
from eqsat.rules.terms import add, by_class, complete_nodes, reshape
from eqsat.rules.views.extents import viewed
from eqsat.rules.views.indices import is_view
from eqsat.rules.views.transposes import is_unary
from eqsat.samples import Sampler, fixed


def view_as(x: Ref, result: Ref, written: Ref | None = None) -> Term:
    """``x`` under the shape of ``result``, which holds the same elements in the same order; ``written``: the target that the
    program has for it, if it has.

    Raises `Unmet` as `eqsat.rules.views.extents.viewed` does. The -1 of a target may stay beside copied extents.
    """
    if result.shape == x.shape:  # both known, or there is nothing to say
        return x
    target = [
        d if isinstance(d, int) else 0 if i < x.rank and x.shape[i] == d else -1 for i, d in enumerate(result.shape)
    ]
    stated = target.count(-1) == 1 and written is not None and _is_open_at(written, target.index(-1))
    return reshape(x, target) if stated and 0 not in (*result.shape, *x.shape) else viewed(x, x.shape, result.shape, x)


def _is_open_at(target: Ref, axis: int) -> bool:
    """Whether a target certainly holds a -1 there."""
    try:
        return target.dims[axis] == -1
    except Unmet:
        return False


def only_ones_move(x: Ref, perm: Sequence[int]) -> bool:
    """Whether all axes but those of extent 1 keep their order."""
    moving = [p for p in perm if x.shape[p] != 1]
    return moving == sorted(moving)


def extents(value: Ref) -> np.ndarray:
    """The elements of a list of extents, which all are numbers."""
    return np.array(value.dims, np.int64).reshape(value.static_shape)


equation = Equations(__name__, source="ONNX operator specification", functions=named(add, viewed))

# --- one view in normal form


for name, left, written in (
    ("normalise_reshape", "Reshape(x, s, **n)", "s"),
    ("normalise_flatten", "Flatten(x, **f)", None),
    ("normalise_squeeze", "Squeeze(x, *ones)", None),
    ("normalise_unsqueeze", "Unsqueeze(x, new)", None),
    ("compose_reshapes", "Reshape(Reshape(x, m, **inner), t, **n)", "t"),
    ("compose_unsqueeze_and_reshape", "Reshape(Unsqueeze(x, new), t, **n)", None),
):
    equation(name, f"{left} == view_as(x, root, {written})")
equation(
    "replace_transpose_by_reshape",
    "Transpose(x, perm=p, **v) == view_as(x, root)",
    "only axes of extent 1 move: only_ones_move(x, p)",
)
equation(
    "replace_expand_by_reshape",
    "Expand(x, s) == view_as(x, root)",
    "only axes of extent 1 are added: root.shape == (1,) * (root.rank - x.rank) + x.shape",
)


def _viewed_back(view: GroupView) -> Iterator[Match]:
    """Views of a function of each element of a view."""
    views = [(node, x) for node, (x, *_) in complete_nodes(view, *operators_with(is_view))]
    before = by_class(views)
    behind = by_class((x, node) for node, x in views)
    for op in operators_with(is_unary) if before else ():
        for f, (y, *numbers) in view.nodes(op):
            for x in before.get(y.handle, ()) if y is not None else ():
                for node in behind.get(f.handle, ()):
                    yield Match({"x": x, "f": f, "op": op, "numbers": tuple(numbers)}, node)


@group_rule(
    find=_viewed_back,
    where=stated("x root", "the shape is that of before: x.shape == root.shape"),
    exactness=Exactness.EXACT,
    source="each element by itself",
    forms=[form("Squeeze(Relu(Unsqueeze(x, s)), t)"), form("Reshape(Neg(Reshape(x, s)), t)")],
)
def cancel_views_around_function(m: Match) -> Term:
    """``Reshape(f(Reshape(x)), shape of x) == f(x)`` for a function of each element."""
    return Apply(m.op, (m.x, *m.numbers), m.f.attributes)


equation("cancel_squeeze_of_unsqueeze", "Squeeze(Unsqueeze(x, s), *a) == x", same_type("x"))
equation("cancel_unsqueeze_of_squeeze", "Unsqueeze(Squeeze(x, *a), s) == x", same_type("x"))

# --- sums between views


def make_up(v: Ref, *parts: Ref) -> bool:
    """Whether some part has the extent of ``v`` along each axis."""
    shapes = [(1,) * (v.rank - part.rank) + part.shape for part in parts]
    return all(d in found for d, *found in zip(v.shape, *shapes, strict=True))


def _rows_and_columns(d: Sampler) -> dict[str, Any]:
    """Numbers by row and by column for what has them apart under a view, and is viewed as before behind the sum."""
    height, width, more = d.extents(3)
    apart, whole = (more, height, width), (more, height * width)
    columns = d.choose(((more, 1, width), (1, width), (more, height, 1), (more, height, width)))
    target = d.choose((whole, whole, whole, (more * height, width)))
    found: dict[str, Any] = {"s": fixed(apart, "int64"), "t": fixed(target, "int64"), "x": d.floats(whole)}
    return found | {"a": d.floats((more, height, 1)), "b": d.floats(columns)}


equation(
    "add_beside_view",
    "Reshape((y := Reshape(x, s, **v) + a + b), t, **n) == x + viewed(add(a, b), v.shape, x.shape, x)",
    same_type("x"),
    "what is added makes up all that is viewed: y.shape == v.shape and make_up(v, a, b)",
    worthwhile("neither part does so alone: not make_up(v, a) and not make_up(v, b)"),
    exactness=Exactness.ROUNDING,
    sample=_rows_and_columns,
)

# --- parts of shapes

for name, left, known in (
    ("fold_extent", "Gather(Shape(x, **n), i, **g)", "i"),
    ("fold_extents", "Slice(Shape(x, **n), s, t, *a, *b)", "stab"),
):
    equation(
        name,
        f"{left} == number(extents(root), root.dtype)",
        constant(*known),
        "the extents are known: all(isinstance(d, int) for d in root.dims)",
    )
