"""Placing: choice of devices by cost, pins under rewriting, fusion within devices, files, errors, the command line."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from placed_graphs import copies, named, placed, places
from typer.testing import CliRunner

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.cli import app
from eqsat.errors import ModelError, OptionError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.operators.devices import device_of
from eqsat.lower.program import Program
from eqsat.placement import PCIE, Link, Machine, PlacedSession, default_machine, read_machine

CPU, GPU = "cpu", "cuda:0"
TOUR = ("add Add x y", "sqrt Sqrt add", "log Log add", "subtract Sub sqrt log", "exp Exp subtract")


def _layers(count: int = 3, width: int = 16) -> Graph:
    """Product, bias, activation, scale, residual; several times; each node is called like its value."""
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    value = b.input("x", "float32", (4, width))
    for _ in range(count):
        weight, bias, scale = (rng.normal(size=s).astype(np.float32) for s in ((width, width), (width,), (width,)))
        hidden = b.op("Relu", b.op("Add", b.op("MatMul", value, b.constant(weight / 4)), b.constant(bias)))
        value = b.op("Add", b.op("Mul", hidden, b.constant(scale)), value)
    graph = b.finish([b.op("Softmax", value, axis=-1)])
    return replace(graph, nodes=tuple(replace(n, name=n.outputs[0]) for n in graph.nodes))


def _random_pins(graph: Graph, seed: int, share: float) -> dict[str, str]:
    rng = random.Random(seed)
    return {n.name: rng.choice((CPU, GPU)) for n in graph.nodes if rng.random() < share}


def _check_kernels_stay_on_one_device(program: Program) -> None:
    graph = program.graph
    for kernel in program.kernels:
        assert len({device_of(graph.nodes[i], graph.devices) for i in kernel.nodes}) == 1, kernel
        if len(kernel.nodes) > 1:
            assert all(graph.nodes[i].op != "DeviceCopy" for i in kernel.nodes), kernel


def test_devices_are_chosen_for_what_they_fuse() -> None:
    """Two copies and one kernel are fewer than six kernels, though each operator alone had better stay where its input is."""
    b = GraphBuilder()
    value = b.input("x", "float32", (4, 8))
    for op in ("Exp", "Tanh", "Sin", "Atan", "Cos", "Sigmoid"):
        value = b.op(op, value)
    free = eqsat.optimize(b.finish([value]), cost="kernels", machine=default_machine())
    assert len(copies(free.program)) == 2
    assert [len(k.nodes) for k in free.program.kernels] == [1, 6, 1]
    assert free.report.cost_after == pytest.approx(3, abs=0.01)
    assert free.report.placement["cost_before_fusion"] == pytest.approx(8, abs=0.01)
    _check_kernels_stay_on_one_device(free.program)


def test_a_heavy_product_goes_to_the_accelerator_and_a_tiny_sum_stays() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1024, 1024))
    small, other = (b.input(n, "float32", (4,)) for n in "ab")
    rng = np.random.default_rng(0)
    product = b.op("MatMul", x, b.constant(rng.normal(size=(1024, 1024)).astype(np.float32)))
    total = b.op("Add", small, other)
    graph = b.finish([product, total])
    options = {"machine": default_machine(), "verify": False}
    free = eqsat.optimize(graph, cost="roofline-launch", **options)
    placed_at = {n.op: device_of(n, free.program.graph.devices) for n in free.program.graph.nodes}
    assert placed_at["MatMul"] == GPU
    assert placed_at["Add"] == CPU
    assert len(copies(free.program)) == 2
    assert free.report.cost_after < free.report.cost_before / 5
    counted = eqsat.optimize(graph, cost="kernels", **options)
    assert copies(counted.program) == []  # a copy is a kernel more


def test_a_cheap_value_is_computed_on_both_devices_rather_than_copied() -> None:
    graph = named("x", "a Neg x", "p Exp a", "q Abs a", "y Sub p q")
    link = Link(1e9, 1.0, "slow")
    machine = Machine({CPU: "onnxruntime-cpu", GPU: "onnxruntime-cpu"}, {(CPU, GPU): link})
    result = placed(graph, {"p": CPU, "q": GPU, "y": CPU}, machine=machine, cost="roofline-launch")
    assert {s for _, s, _ in copies(result.program)} == {CPU, GPU}
    assert result.report.lower_bound == pytest.approx(result.report.cost_after)


@pytest.mark.parametrize("seed", range(8))
def test_fusion_never_crosses_devices_and_outputs_stay_the_same(seed: int) -> None:
    graph = _layers()
    pins = _random_pins(graph, seed, (0.3, 0.7, 1.0)[seed % 3])
    result = eqsat.optimize(graph, devices=pins, cost=("kernels", "roofline-launch")[seed % 2])
    _check_kernels_stay_on_one_device(result.program)
    for name, device in places(result.program).items():
        assert device == pins.get(name, device)
    result.program.graph.check()
    feeds = {"x": np.random.default_rng(seed).normal(size=(4, 16)).astype(np.float32)}
    session = PlacedSession(result.program.graph)
    assert session.copies == result.report.placement["copies"] == len(copies(result.program))
    whole = Session(to_model(result.program.graph), threads=1).run(feeds)
    for name, value in session.run(feeds).items():
        np.testing.assert_array_equal(value, whole[name])


def test_fusion_happens_within_a_device() -> None:
    on_one = eqsat.optimize(_layers(), devices={"*": GPU}, verify=False)
    assert on_one.report.placement["devices"][GPU]["kernels"] < on_one.report.placement["devices"][GPU]["operators"]
    assert on_one.report.placement["copies"] == 2
    assert on_one.report.bound_scope == "placement"
    assert on_one.report.cost_after < on_one.report.placement["cost_before_fusion"]


def test_pins_hold_for_what_rules_make() -> None:
    """A product on one device and its bias on the other would be one Gemm without pins; never with them."""
    graph = _layers(1)
    product, bias = (next(n.name for n in graph.nodes if n.op == op) for op in ("MatMul", "Add"))
    free = eqsat.optimize(graph, machine=default_machine(), verify=False)
    split = eqsat.optimize(graph, devices={product: GPU, bias: CPU, "*": CPU}, verify=False)
    assert "Gemm" in {n.op for n in free.program.graph.nodes}
    assert {n.op for n in split.program.graph.nodes} >= {"MatMul", "DeviceCopy"}
    assert "Gemm" not in {n.op for n in split.program.graph.nodes}


def test_same_input_same_bytes_and_the_file_round_trips(tmp_path: Path) -> None:
    pins = _random_pins(_layers(), 5, 0.8)
    for name in ("one", "two"):
        eqsat.optimize(_layers(), devices=pins, verify=False).save(tmp_path / f"{name}.onnx")
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    model = onnx.load(tmp_path / "one.onnx")
    onnx.checker.check_model(model)
    assert {n.op_type for n in model.graph.node} >= {"Identity"}
    assert all(any(p.key == "eqsat.device" for p in n.metadata_props) for n in model.graph.node)
    again = eqsat.optimize(tmp_path / "one.onnx")
    first = eqsat.optimize(_layers(), devices=pins, verify=False)
    assert again.report.placement["copies"] == first.report.placement["copies"]
    assert again.report.verification["verdict"] != "failed"
    for name, device in places(first.program).items():
        assert again.original.devices.get(name, device) == device


def test_metadata_of_the_model_names_devices_and_arguments_come_first(tmp_path: Path) -> None:
    model = to_model(named("x y", *TOUR))
    for node in model.graph.node:
        if node.op_type in ("Sqrt", "Exp"):
            node.metadata_props.add(key="eqsat.device", value="cuda")
    model.ir_version = 10
    onnx.save(model, tmp_path / "m.onnx")
    result = eqsat.optimize(tmp_path / "m.onnx", devices={"*": "cpu"})
    assert len(copies(result.program)) == 3
    assert copies(eqsat.optimize(model, devices={"sqrt": "cpu", "exp": "cpu", "*": "cpu"}).program) == []


def test_without_devices_nothing_is_placed() -> None:
    result = eqsat.optimize(named("x y", *TOUR), verify=False)
    assert result.report.placement == {}
    assert not result.program.graph.devices
    with pytest.raises(ModelError, match="has no device"):
        PlacedSession(result.program.graph)


def test_a_value_on_another_device_cannot_be_read() -> None:
    graph = placed(named("x y", *TOUR), {"sqrt": GPU, "exp": GPU, "*": CPU}).program.graph
    copy = next(n for n in graph.nodes if n.op == "DeviceCopy")
    nodes = [
        replace(n, inputs=tuple(copy.inputs[0] if v == copy.outputs[0] else v for v in n.inputs)) for n in graph.nodes
    ]
    with pytest.raises(ModelError, match="which is on cpu, not on cuda:0"):
        PlacedSession(graph.with_nodes(nodes))


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ({"sqr": GPU}, "device of 'sqr': the model has no node, value or input of that name"),
        ({"sqrt": "tpu"}, "device of 'sqrt': device 'tpu' does not exist; choose one of cpu, cuda:0"),
    ],
)
def test_unknown_names_are_one_line(devices: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as error:
        placed(named("x y", *TOUR), devices)
    assert str(error.value) == message


def test_operators_that_a_device_lacks_go_elsewhere_or_are_refused() -> None:
    target = replace(default_machine().target(CPU), name="no-sqrt", unsupported=frozenset({"Sqrt"}))
    machine = Machine({CPU: target, GPU: "h100"}, {(CPU, GPU): PCIE})
    graph = named("x y", *TOUR)
    free = eqsat.optimize(graph, machine=machine, only_rules=[])
    assert places(free.program)["sqrt"] == GPU
    with pytest.raises(OptionError, match=r"placement: Sqrt 'sqrt' has no kernel on cpu"):
        eqsat.optimize(graph, machine=machine, devices={"sqrt": CPU}, only_rules=[])
    apart = Machine({CPU: target, GPU: "h100"}, {})
    with pytest.raises(OptionError, match=r"no link leads"):
        eqsat.optimize(graph, machine=apart, only_rules=[])


def test_machines_are_read_from_files(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(
        '[devices]\nhost = "onnxruntime-cpu"\nnpu = "launch-count"\n'
        '[[links]]\nbetween = ["npu", "host"]\nbandwidth_bytes_per_s = 1e9\nlatency_s = 1e-6\nsource = "test"\n'
    )
    machine = read_machine(path)
    assert machine.host == "host"
    assert machine.link("npu", "host") == Link(1e9, 1e-6, "test")
    for text, message in (
        ("[devices]\n", "no devices"),
        ('[devices]\na = "b"\n', "target 'b' does not exist"),
        ('[devices]\na = "h100"\n[[links]]\nbetween = ["a", "b"]\n', "'bandwidth_bytes_per_s' is missing"),
        ("[devices", "is not TOML"),
    ):
        path.write_text(text)
        with pytest.raises(OptionError, match=message):
            read_machine(path)
    with pytest.raises(OptionError, match="cannot read the machine"):
        read_machine(tmp_path / "none.toml")


def test_the_command_line_places(tmp_path: Path) -> None:
    model, report, devices = tmp_path / "m.onnx", tmp_path / "r.json", tmp_path / "d.json"
    onnx.save(to_model(named("x y", *TOUR)), model)
    devices.write_text(json.dumps({"*": "cpu", "sqrt": "cpu"}))
    options = ["--device", "sqrt=cuda", "--device", "exp=cuda", "--devices", str(devices), "--no-verify", "-q"]
    found = CliRunner().invoke(app, ["optimize", str(model), *options, "--json", str(report)])
    assert found.exit_code == 0, found.output
    assert json.loads(report.read_text())["placement"]["copies"] == 3
    for wrong in (["--device", "sqrt"], ["--device", "no=cuda"], ["--devices", str(model)], ["--devices", "no"]):
        found = CliRunner().invoke(app, ["optimize", str(model), *wrong])
        assert found.exit_code == 2
        assert len([line for line in found.stderr.splitlines() if line != "eqsat: load"]) == 1
        assert "Errno" not in found.stderr
