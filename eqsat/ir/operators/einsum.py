"""Sums of products of elements whose axes are named by an equation: Einsum."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.ir.einsum import Equation, equation_of
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import broadcast, common_dtype, count, same_dim, unknown_dims
from eqsat.ir.operators.elementwise import defines, double, narrow, wide
from eqsat.ir.operators.matmul import adds_as_kernels_do
from eqsat.ir.traits import EVERY, Traits
from eqsat.ir.types import Dim, TensorType, Type


def _equation(app: Application) -> Equation | None:
    shapes = [app.shape(i) for i in range(len(app.types))]
    try:
        return equation_of(app.attr("equation", ""), tuple(None if s is None else len(s) for s in shapes))
    except ValueError as error:
        raise app.fail(str(error)) from None


def _extents(app: Application, equation: Equation) -> dict[str, Dim]:
    """The extent of each index: operands broadcast along an index that they share, along one that they have twice they do not."""
    found: dict[str, Dim] = {}
    for n, indices in enumerate(equation.operands):
        own: dict[str, Dim] = {}
        for index, extent in zip(indices, app.shape(n) or unknown_dims(len(indices)), strict=True):
            merged = same_dim(own.get(index, extent), extent)
            if merged is None:
                raise app.fail(f"extents {own[index]} and {extent} of one index must be equal")
            own[index] = merged
        for index, extent in own.items():
            grown = broadcast(app, (found.get(index, extent),), (extent,))
            assert grown is not None
            found[index] = grown[0]
    return found


def _infer(app: Application) -> tuple[Type, ...]:
    dtype = common_dtype(app, *range(len(app.types)))
    equation = _equation(app)
    if equation is None:
        return (TensorType(dtype, None),)
    extents = _extents(app, equation)
    return (TensorType(dtype, tuple(extents[index] for index in equation.result)),)


def _flops(app: Application, outputs: Sequence[Type]) -> float:
    """A multiplication and an addition for each combination of the indices of two operands, one operand after the other; an
    index that neither the next ones nor the result have is summed over at once. A single operand is added up, if anything."""
    equation = _equation(app)
    if equation is None:
        return count(outputs[0])
    extents: dict[str, int] = {}  # numbers that stand for symbols may not go together
    for n, indices in enumerate(equation.operands):
        for index, extent in zip(indices, app.shape(n) or (), strict=False):
            extents[index] = max(extents.get(index, 1), extent if isinstance(extent, int) else 1)

    def combinations(indices: Sequence[str]) -> float:
        return math.prod(float(extents.get(i, 1)) for i in indices)

    first, *others = equation.operands
    if not others:
        return combinations(tuple(dict.fromkeys(first))) if equation.summed else 0.0
    total, gathered = 0.0, first
    for n, indices in enumerate(others, 1):
        together = tuple(dict.fromkeys((*gathered, *indices)))
        total += 2.0 * combinations(together)
        later = {i for following in (*others[n:], equation.result) for i in following}
        gathered = tuple(i for i in together if i in later)
    return total


@defines(
    "Einsum",
    infer=_infer,
    kind=Kind.ANCHOR,
    flops=_flops,
    traits=Traits(affine=EVERY, homogeneous=True, keeps_whole=True),
)
def _einsum(attributes: Attributes, *operands: Any) -> Any:
    """The sum, over all indices that the result has not, of the products of the operands' elements. In which order sums and
    products are taken is open: ONNX Runtime and numpy sum up first what one operand has for itself.
    """
    equation = equation_of(attributes["equation"], tuple(x.ndim for x in operands))
    assert equation is not None
    precision = wide if adds_as_kernels_do() else double
    found: Any = np.einsum(equation.text(), *map(precision, operands), optimize=len(operands) > 1)
    return narrow(found, operands[0])
