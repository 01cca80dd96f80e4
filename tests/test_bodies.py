"""Bodies of If, Loop and Scan are optimised like graphs, and nothing about the model around them changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import eqsat
import eqsat.bodies
from eqsat.backends.onnx_file import to_model
from eqsat.errors import LeftOutWarning
from eqsat.exactness import Exactness
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.graph import NO_ATTRIBUTES, Graph

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((3, 8)).astype(np.float32)
W = RANDOM.standard_normal((8, 8)).astype(np.float32)
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def value(name: str, dtype: int = FLOAT, shape: Sequence[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def constants(**arrays: Any) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.asarray(v), k) for k, v in arrays.items()]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
    outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "g", list(inputs), [value(o) for o in outputs], list(initializers))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def run(source: onnx.ModelProto, feeds: Mapping[str, Any], optimised: bool = True) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, {k: np.asarray(v) for k, v in feeds.items()})]


def assert_same_results(source: onnx.ModelProto, result: onnx.ModelProto, *feeds: Mapping[str, Any]) -> None:
    for given in feeds:
        for a, b in zip(run(source, given, optimised=False), run(result, given), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, strict=True)


def written(result: Any, path: Path) -> onnx.ModelProto:
    result.save(path)
    return onnx.load(path)


def operators(source: onnx.ModelProto, *attributes: str) -> list[list[str]]:
    """Operators of the bodies of the first node that has the attributes."""
    for found in source.graph.node:
        bodies = {a.name: a.g for a in found.attribute}
        if set(attributes) <= bodies.keys():
            return [[n.op_type for n in bodies[a].node] for a in attributes]
    raise AssertionError("no such node")


def branch(name: str, nodes: Sequence[onnx.NodeProto], output: str, *initializers: onnx.TensorProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [value(output)], list(initializers))


def spelled_gelu(x: str, y: str, p: str) -> list[onnx.NodeProto]:
    return [
        node("Div", [x, f"{p}r"], [f"{p}a"]),
        node("Erf", [f"{p}a"], [f"{p}b"]),
        node("Add", [f"{p}b", f"{p}one"], [f"{p}c"]),
        node("Mul", [x, f"{p}c"], [f"{p}d"]),
        node("Mul", [f"{p}d", f"{p}half"], [y]),
    ]


def numbers(p: str) -> list[onnx.TensorProto]:
    found = {f"{p}r": np.sqrt(2), f"{p}one": 1, f"{p}half": 0.5}
    return constants(**{k: np.array(v, np.float32) for k, v in found.items()})


def choice(opset: int = 20) -> onnx.ModelProto:
    """Either branch is a product and a GELU, spelled out; the weight is the graph's."""

    def side(p: str) -> onnx.GraphProto:
        last = "Identity" if p == "p" else "Neg"
        nodes = [
            node("MatMul", ["x", "w"], [f"{p}m"]),
            node("Identity", [f"{p}m"], [f"{p}i"]),
            *spelled_gelu(f"{p}i", f"{p}g", p),
            node(last, [f"{p}g"], [f"{p}y"]),
        ]
        return branch(f"{p}side", nodes, f"{p}y", *numbers(p))

    chosen = node("If", ["c"], ["y"], then_branch=side("p"), else_branch=side("q"))
    return model([chosen], [value("c", BOOL, []), value("x", FLOAT, ["n", 8])], constants(w=W), opset)


@pytest.mark.parametrize("form", ["flat", "onnxruntime"])
def test_branches_are_optimised_with_the_outer_values_they_read_as_inputs(form: str, tmp_path: Path) -> None:
    source = choice()
    result = eqsat.optimize(source, form=form)
    saved = written(result, tmp_path / "m.onnx")
    then, other = operators(saved, "then_branch", "else_branch")
    assert then == ["MatMul", "Gelu"]
    assert other[:2] == ["MatMul", "Gelu"]
    assert len(other) == 3
    assert [t.name for t in saved.graph.initializer] == ["w"]  # no branch has a copy of its own
    assert_same_results(source, saved, {"c": True, "x": X}, {"c": False, "x": X[:1]})
    report = result.report
    assert report.bodies["count"] == report.bodies["optimised"] == 2
    assert (report.bodies["operators_before"], report.bodies["operators_after"]) == (16, 5)
    assert sum(report.bodies["verdicts"].values()) == 2
    assert report.rules["recognise_gelu"]["uses"] == 2
    assert report.exactness == "rounding"
    assert not report.opaque
    assert "2 of control flow, 2 optimised: 16 -> 5 operators" in str(report)


def test_the_class_of_a_body_decides_how_the_whole_model_is_compared() -> None:
    result = eqsat.optimize(choice())
    assert result.program.exactness is Exactness.ROUNDING
    assert "recognise_gelu" in result.program.kernels[0].rules
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    assert result.report.verification["outputs"]["y"]["tolerance"] > 0
    exact = eqsat.optimize(choice(), numerics="exact")
    assert exact.report.exactness == "exact"
    assert exact.report.verification["verdict"] == "equal"


