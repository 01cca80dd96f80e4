"""What runtimes do inside Einsum: operands are added up and transposed, multiplied as stacks of matrices two by two, and the
result is transposed.

ONNX Runtime 1.31 takes 1.1 to 2.1 times as long for an Einsum as for the same operators one by one (products of attention and of
projections, sums, copies), and longer where it makes a product of many small matrices of one of elements.
"""

import math
from collections.abc import Iterable, Sequence

from eqsat.cost.model import Work, work_of
from eqsat.ir.einsum import Indices, equation_of, order
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application
from eqsat.ir.types import DType, TensorType

SLOWER = 1.3
"""Times as long as the operators one by one, about the middle of what was measured."""

EACH_S = 5e-8
"""Seconds for each matrix of a stack: 98,304 elements multiplied by one another took 7.5 times as long as a product of 128 x 768
by 768 x 768."""


def inside_einsum(work: Work) -> tuple[list[Work], int] | None:
    """The operators that a kernel of Einsum runs, and how many matrices their products have; ``None`` where the extents do not
    tell."""
    types = [t for t in work.types if isinstance(t, TensorType)]
    shapes = [tuple(d for d in t.shape or () if isinstance(d, int)) for t in types]
    if len(types) < len(work.types) or any(len(s) != len(t.shape or ()) for s, t in zip(shapes, types, strict=True)):
        return None
    equation = equation_of(str(work.attributes.get("equation", "")), tuple(map(len, shapes)))
    if equation is None or equation.has_diagonals or any(t.shape is None for t in types):
        return None
    extents: dict[str, int] = {}
    for indices, shape in zip(equation.operands, shapes, strict=True):
        extents.update((i, d) for i, d in zip(indices, shape, strict=True) if extents.get(i, 1) == 1)
    steps = _Steps(types[0], extents)
    gathered = equation.operands[0]
    for n, following in enumerate(equation.operands[1:], 1):
        later = {i for indices in (*equation.operands[n + 1 :], equation.result) for i in indices}
        gathered = steps.product(gathered, following, later)
    gathered = steps.summed(gathered, equation.result)
    steps.transposed(gathered, equation.result)
    return (steps.works, steps.matrices) if steps.works else None


class _Steps:
    """The operators one after the other, with values told by their indices."""

    def __init__(self, like: TensorType, extents: dict[str, int]) -> None:
        self.works: list[Work] = []
        self.matrices = 0
        self._like, self._extents = like, extents

    def _type(self, *groups: Sequence[str]) -> TensorType:
        """A value with one axis for each group of indices."""
        return TensorType(self._like.dtype, tuple(math.prod(self._extents[i] for i in group) for group in groups))

    def _add(self, op: str, types: Sequence[TensorType], result: TensorType, attributes: dict[str, object]) -> None:
        app = Application(op, Attributes(attributes), types, [None] * len(types), 1)  # type: ignore[arg-type]
        self.works.append(work_of(op, "", app, [result]))

    def transposed(self, source: Indices, target: Indices) -> None:
        if source != target:
            before, behind = (self._type(*((i,) for i in indices)) for indices in (source, target))
            self._add("Transpose", [before], behind, {"perm": order(source, target)})

    def summed(self, source: Indices, kept: Sequence[str]) -> Indices:
        """What is left of the indices behind the sum over those that are not kept."""
        left = tuple(i for i in source if i in kept)
        if left != source:
            axes = TensorType(DType.INT64, (len(source) - len(left),))
            whole, rest = (self._type(*((i,) for i in indices)) for indices in (source, left))
            self._add("ReduceSum", [whole, axes], rest, {"keepdims": 0})
        return left

    def product(self, left: Indices, right: Indices, later: set[str]) -> Indices:
        """The indices of a product, in which those are summed over that nothing later has."""
        left, right = self.summed(left, {*right, *later}), self.summed(right, {*left, *later})
        stack = tuple(i for i in left if i in right and i in later)
        inner = tuple(i for i in left if i in right and i not in later)
        rows, columns = (tuple(i for i in a if i not in b) for a, b in ((left, right), (right, left)))
        self.transposed(left, (*stack, *rows, *inner))
        self.transposed(right, (*stack, *inner, *columns))
        operands = [self._type(stack, rows, inner), self._type(stack, inner, columns)]
        self._add("MatMul", operands, self._type(stack, rows, columns), {})
        self.matrices += math.prod(self._extents[i] for i in stack)
        return (*stack, *rows, *columns)


def einsum_seconds(seconds: Iterable[float], matrices: int) -> float:
    """What a kernel takes, by what the operators inside take one by one."""
    return SLOWER * sum(seconds) + EACH_S * matrices
