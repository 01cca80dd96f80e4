"""TVM's cases of device annotation and of planning devices, re-created from what they assert.

Sources: ``tests/python/relay/test_pass_annotation.py`` of TVM 0.7 (``RewriteAnnotatedOps``; the file is gone later) and
``tests/python/relay/test_pass_plan_devices.py`` of TVM 0.19 (``PlanDevices``). There, ``on_device`` gives an expression a device,
what is left open gets a default, and parameters take the device that reads them. Here, names get devices, ``"*"`` is the default,
and inputs are on the host unless named; the tests name them as TVM infers them. TVM copies once for each ``on_device``, we
once for each value and destination. docs/placement.md lists the cases that have no counterpart.
"""

from __future__ import annotations

import numpy as np
import pytest
from placed_graphs import copies, named, placed, places

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.placement import PCIE, Machine, PlacedSession

CPU, GPU = "cpu", "cuda:0"
TWO_ADDS = ("l Add a b", "r Add c d", "y Sub l r")
ON_GPU = {"*": GPU, "a": GPU, "b": GPU, "c": GPU, "d": GPU, "y": GPU}

CASES = {
    # name: (inputs, lines, devices, copies)
    "plain": ("a b c d", TWO_ADDS, ON_GPU, []),
    "left_add_on_cpu": ("a b c d", TWO_ADDS, {**ON_GPU, "l": CPU, "a": CPU, "b": CPU}, [("l", CPU, GPU)]),
    "both_adds_on_cpu": (
        "a b c d",
        TWO_ADDS,
        {"*": GPU, "y": GPU, "l": CPU, "r": CPU},
        [("l", CPU, GPU), ("r", CPU, GPU)],
    ),
    "sharing": ("a b", ("l Add a b", "y Sub l l"), {"l": CPU, "y": GPU}, [("l", CPU, GPU)]),
    "let_on_cpu": ("a b c d", TWO_ADDS, {**ON_GPU, "l": CPU, "a": CPU, "b": CPU}, [("l", CPU, GPU)]),
    "dynamic_input": ("a b", ("y Add a b",), {"*": GPU, "a": GPU, "b": GPU, "y": GPU}, []),
    "redundant_annotation": (
        "x y z",
        ("a Add x y", "s Sub a z", "t Add s a"),
        {"*": GPU, "a": CPU, "z": GPU, "t": GPU},
        [("a", CPU, GPU)],
    ),
    "redundant_annotation_0_7": (
        "x y z",
        ("a Add x y", "s Sub a z", "t Sub a s"),
        {"*": CPU, "a": GPU, "x": GPU, "y": GPU},
        [("a", GPU, CPU)],
    ),
    "annotate_expr": (
        "x y z",
        ("a Add x y", "s Sub a z"),
        {"a": GPU, "x": GPU, "y": GPU, "s": CPU},
        [("a", GPU, CPU)],
    ),
    "annotate_all": ("x y z", ("a Add x y", "s Sub a z"), {"a": CPU, "s": CPU}, []),
    "annotate_none": ("x y z", ("a Add x y", "s Sub a z"), {"*": CPU}, []),
    "propagation": (
        "x",
        ("n Neg x", "p Neg n", "q Neg n", "s Add p q", "y Neg s"),
        {"n": CPU, "p": GPU, "q": GPU, "s": GPU, "y": CPU},
        [("n", CPU, GPU), ("s", GPU, CPU)],
    ),
    "fusible_network": (
        "x y",
        ("a Add x y", "p Neg a", "q Neg a", "s Add p q", "z Neg s"),
        {"x": GPU, "y": GPU, "a": GPU, "p": CPU, "q": GPU, "s": GPU, "z": CPU},
        [("a", GPU, CPU), ("p", CPU, GPU), ("s", GPU, CPU)],
    ),
    "unpropagatable_graph": (
        "a b c d",
        ("l Add a b", "r Mul c d", "y Sub l r"),
        {"l": CPU, "c": GPU, "d": GPU, "r": GPU, "y": CPU},
        [("r", GPU, CPU)],
    ),
    "conflicated_inputs": (
        "a b c",
        ("l Add a b", "r Add b c", "y Sub l r"),
        {"l": CPU, "c": GPU, "r": GPU, "y": GPU},
        [("b", CPU, GPU), ("l", CPU, GPU)],
    ),
    "fuse_log_add": (  # the example of the pass tour
        "x y",
        ("add Add x y", "sqrt Sqrt add", "log Log add", "subtract Sub sqrt log", "exp Exp subtract"),
        {"sqrt": GPU, "exp": GPU, "*": CPU},
        [("add", CPU, GPU), ("sqrt", GPU, CPU), ("subtract", CPU, GPU)],
    ),
    "fuse_all": (
        "x y",
        ("add Add x y", "sqrt Sqrt add", "log Log add", "subtract Sub sqrt log", "exp Exp subtract"),
        dict.fromkeys(("x", "y", "add", "sqrt", "log", "subtract", "exp"), GPU),
        [],
    ),
    "fallback_exp": (
        "x y",
        ("add Add x y", "sqrt Sqrt add", "log Log add", "subtract Sub sqrt log", "exp Exp subtract"),
        {"*": GPU, "x": GPU, "y": GPU, "exp": CPU},
        [("subtract", GPU, CPU)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_copies_are_those_that_tvm_expects(case: str) -> None:
    inputs, lines, devices, expected = CASES[case]
    graph = named(inputs, *lines)
    result = placed(graph, devices)
    assert copies(result.program) == sorted(expected)
    where = places(result.program)
    for line in lines:
        name = line.split()[0]
        assert where.get(name, devices.get(name)) == devices.get(name, devices.get("*"))
    rng = np.random.default_rng(0)
    feeds = {v: rng.uniform(0.5, 2, (5, 7)).astype(np.float32) for v in graph.inputs}
    session = PlacedSession(result.program.graph)
    assert session.copies == len(expected)
    (ours,), (reference,) = session.run(feeds).values(), _whole(graph).run(feeds).values()
    np.testing.assert_array_equal(ours, reference)


@pytest.mark.parametrize("case", CASES)
def test_placing_a_placed_program_changes_nothing(case: str) -> None:
    inputs, lines, devices, _ = CASES[case]
    once = placed(named(inputs, *lines), devices).program.graph
    again = eqsat.optimize(once, only_rules=[]).program.graph
    assert str(again) == str(once)
    assert again.devices == once.devices


@pytest.mark.parametrize("case", CASES)
def test_rewriting_keeps_devices(case: str) -> None:
    """With all rules, no more is copied, and still every value that was named is computed where it was named."""
    inputs, lines, devices, expected = CASES[case]
    result = eqsat.optimize(named(inputs, *lines), devices=devices)
    assert len(copies(result.program)) <= len(expected)
    for name, device in places(result.program).items():
        assert device == devices.get(name, devices.get("*"))


def test_left_add_on_cpu_via_copy() -> None:
    """A copy in the model says where its input is computed; it is made once, and a copy of a copy not at all."""
    b = GraphBuilder()
    a, c = b.input("a", "float32", (5, 7)), b.input("c", "float32", (5, 7))
    left = b.op("Add", a, a)
    there = b.op("DeviceCopy", left, domain="eqsat", source=CPU, destination=GPU)
    back = b.op("DeviceCopy", there, domain="eqsat", source=GPU, destination=CPU)
    here = b.op("DeviceCopy", back, domain="eqsat", source=CPU, destination=CPU)
    same = b.op("Neg", here)
    y = b.op("Sub", there, b.op("Add", c, c))
    graph = b.finish([y, same])
    result = placed(graph, {left: CPU, same: CPU, y: GPU, "c": GPU, "*": GPU})
    assert copies(result.program) == [(left, CPU, GPU)]


def test_device_copy() -> None:
    """An input on one device, read on the other together with a constant: one copy, none of the constant."""
    b = GraphBuilder()
    x = b.input("x", "float32", (5, 7))
    y = b.op("Add", x, b.constant(np.arange(35, dtype=np.float32).reshape(5, 7)))
    result = placed(b.finish([y]), {y: GPU})
    assert copies(result.program) == [("x", CPU, GPU)]


def test_reshape_tensor() -> None:
    """The shape that Reshape reads is a constant and is not copied."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 8))
    y = b.op("Reshape", x, b.constant(np.array([2, 4, 2], np.int64)))
    assert copies(placed(b.finish([y]), {"x": GPU, y: GPU}).program) == []


def test_conv_network() -> None:
    b = GraphBuilder()
    one, two = b.input("data1", "float32", (1, 4, 8, 8)), b.input("data2", "float32", (1, 4, 8, 8))
    weight = b.constant(np.random.default_rng(1).normal(size=(4, 4, 3, 3)).astype(np.float32))
    pads = (1, 1, 1, 1)
    first, second = (b.op("Conv", x, weight, pads=pads) for x in (one, two))
    total = b.op("Add", first, second)
    last = b.op("Conv", total, weight, pads=pads)
    result = placed(b.finish([last]), {first: CPU, second: CPU, total: GPU, last: CPU})
    assert copies(result.program) == sorted([(first, CPU, GPU), (second, CPU, GPU), (total, GPU, CPU)])


def test_tuple_get_item() -> None:
    """Only the outputs of a Split that are read elsewhere are copied, each by itself."""
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 3, 4))
    parts = b.op("Split", x, outputs=3, axis=0, num_outputs=3)
    y = b.op("Sub", parts[0], parts[1])
    result = placed(b.finish([y]), {parts[0]: CPU, y: GPU})
    assert copies(result.program) == sorted([(parts[0], CPU, GPU), (parts[1], CPU, GPU)])


def test_stack_overflow() -> None:
    """TVM's chain of 1,555 adds, on one device."""
    lines = ["v0 Add a b", "v1 Add c d", *(f"v{i} Add v{i - 1} v{i - 2}" for i in range(2, 1555))]
    machine = Machine({CPU: "onnxruntime-cpu", GPU: "onnxruntime-cpu"}, {(CPU, GPU): PCIE})
    result = placed(named("a b c d", *lines), {"*": GPU}, machine=machine)
    assert len(copies(result.program)) == 5
    assert result.report.bound_scope == "e-graph"


def _whole(graph):
    from eqsat.backends.onnx_file import to_model
    from eqsat.backends.onnxruntime import Session

    return Session(to_model(graph), threads=1)
