"""Objects of PyTorch as sources: modules with example inputs, exported programs, ONNX programs. Needs the extra ``torch``."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.frontends.torch_export import exporting
from eqsat.ir.interpret import run

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

pytest.importorskip("torch.ao.quantization.fx._decomposed")  # registers operators

from eqsat.backends.torch_tensors import to_array, to_tensor  # noqa: E402

F = torch.nn.functional

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


class Block(torch.nn.Module):
    """A product, a spelled-out GELU and an optional sum."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: Any, y: Any = None) -> Any:
        h = self.linear(x)
        h = self.dropout(h * 0.5 * (1 + torch.erf(h / 2**0.5)))
        return h if y is None else h + y


@pytest.fixture
def block() -> Any:
    torch.manual_seed(0)
    return Block().eval()


def _check(result: eqsat.Result, block: Any, *inputs: Any) -> None:
    feeds = dict(zip(result.original.inputs, (t.numpy() for t in inputs), strict=True))
    (found,) = result.program.run(feeds).values()
    np.testing.assert_allclose(found, block(*inputs).detach().numpy(), atol=1e-6)
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    assert result.report.recognized == {"gelu": 1}


def test_a_module_is_optimised_with_example_inputs(block: Any) -> None:
    x = torch.randn(2, 8)
    _check(eqsat.optimize(block, form="flat", example_inputs=(x,)), block, x)
    _check(eqsat.optimize(block, form="flat", example_inputs=x), block, x)
    _check(eqsat.optimize(block, form="flat", example_inputs={"x": x, "y": x}), block, x, x)


def test_dimensions_that_vary_keep_their_names(block: Any) -> None:
    shapes = {"x": {0: torch.export.Dim("batch")}}
    result = eqsat.optimize(block, form="flat", example_inputs=(torch.randn(2, 8),), dynamic_shapes=shapes)
    assert str(result.original.type_of("x")) == "float32[batch, 8]"
    for rows in (1, 5):
        _check(result, block, torch.randn(rows, 8))
    fixed = eqsat.load(block, {"batch": 3}, example_inputs=(torch.randn(2, 8),), dynamic_shapes=shapes)
    assert str(fixed.type_of("x")) == "float32[3, 8]"


def test_exported_programs_and_onnx_programs_are_sources(block: Any) -> None:
    x = torch.randn(2, 8)
    exported = torch.export.export(block, (x,))
    _check(eqsat.optimize(exported, form="flat"), block, x)
    _check(eqsat.optimize(torch.onnx.export(exported, dynamo=True, verbose=False), form="flat"), block, x)


def test_a_compiled_module_is_the_module_inside(block: Any) -> None:
    x = torch.randn(2, 8)
    _check(eqsat.optimize(torch.compile(block), form="flat", example_inputs=x), block, x)


def test_a_result_takes_and_returns_tensors(block: Any) -> None:
    x = torch.randn(2, 8)
    (found,) = eqsat.optimize(block, example_inputs=x)(x).values()
    torch.testing.assert_close(found, block(x), atol=1e-6, rtol=1e-5)


def test_comparing_and_explaining_take_modules_too(block: Any) -> None:
    from eqsat.why import explain

    x = torch.randn(2, 8)
    assert eqsat.compare(block, cost=["kernels"], example_inputs=x).rows
    assert explain(block, rule="recognise_gelu", example_inputs=x).uses


