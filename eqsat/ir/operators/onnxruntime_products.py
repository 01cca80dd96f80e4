"""Products of ONNX Runtime: fused with scales, sums and activations; of integers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eqsat.errors import ShapeError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import count
from eqsat.ir.traits import Traits
from eqsat.ir.types import Dim, Type

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
    rank = found.rank
    if (rank is None and wanted) or (rank is not None and rank < 2):
        raise ShapeError(
            f"FusedMatMul: operands have at least two axes, those of a transposed one are known; got {found}"
        )
    return b.op("Transpose", value, perm=(*range(rank - 2), rank - 1, rank - 2)) if rank and wanted else value


def _fused_matmul(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    only_attributes("FusedMatMul", attributes, "alpha", "transA", "transB", transBatchA=0, transBatchB=0)
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


BLOCK, LEAST_BLOCK = 16, 8
"""Channels side by side in the blocks on which ONNX Runtime computes convolutions of images: on processors with AVX512, and on
others."""

_READ_TOGETHER = 4
"""Channels that the runtime reads at a time when it rearranges an image in blocks, which has to have whole groups of them."""


def on_blocks(group: int, image: Sequence[int], weights: Sequence[int]) -> bool:
    """Whether ONNX Runtime, at its highest level, computes a convolution of float32 on blocks of channels: of an image, with
    enough channels to fill them, or so few that it reads them from where they are."""
    if len(weights) != len(image) or len(image) != 4:
        return False
    channels, filters, own = image[1], weights[0], weights[1]
    if group == 1:
        return channels < LEAST_BLOCK or channels % _READ_TOGETHER == 0
    if own == 1 and filters == group:
        return channels % _READ_TOGETHER == 0
    return own % BLOCK == 0 and filters // group % BLOCK == 0


POOLS = ("MaxPool", "AveragePool")


def pools_blocks(image: Sequence[Dim]) -> bool:
    """Whether ONNX Runtime, at its highest level, pools an image of float32 on blocks of channels: of which it has whole ones."""
    channels = image[1] if len(image) == 4 else 0
    return isinstance(channels, int) and channels > 0 and channels % BLOCK == 0


_RESIZED = {"nearest": ("asymmetric",), "linear": ("asymmetric", "align_corners", "half_pixel")}
"""How images are resized on blocks, and from where places are counted."""


def resizes_blocks(attributes: Mapping[str, Any], image: Sequence[int], result: Sequence[int]) -> bool:
    """Whether ONNX Runtime, at its highest level, resizes an image of float32 on blocks of channels behind a convolution: by
    whole factors, and nearest elements rounded down."""
    mode = attributes.get("mode", "nearest")
    counted = attributes.get("coordinate_transformation_mode", "half_pixel") in _RESIZED.get(mode, ())
    rounded = mode != "nearest" or attributes.get("nearest_mode") == "floor"
    whole = (
        len(image) == 4
        and tuple(image[:2]) == tuple(result[:2])
        and all(n and m % n == 0 for n, m in zip(image, result, strict=True))
    )
    return counted and rounded and whole


def doubles(attributes: Mapping[str, Any], image: Sequence[int], result: Sequence[int]) -> bool:
    """Whether what it `resizes_blocks` is each element twice along both axes, for which outside of blocks is as fast a kernel."""
    return attributes.get("mode", "nearest") == "nearest" and tuple(result[2:]) == tuple(2 * n for n in image[2:])


# --- integers --------------------------------------------------------------------------------------------------------


def _check_parameters(b: Any, left: Sequence[str | None], right: Sequence[str | None]) -> None:
    """Raises `ShapeError` unless parameters of the left operand are numbers and those of the columns vectors or numbers."""
    for value in (*left, *right):
        found = b.type_of(value) if value else None
        if found is None:
            continue
        if found.shape is None or len(found.shape) > 1:
            raise ShapeError(f"scales, zero points and biases of integer products are vectors or numbers, got {found}")
        if value in left and found.size != 1:
            raise ShapeError(f"the left operand of an integer product has one scale and one zero point, got {found}")


def _scaled(b: Any, product: str, scales: Sequence[str | None], bias: str | None) -> str:
    """``product * (a_scale * b_scale) + bias`` in float32."""
    _check_parameters(b, scales[:1], (*scales[1:], bias))
    value = b.op("Mul", b.op("Cast", product, to=1), b.op("Mul", *scales))
    return b.op("Add", value, bias) if bias else value


def _matmul_integer_to_float(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    left, right, sl, sr, zl, zr, bias = [*inputs, None, None, None][:7]
    _check_parameters(b, [zl], [zr])
    only_attributes("MatMulIntegerToFloat", attributes)
    return [_scaled(b, b.op("MatMulInteger", left, right, zl, zr), [sl, sr], bias)]


def _dynamic_quantize_matmul(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    x, right, sr, zr, bias = [*inputs, None, None][:5]
    _check_parameters(b, [], [zr])
    only_attributes("DynamicQuantizeMatMul", attributes)
    left, sl, zl = b.op("DynamicQuantizeLinear", x, outputs=3)
    return [_scaled(b, b.op("MatMulInteger", left, right, zl, zr), [sl, sr], bias)]


def _qgemm(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    _check_parameters(b, [*inputs[1:3], *inputs[7:]], inputs[4:7])
    only_attributes("QGemm", attributes, "alpha", "transA", "transB")
    if attributes.get("alpha", 1.0) != 1.0:
        raise ShapeError("QGemm: attribute 'alpha' other than 1 is not covered by the definition")
    scale, zero = (b.type_of(inputs[i]).size for i in (4, 5))
    if None not in (scale, zero) and scale != zero:
        raise ShapeError(f"QGemm: {scale} scales, but {zero} zero points of input 3; the kernel wants as many")
    a, sa, za, w, sw, zw, bias, sy, zy = (*inputs, None, None, None)[:9]
    sa, za, sw, zw, sy, zy = (_number(b, v) for v in (sa, za, sw, zw, sy, zy))
    columns = {"axis": 1 - attributes.get("transB", 0)} if b.type_of(sw).shape else {}
    product = b.op(
        "Gemm",
        b.op("DequantizeLinear", a, sa, za),
        b.op("DequantizeLinear", w, sw, zw, **columns),
        b.op("DequantizeLinear", bias, _unit(b, sa, sw), **({"axis": 0} if columns else {})) if bias else None,
        **{k: v for k, v in attributes.items() if k != "alpha"},
    )
    return [b.op("QuantizeLinear", product, sy, zy) if sy else product]


def _number(b: Any, value: str | None) -> Any:
    """A vector of one element as a number."""
    found = b.type_of(value) if value else None
    alone = found is not None and found.shape and found.size == 1
    return b.op("Reshape", value, b.constant(np.zeros(0, np.int64))) if alone else value


def _work_of_qgemm(app: Application, outputs: Sequence[Type]) -> float:
    """Of the product, of what is done to each sum, and of the scales: no kernel dequantises what it multiplies."""
    shape, scales = app.shape(3), app.tensor(4).size
    inner = shape[-1 if app.attributes.get("transB", 0) else 0] if shape else 1
    return (2.0 * (inner if isinstance(inner, int) else 1) + 6.0) * count(outputs[0]) + (scales or 1)


def _unit(b: Any, left: str, right: str) -> str:
    """The product of two scales, which a bias has."""
    known = [b.constant_of(v) for v in (left, right)]
    return b.op("Mul", left, right) if None in known else b.constant(known[0].numpy() * known[1].numpy())


for _name, _parts, _facts in (
    ("MatMulIntegerToFloat", _matmul_integer_to_float, {"traits": Traits(differences=((0, 4), (1, 5)))}),
    ("DynamicQuantizeMatMul", _dynamic_quantize_matmul, {"traits": Traits(differences=((1, 3),))}),
    (
        "QGemm",
        _qgemm,
        {"traits": Traits(quantises=True, differences=((0, 2), (3, 5))), "flops": _work_of_qgemm},
    ),
):
    define_composite(f"com.microsoft::{_name}", _parts, Kind.ANCHOR, **dict[str, Any](_facts))
