"""Graphs as modules of PyTorch compute what the definitions of their operators say. Needs the extra ``torch``."""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import eqsat  # noqa: E402
from eqsat.backends.torch_tensors import to_array, to_tensor  # noqa: E402
from eqsat.errors import EqsatError, ModelError  # noqa: E402
from eqsat.fx import Executable, to_module  # noqa: E402
from eqsat.fx.site import WRITERS  # noqa: E402
from eqsat.ir.build import GraphBuilder  # noqa: E402
from eqsat.ir.graph import Graph  # noqa: E402
from eqsat.ir.interpret import run  # noqa: E402
from eqsat.ir.types import type_of_array  # noqa: E402
from tests.ir.operator_drawing import Instance, i64  # noqa: E402
from tests.ir.operator_instances import INSTANCES  # noqa: E402
from tests.ir.test_traits import BY_SCHEMA  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:Truncating the start:UserWarning")

TRIALS = 24
TOLERANCE = {2: 8e-3, 4: 1e-4, 8: 1e-7}
"""Of floats, by bytes of an element: those of the definitions against ONNX Runtime."""


def _rotary(rng: np.random.Generator) -> Instance:
    flat, positions = bool(rng.integers(2)), bool(rng.integers(2))
    x = rng.normal(size=(2, 5, 24) if flat else (2, 3, 5, 8)).astype(np.float32)
    width = int(rng.choice([0, 4]))
    table = rng.normal(size=(2, 9, (width or 8) // 2)[1:] if positions else (2, 5, (width or 8) // 2))
    angles = [table.astype(np.float32), (table + 1).astype(np.float32)]
    given = [x, *angles, *([rng.integers(0, 9, (2, 5))] if positions else [])]
    more = {"num_heads": 3} if flat else {}
    return Instance(
        "RotaryEmbedding", given, {"interleaved": int(rng.integers(2)), "rotary_embedding_dim": width, **more}
    )


def _resized(rng: np.random.Generator) -> Instance:
    x = rng.normal(size=(1, 2, 3, 4)).astype(np.float32)
    if rng.integers(2):
        place = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"} if rng.integers(2) else {}
        return Instance("Resize", [x, None, None, i64(1, 2, 6, 12)], {"mode": "nearest", **place})
    place = str(rng.choice(["half_pixel", "align_corners"]))
    attributes = {"mode": "linear", "coordinate_transformation_mode": place}
    if place == "half_pixel" and rng.integers(2):
        x = rng.normal(size=(1, 2, 6, 9)).astype(np.float32) if rng.integers(2) else x
        kinds = {"mode": "linear"}, {"mode": "cubic", "cubic_coeff_a": -0.5}, {"mode": "cubic"}
        attributes |= {"antialias": 1, "exclude_outside": int(rng.integers(4) > 0), **kinds[rng.integers(3)]}
    return Instance("Resize", [x, None, None, i64(1, 2, 5, 8)], attributes)


def _folded(rng: np.random.Generator) -> Instance:
    kernel, image = ((2, 3), (5, 7)) if rng.integers(4) else ((2,), (5,))
    given: dict[str, tuple[int, ...]] = {}
    if rng.integers(2):
        before, after = rng.integers(0, 2, (2, len(kernel))).tolist()
        given = {"strides": (2, 1), "dilations": (1, 2), "pads": (*before, *(before if rng.integers(3) else after))}
    given = {name: v if name == "pads" else v[: len(kernel)] for name, v in given.items()}
    axes = zip(image, kernel, *(given.get(n, (1, 1)) for n in ("strides", "dilations")), strict=False)
    pads = given.get("pads", (0, 0, 0, 0))
    counts = [
        (d + pads[i] + pads[i + len(kernel)] - dilation * (k - 1) - 1) // stride + 1
        for i, (d, k, stride, dilation) in enumerate(axes)
    ]
    x = rng.normal(size=(2, 3 * math.prod(kernel), math.prod(counts))).astype(np.float32)
    return Instance("Col2Im", [x, i64(*image), i64(*kernel)], given)


def _sampled(rng: np.random.Generator) -> Instance:
    x, grid = rng.normal(size=(2, 3, 4, 5)), rng.uniform(-1.2, 1.2, (2, 3, 2, 2))
    if not rng.integers(4):
        x, grid = rng.normal(size=(1, 2, 3, 4, 5)), rng.uniform(-1.2, 1.2, (1, 2, 3, 2, 3))
    given = {"mode": ["linear", "nearest", "cubic"], "padding_mode": ["zeros", "border", "reflection"]}
    more = {name: str(rng.choice(values)) for name, values in given.items()}
    operands: list[np.ndarray | None] = [x.astype(np.float32), grid.astype(np.float32)]
    return Instance("GridSample", operands, {"align_corners": int(rng.integers(2)), **more})


def _recurrent(op: str, rng: np.random.Generator) -> Instance:
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    gates, both, units = {"GRU": 3, "LSTM": 4, "RNN": 1}[op], 1 + (direction == "bidirectional"), 3
    shapes = [(5, 2, 4), (both, gates * units, 4), (both, gates * units, units), (both, 2 * gates * units)]
    x, w, r, bias = (rng.normal(size=s).astype(np.float32) for s in shapes)
    states = [rng.normal(size=(both, 2, units)).astype(np.float32) for _ in range(2 if op == "LSTM" else 1)]
    given = [x, w, r, bias if rng.integers(2) else None, None, *(states if rng.integers(2) else ())]
    more = {"linear_before_reset": int(rng.integers(4) > 0)} if op == "GRU" else {}
    return Instance(op, given, {"hidden_size": units, "direction": direction, **more}, 1 + len(states))


DRAWN = {**INSTANCES, **{op: d for op, d in BY_SCHEMA.items() if op in WRITERS}}
DRAWN |= {"RotaryEmbedding": _rotary, "Resize": _resized, "Col2Im": _folded, "GridSample": _sampled}
DRAWN |= {op: partial(_recurrent, op) for op in ("GRU", "LSTM", "RNN")}
SOMETIMES = {
    "Col2Im": "two spatial axes",
    "AveragePool": "dilated|uneven padding", "BatchNormalization": "it trains", "BitShift": "uint", "Dropout": "trains",
    "ConvTranspose": "extents of its output", "CumSum": "no constant number", "DequantizeLinear": "uint16",
    "GRU": "before the product", "GridSample": "mode cubic", "MaxPool": "positions",
    "Pad": "no constant|not known", "QuantizeLinear": "uint16", "Range": "no constant number|computed",
    "Resize": "not known|antialiased", "Reshape": "not known",
    "Slice": "no constant", "Squeeze": "no constant", "Trilu": "no constant number", "Unsqueeze": "not known",
    **dict.fromkeys((op for op in INSTANCES if op.startswith("Reduce")), "no constant"),
}  # fmt: skip
"""Operators of which some applications cannot be written, and what the error says then."""


def _graph(instance: Instance, constants: bool) -> tuple[Graph, dict[str, np.ndarray]]:
    """One node; ``constants``: its inputs after the first are."""
    b = GraphBuilder()
    names: list[str | None] = []
    feeds: dict[str, np.ndarray] = {}
    for i, x in enumerate(instance.inputs):
        if x is None:
            names.append(None)
        elif constants and i:
            names.append(b.constant(x))
        else:
            feeds[f"i{i}"] = x
            names.append(b.input(f"i{i}", type_of_array(x).dtype, x.shape))
    found = b.op(instance.op, *names, outputs=instance.outputs, **instance.attributes)
    outputs = [found] if instance.outputs == 1 else found
    return b.finish({f"o{i}": v for i, v in enumerate(outputs)}), feeds


def _call(module: Any, graph: Graph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    with torch.no_grad():
        return [to_array(y) for y in module(*(to_tensor(np.array(feeds[v], order="C")) for v in graph.inputs))]


def _module_or_reason(graph: Graph) -> Any:
    try:
        return to_module(graph)
    except ModelError as error:
        return str(error)


def _check(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), what
    if expected.dtype.kind == "f":
        size = TOLERANCE[expected.dtype.itemsize]
        np.testing.assert_allclose(found, expected, size, size, err_msg=what)
    else:
        np.testing.assert_array_equal(found, expected, what)


def test_every_operator_that_we_define_can_be_written_and_every_writer_is_tried() -> None:
    assert set(INSTANCES) <= set(WRITERS)
    assert set(WRITERS) - set(DRAWN) == {"Constant"}


@pytest.mark.parametrize("op", sorted(DRAWN))
def test_modules_compute_what_the_definition_says(op: str) -> None:
    compared = 0
    for seed in range(TRIALS):
        instance = DRAWN[op](np.random.default_rng([seed, *op.encode()]))
        try:
            graph, feeds = _graph(instance, constants=bool(seed % 2))
        except EqsatError:  # a constant may show what a type does not: an operand out of range
            continue
        module = _module_or_reason(graph)
        if isinstance(module, str):
            assert re.search(SOMETIMES[op], module)
            continue
        expected = run(graph, feeds)
        for name, found in zip(graph.outputs, _call(module, graph, feeds), strict=True):
            _check(found, expected[name], f"trial {seed}: {instance.attributes}\n{module.code}")
        compared += 1
    assert compared


def _block(batch: int | str, length: int | str) -> Graph:
    """Attention of four heads behind three projections, and a norm."""
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", "float32", (batch, length, 32))
    heads = []
    for _ in range(3):
        w, bias = b.constant(rng.normal(size=(32, 32)), "float32"), b.constant(rng.normal(size=32), "float32")
        y = b.op("Reshape", b.op("Add", b.op("MatMul", x, w), bias), b.constant([0, 0, 4, 8], "int64"))
        heads.append(b.op("Transpose", y, perm=(0, 2, 1, 3)))
    scores = b.op("MatMul", heads[0], b.op("Transpose", heads[1], perm=(0, 1, 3, 2)))
    chances = b.op("Softmax", b.op("Mul", scores, b.constant(8**-0.5, "float32")), axis=-1)
    y = b.op("Transpose", b.op("MatMul", chances, heads[2]), perm=(0, 2, 1, 3))
    y = b.op("Add", b.op("Reshape", y, b.constant([0, 0, 32], "int64")), x)
    one, zero = b.constant(np.ones(32), "float32"), b.constant(np.zeros(32), "float32")
    return b.finish({"y": b.op("LayerNormalization", y, one, zero, axis=-1)})


def _functions(module: Any) -> list[str]:
    return [getattr(n.target, "__name__", n.target) for n in module.graph.nodes if n.op.startswith("call")]


def test_a_result_becomes_a_module_of_torch_with_its_fused_operators() -> None:
    graph = _block(2, 6)
    module = eqsat.optimize(graph, form="flat", verify=False).to_torch()
    called = _functions(module)
    assert {"linear", "scaled_dot_product_attention", "layer_norm"} <= set(called)
    assert not {"softmax", "exp"} & set(called)
    feeds = {"x": np.random.default_rng(1).normal(size=(2, 6, 32)).astype(np.float32)}
    _check(_call(module, graph, feeds)[0], run(graph, feeds)["y"], module.code)


def test_rotary_embeddings_keep_rows_before_heads() -> None:
    """Attention then writes its result so, which the next product reads as it is."""
    b = GraphBuilder()
    x, angles = b.input("x", "float32", (1, 4, 6, 8)), b.input("angles", "float32", (1, 6, 4))
    module = to_module(b.finish({"y": b.op("RotaryEmbedding", x, b.op("Cos", angles), b.op("Sin", angles))}))
    rows_first = torch.rand(1, 6, 4, 8).transpose(1, 2)
    (y,) = module(rows_first, torch.rand(1, 6, 4))
    assert y.stride() == rows_first.stride()


@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_as_many_heads_of_queries_as_of_keys_may_be_any_number(softcap: float) -> None:
    """Batch and heads may be one axis, as where a bias of positions has both."""
    b = GraphBuilder()
    q, k, v = (b.input(name, "float32", (1, "4*batch", 5, 8)) for name in "qkv")
    graph = b.finish({"y": b.op("Attention", q, k, v, softcap=softcap)})
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((1, 12, 5, 8)).astype(np.float32) for name in "qkv"}
    module = to_module(graph)
    _check(_call(module, graph, feeds)[0], run(graph, feeds)["y"], module.code)


def test_symbols_are_read_off_the_inputs() -> None:
    result = eqsat.optimize(_block("batch", "length"), form="flat", verify=False)
    module = result.to_torch()
    for batch, length in ((1, 1), (2, 7), (3, 4)):
        feeds = {"x": np.random.default_rng(length).normal(size=(batch, length, 32)).astype(np.float32)}
        _check(_call(module, result.original, feeds)[0], run(result.original, feeds)["y"], module.code)


def test_extents_that_are_computed_become_arithmetic_on_sizes() -> None:
    b = GraphBuilder()
    x, past = b.input("x", "float32", ("batch", "new", 6)), b.input("past", "float32", ("batch", "old", 6))
    joined = b.op("Concat", past, x, axis=1)
    length = b.op("Gather", b.op("Shape", joined), b.constant(1, "int64"))
    steps = b.op("Range", b.constant(0, "int64"), length, b.constant(1, "int64"))
    rows = b.op("Reshape", joined, b.constant([-1, 3], "int64"))
    doubled = b.op("Expand", b.op("Cast", steps, to=1), b.op("Shape", b.op("Transpose", joined, perm=(0, 2, 1))))
    graph = b.finish({"rows": rows, "doubled": doubled})
    module = to_module(graph)
    assert "tolist" not in module.code
    for new, old in ((2, 3), (1, 4)):
        feeds = {"x": np.ones((2, new, 6), np.float32), "past": np.zeros((2, old, 6), np.float32)}
        expected = run(graph, feeds)
        for name, found in zip(graph.outputs, _call(module, graph, feeds), strict=True):
            _check(found, expected[name], module.code)


def test_one_compiled_module_serves_all_sizes() -> None:
    result = eqsat.optimize(_block("batch", "length"), form="flat", verify=False)
    compiled = torch.compile(result.to_torch(), backend="aot_eager", dynamic=True, fullgraph=True)
    torch.compiler.reset()
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for length in (5, 7, 9):
            x = torch.randn(2, length, 32)
            expected = run(result.original, {"x": x.numpy()})["y"]
            _check(to_array(compiled(x)[0]), expected, "")


def test_inputs_and_outputs_keep_their_order_and_names() -> None:
    b = GraphBuilder()
    x, y = b.input("a.b", "float32", (2,)), b.input("1/c", "float32", (2,))
    graph = b.finish({"out.1": b.op("Sub", x, y), "a": b.op("Relu", x)})
    module = to_module(graph)
    assert (module.input_names, module.output_names) == (("a.b", "1/c"), ("out.1", "a"))
    difference, positive = module(torch.tensor([1.0, -2.0]), torch.tensor([3.0, 3.0]))
    assert difference.tolist() == [-2, -5]
    assert positive.tolist() == [1, 0]


def test_constants_are_buffers_of_their_own_that_move_with_the_module() -> None:
    b = GraphBuilder()
    w = np.ones((3, 4), np.float32)
    graph = b.finish({"y": b.op("MatMul", b.input("x", "float32", (2, 3)), b.constant(w, name="w"))})
    module = to_module(graph)
    assert list(module.state_dict()) == ["w"]
    module.w.zero_()
    assert graph.constants["w"].numpy().all()
    assert module.to(torch.float64)(torch.ones(2, 3, dtype=torch.float64))[0].dtype is torch.float64


def test_an_operator_that_torch_does_not_have_is_one_error_that_names_it() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2,))
    y = b.opaque("Mystery", x, types=[b.type_of(x)], domain="somewhere", reason="unknown")
    with pytest.raises(ModelError, match=r"torch: no operator of torch is known for somewhere::Mystery"):
        to_module(b.finish({"y": y[0]}))


