"""Einsum by the operators that it stands for: sums, transposes, products of elements, matrix products.

    Einsum(x, "ij->ji") == Transpose(x)                              nothing is summed over
    Einsum(x, y, "bij,jk->ik") == Einsum(ReduceSum(x), y)            indices of one operand alone
    Einsum(x, y, "ij,jk->ijk") == Unsqueeze(x) * y                   nothing is summed over
    Einsum(x, y, "bid,bjd->bij") == x @ Transpose(y)                 otherwise

Indices of two operands are shared by both and the result, summed over, or of one operand and the result. The last are rows or
columns of the matrix product; those before the last of the rows are axes of a batch that the other operand has not, as the
shared ones are of both. Which operand is the left one and in which order is summed is chosen so that fewest values are
transposed. All that is left around the product is views, which other rules understand.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from eqsat.conditions import kernels, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.einsum import Equation, Indices, equation_of, order
from eqsat.ir.extents import product
from eqsat.ir.types import HALVES, Dim, DType
from eqsat.rewrite import Ref, Term, Unmet, apply
from eqsat.rules.terms import int64s, mul, transpose
from eqsat.rules.views.extents import viewed
from eqsat.samples import Sampler
from eqsat.samples.einsum import draw_equation


def read(text: str, *operands: Ref | None) -> Equation:
    """The equation of these operands."""
    found = equation_of(text, tuple(x.rank for x in operands if x is not None))
    if found is None:
        raise Unmet("an ellipsis stands for an unknown number of axes")
    return found


# --- sums of one operand -------------------------------------------------------------------------------------------------


def alone(text: str, *operands: Ref | None) -> bool:
    """Whether an operand has an index that is summed over for itself."""
    equation = read(text, *operands)
    return any(equation.alone(n) for n in range(len(equation.operands)))


def summed_first(text: str, *operands: Ref | None) -> Term:
    """The equation of operands that are summed up over the indices that they have for themselves."""
    equation = read(text, *operands)
    terms: list[Term] = []
    kept: list[Indices] = []
    for n, x in enumerate(x for x in operands if x is not None):
        indices, summed = equation.operands[n], equation.alone(n)
        axes = int64s(indices.index(i) for i in summed)
        terms.append(apply("ReduceSum", x, axes, keepdims=0) if summed else x)
        kept.append(tuple(i for i in indices if i not in summed))
    return apply("Einsum", *terms, equation=Equation(tuple(kept), equation.result).text())


# --- copies and products of elements ------------------------------------------------------------------------------------


def permuted(text: str, x: Ref) -> Term:
    """``x`` with its axes in the order of the result."""
    equation = read(text, x)
    return transpose(x, order(equation.operands[0], equation.result))


def laid_out(x: Ref, indices: Indices, axes: Sequence[str]) -> Term:
    """``x`` with the axes in this order, and 1 for those that it has not; none where they would lead."""
    own = [i for i in axes if i in indices]
    first = axes.index(own[0]) if own else len(axes)
    added = [n - first for n, i in enumerate(axes) if i not in indices and n > first]
    moved = transpose(x, order(indices, own))
    return apply("Unsqueeze", moved, int64s(added)) if added else moved


def multiplied(text: str, x: Ref, y: Ref) -> Term:
    equation = read(text, x, y)
    first, second = equation.operands
    return mul(laid_out(x, first, equation.result), laid_out(y, second, equation.result))


# --- matrix products -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Product:
    """The indices of a matrix product, in order: of its batch, of its rows, summed over, of its columns. ``swapped``: the second
    operand is the left one."""

    swapped: bool
    batch: Indices
    rows: Indices
    inner: Indices
    columns: Indices

    @property
    def result(self) -> Indices:
        return (*self.batch, *self.rows, *self.columns)

    def own_batch(self, indices: Indices) -> Indices:
        return tuple(i for i in self.batch if i in indices)

    def transposes(self, left: Indices, right: Indices, result: Indices, varies: Sequence[bool]) -> int:
        """How many values that are not constant are transposed."""
        moved = (
            varies[0] and left != (*self.own_batch(left), *self.rows, *self.inner),
            varies[1] and right != (*self.own_batch(right), *self.inner, *self.columns),
            result != self.result,
        )
        return sum(moved)


def _products(equation: Equation, constant: Sequence[bool]) -> Iterator[tuple[int, _Product]]:
    """Ways to multiply matrices, a constant on the right first, and how many transposes each has."""
    for swapped in sorted((False, True), key=lambda swapped: constant[0] != swapped):
        left, right = equation.operands[::-1] if swapped else equation.operands
        given = [not c for c in (constant[::-1] if swapped else constant)]
        rows = tuple(i for i in equation.result if i not in right)
        columns = tuple(i for i in equation.result if i not in left)
        if given[0] or not given[1]:
            own, rows = rows[:-1], rows[-1:]
        else:  # the matrix on the left is constant: each of a batch on the right is multiplied by it
            at = equation.result.index(rows[0]) if rows else 0
            own = tuple(i for i in columns[:-1] if equation.result.index(i) < at)
            columns = columns[len(own) :]
        shared = set(own) | (set(left) & set(right))
        batch = tuple(i for i in equation.result if i in shared)
        for one in (left, right):
            inner = tuple(i for i in one if i in left and i in right and i not in equation.result)
            found = _Product(swapped, batch, rows, inner, columns)
            yield found.transposes(left, right, equation.result, given), found


def agree(text: str, x: Ref, y: Ref) -> bool:
    """Whether both operands have one extent along each index that is summed over."""
    equation = read(text, x, y)
    first, second = equation.operands
    return all(x.shape[first.index(i)] == y.shape[second.index(i)] for i in equation.summed)


def contracted(text: str, x: Ref, y: Ref, root: Ref) -> Term:
    """The sum of products as a matrix product; of vectors as a sum, for which kernels are faster."""
    equation = read(text, x, y)
    first, second = equation.operands
    shared = set(first) & set(second)
    if shared.issuperset(equation.result) and x.dtype not in HALVES:
        whole = (*equation.result, *equation.summed)
        elements = mul(laid_out(x, first, whole), laid_out(y, second, whole))
        return apply("ReduceSum", elements, int64s(range(len(equation.result), len(whole))), keepdims=0)
    _, found = min(_products(equation, (x.is_constant, y.is_constant)), key=lambda way: way[0])
    left, right = ((y, second), (x, first)) if found.swapped else ((x, first), (y, second))
    matrices = apply(
        "MatMul",
        _matrices(*left, found, found.rows, found.inner),
        _matrices(*right, found, found.inner, found.columns),
    )
    extents = dict(zip(equation.result, root.shape, strict=True))
    batch, rows, columns = ([extents[i] for i in part] for part in (found.batch, found.rows, found.columns))
    shape = (*batch, product(rows), product(columns))
    apart = viewed(matrices, shape, (*batch, *rows, *columns), root)
    return transpose(apart, order(found.result, equation.result))


def _matrices(x: Ref, indices: Indices, found: _Product, rows: Indices, columns: Indices) -> Term:
    """An operand as a batch of matrices; without leading axes of the batch that it has not."""
    extents: dict[str, Dim] = dict(zip(indices, x.shape, strict=True))
    own = found.own_batch(indices)
    moved = (*own, *rows, *columns)
    batch = found.batch[found.batch.index(own[0]) :] if own else ()
    shape = (*(extents.get(i, 1) for i in batch), *(product(extents[i] for i in part) for part in (rows, columns)))
    return viewed(transpose(x, order(indices, moved)), [extents[i] for i in moved], shape, x)


# --- rules ---------------------------------------------------------------------------------------------------------------


def _draw(d: Sampler, operands: Sequence[int], summed: float, alone: float) -> dict[str, Any]:
    text, shapes = draw_equation(d, d.choose(operands), summed=d.chance(summed), alone=alone, free=d.chance(0.85))
    dtype = d.choose(("float32", "float32", "float32", "float16", "int64", "int32"))
    arrays = [d.floats(s, dtype) if dtype.startswith("f") else d.integers(s, dtype, -99, 99) for s in shapes]
    return {name: d.either(x, 0.2) for name, x in zip("xy", arrays, strict=False)} | {"n": {"equation": text}}


equation = Equations(__name__, source="ONNX Einsum; numpy.einsum")
SUMMED = kernels("x", DType.FLOAT, DType.DOUBLE, *HALVES, DType.INT32, DType.INT64)
ONCE = "no operand has an index twice: not read(e, {0}).has_diagonals"
equation(
    "sum_before_einsum",
    "Einsum(x, *y, equation=e, **n) == summed_first(e, x, y)",
    SUMMED,
    worthwhile("an operand has an index for itself: alone(e, x, y)"),
    ONCE.format("x, y"),
    exactness=Exactness.ROUNDING,
    sample=partial(_draw, operands=(1, 2), summed=0.5, alone=0.7),
)
equation(
    "einsum_as_transpose",
    "Einsum(x, equation=e, **n) == permuted(e, x)",
    ONCE.format("x"),
    "nothing is summed over: not read(e, x).summed",
    sample=partial(_draw, operands=(1,), summed=0.0, alone=0.15),
)
equation(
    "einsum_as_mul",
    "Einsum(x, y, equation=e, **n) == multiplied(e, x, y)",
    ONCE.format("x, y"),
    "nothing is summed over: not read(e, x, y).summed",
    sample=partial(_draw, operands=(2,), summed=0.1, alone=0.1),
)
equation(
    "einsum_as_matmul",
    "Einsum(x, y, equation=e, **n) == contracted(e, x, y, root)",
    SUMMED,
    ONCE.format("x, y"),
    worthwhile("something is summed over: read(e, x, y).summed"),
    "nothing of one operand alone: not alone(e, x, y)",
    "what is summed over has one extent in both: agree(e, x, y)",
    exactness=Exactness.ROUNDING,
    sample=partial(_draw, operands=(2,), summed=0.9, alone=0.1),
)
