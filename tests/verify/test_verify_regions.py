"""Regions: the smallest parts whose boundary values both programs compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from quantised_models import Edit, node, nodes_of, quantised_chain

import eqsat
import eqsat.verification.kernels
from eqsat.errors import ModelError
from eqsat.exactness import Exactness
from eqsat.frontends.onnx.envelope import Envelope
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.lower.program import Kernel, Program
from eqsat.verification import verify_program
from eqsat.verification.counterparts import CounterpartFinder, join
from eqsat.verification.noise import add_noise
from eqsat.verification.pieces import session_of
from eqsat.verification.regions import partition
from eqsat.verification.values import rounded_floats, whole_numbers


def test_an_untouched_program_is_all_unchanged() -> None:
    graph = quantised_chain()
    regions = partition(graph, Edit(graph).program())
    assert len(regions) == len(graph.nodes)
    assert all(r.unchanged and len(r.nodes) == 1 for r in regions)


def test_kernels_around_a_value_without_origin_are_merged() -> None:
    graph = quantised_chain()
    index = nodes_of(graph, "MatMul")[2]
    matmul = graph.nodes[index]
    edit = Edit(graph)
    for name in ("left", "right"):
        edit.value(name, matmul.outputs[0])
    program = edit.replace(
        index,
        node("Neg", (matmul.inputs[0],), edit.value("left", matmul.inputs[0])),
        node("MatMul", ("left", matmul.inputs[1]), "right"),
        node("Neg", ("right",), matmul.outputs[0]),
    ).program()
    changed = [r for r in partition(graph, program) if not r.unchanged]
    assert len(changed) == 1
    assert len(changed[0].kernels) == 3
    assert changed[0].inputs == (matmul.inputs[0],)
    assert changed[0].outputs == (matmul.outputs[0],)
    assert changed[0].exactness is Exactness.ROUNDING


def test_every_node_belongs_to_one_kernel() -> None:
    graph = quantised_chain()
    program = Edit(graph).program()
    with pytest.raises(ModelError, match="belong to no kernel"):
        partition(graph, replace(program, kernels=program.kernels[1:]))
    with pytest.raises(ModelError, match="another kernel"):
        partition(graph, replace(program, kernels=(*program.kernels, program.kernels[0])))


def test_a_false_origin_is_caught() -> None:
    """The record of origins is not trusted: it is what the regions check."""
    graph = quantised_chain()
    program = Edit(graph).program()
    a, b = (graph.nodes[i].outputs[0] for i in nodes_of(graph, "Add")[2:4])
    found = verify_program(graph, replace(program, origin={**program.origin, a: b}))
    assert found.verdict == "failed"


def test_the_counterpart_is_the_part_between() -> None:
    graph = quantised_chain()
    first, last = (graph.nodes[i].outputs[0] for i in nodes_of(graph, "Add")[2:4])
    part = CounterpartFinder(graph).find([first], [last])
    assert part.inputs == (first,)
    assert len(part.nodes) == len(graph.nodes) // 8


def test_what_is_computed_beside_the_inputs_is_measured_from_what_both_depend_on() -> None:
    """A variance in one pass, which a program may compute in two from differences that the original has, too."""
    b = GraphBuilder()
    x, axes = b.input("x", "float32", (4, 64)), b.constant([-1], "int64")
    mean = b.op("ReduceMean", x, axes)
    difference = b.op("Sub", x, mean)
    variance = b.op("Sub", b.op("ReduceMean", b.op("Mul", x, x), axes), b.op("Mul", mean, mean))
    graph = b.finish({"difference": difference, "variance": variance})
    part = CounterpartFinder(graph).find(["difference"], ["variance"])
    assert set(part.inputs) == {"x", mean}
    assert [n.op for n in part.nodes] == ["Mul", "ReduceMean", "Mul", "Sub"]
    assert part.outputs == ("variance",)


def test_an_operator_whose_kernel_is_another_at_a_newer_opset_is_run_at_that_of_the_model() -> None:
    """ONNX Runtime's AveragePool sums in another order from opset 19 on, and Gelu needs 20."""
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 8, 6, 32))
    pooled = b.op("AveragePool", b.op("Identity", x), kernel_shape=(3, 2), strides=(3, 2))
    halved = b.op("Mul", pooled, b.constant(0.5, "float32"))
    one = b.op("Add", b.op("Erf", b.op("Mul", pooled, b.constant(2**-0.5, "float32"))), b.constant(1.0, "float32"))
    graph = b.finish({"pooled": pooled, "y": b.op("Mul", halved, one)})
    graph = replace(graph, envelope=Envelope(17))
    result = eqsat.optimize(graph, form="flat", cost="kernels")
    assert result.report.operators_after == {"AveragePool": 1, "Gelu": 1}
    assert result.report.verification["verdict"] == "within tolerance"


