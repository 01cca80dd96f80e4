"""Associativity, guarded: constants in a chain of products, or of sums, become one constant.

Free associativity never ends. Constants rounded to floats make it worse: a value that is a multiple of itself by a factor one
unit in the last place off 1 has a new spelling in every iteration. So constants only move together, or outwards, a class gets
few such spellings, and the constants must be of ordinary size: ``(x + c) - c`` with a huge ``c`` is how one rounds, not the
identity.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import ml_dtypes
import numpy as np

from eqsat.conditions import constant, kernels, same_type, varies, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.rewrite import Apply, Condition, GroupView, Match, Ref, Term, Unmet, apply
from eqsat.rules.linear.alignment import FLOATS, are_ordinary_summands, extremes, is_ordinary_shift
from eqsat.rules.terms import mul
from eqsat.samples import Drawing, Fixed, Instance, Sampler, fixed

equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source="associativity over the reals",
    functions=named(is_ordinary_shift),
)

_NEAR = 1e-3
"""How far from 1 the product of two factors is that undo each other."""

_SPELLINGS = 4
"""Values of which one class may be a multiple, or a sum with a constant."""


def _largest_ordinary(c: Ref) -> float:
    """The largest factor that is far from overflow, as its reciprocal is from underflow, even as a product of two: normal, in
    float16, whose range is short."""
    return max(float(ml_dtypes.finfo(c.dtype.numpy).max) ** 0.25, 2.0**7)


def are_ordinary_factors(*factors: Ref) -> bool:
    """Whether none is near zero, nor their product larger than that of two of ordinary size."""
    sizes = [extremes(c) for c in factors]
    limit = min(map(_largest_ordinary, factors), default=math.inf)
    return all(1 / limit <= least for least, _ in sizes) and math.prod(most for _, most in sizes) <= limit**2


def is_ordinary_factor(c: Ref) -> bool:
    least, greatest = extremes(c)
    return 1 / _largest_ordinary(c) <= least and greatest <= _largest_ordinary(c)


def chains(view: GroupView, op: str) -> Iterator[tuple[Ref, Ref, Ref]]:
    """Each ``op`` of floats with its variable and its constant operand."""
    for node, (p, q) in view.nodes(op):
        if p is not None and q is not None and p.is_constant != q.is_constant and node.type.dtype.is_float:
            yield node, *((q, p) if p.is_constant else (p, q))


# --- two constants in a chain


def draw(d: Sampler, op: str, kinds: Sequence[str], inverse: str = "") -> Instance:
    """``a op (b op c)`` of three values, those of the kind ``c`` constants of any size; mostly beside ``b op a``, at times with a
    constant more."""
    drawing = Drawing()
    shape = d.shape(1, 3)
    dtype = d.choose(("float32", "float32", "float16"))
    tiny = (
        dtype == "float32" and op == "Mul" and d.chance(0.15)
    )  # the product of two is 0, and a constant brings it back
    values: list[str] = []
    for kind in d.choose(kinds):
        form = () if d.chance(0.6) else d.broadcast_of(shape)
        if kind == "c":
            array = d.scale(form, dtype) if op == "Mul" else d.floats(form, dtype)
            if tiny or d.chance(0.15):
                with np.errstate(over="ignore"):
                    factor = 1e30 if tiny else 60000.0 if dtype == "float16" else d.choose((12582912.0, 1e-30))
                    array = array * np.asarray(factor, dtype)
        else:
            array = d.floats(shape, dtype, infinite=not tiny and d.chance(0.1)) * np.asarray(
                1e-25 if tiny else 1, dtype
            )
        values.append(drawing.value(Fixed(array) if kind == "c" and d.chance(0.95) else array))
    a, b, c = values
    inner = drawing.op(d.choose((op, inverse or op)), *((b, c) if d.chance(0.7) else (c, b)))
    root = drawing.op(op, *((a, inner) if d.chance() else (inner, a)))
    if d.chance(0.3):
        root = drawing.op(op, root, fixed(d.choose((1.0, 0.5, -2.0)), dtype))
    return drawing.finish(root, *([drawing.op(op, b, a)] if d.chance(0.9) else []), *d.subset([inner], 0.3))


def _pairs(view: GroupView, op: str) -> Iterator[Match]:
    """Each ``(x op inner) op outer`` of two constants, a few for each value, and of long chains those that reach twice as far in
    each round: the oldest value lies farthest."""
    found: dict[int, dict[int, tuple[Ref, Ref]]] = {}
    for node, x, c in chains(view, op):
        found.setdefault(node.handle, {}).setdefault(x.handle, (x, c))
    spelled = {handle: set(known) for handle, known in found.items()}
    oldest = {handle: min(known) for handle, known in found.items()}
    for node, middle, outer in chains(view, op):
        there = spelled[node.handle]
        for x, inner in found.get(middle.handle, {}).values():
            new = x.handle not in (node.handle, middle.handle) and x.handle not in there
            farthest = x.handle == oldest[middle.handle] < middle.handle == oldest[node.handle]
            if new and (farthest or len(there) < _SPELLINGS):
                there.add(x.handle)
                yield Match({"x": x, "inner": inner, "outer": outer, "op": op}, node)


def ordinary(sizes: Callable[..., bool], *names: str) -> Condition:
    """The constants among the values are of ordinary size."""
    return Condition(
        f"constants among {', '.join(names)} of ordinary size",
        lambda m: sizes(*(m[n] for n in names if m[n].is_constant)),
    )


def stays_small(inner: Ref, outer: Ref) -> bool:
    p, q = inner.static_shape, outer.static_shape
    return math.prod(np.broadcast_shapes(p, q)) <= max(math.prod(p), math.prod(q))


SMALL = worthwhile("together no larger than the larger one, as a row and a column are: stays_small(inner, outer)")


def _define(op: str, name: str, text: str, sizes: Callable[..., bool]) -> None:
    def merged(m: Match) -> Term:
        return Apply(m.op, (m.x, apply(m.op, m.inner, m.outer)))

    merged.__name__, merged.__doc__ = name, f"``{text}`` for constants of ordinary size."
    equation.over_groups(
        find=partial(_pairs, op=op),
        where=[ordinary(sizes, "inner", "outer"), SMALL],
        sample=partial(draw, op=op, kinds=("cxc", "ccx", "xcc")),
    )(merged)


_define("Mul", "merge_constant_factors", "(x * c1) * c2 == x * (c1 * c2)", are_ordinary_factors)
_define("Add", "merge_constant_summands", "(x + c1) + c2 == x + (c1 + c2)", are_ordinary_summands)

# --- factors that undo one another


def undo(c: Ref, d: Ref) -> bool:
    """Whether the products of the elements are 1, as nearly as that is rounded."""
    products = np.multiply(*(v.value.astype(np.float64) for v in (c, d)))
    return bool((np.abs(products - 1) <= 2 * float(ml_dtypes.finfo(c.dtype.numpy).eps)).all())


BACK = (
    "N = 2.0 | 0.3 | -5.0; x: [A, K]; c = N; d = 1 / N; b: [K] | []",
    "c = fixed([[N, -N]] * K, 'float32'); x: float32[K, 2]; d = fixed([1 / N, -1 / N], 'float32')",
    "c = fixed([N] * K, 'float32'); x: float32[A, K] | float32[1]; d = fixed(1 / N, 'float32')",
    "c = 1e-38; d = 1e38; b = 1.5",
    "d = 1.01 / N",
    "b = 3e7 * N",
)
"""Factors that undo one another, nearly, or no longer do so; a summand between them that rounds what it is added to."""

# Of constants, too: a value that is a multiple of its own multiple hands weights the one factor and then the other, for ever.
equation(
    "cancel_factors",
    "(x * c) * d == x",
    constant("c", "d"),
    kernels("x", *sorted(FLOATS)),
    same_type("x"),
    ordinary(are_ordinary_factors, "c", "d"),
    "they undo one another: undo(c, d)",
    drawn=BACK,
)

# Of what lies between the two nothing but the summand is left. Merging any two factors around a summand would make a new value of
# ``x``, and of that others, for ever.
equation(
    "cancel_factors_around_summand",
    "((t := x * c) + b) * d == x + b * d",
    constant("b", "c", "d"),
    kernels("x", *sorted(FLOATS)),
    "the first factor enlarges nothing: t.shape == x.shape",
    varies("x"),
    ordinary(are_ordinary_factors, "c", "d"),
    "b of ordinary size beside c: is_ordinary_shift(b, c)",
    "they undo one another: undo(c, d)",
    drawn=BACK,
)

# --- a number in a product of variables


def _number(c: Ref) -> float | None:
    """The number that a constant is."""
    try:
        return float(c.value.reshape(())) if c.type.size == 1 else None
    except Unmet:
        return None


def _products(view: GroupView) -> Iterator[Match]:
    """Each ``x * (y * c)`` of floats for a number ``c``, with the numbers of which ``x`` is a multiple.

    Not where ``y * c`` is dequantised: ``c`` is a scale then, or part of one.
    """
    dequantised = {node.handle for node, _ in view.nodes("DequantizeLinear")}
    multiples: dict[int, list[tuple[Ref, Ref, float]]] = {}
    factors: dict[int, list[float]] = {}
    for node, y, c in chains(view, "Mul"):
        number = _number(c)
        if number is not None:
            factors.setdefault(node.handle, []).append(number)
            if node.handle not in dequantised:
                multiples.setdefault(node.handle, []).append((y, c, number))
    for node, (_, divisor) in view.nodes("Div"):
        number = _number(divisor) if divisor is not None and divisor.is_constant and node.dtype in FLOATS else None
        if number:
            factors.setdefault(node.handle, []).append(1 / number)
    for node, (p, q) in view.nodes("Mul"):
        if p is None or q is None or p.is_constant or q.is_constant or node.type.dtype not in FLOATS:
            continue
        for x, middle in ((p, q), (q, p)):
            for y, c, number in multiples.get(middle.handle, ()):
                yield Match({"x": x, "y": y, "c": c, "number": number, "factors": factors.get(x.handle, ())}, node)


def ends(number: float, factors: Sequence[float]) -> bool:
    """A value that is a multiple of its own multiple has ever new spellings, as weights that absorb the one factor and then the
    other."""
    return not any(abs(number * other - 1) < _NEAR for other in (1, *factors))


@equation.over_groups(
    find=_products,
    where=[
        ordinary(is_ordinary_factor, "c"),
        worthwhile("c not about 1, and x no multiple by about 1 / c: ends(number, factors)"),
    ],
    sample=partial(draw, op="Mul", kinds=("xyc", "xcy", "xyz")),
)
def move_number_out_of_product(m: Match) -> Term:
    """``x * (y * c) == (x * y) * c`` for a number ``c`` of ordinary size, and not about 1, nor about what undoes a factor of
    ``x``."""
    return mul(mul(m.x, m.y), m.c)
