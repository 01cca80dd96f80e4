"""What is read of attention: the scores, the probabilities, and the steps that make one of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from eqsat.ir.types import HALVES, Dim, DType
from eqsat.rewrite import Ref

FLOATS = (DType.FLOAT, *HALVES)
"""Element types of scores."""


@dataclass(frozen=True)
class Step:
    """One operator applied to the scores: its name and its other inputs. ``swapped``: the scores are its last input.

    ``lead``: the leading extents of the scores there, where the other inputs vary along them. Widen and Narrow are casts from
    half precision to float32 and back.
    """

    op: str
    operands: tuple[Any, ...] = ()
    swapped: bool = False
    lead: tuple[Dim, ...] = ()


Steps = tuple[Step, ...]


@dataclass(frozen=True)
class Scores:
    """``steps`` applied to the product of ``q`` (..., queries, size) and ``k`` (..., size, keys).

    ``lead``: the leading extents of the scores, which a Reshape may have regrouped since the product, at the first step that
    varies along them. ``product``: MatMul, or MatMulInteger without zero points.
    """

    q: Ref
    k: Ref
    steps: Steps = ()
    lead: tuple[Dim, ...] = ()
    product: str = "MatMul"

    def then(self, op: str, *operands: Ref | None, swapped: bool = False, lead: tuple[Dim, ...] = ()) -> Scores:
        return replace(self, steps=(*self.steps, Step(op, operands, swapped, lead)))


@dataclass(frozen=True)
class Probabilities:
    """``steps`` applied to the softmax of ``scores`` over the keys. ``guarded``: NaN among them was replaced by zero."""

    scores: Scores
    steps: Steps = ()
    guarded: bool = False


def is_number(value: Ref) -> bool:
    """Whether a value is one number known at compile time."""
    return value.is_constant and all(d == 1 for d in value.shape)


def are_numbers(parameters: Sequence[Ref | None]) -> bool:
    """Whether each parameter is absent or one number known at compile time."""
    return all(p is None or is_number(p) for p in parameters)


def quantising(op: str, node: Ref, inputs: Sequence[Ref | None]) -> Steps:
    """The step that a QuantizeLinear or DequantizeLinear is, if it is by one known scale and zero point, in the precision of the
    scale, and to the type that its operands say; else none."""
    states = any(node.attr(name, 0) for name in ("block_size", "precision", "output_dtype"))
    return () if states or inputs[0] is None or not are_numbers(inputs[1:]) else (Step(op, tuple(inputs[1:])),)