def test_a_body_that_needs_a_newer_opset_raises_that_of_the_model(tmp_path: Path) -> None:
    source = choice(opset=17)
    saved = written(eqsat.optimize(source), tmp_path / "m.onnx")
    assert saved.opset_import[0].version == 20
    assert operators(saved, "then_branch")[0] == ["MatMul", "Gelu"]
    assert_same_results(source, saved, {"c": True, "x": X}, {"c": False, "x": X})


@pytest.mark.parametrize("form", ["flat", "onnxruntime"])
def test_a_body_needs_no_newer_opset_than_the_file_may_have(form: str, tmp_path: Path) -> None:
    """Attention is an operator from opset 23 on."""
    steps = [
        node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "t"], ["s"]),
        node("Mul", ["s", "f"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["z"]),
    ]
    then = branch("then", steps, "z", *constants(f=np.float32(8**-0.5)))
    chosen = node("If", ["c"], ["y"], then_branch=then, else_branch=branch("other", [node("Neg", ["q"], ["o"])], "o"))
    shapes = {"q": [2, 3, 5, 8], "k": [2, 3, 7, 8], "v": [2, 3, 7, 8]}
    source = model([chosen], [value("c", BOOL, []), *(value(n, FLOAT, shape) for n, shape in shapes.items())])
    saved = written(eqsat.optimize(source, form=form, opset=21), tmp_path / "m.onnx")
    assert saved.opset_import[0].version <= 21
    feeds = {n: RANDOM.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    assert_same_results(source, saved, {"c": True, **feeds}, {"c": False, **feeds})


def test_fused_operators_of_a_body_are_spelled_out_in_another_form(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "t"], ["m"]), node("Mul", ["m", "f"], ["z"])]
    start = [node("Transpose", ["x2"], ["t"], perm=[1, 0])]
    other = branch("other", [node("MatMul", ["x", "x2t"], ["o"])], "o")
    other.node.insert(0, node("Transpose", ["x2"], ["x2t"], perm=[1, 0]))
    then = branch("then", [*start, *nodes], "z", *constants(f=np.float32(0.5)))
    chosen = node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    source = model([chosen], [value("c", BOOL, []), value("x", FLOAT, [3, 8]), value("x2", FLOAT, [3, 8])])
    result = eqsat.optimize(source, form="onnxruntime", cost="kernels")
    assert operators(written(result, tmp_path / "a.onnx"), "then_branch")[0] == ["FusedMatMul"]
    result.save(tmp_path / "b.onnx", form="flat")
    plain = onnx.load(tmp_path / "b.onnx")
    for saved in (plain, onnx.load(tmp_path / "a.onnx")):
        assert_same_results(source, saved, *({"c": c, "x": X, "x2": X + 1} for c in (True, False)))


def test_bodies_inside_bodies_and_names_that_come_twice(tmp_path: Path) -> None:
    def side(p: str, shift: str) -> onnx.GraphProto:
        inner = [
            branch(
                f"{p}{i}",
                [node(op, [f"{p}v"], ["a"]), node("Identity", ["a"], ["b"]), node("Add", ["b", shift], ["z"])],
                "z",
            )
            for i, op in enumerate(("Relu", "Tanh"))
        ]
        nodes = [
            node("Transpose", ["x"], [f"{p}u"], perm=[1, 0]),
            node("Transpose", [f"{p}u"], [f"{p}v"], perm=[1, 0]),
            node("If", ["d"], [f"{p}y"], then_branch=inner[0], else_branch=inner[1]),
        ]
        return branch(p, nodes, f"{p}y")

    first = node("If", ["c"], ["y"], then_branch=side("p", "x"), else_branch=side("q", "w"))
    second = node("If", ["d"], ["w2"], then_branch=side("r", "y"), else_branch=side("s", "w"))
    source = model(
        [first, second],
        [value("c", BOOL, []), value("d", BOOL, []), value("x", FLOAT, ["n", 8])],
        constants(w=W[0]),
        outputs=["y", "w2"],
    )
    result = eqsat.optimize(source)
    assert result.report.bodies["count"] == 12
    assert result.report.bodies["operators_after"] == 4 + 16
    saved = written(result, tmp_path / "m.onnx")
    assert_same_results(source, saved, *({"c": c, "d": d, "x": X} for c in (True, False) for d in (True, False)))
    again = eqsat.optimize(source)
    assert to_model(again.program.graph).SerializeToString() == to_model(result.program.graph).SerializeToString()


def loop(body: onnx.GraphProto, *states: str, outputs: Sequence[str] = ("y",)) -> onnx.NodeProto:
    return node("Loop", ["n", "", *states], outputs, body=body)


