"""Values of unknown rank or element type, as operators that nobody knows make them: no rule fails at one, and no search ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import eqsat
import eqsat.rules
from eqsat.backends.onnx_file import to_model
from eqsat.egraph.encode import encode
from eqsat.egraph.group_view import EGraphView
from eqsat.frontends import load
from eqsat.ir.build import GraphBuilder
from eqsat.rewrite import GroupRule, registered_rules

CONSTANTS: dict[str, Any] = {
    **{
        name: np.asarray(value)
        for name, value in (("i", [0]), ("number", 0), ("one", [1]), ("four", [4]), ("last", [-1]))
    },
    **{"far": np.array([99]), "two": np.array([1, 1]), "kept": np.array([0, -1])},
    **{"s": np.float32(0.1), "z": np.uint8(3), "c": np.float32(2)},
    **{"vector": np.ones(4, np.float32), "matrix": np.ones((4, 4), np.float32)},
}

NODES: tuple[tuple[Any, ...], ...] = (
    *(("Gather", "f i", {"axis": 0}), ("Gather", "f i", {"axis": 1}), ("Gather", "f number", {"axis": 0})),
    *(("Transpose", "f"), ("Transpose", "f", {"perm": (0, 2, 1, 3)}), ("Transpose", "f", {"perm": (0, 1, 3, 2, 4)})),
    *(("Concat", "f g", {"axis": 0}), ("Concat", "f f", {"axis": -1}), ("Concat", "f g", {"axis": 2})),
    *(("Neg=n", "g"), ("Concat", "n f", {"axis": -1}), ("Unsqueeze=w", "f i"), ("Concat", "w w", {"axis": 0})),
    *(("Reshape=r", "f kept"), ("Reshape", "r two"), ("Split", "f two", {"axis": -1})),
    *(("Split", "f", {"axis": 0, "num_outputs": 2}), ("ReduceSum", "f"), ("Expand", "f kept")),
    *(("Slice", "f i four last"), ("Slice", "f i far last one"), ("Slice", "f one far last one"), ("Slice", "f i four")),
    *(("MatMul=m", "f g"), ("MatMul", "f matrix"), ("Softmax=p", "m", {"axis": -1}), ("MatMul", "p h"), ("Where=x", "t m c")),
    *(("Softmax=y", "x"), ("MatMul", "y h"), ("Add", "f g"), ("Add", "m vector"), ("Mul", "f g"), ("Mul", "f c")),
    *(("Tile", "f two"), ("QuantizeLinear=q", "f s z"), ("DequantizeLinear=d", "q s z"), ("DequantizeLinear=e", "b s z")),
    *(("Add=a", "d e"), ("QuantizeLinear", "a s z"), ("Concat=j", "d e", {"axis": 0}), ("QuantizeLinear", "j s z")),
    *(("Relu=l", "d"), ("QuantizeLinear", "l s z"), ("ReduceMean", "f last"), ("ReduceMax", "f i", {"keepdims": 0})),
    *(("Squeeze", "f i"), ("Flatten", "f", {"axis": 1}), ("Shape", "f"), ("Pad", "f two"), ("Clip", "f c"), ("Clip", "b z")),
    *(("Conv", "f g"), ("MaxPool", "f", {"kernel_shape": (2, 2)}), ("Gemm", "f matrix"), ("LayerNormalization", "f vector")),
    *(("GatherElements", "f k"), ("Einsum", "f g", {"equation": "ij,jk->ik"}), ("ScatterND", "f k g"), ("GatherND", "f k")),
    *(("Cast", "f", {"to": 10}), ("CumSum", "f number"), ("TopK", "f one"), ("OneHot", "k one vector"), ("NonZero", "f")),
    *(("RotaryEmbedding", "f g h"), ("Attention=o", "f g h"), ("Transpose", "o", {"perm": (0, 2, 1, 3)}), ("Transpose", "o")),
    *(("MatMulInteger", "b b"), ("Resize", "f _ _ kept"), ("BatchNormalization", "f vector vector vector vector")),
)  # fmt: skip
"""Operators (what they make if others read it), operands, attributes; ``f``, ``g``, ``h``, ``b``, ``k``, ``t`` have any rank."""

TYPES = {"f": 1, "g": 1, "h": 1, "b": 2, "k": 7, "t": 9}


def _model(nodes: tuple[tuple[Any, ...], ...], *, typed: bool = True) -> onnx.ModelProto:
    made = [
        helper.make_node("Unknown", ["v"], [f"any_{name}" if typed else name for name in TYPES], domain="elsewhere")
    ]
    if typed:
        made += [helper.make_node("Cast", [f"any_{name}"], [name], to=to) for name, to in TYPES.items()]
    results: list[str] = []
    for number, (op, operands, *given) in enumerate(nodes):
        name, _, called = op.partition("=")
        outputs = [called or f"made_{number}", *([f"other_{number}"] if name in ("Split", "TopK") else [])]
        inputs = ["" if x == "_" else x for x in operands.split()]
        made.append(helper.make_node(name, inputs, outputs, **dict(*given)))
        results += outputs
    value = helper.make_tensor_value_info("v", TensorProto.FLOAT, [3])
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in CONSTANTS.items()]
    graph = helper.make_graph(made, "g", [value], [onnx.ValueInfoProto(name=name) for name in results], constants)
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("elsewhere", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


RULES = [rule for rule in registered_rules() if isinstance(rule, GroupRule)]


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_no_search_ends_where_no_rank_is_known(rule: GroupRule) -> None:
    view = EGraphView(encode(load(_model(NODES))).egraph)
    list(rule.build(view) if rule.find is None else rule.find(view))


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.filterwarnings("error::eqsat.LeftOutWarning")
def test_no_rule_fails_where_ranks_or_types_are_not_known(typed: bool) -> None:
    result = eqsat.optimize(_model(NODES, typed=typed), verify=False)
    assert not result.report.left_out
    assert result.report.opaque["elsewhere::Unknown"] == 1


def test_a_rotary_embedding_is_found_beside_a_value_of_unknown_rank() -> None:
    b = GraphBuilder()
    x, angles = b.input("x", "float32", (1, 2, 6, 8)), np.tile(np.linspace(0, 1, 24).reshape(1, 1, 6, 4), 2)
    first, second = b.op("Split", x, b.constant([4, 4], "int64"), axis=-1, outputs=2)
    turned = b.op("Concat", b.op("Neg", second), first, axis=-1)
    products = (b.op("Mul", v, b.constant(f(angles).astype(np.float32))) for v, f in ((x, np.cos), (turned, np.sin)))
    model = to_model(b.finish({"y": b.op("Add", *products)}))
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "place"))
    model.graph.node.append(helper.make_node("Unknown", ["x"], ["any"], domain="elsewhere"))
    model.graph.node.append(helper.make_node("Gather", ["any", "place"], ["row"], axis=0))
    model.graph.output.append(onnx.ValueInfoProto(name="row"))
    counts = eqsat.optimize(model, verify=False, form="flat").program.graph.operator_counts()
    assert counts == {"elsewhere::Unknown": 1, "Gather": 1, "RotaryEmbedding": 1}