class Applied(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


SIGNED = torch.tensor([0.0, -0.0, 2.0, -2.0, 3e38])
WITH_NAN = torch.tensor([0.0, -3.0, torch.nan, 5.0])
BYTES = torch.tensor([[3, 200, 0], [7, 129, 255]], dtype=torch.uint8)
LARGE = torch.tensor([2**40 + 1, -7, 2**60 + 5])
PLACES = torch.tensor([[0, 1, 1], [1, 1, 2]])


def _smaller(mode: str, factor: tuple[float, float]) -> Any:
    return lambda x: F.interpolate(x, scale_factor=factor, mode=mode, antialias=True)


def _bags(mode: str, *, weighted: bool = False, **options: Any) -> Any:
    indices = PLACES.flatten()
    own = torch.arange(6.0) if weighted else None
    return lambda ends, table: F.embedding_bag(
        indices.to(ends.dtype), table, ends, mode=mode, per_sample_weights=own, **options
    )


def _written_over(x: Any) -> Any:
    grid = torch.zeros(2, 3, 4)
    grid[..., 0].copy_(x[0])
    return grid


def _quantised(least: int, most: int, dtype: Any, scale: float | None = None) -> Any:
    """What quantised graphs of torch hold: a round trip to integers, by a scale of its own or, without one, of the values."""
    own = torch.ops.quantized_decomposed

    def function(x: Any) -> Any:
        if scale is not None:
            integers = own.quantize_per_tensor(x, scale, 3, least, most, dtype)
            return own.dequantize_per_tensor(integers, scale, 3, least, most, dtype)
        given = (*own.choose_qparams.tensor(x, least, most, 2**-12, dtype), least, most, dtype)
        return own.dequantize_per_tensor.tensor(own.quantize_per_tensor.tensor(x, *given), *given)

    return function


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: x.index_add(0, torch.arange(2), x), [torch.arange(6).reshape(2, 3)]),
        (lambda x: x.index_put((torch.arange(2),), x * 3, accumulate=True), [torch.ones(2, 3)]),
        (torch.atan2, [SIGNED[:, None], SIGNED]),
        (torch.atan2, [torch.arange(-1, 2)[:, None], torch.arange(-1, 2)]),
        (F.logsigmoid, [torch.tensor([-200.0, -9.0, 0.0, 9.0])]),
        (lambda x: x.softmax(-1, torch.float32), [torch.linspace(-4, 4, 12).reshape(2, 6).half()]),
        (lambda x: F.softmax(x, dim=0, dtype=torch.float32), [torch.arange(3)]),
        (lambda x: x.log_softmax(0, dtype=torch.float32), [torch.linspace(-4, 4, 6).half()]),
        (lambda x: x.sum(dtype=torch.float32), [torch.full((9, 100), 100.0).half()]),
        (lambda x: x.sum(1, dtype=torch.float32), [torch.full((9, 1000), 100.0).half()]),
        (lambda x: x.sum((0, 1), keepdim=True, dtype=torch.int32), [torch.full((3, 2), 100, dtype=torch.int8)]),
        (lambda x: x.mean(1, dtype=torch.float32), [torch.linspace(0, 1, 12).reshape(2, 6).half()]),
        (lambda x: x.mean(0), [torch.empty(0, 3)]),
        (lambda x: x.mean(), [torch.empty(0, 3)]),
        (lambda x: x.amax() - x.amin(keepdim=True), [torch.randn(2, 3)]),
        (lambda x: F.avg_pool2d(x, (3, 2), 2, 1, False, False, 5), [torch.randn(1, 2, 6, 6)]),
        (lambda x: F.avg_pool3d(x, 2, divisor_override=5), [torch.randn(1, 2, 4, 4, 4)]),
        (torch.copysign, [SIGNED[:, None], SIGNED]),
        (torch.fmax, [WITH_NAN[:, None], WITH_NAN]),
        (torch.fmin, [WITH_NAN[:, None], WITH_NAN]),
        (
            torch.logaddexp,
            [torch.tensor([100.0, -200.0, torch.inf, -torch.inf]), torch.tensor([100.0, -300.0, 1.0, 2.0])],
        ),
        (torch.logaddexp2, [torch.tensor([200.0, -torch.inf]), torch.tensor([199.0, -torch.inf])]),
        (lambda x: torch.div(x, 3, rounding_mode="trunc"), [LARGE]),
        (lambda x, y: torch.div(x, y, rounding_mode="floor"), [LARGE, torch.tensor([3, 2, -3])]),
        (lambda x: x % 0.1, [torch.arange(0, 10, 0.5)]),
        (torch.remainder, [torch.tensor([7.5, -7.5, 1e8]), torch.tensor([-2.0, 2.0, 0.3])]),
        (lambda x: x.floor() + x.ceil() + x.round() + x.trunc(), [LARGE]),
        (lambda x: x << 1, [BYTES]),
        (lambda x: x >> 1, [BYTES]),
        (torch.diagonal, [torch.tensor([[1.0, torch.inf], [torch.nan, 8.0]])]),
        (lambda x: x.diagonal(-1, 2, 0), [torch.arange(24.0).reshape(3, 2, 4)]),
        (lambda x: x.diagonal(7), [torch.ones(3, 4)]),
        (torch.searchsorted, [torch.tensor([0.0, 1.0, 1.0, 5.0]), WITH_NAN]),
        (
            lambda a, x: torch.searchsorted(a, x, right=True),
            [torch.arange(12).reshape(2, 6), torch.tensor([[3, 4], [5, 99]])],
        ),
        (lambda x: x.sort(descending=True, stable=True)[1], [torch.tensor([2, 1, 2, 1, 0])]),
        (lambda i, x: torch.ones(3, 3).scatter_reduce(0, i, x, "mean"), [PLACES, torch.randn(2, 3)]),
        (
            lambda i, x: torch.ones(3, 3).scatter_reduce(0, i, x, "mean", include_self=False),
            [PLACES, torch.randn(2, 3)],
        ),
        (
            lambda i, x: torch.ones(3, 3).scatter_reduce(0, i, x - torch.inf, "amax", include_self=False),
            [PLACES, torch.randn(2, 3)],
        ),
        (
            lambda i, x: torch.ones(3, 3).scatter_reduce(0, i, x + torch.inf, "amin", include_self=False),
            [PLACES, torch.randn(2, 3)],
        ),
        (lambda i, x: torch.ones(3, 3).half().scatter_add(0, i, x), [PLACES, torch.arange(6.0).reshape(2, 3).half()]),
        (
            lambda i, x: x.index_put((i,), x[:2], accumulate=True),
            [PLACES[0, :2], torch.arange(6.0).reshape(3, 2).half()],
        ),
        (
            lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            [torch.arange(3, dtype=torch.uint8).reshape(1, 1, 1, 3)],
        ),
        (lambda x: x / (x + 1e-8), [torch.zeros(3)]),
        (lambda x: x * 1.000009, [torch.ones(3)]),
        (lambda x: x // 0.1, [torch.arange(0, 10, 0.5)]),
        (lambda x, y: torch.div(x, y, rounding_mode="floor"), [SIGNED[:, None], torch.tensor([0.0, 0.3, -7.0])]),
        (lambda x, y: torch.div(x, y, rounding_mode="floor"), [LARGE.int(), torch.tensor([3, 2, -3]).int()]),
        (lambda x: x // 0.5, [torch.arange(3)]),
        (lambda x: torch.rsub(x, 1.5, alpha=2), [torch.arange(3)]),
        (torch.pow, [torch.arange(3), torch.tensor([0.5, 0.5, -1.5])]),
        (_quantised(0, 127, torch.uint8, 0.25), [torch.linspace(-50, 50, 9)]),
        (_quantised(-8, 7, torch.int8, 0.25), [torch.linspace(-50, 50, 9)]),
        (_quantised(0, 255, torch.uint8), [torch.linspace(-3, 5, 9)]),
        (_quantised(-127, 127, torch.int8), [torch.linspace(1, 5, 9).reshape(3, 3)]),
        (_quantised(0, 255, torch.uint8), [torch.linspace(-3, 5, 9) * 1e-3]),
        (lambda x: x @ x.T - x[:, :2] ** 2, [BYTES]),
        (lambda x: x.cumsum(1, dtype=torch.uint8) + x.relu() - x.clamp(5, 190), [BYTES]),
        (lambda x: x + x.flip(1), [BYTES > 100]),
        (lambda x: F.max_pool2d(x[None], 2), [BYTES.int()]),
        (torch.ops.aten._is_all_true, [BYTES > 100]),
        (torch.ops.aten._is_any_true, [BYTES > 100]),
        (lambda n, x: torch.multiply(n, x) + torch.subtract(x, n, alpha=2), [LARGE, torch.randn(3)]),
        (lambda n, x: torch.divide(n, 2) + torch.divide(n, n) + torch.divide(x, n), [PLACES + 1, torch.randn(3)]),
        (lambda n, x: (torch.less(n, x) | torch.greater_equal(x, n)) & n.not_equal(x), [PLACES, torch.randn(3) * 2]),
        (lambda x: x.isfinite(), [LARGE]),
        (_written_over, [torch.randn(2, 3)]),
        (lambda x, i: x[i, :, i + 1], [torch.randn(2, 3, 4), torch.tensor([1, 0]).int()]),
        (lambda x: torch.searchsorted(x, x.mean()), [torch.randn(7).sort().values]),
        (lambda x: x * torch.div(x.shape[1], 3, rounding_mode="floor"), [torch.randn(2, 7)]),
        (_smaller("bilinear", (0.4, 0.7)), [torch.randn(1, 2, 9, 7)]),
        (_smaller("bicubic", (0.4, 0.7)), [torch.randn(1, 2, 9, 7)]),
        (lambda i, w: F.embedding_bag(i, w, mode="sum"), [PLACES, torch.randn(3, 4)]),
        (_bags("sum"), [torch.tensor([0, 2, 2, 4]), torch.randn(3, 4)]),
        (_bags("mean"), [torch.tensor([0, 2, 2, 4]).int(), torch.randn(3, 4)]),
        (_bags("max"), [torch.tensor([0, 2, 2, 6]), torch.randn(3, 4)]),
        (_bags("sum", weighted=True), [torch.tensor([0, 2, 2, 4]), torch.randn(3, 4)]),
        (_bags("mean", padding_idx=1), [torch.tensor([0, 2, 2, 4]), torch.randn(3, 4)]),
        (_bags("max", padding_idx=1, include_last_offset=True), [torch.tensor([0, 2, 2, 6]), torch.randn(3, 4)]),
    ],
    ids=[
        *("added-integers", "added", "angle", "angle-of-integers", "log-sigmoid", "softmax", "softmax-of-integers"),
        *("log-softmax", "sum", "sum-of-axis", "sum-of-bytes", "mean", "mean-of-none", "mean-of-nothing"),
        *("range", "average-by", "average-by-of-volumes", "sign", "larger", "smaller", "log-of-sum", "log-of-sum-2"),
        *("quotient", "quotient-down", "remainder-of-number", "remainder", "whole", "left", "right", "diagonal"),
        *(
            "diagonal-below",
            "no-diagonal",
            "searched",
            "searched-behind",
            "stable",
            "scattered-mean",
            "mean-of-scattered",
            "largest-of-scattered",
            "smallest-of-scattered",
        ),
        *(
            "scattered-half",
            "put-half",
            "interpolated-bytes",
            *(
                "beside-zero",
                "almost-one",
                "quotient-down-of-floats",
                "quotient-down-of-signs",
                "quotient-down-of-ints",
            ),
            *("quotient-of-integers", "difference", "power"),
            *("seven-bits", "four-bits", "bits-of-values", "bits-of-signed-values", "bits-of-small-values"),
            "products-of-bytes",
            "sums-of-bytes",
            "or",
            "pool-of-integers",
            "all-true",
            "any-true",
            *("other-names", "other-names-of-quotients", "other-names-of-comparisons"),
            *(
                "finite-integers",
                "written-over",
                "places-of-32-bits",
                "searched-for-one",
                "quotient-of-extents",
                "smaller",
                "smaller-cubic",
            ),
            *("bags-of-rows", "bags", "bags-mean", "bags-largest", "bags-weighted", "bags-padded", "bags-to-the-last"),
        ),
    ],
)
def test_what_torch_exports_otherwise_than_it_computes(function: Any, inputs: Any) -> None:
    result = eqsat.optimize(Applied(function).eval(), example_inputs=inputs)
    (found,) = result(*inputs).values()
    (meant,) = run(result.original, dict(zip(result.original.inputs, map(to_array, inputs), strict=True))).values()
    for value in (found, to_tensor(meant)):  # kernels may do better than what is exported means
        torch.testing.assert_close(value, function(*inputs), atol=1e-6, rtol=1e-6, equal_nan=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 0.1,
        lambda x: x.masked_fill(x > 0.3, 0.1),
        lambda x: torch.addcmul(x, x, x, value=0.1),
        lambda x: x + torch.full((3, 4), 0.1, dtype=torch.float64),
        lambda x: torch.atan2(x, -x.abs()),
        lambda x: torch.log2(x.abs()) + torch.log10(x.abs()),
        lambda x: torch.logaddexp2(x, 2 * x),
        lambda x: torch.cdist(x, x[:2], p=3.1),
        torch.sinc,
        torch.deg2rad,
    ],
    ids=["added", "filled", "factor", "full", "angle", "logarithms", "log-of-sum-2", "distances", "sinc", "degrees"],
)
def test_numbers_beside_doubles_have_all_their_digits(function: Any) -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    result = eqsat.optimize(Applied(function).eval(), example_inputs=(x,), verify=False)
    for graph in (result.original, result.program.graph):
        (found,) = run(graph, {graph.inputs[0]: x.numpy()}).values()
        torch.testing.assert_close(to_tensor(found), function(x), atol=1e-13, rtol=1e-13)