def test_a_loop_keeps_its_state_and_reads_constants_of_the_graph(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["on"]),
            node("Mul", ["s", "k"], ["a"]),
            node("Mul", ["a", "k"], ["b"]),
            node("Transpose", ["b"], ["t"], perm=[1, 0]),
            node("Transpose", ["t"], ["s2"], perm=[1, 0]),
            node("ReduceSum", ["s2"], ["total"], keepdims=0),
        ],
        "body",
        [value("i", INT64, []), value("go", BOOL, []), value("s", FLOAT, [3, 8])],
        [value("on", BOOL, []), value("s2", FLOAT, [3, 8]), value("total", FLOAT, [])],
    )
    source = model(
        [loop(body, "x", outputs=["y", "all"])],
        [value("n", INT64, []), value("x", FLOAT, [3, 8])],
        constants(k=np.float32(0.5)),
        outputs=["y", "all"],
    )
    result = eqsat.optimize(source)
    saved = written(result, tmp_path / "m.onnx")
    assert sorted(operators(saved, "body")[0]) == ["Identity", "Mul", "ReduceSum"]
    names = [
        [v.name for v in side]
        for side in (saved.graph.node[0].attribute[0].g.input, saved.graph.node[0].attribute[0].g.output)
    ]
    assert names == [["i", "go", "s"], ["on", "s2", "total"]]
    assert_same_results(source, saved, {"n": 3, "x": X}, {"n": 0, "x": X})


def test_what_a_loop_hands_on_unchanged_is_known_in_its_body(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["on"]),
            node("Split", ["weights"], ["a", "b"], axis=1),
            node("MatMul", ["s", "a"], ["sa"]),
            node("MatMul", ["s", "b"], ["sb"]),
            node("Mul", ["sa", "k"], ["ska"]),
            node("Add", ["ska", "sb"], ["sum"]),
            node("Mul", ["sum", "last"], ["s2"]),
            node("Identity", ["weights"], ["copy"]),
            node("Identity", ["copy"], ["weights2"]),
        ],
        "body",
        [value("i", INT64, []), value("go", BOOL, []), *map(value, ("s", "weights", "last", "k"))],
        [value("on", BOOL, []), *map(value, ("s2", "weights2", "k", "k", "k"))],  # the state last is k from then on
    )
    source = model(
        [loop(body, "x", "w", "one", "half", outputs=["y", "same", "changed", "unread", "rows"])],
        [value("n", INT64, []), value("x", FLOAT, [3, 8])],
        constants(w=np.hstack([W, W]), one=np.float32(1), half=np.float32(0.5)),
        outputs=["y", "same", "changed", "rows"],
    )
    saved = written(eqsat.optimize(source), tmp_path / "m.onnx")
    (inside,) = operators(saved, "body")
    assert (inside.count("Split"), inside.count("MatMul"), inside.count("Gemm")) == (0, 1, 0)
    (kept,) = (n for n in saved.graph.node if n.op_type == "Loop")
    assert list(kept.input) == ["n", "", "x", "one"]
    assert_same_results(source, saved, *({"n": n, "x": X} for n in (0, 1, 3)))


def test_a_loop_whose_state_grows_although_the_file_says_it_does_not(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["on"]),
            node("Concat", ["s", "x"], ["s2"], axis=0),
            node("Shape", ["s"], ["sh"]),
            node("Cast", ["sh"], ["f"], to=FLOAT),
            node("Identity", ["f"], ["f2"]),
            node("ReduceSum", ["f2"], ["size"], keepdims=0),
        ],
        "body",
        [value("i", INT64, []), value("go", BOOL, []), value("s", FLOAT, [3, 8])],
        [value("on", BOOL, []), value("s2", FLOAT, [3, 8]), value("size", FLOAT, [])],
    )
    body.value_info.append(value("sh", INT64, [2]))
    source = model(
        [loop(body, "x", outputs=["y", "sizes"])],
        [value("n", INT64, []), value("x", FLOAT, [3, 8])],
        outputs=["y", "sizes"],
    )
    graph = load_onnx(source).nodes[0].attributes.bodies[0].graph
    assert graph is not None
    state = graph.type_of("s")
    assert str(state).endswith(", 8]")  # the feature axis is proven, the growing one is not
    assert not str(state).startswith("float32[3")
    saved = written(eqsat.optimize(source), tmp_path / "m.onnx")
    assert_same_results(source, saved, {"n": 3, "x": X})
    assert run(saved, {"n": 3, "x": X})[1].tolist() == [11, 14, 17]


def test_a_scan_is_optimised(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            node("Add", ["s", "e"], ["a"]),
            node("Mul", ["a", "h"], ["b"]),
            node("Mul", ["b", "h"], ["s2"]),
            node("Identity", ["s2"], ["o"]),
        ],
        "body",
        [value("s", FLOAT, [8]), value("e", FLOAT, [8])],
        [value("s2", FLOAT, [8]), value("o", FLOAT, [8])],
        constants(h=np.float32(0.5)),
    )
    scan = node("Scan", ["s0", "x"], ["y", "z"], body=body, num_scan_inputs=1)
    source = model([scan], [value("x", FLOAT, ["t", 8])], constants(s0=W[0]), outputs=["y", "z"])
    saved = written(eqsat.optimize(source), tmp_path / "m.onnx")
    assert operators(saved, "body")[0].count("Mul") == 1
    assert_same_results(source, saved, {"x": X})


