"""Extents that are assumed of symbols, which is what programs are priced at."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.nominal import TYPICAL_EXTENT, assumed_sizes, number_of
from eqsat.ir.types import tensor_type

Shape = tuple[Any, ...]


def _graph(inputs: dict[str, Shape], stored: Shape = (), tokens: Shape = ()) -> Graph:
    """The heads of ``tokens`` are put behind what is ``stored``."""
    b = GraphBuilder()
    outputs = {f"out_{name}": b.op("Neg", b.input(name, "float32", shape)) for name, shape in inputs.items()}
    if stored:
        past, new = b.input("past", "float32", stored), b.input("new", "float32", tokens)
        outputs["present"] = b.op("Concat", past, b.op("Transpose", new, perm=(0, 2, 1, 3)), axis=2)
    return b.finish(outputs)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (_graph({"x": ("batch", "seq", 8)}), {"batch": 1, "seq": TYPICAL_EXTENT}),
        (
            _graph({"mask": ("batch", "total")}, ("batch", 2, "stored", 8), ("batch", "seq", 2, 8)),
            {"batch": 1, "seq": 1, "stored": TYPICAL_EXTENT, "total": TYPICAL_EXTENT},
        ),
        (_graph({"image": ("batch", 3, "rows", "columns"), "text": ("batch", "seq")}), {"batch": 1, "seq": 128}),
    ],
    ids=["encoder", "decoder", "images and text"],
)
def test_a_decoder_is_given_one_token(graph: Graph, expected: dict[str, int]) -> None:
    assert expected.items() <= assumed_sizes(graph, {}).items()
    assert assumed_sizes(graph, {"seq": 7})["seq"] == 7


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (_graph({"x": ("n", "t"), "h": (2, "n", 64)}), {"n": 1, "t": TYPICAL_EXTENT}),
        (_graph({"x": ("n", "t"), "h": (2, "m", 64)}), {"n": 1, "t": TYPICAL_EXTENT, "m": 1}),
        (_graph({"x": (1, "t", 8)}), {"t": TYPICAL_EXTENT}),
        (_graph({"x": ("n", 8), "y": (1, "tokens", 8)}), {"n": 1, "tokens": TYPICAL_EXTENT}),
        (_graph({"x": ("seq_len", "batch_size", 8)}), {"seq_len": TYPICAL_EXTENT, "batch_size": 1}),
        (_graph({"x": ("num_nodes", 8)}), {"num_nodes": TYPICAL_EXTENT}),
        (_graph({"tokens": ("tokens.0", "tokens.1")}), {"tokens.0": 1, "tokens.1": TYPICAL_EXTENT}),
        (_graph({"batch": ("batch.0",)}), {"batch.0": TYPICAL_EXTENT}),
    ],
    ids=[
        *("state", "state of another name", "one sequence", "tokens beside a batch", "steps first", "nodes"),
        *("tokens without names", "batch without names"),
    ],
)
def test_batches_are_told_from_what_else_comes_first_and_found_where_they_do_not(
    graph: Graph, expected: dict[str, int]
) -> None:
    assert assumed_sizes(graph, {}) == expected


def test_tokens_are_told_from_the_length_of_all_keys_where_the_file_names_it() -> None:
    graph = _graph({"ids": ("batch", "seq"), "mask": ("batch", "total")}, ("batch", 2, "stored", 8), ("batch", 1, 2, 8))
    named = tensor_type("float32", ("batch", 2, "total", 8))
    graph = replace(graph, types=MappingProxyType({**graph.types, "present": named}))
    assert assumed_sizes(graph, {}) == {"batch": 1, "seq": 1, "stored": TYPICAL_EXTENT, "total": TYPICAL_EXTENT}


@pytest.mark.parametrize(("strides", "expected"), [(0, 128), (1, 128), (2, 512), (8, 32768)])
def test_enough_is_left_where_a_model_has_strides(strides: int, expected: int) -> None:
    b = GraphBuilder()
    sound = b.input("sound", "float32", (1, 1, "samples"))
    kernel = b.constant(np.ones((1, 1, 2), np.float32))
    for _ in range(strides):
        sound = b.op("Conv", sound, kernel, strides=(2,))
    assert assumed_sizes(b.finish({"y": b.op("Neg", sound)}), {}) == {"samples": expected}


@pytest.mark.parametrize("sides", [("rows", "columns"), ("side", "side")])
@pytest.mark.parametrize(("strides", "expected"), [(4, 128), (5, 512)])
def test_of_images_as_many_pixels_are_left_along_both_axes_together(
    sides: tuple[str, str], strides: int, expected: int
) -> None:
    b = GraphBuilder()
    image = b.input("image", "float32", (1, 1, *sides))
    kernel = b.constant(np.ones((1, 1, 2, 2), np.float32))
    for _ in range(strides):
        image = b.op("Conv", image, kernel, strides=(2, 2))
    assert assumed_sizes(b.finish({"y": b.op("Neg", image)}), {}) == dict.fromkeys(sides, expected)


def test_no_extent_counts_as_less_than_nothing() -> None:
    assert number_of("batch - 4", {"batch": 1}) == 0
    assert number_of("batch - 4", {"batch": 7}) == 3


@pytest.mark.parametrize("extent", ["floordiv(samples, frames - 1)", "floordiv(8, frames - 1)", "frames - 1"])
def test_what_is_divided_by_no_elements_has_none(extent: str) -> None:
    """A length that a Reshape leaves open, of sound too short for one frame."""
    assert number_of(extent, {"samples": 20, "frames": 1}) == 0
