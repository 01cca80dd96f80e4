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


def test_two_convs_stay_where_a_split_of_channels_would_be_as_many_kernels() -> None:
    """It takes the image out of the layout in which ONNX Runtime computes convolutions."""
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 16, 8, 8))
    one, other = (b.op("Conv", x, b.constant(weights(16, 16, 1, 1))) for _ in "ab")
    assert counts(optimized(b.finish([b.op("Relu", one), other]))) == {"Conv": 2, "Relu": 1}


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


def parted(
    channels: tuple[int, ...],
    *,
    outputs: tuple[int, ...] = (4, 4, 4),
    bias: bool = True,
    relu: bool = False,
    slices: bool = False,
) -> Graph:
    """Convolutions of the parts of one input, joined again, as frameworks without grouped convolutions export them."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 6, 7, 7))
    ends = np.cumsum(channels)
    if slices:
        bounds = [
            [b.constant([int(v)], "int64") for v in (end - n, end, 1)] for n, end in zip(channels, ends, strict=True)
        ]
        parts = [b.op("Slice", x, *three) for three in bounds]
    else:
        parts = b.op("Split", x, b.constant(list(channels), "int64"), outputs=len(channels), axis=1)
    results = []
    for part, n, out in zip(parts, channels, outputs, strict=False):
        operands = [b.constant(weights(out, n, 3, 3)), *([b.constant(weights(out))] if bias or not results else [])]
        result = b.op("Conv", part, *operands, pads=(1, 1, 1, 1))
        results.append(b.op("Relu", result) if relu else result)
    return b.finish({"y": b.op("Concat", *results, axis=1)})


@pytest.mark.parametrize("how", [{}, {"bias": False}, {"slices": True}])
def test_convolutions_of_all_parts_are_one_in_groups(how: dict[str, Any]) -> None:
    assert counts(optimized(parted((2, 2, 2), **how))) == {"Conv": 1}


def test_activations_do_not_keep_groups_apart() -> None:
    found = counts(optimized(parted((2, 2, 2), relu=True)))
    assert (found["Conv"], "Split" in found, "Concat" in found) == (1, False, False)


@pytest.mark.parametrize(("channels", "outputs"), [((1, 2, 3), (4, 4, 4)), ((2, 2, 2), (4, 4, 5))])
def test_parts_of_different_size_are_no_groups(channels: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    assert counts(optimized(parted(channels, outputs=outputs)))["Conv"] == 3


def test_groups_need_all_parts() -> None:
    assert counts(optimized(parted((2, 2, 2), outputs=(4, 4))))["Conv"] == 2


def branches(strides: int = 1, group: int = 1, kernel: int = 1, identity: bool = True, dtype: str = "float32") -> Graph:
    """A block as networks are trained in branches: two convolutions, and the input normalised."""
    b = GraphBuilder()
    x = b.input("x", dtype, ("n", 6, 8, 8))
    found = b.op(
        "Conv", x, b.constant(weights(6, 6 // group, 3, 3), dtype), pads=(1,) * 4, strides=(strides,) * 2, group=group
    )
    pads = ((kernel - 1) // 2,) * 4
    small = b.constant(weights(6, 6 // group, kernel, kernel), dtype), b.constant(weights(6), dtype)
    found = b.op("Add", found, b.op("Conv", x, *small, strides=(strides,) * 2, pads=pads, group=group))
    if identity:
        statistics = (b.constant(np.abs(weights(6)), dtype) for _ in range(4))
        found = b.op("Add", b.op("BatchNormalization", x, *statistics), found)
    return b.finish({"y": b.op("Relu", found)})


@pytest.mark.parametrize("group", [1, 2, 6])
def test_branches_that_are_added_are_one_convolution(group: int) -> None:
    assert counts(optimized(branches(group=group))) == {"Conv": 1, "Relu": 1}


def test_branches_with_strides_are_one_convolution_without_the_input() -> None:
    assert counts(optimized(branches(strides=2, identity=False))) == {"Conv": 1, "Relu": 1}


def test_branches_in_half_precision_of_which_one_may_overflow_stay_apart() -> None:
    assert counts(optimized(branches(identity=False, dtype="float16")))["Conv"] == 2


def test_a_kernel_whose_middle_lies_between_elements_stays_a_branch() -> None:
    assert counts(optimized(branches(kernel=2, strides=2, identity=False)))["Conv"] == 2


def test_the_input_added_to_a_convolution_of_each_channel_is_in_its_weights() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", 6, 8, 8))
    y = b.op("Conv", x, b.constant(weights(6, 1, 3, 3)), pads=(1,) * 4, group=6)
    assert counts(optimized(b.finish({"y": b.op("Add", x, y)}))) == {"Conv": 1}


def test_a_token_mixer_less_its_input_normalised_and_scaled_is_one_convolution() -> None:
    """As FastViT mixes tokens: ``x + s * (conv(x) - norm(x))``."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", 6, 8, 8))
    mixed = b.op("Conv", x, b.constant(weights(6, 1, 3, 3)), pads=(1,) * 4, group=6)
    statistics = (b.constant(np.abs(weights(6))) for _ in range(4))
    mixed = b.op("Sub", mixed, b.op("BatchNormalization", x, *statistics))
    y = b.op("Add", x, b.op("Mul", mixed, b.constant(weights(6, 1, 1))))
    assert counts(optimized(b.finish({"y": y}))) == {"Conv": 1}


@pytest.mark.parametrize("moved", [False, True])
def test_normalised_convolutions_are_one_though_one_of_them_is_moved_and_brought_back(moved: bool) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 3, 8, 8))
    axes, outputs = b.constant(np.array([2], np.int64)), []
    for i in range(3):
        y = b.op("Conv", x, b.constant(weights(4, 3, 1, 1)))
        if moved and i == 1:
            y = b.op("Squeeze", b.op("Unsqueeze", y, axes), axes)
        statistics = [b.constant(np.abs(weights(4)) + 0.1) for _ in range(4)]
        outputs.append(b.op("Relu", b.op("BatchNormalization", y, *statistics)))
    assert counts(optimized(b.finish(outputs))) == {"Conv": 1, "Relu": 1, "Split": 1}
