"""The price of Einsum, by the operators that runtimes compute inside (`eqsat.ir.einsum.steps`).

ONNX Runtime 1.31 takes 1.1 to 2.1 times as long for an Einsum as for the same operators one by one (products of attention and of
projections, sums, copies), and longer where it makes a product of many small matrices of one of elements.
"""

import math
from collections.abc import Iterable

from eqsat.cost.model import Work, steps_inside, work_of
from eqsat.ir.einsum import Groups, Step, equation_of
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application
from eqsat.ir.types import DType, TensorType

SLOWER = 1.3
"""Times as long as the operators one by one, about the middle of what was measured."""

EACH_S = 5e-8
"""Seconds for each matrix of a stack: 98,304 elements multiplied by one another took 7.5 times as long as a product of 128 x 768
by 768 x 768."""


def inside_einsum(work: Work) -> tuple[list[Work], int] | None:
    """The operators that a kernel of Einsum computes, and how many matrices its products have; ``None`` where the extents do not
    tell."""
    types = [t for t in work.types if isinstance(t, TensorType) and t.is_static]
    if len(types) < len(work.types):
        return None
    shapes = [tuple(d for d in t.shape or () if isinstance(d, int)) for t in types]
    found = steps_inside(work)
    equation = equation_of(work.attributes["equation"], tuple(map(len, shapes))) if found else None
    if equation is None:
        return None
    extents: dict[str, int] = {}
    for indices, shape in zip(equation.operands, shapes, strict=True):
        extents.update((i, d) for i, d in zip(indices, shape, strict=True) if extents.get(i, 1) == 1)
    stacks = [step.result[0] for step in found if step.op == "MatMul"]
    return (
        [_work(step, types[0].dtype, extents) for step in found],
        sum(math.prod(extents[i] for i in stack) for stack in stacks),
    )


def _work(step: Step, dtype: DType, extents: dict[str, int]) -> Work:
    def typed(groups: Groups) -> TensorType:
        return TensorType(dtype, tuple(math.prod(extents[i] for i in group) for group in groups))

    types, result = [typed(groups) for groups in step.operands], typed(step.result)
    if step.op == "ReduceSum":
        types.append(TensorType(DType.INT64, (len(step.operands[0]) - len(step.result),)))
    attributes = Attributes({"perm": step.perm} if step.perm else {"keepdims": 0} if step.op == "ReduceSum" else {})
    return work_of(Application(step.op, attributes, types), [result])


def einsum_seconds(seconds: Iterable[float], matrices: int) -> float:
    """What a kernel takes, by what the operators inside take one by one."""
    return SLOWER * math.fsum(seconds) + EACH_S * matrices
