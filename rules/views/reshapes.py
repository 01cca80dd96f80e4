"""Views: Reshape, Squeeze, Unsqueeze and Flatten have one normal form, a Reshape to a constant target.

Equal views of a value become one e-node, a chain of views one view, and the arithmetic that computed a dynamic target is dead
as soon as the types determine it. Symbolic extents stay: 0 copies the extent of the same axis, one other extent may be -1.
Both only where the program has the same -1: ONNX cannot tell what that is where a copied extent turns out to be 0.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product, takewhile

import numpy as np

from eqsat.conditions import constant, same_type, worthwhile
from eqsat.equations import Equations, group_rule, named
from eqsat.exactness import Exactness
from eqsat.ir.operator import operators_with
from eqsat.ir.types import Dim
from eqsat.rewrite import Apply, GroupView, Match, Ref, Term, Unmet
from eqsat.rules.terms import add, by_class, complete_nodes, reshape
from eqsat.rules.views.counting import is_view
from eqsat.rules.views.extents import viewed
from eqsat.rules.views.transposes import is_elementwise
from eqsat.samples import Drawing, Instance, Sampler, fixed


def view_as(x: Ref, result: Ref, written: Ref | None = None) -> Term:
    """``x`` under the shape of ``result``, which holds the same elements in the same order; ``written``: the target that the
    program has for it, if it has.

    Raises `Unmet` as `eqsat.rules.views.extents.viewed` does. The -1 of a target may stay beside copied extents.
    """
    if result.shape == x.shape:  # both known, or there is nothing to say
        return x
    if None not in (x.type.size, result.type.size) and x.type.size != result.type.size:
        raise Unmet("the file declares another number of elements")  # of a Squeeze along axes that are not known
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


def beside(value: Ref, x: Ref, y: Ref) -> tuple[Dim, ...] | None:
    """The shape of an operand beside ``x`` that is, beside its view ``y``, a single number or lies along leading axes of both."""
    if all(d == 1 for d in value.shape):
        return tuple(value.shape) if value.rank <= x.rank else ()
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(x.shape, y.shape, strict=False)))
    shape = (1,) * (y.rank - value.rank) + tuple(value.shape)
    lies = len(shape) == y.rank and all(d == 1 or (i < alike and d == y.shape[i]) for i, d in enumerate(shape))
    return (*shape[:alike], *[1] * (x.rank - alike)) if lies else None


def _viewed_back(view: GroupView) -> Iterator[Match]:
    """Views of an elementwise operator with an operand that is a view."""
    views = [(node, x) for node, (x, *_) in complete_nodes(view, *operators_with(is_view))]
    before = by_class(views)
    behind = by_class((x, node) for node, x in views)
    functions = ((op, f, inputs) for op in operators_with(is_elementwise) if before for f, inputs in view.nodes(op))
    for op, f, inputs in (found for found in functions if found[1].handle in behind):
        for y in (y for y in inputs if y is not None and y.handle in before):
            others = [o for o in inputs if o is not None and o is not y]
            for x, node in product(before[y.handle], behind[f.handle]):
                yield Match({"x": x, "y": y, "f": f, "op": op, "inputs": inputs, "others": others}, node)


def _draw_viewed(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, *last = d.extents(3)
    narrow, wide = (rows, math.prod(last)), (rows, *last)
    x = drawing.value(d.floats(narrow), {rows} if d.chance(0.3) else ())
    y = drawing.op("Reshape", x, fixed((-1, *last), "int64"))
    if d.chance(0.3):
        made = drawing.op(d.choose(("Relu", "Neg")), y)
    else:
        other = d.choose((d.broadcast_of(wide), (rows, 1, 1), (1,) * d.integer(0, 4)))
        made = drawing.op(d.choose(("Mul", "Sub")), *(y, drawing.value(d.floats(other)))[:: d.choose((1, -1))])
    back = d.choose((narrow,) * 4 + (narrow[::-1],))
    return drawing.finish(drawing.op("Reshape", made, fixed((-1, back[1]), "int64")))


@group_rule(
    find=_viewed_back,
    where=[
        "the shape is that of before: x.shape == root.shape",
        "what is beside lies along leading axes of both: all(beside(o, x, y) is not None for o in others)",
    ],
    source="each element by itself",
    sample=_draw_viewed,
)
def cancel_views_around_function(m: Match) -> Term:
    """``Reshape(f(Reshape(x), c)) == f(x, c')`` for a function of each element and of single numbers, or of numbers along leading
    axes that the views leave as they are, where the shape is that of before."""
    shapes = {o.handle: beside(o, m.x, m.y) or () for o in m.others}
    inside = [m.x if o is m.y else o and viewed(o, o.shape, shapes[o.handle], o) for o in m.inputs]
    return Apply(m.op, tuple(inside), m.f.attributes)


equation("cancel_squeeze_of_unsqueeze", "Squeeze(Unsqueeze(x, s), *a) == x", same_type("x"))
equation("cancel_unsqueeze_of_squeeze", "Unsqueeze(Squeeze(x, *a), s) == x", same_type("x"))

# --- sums between views


def make_up(v: Ref, *parts: Ref) -> bool:
    """Whether some part has the extent of ``v`` along each axis."""
    shapes = [(1,) * (v.rank - part.rank) + part.shape for part in parts]
    return all(d in found for d, *found in zip(v.shape, *shapes, strict=True))


equation(
    "add_beside_view",
    "Reshape((y := Reshape(x, s, **v) + a + b), t, **n) == x + viewed(add(a, b), v.shape, x.shape, x)",
    same_type("x"),
    "what is added makes up all that is viewed: y.shape == v.shape and make_up(v, a, b)",
    worthwhile("neither part does so alone: not make_up(v, a) and not make_up(v, b)"),
    exactness=Exactness.ROUNDING,
    drawn="""x: [M, H * W]; s = [M, H, W]; t = [M, H * W] | [M * H, W]; a: [M, H, 1]
             b: [M, 1, W] | [1, W] | [M, H, 1] | [M, H, W]""",
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