def test_element_types_that_torch_has_no_operators_for_are_an_error() -> None:
    b = GraphBuilder()
    with pytest.raises(ModelError, match=r"value 'x' is uint32\[2\]"):
        to_module(b.finish({"y": b.op("Add", *[b.input("x", "uint32", (2,))] * 2)}))


def test_operators_of_other_domains_are_spelled_out() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3))
    graph = b.finish({"y": b.op("FastGelu", x, domain="com.microsoft")})
    assert _functions(to_module(graph)) == ["gelu"]


@pytest.mark.parametrize(
    ("more", "attributes", "said"),
    [
        ([np.array([5, 3], np.int32)], {}, "lengths of their own"),
        ([None, None, None, np.ones((1, 9), np.float32)], {}, "state of the cell"),
        ([], {"clip": 1.0}, "a clip"),
        ([], {"input_forget": 1}, "forgetting"),
        ([], {"activations": ("Sigmoid", "Relu", "Tanh")}, "activations are sigmoid, relu, tanh"),
    ],
)
def test_networks_that_torch_does_not_have_are_refused(more: list[Any], attributes: dict[str, Any], said: str) -> None:
    given = [np.ones(s, np.float32) for s in ((5, 2, 4), (1, 12, 4), (1, 12, 3), (1, 24))]
    graph, _ = _graph(Instance("LSTM", [*given, *more], {"hidden_size": 3, **attributes}, 3), constants=True)
    with pytest.raises(ModelError, match=rf"torch: LSTM .* cannot be written: .*{said}"):
        to_module(graph)


