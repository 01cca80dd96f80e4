"""What definitions share: `defines`, arithmetic width; of elementwise operators shape rules, and the declaration of tables."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Flops, InferRule, Kind, define
from eqsat.ir.operators.dims import broadcast, common_dtype, count
from eqsat.ir.traits import Traits
from eqsat.ir.types import DType, TensorType, Type

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16 = np.dtype(np.float16)

Unary = Callable[[np.ndarray], Any]
Binary = Callable[[np.ndarray, np.ndarray], Any]
OfOne = Callable[[Attributes, np.ndarray], Any]
OfTwo = Callable[[Attributes, np.ndarray, np.ndarray], Any]
Meaning = Callable[..., Any]
"""What an operator computes, given its attributes and inputs."""


def wide(x: np.ndarray) -> np.ndarray:
    """float16 and bfloat16 as float32, everything else as it is: formulas of several steps round once, at the end."""
    return x.astype(np.float32) if x.dtype == FLOAT16 or x.dtype == BFLOAT16 else x


def double(x: np.ndarray) -> np.ndarray:
    """Floats as float64, everything else as it is. What is computed so and then rounded to float32 is the same on every
    processor; NumPy's functions of float32 differ with the instructions that there are."""
    return x.astype(np.float64) if wide(x).dtype == np.float32 else x


def erf(x: np.ndarray) -> np.ndarray:
    """The error function. numpy has none; the standard library's takes 0.1 us for an element."""
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x), x.dtype)


def narrow(result: Any, like: np.ndarray) -> np.ndarray:
    """``result`` in the element type of ``like``. Numpy hands out scalars for rank 0; we never do."""
    return np.asarray(result).astype(like.dtype, copy=False)


def infer_same(app: Application) -> tuple[Type, ...]:
    """Output like the first input."""
    return (app.tensor(0),)


def infer_broadcast(app: Application) -> tuple[Type, ...]:
    """Two inputs of one element type, broadcast."""
    a, b = app.tensor(0), app.tensor(1)
    dtype = a.dtype if a.dtype is b.dtype else common_dtype(app, 0, 1)
    if a.shape == b.shape:
        return (a if a.dtype is dtype else b,)
    return (TensorType(dtype, broadcast(app, a.shape, b.shape)),)


def infer_comparison(app: Application) -> tuple[Type, ...]:
    """Two inputs of one element type, broadcast; booleans come out."""
    (found,) = infer_broadcast(app)
    assert isinstance(found, TensorType)
    return (TensorType(DType.BOOL, found.shape),)


def infer_variadic(app: Application) -> tuple[Type, ...]:
    """Any number of inputs of one element type, broadcast."""
    if not app.types:
        raise app.fail("at least one input is needed")
    shape = app.tensor(0).shape
    for i in range(1, len(app.types)):
        shape = broadcast(app, shape, app.tensor(i).shape)
    return (TensorType(common_dtype(app, *range(len(app.types))), shape),)


def input_flops(app: Application, outputs: Sequence[Type]) -> float:
    """One operation for each element of the first input."""
    return count(app.types[0])


def flops_per_element(factor: float) -> Flops:
    """``factor`` operations for each output element."""

    def flops(app: Application, outputs: Sequence[Type]) -> float:
        return factor * count(outputs[0]) if outputs else 0.0

    return flops


def defines(name: str, *, flops: Flops | float = 1, **facts: Any) -> Callable[[Meaning], Meaning]:
    """Registers the operator that the decorated function computes, as `eqsat.ir.operator.define` does.

    The function takes the attributes and the inputs, ``None`` for an absent one, and returns an array, or a tuple of several.
    ``flops``: how many, or how many for each element of the first output.
    """
    work = flops if callable(flops) else flops_per_element(flops)

    def register(compute: Meaning) -> Meaning:
        def evaluate(attributes: Attributes, inputs: Sequence[Any]) -> tuple[Any, ...]:
            found: tuple[Any, ...] | np.ndarray = compute(attributes, *inputs)
            return found if isinstance(found, tuple) else (found,)

        define(name, evaluate=evaluate, flops=work, **facts)
        return compute

    return register


def unary(compute: Unary) -> OfOne:
    """``compute`` in float64, rounded once."""
    return lambda attributes, x: narrow(compute(double(x)), x)


def binary(compute: Binary) -> OfTwo:
    """``compute`` of two broadcast operands, in their own element type."""
    return lambda attributes, a, b: narrow(compute(a, b), a)


def comparison(compute: Binary) -> OfTwo:
    """``compute`` of two broadcast operands, giving booleans."""
    return lambda attributes, a, b: np.asarray(compute(a, b), dtype=np.bool_)


def define_elementwise(
    name: str, compute: Meaning, *, infer: InferRule = infer_same, flops: float = 1, **facts: Any
) -> None:
    """Registers an elementwise operator that does ``flops`` operations an element."""
    defines(name, infer=infer, kind=Kind.ELEMENTWISE, flops=flops, **facts)(compute)


def function(**traits: Any) -> Traits:
    """Traits of a function of single elements; inputs after the first are numbers."""
    return Traits(operands=1, **traits)
