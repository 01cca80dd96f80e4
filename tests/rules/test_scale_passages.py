"""Scales that reach weights across movement, Clip and PRelu, and those that must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph_checks import counts, optimized

from eqsat.ir.build import GraphBuilder

rng = np.random.default_rng(3)


def array(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return rng.uniform(0.5, 2.0, shape).astype(np.float32)


def conv(b: GraphBuilder, x: str, out: int = 4, inner: int = 3) -> str:
    return b.op("Conv", x, b.constant(array(out, inner, 3, 3)), b.constant(array(out)), pads=(1, 1, 1, 1))


def image(b: GraphBuilder, channels: int = 3) -> str:
    return b.input(f"x{channels}", "float32", (2, channels, 5, 6))


def int64s(b: GraphBuilder, *values: int) -> str:
    return b.constant(np.array(values, np.int64))


BACK: dict[str, tuple[Callable[[GraphBuilder], str], tuple[int, ...]]] = {
    "Transpose": (lambda b: b.op("Transpose", conv(b, image(b)), perm=(0, 2, 3, 1)), (4,)),
    "Reshape": (lambda b: b.op("Reshape", conv(b, image(b)), int64s(b, 2, 4, 30)), (4, 1)),
    "Pad": (lambda b: b.op("Pad", conv(b, image(b)), int64s(b, 0, 0, 1, 0, 0, 0, 1, 0)), (4, 1, 1)),
    "Concat": (lambda b: b.op("Concat", conv(b, image(b)), conv(b, image(b, 2), 3, 2), axis=1), (7, 1, 1)),
    "PRelu": (lambda b: b.op("PRelu", conv(b, image(b)), b.constant(array(4, 1, 1))), (4, 1, 1)),
    "Clip": (lambda b: b.op("Clip", conv(b, image(b)), *map(b.constant, (np.float32(0), np.float32(6)))), (1,)),
}


@pytest.mark.parametrize("name", BACK)
def test_scale_goes_back_to_the_weights(name: str) -> None:
    b = GraphBuilder()
    build, shape = BACK[name]
    assert "Mul" not in counts(optimized(b.finish({"y": b.op("Mul", build(b), b.constant(positive(*shape)))})))


ON: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable[[GraphBuilder, str], str]]] = {
    "Transpose": ((2, 5, 6, 3), (3,), lambda b, x: b.op("Transpose", x, perm=(0, 3, 1, 2))),
    "Reshape": ((2, 3, 30), (3, 1), lambda b, x: b.op("Reshape", x, int64s(b, 2, 3, 5, 6))),
    "Slice": ((2, 3, 5, 9), (3, 1, 1), lambda b, x: b.op("Slice", x, int64s(b, 2), int64s(b, 8), int64s(b, 3))),
    "Concat": (
        (2, 2, 5, 6),
        (2, 1, 1),
        lambda b, x: b.op("Concat", b.input("beside", "float32", (2, 1, 5, 6)), x, axis=1),
    ),
    "PRelu": ((2, 3, 5, 6), (3, 1, 1), lambda b, x: b.op("PRelu", x, b.constant(array(3, 1, 1)))),
    "Clip": ((2, 3, 5, 6), (), lambda b, x: b.op("Clip", x, b.constant(np.float32(-1)), b.constant(np.float32(1)))),
}


@pytest.mark.parametrize("way", ["back", "on"])
def test_scales_pass_a_concat_of_any_batch(way: str) -> None:
    b = GraphBuilder()
    x, z = (b.input(name, "float32", ("batch", channels, 5, 6)) for name, channels in (("x", 3), ("z", 2)))
    if way == "back":
        joined = b.op("Concat", conv(b, x), conv(b, z, 3, 2), axis=1)
        y = b.op("Mul", joined, b.constant(positive(7, 1, 1)))
    else:
        scaled = (b.op("Mul", v, b.constant(positive(n, 1, 1))) for v, n in ((x, 3), (z, 2)))
        y = conv(b, b.op("Concat", *scaled, axis=1), inner=5)
    assert "Mul" not in counts(optimized(b.finish({"y": y})))


@pytest.mark.parametrize("name", ON)
def test_scale_goes_on_to_the_weights(name: str) -> None:
    b = GraphBuilder()
    extents, shape, build = ON[name]
    scaled = b.op("Mul", b.input("x", "float32", extents), b.constant(positive(*shape)))
    assert "Mul" not in counts(optimized(b.finish({"y": conv(b, build(b, scaled))})))


STAY: dict[str, Callable[[GraphBuilder], tuple[str, Any]]] = {
    "a negative scale and PRelu": lambda b: (BACK["PRelu"][0](b), -positive(4, 1, 1)),
    "a negative scale and Clip": lambda b: (BACK["Clip"][0](b), -positive()),
    "a scale for each channel and Clip": lambda b: (BACK["Clip"][0](b), positive(4, 1, 1)),
    "a border that is not zero": lambda b: (
        b.op("Pad", conv(b, image(b)), int64s(b, 0, 0, 1, 0, 0, 0, 1, 0), b.constant(np.float32(2))),
        positive(4, 1, 1),
    ),
    "an axis that is merged": lambda b: (b.op("Reshape", conv(b, image(b)), int64s(b, 2, 120)), positive(120)),
    "several axes": lambda b: (BACK["Transpose"][0](b), positive(5, 1, 4)),
    "an axis of the image": lambda b: (BACK["Transpose"][0](b), positive(6, 1)),
}


@pytest.mark.parametrize("name", STAY)
def test_scale_stays(name: str) -> None:
    b = GraphBuilder()
    value, scale = STAY[name](b)
    found = counts(optimized(b.finish({"y": b.op("Mul", value, b.constant(scale))})))
    assert found.get("Mul", 0) + found.get("Div", 0) + found.get("Neg", 0) > 0


def test_scale_of_what_others_read_unscaled_stays_right() -> None:
    b = GraphBuilder()
    value = b.op("Transpose", conv(b, image(b)), perm=(0, 2, 3, 1))
    optimized(b.finish({"y": b.op("Mul", value, b.constant(positive(4))), "z": b.op("Relu", value)}))


def test_half_turned_heads_are_joined_before_their_transpose() -> None:
    """The negated half of a rotary embedding no longer keeps the two halves' transposes apart."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 5, 3, 8))
    heads = b.op("Transpose", x, perm=(0, 2, 1, 3))
    low, high = (b.op("Slice", heads, *(int64s(b, v) for v in (start, start + 4, 3))) for start in (0, 4))
    joined = b.op("Concat", b.op("Neg", high), low, axis=3)
    found = counts(optimized(b.finish({"y": b.op("Transpose", joined, perm=(0, 2, 1, 3))})))
    assert "Transpose" not in found


def test_parts_of_scales_are_not_split_again() -> None:
    """Where each layer scales all before it (DenseNet), a scale has as many parts as there are layers before, all of them
    constants."""
    b = GraphBuilder()
    x = conv(b, image(b), 8)
    for layer in range(4):
        scaled = b.op("Mul", x, b.constant(positive(8 + 4 * layer, 1, 1)))
        x = b.op("Concat", x, conv(b, b.op("Relu", scaled), 4, 8 + 4 * layer), axis=1)
    rules = optimized(b.finish({"y": x})).report.rules
    assert rules["move_scale_before_movement"]["matches"]
    assert "split_instead_of_slices" not in rules
