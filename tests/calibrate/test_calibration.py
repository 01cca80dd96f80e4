"""Calibration on a grid of a few small kernels."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from eqsat.backends.onnxruntime import Session
from eqsat.calibrate import calibration
from eqsat.calibrate.blocks import as_run
from eqsat.calibrate.calibration import calibrate, cases_of, grid_of
from eqsat.calibrate.case import Case, Kernels, data, value, weight
from eqsat.calibrate.copies import build
from eqsat.calibrate.timer import Repeats, Run, summary, time_kernels
from eqsat.cli import app
from eqsat.cost.timings import load_table
from eqsat.errors import ModelError, OptionError
from eqsat.ir.graph import NO_ATTRIBUTES, Attributes
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import operator
from eqsat.ir.operators.onnxruntime_products import on_blocks
from eqsat.ir.types import tensor_type

QUICK = Repeats(3, 1)
GRID = cases_of(
    (
        Kernels(
            "MatMul", ((8, 16, 32), (64, 128, 64)), lambda m, k, n: [data("float32", m, k), weight("float32", k, n)]
        ),
        Kernels("Relu", ((64, 64), (256, 256)), lambda r, c: [data("float32", r, c)]),
        Kernels("Softmax", ((32, 64),), lambda r, c: [data("float32", r, c)], {"axis": -1}),
        Kernels("com.microsoft::NoSuchOperator", ((4, 4),), lambda r, c: [data("float32", r, c)]),
    )
)


def test_larger_kernels_take_longer_and_unknown_ones_are_named() -> None:
    timings, failures = time_kernels(GRID, QUICK)
    by_case = {t.case: t.seconds for t in timings}
    assert by_case["MatMul float32[8, 16] float32[16, 32]"] < by_case["MatMul float32[64, 128] float32[128, 64]"]
    assert by_case["Relu float32[64, 64]"] < by_case["Relu float32[256, 256]"]
    assert list(failures) == ["com.microsoft::NoSuchOperator float32[4, 4]"]
    assert all(1e-8 < t.seconds < 1e-2 for t in timings)


def test_disturbed_runs_do_not_count_where_there_are_others() -> None:
    quiet, disturbed = [Run(s, False) for s in (2.0, 3.0, 4.0)], [Run(s, True) for s in (1.5, 9.0, 90.0)]
    assert summary([*quiet, *disturbed], 1.0) == (2.0, 0.5)
    assert summary(disturbed, 1.0)[0] == 0.5


def test_a_model_of_copies_computes_the_operator() -> None:
    case = Case("Clip", GRID[0].attributes, (data("float32", 3, 5), value("float32", -0.1), value("float32", 0.2)))
    model = build(case, 4)
    assert [n.op_type for n in model.proto.graph.node] == ["Clip"] * 4
    found = Session(model.proto, weights=model.weights).run(model.feeds)
    expected = evaluate_operator("Clip", case.attributes, [model.feeds["x0_0"], np.float32(-0.1), np.float32(0.2)])
    np.testing.assert_array_equal(next(iter(found.values())), expected[0])


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int8"])
def test_every_copy_has_weights_of_its_own(dtype: str) -> None:
    """And other ones: of equal weights the runtime keeps one, which then stays in the cache."""
    case = Case("MatMulInteger", NO_ATTRIBUTES, (data(dtype, 8, 16), weight(dtype, 16, 32)))
    model = build(case, 150)
    assert len({node.input[1] for node in model.proto.graph.node}) == len(model.weights) == 150
    assert len({array.tobytes() for array in model.weights.values()}) == 150


def _conv(channels: int, filters: int, group: int = 1) -> Case:
    window = Attributes({"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 1), "group": group})
    weights = (weight("float32", filters, channels // group, 3, 3), weight("float32", filters))
    return Case("Conv", window, (data("float32", 1, channels, 8, 8), *weights))


@pytest.mark.parametrize(
    ("channels", "filters", "group"),
    [
        (3, 32, 1), (20, 18, 1), (64, 1, 1), (24, 24, 24), (64, 64, 2),
        (17, 32, 1), (30, 30, 1), (6, 6, 6), (24, 48, 24), (48, 48, 12),
    ],
)  # fmt: skip
def test_convolutions_on_blocks_are_those_of_which_the_runtime_makes_such(
    channels: int, filters: int, group: int, tmp_path: Path
) -> None:
    import onnxruntime as ort

    def kernels(case: Case) -> list[str]:
        model = build(case, 1)
        options = ort.SessionOptions()
        options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimised.onnx"), 4
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in model.weights.values()]
        options.add_external_initializers(list(model.weights), values)
        ort.InferenceSession(model.proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        written = onnx.load(str(tmp_path / "optimised.onnx"))
        return [node.domain for node in written.graph.node if node.op_type == "Conv"]

    if kernels(_conv(16, 16)) != ["com.microsoft.nchwc"]:
        pytest.skip("the runtime computes on no blocks here")
    image, weights = (1, channels, 8, 8), (filters, channels // group, 3, 3)
    assert on_blocks(group, image, weights) == (kernels(_conv(channels, filters, group)) == ["com.microsoft.nchwc"])


def test_images_are_resized_on_blocks() -> None:
    image, factors = data("float32", 1, 16, 5, 5), value("float32", [1.0, 1.0, 3.0, 3.0])
    case = Case("Resize", Attributes({"mode": "linear"}), (image, None, factors))
    ((timing,), failures) = time_kernels([case], QUICK)
    assert (timing.case, timing.results) == (case.name, (tensor_type("float32", (1, 16, 15, 15)),))
    run = as_run(case)
    if run is not case:
        assert run.key == "com.microsoft.nchwc::Upsample"
    cubic = Case("Resize", Attributes({"mode": "cubic"}), (image, None, factors))
    assert as_run(cubic) is cubic
    assert not failures


def test_convolutions_of_images_are_timed_on_blocks() -> None:
    case = _conv(20, 18)
    ((timing,), failures) = time_kernels([case], QUICK)
    assert (timing.case, timing.results) == (case.name, (tensor_type("float32", (1, 18, 8, 8)),))
    run = as_run(case)
    if run is not case:  # there are processors on which the runtime has no such kernels
        assert run.key == "com.microsoft.nchwc::Conv"
        assert [str(t) for t in run.types] == ["float32[1, 32, 8, 8]", "float32[32, 32, 3, 3]", "float32[32]"]
    assert as_run(GRID[0]) is GRID[0]
    assert not failures


def test_copies_take_turns_with_buffers() -> None:
    """Activations of 2 MiB: four fill the inner caches several times, so that every fourth copy has the same."""
    case = Case("Softmax", Attributes({"axis": -1}), (data("float32", 1024, 512),))
    nodes = build(case, 8).proto.graph.node
    assert [node.input[0] for node in nodes] == [f"x0_{k % 4}" for k in range(8)]


def test_a_result_of_the_type_of_the_operand_is_the_operand_of_another_copy() -> None:
    case = Case("Relu", NO_ATTRIBUTES, (data("float32", 512, 512),))
    model = build(case, 20, (tensor_type("float32", (512, 512)),))
    kernels = [node for node in model.proto.graph.node if node.op_type == "Relu"]
    assert [node.input[0] for node in kernels] == ["x0_0", "x0_1", "x0_2", *(f"y0_{k}" for k in range(17))]
    assert model.releases == 2
    assert set(Session(model.proto).run(model.feeds)) == {"y0_19"}


def test_another_result_is_read_so_that_its_memory_is_free() -> None:
    case = Case("Cast", Attributes({"to": 7}), (data("float32", 1024, 1024),))
    model = build(case, 5, (tensor_type("int64", (1024, 1024)),))
    assert [(n.op_type, n.input[0]) for n in model.proto.graph.node if n.op_type == "Shape"] == [
        ("Shape", f"y0_{k}") for k in range(3)
    ]
    assert model.releases == 3
    assert build(case, 5, (tensor_type("int64", (8,)),)).releases == 0


def test_an_interrupted_calibration_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    monkeypatch.setattr(calibration, "BATCH", 2)
    asked: list[str] = []

    def stops(cases: list[Case], how: Repeats) -> object:
        if asked:
            raise KeyboardInterrupt
        asked.extend(c.name for c in cases)
        return time_kernels(cases, how)

    monkeypatch.setattr(calibration, "time_kernels", stops)
    with pytest.raises(KeyboardInterrupt):
        calibrate("onnxruntime-cpu", GRID, path, how=QUICK)
    first = load_table(path)
    assert not first.complete
    assert {t.case for t in first.timings} | set(first.failures) == set(asked)
    monkeypatch.setattr(calibration, "time_kernels", time_kernels)
    rest = calibrate("onnxruntime-cpu", GRID, path, how=QUICK)
    assert rest.known == len(first.timings)
    assert rest.known + rest.timed + rest.failed == len(GRID)
    assert rest.table.complete
    kept = {t.case: t.seconds for t in load_table(path).timings}
    assert all(kept[t.case] <= t.seconds for t in first.timings)  # an unsteady kernel may be timed again, never worse
    nothing = calibrate("onnxruntime-cpu", GRID, path, how=QUICK)
    assert (nothing.timed, nothing.known) == (0, len(rest.table.timings))


def test_timings_of_another_machine_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    calibrate("onnxruntime-cpu", GRID[2:3], path, how=QUICK)
    table = json.loads(path.read_text())
    table["machine"]["cpu"] = "another"
    path.write_text(json.dumps(table))
    with pytest.raises(OptionError, match=r"'another'.*--restart"):
        calibrate("onnxruntime-cpu", GRID[2:3], path, how=QUICK)
    assert calibrate("onnxruntime-cpu", GRID[2:3], path, how=QUICK, restart=True).timed == 1


def test_a_restart_of_some_operators_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    before = calibrate("onnxruntime-cpu", GRID, path, how=QUICK, retries=0).table.timings
    again = calibrate("onnxruntime-cpu", GRID[2:3], path, how=QUICK, retries=0, restart=True, whole=False)
    assert (again.known, again.timed) == (3, 1)
    assert again.table.complete
    left = {t.case: t.seconds for t in load_table(path).timings}
    assert set(left) == {t.case for t in before} - {GRID[3].name}
    assert all(left[t.case] == float(f"{t.seconds:.4g}") for t in before if t.key != "Relu")


def test_a_damaged_database_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"format": 1, "timings": [')
    with pytest.raises(ModelError, match="not a table of timings"):
        calibrate("onnxruntime-cpu", GRID, path, how=QUICK)
    result = CliRunner().invoke(app, ["calibrate", "--database", str(path)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_the_command_times_the_operators_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    arguments = ["calibrate", "--database", str(path), "--operators", "Expand", "--repeats", "1", "--json", "-"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["kernels"] == found["timed"] == sum(case.key == "Expand" for case in grid_of("onnxruntime-cpu"))
    assert not found["complete"]
    assert result.stderr.startswith(f"eqsat: timing {found['timed']} kernels of onnxruntime-cpu, at least 1 min; ")
    assert str(path) in result.stderr
    assert CliRunner().invoke(app, ["calibrate", "--target", "h100"]).exit_code == 2
    assert CliRunner().invoke(app, ["calibrate", "--operators", "NoSuch"]).exit_code == 2


def test_the_grid_is_well_formed() -> None:
    """Names are unique, and our own shape rules take what is timed."""
    from eqsat.ir.operator import Application

    grid = grid_of("onnxruntime-cpu")
    assert len({case.name for case in grid}) == len(grid)
    for case in grid:
        definition = operator(case.key)
        if definition is None:
            continue
        values = [
            None if o is None or o.value is None else np.asarray(o.value, o.type.dtype.numpy) for o in case.operands
        ]
        definition.infer(Application(case.key, case.attributes, case.types, values, case.outputs))


def test_the_kernels_of_openvino_are_those_that_it_reads() -> None:
    grid = grid_of("openvino-cpu")
    keys = {case.key for case in grid}
    assert {"MatMul", "Conv", "Add", "Transpose"} <= keys
    assert not keys & {"Attention", "ConvInteger", "QLinearMatMul", "com.microsoft::FusedMatMul"}
    assert len(grid) < len(grid_of("onnxruntime-cpu"))


@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
def test_kernels_are_timed_by_the_profiler_of_openvino(tmp_path: Path) -> None:
    sizes = (8, 512)
    products = [Case("MatMul", NO_ATTRIBUTES, (data("float32", n, n), weight("float32", n, n))) for n in sizes]
    unknown = GRID[-1]
    how = Repeats(repeats=9, threads=1)
    found = calibrate("openvino-cpu", [*products, unknown], tmp_path / "t.json", how=how, retries=0)
    large, small = sorted(found.table.timings, key=lambda t: -t.seconds)
    assert [t.results for t in (small, large)] == [(tensor_type("float32", (n, n)),) for n in sizes]
    assert list(found.table.failures) == ["com.microsoft::NoSuchOperator float32[4, 4]"]
    assert "openvino" in found.table.machine
    assert "onnxruntime" not in found.table.machine
    assert "openvino 20" in str(found)