def test_a_network_may_be_rectified() -> None:
    network = torch.nn.RNN(4, 3, nonlinearity="relu")
    inner, outer, *biases = (p.detach() for p in network.parameters())
    given = [to_array(v[None]) for v in (inner, outer, torch.cat(biases))]
    x = torch.randn(5, 2, 4)
    node = Instance("RNN", [to_array(x), *given], {"hidden_size": 3, "activations": ("Relu",)}, 2)
    y, h = to_module(_graph(node, constants=True)[0])(x)
    expected = network(x)
    torch.testing.assert_close((y.squeeze(1), h), expected)


@pytest.mark.parametrize(
    ("network", "function"),
    [(torch.nn.LSTM, "lstm"), (torch.nn.GRU, "gru")],
)
def test_networks_of_layers_are_those_of_torch(network: Any, function: str) -> None:
    pytest.importorskip("onnxscript")
    module = network(4, 3, num_layers=2, bidirectional=True).eval()
    x = torch.randn(5, 2, 4)
    written = to_module(eqsat.optimize(module, example_inputs=(x,), form="flat", verify=False).original)
    assert _functions(written).count(function) == 2
    y, h = module(x)
    states = h if isinstance(h, tuple) else (h,)
    with torch.no_grad():
        torch.testing.assert_close(written(x), (y, *states))


