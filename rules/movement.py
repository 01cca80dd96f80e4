"""Data movement (E18): chains of transposes, of casts and of slices become one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.operators.cast import PLAIN
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Match, Ref, Term, Unmet, apply, rule, variables
from eqsat.rules.sampling import Sampler, fixed
from eqsat.rules.terms import condition, constant, int64s, permutation_of, transpose

EXACT = Exactness.EXACT
SPEC = "ONNX operator specification"
x, s, t, u, v = variables("x s t u v")
a, b, e, f, low, high = variables("a? b? e? f? low? high?")


def _two_transposes(d: Sampler) -> dict[str, Any]:
    shape = d.shape(2, 4)
    first, second = d.permutation(len(shape)), d.permutation(len(shape))
    inner = {"perm": first} if d.chance(0.8) else {}
    return {"x": d.array(shape), "p": inner, "q": {"perm": second} if d.chance(0.8) else {}}


@rule(
    apply("Transpose", apply("Transpose", x).named("p")).named("q"),
    exactness=EXACT,
    source="composition of permutations",
    family="E18",
    sample=_two_transposes,
)
def compose_transposes(m: Match) -> Term:
    """``Transpose(Transpose(x, p), q) == Transpose(x, p[q])``."""
    p, q = permutation_of(m.p), permutation_of(m.q)
    return transpose(m.x, [p[i] for i in q])


# --- casts ---------------------------------------------------------------------------------------------------------------


def is_lossless(source: DType, to: DType) -> bool:
    """Whether every value of ``source`` is one of ``to``, so that casting there and on is casting at once.

    >>> is_lossless(DType.INT8, DType.FLOAT16), is_lossless(DType.INT32, DType.FLOAT)
    (True, False)
    """
    if source is to:
        return True
    if source not in PLAIN or to not in PLAIN or to is DType.BOOL:
        return False
    if source is DType.BOOL:
        return to.is_integer or to.is_float
    if source.is_integer and to.is_integer:
        inner, outer = np.iinfo(source.numpy), np.iinfo(to.numpy)
        return bool(outer.min <= inner.min and inner.max <= outer.max)
    if not to.is_float:
        return False
    outer = ml_dtypes.finfo(to.numpy)
    if source.is_integer:
        return np.iinfo(source.numpy).bits - source.is_signed <= outer.nmant + 1
    inner = ml_dtypes.finfo(source.numpy)
    return inner.nmant <= outer.nmant and inner.maxexp <= outer.maxexp and inner.minexp >= outer.minexp


@condition("the first cast is lossless")
def _lossless(m: Match) -> bool:
    return is_lossless(m.x.dtype, DType(m.p.attr("to")))


@condition("the second cast has one meaning")
def _defined(m: Match) -> bool:
    """A negative float has no conversion to an unsigned integer; the integer it came from has. Likewise beyond the range."""
    middle, last = DType(m.p.attr("to")), DType(m.q.attr("to"))
    if last not in PLAIN:
        return False
    return not (m.x.dtype.is_integer and middle.is_float and last.is_integer) or is_lossless(m.x.dtype, last)


_CASTS = ("bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64")


def _two_casts(d: Sampler) -> dict[str, Any]:
    source = DType.of(d.choose(_CASTS))
    middle = DType.of(d.choose(_CASTS))
    if d.chance(0.7):
        middle = d.choose([w for w in map(DType.of, _CASTS) if is_lossless(source, w)])
    last = DType.of(d.choose(_CASTS))
    if middle.is_float and last.is_integer and not source.is_integer:
        last = DType.FLOAT16  # what a float beyond the range becomes is not defined
    return {"x": d.array(d.shape(), source), "p": {"to": int(middle)}, "q": {"to": int(last)}}


@rule(
    apply("Cast", apply("Cast", x).named("p")).named("q"),
    where=[_lossless, _defined],
    exactness=EXACT,
    source="inclusion of the value sets of element types",
    family="E18",
    sample=_two_casts,
)
def compose_casts(m: Match) -> Term:
    """``Cast(Cast(x, a), b) == Cast(x, b)`` where every value of the type of ``x`` is one of type ``a``."""
    return m.x if DType(m.q.attr("to")) is m.x.dtype else Apply("Cast", (m.x,), m.q.attributes)


def _two_casts_of_clipped(d: Sampler) -> dict[str, Any]:
    source, middle, last = (DType.of(d.choose(("int8", "uint8", "int32", "int64"))) for _ in range(3))
    low, high = sorted(d.integer(0 if source is DType.UINT8 else -128, 127) for _ in range(2))
    found: dict[str, Any] = {
        "x": d.integers(d.shape(), source.numpy.name),
        "p": {"to": int(middle)},
        "q": {"to": int(last)},
    }
    if d.chance(0.9):
        found["low"] = fixed(low, source)
    if d.chance(0.9):
        found["high"] = fixed(high, source)
    return found


@rule(
    apply("Cast", apply("Cast", apply("Clip", x, low, high).named("clip")).named("p")).named("q"),
    where=[constant("low", "high")],
    exactness=EXACT,
    source="the bounds are of the type between",
    family="E18",
    sample=_two_casts_of_clipped,
)
def compose_casts_of_clipped(m: Match) -> Term:
    """``Cast(Cast(Clip(x, low, high), a), b) == Cast(Clip(x, low, high), b)`` for integers ``x`` between bounds of type ``a``."""
    middle, last = (DType(n.attr("to")) for n in (m.p, m.q))
    m.require(m.x.dtype.is_integer and middle.is_integer and {middle, last} <= PLAIN, "no integers")
    info = np.iinfo(middle.numpy)
    bounds = [b for b in (m.low, m.high) if b is not None]
    m.require(len(bounds) == 2, "no bound on one side")
    inside = all(info.min <= int(b.value.reshape(())) <= info.max for b in bounds)
    m.require(inside, "a bound is no value of the type between")
    return m.clip if last is m.x.dtype else Apply("Cast", (m.clip,), m.q.attributes)


def _cast_like(d: Sampler) -> dict[str, Any]:
    source, target = DType.of(d.choose(_CASTS)), DType.of(d.choose(_CASTS))
    return {"x": d.integers(d.shape(), "int8", 0, 100).astype(source.numpy), "t": np.zeros(d.shape(), target.numpy)}


@rule(apply("CastLike", x, t).named("n"), exactness=EXACT, source="ONNX CastLike", family="E18", sample=_cast_like)
def cast_like_as_cast(m: Match) -> Term:
    """``CastLike(x, t) == Cast(x)`` to the type of ``t``; ``x`` itself if it has that type."""
    m.require(m.t.dtype is not DType.UNDEFINED, "the type is unknown")
    return m.x if m.t.dtype is m.x.dtype else Apply("Cast", (m.x,), m.n.attributes.updated(to=int(m.t.dtype)))


# --- slices --------------------------------------------------------------------------------------------------------------


def slice_ranges(data: Ref, starts: Ref, ends: Ref, axes: Ref | None, steps: Ref | None) -> dict[int, range]:
    """Axis -> indices that a Slice takes. Raises `Unmet` unless all are known and steps are positive."""
    bounds = [int(i) for i in starts.value]
    which = range(len(bounds)) if axes is None else [int(i) % data.rank for i in axes.value]
    strides = [1] * len(bounds) if steps is None else [int(i) for i in steps.value]
    found: dict[int, range] = {}
    for axis, start, end, step in zip(which, bounds, map(int, ends.value), strides, strict=True):
        extent = data.shape[axis]
        if not isinstance(extent, int) or step < 1:
            raise Unmet("a sliced extent is unknown or the slice runs backward")
        found[axis] = range(extent)[start:end:step]
    return found


def slice_term(data: Ref, ranges: Mapping[int, range]) -> Term:
    """The Slice of ``data`` in normal form: axes ascending, bounds tight, whole axes left out; ``data`` if nothing is cut."""
    cut = {axis: r for axis, r in sorted(ranges.items()) if r != range(len(r)) or len(r) != data.shape[axis]}
    if not cut:
        return data
    if not all(cut.values()):
        raise Unmet("the slice is empty")
    starts, ends = int64s(r.start for r in cut.values()), int64s(r[-1] + 1 for r in cut.values())
    steps = [r.step if len(r) > 1 else 1 for r in cut.values()]
    if max(steps) == 1:
        return apply("Slice", data, starts, ends, int64s(cut))
    return apply("Slice", data, starts, ends, int64s(cut), int64s(steps))


def draw_slice(d: Sampler, shape: tuple[int, ...], names: str) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Inputs of a Slice of a tensor of ``shape`` under four names, and the shape of the result."""
    starts, ends, axes, steps = names.split()
    cut = d.subset(range(len(shape)), 0.6) or [0]
    found: dict[str, list[int]] = {starts: [], ends: [], axes: [], steps: []}
    result = list(shape)
    for axis in cut:
        extent = shape[axis]
        first, step = d.integer(0, extent - 1), d.choose((1, 1, 2))
        last = extent if d.chance() else d.integer(first + 1, extent)
        result[axis] = len(range(first, last, step))
        found[starts].append(first - extent if d.chance(0.3) else first)
        found[ends].append(2**31 - 1 if last == extent and d.chance() else last)
        found[axes].append(axis - len(shape) if d.chance(0.2) else axis)
        found[steps].append(step)
    if set(found[steps]) == {1} and d.chance():
        del found[steps]
    return {name: fixed(values, "int64") for name, values in found.items()}, tuple(result)


