"""What TensorRT asks of explicit quantisation, checked on what is to be written; each rule in the words of its documentation.

Sources: docs/operators.md of onnx-tensorrt 10.1; *Explicit Quantization* and *Working with Quantized Types* in NVIDIA's
documentation of TensorRT.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from eqsat.errors import OutputError
from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import traits_of
from eqsat.ir.types import DType

_QUANTISED = (DType.INT8, DType.INT4, DType.FLOAT8E4M3FN)
_RULES = {
    "quantize": "onnx-tensorrt, docs/operators.md, QuantizeLinear: `y_zero_point` must be 0",
    "dequantize": "onnx-tensorrt, docs/operators.md, DequantizeLinear: `x_zero_point` must be zero",
    "types": "onnx-tensorrt, docs/operators.md, DequantizeLinear: INT8, FP8, INT4",
    "unsigned": "onnx-tensorrt, docs/operators.md: UINT8 is only supported as network input or output tensor types",
    "products": "onnx-tensorrt, docs/operators.md: INT8, INT4, and FP8 are treated as `Quantized Types` in TensorRT, where "
    "support is available only through quantization from a floating-point type with higher precision",
    "weights": "Explicit Quantization: when using pre-quantized weights, an IDequantizeLayer is required between the weights and "
    "the linear operator that uses them",
    "symmetric": "Working with Quantized Types: TensorRT employs a symmetric quantization scheme, where both activations and "
    "weights are mapped to quantized values centered around zero",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A node that breaks a rule, what it does, and the rule."""

    node: Node
    found: str
    rule: str

    def __str__(self) -> str:
        return f"{self.node.op} {self.node.name or self.node.outputs[0]!r}: {self.found}; {self.rule}"


def violations(graph: Graph) -> Iterator[Violation]:
    """What in a graph TensorRT would refuse, or not run as what it is, in the order of the nodes."""
    made = graph.producers()
    for node in graph.nodes:
        if node.domain:
            continue
        if node.op in ("QuantizeLinear", "DequantizeLinear"):
            yield from _of_pair(node, graph)
            continue
        for value in filter(None, node.inputs):
            dtype = graph.type_of(value).dtype
            if (
                dtype is DType.UINT8
                and (value in made or value in graph.constants)
                and node.op not in ("Cast", "CastLike")
            ):
                yield Violation(node, f"input {value!r} is of type uint8", _RULES["unsigned"])
            elif dtype in _QUANTISED and not traits_of(node.key).moves:
                rule = "weights" if value in graph.constants else "products"
                yield Violation(node, f"input {value!r} is of type {dtype.name.lower()}", _RULES[rule])


def check_explicit_quantisation(graph: Graph) -> None:
    """Raises `OutputError` with the first violation, and how many there are."""
    found = list(violations(graph))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise OutputError(f"tensorrt: {found[0]}{more}; quantise symmetrically, to int8")


def _of_pair(node: Node, graph: Graph) -> Iterator[Violation]:
    quantises = node.op == "QuantizeLinear"
    dtype = graph.type_of(node.outputs[0] if quantises else node.inputs[0]).dtype
    if dtype not in _QUANTISED:
        yield Violation(node, f"integers of type {dtype.name.lower()}", _RULES["symmetric" if quantises else "types"])
    zero = node.inputs[2] if len(node.inputs) > 2 else ""
    if not zero:
        return
    rule = _RULES["quantize" if quantises else "dequantize"]
    elements = graph.constants[zero].numpy() if zero in graph.constants else None
    if elements is None:
        yield Violation(node, f"zero point {zero!r} is computed", rule)
    elif np.any(elements.astype(np.float32) != 0):
        yield Violation(node, f"zero point {elements.reshape(-1)[0]}", rule)
