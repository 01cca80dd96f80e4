"""Branches that read one value: which become one branch, and which must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph_checks import counts, optimized, proved_equal

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.interpret import run

rng = np.random.default_rng(13)

Behind = Callable[[GraphBuilder, str, int], str]


def array(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def branches(columns: list[int], behind: Behind = lambda b, y, n: y, shape: tuple[Any, ...] = (2, 3, 4)) -> Any:
    """One input times a constant weight for each entry of ``columns``, with something behind each product."""
    b = GraphBuilder()
    x = b.input("x", "float32", shape)
    products = [(b.op("MatMul", x, b.constant(array(4, n))), n) for n in columns]
    return b.finish({f"y{i}": behind(b, y, n) for i, (y, n) in enumerate(products)})


@pytest.mark.parametrize("columns", [[5, 5, 5], [5, 1, 3], [2] * 32])
def test_products_of_one_input_are_one_product(columns: list[int]) -> None:
    assert counts(optimized(branches(columns))) == {"MatMul": 1, "Split": 1}


def test_symbolic_rows() -> None:
    assert counts(optimized(branches([5, 2, 3], shape=("batch", "rows", 4)))) == {"MatMul": 1, "Split": 1}


def test_biases_are_added_before_the_split() -> None:
    graph = branches([5, 2, 3], lambda b, y, n: b.op("Add", b.constant(array(n)), y))
    assert counts(optimized(graph)) == {"MatMul": 1, "Add": 1, "Split": 1}


def test_biases_and_activations_of_matrices_are_one_gemm_and_one_activation() -> None:
    graph = branches([5, 2, 3], lambda b, y, n: b.op("Tanh", b.op("Add", y, b.constant(array(1, n)))), (2, 4))
    assert counts(optimized(graph)) == {"Gemm": 1, "Tanh": 1, "Split": 1}


def test_scales_of_computed_weights_are_multiplied_before_the_split() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 4))
    weights = [b.input(f"w{i}", "float32", (4, i + 2)) for i in range(5)]
    products = [b.op("Mul", b.op("MatMul", x, w), b.constant(array(i + 2))) for i, w in enumerate(weights)]
    result = optimized(b.finish({f"y{i}": y for i, y in enumerate(products)}))
    assert counts(result) == {"Concat": 1, "MatMul": 1, "Mul": 1, "Split": 1}


def test_scaled_projection_merges_in_its_scaled_form() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 4))
    q, k, v = (b.op("Add", b.op("MatMul", x, b.constant(array(4, 6))), b.constant(array(6))) for _ in range(3))
    q = b.op("Mul", q, b.constant(np.float32(0.125)))
    result = optimized(b.finish({"q": q, "k": k, "v": v}))
    assert counts(result) == {"MatMul": 1, "Add": 1, "Split": 1}
    split = next(n for n in result.program.graph.nodes if n.op == "Split")
    assert [str(result.program.graph.type_of(o)) for o in split.outputs] == ["float32[2, 3, 6]"] * 3


def test_a_product_is_not_merged_with_its_scaled_form() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 4))
    y = b.op("Add", b.op("MatMul", x, b.constant(array(4, 6))), b.constant(array(6)))
    erf = b.op("Erf", b.op("Mul", y, b.constant(np.float32(0.7071))))
    result = optimized(b.finish({"y": b.op("Mul", y, erf)}))
    assert "merge_matmuls_of_one_input" not in result.report.rules


@pytest.mark.parametrize("rows", [(2, 3), ("batch", "rows")])
@pytest.mark.parametrize("dynamic", [True, False])
def test_integer_products_of_one_quantised_value_are_one_product(rows: tuple[Any, ...], dynamic: bool) -> None:
    """As `quantize_dynamic` writes queries, keys and values: the scale of the input, or one for each row, is computed."""
    b = GraphBuilder()
    x = b.input("x", "float32", (*rows, 4))
    if dynamic:
        q, scale, zero = b.op("DynamicQuantizeLinear", x, outputs=3)
    else:
        scale = b.op("Add", b.op("ReduceMax", b.op("Abs", x), b.constant(np.array([-1]))), b.constant(np.float32(0.1)))
        zero = b.constant(np.uint8(128))
        steps = b.op("Add", b.op("Round", b.op("Div", x, scale)), b.constant(np.float32(128)))
        clipped = b.op("Clip", steps, b.constant(np.float32(0)), b.constant(np.float32(255)))
        q = b.op("Cast", clipped, to=2)
    outputs = {}
    for i, n in enumerate((5, 2, 3)):
        weights = b.constant(rng.integers(-127, 127, (4, n)).astype(np.int8))
        sums = b.op("Cast", b.op("MatMulInteger", q, weights, zero, b.constant(np.int8(0))), to=1)
        own = b.constant(np.abs(array(*(() if i else (n,)))))
        outputs[f"y{i}"] = b.op("Add", b.op("Mul", sums, b.op("Mul", scale, own)), b.constant(array(n)))
    found = counts(optimized(b.finish(outputs)))
    assert (found["MatMulInteger"], found["Split"], found["Add"]) == (1, 1, 1 if dynamic else 2)


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemms_of_one_input_are_one_gemm(transposed: int) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    outputs = {}
    for i, n in enumerate((5, 2, 3)):
        w = b.constant(array(n, 4) if transposed else array(4, n))
        outputs[f"y{i}"] = b.op("Gemm", x, w, b.constant(array(n)), transB=transposed)
    assert counts(optimized(b.finish(outputs))) == {"Gemm": 1, "Split": 1}


def test_gemms_with_and_without_bias() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    parts = [[b.constant(array(4, 2))], [b.constant(array(4, 3)), b.constant(array(3, 1))], [b.constant(array(4, 1))]]
    optimized(b.finish({f"y{i}": b.op("Gemm", x, *p, alpha=0.5 + i) for i, p in enumerate(parts)}))


def test_two_dense_layers_with_transposed_weights() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    weights = [b.op("Transpose", b.constant(array(5, 4)), perm=(1, 0)) for _ in range(2)]
    result = optimized(b.finish({f"y{i}": b.op("Relu", b.op("MatMul", x, w)) for i, w in enumerate(weights)}))
    assert counts(result) == {"MatMul": 1, "Relu": 1, "Split": 1}


def test_weights_that_are_computed_after_the_first_product() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 4))
    outputs = {}
    for i in range(4):
        w = b.input(f"w{i}", "float32", (4, 4))
        for _ in range(i % 2 + 1):
            w = b.op("Exp", b.op("Transpose", w, perm=(1, 0)))
        outputs[f"y{i}"] = b.op("Relu", b.op("MatMul", x, w))
    found = counts(optimized(b.finish(outputs), tolerance=1e-3))
    assert (found["MatMul"], found["Relu"], found["Concat"], found["Split"]) == (1, 1, 1, 1)


def test_weight_computed_from_a_sibling_is_left_out() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (4, 4))
    first = b.op("MatMul", x, b.constant(array(4, 4)))
    rest = [b.op("MatMul", x, w) for w in (b.constant(array(4, 4)), b.constant(array(4, 4)))]
    result = optimized(
        b.finish({"y": b.op("MatMul", x, b.op("Tanh", first)), "u": rest[0], "v": rest[1]}), tolerance=1e-4
    )
    assert counts(result)["MatMul"] == 2
    split = next(n for n in result.program.graph.nodes if n.op == "Split")
    assert len(split.outputs) == 3


def test_products_of_different_inputs_stay() -> None:
    b = GraphBuilder()
    w = b.constant(array(4, 5))
    products = {f"y{i}": b.op("MatMul", b.input(f"x{i}", "float32", (2, 4)), w) for i in range(3)}
    assert counts(optimized(b.finish(products))) == {"MatMul": 3}


def test_right_operands_of_different_batches_stay() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 4))
    weights = [array(2, 4, 5), array(1, 4, 5), array(4, 5)]
    products = {f"y{i}": b.op("MatMul", x, b.constant(w)) for i, w in enumerate(weights)}
    assert counts(optimized(b.finish(products))) == {"MatMul": 3}


def test_batches_of_right_operands_merge() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 4))
    products = {f"y{i}": b.op("MatMul", x, b.constant(array(2, 4, 5))) for i in range(3)}
    assert counts(optimized(b.finish(products))) == {"MatMul": 1, "Split": 1}


def test_different_activations_stay_apart() -> None:
    ops = iter(("Relu", "Tanh", "Relu"))
    graph = branches([2, 3, 4], lambda b, y, n: b.op(next(ops), y))
    assert counts(optimized(graph)) == {"MatMul": 1, "Split": 1, "Relu": 2, "Tanh": 1}


@pytest.mark.parametrize("others", ["Tanh", "Softmax"])
def test_products_that_one_activation_follows_are_one_product_beside_those_of_another(others: str) -> None:
    ops = iter(("Relu", others, "Relu", others, "Relu", "Relu"))
    graph = branches([2, 3, 4, 5, 6, 7], lambda b, y, n: b.op(next(ops), b.op("Add", y, b.constant(array(n)))), (2, 4))
    result = counts(optimized(graph))
    assert result["Relu"] == 1
    assert result["Gemm"] == result["Split"] == 2


def test_activations_with_different_attributes_stay_apart() -> None:
    slopes = iter((0.1, 0.2, 0.1))
    graph = branches([2, 3, 4], lambda b, y, n: b.op("LeakyRelu", y, alpha=next(slopes)))
    assert counts(optimized(graph))["LeakyRelu"] == 3


def test_rows_of_biases_stay_behind_the_split() -> None:
    graph = branches([2, 3, 4], lambda b, y, n: b.op("Add", y, b.constant(array(3, 1))))
    assert counts(optimized(graph))["Add"] == 3


def test_single_numbers_are_repeated() -> None:
    shapes: Any = iter(((), (1,), (4,)))
    graph = branches([2, 3, 4], lambda b, y, n: b.op("Add", y, b.constant(array(*next(shapes)))))
    assert counts(optimized(graph)) == {"MatMul": 1, "Add": 1, "Split": 1}


def test_one_number_beside_all_parts_stays_one() -> None:
    """ONNX Runtime has kernels of their own for some: for the exponent 2, a tensor of which it takes for any power."""
    result = optimized(branches([5, 2, 3], lambda b, y, n: b.op("Pow", y, b.constant(np.float32(3)))))
    assert counts(result) == {"MatMul": 1, "Pow": 1, "Split": 1}
    graph = result.program.graph
    (power,) = (node for node in graph.nodes if node.op == "Pow")
    assert graph.type_of(power.inputs[1]).size == 1


def test_chains_of_branches_grow_linearly() -> None:
    def enodes(layers: int) -> int:
        b = GraphBuilder()
        x = b.input("x", "float32", (2, 4))
        for _ in range(layers):
            parts = [b.op("Add", b.op("MatMul", x, b.constant(array(4, 4))), b.constant(array(4))) for _ in range(6)]
            x = b.op("Tanh", b.op("Sum", *parts))
        result = optimized(b.finish({"y": x}), tolerance=1e-3)
        assert result.report.stop_reason == "saturated"
        assert counts(result)["Split"] == layers
        return result.report.enodes

    two, four, eight = (enodes(n) for n in (2, 4, 8))
    assert eight - four == 2 * (four - two)


def test_optimised_graph_is_a_fixpoint() -> None:
    once = optimized(branches([5, 2, 3], lambda b, y, n: b.op("Relu", b.op("Add", y, b.constant(array(n))))))
    again = eqsat.optimize(once.program.graph, verify=False, form="flat")
    assert counts(again) == counts(once)


def gates(left: list[int], right: list[int], rows: int = 2) -> Any:
    """Sums of the products of two inputs with the weights of each gate, and a function of each."""
    b = GraphBuilder()
    x, h = b.input("x", "float32", (2, 4)), b.input("h", "float32", (rows, 3))
    sums = [
        b.op("Add", b.op("MatMul", x, b.constant(array(4, n))), b.op("MatMul", h, b.constant(array(3, k))))
        for n, k in zip(left, right, strict=True)
    ]
    return b.finish({f"y{i}": b.op("Tanh", y) for i, y in enumerate(sums)})


def test_gates_of_two_inputs_are_one_product_each() -> None:
    found = counts(optimized(gates([5] * 4, [5] * 4)))
    assert found == {"MatMul": 1, "Gemm": 1, "Tanh": 1, "Split": 1}


@pytest.mark.parametrize(("right", "rows"), [([1, 5, 5], 2), ([5, 1, 1], 2), ([5, 5, 5], 1)])
def test_gates_that_broadcast(right: list[int], rows: int) -> None:
    optimized(gates([5, 5, 5], right, rows))


@pytest.mark.parametrize(("sizes", "index"), [((16, 16, 16), 1), ((8, 8, 16, 16), 1)], ids=["longest", "shortest"])
def test_slices_that_cover_a_value_are_a_split_into_the_longest_and_into_the_shortest(
    sizes: tuple[int, ...], index: int
) -> None:
    """Queries, keys and values side by side, and the halves of the queries, which turn."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", 48))
    bounds = ((0, 16), (16, 32), (32, 48), (0, 8), (8, 16))
    slices = {at: b.op("Slice", x, *(b.constant([v], "int64") for v in (*at, 1))) for at in bounds}
    parts = b.op("Split", x, b.constant(list(sizes), "int64"), outputs=len(sizes), axis=1)
    start = sum(sizes[:index])
    first = slices.pop((start, start + sizes[index]))
    graph = b.finish([first, parts[index], *slices.values()])
    assert proved_equal(graph, "split_instead_of_slices")