def _one_slice(d: Sampler) -> dict[str, Any]:
    shape = d.shape(1, 4)
    return {"x": d.array(shape), **draw_slice(d, shape, "s t a b")[0]}


@rule(apply("Slice", x, s, t, a, b), exactness=EXACT, source=SPEC, family="E18", sample=_one_slice)
def normalise_slice(m: Match) -> Term:
    """``Slice(x, s, t, a, b) == Slice(x, s', t', a', b')`` with tight bounds and axes in order."""
    return slice_term(m.x, slice_ranges(m.x, m.s, m.t, m.a, m.b))


def _two_slices(d: Sampler) -> dict[str, Any]:
    shape = d.shape(1, 4, ones=0)
    inner, middle = draw_slice(d, shape, "s t a b")
    return {"x": d.array(shape), **inner, **draw_slice(d, middle, "u v e f")[0]}


@rule(
    apply("Slice", apply("Slice", x, s, t, a, b).named("n"), u, v, e, f),
    exactness=EXACT,
    source="composition of index maps",
    family="E18",
    sample=_two_slices,
)
def compose_slices(m: Match) -> Term:
    """``Slice(Slice(x, s, t), u, v) == Slice(x, s', t')``."""
    inner = slice_ranges(m.x, m.s, m.t, m.a, m.b)
    for axis, outer in slice_ranges(m.n, m.u, m.v, m.e, m.f).items():
        extent = m.x.shape[axis]
        assert isinstance(extent, int)  # the extent of a slice is unknown otherwise
        inner[axis] = inner.get(axis, range(extent))[outer.start : outer.stop : outer.step]
    return slice_term(m.x, inner)