def test_inductor_has_weights_as_constants_at_every_size() -> None:
    from torch._inductor.utils import run_and_get_code

    b = GraphBuilder()
    w = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    graph = b.finish({"y": b.op("Relu", b.op("MatMul", b.input("x", "float32", ("n", 16)), b.constant(w)))})
    loaded = Executable(graph, inductor=True)
    for rows in (3, 5):
        feeds = {"x": np.random.default_rng(rows).standard_normal((rows, 16)).astype(np.float32)}
        found, code = run_and_get_code(loaded, feeds)
        assert "_frozen_param" in code[0]
        np.testing.assert_allclose(found["y"], run(graph, feeds)["y"], rtol=1e-5, atol=1e-5)
        assert not run_and_get_code(loaded, feeds)[1], "compiled twice for one size"


@pytest.mark.parametrize(
    "indices",
    [[0, 1, 2], [1, 3, 5], [-1], [[0]], [[1, 2, 3], [3, 4, 5]], [[0, 2, 4], [1, 3, 5]], [[2], [4]], [[-3, -2]]],
    ids=str,
)
def test_steady_indices_are_views(indices: list[Any]) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 6, 3))
    graph = b.finish({"y": b.op("Gather", x, b.constant(np.array(indices)), axis=1)})
    module = to_module(graph)
    feeds = {"x": np.arange(36, dtype=np.float32).reshape(2, 6, 3)}
    found = _call(module, graph, feeds)[0]
    _check(found, run(graph, feeds)["y"], module.code)
    assert not list(module.buffers())


