"""Half precision: ONNX Runtime computes it in single precision as far as it can, and bfloat16 on the CPU not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from quantised_models import Edit, node, nodes_of, quantised_chain

import eqsat
from eqsat.backends.onnx_file import save_onnx
from eqsat.backends.onnxruntime import Session
from eqsat.errors import ModelError
from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run as interpret
from eqsat.ir.types import tensor_type
from eqsat.verification import verify_models, verify_program
from eqsat.verification.compare import Yardstick
from eqsat.verification.feeds import random_feeds
from eqsat.verification.halves import computes_in_half, in_single
from eqsat.verification.kernels import KernelCheck
from eqsat.verification.original import Original
from eqsat.verification.pieces import session_of
from eqsat.verification.trials import Trials

HALVES = ("float16", "bfloat16")


def between(op: str | None, precision: str, **attributes: Any) -> Graph:
    """Tanh, an operator that rewrites leave out, Exp."""
    b = GraphBuilder("between")
    x = b.op("Tanh", b.input("x", precision, (4, 6, 8)))
    if op == "Relu":
        x = b.op("Relu", b.op("Sigmoid", x))
    elif op:
        x = b.op(op, x, **attributes)
    return b.finish({"y": b.op("Exp", x)})


def two_layers(precision: str) -> Graph:
    """MatMul, a bias of zeros, GELU spelled out, MatMul, a bias of zeros."""
    random = np.random.default_rng(0)
    b = GraphBuilder("layers")
    x = b.input("x", precision, (4, 12, 16))
    for inner, outer in ((16, 32), (32, 16)):
        weight = b.constant(random.standard_normal((inner, outer)) / np.sqrt(inner), precision)
        x = b.op("Add", b.op("MatMul", x, weight), b.constant(np.zeros(outer), precision))
        if outer == 32:
            bound = b.op("Erf", b.op("Mul", x, b.constant(0.7071, precision)))
            x = b.op("Mul", b.op("Mul", x, b.constant(0.5, precision)), b.op("Add", bound, b.constant(1.0, precision)))
    return b.finish({"y": x})


REMOVED = {
    "remove_identity": ("Identity", {}),
    "remove_concat_of_one": ("Concat", {"axis": 1}),
    "remove_relu_of_nonnegative": ("Relu", {}),
    "remove_transpose": ("Transpose", {"perm": (0, 1, 2)}),
}


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("rule", REMOVED)
def test_an_operator_that_copies_is_removed_between_two_that_round(rule: str, precision: str) -> None:
    op, attributes = REMOVED[rule]
    found = eqsat.optimize(between(op, precision, **attributes), numerics="exact", form="flat").report
    assert found.verification["verdict"] == "equal"
    assert found.rules[rule]["uses"] == 1


@pytest.mark.parametrize("precision", HALVES)
def test_biases_of_zeros_are_removed_from_half_precision(precision: str) -> None:
    found = eqsat.optimize(two_layers(precision), only_rules=("remove_neutral_operand_of_add",), form="flat").report
    assert found.verification["verdict"] == "equal"
    assert found.rules["remove_neutral_operand_of_add"]["matches"] == 2


@pytest.mark.parametrize("target", ["h100", "tensorrt-like"])
@pytest.mark.parametrize("precision", HALVES)
def test_fused_kernels_of_half_precision_agree_without_any_rule(precision: str, target: str) -> None:
    found = eqsat.optimize(two_layers(precision), target=target, only_rules=(), form="flat").report
    assert found.verification["verdict"] == "equal"


def test_a_model_in_bfloat16_is_written_and_verified(tmp_path: Path) -> None:
    """ONNX Runtime loads neither the original nor the result; what stands in for it runs both."""
    save_onnx(two_layers("bfloat16"), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="ONNX Runtime"):
        Session(tmp_path / "m.onnx")
    result = eqsat.optimize(tmp_path / "m.onnx", form="flat")
    result.save(tmp_path / "out.onnx")
    verification = result.report.verification
    assert verification["verdict"] in ("equal", "within tolerance")
    assert verification["kernels_checked"] > 0
    assert verification["levels"] == {}
    assert "does not run the original" in verification["notes"][0]
    assert verify_models(tmp_path / "m.onnx", tmp_path / "out.onnx").passed


@pytest.mark.parametrize("precision", HALVES)
def test_half_precision_is_rounded_after_every_operator(precision: str) -> None:
    graph = between("Identity", precision)
    x = np.random.default_rng(0).standard_normal((4, 6, 8)).astype(graph.type_of("x").dtype.numpy)  # type: ignore[union-attr]
    assert computes_in_half(graph)
    found = session_of(graph).run({"x": x})["y"]
    assert found.dtype == x.dtype
    once = np.exp(np.tanh(x.astype(np.float32))).astype(x.dtype)
    twice = np.exp(np.tanh(x.astype(np.float32)).astype(x.dtype).astype(np.float32)).astype(x.dtype)
    assert np.array_equal(found, twice)
    assert not np.array_equal(found, once)
    assert np.array_equal(found, interpret(in_single(graph), {"x": x})["y"])


def test_a_value_is_written_in_half_precision_only_where_it_is_rounded() -> None:
    """Movement and what reads it stay in single precision: copies of rounded elements are rounded."""
    b = GraphBuilder()
    x = b.op("Tanh", b.input("x", "float16", (4, 8)))
    graph = in_single(b.finish({"y": b.op("Exp", b.op("Transpose", x, perm=(1, 0))), "z": b.op("Flatten", x)}))
    assert [n.op for n in graph.nodes].count("Cast") == 5
    halves = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float16)
    found = session_of(graph).run({"x": halves})
    assert np.array_equal(found["z"], np.tanh(halves.astype(np.float32)).astype(np.float16))


def test_single_precision_with_weights_in_half_runs_as_it_is() -> None:
    b = GraphBuilder()
    weight = b.op("Cast", b.constant(np.eye(4), "float16"), to=1)
    graph = b.finish({"y": b.op("MatMul", b.input("x", "float32", (2, 4)), weight)})
    assert not computes_in_half(graph)
    assert in_single(graph) is graph


def test_a_quantiser_without_a_scale_is_one_in_half_precision_too() -> None:
    b = GraphBuilder()
    x = b.op("Relu", b.input("x", "float16", (2, 3)))
    q, scale, _ = b.op("DynamicQuantizeLinear", b.op("Cast", x, to=1), outputs=3)
    assert "DynamicQuantizeLinear" in {n.op for n in in_single(b.finish({"q": q, "scale": scale})).nodes}


def test_an_operator_that_nobody_knows_is_rounded_too() -> None:
    """It stays as it is, so ONNX Runtime casts for it, and would leave out the cast behind it."""
    b = GraphBuilder()
    x = b.input("x", "float16", (64,))
    (value,) = b.opaque("Tanh", x, types=[tensor_type("float16", (64,))], domain="", reason="to see what happens")
    graph = b.finish({"y": b.op("Exp", value)})
    halves = np.random.default_rng(0).standard_normal(64).astype(np.float16)
    rounded = np.tanh(halves.astype(np.float32)).astype(np.float16)
    assert np.array_equal(
        session_of(graph).run({"x": halves})["y"], np.exp(rounded.astype(np.float32)).astype(np.float16)
    )


def test_a_cast_to_the_type_of_another_value_keeps_that_type() -> None:
    b = GraphBuilder()
    x = b.op("Exp", b.input("x", "float16", (3, 4)))
    graph = b.finish({"y": b.op("Add", x, b.op("ReduceSum", b.op("CastLike", b.op("Shape", x), x), keepdims=0))})
    assert (session_of(graph).run({"x": np.zeros((3, 4), np.float16)})["y"] == 8).all()


def test_the_interpreter_that_ran_the_original_runs_the_kernels_too() -> None:
    """Another runtime sums in another order, so a kernel of class exact would be refused for nothing."""
    graph = quantised_chain(precision="float32")
    index = nodes_of(graph, "MatMul")[0]
    old = graph.nodes[index]
    edit = Edit(graph, Exactness.EXACT)
    edit.value("copied", old.outputs[0])
    edit.replace(index, node("MatMul", old.inputs, "copied"), node("Identity", ("copied",), old.outputs[0]))
    program = edit.program()
    x = np.random.default_rng(0).standard_normal((12, 24)).astype(np.float32)

    def fetch(names: object) -> dict[str, np.ndarray]:
        return interpret(graph, {"x": x}, names)  # type: ignore[arg-type]

    found = KernelCheck(graph, program).run({"x": x}, fetch, in_interpreter=True)
    assert found.kernels_checked == 2
    assert not found.failures


@pytest.mark.parametrize("precision", HALVES)
def test_a_wrong_exact_rewrite_of_half_precision_is_caught(precision: str) -> None:
    """One ulp in one constant: what is promised to be equal has to be, in half precision as elsewhere."""
    graph = two_layers(precision)
    index = nodes_of(graph, "MatMul")[1]

    def next_up(weight: np.ndarray) -> np.ndarray:
        changed = weight.copy()
        changed[0, 0] = (weight[0, 0].astype(np.float32) * (1 + float(ml_dtypes.finfo(weight.dtype).eps))).astype(
            weight.dtype
        )
        return changed

    program = Edit(graph, Exactness.EXACT).change_constant(index, next_up).program()
    found = verify_program(graph, program)
    assert found.verdict == "failed"
    assert "must be equal" in found.failures[0]


def test_an_original_in_half_precision_is_run_from_its_graph(tmp_path: Path) -> None:
    graph = between("Identity", "float16")
    save_onnx(graph, tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((4, 6, 8)).astype(np.float16)
    found = Original(graph, tmp_path / "m.onnx").run({"x": x})["y"]
    assert np.array_equal(found, session_of(graph).run({"x": x})["y"])


@pytest.mark.parametrize(("moved", "agrees"), [(1, True), (2, False)])
def test_numbers_below_the_least_normal_one_agree_up_to_their_own_distance(moved: int, agrees: bool) -> None:
    least = float(np.finfo(np.float16).smallest_subnormal)
    reference = (np.arange(1, 33) * least).astype(np.float16)
    found = (reference.astype(np.float64) + moved * least).astype(np.float16)
    assert (Yardstick(reference).judge(found).message == "") == agrees


def test_weights_are_quantised_by_the_runtime_which_divides_in_single_precision() -> None:
    """Two of a hundred quotients round to another integer in half precision, as ONNX has it."""
    b = GraphBuilder()
    rng = np.random.default_rng(0)
    x = b.input("x", "float16", ("n", 32))
    scale, zero = b.constant(np.float16(0.0123)), b.constant(np.int8(0))
    weights = b.op("QuantizeLinear", b.constant(rng.normal(size=(32, 64)).astype(np.float16)), scale, zero)
    result = eqsat.optimize(b.finish({"y": b.op("MatMul", x, b.op("DequantizeLinear", weights, scale, zero))}))
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    assert "QuantizeLinear" in result.report.operators_after


@pytest.mark.parametrize("attributes", [{}, {"precision": 1}, {"precision": 10}])
def test_quotients_are_rounded_to_half_precision_before_they_are_quantised_unless_told(attributes: Any) -> None:
    b = GraphBuilder()
    x = b.op("Relu", b.input("x", "float16", (1200,)))
    quantised = b.op("QuantizeLinear", x, b.constant(0.1, "float16"), b.constant(128, "uint8"), **attributes)
    graph = b.finish({"y": quantised, "z": b.op("Tanh", x)})
    feeds = {"x": (np.arange(1200) / 64).astype(np.float16)}
    assert np.array_equal(session_of(graph).run(feeds)["y"], interpret(graph, feeds)["y"])


def test_constants_that_are_folded_may_have_been_computed_in_more_digits() -> None:
    """At no level does ONNX Runtime round 1000 between the operators here, of which the whole is 999.756 in single precision."""
    b = GraphBuilder()
    step, tenth = b.constant([-1e4], "float16"), b.constant([0.1], "float16")
    mask = b.op("Sub", b.op("Sub", tenth, b.op("Mul", step, tenth)), tenth)
    y = b.op("Cast", mask, to=1)
    result = eqsat.optimize(
        b.finish({"y": y, "z": b.op("Relu", b.input("x", "float32", (2,)))}), verify="full", form="flat"
    )
    assert result.report.operators_after == {"Relu": 1}


def test_inputs_are_small_where_the_squares_of_a_norm_would_overflow() -> None:
    """Of squares beyond 65504 the original makes zeros, a normalisation does not: neither says that a rule is wrong."""
    b = GraphBuilder("norm")
    x = b.op("MatMul", b.input("x", "float16", (4, 8)), b.constant(300 * np.eye(8), "float16"))
    mean = b.op("ReduceMean", b.op("Mul", x, x), b.constant([-1], "int64"))
    y = b.op("Div", x, b.op("Sqrt", b.op("Add", mean, b.constant(0.5, "float16"))))
    report = eqsat.optimize(b.finish({"y": y}), form="flat").report
    assert report.operators_after == {"MatMul": 1, "RMSNormalization": 1}
    assert report.verification["verdict"] in ("equal", "within tolerance")


def test_inputs_are_as_always_where_nothing_overflows_or_smaller_ones_do_too() -> None:
    b = GraphBuilder()
    x = b.input("x", "float16", (4, 8))
    masked = b.op("Where", b.constant(np.eye(4, 8) > 0, "bool"), b.constant(-np.inf, "float16"), x)
    graph = b.finish({"y": b.op("Softmax", masked, axis=-1)})
    trial, *_ = Trials(graph, 1, 0).run(Original(graph).run, Original(graph).run)
    assert np.array_equal(trial.feeds["x"], random_feeds(graph, 0)["x"])


def test_no_larger_inputs_are_tried_where_the_original_overflows_on_them() -> None:
    """``x * Clip(x + 3, 0, 6) / 6`` is infinite where ``x * HardSigmoid(x)`` is not."""
    b = GraphBuilder("hardswish")
    x = b.op("MatMul", b.input("x", "float16", (4, 8)), b.constant(1000 * np.eye(8), "float16"))
    gate = b.op("Clip", b.op("Add", x, b.constant(3, "float16")), b.constant(0, "float16"), b.constant(6, "float16"))
    y = b.op("Div", b.op("Mul", x, gate), b.constant(6, "float16"))
    report = eqsat.optimize(b.finish({"y": y}), form="flat").report
    assert "Clip" not in report.operators_after
    assert report.verification["verdict"] in ("equal", "within tolerance")


def test_squares_that_are_subnormal_have_few_digits() -> None:
    """The mean of squares of 0.001 is a few times the least number of float16; to square in single precision is no mistake."""
    b = GraphBuilder()
    weights = np.random.default_rng(0).normal(size=(64, 64)) / 8000
    x = b.op("MatMul", b.input("x", "float16", (1, 4, 64)), b.constant(weights.astype(np.float16)))
    mean = b.op("ReduceMean", b.op("Mul", x, x), b.constant([-1], "int64"), keepdims=1)
    root = b.op("Sqrt", b.op("Add", mean, b.constant(np.float16(1e-6))))
    gain = b.constant(np.linspace(0.5, 1.5, 64).astype(np.float16))
    report = eqsat.optimize(b.finish([b.op("Mul", b.op("Div", x, root), gain)])).report
    assert report.recognized == {"rms_norm": 1}
    assert not report.left_out
