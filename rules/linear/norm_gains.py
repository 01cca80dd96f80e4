"""Constant gains and shifts of a normalisation: those behind it enter it, its own enter the products behind it.

A normalisation without gain costs as much as one with, so the second pays only where one value is normalised several times
by different gains: then the normalisation is the same for all, and the products behind it have one input. Elsewhere the rule
stays silent.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations, group_rule, named, stated
from eqsat.exactness import Exactness
from eqsat.rewrite import GroupView, Merge, Ref, Term, apply, literal
from eqsat.rules.linear.alignment import (
    finite_product,
    keeps_digits,
    largest,
    lies_along,
    limit,
    ordinary_summands,
    reshaped,
    spread,
)
from eqsat.rules.recognise.norms import ALONG, beside, first_axis, known, spread_out
from eqsat.rules.terms import add, matmul, mul
from eqsat.samples import Drawing, Instance, Sampler

NORMS = ("LayerNormalization", "RMSNormalization")

# --- gains and shifts behind a normalisation -----------------------------------------------------------------------------


def times(b: Ref | None, g: Term) -> Term | None:
    """A shift, if there is one, times a gain."""
    return None if b is None else mul(b, g)


equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source="ONNX LayerNormalization, RMSNormalization",
    functions=named(mul, add, first_axis, spread_out, beside, known),
)
FIRST = "x.shape[first_axis(i, x):]"
equation(
    "scale_layer_normalization",
    f"""LayerNormalization(x, s, *b, axis=i, **n) * g
        == LayerNormalization(x, mul(s, spread_out(g, {FIRST})), times(b, spread_out(g, {FIRST})), **n)""",
    constant("g", "s", "b"),
    finite_product("g", "s", "b"),
    keeps_digits("g", "s"),
    *ALONG,
)
equation(
    "scale_scaled_rms_normalization",
    f"RMSNormalization(x, s, axis=i, **n) * g == RMSNormalization(x, mul(s, spread_out(g, {FIRST})), **n)",
    constant("g", "s"),
    finite_product("g", "s"),
    keeps_digits("g", "s"),
    worthwhile("there is a gain: (s.low, s.high) != (1, 1)"),  # else that is another rule's
    *ALONG,
)
equation(
    "shift_shifted_layer_normalization",
    f"LayerNormalization(x, s, c, axis=i, **n) + g == LayerNormalization(x, s, add(c, spread_out(g, {FIRST})), **n)",
    constant("g", "c"),
    ordinary_summands("g"),
    *ALONG,
)

# --- the gains of a normalisation in the products behind it --------------------------------------------------------------


class _Norm(NamedTuple):
    """A normalisation over the last axis: its operator and value, what is normalised, gain and shift."""

    op: str
    node: Ref
    x: Ref
    gain: Ref
    shift: Ref | None


def _draw_norms(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, inner, batch = d.extents(3)
    axis, epsilon, op = d.choose((-1, -1, -1, -2)), d.choose((1e-5, 0.5)), d.choose(NORMS)
    array = d.floats(d.choose(((rows, inner), (batch, rows, inner))))
    large = np.float32(1)
    if d.chance(0.15):  # of rows all alike nothing remains, whatever the constants
        array, large = np.full_like(array, 3 if op == "LayerNormalization" else 0), np.float32(1e20)
    value = drawing.value(array)
    extents = (inner,) if axis == -1 else (rows, inner)
    outputs: list[str] = []
    for _ in range(d.integer(2, 3)):
        wide = d.choose(((rows, inner), (1,))) if d.chance(0.5) else extents
        parts = [drawing.value(d.either(d.floats(d.choose((extents, wide))) * large, 0.9))]
        own = op if d.chance(0.9) else d.choose(NORMS)
        if own == "LayerNormalization" and d.chance():
            parts.append(drawing.value(d.either(d.floats(d.choose((wide, extents))) * large, 0.9)))
        own_epsilon = epsilon if d.chance(0.9) else 0.1
        norm = drawing.op(own, value, *parts, axis=axis, epsilon=own_epsilon)
        weights = d.floats(d.choose(((inner, d.integer(2, 4)), (inner, inner), (1, inner, 3), (inner,)))) * large
        outputs.append(drawing.op("MatMul", norm, drawing.value(d.either(weights, 0.9))))
    return drawing.finish(*outputs)


GAINED = stated(
    "node x gain shift",
    worthwhile(
        "gain and shift constant, x not: gain.is_constant and (not shift or shift.is_constant) and not node.is_constant"
    ),
    "over the last axis: node.attr('axis', -1) in (-1, x.rank - 1)",
    worthwhile("float32: x.dtype is float32 and gain.dtype is float32 and node.attr('stash_type', 1) == 1"),
)
READ = stated(
    "norm w",
    worthwhile("the weights are constant: w.is_constant"),
    worthwhile("they are of floats: w.dtype is float32"),
    "they are a matrix: w.rank == 2",
    "the gain lies along the columns: lies_along(norm.gain, norm.x, -1)",
    "the shift lies along the columns: not norm.shift or lies_along(norm.shift, norm.x, -1)",
    "gain * w finite: largest(norm.gain) * largest(w) < limit(w)",
    "the sum of shift * w finite: not norm.shift or largest(norm.shift) * largest(w) * w.static_shape[0] < limit(w)",
    functions=named(lies_along, largest, limit),
)


@group_rule(
    where=[*GAINED, *READ], exactness=Exactness.ROUNDING, source="linearity of the matrix product", sample=_draw_norms
)
def fold_gains_into_following_matmuls(view: GroupView) -> Iterator[Merge]:
    """``(norm(x, s1, b1) @ w1, norm(x, s2, b2) @ w2, ...) == (norm(x, 1) @ (s1' * w1) + b1 @ w1, ...)`` where ``x`` is
    normalised with more than one gain or shift; ``s1'`` lies along the rows of ``w1``, the axis that is summed over.
    """
    for norm in _gained(view):
        for op, product, inputs in view.users(norm.node):
            left, w = (*inputs, None)[:2]
            is_data = op == "MatMul" and left is not None and left.handle == norm.node.handle
            if is_data and w is not None and view.meets(READ, norm=norm, w=w):
                yield product, _with_gain_in_weights(norm, w)


def _gained(view: GroupView) -> Iterator[_Norm]:
    """Normalisations with a gain or shift of values that are normalised otherwise, too: by another constant gain or shift."""
    alike: dict[tuple[str, int, float], dict[int, _Norm]] = {}
    for op in NORMS:
        for node, inputs in view.nodes(op):
            x, gain, shift = (*inputs, None)[:3]
            if x is not None and gain is not None and view.meets(GAINED, node=node, x=x, gain=gain, shift=shift):
                found = alike.setdefault((op, x.handle, node.attr("epsilon", 1e-5)), {})
                found.setdefault(node.handle, _Norm(op, node, x, gain, shift))
    for norms in alike.values():
        gained = (n for n in norms.values() if n.shift is not None or n.gain.interval != (1, 1))
        yield from gained if len(norms) > 1 else ()


def _with_gain_in_weights(norm: _Norm, w: Ref) -> Term:
    """The product of ``norm`` by ``w`` as one of the plain normalisation."""
    inner = w.static_shape[0]
    plain = apply(
        norm.op, norm.x, literal(np.ones(inner, np.float32)), axis=-1, epsilon=norm.node.attr("epsilon", 1e-5)
    )
    product = matmul(plain, mul(w, reshaped(norm.gain, (math.prod(norm.gain.static_shape), 1))))
    return product if norm.shift is None else add(product, matmul(spread(norm.shift, inner), w))
