"""What the elementwise operators share: shape rules, arithmetic width, and the declaration of whole tables of them."""

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Evaluate, Expand, Flops, InferRule, Kind, define
from eqsat.ir.operators.dims import broadcast, common_dtype, count
from eqsat.ir.traits import NO_TRAITS, Traits
from eqsat.ir.types import DType, TensorType, Type

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16 = np.dtype(np.float16)

Unary = Callable[[np.ndarray], Any]
Binary = Callable[[np.ndarray, np.ndarray], Any]


def wide(x: np.ndarray) -> np.ndarray:
    """float16 and bfloat16 as float32, everything else as it is: formulas of several steps round once, at the end."""
    return x.astype(np.float32) if x.dtype == FLOAT16 or x.dtype == BFLOAT16 else x


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


def flops_per_element(factor: float) -> Flops:
    """``factor`` operations for each output element."""

    def flops(app: Application, outputs: Sequence[Type]) -> float:
        return factor * count(outputs[0]) if outputs else 0.0

    return flops


one_per_element = flops_per_element(1)


def unary(compute: Unary) -> Evaluate:
    """``compute`` in the input's own precision."""

    def evaluate(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
        return (narrow(compute(inputs[0]), inputs[0]),)

    return evaluate


def wide_unary(compute: Unary) -> Evaluate:
    """``compute`` in float32 at least."""

    def evaluate(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
        return (narrow(compute(wide(inputs[0])), inputs[0]),)

    return evaluate


def binary(compute: Binary) -> Evaluate:
    """``compute`` of two broadcast operands, in their own element type."""

    def evaluate(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
        a, b = inputs[0], inputs[1]
        return (narrow(compute(a, b), a),)

    return evaluate


def comparison(compute: Binary) -> Evaluate:
    """``compute`` of two broadcast operands, giving booleans."""

    def evaluate(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
        return (np.asarray(compute(inputs[0], inputs[1]), dtype=np.bool_),)

    return evaluate


def define_elementwise(
    name: str,
    evaluate: Evaluate,
    *,
    infer: InferRule = infer_same,
    flops: float = 1,
    bit_exact: bool = False,
    commutative: bool = False,
    expand: Expand | None = None,
    traits: Traits = NO_TRAITS,
) -> None:
    """Registers an elementwise operator that does ``flops`` operations an element."""
    define(
        name,
        infer=infer,
        evaluate=evaluate,
        kind=Kind.ELEMENTWISE,
        flops=one_per_element if flops == 1 else flops_per_element(flops),
        bit_exact=bit_exact,
        commutative=commutative,
        expand=expand,
        traits=traits,
    )


def function(**traits: Any) -> Traits:
    """Traits of a function of single elements; inputs after the first are numbers."""
    return Traits(operands=1, **traits)
