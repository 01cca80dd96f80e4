"""Recurrent networks as exporters write them: loops become operators, zeros that they start from and transposes around joined
directions go."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

BOOL, FLOAT, INT64 = onnx.TensorProto.BOOL, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
GATES = {"LSTM": 4, "GRU": 3}
HIDDEN = 5


def two_layers(op: str, initial: float = 0.0) -> Graph:
    """Two layers of both directions, batch first, with initial states of as many rows as the batch."""
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", "float32", ("batch", "time", 3))
    extents = b.op("Shape", x, start=0, end=1)
    shape = b.op("Concat", b.constant([4], "int64"), extents, b.constant([HIDDEN], "int64"), axis=0)
    zeros = b.op("Expand", b.constant(np.float32(initial)), shape)
    states = b.op("Split", zeros, b.constant([2, 2], "int64"), axis=0, outputs=2)
    value = b.op("Transpose", x, perm=(1, 0, 2))
    for inner, state in zip((3, 2 * HIDDEN), states, strict=True):
        rows = GATES[op] * HIDDEN
        weights = [rng.normal(size=(2, rows, n)).astype(np.float32) for n in (inner, HIDDEN)]
        started = [state] * (2 if op == "LSTM" else 1)
        options = {"direction": "bidirectional", "hidden_size": HIDDEN, "outputs": 2}
        value, _ = b.op(op, value, *map(b.constant, weights), None, None, *started, **options)
        joined = b.constant([0, 0, -1], "int64")
        value = b.op("Reshape", b.op("Transpose", value, perm=(0, 2, 1, 3)), joined)
    return b.finish({"y": b.op("Relu", b.op("Transpose", value, perm=(1, 0, 2)))})


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_states_of_zeros_and_the_transpose_behind_the_last_layer_are_left_out(op: str) -> None:
    result = eqsat.optimize(two_layers(op), numerics="exact")
    assert Counter(n.op for n in result.program.graph.nodes) == {op: 2, "Transpose": 3, "Reshape": 2, "Relu": 1}
    assert result.report.verification["verdict"] == "equal"


def test_other_initial_states_stay() -> None:
    result = eqsat.optimize(two_layers("GRU", initial=0.5))
    assert [len(n.inputs) for n in result.program.graph.nodes if n.op == "GRU"] == [6, 6]


class Loop:
    """A Loop as Keras and JAX write it: a counter beside the state, the sequence captured, and rows of the new states."""

    def __init__(self, batch: int | str = 2, time: int | str = 4, columns: int = 3) -> None:
        self.rng = np.random.default_rng(1)
        self.batch, self.time, self.columns = batch, time, columns
        self.weights: dict[str, np.ndarray] = {}

    def product(self, value: str, inner: int, columns: int) -> str:
        w, b = f"w{len(self.weights)}", f"b{len(self.weights)}"
        self.weights[w], self.weights[b] = (self.rng.normal(size=s).astype("f") for s in ((inner, columns), columns))
        return f"Add(MatMul({value}, {w}), {b})"

    def model(self, step: str, last: int = 4, projected: bool = False) -> onnx.ModelProto:
        """``step``: what the new state is, of ``x`` and ``h``; nested calls. It goes on until ``last``."""
        nodes, names = list[onnx.NodeProto](), iter(f"v{i}" for i in range(99))

        def write(call: ast.expr) -> str:
            if isinstance(call, ast.Name):
                return call.id
            assert isinstance(call, ast.Call)
            assert isinstance(call.func, ast.Name)
            attributes = {k.arg or "": ast.literal_eval(k.value) for k in call.keywords}
            nodes.append(
                helper.make_node(call.func.id, [write(a) for a in call.args], [name := next(names)], **attributes)
            )
            return name

        nodes.append(helper.make_node("Gather", ["xs", "count"], ["x"], axis=0))
        new = write(ast.parse(step, mode="eval").body)
        after = write(ast.parse("Add(count, one)", mode="eval").body)
        on = write(ast.parse(f"Less(Cast({after}, to=1), last)", mode="eval").body)
        rows = write(ast.parse(f"Identity({new})", mode="eval").body)
        info = helper.make_tensor_value_info
        state, whole = (self.batch, HIDDEN), (self.time, self.batch, self.columns)
        body = helper.make_graph(
            nodes,
            "body",
            [info("i", INT64, ()), info("c", BOOL, ()), info("count", INT64, ()), info("h", FLOAT, state)],
            [info(on, BOOL, ()), info(after, INT64, ()), info(new, FLOAT, state), info(rows, FLOAT, state)],
        )
        outer = [helper.make_node("Loop", ["times", "yes", "zero", "h0"], ["n", "end", "rows"], body=body)]
        read = "x0" if projected else "xs"
        if projected:
            self.weights["w"] = self.rng.normal(size=(self.columns, self.columns)).astype("f")
            outer.insert(0, helper.make_node("MatMul", ["x0", "w"], ["xs"]))
        constants: dict[str, Any] = {"one": np.int64(1), "zero": np.int64(0), "yes": np.True_, "last": np.float32(last)}
        constants |= {"times": np.int64(4), "single": np.float32(1), **self.weights}
        graph = helper.make_graph(
            outer,
            "recurrent",
            [info(read, FLOAT, whole), info("h0", FLOAT, state)],
            [info("end", FLOAT, state), info("rows", FLOAT, ("t", *state))],
            [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def gru(self, reset_after: bool = True) -> str:
        x, h = (self.product(v, n, HIDDEN) for v, n in (("x", self.columns), ("h", HIDDEN)))
        r = f"Sigmoid(Add({x}, {h}))"
        inner = f"Mul({r}, {self.product('h', HIDDEN, HIDDEN)})"
        if not reset_after:
            inner = self.product(f"Mul({r}, h)", HIDDEN, HIDDEN)
        n = f"Tanh(Add({self.product('x', self.columns, HIDDEN)}, {inner}))"
        z = f"Sigmoid(Add({self.product('x', self.columns, HIDDEN)}, {self.product('h', HIDDEN, HIDDEN)}))"
        return f"Add(Mul({z}, h), Mul(Sub(single, {z}), {n}))"

    def rnn(self) -> str:
        return f"Tanh(Add({self.product('x', self.columns, HIDDEN)}, {self.product('h', HIDDEN, HIDDEN)}))"


def operators(model: onnx.ModelProto) -> Counter[str]:
    result = eqsat.optimize(model)
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    return Counter(n.op for n in result.program.graph.nodes)


@pytest.mark.parametrize("reset_after", [True, False])
def test_a_loop_over_steps_of_a_gru_is_the_operator(reset_after: bool) -> None:
    loop = Loop(batch="batch")
    result = eqsat.optimize(loop.model(loop.gru(reset_after)))
    (gru,) = [n for n in result.program.graph.nodes if n.op == "GRU"]
    assert not [n for n in result.program.graph.nodes if n.op == "Loop"]
    assert gru.attributes["linear_before_reset"] == int(reset_after)
    assert result.report.exactness == "rounding"
    assert result.report.verification["verdict"] == "within tolerance"


def test_a_product_before_the_loop_is_in_the_weights() -> None:
    loop = Loop()
    found = operators(loop.model(loop.gru(), projected=True))
    assert (found["GRU"], found["MatMul"], found["Loop"]) == (1, 0, 0)


def test_plain_steps_are_an_operator_for_one_sequence_only() -> None:
    """ONNX Runtime takes up to four times as long for RNN as for the loop where there are several."""
    for batch, lifted in ((1, 1), (3, 0), ("batch", 0)):
        loop = Loop(batch=batch)
        found = operators(loop.model(loop.rnn()))
        assert (found["RNN"], found["Loop"]) == (lifted, 1 - lifted)


@pytest.mark.parametrize("defect", [{"last": 3}, {"time": "time"}])
def test_a_loop_that_may_end_early_or_not_begin_stays(defect: dict[str, Any]) -> None:
    loop = Loop(time=defect.get("time", 4))
    found = operators(loop.model(loop.gru(), defect.get("last", 4)))
    assert (found["GRU"], found["Loop"]) == (0, 1)
