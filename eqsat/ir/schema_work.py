"""Work of the operators that fall back on their ONNX schema but do more than one operation an element."""

from __future__ import annotations

from collections.abc import Sequence

from eqsat.ir.operator import Application, Flops, elementwise_flops
from eqsat.ir.types import TensorType, Type


def _extents(type: Type | None) -> list[int]:
    """Extents of a tensor, an unknown one counted as 1."""
    if not isinstance(type, TensorType) or type.shape is None:
        return []
    return [d if isinstance(d, int) else 1 for d in type.shape]


def _einsum(app: Application, outputs: Sequence[Type]) -> float:
    """A multiply-add for each combination of the indices that the equation names."""
    terms = str(app.attr("equation", "")).replace(" ", "").split("->")[0].split(",")
    extents: dict[str, int] = {}
    for term, type in zip(terms, app.types, strict=False):
        if "." in term or len(term) != len(_extents(type)):
            return elementwise_flops(app, outputs)
        for index, d in zip(term, _extents(type), strict=True):
            extents[index] = max(d, extents.get(index, 1))
    number = 2.0
    for d in extents.values():
        number *= d
    return number


WORK: dict[str, Flops] = {"Einsum": _einsum}