def test_what_a_scan_slices_has_the_extents_of_the_whole_without_the_axis(tmp_path: Path) -> None:
    """Converters of nearest neighbours declare nothing but a rank, and a body of which no more is known is not verified."""
    squared = [
        node("Identity", ["s"], ["s1"]),
        node("Sub", ["s", "column"], ["d"]),
        node("Mul", ["d", "d"], ["square"]),
        node("ReduceSum", ["square", "axes"], ["o"], keepdims=0),
    ]
    body = helper.make_graph(
        squared, "body", [value("s", FLOAT, ["n", 3]), value("column", FLOAT, ["m"])], [value("s1"), value("o")]
    )
    scan = node("Scan", ["x", "columns"], ["y", "z"], body=body, num_scan_inputs=1, scan_input_axes=[1])
    inputs = [value("x", FLOAT, ["t", 3]), value("columns", FLOAT, [3, 8])]
    source = model([scan], inputs, constants(axes=np.array([1])), outputs=["y", "z"])
    result = eqsat.optimize(source)
    assert result.report.bodies["verdicts"] == {"equal": 1}
    saved = written(result, tmp_path / "m.onnx")
    assert_same_results(source, saved, {"x": X[:, :3], "columns": W[:3]})


def test_a_scan_keeps_the_types_that_nothing_but_the_file_says(tmp_path: Path) -> None:
    """Its state comes from a loop that may change its rank, and ONNX Runtime wants to know the rank of a result."""
    changing = helper.make_graph(
        [node("Squeeze", ["a", "first"], ["b"]), node("Identity", ["going"], ["on"])],
        "changing",
        [value("turn", INT64, []), value("going", BOOL, []), value("a")],
        [value("on", BOOL, []), value("b")],
    )
    summed = helper.make_graph(
        [node("Identity", ["s"], ["i"]), node("Mul", ["i", "i"], ["t"]), node("Add", ["row", "i"], ["out"])],
        "summed",
        [value("s", shape=[8]), value("row", shape=[8])],
        [value("t"), value("out")],
    )
    source = model(
        [
            node("Loop", ["turns", "", "x"], ["l"], body=changing),
            node("Scan", ["l", "rows"], ["z", "y"], body=summed, num_scan_inputs=1),
        ],
        [value("turns", INT64, []), value("x", shape=[1, 8]), value("rows", shape=[3, 8])],
        constants(first=np.array([0])),
    )
    given = {"turns": np.array(1), "x": X[:1], "rows": X}
    result = written(eqsat.optimize(source, feeds=[given]), tmp_path / "out.onnx")
    assert operators(result, "body") == [["Squeeze", "Identity"]]
    assert [n.op_type for n in result.graph.node[1].attribute[0].g.node] == ["Mul", "Add"]
    assert_same_results(source, result, given)


def test_a_loop_around_a_scan_keeps_the_types_that_nothing_but_the_file_says(tmp_path: Path) -> None:
    """What the loop begins with may be of one rank or another, as far as can be seen."""
    last = helper.make_graph(
        [node("Identity", ["s"], ["t"])], "last", [value("s"), value("row", shape=[8])], [value("t")]
    )
    inner = [
        node("Identity", ["a"], ["i"]),
        node("Scan", ["i", "rows"], ["b"], body=last, num_scan_inputs=1),
        node("Identity", ["going"], ["on"]),
    ]
    around = helper.make_graph(
        inner,
        "around",
        [value("turn", INT64, []), value("going", BOOL, []), value("a", shape=[8])],
        [value("on", BOOL, []), value("b")],
    )
    squeezed = branch("squeezed", [node("Squeeze", ["x", "first"], ["u"])], "u")
    kept = branch("kept", [node("Identity", ["x"], ["v"])], "v")
    source = model(
        [
            node("If", ["which"], ["s0"], then_branch=squeezed, else_branch=kept),
            node("Loop", ["turns", "", "s0"], ["y"], body=around),
        ],
        [value("which", BOOL, []), value("turns", INT64, []), value("x", shape=[1, 8]), value("rows", shape=[3, 8])],
        constants(first=np.array([0])),
    )
    given = {"which": np.array(True), "turns": np.array(2), "x": X[:1], "rows": X}
    assert_same_results(source, written(eqsat.optimize(source, feeds=[given]), tmp_path / "out.onnx"), given)


def test_a_branch_that_is_constant_or_hands_on_what_it_captures(tmp_path: Path) -> None:
    then = branch("then", [node("Exp", ["k"], ["e"]), node("Floor", ["e"], ["z"])], "z", *constants(k=W))
    other = branch("other", [node("Identity", ["x"], ["o1"]), node("Identity", ["o1"], ["o"])], "o")
    chosen = node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    source = model([chosen], [value("c", BOOL, []), value("x", FLOAT, [8, 8])])
    saved = written(eqsat.optimize(source), tmp_path / "m.onnx")
    assert operators(saved, "then_branch", "else_branch") == [[], ["Identity"]]
    assert_same_results(source, saved, {"c": True, "x": W}, {"c": False, "x": W})


