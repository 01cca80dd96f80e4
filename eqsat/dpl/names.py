"""Names of operators: ONNX's, and those of TVM's that its pattern examples use."""

from eqsat.errors import RuleError
from eqsat.ir.operator import operator

_PREFIXES = ("relax.", "relay.", "op.", "nn.", "R.")

TVM_NAMES = {
    "avg_pool2d": "AveragePool",
    "batch_flatten": "Flatten",
    "batch_matmul": "MatMul",
    "batch_norm": "BatchNormalization",
    "bias_add": "Add",
    "broadcast_to": "Expand",
    "astype": "Cast",
    "concatenate": "Concat",
    "conv2d": "Conv",
    "dense": "Gemm",
    "divide": "Div",
    "expand_dims": "Unsqueeze",
    "global_avg_pool2d": "GlobalAveragePool",
    "layer_norm": "LayerNormalization",
    "matmul": "MatMul",
    "max_pool2d": "MaxPool",
    "maximum": "Max",
    "mean": "ReduceMean",
    "minimum": "Min",
    "multiply": "Mul",
    "negative": "Neg",
    "permute_dims": "Transpose",
    "power": "Pow",
    "strided_slice": "Slice",
    "subtract": "Sub",
    "sum": "ReduceSum",
}
"""Those that are not ONNX's in lower case. Attributes and operands are ONNX's: ``nn.dense`` is a Gemm (set ``transB=1`` for TVM's
layout of the weight)."""


def operator_key(name: str) -> str:
    """The key of the operator called ``name``. Raises `RuleError` if there is none of that name."""
    if operator(name) is not None:
        return name
    plain = name
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    key = TVM_NAMES.get(plain) or "".join(word.capitalize() for word in plain.split("_"))
    if operator(key) is None:
        raise RuleError(f"{name!r} is neither an ONNX operator nor one of the names of TVM in eqsat.dpl.names")
    return key
