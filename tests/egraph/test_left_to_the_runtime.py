"""Constants that are not folded, since the runtime makes something else of them than ONNX, or the reference, says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import saturate
from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.rewrite import GroupRule, GroupView, Merge, apply

NAN = np.array([[1, np.nan, 0], [np.nan, 2, 3]], np.float32)
HUGE = np.array([[3e38, -3e38, 3e38, -3e38], [3e38, 3e38, -3e38, -3e38]], np.float32)
"""Of whose rows the sum is 0, infinite or NaN, by the order in which it is added up."""

RANDOM = np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype(np.float32)


def _cropped(b: GraphBuilder) -> Any:
    """An axis that is not scaled, and of which a part is cropped."""
    region, scales = b.constant(np.array([0, 0, 0, 0, 1, 1, 2, 2], np.float32)), b.constant([1, 1, 1, 2], "float32")
    how = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    return b.op("Resize", b.constant(RANDOM), region, scales, **how)


def _interpolated(b: GraphBuilder) -> Any:
    """Bytes between bytes."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 6)).astype(np.uint8)
    return b.op("Resize", b.constant(pixels), None, b.constant([1, 1, 1.5, 2], "float32"), mode="linear")


def _unsorted(b: GraphBuilder) -> Any:
    """What is greatest, in no order."""
    return b.op("TopK", b.constant(RANDOM.reshape(4, 36)), b.constant([20], "int64"), outputs=2, sorted=0)[1]


LEFT: Sequence[tuple[str, Callable[[GraphBuilder], Any]]] = (
    ("Pow", lambda b: b.op("Pow", b.constant([70000], "int32"), b.constant([5], "int64"))),
    ("Pow", lambda b: b.op("Pow", b.constant(49756064790, "int64"), b.constant([2], "int64"))),
    ("ReduceMin", lambda b: b.op("ReduceMin", b.constant(NAN), b.constant([1], "int64"))),
    ("MaxPool", lambda b: b.op("MaxPool", b.constant(NAN[None, None]), kernel_shape=(2, 2))),
    ("Clip", lambda b: b.op("Clip", b.constant(RANDOM), b.constant(np.float32(np.nan)), b.constant(np.float32(1)))),
    ("LpNormalization", lambda b: b.op("LpNormalization", b.constant(RANDOM), p=1)),
    ("MatMul", lambda b: b.op("MatMul", *map(b.constant, (HUGE, np.ones((4, 2), np.float32))))),
    ("Resize", _cropped),
    ("Resize", _interpolated),
    ("TopK", _unsorted),
)


@pytest.mark.parametrize(("op", "build"), LEFT, ids=[f"{op}{i}" for i, (op, _) in enumerate(LEFT)])
def test_what_runtimes_compute_in_another_way_is_theirs_to_compute(
    op: str, build: Callable[[GraphBuilder], Any]
) -> None:
    b = GraphBuilder()
    result = eqsat.optimize(b.finish({"y": build(b), "z": b.op("Relu", b.input("x", "float32", (2,)))}), verify="full")
    assert result.report.verification["verdict"] == "equal"
    assert result.report.operators_after == {op: 1, "Relu": 1}


def test_what_only_moves_or_maps_elements_is_folded_whatever_they_are() -> None:
    b = GraphBuilder()
    masked = b.op("Add", b.op("Transpose", b.constant(NAN), perm=(1, 0)), b.constant(np.float32(-np.inf)))
    result = eqsat.optimize(b.finish({"y": b.op("Add", masked, b.input("x", "float32", (2,)))}))
    assert result.report.operators_after == {"Add": 1}


def test_what_the_reference_fails_to_compute_is_no_error() -> None:
    b = GraphBuilder()
    part = b.op("CenterCropPad", b.constant(np.ones((3, 4), np.float32)), b.constant([2, -1], "int64"), axes=(0, 1))
    result = eqsat.optimize(b.finish({"y": b.op("Add", part, b.input("x", "float32", (1,)))}), verify=False)
    assert result.report.operators_after == {"CenterCropPad": 1, "Add": 1}


def test_what_overflows_in_half_precision_is_left_to_the_runtime() -> None:
    """ONNX Runtime computes in single precision, and need not round on the way."""
    b = GraphBuilder()
    c = b.constant(np.full(4, 300, np.float16))
    root = b.op("Sqrt", b.op("Mul", c, c))
    result = eqsat.optimize(b.finish({"y": b.op("Mul", b.input("x", "float16", (4,)), root)}), form="onnxruntime")
    assert result.program.graph.operator_counts()["Mul"] == 2
    assert not result.report.left_out


def test_a_pole_in_half_precision_is_no_overflow() -> None:
    """As of the logarithms of distances, of which relative positions leave out those of 0 again."""
    b = GraphBuilder()
    distances = b.constant(np.arange(4, dtype=np.float16))
    bias = b.op("Where", b.constant(np.arange(4) < 2), distances, b.op("Log", distances))
    result = eqsat.optimize(b.finish({"y": b.op("Add", b.input("x", "float16", (4,)), bias)}))
    assert result.report.operators_after == {"Add": 1}


def test_a_norm_of_constants_that_overflow_on_the_way_stays_in_steps() -> None:
    b = GraphBuilder()
    c = b.constant(np.full((2, 4), 1000, np.float16))
    mean = b.op("ReduceMean", b.op("Mul", c, c), b.constant([-1], "int64"), keepdims=1)
    y = b.op("Div", c, b.op("Sqrt", b.op("Add", mean, b.constant(1e-5, "float16"))))
    result = eqsat.optimize(b.finish({"y": y, "z": b.op("Relu", b.input("x", "float32", (2,)))}))
    assert result.report.verification["verdict"] == "equal"
    assert result.report.operators_after["Div"] == 1


def test_a_rule_over_groups_adds_nothing_beside_constants_that_overflow_on_the_way() -> None:
    b = GraphBuilder()
    c = b.constant(np.full((2, 4), 1000, np.float16))
    mean = b.op("ReduceMean", b.op("Mul", c, c), b.constant([-1], "int64"), keepdims=1)
    encoding = encode(b.finish({"y": b.op("Add", b.input("x", "float16", (2, 1)), mean)}))

    def build(view: GroupView) -> Iterator[Merge]:
        yield from ((node, apply("Abs", node)) for node, _ in view.nodes("ReduceMean"))

    rule = GroupRule("absolute_means", build, exactness=Exactness.ROUNDING)
    saturate(encoding.egraph, [rule])
    assert not [node for node in encoding.egraph.nodes if node.op == "Abs"]
