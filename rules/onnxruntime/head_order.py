"""The order of heads that lie side by side in rows: what changes it goes into the weights before and behind.

    H(x) == Reshape(Transpose(Reshape(x, (0, 0, a, b, size)), (0, 1, 3, 2, 4)), (0, 0, b * a * size))

    H(x @ w) == x @ H(w)    H(x + b) == H(x) + H(b)    H(RotaryEmbedding(x)) == RotaryEmbedding(H(x))    H(x) @ w == x @ H'(w)

`shared_heads` asks for it: of heads that share keys and values it makes rows side by side.
"""

from collections.abc import Iterator

import numpy as np

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations, named, stated
from eqsat.exactness import Exactness
from eqsat.rewrite import GroupView, Merge, Ref, Term, apply, literal
from eqsat.rules.cuts import cuts
from eqsat.rules.onnxruntime.parameters import lies_along
from eqsat.rules.onnxruntime.shared_heads import exchanged_heads
from eqsat.rules.terms import add, by_class, complete_nodes, matmul, permutation_of, transposes
from eqsat.samples import Drawing, Instance, Sampler, fixed


def exchanges_heads(t: Ref, p: object, x: Ref, y: Ref) -> bool:
    """Whether ``t`` has two axes of heads, of known number and size, of the rows ``x`` exchanged, and ``y`` is rows again."""
    in_rows = x.rank == y.rank == 3 and t.shape[:2] == x.shape[:2] == y.shape[:2]
    return p == (0, 1, 3, 2, 4) and in_rows and all(isinstance(d, int) for d in t.shape[2:])


def order(t: Ref) -> np.ndarray:
    """Of each feature of ``t`` in rows, which one it was before."""
    inner, outer, size = map(int, t.shape[2:])
    return np.arange(inner * outer * size).reshape(outer, inner, size).transpose(1, 0, 2).reshape(-1)


def columns(w: Ref, t: Ref) -> Term:
    """The columns of a matrix, or the elements of a vector, in the order that ``t`` has them."""
    return apply("Gather", w, literal(order(t)), axis=w.rank - 1)


def rows(w: Ref, t: Ref) -> Term:
    """The rows of a matrix in the order in which they are multiplied with what ``t`` has in another one."""
    return apply("Gather", w, literal(np.argsort(order(t))), axis=0)


def exchanged(x: Ref, t: Ref) -> Term:
    inner, outer, size = map(int, t.shape[2:])
    return exchanged_heads(x, outer, inner, size)


equation = Equations(
    __name__,
    where=["heads are exchanged: exchanges_heads(t, p, x, y)"],
    domain="com.microsoft",
    source="permutation of columns; contrib operators of ONNX Runtime",
    functions=named(lies_along),
)


DRAWN = """u = [B, L, O, I, S]; v = [B, L, O * I * S] | [B, L, I, O * S]; p = (0, 1, 3, 2, 4) | (0, 1, 2, 4, 3) | (1, 0, 3, 2, 4)
           x: [B, L, O * I * S];"""
HEADS = "Reshape((t := Transpose(Reshape({}, u, **a), perm=p)), v, **y)"
equation(
    "order_heads_in_weights",
    f"{HEADS.format('MatMul(x, w)')} == MatMul(x, columns(w, t))",
    constant("w"),
    exactness=Exactness.ROUNDING,  # kernels may sum the last columns in another order
    drawn=f"{DRAWN} x: [B, L, N]; w: [N, O * I * S]",
)
equation(
    "order_heads_in_bias",
    f"{HEADS.format('x + b')} == exchanged(x, t) + columns(b, t)",
    constant("b"),
    "a bias along the last axis: lies_along(b, x) and y.shape == x.shape",
    drawn=f"{DRAWN} b: [O * I * S] | [1] | [L, O * I * S]",
)
equation(
    "order_heads_before_rotary_embedding",
    f"{HEADS.format('RotaryEmbedding(x, c, s, num_heads=n, **r)')} == RotaryEmbedding(exchanged(x, t), c, s, num_heads=n, **r)",
    "whole heads are: y.shape == x.shape and t.shape[4] * n == x.shape[2]",
    drawn=(
        f"S = 4 | 2; {DRAWN} c: [B, L, S // 2]; s: [B, L, S // 2]; n = O * I",
        "n = O; c: [B, L, I * S // 2]; s: [B, L, I * S // 2]",
    ),
)
equation(
    "read_heads_in_order_of_weights",
    f"MatMul({HEADS.format('x')}, w) == MatMul(x, rows(w, t))",
    constant("w"),
    "one matrix: w.rank == 2",
    exactness=Exactness.ROUNDING,
    drawn=f"{DRAWN} v = [B, L, O * I * S]; w: [O * I * S, N] | [B, O * I * S, N]",
)