def test_the_branch_of_a_known_condition_stands_for_the_if(tmp_path: Path) -> None:
    """As TorchScript's exporter writes ``x.squeeze(1) @ w + b``: of what the If makes not even the rank was known."""
    squeezed = branch("squeezed", [node("Squeeze", ["x", "first"], ["u"])], "u")
    kept = branch("kept", [node("Identity", ["x"], ["v"])], "v")
    source = model(
        [
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "first"], ["extent"]),
            node("Equal", ["extent", "first"], ["is_one"]),
            node("If", ["is_one"], ["s"], then_branch=squeezed, else_branch=kept),
            node("MatMul", ["s", "w"], ["m"]),
            node("Add", ["m", "b"], ["y"]),
        ],
        [value("x", shape=["n", 1, 8])],
        constants(first=np.array([1]), w=W, b=W[0]),
    )
    saved = written(eqsat.optimize(source), tmp_path / "m.onnx")
    assert [n.op_type for n in saved.graph.node] == ["Squeeze", "Gemm"]
    assert_same_results(source, saved, {"x": X[:, None]})


def test_branches_that_stand_for_their_ifs_may_hold_the_same_names(tmp_path: Path) -> None:
    """Two take their then-branch, in which names and constants are alike; a third in it, whose condition is an input, stays, and
    reads what the branch defines."""

    def outer(number: float) -> onnx.GraphProto:
        inner = [branch(name, [node(op, ["t"], [name])], name) for name, op in (("p", "Exp"), ("q", "Neg"))]
        nodes = [node("Mul", ["x", "k"], ["t"]), node("If", ["c"], ["r"], then_branch=inner[0], else_branch=inner[1])]
        return branch("outer", nodes, "r", *constants(k=np.float32(number)))

    def never(name: str) -> onnx.GraphProto:
        return branch("never", [node("Identity", [name], ["t"])], "t")

    source = model(
        [
            node("If", ["always"], ["a"], then_branch=outer(2), else_branch=never("x")),
            node("If", ["always"], ["b"], then_branch=outer(3), else_branch=never("x")),
            node("Not", ["always"], ["not"]),
            node("If", ["not"], ["d"], then_branch=never("a"), else_branch=never("b")),
            node("Mul", ["a", "b"], ["e"]),
            node("Add", ["d", "e"], ["y"]),
        ],
        [value("c", BOOL, []), value("x", shape=["n", 8])],
        constants(always=np.array(True)),
    )
    result = eqsat.optimize(source)
    assert result.program.graph.operator_counts()["If"] == 2
    saved = written(result, tmp_path / "m.onnx")
    assert_same_results(source, saved, {"x": X, "c": True}, {"x": X, "c": False})


def test_weights_that_leave_a_body_make_its_operator_no_slower() -> None:
    """The graph around a body holds its large constants, as what is computed there may read them, too."""
    weights = RANDOM.standard_normal((8, 256)).astype(np.float32)

    def body(name: str) -> onnx.GraphProto:
        nodes = [node("MatMul", ["x", "w"], ["p"]), node("Relu", ["p"], ["q"]), node("Relu", ["q"], [name])]
        return helper.make_graph(nodes, name, [], [value(name)], constants(w=weights))

    source = model(
        [node("If", ["c"], ["y"], then_branch=body("a"), else_branch=body("b"))],
        [value("c", BOOL, []), value("x", shape=["n", 8])],
    )
    result = eqsat.optimize(source)
    assert result.program.graph.constants
    assert result.report.predicted_s_after == result.report.predicted_s_before
    assert "SLOWER" not in str(result.report)


def test_a_body_that_cannot_be_read_stays_and_the_report_says_why(tmp_path: Path) -> None:
    source = choice()
    name = source.graph.node[0].attribute[0].name
    broken = source.graph.node[0].attribute[0].g
    broken.node[0].attribute.add(name="alpha", type=onnx.AttributeProto.INT, i=1)
    result = eqsat.optimize(source, verify=False)
    assert (result.report.bodies["count"], result.report.bodies["optimised"]) == (2, 1)
    (reason,) = result.report.bodies["kept"]
    assert "MatMul has no attribute 'alpha'" in reason
    assert result.report.opaque == {"If": 1}
    assert "untouched" in str(result.report)
    saved = written(result, tmp_path / "m.onnx")
    assert next(a.g for a in saved.graph.node[0].attribute if a.name == name) == broken


def test_values_to_keep_and_limits(tmp_path: Path) -> None:
    source = choice()
    source.graph.node.insert(0, node("Relu", ["x0"], ["x"]))
    del source.graph.input[1]
    source.graph.input.append(value("x0", FLOAT, ["n", 8]))
    result = eqsat.optimize(source, keep=["x"])
    assert result.program.graph.outputs == ("y", "x")
    assert result.report.bodies["optimised"] == 2
    limits: dict[str, dict[str, Any]] = {"of e-nodes": {"node_limit": 1}, "in seconds": {"time_limit_s": 1e-6}}
    for what, limit in limits.items():
        spent = eqsat.optimize(source, **limit)
        assert sum(n for reason, n in spent.report.bodies["kept"].items() if what in reason) == 1


