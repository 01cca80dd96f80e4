"""``com.microsoft::MoE(x, router, w1, *b1, w2, *b2)``: a mixture of experts, each two products around an activation.

Of every row the one expert counts that ``router`` has the largest number for, with its share of the softmax: 1 where the others
have minus infinity. Only that one is covered, `k=1`: of equal numbers the kernel takes others than TopK does.
Weights are ``[experts, out, in]``. With ``activation_type="swiglu"`` rows of ``w1`` are those of gate and gated in turn, the only
order that the kernel on the CPU knows (``swiglu_fusion=1``): ``min(g, limit) * Sigmoid(alpha * min(g, limit)) *
(Clip(l, -limit, limit) + beta)``.
"""

from collections.abc import Sequence
from typing import Any

from eqsat.errors import ShapeError
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import count
from eqsat.ir.outlines import as_the_first
from eqsat.ir.traits import Traits
from eqsat.ir.types import TensorType, Type

MOE = "com.microsoft::MoE"
_NAME = "MoE"
_UNSET = {"normalize_routing_weights": 0, "use_sparse_mixer": 0, "swiglu_limit_after_activation": 0}
_ACTIVATIONS = {"relu": "Relu", "identity": "Identity", "silu": "", "swiglu": ""}


def _expand(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    x, router, w1, b1, w2, b2 = _operands(attributes, inputs)
    experts, width = b.type_of(router).shape[-1], b.type_of(x).shape[-1]
    last = b.constant([-1], "int64")
    share, chosen = b.op(
        "TopK", b.op("Softmax", router, axis=-1), b.constant([1], "int64"), outputs=2, axis=-1, largest=1
    )
    chosen = b.op("Squeeze", chosen, last)
    rows = b.op("Unsqueeze", b.op("Reshape", x, b.constant([-1, width], "int64")), last)
    hidden = _activated(b, attributes, _layer(b, rows, chosen, w1, b1, experts))
    y = b.op("Mul", b.op("Squeeze", _layer(b, hidden, chosen, w2, b2, experts), last), share)
    return [y if b.type_of(x).rank == 2 else b.op("Reshape", y, b.op("Shape", x))]


def _operands(attributes: Attributes, inputs: Sequence[str | None]) -> list[Any]:
    """Rows, router, weights and biases. Raises `ShapeError` for a use that the definition does not cover."""
    known = ("k", "activation_type", "activation_alpha", "activation_beta", "swiglu_fusion", "swiglu_limit")
    only_attributes(_NAME, attributes, *known, **_UNSET)
    kind: Any = attributes.get("activation_type", "relu")
    fused = attributes.get("swiglu_fusion", 0) == 1
    if attributes.get("k", 1) != 1 or kind not in _ACTIVATIONS or fused != (kind == "swiglu") or any(inputs[6:]):
        raise ShapeError(f"{_NAME}: several experts for a row, other activations and a third product are not covered")
    return [*inputs, *[None] * 6][:6]


def _layer(b: Any, columns: str, chosen: str, weights: str, biases: str | None, experts: Any) -> str:
    """Each column ``[rows, in, 1]`` by the weights of its expert."""
    if b.type_of(weights).rank != 3 or b.type_of(weights).shape[0] != experts:
        raise ShapeError(f"{_NAME}: weights of {experts} experts are expected, got {b.type_of(weights)}")
    product = b.op("MatMul", b.op("Gather", weights, chosen, axis=0), columns)
    if biases is None:
        return product
    return b.op("Add", product, b.op("Unsqueeze", b.op("Gather", biases, chosen, axis=0), b.constant([-1], "int64")))


def _activated(b: Any, attributes: Attributes, x: str) -> str:
    kind: Any = attributes.get("activation_type", "relu")
    if kind != "swiglu":
        return b.op(_ACTIVATIONS[kind], x) if _ACTIVATIONS[kind] else b.op("Mul", x, b.op("Sigmoid", x))
    dtype, inner = b.type_of(x).dtype, b.type_of(x).shape[1]
    if not isinstance(inner, int) or inner % 2:
        raise ShapeError(f"{_NAME}: gate and gated are as many, got {inner} rows of both")
    pairs = b.op("Reshape", x, b.constant([-1, inner // 2, 2], "int64"))
    gate, gated = b.op("Split", pairs, outputs=2, axis=2, num_outputs=2)
    number: Any = attributes.get
    if number("swiglu_limit") is not None:
        low, high = (b.constant(sign * number("swiglu_limit"), dtype) for sign in (-1.0, 1.0))
        gate, gated = b.op("Min", gate, high), b.op("Clip", gated, low, high)
    alpha, beta = number("activation_alpha", 1.0), number("activation_beta", 0.0)
    gated = gated if beta == 0 else b.op("Add", gated, b.constant(beta, dtype))
    return b.op("Mul", b.op("Mul", gate, b.op("Sigmoid", b.op("Mul", gate, b.constant(alpha, dtype)))), gated)


def _flops(app: Application, outputs: Sequence[Type]) -> float:
    """A multiplication and an addition of each row by each weight of its expert."""
    weights = [t.shape for t in (app.tensor(2), app.tensor(4)) if t.shape is not None and len(t.shape) == 3]
    each = sum(count(TensorType(app.tensor(0).dtype, shape[1:])) for shape in weights)
    rows = app.tensor(1)
    return 2.0 * each * (count(TensorType(rows.dtype, rows.shape[:-1])) if rows.shape else 1)


define_composite(
    MOE, _expand, Kind.ANCHOR, flops=_flops, outline=as_the_first, defaults={"k": 1}, traits=Traits(structure="experts")
)
