"""Shorthands for terms, named after the operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np

from eqsat.conditions import about, condition, constant, every_element, finite, is_known, nonzero, same_type, signed
from eqsat.rewrite import Apply, GroupView, Literal, Ref, Term, Unmet, apply, literal

T = TypeVar("T")


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
    return _vector(tuple(values))


@lru_cache(1 << 14)
def _vector(values: tuple[int, ...]) -> Literal:
    return literal(np.array(values, np.int64))


def complete_nodes(view: GroupView, *ops: str) -> Iterator[tuple[Ref, tuple[Ref, ...]]]:
    """Every e-node of the operators that has all its inputs."""
    for op in ops:
        for node, inputs in view.nodes(op):
            given = tuple(x for x in inputs if x is not None)
            if len(given) == len(inputs):
                yield node, given


def by_class(found: Iterable[tuple[Ref, T]]) -> dict[int, list[T]]:
    """What was found of each e-class."""
    grouped: dict[int, list[T]] = {}
    for ref, what in found:
        grouped.setdefault(ref.handle, []).append(what)
    return grouped


__all__ = [
    "Ref",
    "Unmet",
    "about",
    "add",
    "by_class",
    "complete_nodes",
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
