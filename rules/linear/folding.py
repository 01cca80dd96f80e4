"""Constants on either side of a linear operator, along its channels, fold into its weights and its bias.

``L(x, w, b)`` sums products of ``x`` and ``w`` and says where the channels lie that it sums over, and those that it puts out
(`Traits.product`). Who else reads the value without the constant keeps it: an equation adds a spelling and removes none.
"""

import math
from typing import Any

from eqsat.conditions import constant, varies, worthwhile
from eqsat.equations import Equations, named, spelled
from eqsat.exactness import Exactness
from eqsat.ir.operator import Operator, defined
from eqsat.ir.traits import ProductAxes
from eqsat.rewrite import Condition, Ref, Term, apply, for_each_operator
from eqsat.rules.linear.alignment import (
    FLOAT,
    finite_product,
    is_ordinary_shift,
    keeps_digits,
    largest,
    lies_along,
    limit,
    not_all,
    ordinary_summands,
    reshaped,
    spread,
)
from eqsat.rules.linear.operators import (
    axes_of,
    has_bias_by_channel,
    is_linear,
    is_of_matrices,
    is_unbiased,
    others,
    product_of,
    scales_weights,
    slides,
    takes_shifts,
)
from eqsat.rules.terms import int64s, mul, reshape, total

_LARGEST_PASSED = 2.0**6
"""Beside results of ordinary size such a shift costs six binary digits, of which float32 has 24."""

# --- constants in weights and biases -------------------------------------------------------------------------------------