def test_a_wrong_body_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    place = eqsat.bodies._placed

    def wrong(*given: Any) -> Any:
        body = place(*given)
        assert isinstance(body.graph, Graph)
        *nodes, last = body.graph.nodes
        nodes.append(replace(last, op="Relu", domain="", inputs=last.inputs[:1], attributes=NO_ATTRIBUTES))
        return replace(body, graph=body.graph.with_nodes(nodes), opset=0)

    monkeypatch.setattr(eqsat.bodies, "_placed", wrong)
    with pytest.warns(LeftOutWarning, match="kernel If_0: 'y'"):
        result = eqsat.optimize(choice())
    assert result.report.bodies["optimised"] == 0
    assert result.report.verification["verdict"] == "equal"


@pytest.mark.parametrize("nested", [False, True])
def test_branches_share_the_large_constants_that_are_made_in_them(tmp_path: Path, nested: bool) -> None:
    """Three products of one input are one by the weights side by side, in each branch."""
    rng = np.random.default_rng(0)
    weights = {k: (rng.standard_normal((64, 64)) / 8).astype(np.float32) for k in "qkv"}

    def branch(prefix: str, last: str) -> onnx.GraphProto:
        nodes = [node("MatMul", ["x", k], [prefix + k]) for k in "qkv"]
        nodes += [node("Sigmoid", [f"{prefix}q"], [f"{prefix}1"]), node("Tanh", [f"{prefix}k"], [f"{prefix}2"])]
        nodes += [node("Mul", [f"{prefix}1", f"{prefix}2"], [f"{prefix}3"])]
        nodes += [node(last, [f"{prefix}3", f"{prefix}v"], [f"{prefix}y"])]
        return helper.make_graph(nodes, prefix, [], [value(f"{prefix}y", FLOAT, [7, 64])])

    def either(prefix: str, output: str, condition: str) -> onnx.NodeProto:
        then, other = branch(f"{prefix}a", "Add"), branch(f"{prefix}b", "Sub")
        return helper.make_node("If", [condition], [output], then_branch=then, else_branch=other)

    choice = either("o", "y", "c")
    if nested:
        inner = helper.make_graph([either("i", "iy", "d")], "inner", [], [value("iy", FLOAT, [7, 64])])
        choice = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=branch("p", "Sub"))
    inputs = [value("x", FLOAT, [7, 64]), value("c", BOOL, []), *([value("d", BOOL, [])] if nested else [])]
    source = model([choice], inputs, constants(**weights))
    result = eqsat.optimize(source)
    x = rng.standard_normal((7, 64)).astype(np.float32)
    given = {"x": x, "c": True, "d": False} if nested else {"x": x, "c": True}
    assert_same_results(source, written(result, tmp_path / "m.onnx"), given, {**given, "c": False})
    assert (tmp_path / "m.onnx").stat().st_size < 1.3 * len(source.SerializeToString())
    report = result.report
    assert report.constant_bytes_before <= report.constant_bytes_after < 1.1 * report.constant_bytes_before


@pytest.mark.parametrize("nested", [False, True])
def test_branches_make_nothing_of_the_weights_they_share_where_the_file_would_hold_them_twice(
    tmp_path: Path, nested: bool
) -> None:
    """One branch could put the weights of its two products side by side, as both have one input; in the other they have two."""
    rng = np.random.default_rng(0)
    weights = {k: (rng.standard_normal((64, 64)) / 8).astype(np.float32) for k in "qk"}

    def branch(prefix: str, second: str) -> onnx.GraphProto:
        nodes = [node("MatMul", ["x", "q"], [f"{prefix}q"]), node("MatMul", [second, "k"], [f"{prefix}k"])]
        nodes += [node("Sigmoid", [f"{prefix}q"], [f"{prefix}1"]), node("Tanh", [f"{prefix}k"], [f"{prefix}2"])]
        nodes += [node("Mul", [f"{prefix}1", f"{prefix}2"], [f"{prefix}y"])]
        return helper.make_graph(nodes, prefix, [], [value(f"{prefix}y", FLOAT, [7, 64])])

    alone = eqsat.optimize(
        model(branch("a", "x").node, [value("x", FLOAT, [7, 64])], constants(**weights), outputs=["ay"])
    )
    assert alone.report.operators_after["MatMul"] == 1
    one, two = branch("a", "x"), branch("b", "z")
    if nested:
        inner = helper.make_node("If", ["d"], ["iy"], then_branch=one, else_branch=branch("c", "x"))
        one = helper.make_graph([inner], "inner", [], [value("iy", FLOAT, [7, 64])])
    either = helper.make_node("If", ["c"], ["y"], then_branch=one, else_branch=two)
    conditions = [value(c, BOOL, []) for c in ("cd" if nested else "c")]
    source = model([either], [*(value(v, FLOAT, [7, 64]) for v in "xz"), *conditions], constants(**weights))
    result = eqsat.optimize(source)
    report = result.report
    assert report.constant_bytes_after <= 1.02 * report.constant_bytes_before
    assert report.bodies["alike"] == 2
    assert "of 2 weights that others read, too, they make the same or nothing" in str(report)
    given: dict[str, Any] = {v: rng.standard_normal((7, 64)).astype(np.float32) for v in "xz"}
    given |= {"c": True, "d": False} if nested else {"c": True}
    assert_same_results(source, written(result, tmp_path / "m.onnx"), given, {**given, "c": False})


