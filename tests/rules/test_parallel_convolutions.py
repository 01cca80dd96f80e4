"""Convolutions of one input become one, and only those that may."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_checks import counts, optimized

from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

RNG = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def convs(*kernels: int, shared: dict[str, Any] | None = None, last: dict[str, Any] | None = None) -> Graph:
    """Convolutions of one input with square kernels, centred unless ``last`` says otherwise of the last one."""
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 3, 8, 8))
    outputs = []
    for i, k in enumerate(kernels):
        attributes: dict[str, Any] = {"pads": ((k - 1) // 2,) * 4, **(shared or {})}
        if i == len(kernels) - 1:
            attributes |= last or {}
        channels = 3 // attributes.get("group", 1)
        operands = [x, b.constant(weights(3 * (i + 1), channels, k, k))]
        if i % 2:
            operands.append(b.constant(weights(3 * (i + 1))))
        outputs.append(b.op("Conv", *operands, **attributes))
    return b.finish(outputs)


def test_convs_of_one_shape_are_one() -> None:
    assert counts(optimized(convs(3, 3, 3))) == {"Conv": 1, "Split": 1}


def test_small_kernels_are_enlarged() -> None:
    assert counts(optimized(convs(1, 3, 5))) == {"Conv": 1, "Split": 1}


def test_enlarging_is_not_worth_its_work_under_a_roofline() -> None:
    assert counts(optimized(convs(1, 5), cost="roofline")) == {"Conv": 2}


@pytest.mark.parametrize(
    "last",
    [
        {"strides": (2, 2)},
        {"dilations": (2, 2), "pads": (2, 2, 2, 2)},
        {"pads": (0, 0, 0, 0)},
        {"group": 3},
        {"auto_pad": "SAME_UPPER", "pads": ()},
    ],
)
def test_other_windows_stay_apart(last: dict[str, Any]) -> None:
    assert counts(optimized(convs(3, 3, last=last)))["Conv"] == 2


def test_kernels_of_even_and_odd_size_have_no_common_middle() -> None:
    assert counts(optimized(convs(3, 2, last={"pads": (0, 0, 1, 1)})))["Conv"] == 2


def test_two_convs_with_scales_and_activations_beside_a_pool() -> None:
    """The pull request's picture: both convolutions become one, the max-pool beside them stays what it is."""
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 4, 8, 8))
    parts = []
    for channels in (2, 6):
        y = b.op("Conv", x, b.constant(weights(channels, 4, 3, 3)), pads=(1, 1, 1, 1))
        y = b.op("Mul", y, b.constant(weights(channels, 1, 1)))
        parts.append(b.op("Relu", b.op("Add", y, b.constant(weights(channels, 1, 1)))))
    pool = b.op("MaxPool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1), strides=(1, 1))
    found = counts(optimized(b.finish([*parts, pool])))
    assert found == {"Conv": 1, "Relu": 1, "Split": 1, "MaxPool": 1}


def test_concatenated_branches_need_no_split() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 4, 8, 8))
    one, three = (b.op("Relu", b.op("Conv", x, b.constant(weights(5, 4, k, k)), pads=(k // 2,) * 4)) for k in (1, 3))
    found = counts(optimized(b.finish([b.op("Concat", one, three, axis=1)])))
    assert found == {"Conv": 1, "Relu": 1}


def test_a_weight_computed_from_a_merged_conv_is_no_branch() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 2, 4, 4))
    first = b.op("Conv", x, b.constant(weights(2, 2, 1, 1)))
    kernel = b.op(
        "Reshape", b.op("ReduceMax", first, b.constant(np.array([2, 3])), keepdims=1), b.constant([1, 2, 1, 1])
    )
    assert counts(optimized(b.finish([first, b.op("Conv", x, kernel)])))["Conv"] == 2