NOTHING = torch.empty(0, 3)
RUNS = torch.tensor(
    [[0.0, -3.0, torch.nan, 5.0, 2.0], [1.0, 1.0, 1.0, -torch.inf, 1.0], [torch.inf, 2.0, 2.0, 3.0, 3.0]]
)
FAR_APART = torch.tensor([[-200.0, 0.0, 3.0], [-torch.inf, -torch.inf, 1.0]])
SIDES = torch.tensor([3.0, 1e30, 0.0, torch.inf, torch.nan, 1e-30])


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: (x > 0).any(), [NOTHING]),
        (lambda x: x.any(0), [NOTHING]),
        (lambda x: x.any(dim=(0, 1)), [NOTHING]),
        (lambda x: x.var(0), [NOTHING]),
        (lambda x: x.std(), [NOTHING]),
        (lambda x: x.var(0, correction=5), [RUNS[:, 3:]]),
        (F.mse_loss, [NOTHING, NOTHING]),
        (lambda x: F.mse_loss(x, x, reduction="sum"), [NOTHING]),
        (lambda x: x.logcumsumexp(1), [FAR_APART]),
        (lambda x: x.cumprod(1), [RUNS]),
        (lambda x: x.cumprod(0), [PLACES.int()]),
        *((lambda x, k=k: x.cummax(1)[k], [RUNS]) for k in (0, 1)),
        *((lambda x, k=k: x.cummin(0)[k], [PLACES]) for k in (0, 1)),
        (lambda x: x.median(), [RUNS[1:]]),
        (lambda x: x.median(), [BYTES]),
        (lambda x: x.median(1, keepdim=True)[0], [RUNS]),
        (lambda x: x.median(1)[1], [torch.tensor([[3, 1, 2, 7], [5, 4, 9, 0]])]),
        *((lambda x, k=k: x.kthvalue(k, 1)[0], [RUNS]) for k in (2, 5)),
        (lambda x: x.kthvalue(2)[1], [BYTES.long()]),
        (lambda x: torch.cdist(x, x[:2] + 1, 1), [torch.randn(4, 3)]),
        (lambda x: torch.cdist(x, x[:2] + 1, torch.inf), [torch.randn(4, 3)]),
        (lambda x: torch.cdist(x, x[:2] + 1, 3), [torch.randn(4, 3)]),
        (torch.hypot, [SIDES[:, None], SIDES]),
        (torch.erfinv, [torch.tensor([-1.0, -0.9999, -0.3, 0.0, 1e-20, 0.999999, 1.0, 1.5])]),
        (torch.erfinv, [torch.tensor([-0.99, 0.0, 0.5]).half()]),
        (lambda x: x.index_reduce(0, torch.tensor([2, 2]), x[:2], "mean"), [torch.randn(3, 3)]),
        (lambda x: x.index_reduce(1, torch.tensor([2, 0]), x[:, :2], "amax", include_self=False), [torch.randn(3, 3)]),
    ],
    ids=[
        *("any", "any-of-axis", "any-of-axes", "variance", "deviation", "corrected", "error", "sum-of-errors"),
        *("logs", "products", "products-of-integers", "largest", "last-largest", "smallest", "last-smallest"),
        *("median", "median-of-bytes", "median-of-axis", "place-of-median", "second", "fifth", "place-of-second"),
        *(
            "distance-1",
            "distance-most",
            "distance-3",
            "hypotenuse",
            "inverse-error",
            "inverse-error-of-half",
            "mean-of-index",
            "largest-of-index",
        ),
    ],
)
def test_reductions_of_nothing_running_ones_and_elements_by_size_are_as_in_torch(function: Any, inputs: Any) -> None:
    test_what_torch_exports_otherwise_than_it_computes(function, inputs)


