"""Clamps (E18): Clip, Relu, Max and Min with constant bounds compose, become one another, or do nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import Match, Ref, Term, Unmet, apply, literal, rule, variables
from eqsat.rules.sampling import Applied, Sampler, fixed
from eqsat.rules.terms import condition, constant, every_element, same_type

EXACT = Exactness.EXACT
COMPOSITION = "a composition of clamps is a clamp; NaN passes through"
x, y, c, e = variables("x y c e")
a, b, f, g = variables("a? b? f? g?")


def _bound(ref: Ref | None) -> float | int | None:
    """The scalar of a bound, ``None`` for an absent one. Raises `Unmet` for NaN."""
    if ref is None:
        return None
    found = ref.value.reshape(-1)[0].item()
    if found != found:
        raise Unmet("a bound is NaN")
    return found


def _clamped(value: float | int, low: float | int | None, high: float | int | None) -> float | int:
    """``min(max(value, low), high)``, as Clip computes it."""
    value = value if low is None else max(value, low)
    return value if high is None else min(value, high)


def _clip(x: Ref, low: float | int | None, high: float | int | None) -> Term:
    """Clip with these bounds, which are left out where they are infinite."""
    bounds: list[Any] = [None if v is None or abs(v) == np.inf else literal(v, x.dtype) for v in (low, high)]
    if bounds == [None, None]:
        return x
    return apply("Clip", x, *bounds)


def _composed(x: Ref, inner: tuple[Any, Any], outer: tuple[Any, Any]) -> Term:
    """The one Clip that does what two do: its bounds are where the two send the ends of the number line."""
    ends = (-np.inf, np.inf)
    low, high = (_clamped(_clamped(end, *inner), *outer) for end in ends)
    return _clip(x, low, high)


def _bounds(d: Sampler, low: str, high: str, dtype: str = "float32") -> dict[str, Any]:
    """Constant bounds, of which either may be absent and the lower one may exceed the upper one."""
    first, second = d.choose((-2.0, -1.0, 0.0, 1.0)), d.choose((0.0, 1.0, 6.0, -1.0))
    found = {low: fixed(first, dtype), high: fixed(second, dtype)}
    if d.chance(0.3):
        del found[d.choose((low, high))]
    return found


def _values(d: Sampler, dtype: str = "float32") -> np.ndarray:
    return d.floats(d.shape(), dtype, infinite=d.chance(0.3))


@rule(
    apply("Clip", apply("Clip", x, a, b), f, g),
    where=[constant("a", "b", "f", "g")],
    exactness=EXACT,
    source=COMPOSITION,
    family="E18",
    sample=lambda d: {"x": _values(d), **_bounds(d, "a", "b"), **_bounds(d, "f", "g")},
)
def compose_clips(m: Match) -> Term:
    """``Clip(Clip(x, a, b), f, g) == Clip(x, low, high)``."""
    return _composed(m.x, (_bound(m.a), _bound(m.b)), (_bound(m.f), _bound(m.g)))


@rule(
    apply("Clip", apply("Relu", x), a, b),
    where=[constant("a", "b")],
    exactness=EXACT,
    source=COMPOSITION,
    family="E18",
    sample=lambda d: {"x": _values(d), **_bounds(d, "a", "b")},
)
def compose_clip_of_relu(m: Match) -> Term:
    """``Clip(Relu(x), a, b) == Clip(x, low, high)``."""
    return _composed(m.x, (0, None), (_bound(m.a), _bound(m.b)))


@rule(
    apply("Relu", apply("Clip", x, a, b)),
    where=[constant("a", "b")],
    exactness=EXACT,
    source=COMPOSITION,
    family="E18",
    sample=lambda d: {"x": _values(d), **_bounds(d, "a", "b")},
)
def compose_relu_of_clip(m: Match) -> Term:
    """``Relu(Clip(x, a, b)) == Clip(x, low, high)``."""
    return _composed(m.x, (_bound(m.a), _bound(m.b)), (0, None))


# --- extrema with constants ----------------------------------------------------------------------------------------------


@condition("c and e scalars")
def _scalars(m: Match) -> bool:
    return m.c.value.size == 1 and m.e.value.size == 1


@condition("c at most e")
def _ordered(m: Match) -> bool:
    return bool(m.c.value.reshape(-1)[0] <= m.e.value.reshape(-1)[0])


def _two_bounds(d: Sampler) -> dict[str, Any]:
    x = _values(d)
    wide = x.shape if d.chance(0.15) else d.choose(((), (1,), (1,) * (x.ndim + int(d.chance(0.2)))))
    low = np.minimum(d.floats(wide), np.float32(-1.0))
    return {"x": x, "c": fixed(low), "e": fixed(np.float32(d.choose((1.0, 6.0, -2.0))))}


@rule(
    apply("Min", apply("Max", x, c), e),
    where=[constant("c", "e"), same_type("x"), _scalars],
    exactness=EXACT,
    source="definition of Clip",
    family="E18",
    sample=_two_bounds,
)
def clip_instead_of_min_of_max(m: Match) -> Term:
    """``Min(Max(x, c), e) == Clip(x, c, e)``."""
    return _clip(m.x, _bound(m.c), _bound(m.e))


@rule(
    apply("Max", apply("Min", x, e), c),
    where=[constant("c", "e"), same_type("x"), _scalars, _ordered],
    exactness=EXACT,
    source="definition of Clip",
    family="E18",
    sample=_two_bounds,
)
def clip_instead_of_max_of_min(m: Match) -> Term:
    """``Max(Min(x, e), c) == Clip(x, c, e)`` where ``c`` is at most ``e``."""
    return _clip(m.x, _bound(m.c), _bound(m.e))


def _float_with(value: float) -> Callable[[Sampler], dict[str, Any]]:
    def draw(d: Sampler) -> dict[str, Any]:
        dtype = "int64" if d.chance(0.1) else d.choose(("float32", "float16"))
        shape = d.shape()
        x = d.integers(shape, dtype) if dtype == "int64" else d.floats(shape, dtype, infinite=d.chance(0.3))
        found = np.full(d.broadcast_with(x.shape), value if d.chance(0.85) else 1.0, dtype)
        return {"x": x, "c": d.either(found, 0.9)}

    return draw


@condition("float")
def _float(m: Match) -> bool:
    return m.x.dtype.is_float


@rule(
    apply("Max", x, c),
    where=[constant("c"), every_element("c", 0), same_type("x"), _float],
    exactness=EXACT,
    source="definition of Relu",
    family="E18",
    sample=_float_with(0.0),
)
def normalise_relu(m: Match) -> Term:
    """``Max(x, 0) == Relu(x)``."""
    return apply("Relu", m.x)


# --- clamps that do nothing ----------------------------------------------------------------------------------------------


def _known(d: Sampler) -> Applied:
    """A variable of which the e-graph knows bounds, 0 or -1 the lower and 1 or infinity the upper one."""
    return Applied(d.choose(("Abs", "Sigmoid", "Relu", "Tanh", "Neg")), d.floats(d.shape()))


@condition("x at least 0")
def _nonnegative(m: Match) -> bool:
    return m.x.interval[0] >= 0


@rule(
    apply("Relu", x),
    where=[_nonnegative],
    exactness=EXACT,
    source="definition of Relu",
    family="E18",
    sample=lambda d: {"x": _known(d)},
)
def remove_relu_of_nonnegative(m: Match) -> Term:
    """``Relu(x) == x`` for ``x`` of at least 0."""
    return m.x


@rule(
    apply("Relu", apply("Relu", x).named("n")),
    exactness=EXACT,
    source="definition of Relu",
    family="E18",
    sample=lambda d: {"x": _values(d)},
)
def remove_relu_of_relu(m: Match) -> Term:
    """``Relu(Relu(x)) == Relu(x)``."""
    return m.n


def _range(value: Ref) -> tuple[float, float]:
    """Bounds on the elements: those known of the value, within those of an integer type."""
    low, high = value.interval
    if not value.dtype.is_integer:
        return low, high
    info = ml_dtypes.iinfo(value.dtype.numpy)
    return max(low, int(info.min)), min(high, int(info.max))


@condition("bounds beyond the elements")
def _beyond(m: Match) -> bool:
    low, high = _range(m.x)
    return (m.a is None or m.a.interval[1] <= low) and (m.b is None or high <= m.b.interval[0])


def _clip_sample(d: Sampler) -> dict[str, Any]:
    if d.chance(0.7):
        return {"x": _known(d), **_bounds(d, "a", "b")}
    low, high = d.choose(((0, 255), (0, 254), (1, 255)))
    return {"x": d.integers(d.shape(), "uint8"), "a": fixed(low, "uint8"), "b": fixed(high, "uint8")}


@rule(
    apply("Clip", x, a, b),
    where=[constant("a", "b"), _beyond],
    exactness=EXACT,
    source="definition of Clip",
    family="E18",
    sample=_clip_sample,
)
def remove_clip_beyond_range(m: Match) -> Term:
    """``Clip(x, a, b) == x`` where no element of ``x`` lies beyond a bound."""
    return m.x


@condition("c at most x")
def _below(m: Match) -> bool:
    return m.c.interval[1] <= m.x.interval[0]


@condition("c at least x")
def _above(m: Match) -> bool:
    return m.c.interval[0] >= m.x.interval[1]


def _bounded(ops: tuple[str, ...], bounds: tuple[float, ...]) -> Callable[[Sampler], dict[str, Any]]:
    def draw(d: Sampler) -> dict[str, Any]:
        x = Applied(d.choose(ops), d.floats(d.shape()))
        shape = d.broadcast_of(x.array.shape) if d.chance(0.6) else d.broadcast_with(x.array.shape)
        return {"x": x, "c": fixed(np.full(shape, d.choose(bounds), np.float32))}

    return draw


@rule(
    apply("Max", x, c),
    where=[constant("c"), same_type("x"), _below],
    exactness=EXACT,
    source="definition of Max",
    family="E18",
    sample=_bounded(("Abs", "Sigmoid", "Relu", "Tanh", "Neg"), (0.0, -1.0, 1.0)),
)
def remove_max_below_range(m: Match) -> Term:
    """``Max(x, c) == x`` where no element of ``x`` is below ``c``."""
    return m.x


@rule(
    apply("Min", x, c),
    where=[constant("c"), same_type("x"), _above],
    exactness=EXACT,
    source="definition of Min",
    family="E18",
    sample=_bounded(("Sigmoid", "Tanh", "Neg"), (1.0, 2.0, 0.0)),
)
def remove_min_above_range(m: Match) -> Term:
    """``Min(x, c) == x`` where no element of ``x`` is above ``c``."""
    return m.x
