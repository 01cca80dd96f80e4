"""Extents as elements of arrays, which numpy computes with as it does with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.ir import extents
from eqsat.ir.normal_form import Dim


class Undecided(Exception):
    """A question about symbols that has no answer for all their values."""


class Extent:
    """A number that an extent is, as an element of an array."""

    __slots__ = ("dim",)

    def __init__(self, dim: Dim) -> None:
        self.dim = dim

    def __add__(self, other: Any) -> Extent:
        return Extent(extents.add(self.dim, dim_of(other)))

    def __sub__(self, other: Any) -> Extent:
        return Extent(extents.subtract(self.dim, dim_of(other)))

    def __rsub__(self, other: Any) -> Extent:
        return Extent(extents.subtract(dim_of(other), self.dim))

    def __mul__(self, other: Any) -> Extent:
        return Extent(extents.multiply(self.dim, dim_of(other)))

    def __neg__(self) -> Extent:
        return Extent(extents.subtract(0, self.dim))

    def __truediv__(self, other: Any) -> Extent:
        """Integers divide towards zero: told of those that are not negative, or by so little that 0 comes out."""
        by = dim_of(other)
        if by == 0 or not extents.at_least(by, 0):
            raise Undecided
        whole = extents.quotient(self.dim, by) if isinstance(by, int) else None
        if whole is not None:
            return Extent(whole)
        if extents.at_least(self.dim, 0):
            return Extent(extents.floor_divide(self.dim, by))
        if extents.at_least(self.dim, extents.subtract(1, by)):
            return Extent(extents.maximum(0, extents.floor_divide(self.dim, by)))
        raise Undecided

    def __mod__(self, other: Any) -> Extent:
        by = dim_of(other)
        if extents.quotient(self.dim, by) is not None:
            return Extent(0)
        if not isinstance(by, int) or by <= 0:
            raise Undecided
        return Extent(extents.remainder(self.dim, by))

    def __rtruediv__(self, other: Any) -> Extent:
        return Extent(dim_of(other)) / self

    __radd__ = __add__
    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        by = dim_of(other)
        if self.dim == by:
            return True
        if extents.differ(self.dim, by):
            return False
        raise Undecided

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        by = dim_of(other)
        if extents.at_least(self.dim, by):
            return False
        if extents.at_least(by, extents.add(self.dim, 1)):
            return True
        raise Undecided

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __gt__(self, other: Any) -> bool:
        return Extent(dim_of(other)) < self

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __hash__(self) -> int:
        return hash(self.dim)

    def __bool__(self) -> bool:
        return self != 0


def dim_of(value: Any) -> Dim:
    """An element of such an array as an extent. Raises `Undecided` for what is no whole number."""
    if isinstance(value, Extent):
        return value.dim
    whole: object = value
    if isinstance(whole, (bool, int, np.integer, np.bool_)):
        return int(value)
    raise Undecided


def dims_of(value: np.ndarray | None) -> list[Dim] | None:
    """The elements of a vector or a single one: numbers, or texts for what is symbolic. Floats are no extents."""
    if value is None or value.ndim > 1 or value.dtype.kind not in "biuO":
        return None
    return [e.dim if isinstance(e, Extent) else int(e) for e in value.reshape(-1).tolist()]


def as_array(dims: Sequence[Dim]) -> np.ndarray:
    """A vector of extents: of int64 if all are numbers."""
    if all(isinstance(d, int) for d in dims):
        return np.array(dims, np.int64)
    found = np.empty(len(dims), object)
    found[:] = [Extent(d) for d in dims]
    return found
