"""Fused products of ONNX Runtime: FusedMatMul, FusedGemm, FusedConv."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import ShapeError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Kind
from eqsat.ir.types import TensorType

GEMM = ("alpha", "beta", "transA", "transB")
CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")

ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}
"""Activations that fused products apply -> names of the parameters, in the order of ``activation_params``."""


def _activated(b: GraphBuilder, value: str, name: str, parameters: Sequence[float]) -> str:
    names = ACTIVATIONS.get(name)
    if names is None or len(parameters) != len(names):
        raise ShapeError(f"activation {name!r} with parameters {list(parameters)} is not covered by the definition")
    if name == "Clip":
        return b.op("Clip", value, *(b.constant(np.float32(p)) for p in parameters))
    attributes: dict[str, Any] = {k: float(p) for k, p in zip(names, parameters, strict=True)}
    return b.op(name, value, **attributes)


def _transposed(b: GraphBuilder, value: str, wanted: Any) -> str:
    found = b.type_of(value)
    rank = len(found.shape) if isinstance(found, TensorType) and found.shape is not None else None
    if (rank is None and wanted) or (rank is not None and rank < 2):
        raise ShapeError(
            f"FusedMatMul: operands have at least two axes, those of a transposed one are known; got {found}"
        )
    return b.op("Transpose", value, perm=(*range(rank - 2), rank - 1, rank - 2)) if rank and wanted else value


def _fused_matmul(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    only_attributes("FusedMatMul", attributes, "alpha", "transA", "transB")
    left = _transposed(b, inputs[0] or "", attributes.get("transA", 0))
    right = _transposed(b, inputs[1] or "", attributes.get("transB", 0))
    product = b.op("MatMul", left, right)
    alpha: Any = attributes.get("alpha", 1.0)
    found = b.type_of(left)
    return [product if alpha == 1.0 else b.op("Mul", product, b.constant(float(alpha), found.dtype))]


def _fused_gemm(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    only_attributes("FusedGemm", attributes, *GEMM, "activation", "activation_alpha", "activation_beta")
    product = b.op("Gemm", *inputs, **{k: v for k, v in attributes.items() if k in GEMM})
    name = str(attributes.get("activation", ""))
    parameters: list[Any] = [attributes.get(f"activation_{p}", 0.0) for p in ACTIVATIONS.get(name, ())]
    if name == "Clip":
        raise ShapeError("FusedGemm: activation 'Clip' is not covered by the definition")
    return [_activated(b, product, name, parameters)]


def _fused_conv(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    only_attributes("FusedConv", attributes, *CONV, "activation", "activation_params")
    value = b.op("Conv", *inputs[:3], **{k: v for k, v in attributes.items() if k in CONV})
    if len(inputs) > 3 and inputs[3]:
        found, added = b.type_of(value), b.type_of(inputs[3])
        if found.is_static and added.is_static and found != added:
            raise ShapeError(f"FusedConv: the sum of {found} and {added} is not covered by the definition")
        value = b.op("Add", value, inputs[3])
    if not attributes.get("activation", ""):
        return [value]
    parameters: Any = attributes.get("activation_params", ())
    return [_activated(b, value, str(attributes["activation"]), parameters)]


FUSED_MATMUL, FUSED_GEMM, FUSED_CONV = (f"com.microsoft::{name}" for name in ("FusedMatMul", "FusedGemm", "FusedConv"))
define_composite(FUSED_MATMUL, _fused_matmul, Kind.ANCHOR, defaults={"alpha": 1.0, "transA": 0, "transB": 0})
define_composite(FUSED_GEMM, _fused_gemm, Kind.ANCHOR)
define_composite(FUSED_CONV, _fused_conv, Kind.ANCHOR, defaults={"activation": ""})