# --- parts of one product


def _draw_parts(d: Sampler) -> Instance:
    """Queries, keys and values of one product, with a bias at times, of which some change the order of heads."""
    drawing = Drawing()
    batch, length, outer, inner, size, other = d.extents(6, ones=0.1)
    widths = [outer * inner * size, *(n * size for n in d.choose(((1, 1), (1, 2), (inner * outer, 1))))]
    x = drawing.value(d.floats((batch, length, other)), {batch, length} if d.chance(0.3) else set[int]())
    whole = drawing.op("MatMul", x, drawing.value(d.either(d.floats((other, sum(widths))), 0.9)))
    if d.chance(0.4):
        bias = d.floats(d.choose(((sum(widths),), (sum(widths),), (1,))))
        whole = drawing.op("Add", whole, drawing.value(d.either(bias, 0.9)))
    parts = drawing.builder.op("Split", whole, drawing.value(fixed(widths, "int64")), outputs=3, axis=d.choose((2, -1)))
    outputs: list[str] = []
    for part, width in zip(parts, widths, strict=True):
        if width == widths[0] and d.chance(0.8):
            perm = (0, 1, 3, 2, 4) if d.chance(0.9) else (0, 1, 2, 4, 3)
            apart = drawing.op("Reshape", part, drawing.value(fixed([0, 0, outer, inner, size], "int64")))
            back = drawing.op("Transpose", apart, perm=perm)
            part = drawing.op("Reshape", back, drawing.value(fixed([0, 0, width], "int64")))
        outputs.append(drawing.op("Relu", part))
    return drawing.finish(*outputs)


CONSTANT = stated("w", worthwhile("weights and biases are constant: w.is_constant"))
ALONG = stated("w x", "a bias along the last axis: lies_along(w, x)", functions=named(lies_along))
EXCHANGED = stated("t p x y", "heads are exchanged: exchanges_heads(t, p, x, y)", functions=named(exchanges_heads))


class _Wholes:
    """What is a product with constant weights, and a constant bias at times."""

    def __init__(self, view: GroupView) -> None:
        self._view = view
        self._products = by_class(complete_nodes(view, "MatMul"))
        self._sums = by_class(complete_nodes(view, "Add"))

    def ordered(self, whole: Ref, indices: np.ndarray) -> Term | None:
        """``whole`` with its last axis in another order."""
        view, found = self._view, literal(indices)
        for x, w in self._products.get(whole.handle, ()):
            if view.meets(CONSTANT, w=w):
                return matmul(x, apply("Gather", w, found, axis=w.rank - 1))
        for y, w in self._sums.get(whole.handle, ()):
            if view.meets(CONSTANT, w=w) and view.meets(ALONG, w=w, x=whole) and y.handle != whole.handle:
                inner = self.ordered(y, indices)
                if inner is not None:
                    return add(inner, apply("Gather", w, found, axis=0))
        return None


def _orders(view: GroupView) -> dict[int, list[tuple[Ref, Ref]]]:
    """Class -> what exchanges its heads, and that in rows."""
    apart = by_class((node, x) for node, (x, _) in complete_nodes(view, "Reshape"))
    found: dict[int, list[tuple[Ref, Ref]]] = {}
    for t, source, perm in transposes(view):
        rows = [y for op, y, _ in view.users(t) if op == "Reshape"] if len(perm) == 5 else []
        for x in apart.get(source.handle, ()):
            found.setdefault(x.handle, []).extend((t, y) for y in rows)
    return found


@equation.over_groups(
    where=[*CONSTANT, *ALONG, *EXCHANGED],
    exactness=Exactness.ROUNDING,
    source="permutation of columns",
    sample=_draw_parts,
)
def order_heads_in_parts(view: GroupView) -> Iterator[Merge]:
    """``H(Split(x @ w + b)[i]) == Split(x @ w[:, p] + b[p])[i]`` for the order ``p`` that changes part ``i`` alone; the other
    parts are the same."""
    orders = _orders(view)
    wholes = _Wholes(view) if orders else None
    for cut, i in ((c, i) for c in cuts(view) for i, part in enumerate(c.parts) if part.handle in orders):
        for t, y in orders[cut.parts[i].handle] if cut.axis == cut.value.rank - 1 else ():
            if wholes and view.meets(EXCHANGED, t=t, p=permutation_of(t), x=cut.parts[i], y=y):
                start, indices = sum(cut.sizes[:i]), np.arange(sum(cut.sizes))
                indices[start : start + cut.sizes[i]] = start + order(t)
                whole = wholes.ordered(cut.value, indices)
                if whole is not None:
                    yield from cut.parts_of(view, whole, [y if j == i else p for j, p in enumerate(cut.parts)])
