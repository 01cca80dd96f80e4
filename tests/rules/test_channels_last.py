"""Networks with channels last around convolutions with channels first, as exporters write them, lose their transposes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.frontends.onnx.envelope import Envelope
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

CHANNELS = 4


class Network:
    """Convolutions of a value with channels last, each between two transposes."""

    def __init__(self) -> None:
        self.b = GraphBuilder()
        self.rng = np.random.default_rng(0)
        self.value = self.convolved(self.b.input("x", "float32", ("batch", 8, 8, CHANNELS)))

    def constant(self, *shape: int) -> str:
        return self.b.constant(self.rng.normal(size=shape).astype(np.float32))

    def convolved(self, value: str, size: int = 1, **attributes: Any) -> str:
        first = self.b.op("Transpose", value, perm=(0, 3, 1, 2))
        made = self.b.op("Conv", first, self.constant(CHANNELS, CHANNELS, size, size), **attributes)
        return self.b.op("Transpose", made, perm=(0, 2, 3, 1))

    def normalised(self) -> str:
        shifted = self.b.op("Sub", self.value, self.constant(1, 1, 1, CHANNELS))
        return self.b.op("Mul", shifted, self.constant(1, 1, 1, CHANNELS))

    def finish(self, value: str) -> Graph:
        return self.b.finish({"y": value})


def padded(activation: str) -> Graph:
    n = Network()
    pads = n.b.constant([0, 0, 1, 0, 0, 1, 0, 0], "int64")
    return n.finish(n.convolved(n.b.op("Pad", n.b.op(activation, n.normalised()), pads), 3, strides=(2, 2)))


def squeezed(keepdims: int) -> Graph:
    """A channel is scaled by what two convolutions make of the means of all channels."""
    n = Network()
    data = n.b.op("Relu", n.normalised())
    mean = n.b.op("ReduceMean", data, n.b.constant([1, 2], "int64"), keepdims=keepdims)
    if not keepdims:
        mean = n.b.op("Reshape", mean, n.b.constant([0, 1, 1, CHANNELS], "int64"))
    gate = n.b.op("Sigmoid", n.convolved(n.b.op("Relu", n.convolved(mean))))
    return n.finish(n.convolved(n.b.op("Mul", data, gate)))


@pytest.mark.parametrize("activation", ["Relu", "HardSwish", "Gelu"])
def test_padding_and_normalisation_between_transposes_go_into_the_convolutions(activation: str) -> None:
    result = eqsat.optimize(padded(activation), cost="kernels")
    assert Counter(n.op for n in result.program.graph.nodes) == {"Transpose": 2, "Conv": 2, activation: 1}


@pytest.mark.parametrize("form", ["onnxruntime", "flat"])
def test_a_gate_between_transposes_is_written_at_an_opset_without_swish(form: str) -> None:
    n = Network()
    value = n.normalised()
    graph = n.finish(n.convolved(n.b.op("Mul", value, n.b.op("Sigmoid", value))))
    result = eqsat.optimize(replace(graph, envelope=Envelope(opset=17)), cost="kernels", form=form)
    gate = {"QuickGelu": 1} if form == "onnxruntime" else {"Sigmoid": 1, "Mul": 1}
    assert Counter(n.op for n in result.program.graph.nodes) == {"Transpose": 2, "Conv": 2, **gate}


@pytest.mark.parametrize("graph", [lambda: squeezed(0), lambda: squeezed(1)], ids=["dropped", "kept"])
def test_gates_by_means_are_computed_with_channels_first(graph: Callable[[], Graph]) -> None:
    result = eqsat.optimize(graph(), cost="kernels", form="flat")
    found = Counter(n.op for n in result.program.graph.nodes)
    assert found == {"Transpose": 2, "Conv": 4, "Relu": 2, "ReduceMean": 1, "Sigmoid": 1, "Mul": 1}


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("noop", [0, 1])
def test_no_axes_are_all_axes_or_none(noop: int, keepdims: int) -> None:
    b = GraphBuilder()
    x = b.op("Relu", b.op("Transpose", b.input("x", "float32", (2, 3, 4)), perm=(2, 0, 1)))
    none = b.constant(np.zeros(0, np.int64))
    y = b.op("ReduceMean", x, none, noop_with_empty_axes=noop, keepdims=keepdims)
    report = eqsat.optimize(
        b.finish({"y": y}), form="flat", verify="full", only_rules=["reduce_before_transpose"]
    ).report
    assert report.rules["reduce_before_transpose"]["matches"] == 1


@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize(("perm", "left"), [((0, 2, 1), 1), ((1, 2, 0), 0)])
def test_transposes_meet_across_a_slice_whose_end_is_computed(perm: tuple[int, ...], left: int, axis: int) -> None:
    b = GraphBuilder()
    x = b.op("Transpose", b.input("x", "float32", ("n", 3, "m")), perm=(2, 0, 1))
    end = b.op("Shape", b.input("y", "float32", ("k",)))
    part = b.op("Slice", x, b.constant([0], "int64"), end, b.constant([axis], "int64"))
    result = eqsat.optimize(b.finish({"z": b.op("Transpose", part, perm=perm)}), form="flat")
    assert Counter(n.op for n in result.program.graph.nodes)["Transpose"] == left