ROWS, WEIGHTS, POSITIVE = torch.randn(2, 4, 6), torch.randn(4), torch.rand(4) + 0.5


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (torch.abs, [ROWS.half()]),
        (lambda x: x.sum(1), [ROWS.half()]),
        (lambda x: x.cumsum(1), [ROWS.half()]),
        (lambda x: (x > 0).to(torch.uint8).all(1), [ROWS]),
        (lambda x: F.layer_norm(x, (4,), WEIGHTS, POSITIVE), [ROWS[:, :, :4].half()]),
        (lambda x: F.group_norm(x, 2, WEIGHTS, POSITIVE), [ROWS.bfloat16()]),
        (lambda x: F.instance_norm(x, weight=WEIGHTS, bias=POSITIVE), [ROWS.half()]),
        (lambda x: x.topk(2).values, [ROWS.bfloat16()]),
    ],
    ids=["magnitude", "sum", "sums", "all", "layer-norm", "group-norm", "instance-norm", "largest"],
)
def test_outputs_have_the_types_that_they_have_in_torch(function: Any, inputs: Any) -> None:
    (found,) = eqsat.optimize(Applied(function).eval(), example_inputs=inputs)(*inputs).values()
    torch.testing.assert_close(found, function(*inputs), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_value_may_be_several_outputs(dtype: Any) -> None:
    def function(x: Any) -> Any:
        y, z = x + 1, x.abs()
        return y, z, y, z

    x = torch.randn(3, 4).to(dtype)
    result = eqsat.optimize(Applied(function).eval(), example_inputs=x)
    torch.testing.assert_close(tuple(result(x).values()), function(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("stack", [torch.hstack, torch.vstack, torch.dstack, torch.column_stack])
def test_stacks_are_no_sequences(stack: Any, dtype: Any) -> None:
    x, y = torch.randn(3).to(dtype), torch.randn(3).to(dtype)
    result = eqsat.optimize(Applied(lambda x, y: stack([x, y])).eval(), example_inputs=(x, y))
    assert {n.key for n in result.original.nodes} <= {"Reshape", "Concat", "Identity"}
    torch.testing.assert_close([*result(x, y).values()], [stack([x, y])])


class Named(torch.nn.Module):
    def forward(self, x: Any, given: Any = None, a: Any = None) -> Any:
        return x * 2 if given is None else x - given["a"]


def test_a_mapping_at_the_end_is_an_argument_by_position() -> None:
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    result = eqsat.optimize(Named().eval(), example_inputs=(x, {"a": y}))
    torch.testing.assert_close([*result(x, y).values()], [x - y])


@pytest.mark.parametrize("option", ["example_inputs", "dynamic_shapes"])
def test_inputs_and_shapes_of_a_program_are_its_own(option: str, block: Any) -> None:
    program, options = torch.export.export(block, (torch.randn(2, 8),)), dict[str, Any]({option: (torch.randn(2, 8),)})
    with pytest.raises(eqsat.OptionError, match=f"{option}: an ExportedProgram has inputs and shapes already"):
        eqsat.optimize(program, **options)


def test_a_running_product_along_an_axis_of_unknown_extent_is_refused_by_name() -> None:
    shapes = (({1: torch.export.Dim("length", min=2)},),)
    with pytest.raises(eqsat.ModelError, match="a running reduction along an axis whose extent is not known"):
        eqsat.optimize(
            Applied(lambda x: x.cumprod(1)).eval(), example_inputs=(torch.randn(2, 5),), dynamic_shapes=shapes
        )


class Branching(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.count.add_(1)
        return x * self.count


class Strided(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.t().as_strided((2, 2), (1, 2)) * 2


def _in_part_in_training() -> Any:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(8)).eval()
    model[0].train()
    return model


class Numbers(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x + 1, x.shape[0], None, 2.5


def _dropping_out() -> Any:
    model = Block().eval()
    model.dropout.train()
    return model


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        (_dropping_out, {"example_inputs": torch.randn(2, 8)}, "dropout is active.*with all its parts"),
        (lambda: torch.export.export(Block(), (torch.randn(2, 8),)), {}, "dropout is active"),
        (
            lambda: Numbers().eval(),
            {"example_inputs": torch.randn(2)},
            r"returns 2, 2\.5, and models return tensors alone",
        ),
        (lambda: Counting().eval(), {"example_inputs": torch.randn(2)}, r"writes to its buffers \(count\)"),
        (lambda: torch.export.export(Counting().eval(), (torch.randn(2),)), {}, r"writes to its buffers \(count\)"),
        (_in_part_in_training, {"example_inputs": torch.randn(2, 8)}, r"writes to its buffers \(0.num_batches"),
        (lambda: Block().eval(), {}, "give example_inputs"),
        (Block, {"example_inputs": torch.randn(2, 8)}, r"training mode; call its eval\(\) first"),
        (
            lambda: torch.export.export(Block().eval(), (torch.randn(2, 8),)).module(),
            {"example_inputs": torch.randn(2, 8)},
            "of what torch.export returned, give the ExportedProgram",
        ),
        (lambda: Block().eval(), {"example_inputs": torch.randn(2, 7)}, r"cannot export it: .*\[2, 7\]"),
        (
            lambda: Strided().eval(),
            {"example_inputs": torch.randn(2, 7)},
            "as_strided of .*, whose elements do not lie in rows",
        ),
        (lambda: Branching().eval(), {"example_inputs": torch.randn(2, 7)}, "cannot export it: .*data-dependent"),
        (
            lambda: Applied(
                lambda x: F.interpolate(x, (3, 3), mode="bilinear", antialias=True, align_corners=True)
            ).eval(),
            {"example_inputs": torch.randn(1, 1, 7, 7)},
            "cannot export it: .*antialiasing with aligned corners",
        ),
        (
            lambda: Applied(lambda x, mean, var: F.batch_norm(x, mean, var, training=True)).eval(),
            {"example_inputs": (torch.randn(2, 3), torch.zeros(3), torch.ones(3))},
            "a batch norm takes the statistics of its input",
        ),
        (lambda: torch.jit.script(torch.nn.ReLU()).eval(), {"example_inputs": torch.randn(2)}, "TorchScript"),
        (lambda: torch.randn(2), {}, "expected a Module, an ExportedProgram or an ONNXProgram, got Tensor"),
    ],
)
def test_what_cannot_be_exported_is_one_line(source: Any, options: Any, said: str) -> None:
    with pytest.raises(eqsat.ModelError, match=said) as error:
        eqsat.optimize(source(), **options)
    assert "\n" not in str(error.value)


def test_a_dropout_of_nothing_is_not_active() -> None:
    model = _dropping_out()
    model.dropout.p = 0.0
    _check(eqsat.optimize(model, example_inputs=(x := torch.randn(2, 8),)), model, x)


def test_dimensions_that_torch_does_not_let_vary_are_named(block: Any) -> None:
    batch, width = torch.export.Dim("batch"), torch.export.Dim("width")
    with pytest.warns(UserWarning, match=r"asks for width, which .* exports x as \[batch,8\]"):
        result = eqsat.optimize(block, example_inputs=(torch.randn(2, 8),), dynamic_shapes={"x": {0: batch, 1: width}})
    assert str(result.original.type_of("x")) == "float32[batch, 8]"


@pytest.mark.filterwarnings("error:eqsat")
@pytest.mark.parametrize(
    "extent", [torch.export.Dim("batch"), torch.export.Dim.DYNAMIC, torch.export.Dim.AUTO, "batch"]
)
def test_dimensions_that_vary_as_asked_for_are_not_named(extent: Any, block: Any) -> None:
    eqsat.optimize(block, example_inputs=(torch.randn(2, 8),), dynamic_shapes={"x": {0: extent}})


def _writing(x: Any, y: Any) -> Any:
    x.add_(y)
    return x * 2


@pytest.mark.parametrize("exported", [False, True])
def test_inputs_that_a_module_writes_to_are_named(exported: bool) -> None:
    module, inputs = Applied(_writing).eval(), (torch.ones(3), torch.ones(3))
    source = torch.export.export(module, inputs) if exported else module
    with pytest.warns(UserWarning, match=r"writes to its inputs \(.*\), and a model does not"):
        result = eqsat.optimize(source, example_inputs=None if exported else inputs)
    (found,) = result(torch.ones(3), torch.ones(3)).values()
    torch.testing.assert_close(found, torch.full((3,), 4.0))


def test_torch_is_not_imported_for_other_sources() -> None:
    program = """
import sys, eqsat
from eqsat.backends.onnx_file import to_model
b = eqsat.GraphBuilder()
graph = b.finish({"y": b.op("Relu", b.input("x", "float32", (2,)))})
eqsat.optimize(graph), eqsat.load(to_model(graph))
sys.exit("torch" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_export_is_silent_and_leaves_what_others_say_alone(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def say(what: str) -> None:
        print(what)
        print(what, file=sys.stderr)
        logging.getLogger("mine").warning(what)

    with exporting("block"):
        print("own")
        logging.getLogger("torch.onnx").error("own")
        other = threading.Thread(target=say, args=("other",))
        other.start()
        other.join()
    assert capsys.readouterr() == ("other\n", "other\n")
    logging.getLogger("torch.onnx").error("later")
    assert [record.message for record in caplog.records] == ["other", "later"]
