"""Writes two models that compute the same: with the operator of ``my_operator.py``, and with what it means."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

numbers = {"quarter": 0.25, "half": 0.5, "zero": 0.0, "one": 1.0}
spelled_out = [
    helper.make_node("Mul", ["x", "quarter"], ["a"]),
    helper.make_node("Add", ["a", "half"], ["b"]),
    helper.make_node("Clip", ["b", "zero", "one"], ["c"]),
    helper.make_node("Mul", ["x", "c"], ["y"]),
]
one_node = [helper.make_node("HardGelu", ["x"], ["y"], domain="my.kernels")]
for path, nodes, domains in (("spelled_out.onnx", spelled_out, [""]), ("hard_gelu.onnx", one_node, ["", "my.kernels"])):
    graph = helper.make_graph(
        nodes,
        "hard_gelu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in numbers.items()],
    )
    imports = [helper.make_opsetid(domain, 1 if domain else 20) for domain in domains]
    save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)
