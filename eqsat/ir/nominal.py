"""What symbolic extents count as when work is estimated.

A symbol counts as the number that the operator says it is equal to: of ``x[n, k] @ w[64, 8]`` the extent ``k`` is 64. Any other
counts as `NOMINAL_EXTENT`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from eqsat.errors import EqsatError
from eqsat.ir.operator import Application, Operator
from eqsat.ir.types import Dim, TensorType, Type

NOMINAL_EXTENT = 32
"""What a symbolic dimension counts as when nothing tells its extent."""

_NONE: Mapping[str, int] = {}
_watched: list[tuple[Dim, Dim]] | None = None


def note_equal(a: Dim, b: Dim) -> None:
    """Shape rules say here which extents must be the same."""
    if _watched is not None:
        _watched.append((a, b))


@contextmanager
def _watching() -> Iterator[list[tuple[Dim, Dim]]]:
    global _watched
    outer, _watched = _watched, []
    try:
        yield _watched
    finally:
        _watched = outer


def nominal(type: Type | None, extents: Mapping[str, int] = _NONE) -> Type | None:
    """A type with numbers for symbolic dimensions: those in ``extents``, `NOMINAL_EXTENT` for the rest."""
    if not isinstance(type, TensorType) or type.shape is None:
        return type
    return TensorType(
        type.dtype, tuple(extents.get(d, NOMINAL_EXTENT) if isinstance(d, str) else d for d in type.shape)
    )


def nominal_application(
    definition: Operator | None, app: Application, outputs: Sequence[Type]
) -> tuple[Application, list[Type]]:
    """An application and the types of its outputs with numbers for all extents."""
    extents = _NONE if definition is None else _known_extents(definition, app)
    types = [nominal(t, extents) for t in app.types]
    results = [r for t in outputs if (r := nominal(t, extents)) is not None]
    return Application(app.op, app.attributes, types, app.values, app.outputs), results


def flops_of(definition: Operator, app: Application, outputs: Sequence[Type]) -> float:
    """Operations of an operator, whatever extents are symbolic."""
    if definition.counts_parts:
        return definition.flops(app, outputs)
    return definition.flops(*nominal_application(definition, app, outputs))


def _known_extents(definition: Operator, app: Application) -> Mapping[str, int]:
    """The numbers that symbols of the operands must be equal to, by the operator's own shape rule."""
    dims = [d for t in app.types if isinstance(t, TensorType) and t.shape for d in t.shape]
    if not any(isinstance(d, str) for d in dims) or not any(isinstance(d, int) for d in dims):
        return _NONE
    with _watching() as equal:
        try:
            definition.infer(app)
        except EqsatError:
            return _NONE
    known: dict[str, int] = {}
    changed = True
    while changed:
        changed = False
        for pair in equal:
            a, b = (known.get(d, d) if isinstance(d, str) else d for d in pair)
            for symbol, number in ((a, b), (b, a)):
                if isinstance(symbol, str) and isinstance(number, int):
                    known[symbol] = number
                    changed = True
    return known
