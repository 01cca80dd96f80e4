"""Scales, zero points and biases as the kernels on bytes want them, and what all equations on bytes ask of them."""

from typing import Any

import numpy as np

from eqsat.conditions import asks, constant, worthwhile
from eqsat.equations import named
from eqsat.ir.types import DType
from eqsat.rewrite import Condition, Ref, Term, literal
from eqsat.rules.quantised.scales import BYTES, column, per_tensor, positive, unblocked
from eqsat.rules.terms import reshape

SOURCE = "contrib operators of ONNX Runtime"


def dequantized(x: str) -> str:
    """The value that the integers called ``x`` stand for, in an equation."""
    return f"DequantizeLinear({x}, s{x}, *z{x}, **d{x})"


def quantized(value: str) -> str:
    """A value by the scale ``sy`` and the zero point ``zy``, in an equation."""
    return f"QuantizeLinear({value}, sy, *zy, **q)"


def scalar(value: Ref | None, dtype: DType = DType.UINT8) -> Term:
    """A scale or zero point of rank 0; an absent zero point is a zero of ``dtype``."""
    found = column(value)
    return literal(0, dtype) if found is None else found


POSITIVE: dict[str, Any] = {"dtypes": frozenset((DType.FLOAT,)), "low": 1e-30}
"""What scales are drawn as."""


@asks(scales=POSITIVE)
def are_scales(*scales: Ref) -> bool:
    """Whether constants are positive normal numbers of float32."""
    return all(s.dtype is DType.FLOAT and positive(s) for s in scales)


SHORT_OF = 2.0**-14
"""By how much a number of quanta may be rounded down: it moves as large a part of the elements by one."""


def quanta(s: Ref) -> np.float32:
    """Quanta in 1."""
    return np.float32(1) / np.float32(s.value.reshape(()))


@asks(vector={"vector": True})
def lies_along(vector: Ref | None, value: Ref) -> bool:
    """Whether a vector, if there is one, has an element for each index of the last axis."""
    return vector is None or (vector.rank == 1 and vector.shape == value.shape[-1:])


def matrix(x: Ref) -> Term:
    """``x`` with all axes but the last made one."""
    return x if x.rank == 2 else reshape(x, (-1, x.static_shape[-1]))


def viewed(value: Term, like: Ref) -> Term:
    """The elements of a matrix in the shape of ``like``."""
    return value if like.rank == 2 else reshape(value, like.static_shape)


functions = named(scalar, column, are_scales, quanta, lies_along, matrix, viewed, per_tensor, unblocked) | {
    "BYTES": BYTES
}


def known_parameters(operands: str, result: str = "") -> list[Condition | str]:
    """What is asked of the parameters of the ``operands``, named by a letter each, and of the result if it is quantised."""
    scales, zeros = ([f"{kind}{i}" for i in (*operands, *result)] for kind in "sz")
    nodes = [f"{node}.attributes" for node in (*(f"d{i}" for i in operands), *("q" for _ in result))]
    return [
        constant(*scales, *zeros),
        worthwhile(f"kernels without blocks, or another precision: unblocked({', '.join(nodes)})"),
        worthwhile(f"kernels for positive scales of float32: are_scales({', '.join(scales)})"),
    ]


def single_parameters(operands: str) -> list[Condition | str]:
    """The same, of operands and result with one scale each."""
    parameters = ", ".join(f"{kind}{i}" for kind in "sz" for i in (*operands, "y"))
    return [*known_parameters(operands, "y"), f"one scale and zero point each: per_tensor({parameters})"]