def test_rows_of_a_loop_that_never_runs_have_the_extents_that_were_declared() -> None:
    nodes = [
        node("Add", ["i", "one"], ["end"]),
        node("Unsqueeze", ["i", "axis"], ["from"]),
        node("Unsqueeze", ["end", "axis"], ["to"]),
        node("Slice", ["table", "from", "to"], ["part"]),
        node("Add", ["s", "part"], ["s_"]),
        node("Identity", ["on"], ["on_"]),
        node("Identity", ["s_"], ["row"]),
    ]
    held = constants(one=np.int64(1), axis=np.array([0]), table=np.arange(5, dtype=np.float32))
    inputs = [value("i", INT64, []), value("on", BOOL, []), value("s", FLOAT, [1])]
    outputs = [value("on_", BOOL, []), value("s_", FLOAT, [1]), value("row", FLOAT, [1])]
    body = helper.make_graph(nodes, "body", inputs, outputs, held)
    source = model(
        [node("Loop", ["n", "", "x"], ["last", "rows"], body=body)],
        [value("n", INT64, []), value("x", shape=(1,))],
        outputs=("last", "rows"),
    )
    result = eqsat.optimize(source)
    assert result.report.bodies["optimised"] == 1
    for n in (0, 3):
        given = {"n": np.array(n), "x": np.ones(1, np.float32)}
        assert (
            [y.shape for y in run(result.to_onnx(), given)] == [y.shape for y in run(source, given)] == [(1,), (n, 1)]
        )


def test_why_a_body_was_not_verified_by_itself_is_reported() -> None:
    """What is in an empty sequence has no rank yet."""
    state = helper.make_tensor_sequence_value_info
    body = helper.make_graph(
        [
            node("Identity", ["on"], ["on_"]),
            node("Relu", ["x"], ["r"]),
            node("Relu", ["r"], ["again"]),
            node("SequenceInsert", ["s", "again"], ["s_"]),
        ],
        "body",
        [value("i", INT64, []), value("on", BOOL, []), state("s", FLOAT, None)],
        [value("on_", BOOL, []), state("s_", FLOAT, None)],
    )
    nodes = [
        node("SequenceEmpty", [], ["none"]),
        node("Loop", ["n", "", "none"], ["rows"], body=body),
        node("ConcatFromSequence", ["rows"], ["y"], axis=0),
    ]
    report = eqsat.optimize(model(nodes, [value("x", shape=(3, 8))], constants(n=np.int64(3)))).report
    assert report.bodies["verdicts"] == {"not run": 1}
    (reason,) = report.bodies["not_run"]
    assert reason.startswith("input 's' is a sequence of float32: random values need")
    assert f"1 compared only where the model runs it: {reason}" in report.details()


@pytest.mark.parametrize(("own", "other", "refused"), [(1.0, "w", True), (10.0, "w", False), (1.0, "x", False)])
def test_an_initializer_by_the_name_of_what_another_branch_reads_is_refused(
    own: float, other: str, refused: bool
) -> None:
    """ONNX Runtime would read the outer value in both branches, and where no other branch reads it, the initializer."""
    held = constants(w=np.full(8, own, np.float32))
    branches: list[onnx.GraphProto] = []
    for i, read in enumerate(["w", other]):
        steps = [("Add", ["x", read], f"r{i}"), ("Relu", [f"r{i}"], f"a{i}"), ("Relu", [f"a{i}"], f"b{i}")]
        nodes = [node(op, given, [made]) for op, given, made in steps]
        branches.append(helper.make_graph(nodes, f"branch{i}", [], [value(f"b{i}")], [] if i else held))
    source = model(
        [node("If", ["c"], ["y"], name="choice", then_branch=branches[0], else_branch=branches[1])],
        [value("c", BOOL, []), value("x", shape=(3, 8))],
        constants(w=np.full(8, 10, np.float32)),
    )
    if refused:
        with pytest.raises(eqsat.ModelError, match=r"If 'choice': then_branch has an initializer 'w'.*rename"):
            eqsat.optimize(source)
        return
    result = eqsat.optimize(source)
    assert result.report.bodies["optimised"] == 2
    for taken in (True, False):
        feeds = {"c": np.array(taken), "x": X}
        np.testing.assert_array_equal(run(result.to_onnx(), feeds)[0], run(source, feeds)[0])


