"""Logic and selection (E18): double negation, and choices that are made at compile time."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import Match, Term, apply, rule, variables
from eqsat.rules.sampling import Sampler
from eqsat.rules.terms import constant, every_element, same_type

EXACT = Exactness.EXACT
SPEC = "ONNX operator specification"
x, y, c = variables("x y c")


@rule(
    apply("Not", apply("Not", x)),
    exactness=EXACT,
    source="Boolean algebra",
    family="E18",
    sample=lambda d: {"x": d.booleans(d.shape(2, 3))},
)
def cancel_double_not(m: Match) -> Term:
    """``not not x == x``."""
    return m.x


def _choice(d: Sampler, value: bool | None = None) -> dict[str, Any]:
    shape = d.shape()
    dtype = d.choose(("float32", "int64"))
    chosen = d.booleans(d.broadcast_with(shape))
    if value is not None and d.chance(0.8):
        chosen = np.full(chosen.shape, value)
    return {
        "c": chosen if value is None else d.either(chosen, 0.9),
        "x": d.array(shape, dtype),
        "y": d.array(d.broadcast_of(shape) if d.chance(0.3) else shape, dtype),
    }


@rule(
    apply("Where", c, x, y),
    where=[constant("c"), every_element("c", 1), same_type("x")],
    exactness=EXACT,
    source=SPEC,
    family="E18",
    sample=lambda d: _choice(d, True),
)
def choose_first(m: Match) -> Term:
    """``Where(true, x, y) == x``."""
    return m.x


@rule(
    apply("Where", c, x, y),
    where=[constant("c"), every_element("c", 0), same_type("y")],
    exactness=EXACT,
    source=SPEC,
    family="E18",
    sample=lambda d: _choice(d, False),
)
def choose_second(m: Match) -> Term:
    """``Where(false, x, y) == y``."""
    return m.y


@rule(
    apply("Where", c, x, x),
    where=[same_type("x")],
    exactness=EXACT,
    source=SPEC,
    family="E18",
    sample=_choice,
)
def choose_either(m: Match) -> Term:
    """``Where(c, x, x) == x``."""
    return m.x


@rule(apply("Where", apply("Not", c), x, y), exactness=EXACT, source=SPEC, family="E18", sample=_choice)
def exchange_choices(m: Match) -> Term:
    """``Where(not c, x, y) == Where(c, y, x)``."""
    return apply("Where", m.c, m.y, m.x)
