"""Integer products of ONNX Runtime: MatMulIntegerToFloat, DynamicQuantizeMatMul, QGemm."""

from collections.abc import Sequence
from typing import Any

from eqsat.errors import ShapeError
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Kind
from eqsat.ir.traits import Traits
from eqsat.ir.types import TensorType


def _input(inputs: Sequence[str | None], index: int) -> str | None:
    return inputs[index] if index < len(inputs) else None


def _check(b: Any, left: Sequence[str | None], right: Sequence[str | None]) -> None:
    """Raises `ShapeError` unless parameters of the left operand are numbers and those of the columns vectors or numbers."""
    for value in (*left, *right):
        found = b.type_of(value) if value else None
        if found is None:
            continue
        if not isinstance(found, TensorType) or found.shape is None or len(found.shape) > 1:
            raise ShapeError(f"scales, zero points and biases of integer products are vectors or numbers, got {found}")
        if value in left and found.size != 1:
            raise ShapeError(f"the left operand of an integer product has one scale and one zero point, got {found}")


def _scaled(b: Any, product: str, scales: Sequence[str | None], bias: str | None) -> str:
    """``product * (a_scale * b_scale) + bias`` in float32."""
    _check(b, scales[:1], (*scales[1:], bias))
    value = b.op("Mul", b.op("Cast", product, to=1), b.op("Mul", *scales))
    return b.op("Add", value, bias) if bias else value


def _matmul_integer_to_float(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    _check(b, [_input(inputs, 4)], [_input(inputs, 5)])
    only_attributes("MatMulIntegerToFloat", attributes)
    product = b.op("MatMulInteger", inputs[0], inputs[1], _input(inputs, 4), _input(inputs, 5))
    return [_scaled(b, product, inputs[2:4], _input(inputs, 6))]


def _dynamic_quantize_matmul(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    _check(b, [], [_input(inputs, 3)])
    only_attributes("DynamicQuantizeMatMul", attributes)
    a, scale, zero = b.op("DynamicQuantizeLinear", inputs[0], outputs=3)
    product = b.op("MatMulInteger", a, inputs[1], zero, _input(inputs, 3))
    return [_scaled(b, product, [scale, inputs[2]], _input(inputs, 4))]


def _qgemm(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    _check(b, [inputs[2], *inputs[7:]], [inputs[5]])
    only_attributes("QGemm", attributes, "alpha", "transA", "transB")
    if attributes.get("alpha", 1.0) != 1.0:
        raise ShapeError("QGemm: attribute 'alpha' other than 1 is not covered by the definition")
    scale, zero = (b.type_of(inputs[i]).size for i in (4, 5))
    if None not in (scale, zero) and scale != zero:
        raise ShapeError(f"QGemm: {scale} scales, but {zero} zero points of input 3; the kernel wants as many")
    a, w = inputs[0], inputs[3]
    if attributes.get("transA", 0):
        a = b.op("Transpose", a, perm=(1, 0))
    if attributes.get("transB", 0):
        w = b.op("Transpose", w, perm=(1, 0))
    product = b.op("MatMulInteger", a, w, inputs[2], inputs[5])
    if bias := _input(inputs, 6):
        product = b.op("Add", product, bias)
    value = _scaled(b, product, [inputs[1], inputs[4]], None)
    if not _input(inputs, 7):
        return [value]
    return [b.op("QuantizeLinear", value, inputs[7], _input(inputs, 8))]


define_composite("com.microsoft::MatMulIntegerToFloat", _matmul_integer_to_float, Kind.ANCHOR)
define_composite("com.microsoft::DynamicQuantizeMatMul", _dynamic_quantize_matmul, Kind.ANCHOR)
define_composite("com.microsoft::QGemm", _qgemm, Kind.ANCHOR, traits=Traits(quantises=True))
