"""Spelled-out activations, normalisations and softmax: every usual spelling is one operator, what only looks alike is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph_checks import counts, optimized

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run

Spelling = Callable[..., Any]
TO_GELU = math.sqrt(2 / math.pi)


class Terms:
    """Applies operators by attribute: ``t.Add(x, 1.0)``. Numbers and arrays become float32 constants, lists int64 ones."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder

    def __getattr__(self, op: str) -> Callable[..., Any]:
        def apply(*inputs: Any, **attributes: Any) -> Any:
            return self._builder.op(op, *map(self._value, inputs), **attributes)

        return apply

    def _value(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        return self._builder.constant(np.asarray(value, np.int64 if isinstance(value, list) else np.float32))


def graph_of(spelling: Spelling, shape: tuple[Any, ...] = (2, 3, 4), dtype: str = "float32") -> Graph:
    b = GraphBuilder()
    return b.finish([spelling(Terms(b), b.input("x", dtype, shape))])


def found(spelling: Spelling, shape: tuple[Any, ...] = (2, 3, 4), dtype: str = "float32") -> dict[str, int]:
    return counts(optimized(graph_of(spelling, shape, dtype)))


# --- Gelu ----------------------------------------------------------------------------------------------------------------


def _erf(t: Any, x: str) -> str:
    return str(t.Erf(t.Div(x, math.sqrt(2))))


def _tanh(t: Any, x: str) -> str:
    cubic = t.Mul(t.Pow(x, 3.0), 0.044715)
    return str(t.Tanh(t.Mul(t.Add(x, cubic), TO_GELU)))


def _tanh_of_products(t: Any, x: str) -> str:
    cubic = t.Mul(0.044715, t.Mul(x, t.Mul(x, x)))
    return str(t.Tanh(t.Mul(TO_GELU, t.Add(cubic, x))))


def _tanh_by_factors(t: Any, x: str) -> str:
    return str(t.Tanh(t.Mul(t.Mul(x, TO_GELU), t.Add(1.0, t.Mul(t.Mul(x, 0.044715), x)))))


OUTER: dict[str, Spelling] = {
    "half of the product": lambda t, x, y: t.Mul(t.Mul(x, t.Add(y, 1.0)), 0.5),
    "half of the value": lambda t, x, y: t.Mul(t.Mul(0.5, x), t.Add(1.0, y)),
    "half of the gate": lambda t, x, y: t.Mul(t.Mul(t.Add(y, 1.0), 0.5), x),
    "divided by two": lambda t, x, y: t.Div(t.Mul(x, t.Add(y, 1.0)), 2.0),
    "constants of one element": lambda t, x, y: t.Mul(t.Mul(x, t.Add(y, np.ones(1))), np.full((1, 1), 0.5)),
}
INNER = {"erf": _erf, "tanh": _tanh, "tanh of products": _tanh_of_products, "tanh by factors": _tanh_by_factors}


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("outer", OUTER)
def test_spellings_of_gelu(outer: str, inner: str) -> None:
    graph = graph_of(lambda t, x: OUTER[outer](t, x, INNER[inner](t, x)))
    result = optimized(graph)
    assert counts(result) == {"Gelu": 1}
    (node,) = result.program.graph.nodes
    assert node.attributes["approximate"] == ("none" if inner == "erf" else "tanh")


def test_gelu_of_unknown_extents() -> None:
    assert found(lambda t, x: OUTER["half of the gate"](t, x, _erf(t, x)), ("n", "s", 4)) == {"Gelu": 1}


def test_approximate_gelu_as_a_gate() -> None:
    def spelling(t: Any, x: str) -> str:
        cubic = t.Mul(t.Pow(x, 3.0), 0.044715)
        return str(t.Mul(x, t.Sigmoid(t.Mul(t.Add(x, cubic), 2 * TO_GELU))))

    assert found(spelling) == {"Gelu": 1}


NOT_GELU: dict[str, Spelling] = {
    "sigmoid of 1.702 x": lambda t, x: t.Mul(x, t.Sigmoid(t.Mul(x, 1.702))),
    "silu": lambda t, x: t.Mul(x, t.Sigmoid(x)),
    "another divisor": lambda t, x: t.Mul(t.Mul(x, t.Add(t.Erf(t.Div(x, 1.41421)), 1.0)), 0.5),
    "another value": lambda t, x: t.Mul(t.Mul(x, t.Add(_erf(t, t.Relu(x)), 1.0)), 0.5),
    "another summand": lambda t, x: t.Mul(t.Mul(x, t.Add(_erf(t, x), 1.5)), 0.5),
    "another factor": lambda t, x: t.Mul(t.Mul(x, t.Add(_erf(t, x), 1.0)), 0.25),
    "a square": lambda t, x: t.Mul(x, t.Sigmoid(t.Mul(t.Add(x, t.Mul(t.Pow(x, 2.0), 0.044715)), 2 * TO_GELU))),
    "a constant with more axes": lambda t, x: t.Mul(t.Mul(x, t.Add(_erf(t, x), 1.0)), np.full((1, 1, 1, 1), 0.5)),
}


@pytest.mark.parametrize("name", NOT_GELU)
def test_other_functions_stay(name: str) -> None:
    assert "Gelu" not in found(NOT_GELU[name])


def test_softplus_that_leaves_large_values_is_softplus() -> None:
    """As PyTorch defines it, from 20 on; beside a smaller bound something is left of the logarithm."""

    def mish(bound: float) -> dict[str, int]:
        return found(lambda t, x: t.Mul(x, t.Tanh(t.Where(t.Greater(x, bound), x, t.Softplus(x)))))

    assert mish(20.0) == {"Mul": 1, "Softplus": 1, "Tanh": 1}
    assert mish(5.0)["Where"] == 1


def test_gelu_in_half_precision_is_one_operator_which_rounds_once() -> None:
    def spelling(t: Any, x: str) -> str:
        one, half, root = (t._builder.constant(np.float16(v)) for v in (1.0, 0.5, math.sqrt(2)))
        return str(t.Mul(t.Mul(x, t.Add(t.Erf(t.Div(x, root)), one)), half))

    report = eqsat.optimize(graph_of(spelling, dtype="float16"), form="flat").report
    assert report.operators_after == {"Gelu": 1}
    assert report.verification["verdict"] == "within tolerance"


# --- normalisations ------------------------------------------------------------------------------------------------------


def _square(t: Any, x: str, spelling: str) -> str:
    return str(t.Mul(x, x) if spelling == "product" else t.Pow(x, 2.0))


SCALED: dict[str, Spelling] = {
    "quotient": lambda t, x, v: t.Div(x, t.Sqrt(v)),
    "reciprocal": lambda t, x, v: t.Mul(t.Reciprocal(t.Sqrt(v)), x),
    "one over": lambda t, x, v: t.Mul(x, t.Div(1.0, t.Sqrt(v))),
    "power": lambda t, x, v: t.Mul(x, t.Pow(v, -0.5)),
    "quotient by power": lambda t, x, v: t.Div(x, t.Pow(v, 0.5)),
}
GAIN = np.random.default_rng(1).normal(size=4) + 2
SHIFT = np.random.default_rng(2).normal(size=4)


def _rms(t: Any, x: str, scaled: str = "quotient", square: str = "product", axes: Any = (-1,), eps: Any = 1e-6) -> str:
    mean = t.ReduceMean(_square(t, x, square), list(axes), keepdims=1)
    return str(SCALED[scaled](t, x, t.Add(mean, eps)))


def _layer(t: Any, x: str, scaled: str = "quotient", square: str = "product", axes: Any = (-1,)) -> str:
    return _rms(t, t.Sub(x, t.ReduceMean(x, list(axes), keepdims=1)), scaled, square, axes, 1e-5)


@pytest.mark.parametrize("square", ["product", "power"])
@pytest.mark.parametrize("scaled", SCALED)
def test_spellings_of_normalisations(scaled: str, square: str) -> None:
    assert found(lambda t, x: t.Mul(GAIN, _rms(t, x, scaled, square))) == {"RMSNormalization": 1}
    spelled = found(lambda t, x: t.Add(SHIFT, t.Mul(_layer(t, x, scaled, square), GAIN)))
    assert spelled == {"LayerNormalization": 1}


def test_axes_may_be_counted_from_either_end() -> None:
    """As PyTorch's exporter writes ``(x - x.mean(-1)) / x.var(-1).sqrt()``: the variance has a mean of its own."""

    def spelling(t: Any, x: str) -> str:
        own = t.Sub(x, t.ReduceMean(x, [2], keepdims=1))
        variance = t.ReduceMean(t.Mul(own, own), [2], keepdims=1)
        distance = t.Sub(x, t.ReduceMean(x, [-1], keepdims=1))
        return str(t.Add(t.Mul(t.Mul(GAIN, distance), t.Reciprocal(t.Sqrt(t.Add(variance, 1e-5)))), SHIFT))

    assert found(spelling) == {"LayerNormalization": 1}
    assert found(lambda t, x: t.Add(t.ReduceMax(x, [1]), t.ReduceMax(x, [-2]))) == {"Add": 1, "ReduceMax": 1}


def test_norm_without_epsilon() -> None:
    """Exporters of PyTorch drop an epsilon of 1e-8. Half precision then has no small squares, but the operator does."""

    def spelling(t: Any, x: str) -> str:
        return str(t.Mul(x, t.Reciprocal(t.Sqrt(t.ReduceMean(t.Pow(x, 2.0), [-1], keepdims=1)))))

    assert found(lambda t, x: t.Mul(GAIN, spelling(t, x)), ("n", "s", 4)) == {"RMSNormalization": 1}
    half = eqsat.optimize(graph_of(spelling, dtype="float16"), verify=False)
    assert "RMSNormalization" not in half.report.operators_after


def test_gain_beside_the_root() -> None:
    def spelling(t: Any, x: str) -> str:
        mean = t.ReduceMean(t.Mul(x, x), [-1], keepdims=1)
        return str(t.Mul(x, t.Mul(t.Reciprocal(t.Sqrt(t.Add(mean, 1e-6))), GAIN)))

    assert found(spelling) == {"RMSNormalization": 1}


def test_mean_behind_the_gain() -> None:
    def spelling(t: Any, x: str) -> str:
        mean = t.ReduceMean(x, [-1], keepdims=1)
        distance = t.Sub(x, mean)
        root = t.Sqrt(t.Add(t.ReduceMean(t.Mul(distance, distance), [-1], keepdims=1), 1e-3))
        gain = t.Mul(t.Reciprocal(root), GAIN)
        return str(t.Add(t.Mul(x, gain), t.Sub(SHIFT, t.Mul(mean, gain))))

    assert found(spelling) == {"LayerNormalization": 1}


def test_mean_over_the_last_of_three_axes_may_be_a_pool() -> None:
    """tf2onnx writes it so, as Keras normalises: the mean is scaled apart from what it is the mean of."""

    def keras(t: Any, x: str) -> str:
        mean = t.GlobalAveragePool(x)
        distance = t.Sub(x, mean)
        factor = t.Mul(t.Reciprocal(t.Sqrt(t.Add(t.GlobalAveragePool(t.Mul(distance, distance)), 1e-3))), GAIN)
        return str(t.Add(t.Mul(x, factor), t.Sub(SHIFT, t.Mul(mean, factor))))

    assert found(keras, ("n", 3, 4)) == {"LayerNormalization": 1}
    assert found(keras, (2, 3, 3, 4)) == {"LayerNormalization": 1}


def test_means_over_positions_may_be_pools() -> None:
    """tf2onnx writes ``tf.nn.moments`` over heights and widths so, and folds the gain of each channel as TensorFlow does."""

    def moments(t: Any, x: str) -> str:
        mean, gain = t.GlobalAveragePool(x), np.array([1.5, -2.0, 3.0]).reshape(3, 1, 1)
        distance = t.Sub(x, t.Reshape(mean, [-1, 3, 1, 1]))
        variance = t.GlobalAveragePool(t.Mul(distance, distance))
        factor = t.Mul(t.Reciprocal(t.Sqrt(t.Add(variance, 1e-3))), gain)
        return str(t.Add(t.Mul(x, factor), t.Sub(gain, t.Mul(mean, factor))))

    result = optimized(graph_of(moments, ("n", 3, 4, 5)), form="onnxruntime")
    assert result.report.operators_after == {"InstanceNormalization": 1}


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_groups_of_channels_that_are_last(groups: int) -> None:
    """As Keras has them, between convolutions with channels first."""

    def spelled(t: Any, x: str) -> str:
        last = t.Reshape(t.Transpose(x, perm=(0, 2, 3, 1)), [0, 4, 5, groups, 6 // groups])
        axes = [1, 2, 4]
        mean = t.ReduceMean(last, axes, keepdims=1)
        distance = t.Sub(last, mean)
        root = t.Sqrt(t.Add(t.ReduceMean(t.Mul(distance, distance), axes, keepdims=1), 1e-3))
        gain = np.arange(1, 7).reshape(1, 1, 1, groups, 6 // groups)
        factor = t.Mul(t.Reciprocal(root), gain)
        normed = t.Add(t.Mul(last, factor), t.Add(-gain, t.Mul(t.Neg(mean), factor)))
        return str(t.Transpose(t.Relu(t.Reshape(normed, [0, 4, 5, 6])), perm=(0, 3, 1, 2)))

    for form in ("onnxruntime", "flat"):
        after = optimized(graph_of(spelled, ("n", 6, 4, 5)), form=form).report.operators_after
        assert sum(count for op, count in after.items() if op.endswith("Normalization")) == 1
        assert not {"Transpose", "ReduceMean", "Sqrt"} & after.keys()


def test_a_norm_over_other_axes_than_the_last_is_one_between_transposes() -> None:
    assert found(lambda t, x: _rms(t, x, axes=(0, 1))) == {"Transpose": 2, "RMSNormalization": 1}
    long = (2**17, 2, 1)  # whose sum the kernel of rows would round more
    assert "RMSNormalization" not in found(lambda t, x: _rms(t, x, axes=(0, 2)), long)


def test_normalisation_without_gain_and_over_two_axes() -> None:
    assert found(lambda t, x: _layer(t, x, axes=(1, -1))) == {"LayerNormalization": 1}
    assert found(lambda t, x: _rms(t, x, axes=(0, 1, 2))) == {"RMSNormalization": 1}


def test_gain_that_broadcasts_over_the_normalised_axes() -> None:
    gain = GAIN[:3].reshape(3, 1)
    result = optimized(graph_of(lambda t, x: t.Mul(_layer(t, x, axes=(1, 2)), gain)))
    assert counts(result) == {"LayerNormalization": 1}
    (node,) = result.program.graph.nodes
    assert result.program.graph.type_of(node.inputs[1]).shape == (3, 4)  # type: ignore[union-attr]


def test_symbolic_batch() -> None:
    assert found(lambda t, x: t.Mul(_layer(t, x), GAIN), ("n", "s", 4)) == {"LayerNormalization": 1}


@pytest.mark.parametrize("scaled", SCALED)
@pytest.mark.parametrize(("shape", "axes"), [(("n", 3, "t"), [2]), ((2, 3, "h", 8), [2, 3])])
def test_channels_of_any_number_of_positions(shape: tuple[Any, ...], axes: list[int], scaled: str) -> None:
    """As in a voice of any length; channels that are not counted have no gain either."""
    assert found(lambda t, x: _layer(t, x, scaled, axes=axes), shape) == {"InstanceNormalization": 1}
    assert "InstanceNormalization" not in found(lambda t, x: _layer(t, x, scaled, axes=axes), (2, "c", *shape[2:]))


def test_means_whose_axes_are_dropped_lie_along_other_axes_of_the_value() -> None:
    """Of (3, 1, 3, w) there is one mean for each of three images, which lies along the rows."""

    def spelled(t: Any, x: str) -> str:
        d = t.Sub(x, t.ReduceMean(x, [2, 3], keepdims=0))
        return t.Div(d, t.Sqrt(t.Add(t.ReduceMean(t.Mul(d, d), [2, 3], keepdims=0), 0.01)))

    assert "InstanceNormalization" not in found(spelled, (3, 1, 3, "w"))


@pytest.mark.parametrize("factor", [-1.0, -1.702])
def test_a_value_by_one_plus_an_exponential_is_gated_by_itself(factor: float) -> None:
    def spelled(t: Any, x: str) -> str:
        return t.Div(x, t.Add(t.Exp(t.Neg(x) if factor == -1 else t.Mul(x, factor)), 1.0))

    assert found(spelled) == {"Sigmoid": 1, "Mul": 1 if factor == -1 else 2}


@pytest.mark.parametrize("shape", [(1, 6, 4, 5), (2, 6, 5), ("n", 6, "h", "w")])
@pytest.mark.parametrize("spelling", [_rms, _layer])
def test_a_norm_over_channels_is_one_of_rows_between_transposes(spelling: Any, shape: tuple[Any, ...]) -> None:
    """As NAFNet and SAM have it, with a gain, and a shift where a mean is subtracted."""

    def spelled(t: Any, x: str) -> Any:
        gain = np.arange(1, 7, dtype=np.float32).reshape(6, *[1] * (len(shape) - 2))
        scaled = t.Mul(spelling(t, x, axes=(1,)), gain)
        return scaled if spelling is _rms else t.Add(scaled, -gain)

    norm = "RMSNormalization" if spelling is _rms else "LayerNormalization"
    assert found(spelled, shape) == {"Transpose": 2, norm: 1}


def test_computed_gain() -> None:
    def spelling(t: Any, x: str) -> str:
        gain = t._builder.input("g", "float32", (4,))
        return str(t.Mul(_rms(t, x), gain))

    assert found(spelling) == {"RMSNormalization": 1}


NO_NORM: dict[str, Spelling] = {
    "epsilon for each element": lambda t, x: _rms(t, x, eps=np.array([0.1, 0.2, 0.3]).reshape(3, 1)),
    "epsilon with more axes": lambda t, x: _rms(t, x, eps=np.full((1, 1, 1, 1), 0.1)),
    "epsilon outside the root": lambda t, x: t.Div(
        x, t.Add(t.Sqrt(t.ReduceMean(t.Mul(x, x), [-1], keepdims=1)), 0.1)
    ),
    "the square of another value": lambda t, x: t.Div(
        x, t.Sqrt(t.Add(t.ReduceMean(t.Mul(x, t.Relu(x)), [-1], keepdims=1), 30.0))
    ),
    "a sum of squares": lambda t, x: t.Div(x, t.Sqrt(t.Add(t.ReduceSum(t.Mul(x, x), [-1], keepdims=1), 0.1))),
    "a mean of squares minus a square": lambda t, x: t.Div(
        t.Sub(x, t.ReduceMean(x, [-1], keepdims=1)),
        t.Sqrt(t.Add(t.Abs(t.Sub(
            t.ReduceMean(t.Mul(x, x), [-1], keepdims=1),
            t.Mul(t.ReduceMean(x, [-1], keepdims=1), t.ReduceMean(x, [-1], keepdims=1)),
        )), 0.5)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_NORM)
def test_what_is_no_normalisation_stays(name: str) -> None:
    assert not {"RMSNormalization", "LayerNormalization"} & set(found(NO_NORM[name]))


def _rounded_layer(t: Any, x: str, edge: str) -> str:
    """A layer normalisation quantised to bytes and back on one edge."""

    def at(name: str, value: str) -> str:
        if name != edge:
            return value
        scale, zero = np.float32(0.02), t.Cast([0], to=3)
        parameters = scale, t.Reshape(zero, t.Cast(np.zeros(0), to=7))
        return str(t.DequantizeLinear(t.QuantizeLinear(value, *parameters), *parameters))

    x = at("input", x)
    centred = at("centred", t.Sub(x, t.ReduceMean(x, [-1])))
    variance = at("variance", t.ReduceMean(at("squares", t.Pow(centred, 2.0)), [-1]))
    root = at("root", t.Sqrt(at("sum", t.Add(variance, 1e-5))))
    gained = at("gained", t.Mul(at("normal", t.Div(centred, root)), np.arange(1, 5)))
    return at("result", t.Add(gained, np.arange(4)))


@pytest.mark.parametrize(
    ("edges", "norm"),
    [
        (("input", "normal", "gained", "result"), "LayerNormalization"),
        (("centred",), "RMSNormalization"),
        (("squares", "variance", "sum", "root"), ""),
    ],
)
def test_norm_with_a_quantised_edge_is_recognised_unless_its_variance_is_rounded(edges: Any, norm: str) -> None:
    for edge in edges:
        graph = graph_of(lambda t, x, edge=edge: _rounded_layer(t, x, edge))
        left = counts(eqsat.optimize(graph, verify=False))
        assert sorted(op for op in left if op.endswith("Normalization")) == ([norm] if norm else []), (edge, left)


def test_rounded_variance_is_another_function_than_a_norm() -> None:
    """By any number of quanta: in rows of small variance nothing of it is left."""
    x = np.array([[[0, 0.1, 0.2, 0.3], [0, 1, 2, 3]]], np.float32)
    plain, rounded = (
        next(iter(run(graph_of(lambda t, x, e=edge: _rounded_layer(t, x, e), (1, 2, 4)), {"x": x}).values()))
        for edge in ("", "sum")
    )
    assert np.abs(rounded[0, 1] - plain[0, 1]).max() < 0.1
    assert np.abs(rounded[0, 0] - plain[0, 0]).max() > 0.5
    with np.errstate(divide="ignore"):
        tiny = run(graph_of(lambda t, x: _rounded_layer(t, x, "sum"), (1, 2, 4)), {"x": x / np.float32(3)})
    assert not np.isfinite(next(iter(tiny.values()))).all()


def test_gain_along_another_axis_stays() -> None:
    gain = GAIN[:3].reshape(3, 1)
    assert found(lambda t, x: t.Mul(_rms(t, x), gain)) == {"RMSNormalization": 1, "Mul": 1}


def test_mean_over_other_axes_than_the_variance() -> None:
    def spelling(t: Any, x: str) -> str:
        return _rms(t, t.Sub(x, t.ReduceMean(x, [1, 2], keepdims=1)))

    assert found(spelling) == {"ReduceMean": 1, "Sub": 1, "RMSNormalization": 1}


def test_sum_with_a_bias_that_enlarges_stays() -> None:
    spelled = found(lambda t, x: t.Add(_layer(t, x), np.arange(8.0).reshape(2, 1, 1, 4)))
    assert spelled == {"LayerNormalization": 1, "Add": 1}


# --- softmax -------------------------------------------------------------------------------------------------------------


def _shifted(t: Any, x: str, axis: int, other: int | None = None) -> str:
    return str(t.Sub(x, t.ReduceMax(x, [axis if other is None else other], keepdims=1)))


def _softmax(t: Any, x: str, axis: int, keepdims: int = 1) -> str:
    e = t.Exp(x)
    return str(t.Div(e, t.ReduceSum(e, [axis], keepdims=keepdims)))


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_stable_softmax(axis: int) -> None:
    assert found(lambda t, x: _softmax(t, _shifted(t, x, axis), axis)) == {"Softmax": 1}
    assert found(lambda t, x: t.Softmax(_shifted(t, x, axis), axis=axis)) == {"Softmax": 1}


def test_stable_log_softmax() -> None:
    def spelling(t: Any, x: str) -> str:
        v = _shifted(t, x, -1)
        return str(t.Sub(v, t.Log(t.ReduceSum(t.Exp(v), [-1], keepdims=1))))

    assert found(spelling) == {"LogSoftmax": 1}


NO_SOFTMAX: dict[str, Spelling] = {
    "unstable": lambda t, x: _softmax(t, t.Tanh(x), -1),
    "maximum of another axis": lambda t, x: _softmax(t, t.Tanh(_shifted(t, x, -1, 1)), -1),
    "sum over another axis": lambda t, x: _softmax(t, _shifted(t, x, -1), 1),
    "reduced axis dropped": lambda t, x: _softmax(t, _shifted(t, x, 0), 0, keepdims=0),
}


@pytest.mark.parametrize("name", NO_SOFTMAX)
def test_what_is_no_softmax_stays(name: str) -> None:
    result = eqsat.optimize(graph_of(NO_SOFTMAX[name]), verify=False, form="flat")
    assert "Softmax" not in counts(result)


def test_a_group_for_each_channel_is_instance_normalization_with_scale_and_shift() -> None:
    """As PyTorch's exporter writes ``GroupNorm(3, 3)``."""

    def spelled(t: Terms, x: Any) -> Any:
        rows = t.InstanceNormalization(t.Reshape(x, [0, 3, -1]), np.ones(3), np.zeros(3), epsilon=1e-5)
        scale, shift = np.array([1.5, -2.0, 3.0]).reshape(3, 1, 1), np.array([1.0, 2.0, 3.0]).reshape(3, 1, 1)
        return t.Add(t.Mul(t.Reshape(rows, [2, 3, 4, 5]), scale), shift)

    result = optimized(graph_of(spelled, (2, 3, 4, 5)), form="onnxruntime")
    assert result.report.operators_after == {"InstanceNormalization": 1}