@pytest.mark.parametrize("block", [0, 16])
def test_parts_that_are_dequantised_by_one_block_each_stay(block: int) -> None:
    b = GraphBuilder()
    parts = b.op("Split", b.input("q", "int8", (1, 32)), b.constant([16, 16], "int64"), axis=1, outputs=2)
    scale, zero = (
        b.constant(np.array([[0.5]] if block else 0.5, "float32")),
        b.constant(np.array([[3]] if block else 3, "int8")),
    )
    attributes: dict[str, Any] = {"axis": 1, "block_size": block} if block else {}
    p, q = (b.op("DequantizeLinear", part, scale, zero, **attributes) for part in parts)
    assert counts(optimized(b.finish({"y": b.op("Concat", q, p, axis=1)})))["DequantizeLinear"] == (2 if block else 1)


@pytest.mark.parametrize("fmods", [(1, 1), (0, 0), (1, 0)])
def test_what_is_done_to_each_pair_of_parts_keeps_its_attributes(fmods: tuple[int, int]) -> None:
    b = GraphBuilder()
    x, y = b.input("x", "int32", (2, 4)), b.input("y", "int32", (2, 4))
    (p, q), (r, s) = (b.op("Split", v, b.constant([2, 2], "int64"), axis=1, outputs=2) for v in (x, y))
    first, second = (b.op("Mod", *pair, fmod=f) for pair, f in zip(((p, r), (q, s)), fmods, strict=True))
    graph = b.finish({"z": b.op("Concat", second, first, axis=1)})
    result = eqsat.optimize(graph, verify=False, form="flat")
    assert counts(result).get("Mod") == (1 if fmods[0] == fmods[1] else 2)
    feeds = {
        "x": np.array([[-7, 7, -8, 9], [5, -5, 3, -3]], np.int32),
        "y": np.array([[3, -3, 5, -4], [3, 3, -2, 2]], np.int32),
    }
    np.testing.assert_array_equal(run(result.program.graph, feeds)["z"], run(graph, feeds)["z"])