def test_chunks_under_a_small_budget_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = quantised_chain()
    program = Edit(graph).change_constant(nodes_of(graph, "Mul")[9], lambda a: a * 1.01).program()
    program = replace(program, kernels=tuple(replace(k, rules=("any",)) for k in program.kernels))
    whole = verify_program(graph, program)
    monkeypatch.setattr(eqsat.verification.kernels, "BYTE_BUDGET", 4096)
    chunked = verify_program(graph, program)
    assert whole.verdict == chunked.verdict == "failed"
    assert [f for f in whole.failures if "kernel" in f] == [f for f in chunked.failures if "kernel" in f]


def test_fused_kernel_with_an_inner_value() -> None:
    """A kernel of several nodes is one region even where its inner values have an origin."""
    graph = quantised_chain(layers=1)
    program = Edit(graph).program()
    fused = Kernel(
        "all", "fused", tuple(range(len(graph.nodes))), graph.inputs, graph.outputs, ("r",), Exactness.ROUNDING
    )
    regions = partition(graph, Program(program.graph, (fused,), program.origin))
    assert len(regions) == 1
    assert regions[0].inputs == graph.inputs


def rounding_then_zero_point() -> Graph:
    b = GraphBuilder()
    x = b.input("x", "float32", (64, 8))
    shifted = b.op("Add", b.op("Round", b.op("Mul", x, b.constant(20.0, "float32"))), b.constant(3.0, "float32"))
    codes = b.op("Cast", b.op("Clip", shifted, b.constant(0.0, "float32"), b.constant(255.0, "float32")), to=2)
    return b.finish({"codes": codes})


def test_whole_numbers_in_floats_are_not_disturbed() -> None:
    """Noise after a Round would make the cast to an integer truncate: half of the codes would move."""
    graph = rounding_then_zero_point()
    whole = whole_numbers(graph)
    assert rounded_floats(graph, whole) == ("x", "mul_2")
    noisy = add_noise(graph, Exactness.ROUNDING)
    x = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    clean = session_of(graph).run({"x": x})["codes"].astype(int)
    moved = session_of(noisy.graph).run({"x": x, **noisy.pools(1)})["codes"].astype(int)
    assert np.abs(moved - clean).max() <= 1
    assert np.count_nonzero(moved != clean) < 8


def test_noise_has_the_stated_amplitude_and_fits_symbolic_shapes() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", 3))
    graph = b.finish({"y": b.op("Exp", x)})
    noisy = add_noise(graph, Exactness.ROUNDING)
    session = session_of(noisy.graph)
    for rows in (1, 7, 200_000):
        x = np.zeros((rows, 3), np.float32)
        deviation = np.abs(session.run({"x": x, **noisy.pools(0)})["y"] - 1) * 2**23
        assert deviation.max() <= 33
        assert rows == 1 or deviation.max() > 16


def test_counterparts_side_by_side_do_not_mix() -> None:
    graph = quantised_chain(layers=2)
    values = [graph.nodes[i].outputs[0] for i in nodes_of(graph, "Add")]
    finder = CounterpartFinder(graph)
    joined = join(graph, [finder.find(["x"], [values[0]]), finder.find(["x"], [values[0]])])
    x = np.random.default_rng(0).standard_normal((12, 24)).astype(np.float32)
    first, second = session_of(joined.graph).run({"x": x}).values()
    assert np.array_equal(first, second)


def test_a_part_that_reads_another_of_equal_values_is_not_run_on_larger_inputs() -> None:
    """The original quantises twice, the result once: what the second product reads there is not what is made larger."""
    b = GraphBuilder()
    draw = np.random.default_rng(0)
    x = b.op("MatMul", b.input("x", "float32", (12, 4)), b.constant(draw.normal(size=(4, 4)).astype(np.float32)))
    parameters = b.constant(np.float32(0.02)), b.constant(np.uint8(128))
    rest = (
        b.constant(np.float32(0.01)),
        b.constant(np.uint8(120)),
        b.constant(np.float32(0.05)),
        b.constant(np.uint8(9)),
    )
    codes = [b.op("QuantizeLinear", x, *parameters) for _ in range(2)]
    weights = [b.constant(draw.integers(0, 255, (4, 4)).astype(np.uint8)) for _ in codes]
    graph = b.finish([b.op("QLinearMatMul", q, *parameters, w, *rest) for q, w in zip(codes, weights, strict=True)])
    assert eqsat.optimize(graph, only_rules=()).report.operators_after["QuantizeLinear"] == 1


