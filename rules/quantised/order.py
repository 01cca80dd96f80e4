"""Quantisation by a positive scale keeps order: what compares elements, bounds them or pads them runs on the integers.

Where each result is one of the elements and never falls when they rise, it commutes with every function that rises. As in
`eqsat.rules.quantised.movement`, DequantizeLinear moves behind such an operator, and QuantizeLinear before it.
"""

from typing import Any

import numpy as np

from eqsat.conditions import another_value, constant, worthwhile
from eqsat.equations import Equations
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import Operator, traits_of
from eqsat.ir.operators.windows import covers_data
from eqsat.ir.schema_operator import further_inputs, takes_types
from eqsat.ir.traits import EVERY
from eqsat.ir.types import DType, TensorType
from eqsat.rewrite import Condition, Hint, Ref, Term, apply, for_each_operator, literal
from eqsat.rules.quantised import scales
from eqsat.rules.quantised.scales import (
    bytes_before,
    bytes_behind,
    integer_range,
    kernels_before,
    kernels_behind,
    one_scale,
    positive_scale,
    shorthands,
)

Bounds = list[np.ndarray | None]


def quantised(number: Any, x: Ref, s: Ref, z: Ref | None, n: Ref) -> np.ndarray:
    """A number quantised by each scale, as ``n`` quantises ``x``. Raises `Unmet` if the parameters are not known."""
    scale = s.value.reshape(-1)
    whole = np.full(scale.shape, np.asarray(number).reshape(()), x.dtype.numpy)
    zero = None if z is None else z.value.reshape(-1)
    return evaluate_operator("QuantizeLinear", n.attributes.updated(axis=0), (whole, scale, zero))[0]


def bounds(low: Any, high: Any, x: Ref, s: Ref, z: Ref | None, n: Ref) -> Bounds:
    """Two bounds quantised; ``None`` for one that is not there."""
    given = [b.value if isinstance(b, Ref) else b for b in (low, high)]
    return [None if b is None else quantised(b, x, s, z, n) for b in given]


def bind(found: Bounds, dtype: DType) -> list[bool]:
    """Which of two bounds lies within the range of the type."""
    ends = zip(found, integer_range(dtype), strict=True)
    return [b is not None and bool((b != end).any()) for b, end in ends]


def bounded(integers: Term, found: Bounds, x: Ref, n: Ref) -> Term:
    """Integers between two bounds: Clip between numbers, Max and Min where each slice of an axis has its own."""
    dtype = n.dtype
    if all(b is None or len(set(b.tolist())) == 1 for b in found):
        numbers = [end if b is None else b[0] for b, end in zip(found, integer_range(dtype), strict=True)]
        return apply("Clip", integers, *(literal(v, dtype) for v in numbers))
    behind = x.rank - 1 - n.attr("axis", 1) % x.rank
    for op, bound, needed in zip(("Max", "Min"), found, bind(found, dtype), strict=True):
        if bound is not None and needed:
            integers = apply(op, integers, literal(bound.reshape(-1, *(1,) * behind)))
    return integers


def border(a: Ref, v: Ref | None, x: Ref, s: Ref, z: Ref | None, n: Ref) -> Term | None:
    """What a Pad writes, quantised; ``None`` where it copies elements."""
    if a.attr("mode", "constant") != "constant":
        return None
    return literal(quantised(0 if v is None else v.value, x, s, z, n)[0])


def covers(window: Ref) -> bool:
    """Whether every window covers an element of the input."""
    return "kernel_shape" not in window.attributes or covers_data(window.attributes)


def within_scales(s: Ref, z: Ref | None, n: Ref) -> bool:
    """Whether all elements of a batch and channel are quantised alike."""
    return scales.per_tensor(s, z) or n.attr("axis", 1) % n.rank in (0, 1)


def finite(*names: str) -> Condition:
    """The values are finite constants, or absent."""

    def holds(m: Any) -> bool:
        given = [m[n] for n in names if m[n] is not None]
        return all(b.is_constant and bool(np.isfinite(b.interval).all()) for b in given)

    return Condition(f"{', '.join(names)} finite", holds, names, tuple(Hint(n, constant=True) for n in names))


equation = Equations(__name__, source="monotone quantisation", shorthands=shorthands, functions=scales.functions)
_whole_axes = "no axis is empty: 0 not in q.static_shape"
_windows = ("no window mixes scales: within_scales(s, z, n)", "no blocks: unblocked(n.attributes)")
_covered = "every window covers data: covers(a)"
_finite_range = "no integer dequantises to infinity: s.high * 256 < limit(s)"
_one_type = "one integer type: p.dtype is q.dtype"
_of_either = another_value("n"), another_value("n2")

# --- each element is one of several


