"""Clamps: Clip, Relu, Max and Min with constant bounds compose, become one another, or do nothing."""

import math

import ml_dtypes

from eqsat.conditions import between, constant, floating, one_element, same_type
from eqsat.equations import Equations
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, apply, literal

Bound = Ref | float | None
Bounds = tuple[Bound, Bound]


def bound(of: Bound) -> float | None:
    """The number that a bound is, ``None`` for an absent one."""
    return of.value.reshape(-1)[0].item() if isinstance(of, Ref) else of


def clip(x: Ref, low: Bound, high: Bound) -> Term:
    """Clip with these bounds. An infinite one stays: of infinity under a Clip that is open there ONNX Runtime makes the largest
    number."""
    bounds = [None if v is None else literal(v, x.dtype) for v in map(bound, (low, high))]
    return x if bounds == [None, None] else apply("Clip", x, *bounds)


def clipped(value: float, bounds: Bounds) -> float:
    """``min(max(value, low), high)``, as Clip computes it."""
    low, high = map(bound, bounds)
    value = value if low is None else max(value, low)
    return value if high is None else min(value, high)


def composed(x: Ref, inner: Bounds, outer: Bounds) -> Term:
    """The one Clip that does what two do: its bounds are where the two send the ends of the number line, which is open where
    both are."""
    low, high = (clipped(clipped(end, inner), outer) for end in (-math.inf, math.inf))
    ends = ((low, inner[0], outer[0]), (high, inner[1], outer[1]))
    return clip(x, *(None if math.isinf(end) and a is b is None else end for end, a, b in ends))


def least(dtype: DType) -> float:
    """The least number of an element type."""
    return int(ml_dtypes.iinfo(dtype.numpy).min) if dtype.is_integer else -math.inf


def greatest(dtype: DType) -> float:
    """The greatest number of an element type."""
    return int(ml_dtypes.iinfo(dtype.numpy).max) if dtype.is_integer else math.inf


def numbers(*bounds: Ref | None) -> bool:
    """Whether no bound is NaN, which the kernels of Clip order differently."""
    return not any(b is not None and math.isnan(float(b.value.reshape(-1)[0])) for b in bounds)


# --- one clamp for two

equation = Equations(__name__, source="a composition of clamps is a clamp; NaN passes through")
for name, left, right, bounds in (
    ("compose_clips", "Clip(Clip(x, *a, *b), *f, *g)", "composed(x, (a, b), (f, g))", "abfg"),
    ("compose_clip_of_relu", "Clip(Relu(x), *a, *b)", "composed(x, (0, None), (a, b))", "ab"),
    ("compose_relu_of_clip", "Relu(Clip(x, *a, *b))", "composed(x, (a, b), (0, None))", "ab"),
):
    equation(name, f"{left} == {right}", constant(*bounds), f"no bound is NaN: numbers({', '.join(bounds)})")

# --- extrema with constants, and clamps that do nothing

equation = Equations(__name__, source="definitions of Clip, Relu, Max and Min")
equation(
    "clip_instead_of_min_of_max",
    "Min(Max(x, c), e) == clip(x, c, e)",
    constant("c", "e"),
    same_type("x"),
    one_element("c", "e"),
    "no bound is NaN: numbers(c, e)",
)
equation(
    "clip_instead_of_max_of_min",
    "Max(Min(x, e), c) == clip(x, c, e)",
    constant("c", "e"),
    same_type("x"),
    one_element("c", "e"),
    "c at most e: bound(c) <= bound(e)",
)
equation("normalise_relu", "Max(x, 0) == Relu(x)", same_type("x"), floating("x"))
equation("remove_relu_of_nonnegative", "Relu(x) == x", between("x", low=0))
equation(
    "remove_clip_beyond_range",
    "Clip(x, *a, *b) == x",
    constant("a", "b"),
    "no element below a: a is None or bound(a) <= max(x.low, least(x.dtype))",
    "no element above b: b is None or min(x.high, greatest(x.dtype)) <= bound(b)",
)
equation("remove_max_below_range", "Max(x, c) == x", constant("c"), same_type("x"), "c at most x: c.high <= x.low")
equation("remove_min_above_range", "Min(x, c) == x", constant("c"), same_type("x"), "c at least x: x.high <= c.low")