def test_a_reason_without_advice_behind_it_is_reported() -> None:
    report = eqsat.optimize(model([node("Relu", ["x"], ["y"])], [value("x", shape=(3,))])).report
    report.verification = {"verdict": "not run", "notes": ["its values do not fit"]}
    bodies = eqsat.bodies.Bodies()
    bodies.add(report)
    assert bodies.to_dict()["not_run"] == {"its values do not fit": 1}


def _attending(then: int) -> onnx.ModelProto:
    """Two branches: of attention four times in a row, and of attention and ``then`` more operators that stay."""

    def branch(name: str, factor: float, times: int, more: int) -> onnx.GraphProto:
        last = "q"
        nodes: list[onnx.NodeProto] = []
        for i in range(times):
            scores, scaled, weights, last, query = *(f"{name}_{part}{i}" for part in "abcd"), last
            nodes += [
                node("MatMul", [query, "k"], [scores]),
                node("Mul", [scores, "factor"], [scaled]),
                node("Softmax", [scaled], [weights], axis=-1),
                node("MatMul", [weights, "v"], [last]),
            ]
        for i in range(more):
            last, before = f"{name}_e{i}", last
            nodes.append(node("CumSum", [before, "axis"], [last], reverse=i % 2))
        held = constants(factor=np.float32(factor), axis=np.int64(2))
        return helper.make_graph(nodes, name, [], [value(last)], held)

    branches = {"then_branch": branch("hot", 0.25, 4, 0), "else_branch": branch("cold", 0.5, 1, then)}
    heads = [value("q", shape=(1, 4, 64, 16)), value("k", shape=(1, 4, 16, 64)), value("v", shape=(1, 4, 64, 16))]
    return model([node("If", ["flag"], ["y"], **branches)], [value("flag", BOOL, ()), *heads])


def test_what_bodies_may_not_have_because_of_their_opset_is_said() -> None:
    report = eqsat.optimize(_attending(0), form="flat", opset=21).report
    assert report.withheld == {"Attention": 23}
    newer = eqsat.optimize(_attending(0), form="flat", opset=23).report
    assert not newer.withheld
    assert newer.bodies["operators_after"] < report.bodies["operators_after"]


@pytest.mark.parametrize("then", [0, 40])
def test_the_file_is_as_new_as_its_bodies_need_where_the_opset_is_worth_much(then: int) -> None:
    """Where 40 operators stay beside its attention, the second branch alone would not be as new."""
    source = _attending(then)
    result, settled = eqsat.optimize(source, form="flat"), eqsat.optimize(source, form="flat", opset=21).report
    assert result.to_onnx().opset_import[0].version == 23
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    assert not result.report.withheld
    assert "Softmax" not in {n.op_type for a in result.to_onnx().graph.node[0].attribute for n in a.g.node}
    assert result.report.bodies["passed_opset"] == {"opset": 21, "cost": settled.bodies["cost_after"]}
    assert "--opset 21" in str(result.report)


def test_types_are_declared_in_bodies_whose_numbers_stand_outside() -> None:
    """ONNX's shape inference took attention of parts, whose sizes a body captures, to be 0 wide, and refused the product."""
    nodes = [
        node("Shape", ["u"], ["extents"], end=2),
        node("Concat", ["extents", "width"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["wide"]),
        node("Split", ["wide", "sizes"], ["q", "k", "v"], axis=2),
    ]
    for part, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("Reshape", [part, "apart"], [f"{part}r"]),
            node("Transpose", [f"{part}r"], [f"{part}t"], perm=perm),
        ]
    nodes += [
        node("MatMul", ["qt", "kt"], ["scores"]),
        node("Mul", ["scores", "factor"], ["scaled"]),
        node("Softmax", ["scaled"], ["weights"], axis=-1),
        node("MatMul", ["weights", "vt"], ["heads"]),
        node("Transpose", ["heads"], ["turned"], perm=[0, 2, 1, 3]),
        node("Reshape", ["turned", "joined"], ["rows"]),
        node("MatMul", ["rows", "w"], ["z"]),
    ]
    then = helper.make_graph(nodes, "then", [], [value("z", shape=("n", "s", 32))])
    other = helper.make_graph([node("Neg", ["u"], ["o"])], "other", [], [value("o", shape=("n", "s", 32))])
    source = model(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        [value("c", BOOL, ()), value("x", shape=("m", 96)), value("u", shape=("n", "s", 32))],
    )
    weights = RANDOM.standard_normal((32, 32)).astype(np.float32)
    shapes = {"sizes": np.array([32] * 3), "apart": np.array([0, 0, 4, 8]), "joined": np.array([0, 0, 32])}
    shapes["width"] = np.array([96])
    source.graph.initializer.extend(constants(w=weights, factor=np.float32(0.25), **shapes))
    result = eqsat.optimize(source, opset=23)
    assert "Attention" in operators(result.to_onnx(), "then_branch")[0]
    assert not result.report.left_out


def test_bodies_that_gain_little_leave_the_opset_as_it_is() -> None:
    result = eqsat.optimize(_attending(400), form="flat")
    assert result.to_onnx().opset_import[0].version <= 21
    assert result.report.withheld == {"Attention": 23}
    assert not result.report.bodies["passed_opset"]
