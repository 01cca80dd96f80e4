"""Names of operators: ONNX's, and those of TVM's that its pattern examples use."""

from eqsat.errors import RuleError
from eqsat.ir.operator import operator

_PREFIXES = ("relax.", "relay.", "op.", "nn.", "R.")

TVM_NAMES = {
    "abs": "Abs",
    "add": "Add",
    "attention": "Attention",
    "avg_pool2d": "AveragePool",
    "batch_flatten": "Flatten",
    "batch_matmul": "MatMul",
    "batch_norm": "BatchNormalization",
    "bias_add": "Add",
    "broadcast_to": "Expand",
    "cast": "Cast",
    "astype": "Cast",
    "clip": "Clip",
    "concat": "Concat",
    "concatenate": "Concat",
    "conv2d": "Conv",
    "dense": "Gemm",
    "divide": "Div",
    "dropout": "Dropout",
    "exp": "Exp",
    "expand_dims": "Unsqueeze",
    "gelu": "Gelu",
    "global_avg_pool2d": "GlobalAveragePool",
    "layer_norm": "LayerNormalization",
    "leaky_relu": "LeakyRelu",
    "less": "Less",
    "log": "Log",
    "matmul": "MatMul",
    "max_pool2d": "MaxPool",
    "maximum": "Max",
    "mean": "ReduceMean",
    "minimum": "Min",
    "multiply": "Mul",
    "negative": "Neg",
    "permute_dims": "Transpose",
    "power": "Pow",
    "relu": "Relu",
    "reshape": "Reshape",
    "round": "Round",
    "sigmoid": "Sigmoid",
    "softmax": "Softmax",
    "split": "Split",
    "sqrt": "Sqrt",
    "squeeze": "Squeeze",
    "strided_slice": "Slice",
    "subtract": "Sub",
    "sum": "ReduceSum",
    "tanh": "Tanh",
    "transpose": "Transpose",
    "where": "Where",
}
"""Attributes and operands are ONNX's: ``nn.dense`` is a Gemm (set ``transB=1`` for TVM's layout of the weight)."""


def operator_key(name: str) -> str:
    """The key of the operator called ``name``. Raises `RuleError` if there is none of that name."""
    if operator(name) is not None:
        return name
    plain = name
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    key = TVM_NAMES.get(plain, "")
    if operator(key) is None:
        raise RuleError(f"{name!r} is neither an ONNX operator nor one of the names of TVM in eqsat.dpl.names")
    return key
