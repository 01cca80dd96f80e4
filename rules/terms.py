"""Shorthands for terms, named after the operators, and conditions that many rules share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import ml_dtypes
import numpy as np

from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Condition, Literal, Match, Ref, Term, Unmet, apply, literal


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


def nonzero(*names: str) -> Condition:
    """No element of the values is zero: a product with zero is equal to too many others."""

    def holds(m: Match) -> bool:
        for name in names:
            low, high = m[name].interval
            if not (low > 0 or high < 0) and not m[name].value.all():
                return False
        return True

    return Condition(f"{', '.join(names)} nonzero", holds)


def every_element(name: str, value: float) -> Condition:
    """Each element of the value bound to ``name`` is ``value``."""
    return Condition(f"{name} is {value:g}", lambda m: m[name].interval == (value, value))


def about(name: str, value: float) -> Condition:
    """Each element of the value bound to ``name`` is ``value``, rounded to its type once or twice.

    Twice: as a divisor, and once more as the reciprocal of that. Either is within half a unit in the last place.
    """

    def holds(m: Match) -> bool:
        if not m[name].dtype.is_float:
            return False
        tolerance = 2 * float(ml_dtypes.finfo(m[name].dtype.numpy).eps) * abs(value)
        return all(abs(bound - value) <= tolerance for bound in m[name].interval)

    return Condition(f"{name} is about {value:g}", holds)


def same_type(name: str) -> Condition:
    """The result has the element type and, provably, the shape of the value bound to ``name``."""
    return Condition(f"the result has the type of {name}", lambda m: is_known(m.root) and m.root.type == m[name].type)


def is_known(ref: Ref) -> bool:
    """Whether the element type and the rank are known."""
    return ref.type.dtype is not DType.UNDEFINED and ref.type.shape is not None


def signed(name: str) -> Condition:
    """Negation exists in the element type of the value."""
    return Condition(f"{name} signed", lambda m: m[name].dtype.is_signed)


def transpose(x: Term, perm: Sequence[int]) -> Term:
    """``x`` with its axes permuted; ``x`` itself if they stay."""
    return x if list(perm) == list(range(len(perm))) else apply("Transpose", x, perm=tuple(perm))


def permutation_of(node: Ref) -> tuple[int, ...]:
    """The permutation of a matched Transpose; without ``perm`` it reverses the axes."""
    perm = node.attr("perm")
    return tuple(range(node.rank))[::-1] if perm is None else tuple(perm)


def heads_and_rows_exchanged(rank: int) -> tuple[int, ...]:
    """The permutation of (..., rows, heads, size) to (..., heads, rows, size), and back."""
    return (*range(rank - 3), rank - 2, rank - 3, rank - 1)


def last_axes_exchanged(rank: int) -> tuple[int, ...]:
    """The permutation that exchanges the last two axes of a value with ``rank`` axes, two or more."""
    return (*range(rank - 2), rank - 1, rank - 2)


def int64s(values: Iterable[int]) -> Literal:
    """A vector of int64, as shapes, axes and bounds are given."""
    return literal(np.array(list(values), np.int64))


__all__ = [
    "Ref",
    "Unmet",
    "about",
    "add",
    "condition",
    "constant",
    "div",
    "every_element",
    "finite",
    "int64s",
    "is_known",
    "matmul",
    "mul",
    "nonzero",
    "permutation_of",
    "same_type",
    "signed",
    "sub",
    "transpose",
]