def test_what_folding_rounds_may_be_off_by_what_follows_from_its_roundings() -> None:
    """As in I-BERT: a constant near 2**60 that went through int64, made of a power, which implementations round differently."""
    b = GraphBuilder()
    draw = np.random.default_rng(0)
    steps = b.op("Pow", b.constant(draw.uniform(1e-9, 1e-8, 128).astype(np.float32)), b.constant(2.0, "float32"))
    large = b.op("Cast", b.op("Cast", b.op("Reciprocal", b.op("Mul", steps, b.constant(0.1, "float32"))), to=7), to=1)
    whole = b.op("Floor", b.op("Mul", b.input("x", "float32", (4, 128)), b.constant(2.0**58, "float32")))
    graph = b.finish({"y": b.op("Add", whole, large)})
    part = CounterpartFinder(graph).find([whole], ["y"])
    assert part.inputs == (whole,)
    assert [n.op for n in part.nodes] == ["Pow", "Mul", "Reciprocal", "Cast", "Cast", "Add"]
    found = eqsat.optimize(graph, form="flat").report.verification
    assert found["verdict"] in ("within tolerance", "equal")  # some processors' powers are ours


def test_what_extents_are_cut_off_from_is_not_disturbed() -> None:
    """A square of 16 patches has 16 ** 0.5 in each row: 3.998, cut off, are 3."""
    b = GraphBuilder()
    side = b.op("Pow", b.constant(16.0, "float16"), b.constant(0.5, "float16"))
    side = b.op("Unsqueeze", b.op("Cast", side, to=7), b.constant([0], "int64"))
    x = b.input("x", "float16", (16, 3))
    y = b.op("Tanh", b.op("Reshape", x, b.op("Concat", side, side, b.constant([-1], "int64"), axis=0)))
    graph = b.finish({"y": y})
    assert rounded_floats(graph, whole_numbers(graph)) == (x, "y")


def test_extents_that_a_part_of_a_graph_is_given_are_not_disturbed_where_half_of_them_is_rounded_up() -> None:
    """Half of 14 is 7; of one ulp more it would be 8, and the shape another, of which a run with noise says nothing."""
    b = GraphBuilder()
    x, rows = b.input("x", "float32", ("n",)), b.input("rows", "int64", (1,))
    half = b.op("Ceil", b.op("Div", b.op("Cast", rows, to=1), b.constant([2.0], "float32")))
    shape = b.op("Concat", b.op("Cast", half, to=7), b.constant([-1], "int64"), axis=0)
    scale = b.op("Sqrt", b.op("Cast", rows, to=1))
    graph = b.finish({"y": b.op("Mul", b.op("Reshape", x, shape), scale)})
    assert rounded_floats(graph, whole_numbers(graph)) == ("x", scale, "y")


def test_a_table_that_is_folded_may_be_off_by_its_roundings_where_it_is_looked_up() -> None:
    """Positions as sines, handed out: nothing else is rounded on the way."""
    b = GraphBuilder()
    rates = b.op("Exp", b.constant(np.linspace(-4, 0, 16).astype(np.float32)))
    positions = b.constant(np.arange(200, dtype=np.float32)[:, None])
    table = b.op("Sin", b.op("Mul", positions, rates))
    graph = b.finish({"y": b.op("Gather", table, b.input("ids", "int64", (32,)), axis=0)})
    assert rounded_floats(graph, whole_numbers(graph)) == (rates, table)
    found = eqsat.optimize(graph, form="flat").report.verification
    assert found["verdict"] == "within tolerance"


def test_a_table_whose_extents_are_read_is_rounded_all_the_same() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 5))
    table = b.op("Exp", b.constant([0.5, 1.5, 2.5, 3.5, 4.5], "float32"))
    graph = b.finish(
        {"y": b.op("Reshape", x, b.op("Concat", b.op("Shape", table), b.constant([2], "int64"), axis=0)), "t": table}
    )
    assert "t" in rounded_floats(graph, whole_numbers(graph))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("op", ["Log", "Sin", "Softplus", "Elu"])
def test_functions_that_round_the_last_elements_otherwise_may_move(op: str) -> None:
    """ONNX Runtime computes so many elements at once, and those that are left in another way."""
    b = GraphBuilder()
    x = b.input("x", "float32", (37, 5))
    parts = b.op("Split", x, b.constant([3, 2], "int64"), outputs=2, axis=1)
    graph = b.finish({"y": b.op("Concat", *(b.op(op, part) for part in parts), axis=1)})
    assert eqsat.optimize(graph, form="flat").report.operators_after == {op: 1}
