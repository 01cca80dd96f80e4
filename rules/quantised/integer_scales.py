"""Factors of integers, folded into the scale by which they are dequantised, or passed on to one that is there anyway."""

from collections.abc import Iterator

from eqsat.conditions import constant, kernels, one_element, varies, worthwhile
from eqsat.equations import Equations, form, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Condition, GroupView, Hint, Match, Term, literal
from eqsat.rules.quantised import scales
from eqsat.rules.quantised.scales import BYTES, Step, ordinary, shorthands, steps
from eqsat.rules.terms import mul

equation = Equations(
    __name__,
    source="(q - z) * s * c",
    exactness=Exactness.ROUNDING,
    shorthands=shorthands,
    functions=scales.functions | named(ordinary),
)
equation(
    "fold_factor_into_dequantize",
    "D(q) * c == like(n, 'DequantizeLinear', q, Mul(s, number(c.low, float32)), z)",
    constant("c"),
    one_element("c"),
    "c enlarges nothing: root.shape == q.shape",
    kernels("s", DType.FLOAT),
    Condition(
        "a scale of ordinary size",
        lambda m: ordinary(m.s.low * m.c.low, m.s.high * m.c.high),
        hints=(Hint("c", low=0.125), Hint("s", low=1e-30, high=1e30)),
    ),
    varies("q"),
)

equation(
    "scale_sums_by_columns_first",
    "(Cast(q, **cast) * r) * c == (Cast(q, **cast) * c) * r",
    worthwhile("sums of integers: q.dtype is int32"),
    constant("c"),
    varies("r"),
    kernels("r", DType.FLOAT),
    worthwhile("a scale for each column: c.rank == 1 and c.shape == q.shape[-1:]"),
    worthwhile("r has one for each row at most: r.rank < 1 or r.shape[-1] == 1"),
    source="Dettmers et al. 2022, LLM.int8(): scales of rows and of columns",
)

# --- between the two operands of a product

_SCALES = 4
"""By how many scales a value is dequantised at most, through this rule: without a limit it would not end."""


_NUMBERS = Condition(
    "numbers", lambda m: True, hints=tuple(Hint(name, single=True, low=1e-3, high=1e3) for name in ("s", "t", "u"))
)


def _products(view: GroupView) -> Iterator[Match]:
    """Products of two values that one number each dequantises, the first of which another number dequantises elsewhere."""
    by_class: dict[int, Step] = {}
    by_integers: dict[int, dict[int, Step]] = {}
    for step in steps(view, "DequantizeLinear"):
        if step.value.dtype in BYTES and not step.value.is_constant and step.is_plain:
            by_class.setdefault(step.node.handle, step)
            by_integers.setdefault(step.value.handle, {}).setdefault(step.node.handle, step)
    for product, (a, b) in view.nodes("Mul"):
        kept, given = (None if v is None else by_class.get(v.handle) for v in (a, b))
        if kept is None or given is None:
            continue
        there = [number_of(step) for step in by_integers[given.value.handle].values()]
        for other in by_integers[kept.value.handle].values():
            if other.node.handle != kept.node.handle:
                found = {"kept": kept, "given": given, "other": other, "there": there}
                scale = number_of(kept) * number_of(given) / number_of(other)
                yield Match(found | {"scale": scale}, product)


def number_of(step: Step) -> float:
    return float(step.s.value.reshape(()))


@equation.over_groups(
    find=_products,
    where=[
        "the same zero points: same_zero_point(kept.z, other.z)",
        worthwhile(f"few scales: len(there) < {_SCALES}"),
        worthwhile("another scale: not any(abs(s - scale) <= 1e-6 * scale for s in there)"),
        "scales of ordinary size: all(ordinary(s, s) for s in (scale, number_of(other)))",
    ],
    source="(q1 - z1) * s1 * (q2 - z2) * s2",
    forms=[
        form(
            f"D(q) * DequantizeLinear(p, t, *y, **m) + DequantizeLinear(q, u, *{zero}, **k)",
            _NUMBERS,
            shorthands=shorthands,
        )
        for zero in ("z", "z", "v")
    ],
)
def pass_factor_between_dequantized_values(m: Match) -> Term:
    """``D(q1, s1, z1) * D(q2, s2, z2) == D(q1, t, z1) * D(q2, s1 * s2 / t, z2)`` where ``D(q1, t, z1)`` is computed anyway."""
    scaled = m.given._replace(s=literal(m.scale, DType.FLOAT))
    return mul(m.other.node, scaled.again("DequantizeLinear", m.given.value))