@pytest.mark.parametrize("indices", [[2, 1, 0], [0, 1, 3], [1, 1], [[0, 2], [2, 5]], [[0, 2], [2, 4]]], ids=str)
def test_other_indices_are_looked_up(indices: list[Any]) -> None:
    b = GraphBuilder()
    graph = b.finish({"y": b.op("Gather", b.input("x", "float32", (6, 2)), b.constant(np.array(indices)), axis=0)})
    module = to_module(graph)
    feeds = {"x": np.arange(12, dtype=np.float32).reshape(6, 2)}
    _check(_call(module, graph, feeds)[0], run(graph, feeds)["y"], module.code)
    assert list(module.buffers())


def test_inductor_takes_keys_for_what_they_are() -> None:
    """With as many heads as keys, its attention for ``softmax(q @ k.permute(0, 2, 3, 1) / s + m) @ v`` is wrong (torch 2.13)."""
    b = GraphBuilder()
    q, k, v = (b.input(name, "float32", (1, 8, 8, 16)) for name in "qkv")
    mask = b.input("m", "float32", (1, 1, 1, 8))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 2, 3, 1)))
    scores = b.op("Div", scores, b.constant(np.float32(4.0)))
    y = b.op("MatMul", b.op("Softmax", b.op("Add", scores, mask), axis=-1), v)
    graph = b.finish({"y": y})
    rng = np.random.default_rng(0)
    shapes = dict.fromkeys("qkv", (1, 8, 8, 16)) | {"m": (1, 1, 1, 8)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    _check(Executable(graph, inductor=True)(feeds)["y"], run(graph, feeds)["y"], "")


def _halves(b: GraphBuilder, x: str, how: str) -> tuple[str, str]:
    if how == "Split":
        first, last = b.op("Split", x, b.constant(np.array([2, 4])), axis=1, outputs=2)
        return first, last
    step = () if how == "Slice" else (b.constant(np.array([1])),)
    ends = [(0, 2), (2, 2**63 - 1)] if how == "Slice" else [(-6, -4), (-4, 6)]
    bounds = [(b.constant(np.array([s])), b.constant(np.array([e])), b.constant(np.array([1]))) for s, e in ends]
    first, last = (b.op("Slice", x, *bound, *step) for bound in bounds)
    return first, last


@pytest.mark.parametrize("how", ["Split", "Slice", "Slice from the end"])
@pytest.mark.parametrize("turned", [True, False])
def test_the_last_part_before_the_first_is_a_roll(how: str, turned: bool) -> None:
    b = GraphBuilder()
    halves = _halves(b, b.input("x", "float32", (3, 6)), how)
    graph = b.finish({"y": b.op("Concat", *(halves[::-1] if turned else halves), axis=1)})
    module = to_module(graph)
    feeds = {"x": np.arange(18, dtype=np.float32).reshape(3, 6)}
    _check(_call(module, graph, feeds)[0], run(graph, feeds)["y"], module.code)
    assert _functions(module)[-1] == ("roll" if turned else "cat")


def test_zero_points_are_added_to_more_digits_than_half_precision_has() -> None:
    b = GraphBuilder()
    x, scale, zero = b.input("x", "float16", (3,)), b.constant(np.float16(1)), b.constant(np.int16(1))
    graph = b.finish({"y": b.op("QuantizeLinear", x, scale, zero)})
    feeds = {"x": np.array([5000, -5000, 3], np.float16)}
    (found,) = _call(to_module(graph), graph, feeds)
    assert found.tolist() == run(graph, feeds)["y"].tolist() == [5001, -4999, 4]


def test_quotients_are_divided_by_tensors() -> None:
    """On CUDA a number is a reciprocal, which rounds otherwise."""
    b = GraphBuilder()
    x = b.input("x", "float32", (3,))
    y = b.op("QuantizeLinear", x, b.constant(np.float32(0.3)), b.constant(np.uint8(7)))
    results = y, *b.op("DynamicQuantizeLinear", x, outputs=3)
    module = to_module(b.finish({f"y{i}": v for i, v in enumerate(results)}))
    quotients = [n for n in module.graph.nodes if "div" in getattr(n.target, "__name__", "")]
    assert len(quotients) == 4
    assert all(isinstance(n.args[1], torch.fx.Node) for n in quotients)


@pytest.mark.parametrize("rows", [(3,), (20,), (2, 12), ("batch", 5), (0,)])
@pytest.mark.parametrize(("kind", "zero"), [("uint8", 128), ("uint8", 3), ("int8", None), ("int8", -7)])
@pytest.mark.parametrize("points", [None, 1, 24])
def test_bytes_are_multiplied_by_weights_as_bytes(
    rows: tuple[Any, ...], kind: str, zero: int | None, points: int | None
) -> None:
    rng = np.random.default_rng(5)
    b = GraphBuilder()
    x = b.input("x", kind, (*rows, 16))
    weights = b.constant(rng.integers(-100, 100, (16, 24)).astype(np.int8))
    more = [None if zero is None else b.constant(np.array(zero, kind))]
    more += [] if points is None else [b.constant(rng.integers(-20, 20, points).astype(np.int8))]
    graph = b.finish({"y": b.op("MatMulInteger", x, weights, *more)})
    module = to_module(graph)
    assert "_int_mm" in module.code
    shape = [4 if isinstance(n, str) else n for n in rows]
    limits = np.iinfo(kind)
    feeds = {"x": rng.integers(limits.min, limits.max, (*shape, 16), endpoint=True).astype(kind)}
    np.testing.assert_array_equal(_call(module, graph, feeds)[0], run(graph, feeds)["y"])
