"""Weights beside bytes that are bytes, too, though nobody says so: integers of fewer bits, and floats that are whole multiples of
a step. Products of the two are products on integers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.conditions import worthwhile
from eqsat.equations import group_rule, named
from eqsat.exactness import Exactness
from eqsat.ir.operator import defined, operators_with
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Literal, Match, Ref, Term, Unmet, apply, literal
from eqsat.rules.linear.operators import axes_of, is_linear
from eqsat.rules.quantised.scales import BYTES, Step, integer_range, like, ordinary, steps, unblocked
from eqsat.rules.terms import by_class
from eqsat.samples import Drawing, Sampler, fixed


def _beside_bytes(view: GroupView) -> Iterator[tuple[Ref, int, list[Step]]]:
    """Weights beside data that is dequantised bytes, with the axis of their channels, and how they are dequantised, if not from
    bytes."""
    spelled = by_class((step.node, step) for step in steps(view, "DequantizeLinear"))
    of_bytes = {handle for handle, found in spelled.items() if any(step.value.dtype in BYTES for step in found)}
    for op in operators_with(is_linear) if of_bytes else ():
        axes = axes_of(defined(op))
        for node, (data, weights, *_) in view.nodes(op):
            if data is None or data.handle not in of_bytes or weights is None or weights.handle in of_bytes:
                continue
            if weights.dtype is DType.FLOAT and (weights.type.rank or 0) >= 2:
                axis = axes(node.attributes).outer % weights.rank
                yield weights, axis, spelled.get(weights.handle, [])


def _of_few_bits(view: GroupView) -> Iterator[Match]:
    for weights, _, spelled in _beside_bytes(view):
        for step in spelled:
            yield Match({"q": step.value, "s": step.s, "z": step.z, "n": step.node}, weights)


def _drawn_product(d: Sampler, draw: Callable[[Drawing, tuple[int, ...], int], str]) -> Any:
    """A product of dequantised bytes by weights of a shape whose channels lie along an axis."""
    drawing = Drawing()
    op = d.choose(("MatMul", "Gemm", "Conv"))
    rows, inner, outer, *window = d.extents(5)
    shape, axis = ((outer, inner, *window), 0) if op == "Conv" else ((inner, outer), 1)
    extents = (rows, inner, *(n + 1 for n in window)) if op == "Conv" else (rows, inner)
    data, scale = d.integers(extents, d.choose(("uint8", "int8"))), drawing.value(fixed(d.positive(())))
    quantised = d.chance(0.9)
    x = drawing.op("DequantizeLinear", drawing.value(data), scale) if quantised else drawing.value(data / np.float32(9))
    weights = draw(drawing, shape, axis)
    return drawing.finish(weights, drawing.op(op, x, weights))


def _drawn_nibbles(d: Sampler) -> Any:
    def draw(drawing: Drawing, shape: tuple[int, ...], axis: int) -> str:
        nibbles = d.integers(shape, "int8", -8, 7).astype(DType.INT4.numpy)
        integers = nibbles if d.chance(0.8) else d.integers(shape, "int16")
        scales = d.positive(d.choose(((), (shape[axis],))))
        zeros = np.full(scales.shape, d.choose((0, 3)), integers.dtype)
        given = [fixed(integers), fixed(scales), *([fixed(zeros)] if d.chance(0.8) else [])]
        return drawing.op("DequantizeLinear", *map(drawing.value, given), axis=axis)

    return _drawn_product(d, draw)


@group_rule(
    find=_of_few_bits,
    where=[
        "integers of fewer bits: q.dtype.is_integer and q.dtype.bits < 8",
        worthwhile("no blocks: unblocked(n.attributes)"),
    ],
    source="numbers of 4 bits are numbers of 8 bits",
    functions=named(unblocked),
    sample=_drawn_nibbles,
)
def widen_dequantized_weights(m: Match) -> Term:
    """``D(q: int4, s, z) == D(q: int8, s, z)`` for constant weights beside bytes: kernels multiply bytes by bytes."""
    zero = None if m.z is None else _as_bytes(m.z)
    return like(m.n, "DequantizeLinear", _as_bytes(m.q), m.s, zero)


def _as_bytes(integers: Ref) -> Literal:
    return literal(integers.elements.astype(np.int8))


# --- floats that are whole multiples of a step


_MOST = 255
"""The most steps that a weight may be from zero: what a difference of two bytes may be."""
_NOISE = 2.0**-21
"""How far from a multiple of its step a weight may be, beside the greatest of its channel: by the rounding of a product or of a
sum, as trainers make that round weights to a grid."""


@dataclass(frozen=True)
class _Grid:
    """Weights that are ``integers * scale``, the scale one number, or one for each index of ``axis``."""

    integers: np.ndarray
    scale: np.ndarray
    axis: int

    @property
    def zero(self) -> int:
        """What is added to the integers to make them signed bytes."""
        least, greatest = integer_range(DType.INT8)
        fits = least <= self.integers.min() and self.integers.max() <= greatest
        return 0 if fits else max(least - int(self.integers.min()), least)


def _step(values: np.ndarray) -> float | None:
    """The greatest step of which numbers are whole multiples, by `_MOST` at most; 1 where all are zero."""
    sizes = np.unique(np.abs(values)).astype(np.float64)
    if len(sizes) > _MOST + 1 or not np.isfinite(sizes[-1]):
        return None
    if sizes[-1] == 0:
        return 1.0
    counts = np.arange(1, _MOST + 1)[:, None]
    multiples = sizes / sizes[-1] * counts
    found = np.flatnonzero((np.abs(multiples - np.rint(multiples)) <= _NOISE * counts).all(axis=1))
    if not len(found):
        return None
    times = np.rint(multiples[found[0]])
    return float(times @ sizes / (times @ times))


def _grid(weights: np.ndarray, axis: int) -> _Grid | None:
    """The integers and scales that weights are products of: one scale if that does, else one for each index of an axis."""
    channels = np.moveaxis(weights, axis, 0)
    found: list[float] = []
    for channel in channels if weights.size else ():
        step = _step(channel)
        if step is None:  # of most weights the first channel shows that they are multiples of nothing
            return None
        found.append(step)
    one = _step(weights) if found else None
    scale = np.asarray(found if one is None else one, np.float32)
    if not found or not ordinary(float(scale.min()), float(scale.max())):
        return None
    integers = np.rint(channels / scale.reshape(-1, *(1,) * (weights.ndim - 1))).astype(np.int16)
    return _Grid(np.moveaxis(integers, 0, axis), scale, axis) if np.ptp(integers) <= _MOST else None


def _multiples(view: GroupView) -> Iterator[Match]:
    known = view.notes(_multiples)
    for weights, axis, _ in _beside_bytes(view):
        key = weights.handle, axis
        if key not in known:
            try:
                known[key] = _grid(weights.elements, axis)
            except Unmet:
                continue
        yield Match({"grid": known[key], "w": weights}, weights)


def _drawn_multiples(d: Sampler) -> Any:
    def draw(drawing: Drawing, shape: tuple[int, ...], axis: int) -> str:
        low, high = d.choose(((-127, 127), (-128, 127), (-8, 7), (-1, 1), (-3, 200), (1, 254), (-254, -1), (-200, 200)))
        extent = [n if i == axis else 1 for i, n in enumerate(shape)]
        scales = d.positive(tuple(extent)) if d.chance() else d.positive(())
        weights = (d.integers(shape, "int16", low, high) * scales).astype(np.float32)
        if d.chance(0.2):
            weights.reshape(-1)[0] *= np.float32(1.003)
        return drawing.value(fixed(weights) if d.chance(0.9) else weights)

    return _drawn_product(d, draw)


@group_rule(
    find=_multiples,
    where=["whole multiples of a step, of as many as bytes have: grid is not None"],
    exactness=Exactness.ROUNDING,
    source="w = (w / s) * s, where all w / s are whole numbers",
    sample=_drawn_multiples,
)
def recognise_multiples_of_a_step(m: Match) -> Term:
    """``w == D(w / s, s)`` for constant weights beside bytes that are whole multiples of ``s``, or of one for each channel.

    Tools that fold constants compute what was dequantised, and those that train for bytes may store such floats.
    """
    grid: _Grid = m.grid
    integers = literal((grid.integers + grid.zero).astype(np.int8))
    zero = literal(np.full(grid.scale.shape, grid.zero, np.int8)) if grid.zero else None
    along = {"axis": grid.axis} if grid.scale.ndim else {}
    return apply("DequantizeLinear", integers, literal(grid.scale), zero, **along)
