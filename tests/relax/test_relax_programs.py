"""Programs as modules of TVM Relax: one loop function per kernel, and the same outputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnxruntime_programs import integer_layer, quantised_block

import eqsat
from eqsat.engines import Run, load_on
from eqsat.errors import ModelError
from eqsat.ir.graph import Graph
from eqsat.verification.feeds import random_feeds

pytest.importorskip("tvm", reason="the extra eqsat[tvm] is not installed")

from eqsat.relax import Executable, fused, kernel_count, to_module

RNG = np.random.default_rng(11)


def _floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32) / 4


def attention() -> Graph:
    """Two heads over [2, 6, 16], a residual sum with its norm, an activation between two products."""
    b = eqsat.GraphBuilder("attention")
    x = b.input("x", "float32", (2, 6, 16))

    def project(value: str, size: int, features: int) -> str:
        return b.op("Add", b.op("MatMul", value, b.constant(_floats(size, features))), b.constant(_floats(features)))

    def heads(value: str, perm: tuple[int, ...]) -> str:
        return b.op("Transpose", b.op("Reshape", value, b.constant(np.array([2, 6, 2, 8]))), perm=perm)

    q, k, v = (heads(project(x, 16, 16), perm) for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
    mixed = b.op("MatMul", b.op("Softmax", b.op("Mul", b.op("MatMul", q, k), b.constant(np.float32(0.35))), axis=-1), v)
    joined = b.op("Reshape", b.op("Transpose", mixed, perm=(0, 2, 1, 3)), b.constant(np.array([2, 6, 16])))
    normed = b.op("LayerNormalization", b.op("Add", x, project(joined, 16, 16)), b.constant(_floats(16)))
    return b.finish({"y": project(b.op("Gelu", project(normed, 16, 32), approximate="none"), 32, 16)})


def convolutions() -> Graph:
    """Two parallel convolutions with rectifiers, a norm, a pool, a view."""
    b = eqsat.GraphBuilder("convolutions")
    x = b.input("x", "float32", (1, 4, 10, 10))
    one, two = (
        b.op("Relu", b.op("Conv", x, b.constant(_floats(8, 4, n, n)), b.constant(_floats(8)), pads=(n // 2,) * 4))
        for n in (1, 3)
    )
    joined = b.op("Concat", one, two, axis=1)
    scale, shift, mean = (b.constant(_floats(16)) for _ in "abc")
    normed = b.op("BatchNormalization", joined, scale, shift, mean, b.constant(np.abs(_floats(16)) + 1))
    corner = b.op("Slice", x, *(b.constant(np.array(v)) for v in ([1, 0, 0], [2, 9, 9], [1, 2, 3])))
    gated = b.op("Mul", b.op("MaxPool", normed, kernel_shape=(2, 2)), b.op("Sigmoid", corner))
    pooled = b.op("GlobalAveragePool", gated)
    return b.finish({"y": b.op("Reshape", pooled, b.constant(np.array([1, 16])))})


def indices() -> Graph:
    """Rows looked up from both ends, another index known, a mask, outputs that share a kernel's operand."""
    b = eqsat.GraphBuilder("indices")
    rows = b.op("Gather", b.constant(_floats(10, 8)), b.input("i", "int64", (2, 3)))
    last = b.op("Gather", rows, b.constant(np.array(-1)), axis=1)
    mask = b.op("Less", last, b.constant(np.float32(0)))
    return b.finish({"y": b.op("Where", mask, b.constant(np.float32(2)), last), "rows": rows, "mask": mask})


def bounds() -> Graph:
    """Bounds that are inputs: TVM's frontend makes loops of its own for them, of one name in both kernels."""
    b = eqsat.GraphBuilder("bounds")
    x, low = b.input("x", "float32", (3, 4)), b.input("low", "float32", ())
    first = b.op("Clip", b.op("MatMul", x, b.constant(_floats(4, 6))), low, b.constant(np.float32(0.5)))
    second = b.op("Clip", b.op("MatMul", first, b.constant(_floats(6, 5))), low)
    return b.finish({"y": second, "z": b.op("ReduceMax", first)})


def constant_output() -> Graph:
    """What does not depend on the input is computed before; an output that is a constant, and one that is the input."""
    b = eqsat.GraphBuilder("constant output")
    x = b.input("x", "float32", (3,))
    c = b.op("Exp", b.constant(_floats(3)))
    return b.finish({"y": b.op("Mul", x, c), "c": c, "x2": b.op("Identity", x)})


GRAPHS: dict[str, Callable[[], Graph]] = {
    f.__name__: f for f in (attention, convolutions, indices, bounds, constant_output, integer_layer, quantised_block)
}


@pytest.mark.parametrize("name", GRAPHS)
def test_each_kernel_is_one_loop_function_and_outputs_agree(name: str) -> None:
    graph = GRAPHS[name]()
    program = eqsat.optimize(graph, target="tvm-like", verify=False).program
    executable = Executable(program)
    assert kernel_count(to_module(program).module) == program.kernel_count
    assert kernel_count(executable.module) == program.kernel_count
    check_outputs(graph, executable)


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_run_node_by_node(name: str) -> None:
    graph = GRAPHS[name]()
    check_outputs(graph, load_on(graph, "relax"))


def check_outputs(graph: Graph, run: Run) -> None:
    feeds = random_feeds(graph, 0)
    expected = eqsat.run(graph, feeds)
    found = run(feeds)
    assert found.keys() == expected.keys()
    for output, value in expected.items():
        assert found[output].dtype == value.dtype
        np.testing.assert_allclose(found[output], value, rtol=1e-4, atol=1e-5)


def test_loop_functions_are_primitive_functions_of_the_module() -> None:
    module = to_module(eqsat.optimize(attention(), target="tvm-like", verify=False).program).module
    primitive = [f for f in module.functions.values() if f.attrs and f.attrs.get("Primitive")]
    assert primitive
    loops = [f for v, f in fused(module).functions.items() if v.name_hint != "main"]
    assert len(loops) == len(primitive)


def test_operators_that_tvm_does_not_take_are_named() -> None:
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", (1, 3, 4))
    graph = b.finish({"y": b.op("Det", b.op("MatMul", x, b.constant(_floats(4, 3)))), "z": b.op("Celu", x)})
    with pytest.raises(ModelError, match=r"does not take Celu, Det$"):
        eqsat.run(graph, {"x": _floats(1, 3, 4)}, engine="relax")


def test_attention_of_the_standard_is_not_taken_for_another() -> None:
    b = eqsat.GraphBuilder()
    q = b.input("q", "float32", (1, 2, 4, 8))
    graph = b.finish({"y": b.op("Attention", q, q, q)})
    with pytest.raises(ModelError, match="no converter for Attention"):
        eqsat.run(graph, {"q": _floats(1, 2, 4, 8)}, engine="relax")


def test_unknown_extents_are_one_clear_error() -> None:
    b = eqsat.GraphBuilder()
    graph = b.finish({"y": b.op("Relu", b.input("x", "float32", ("n", 4)))})
    with pytest.raises(ModelError, match=r"value 'x'.*give them with dims="):
        eqsat.run(graph, {"x": _floats(2, 4)}, engine="relax")
    b = eqsat.GraphBuilder()
    found = b.op("NonZero", b.input("x", "float32", (2, 4)))
    graph = b.finish({"y": b.op("Cast", found, to=1)})
    with pytest.raises(ModelError, match=r"value .* is int64\[2, \?.*give them with dims="):
        eqsat.run(graph, {"x": _floats(2, 4)}, engine="relax")
