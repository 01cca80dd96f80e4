"""Shorthands for terms, named after the operators, and conditions that many rules share."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from eqsat.rewrite import Apply, Condition, Match, Ref, Term, Unmet, apply


def add(a: Term, b: Term) -> Apply:
    return apply("Add", a, b)


def sub(a: Term, b: Term) -> Apply:
    return apply("Sub", a, b)


def mul(a: Term, b: Term) -> Apply:
    return apply("Mul", a, b)


def div(a: Term, b: Term) -> Apply:
    return apply("Div", a, b)


def matmul(a: Term, b: Term) -> Apply:
    return apply("MatMul", a, b)


def condition(name: str) -> Callable[[Callable[[Match], bool]], Condition]:
    """Makes a named condition of a predicate on matches."""

    def make(holds: Callable[[Match], bool]) -> Condition:
        return Condition(name, holds)

    return make


def constant(*names: str) -> Condition:
    """The values bound to ``names`` are known at compile time (an absent optional one counts as known)."""
    return Condition(
        f"{', '.join(names)} constant", lambda m: all(m[n] is None or m[n].is_constant for n in names), names
    )


def finite(*names: str) -> Condition:
    """No element of the values is infinite or NaN, and their product stays finite in float32."""

    def holds(m: Match) -> bool:
        product = 1.0
        for name in names:
            low, high = m[name].interval
            product *= max(abs(low), abs(high), 1e-30)
        return math.isfinite(product) and product < float(np.finfo(np.float32).max)

    return Condition(f"{' * '.join(names)} finite", holds)


__all__ = ["Ref", "Unmet", "add", "condition", "constant", "div", "finite", "matmul", "mul", "sub"]