def picks_by_order(op: Operator) -> bool:
    """Whether each element is an element of the first input, by order alone, and bytes are allowed."""
    facts = op.traits
    one_of_first = facts.rising and facts.sources == (0,) and not (facts.moves or facts.or_zero)
    taken = takes_types(op.name, [TensorType(DType.UINT8, None)])
    return one_of_first and taken and "::" not in op.name and (facts.reduces or facts.spatial)


def takes_windows(op: Operator) -> bool:
    return op.traits.spatial and picks_by_order(op)


def takes_extremes(op: Operator) -> bool:
    """Whether each element is one of those at its place, by order alone."""
    return op.traits.rising and op.traits.sources == EVERY and "::" not in op.name


@for_each_operator(picks_by_order)
def _behind(op: str) -> None:
    others = further_inputs(op)
    where = (*_windows, _covered) if traits_of(op).spatial else (one_scale, _whole_axes)
    text = f"{op}(D(q){others}, **a) == D({op}(q{others}, **a))"
    equation(f"move_dequantize_behind_{op.lower()}", text, positive_scale, *where, bytes_before)


@for_each_operator(takes_windows)
def _before(op: str) -> None:
    text = f"Q({op}(x, **a)) == {op}(Q(x), **a)"
    equation(f"move_quantize_before_{op.lower()}", text, positive_scale, *_windows, _covered, bytes_behind)


@for_each_operator(takes_extremes)
def _of_two(op: str) -> None:
    text = f"{op}(D(q), DequantizeLinear(p, s, *z, **n2)) == D({op}(q, p))"
    where = (positive_scale, one_scale, bytes_before, _one_type, *_of_either)
    equation(f"move_dequantize_behind_{op.lower()}", text, *where)
    text = f"Q({op}(x, y)) == {op}(Q(x), Q(y))"
    equation(f"move_{op.lower()}_behind_quantize", text, positive_scale, one_scale, bytes_behind)


equation(
    "move_dequantize_behind_where",
    "Where(c, D(q), DequantizeLinear(p, s, *z, **n2)) == D(Where(c, q, p))",
    one_scale,
    kernels_before,
    _one_type,
    *_of_either,
    source="each element is one of two",
)
equation(
    "move_quantize_before_where",
    "Q(Where(c, x, y)) == Where(c, Q(x), Q(y))",
    constant("x", "y"),
    one_scale,
    kernels_behind,
    source="each element is one of two",
)

# --- positions

_in_order = (positive_scale, one_scale, bytes_before, _finite_range)
_told_apart = (
    positive_scale,
    one_scale,
    kernels_before,
    _finite_range,
    "floats that hold the integers: holds_integers(n.dtype, q.dtype) and n.dtype is s.dtype",
)
for _op in ("ArgMax", "ArgMin"):
    equation(f"{_op.lower()}_of_integers", f"{_op}(D(q), **a) == {_op}(q, **a)", *_told_apart)
equation(
    "move_dequantize_behind_topk",
    "TopK(D(q), k, outputs=2, **a)[0] == D(TopK(q, k, outputs=2, **a)[0])",
    *_in_order,
    "in order: a.attr('sorted', 1)",
)
equation(
    "topk_of_integers",
    "TopK(D(q), k, outputs=2, **a)[1] == TopK(q, k, outputs=2, **a)[1]",
    *_told_apart,
    "in order: a.attr('sorted', 1)",
)

# --- bounds


equation(
    "move_relu_before_dequantize",
    "Relu(D(q)) == D(Clip(q, zero_number(z, q.dtype)))",
    positive_scale,
    one_scale,
    bytes_before,
)
for _name, _clamp, _ends, _where in (
    ("relu", "Relu(x)", "0, None", ()),
    ("clip", "Clip(x, *low, *high)", "low, high", (finite("low", "high"),)),
):
    _bounds = f"bounds({_ends}, x, s, z, n)"
    equation(
        f"move_{_name}_behind_quantize",
        f"Q({_clamp}) == bounded(Q(x), {_bounds}, x, n)",
        positive_scale,
        constant("z"),
        *_where,
        "no blocks: not n.attr('block_size', 0)",
        bytes_behind,
        worthwhile(f"a bound lies within the range: any(bind({_bounds}, root.dtype))"),
    )

# --- borders

equation(
    "move_dequantize_behind_pad",
    "Pad(D(q), p, *v, **a) == D(Pad(q, p, zero_number(z, q.dtype), **a))",
    constant("s", "z", "v"),
    one_scale,
    kernels_before,
    Condition("a border of zeros", lambda m: m.v is None or m.v.interval == (0, 0), hints=(Hint("v", value=0.0),)),
    "the scale is finite: abs(s.low) < inf and abs(s.high) < inf",
    source="the zero point dequantises to 0",
)
equation(
    "move_quantize_before_pad",
    "Q(Pad(x, p, *v, **a)) == Pad(Q(x), p, border(a, v, x, s, z, n), **a)",
    constant("s", "z"),
    finite("v"),
    one_scale,
    kernels_behind,
    source="each element is quantised by itself",
)
