"""A checker is worth what it catches: one wrong rewrite in one of eight layers, and correct ones beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from quantised_models import (
    PRECISIONS,
    Edit,
    float_type,
    integer_chain,
    masked_attention,
    node,
    nodes_of,
    quantised_chain,
)

from eqsat.exactness import Exactness
from eqsat.ir.graph import Graph
from eqsat.lower.program import Program
from eqsat.verification import Verification, verify_program

Break = Callable[[Graph], Program]
MIDDLE = 4


SMALL = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.03}
"""A relative error of a constant that is no rounding: 839 ulp, 10 ulp and 4 ulp."""


def off_by_little(graph: Graph) -> float:
    return 1 + SMALL[float_type(graph).name]


def scale_off(graph: Graph) -> Program:
    index = nodes_of(graph, "Mul")[2 * MIDDLE]
    return Edit(graph).change_constant(index, lambda a: a * off_by_little(graph)).program()


def scale_off_by_a_tenth(graph: Graph) -> Program:
    return Edit(graph).change_constant(nodes_of(graph, "Mul")[2 * MIDDLE], lambda a: a * 1.1).program()


def narrow_clip_dropped(graph: Graph) -> Program:
    """The clip to -127..127 becomes the saturation of the dtype."""
    return Edit(graph).change_constant(nodes_of(graph, "Clip")[MIDDLE], lambda a: a - 1, position=1).program()


def clip_dropped_as_lsb(graph: Graph) -> Program:
    index = nodes_of(graph, "Clip")[MIDDLE]
    return Edit(graph, Exactness.LSB).change_constant(index, lambda a: a - 1, position=1).program()


def quantise_fused_without_clip(graph: Graph) -> Program:
    """Mul, Round, Clip, Cast become QuantizeLinear with zero point 0, which saturates at -128."""
    mul = nodes_of(graph, "Mul")[2 * MIDDLE]
    edit = Edit(graph, Exactness.LSB)
    original = graph.nodes[mul]
    scale = 1 / graph.constants[original.inputs[1]].numpy().astype(np.float64)
    cast = graph.nodes[mul + 3]
    assert (cast.op, cast.attributes["to"]) == ("Cast", 3)
    quantise = node(
        "QuantizeLinear", (original.inputs[0], edit.constant(scale), edit.constant(0, "int8")), cast.outputs[0]
    )
    for i in range(mul, mul + 3):
        edit.replace(i)
    return edit.replace(mul + 3, quantise).program()


def weight_transposed(graph: Graph) -> Program:
    return Edit(graph).change_constant(nodes_of(graph, "MatMul")[MIDDLE], np.transpose).program()


def bias_shifted_by_one(graph: Graph) -> Program:
    return Edit(graph).change_constant(nodes_of(graph, "Add")[MIDDLE], lambda a: np.roll(a, 1)).program()


def floor_for_round(graph: Graph) -> Program:
    """Rounds down: off by a quantum on half of the elements, which class lsb does not mean."""
    index = nodes_of(graph, "Round")[MIDDLE]
    return Edit(graph, Exactness.LSB).replace(index, replace(graph.nodes[index], op="Floor")).program()


def off_by_one_everywhere(graph: Graph) -> Program:
    index = nodes_of(graph, "Round")[MIDDLE]
    edit = Edit(graph, Exactness.LSB)
    original = graph.nodes[index]
    edit.value("rounded", original.outputs[0])
    edit.replace(
        index,
        node("Round", original.inputs, "rounded"),
        node("Add", ("rounded", edit.constant(1.0)), original.outputs[0]),
    )
    return edit.program()


def claimed_exact(graph: Graph) -> Program:
    """A correct rewrite of class rounding whose rule promises bit equality."""
    program = divide_instead(graph)
    return replace(program, kernels=tuple(replace(k, exactness=Exactness.EXACT) for k in program.kernels))


def divide_instead(graph: Graph) -> Program:
    """``x * c == x / (1/c)``, everywhere."""
    edit = Edit(graph)
    for i in nodes_of(graph, "Mul"):
        original = graph.nodes[i]
        inverse = 1 / graph.constants[original.inputs[1]].numpy().astype(np.float64)
        edit.replace(i, node("Div", (original.inputs[0], edit.constant(inverse)), original.outputs[0]))
    return edit.program()


def scale_folded_into_weight(graph: Graph) -> Program:
    """``(q * s) @ w == q @ (w * s)``, everywhere: the dequantised values disappear."""
    edit = Edit(graph)
    matmuls = nodes_of(graph, "MatMul")
    for dequantise, matmul in zip(nodes_of(graph, "Mul")[1::2], matmuls, strict=True):
        codes, scale = graph.nodes[dequantise].inputs
        original = graph.nodes[matmul]
        weight = graph.constants[original.inputs[1]].numpy() * graph.constants[scale].numpy()
        edit.replace(dequantise)
        edit.replace(matmul, node("MatMul", (codes, edit.constant(weight)), original.outputs[0]))
    return edit.program()


def scale_taken_out_of_matmul(graph: Graph) -> Program:
    """``x @ w == (x @ (w / 3)) * 3`` through a value that the original does not have."""
    edit = Edit(graph)
    for i in nodes_of(graph, "MatMul"):
        original = graph.nodes[i]
        weight = graph.constants[original.inputs[1]].numpy() / 3
        between = edit.value(f"third_{i}", original.outputs[0])
        edit.replace(
            i,
            node("MatMul", (original.inputs[0], edit.constant(weight)), between),
            node("Mul", (between, edit.constant(3.0)), original.outputs[0]),
        )
    return edit.program()


WRONG: tuple[Break, ...] = (
    scale_off,
    scale_off_by_a_tenth,
    narrow_clip_dropped,
    clip_dropped_as_lsb,
    quantise_fused_without_clip,
    weight_transposed,
    bias_shifted_by_one,
    floor_for_round,
    off_by_one_everywhere,
    claimed_exact,
)
RIGHT: tuple[Break, ...] = (divide_instead, scale_folded_into_weight, scale_taken_out_of_matmul)


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))]
THREE_MORE = [pytest.param(seed, marks=pytest.mark.thorough) for seed in (3, 4, 5)]


def name_of(function: Break) -> str:
    return function.__name__


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("wrong", WRONG, ids=name_of)
def test_a_wrong_rewrite_in_one_layer_is_caught(wrong: Break, precision: str, seed: int) -> None:
    # bfloat16 has eight bits: it cannot tell how a code of eight bits was rounded, but does tell it of four.
    coarse = 16.0 if precision == "bfloat16" and wrong is floor_for_round else 1.0
    graph = quantised_chain(seed, precision=precision, coarser=coarse)
    found = verify_program(graph, wrong(graph), seed=seed)
    assert found.verdict == "failed"
    assert any("kernel" in failure and "edited" in failure for failure in found.failures), found.failures


@pytest.mark.parametrize("seed", [*SEEDS, *THREE_MORE])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("right", RIGHT, ids=name_of)
def test_a_correct_rounding_rewrite_passes(right: Break, precision: str, seed: int) -> None:
    graph = quantised_chain(seed, precision=precision)
    found = verify_program(graph, right(graph), seed=seed)
    assert found.verdict in ("equal", "within tolerance"), found.failures
    assert found.kernels_checked >= 8


def test_the_kernels_catch_what_the_outputs_hide() -> None:
    """A 0.1 % error in one scale of a deep model is inside the model's own sensitivity, but not inside the kernel's."""
    graph = quantised_chain(3, layers=24)
    index = nodes_of(graph, "Mul")[10]
    program = Edit(graph).change_constant(index, lambda a: a * 1.001).program()
    found = verify_program(graph, program)
    kernels = [failure for failure in found.failures if failure.startswith("kernel")]
    assert len(kernels) == 1
    assert "Mul" in kernels[0]


def invert_mask(graph: Graph) -> Program:
    index = nodes_of(graph, "Sub")[0]
    hidden = graph.nodes[index]
    return Edit(graph).replace(index, node("Identity", (hidden.inputs[1],), hidden.outputs[0])).program()


def softmax_over_the_other_axis(graph: Graph) -> Program:
    index = nodes_of(graph, "Softmax")[0]
    softmax = graph.nodes[index]
    return Edit(graph).replace(index, replace(softmax, attributes=softmax.attributes.updated(axis=1))).program()


def mask_dropped(graph: Graph) -> Program:
    index = [i for i in nodes_of(graph, "Add") if graph.type_of(graph.nodes[i].outputs[0]).rank == 3][-1]  # type: ignore[union-attr]
    add = graph.nodes[index]
    return Edit(graph).replace(index, node("Identity", (add.inputs[0],), add.outputs[0])).program()


def attention_scale_off(graph: Graph) -> Program:
    return Edit(graph).change_constant(nodes_of(graph, "Mul")[0], lambda a: a * off_by_little(graph)).program()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "wrong", [invert_mask, softmax_over_the_other_axis, mask_dropped, attention_scale_off], ids=name_of
)
def test_wrong_attention_is_caught(wrong: Break, precision: str, seed: int) -> None:
    graph = masked_attention(seed, precision)
    assert verify_program(graph, wrong(graph), seed=seed).verdict == "failed"


def shifted_zero_point(graph: Graph) -> Program:
    index = nodes_of(graph, "DequantizeLinear")[MIDDLE]
    return Edit(graph).change_constant(index, lambda a: a + 1, position=2).program()


def other_scale(graph: Graph) -> Program:
    index = nodes_of(graph, "QuantizeLinear")[MIDDLE]
    factor = 1.05 if float_type(graph).name == "bfloat16" else 1.01
    return Edit(graph, Exactness.LSB).change_constant(index, lambda a: a * factor, position=1).program()


def multiply_and_round(graph: Graph) -> Program:
    """``QuantizeLinear(x, s) == Cast(Clip(Round(x * (1/s))))`` up to a quantum at ties, everywhere."""
    edit = Edit(graph, Exactness.LSB)
    for i in nodes_of(graph, "QuantizeLinear"):
        original = graph.nodes[i]
        inverse = 1 / graph.constants[original.inputs[1]].numpy().astype(np.float64)
        x, names = original.inputs[0], [f"{part}_{i}" for part in ("scaled", "rounded", "clipped")]
        for name in names:
            edit.value(name, x)
        edit.replace(
            i,
            node("Mul", (x, edit.constant(inverse)), names[0]),
            node("Round", (names[0],), names[1]),
            node("Clip", (names[1], edit.constant(-128.0), edit.constant(127.0)), names[2]),
            node("Cast", (names[2],), original.outputs[0], to=3),
        )
    return edit.program()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_integer_codes_are_compared_in_quanta(precision: str, seed: int) -> None:
    graph = integer_chain(seed, precision=precision)
    right: Verification = verify_program(graph, multiply_and_round(graph), seed=seed)
    assert right.passed, right.failures
    for wrong in (shifted_zero_point, other_scale):
        assert verify_program(graph, wrong(graph), seed=seed).verdict == "failed"