def scaled(w: Ref, s: Ref, axis: int, axes: ProductAxes) -> Term:
    """The weights times a scale along their ``axis``; where that runs within each group the scale varies with the group."""
    shape, size = w.static_shape, math.prod(s.static_shape)
    behind = (1,) * (len(shape) - 1 - axis % len(shape))
    whole = axes.outer if axes.grouped_inside else axes.inner
    if size == 1 or axes.groups == 1 or axis == whole:
        return mul(w, reshaped(s, (size, *behind)))
    runs = (*shape[:whole], axes.groups, shape[whole] // axes.groups, *shape[whole + 1 :])
    factor = [1] * len(runs)
    factor[whole], factor[axis + 1] = axes.groups, size // axes.groups
    return reshape(mul(reshaped(w, runs), reshaped(s, factor)), shape)


def times(b: Ref | None, s: Ref) -> Term | None:
    """A bias times a scale of as many elements, or of one."""
    return None if b is None else mul(b, reshaped(s, (math.prod(s.static_shape),)))


def times_columns(scales: Ref, s: Ref, w: Ref, axes: ProductAxes) -> Term:
    """Scales of the weights, as many for each channel, times a scale for each channel, or one for all."""
    channels, size = w.static_shape[axes.outer], math.prod(s.static_shape)
    matrix = (channels, math.prod(scales.static_shape) // channels)
    found = mul(reshaped(scales, matrix), reshaped(s, (size, 1)))
    return found if scales.static_shape == matrix else reshape(found, scales.static_shape)


def outputs(w: Ref, axes: ProductAxes) -> int:
    """The number of channels that are put out."""
    return w.static_shape[axes.outer] * (1 if axes.grouped_inside else axes.groups)


def patch(c: Ref, x: Ref, w: Ref, axes: ProductAxes, node: Ref) -> Term:
    """As much of a constant ``c`` along the channels of ``x`` as the operator makes one element of each channel of."""
    channels = w.static_shape[axes.inner] * (axes.groups if axes.grouped_inside else 1)
    if axes.data == -1:
        return spread(c, channels)
    kernel = w.static_shape[2:]
    window = [(k - 1) * d + 1 for k, d in zip(kernel, node.attr("dilations", (1,) * len(kernel)), strict=True)]
    shape = [1] * x.rank
    shape[2:] = window
    shape[axes.data] = channels
    return apply("Expand", c, int64s(shape))


def bound(c: Ref, w: Ref, b: Ref | None) -> float:
    """What no sum of products of elements, and the bias, exceeds."""
    return largest(c) * largest(w) * math.prod(w.static_shape) + (0.0 if b is None else largest(b))


def leaves_digits(c: Ref, w: Ref) -> bool:
    """Whether products of ``c`` and the weights are so small that sums of ``x * w`` without them have about as many digits.

    What is about 2000 and varies by 0.01 is centred before it is scaled: behind a product by 100 the digits are gone.
    """
    return largest(c) * largest(w) < _LARGEST_PASSED


def padded(node: Ref) -> bool:
    """Whether windows may reach beyond the data."""
    auto_pad = node.attr("auto_pad", "NOTSET")
    return auto_pad != "VALID" and (auto_pad != "NOTSET" or any(node.attr("pads", ())))


# --- the equations -------------------------------------------------------------------------------------------------------

_equation = Equations(
    __name__, exactness=Exactness.ROUNDING, source="linearity; TVM BackwardFoldScaleAxis, ForwardFoldScaleAxis"
)
ANOTHER = worthwhile("the result is another value: root.handle != l.handle")
MATRIX = "the weights are no vector: w.rank >= 2"
FOLDED = worthwhile("the folded value is another value: p.handle != x.handle")


PACKED = """I = 0 | 1; w = d.integers([N, T, 8], "uint8"); o2 = d.powers_of_two([N, T] | [N * T]); o4: None; l.K = 16 * T; l.N = N
            o3 = (fixed(d.integers([N, (T + 1) // 2], "uint8")), fixed((d.rng.integers(-9, 10, [N, T]) / 4).astype("float32")))[I]
            x = (d.rng.integers(-9, 10, [A, 16 * T]) / 4).astype("float32"); l.accuracy_level = 0 | 4; l.bits = 4
            b = (d.rng.integers(-9, 10, [N]) / 4).astype("float32"); l.block_size = 16"""
"""Weights of four bits in blocks of 16; sums of products of quarters are exact in any order."""


def state(op: Operator, name: str, text: str, *where: Condition | str, **facts: Any) -> None:
    """States for an operator what an equation says of ``L``; ``b`` is absent where the operator has no bias. ``facts``: what else
    the equation states."""

    def axes(node: Ref) -> ProductAxes:
        return axes_of(op)(node.attributes)

    functions: dict[str, Any] = named(axes, is_ordinary_shift, largest, lies_along, limit, reshape, spread, total)
    if is_unbiased(op):
        text, functions["b"] = text.replace(", *b", ""), None
    _equation(
        f"{name}_{spelled(op.name).lower().replace('.', '_')}",
        text.replace("L(", f"{spelled(op.name)}("),
        *where,
        functions=functions,
        **facts,
    )


@for_each_operator(is_linear)
def fold_scales(key: str) -> None:
    """A scale along the channels that are put out, or summed over, enters the weights."""
    op = defined(key)
    bias = () if is_unbiased(op) else ("b",)
    state(
        op,
        "fold_scale_into",
        "L(x, w, *b, **l) * s == L(x, scaled(w, s, axes(l).outer, axes(l)), times(b, s), **l)",
        constant("s", "w", *bias),
        FLOAT,
        finite_product("s", "w", *bias),
        keeps_digits("s", "w"),
        ANOTHER,
        "it lies along what is put out: lies_along(s, l, axes(l).result)",
        *([MATRIX] if is_of_matrices(op) else []),
    )
    state(
        op,
        "fold_scale_into_following",
        "L((p := x * s), w, *b, **l) == L(x, scaled(w, s, axes(l).inner, axes(l)), b, **l)",
        constant("s", "w"),
        FLOAT,
        finite_product("s", "w"),
        keeps_digits("s", "w"),
        FOLDED,
        worthwhile(not_all("s", 0)),  # else all products of ``x * 0`` are one value, which scales by anything
        "it lies along what is summed over: lies_along(s, x, axes(l).data)",
    )


@for_each_operator(scales_weights)
def fold_scale_into_scales(key: str) -> None:
    """A scale behind weights that have scales of their own enters these."""
    op = defined(key)
    names = [f"o{i}" for i in others(op)]
    scales = f"o{product_of(op).scales}"
    kept = (f"times_columns({o}, s, w, axes(l))" if o == scales else o for o in names)
    product = f"L(x, w, *{', *'.join(names)}, *b, **l)"
    state(
        op,
        "fold_scale_into_scales_of",
        f"{product} * s == L(x, w, {', '.join(kept)}, times(b, s), **l)",
        constant("s", "b", scales),
        FLOAT,
        finite_product("s", "b", scales),
        keeps_digits("s", scales),
        ANOTHER,
        "it lies along what is put out: lies_along(s, l, axes(l).result)",
        drawn=(
            f"{PACKED}; s = d.powers_of_two([N] | [1, N] | [] | [A, 1] | [2, A, N])",
            """o2 = d.positive([N, T]) * 0 + 2.0**100; x = d.floats([A, 16 * T]) * 2.0**-120; s = fixed(2.0**30, "float32")
               b: None""",
        ),
    )


@for_each_operator(is_unbiased)
def fold_scale_into_biased(key: str) -> None:
    """Likewise a scale behind the sum with a bias that is no input of the operator."""
    op = defined(key)
    state(
        op,
        "fold_scale_into_biased",
        "(p := L(x, w, **l) + c) * s == L(x, scaled(w, s, axes(l).outer, axes(l)), **l) + c * s",
        constant("s", "w", "c"),
        FLOAT,
        finite_product("s", "w", "c"),
        ordinary_summands("c"),
        keeps_digits("s", "w"),
        varies("x"),
        worthwhile("the result is another value: root.handle != p.handle"),
        "it lies along what is put out: lies_along(s, l, axes(l).result)",
        *([MATRIX] if is_of_matrices(op) else []),
    )


@for_each_operator(slides)
def fold_scale_before_shift(key: str) -> None:
    """Under padding, too, where the shift has to stay before the operator."""
    op = defined(key)
    state(
        op,
        "fold_scale_before_shift_into_following",
        "L((p := x * s) + c, w, *b, **l) == L(x + c / s, scaled(w, s, axes(l).inner, axes(l)), b, **l)",
        constant("s", "w", "c"),
        FLOAT,
        finite_product("s", "w"),
        keeps_digits("s", "w"),
        "c of ordinary size beside s: is_ordinary_shift(c, s)",
        FOLDED,
        "the scale lies along what is summed over: lies_along(s, x, axes(l).data)",
        worthwhile("the shift lies along what is summed over: lies_along(c, x, axes(l).data)"),
    )


@for_each_operator(takes_shifts)
def move_shifts(key: str) -> None:
    """A shift of what is summed over is one of what is put out: without padding, as border pixels see fewer shifted elements."""
    op = defined(key)
    passed = "L(patch(c, x, w, axes(l), l), w, **l)"
    into_bias = not is_unbiased(op)
    behind = f"total(b, reshape({passed}, (outputs(w, axes(l)),)))"
    state(
        op,
        "move_shift_behind",
        f"L((p := x + c), w, *b, **l) == {f'L(x, w, {behind}, **l)' if into_bias else f'L(x, w, b, **l) + {passed}'}",
        constant("c", "w", *(["b"] if into_bias else [])),
        FLOAT,
        ordinary_summands("c"),
        f"the sum of c * w finite: bound(c, w, {'b' if into_bias else 'None'}) < limit(w)",
        "the shift leaves digits: leaves_digits(c, w)",
        FOLDED,
        "it lies along what is summed over: lies_along(c, x, axes(l).data)",
        *(["beta is 1: l.attr('beta', 1) == 1"] if into_bias and not has_bias_by_channel(op) else []),
        *(["no padding: not padded(l)"] if slides(op) else []),
        *(["a matrix: w.rank == 2"] if is_of_matrices(op) else []),
    )


@for_each_operator(has_bias_by_channel)
def add_constants(key: str) -> None:
    """A constant along the channels enters the bias."""
    op = defined(key)
    product = product_of(op)
    given, kept = ("".join(f"{mark}o{i}, " for i in others(op)) for mark in ("*", ""))
    state(
        op,
        "add_constant_to_bias_of",
        f"L(x, w, {given}*b, **l) + c == L(x, w, {kept}total(b, spread(c, outputs(w, axes(l)))), **l)",
        constant("b", "c"),
        FLOAT,
        ordinary_summands("c"),
        ANOTHER,
        "it lies along what is put out: lies_along(c, l, axes(l).result)",
        drawn=(
            f"{PACKED}; c = d.floats([N] | [1, N] | [] | [A, 1] | [2, A, N])",
            """w = d.integers([N, T, 8], "uint8", 0, 0); o2 = d.positive([N, T]) * 0 + 0.125; c = d.floats([N]) * 0 + 2.5e38
               x = d.floats([A, 16 * T]) * 0 + 2.5e38 / 16; b = d.floats([N]) * 0 + 2.5e38""",
        )
        if product.packed
        else (),
    )
