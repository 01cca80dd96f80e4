"""Bounds on the elements of values: what is dequantised, and functions that never fall."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import eqsat.rules  # noqa: F401  # registers the shipped rules
from eqsat.egraph.element_bounds import ElementBounds
from eqsat.egraph.encode import encode
from eqsat.egraph.intervals import of_array
from eqsat.egraph.saturate import saturate
from eqsat.exactness import Exactness
from eqsat.frontends.registry import load
from eqsat.ir.build import GraphBuilder
from eqsat.ir.interpret import run
from eqsat.rewrite import select_rules


def _bounds(b: GraphBuilder, value: str) -> tuple[float, float]:
    graph = b.finish({"y": value})
    encoding = encode(graph)
    return encoding.egraph.interval_of(encoding.handles[graph.outputs[0]])


def _dequantised(b: GraphBuilder, *, low: int | None = None, scale: float = 0.02, zero: int = 0) -> str:
    q = b.input("q", "int8", (256,))
    if low is not None:
        q = b.op("Clip", q, b.constant(np.int8(low)))
    return b.op("DequantizeLinear", q, b.constant(np.float32(scale)), b.constant(np.int8(zero)))


@pytest.mark.parametrize(("low", "zero"), [(None, 0), (-127, 0), (-127, 5), (3, -100)])
def test_dequantised_values_lie_between_the_ends_of_the_integers(low: int | None, zero: int) -> None:
    b = GraphBuilder("g")
    least, greatest = _bounds(b, _dequantised(b, low=low, zero=zero))
    first = -128 if low is None else low
    assert least == pytest.approx((first - zero) * 0.02, rel=1e-6)
    assert greatest == pytest.approx((127 - zero) * 0.02, rel=1e-6)


@pytest.mark.parametrize("op", ["Erf", "Tanh", "Sigmoid"])
def test_rising_functions_keep_bounds(op: str) -> None:
    b = GraphBuilder("g")
    y = b.op(op, _dequantised(b, low=-127))
    least, greatest = _bounds(b, y)
    assert least > {"Sigmoid": 0, "Erf": -1, "Tanh": -1}[op]
    values = np.asarray(run(b.finish({"y": y}), {"q": np.arange(-128, 128).astype(np.int8)})["y"])
    assert least <= values.min() <= least + 1e-5
    assert greatest - 1e-5 <= values.max() <= greatest


def test_a_scale_beyond_all_bounds_says_nothing() -> None:
    b = GraphBuilder("g")
    assert _bounds(b, _dequantised(b, scale=math.inf)) == (-math.inf, math.inf)


def test_the_least_float_plus_a_bounded_value_stays_finite() -> None:
    b = GraphBuilder("g")
    mask = b.op("Where", b.input("m", "bool", (256,)), b.constant(np.float32(0)), b.constant(np.finfo(np.float32).min))
    assert _bounds(b, b.op("Add", _dequantised(b), mask))[0] == float(np.finfo(np.float32).min)


@pytest.mark.parametrize("op", ["Gelu", "HardSwish", "Mish"])
def test_activations_stay_above_their_least_value(op: str) -> None:
    b = GraphBuilder("g")
    y = b.op(op, b.input("x", "float32", (4001,)))
    values = np.asarray(run(b.finish({"y": y}), {"x": np.linspace(-10, 10, 4001, dtype=np.float32)})["y"])
    assert values.min() - 1e-3 < _bounds(b, y)[0] <= values.min()


@pytest.mark.parametrize(
    ("op", "number", "expected"),
    [
        ("GreaterOrEqual", 0, (1, 1)),
        ("GreaterOrEqual", 1, (0, 1)),
        ("Less", 0, (0, 0)),
        ("Greater", -1, (1, 1)),
        ("LessOrEqual", -1, (0, 0)),
        ("Equal", 0, (0, 1)),
    ],
)
def test_places_are_compared_with_numbers(op: str, number: int, expected: tuple[int, int]) -> None:
    b = GraphBuilder("g")
    zero, one, other = (b.constant(np.int64(n)) for n in (0, 1, number))
    length = b.op("Squeeze", b.op("Shape", b.input("x", "float32", ("n",))))
    truth = b.op(op, b.op("Range", zero, length, one), other)
    assert (
        _bounds(b, b.op("And", truth, b.op("Expand", truth, b.op("Shape", b.input("m", "bool", ("k", 1)))))) == expected
    )


def test_floats_that_may_be_nan_are_not_compared() -> None:
    b = GraphBuilder("g")
    x = b.op("Relu", b.input("x", "float32", (3,)))
    assert _bounds(b, b.op("GreaterOrEqual", x, b.constant(np.float32(0)))) == (0, 1)


def test_extents_are_bounded_through_what_moves_and_adds_them() -> None:
    """The target of a Reshape joined from extents holds no -1."""
    b = GraphBuilder("g")
    shape = b.op("Shape", b.input("x", "float32", ("n", "m")))
    first, second = (b.op("Slice", shape, *(b.constant([k], "int64") for k in (i, i + 1, 0))) for i in (0, 1))
    joined = b.op("Concat", b.op("Add", first, b.constant([3], "int64")), second, axis=0)
    assert _bounds(b, joined)[0] >= 0


@pytest.mark.parametrize("asked", [(), ("wide",), ("narrow",), ("wide", "narrow")])
@pytest.mark.parametrize("names", [("wide", "narrow"), ("narrow", "wide")])
def test_what_becomes_equal_has_both_bounds_and_so_have_its_readers(asked: Sequence[str], names: Sequence[str]) -> None:
    b = GraphBuilder("g")
    q = b.input("q", "int8", (256,))
    bounds = {"wide": (-127, 100), "narrow": (-3, 127)}
    values = {name: _dequantised_clip(b, q, *bounds[name]) for name in names}
    readers = {name: b.op("Tanh", value) for name, value in values.items()}
    encoding = encode(b.finish(readers))
    egraph, handles = encoding.egraph, encoding.handles
    for name in asked:
        egraph.interval_of(handles[name])
    egraph.union(handles[values["wide"]], handles[values["narrow"]], "test")
    for name in readers:
        assert egraph.interval_of(handles[name]) == pytest.approx((math.tanh(-0.06), math.tanh(2.0)), abs=1e-5)


def _dequantised_clip(b: GraphBuilder, q: str, low: int, high: int) -> str:
    return b.op(
        "DequantizeLinear", b.op("Clip", q, *map(b.constant, map(np.int8, (low, high)))), b.constant(np.float32(0.02))
    )


def test_products_lie_between_as_many_products_of_the_largest_elements() -> None:
    for element, known in ((-0.5, True), (3e37, False)):
        b = GraphBuilder("g")
        w = b.constant(np.full((256, 3), element, np.float32))
        bound = 256 * 2.54 * 0.5 if known else math.inf
        assert _bounds(b, b.op("MatMul", _dequantised(b, low=-127), w)) == pytest.approx((-bound, bound), rel=1e-3)
    b = GraphBuilder("g")
    w = b.constant(np.ones((4, 3), np.float32))
    assert _bounds(b, b.op("MatMul", b.input("x", "float32", (4,)), w)) == (-math.inf, math.inf)


def _byte(b: GraphBuilder, name: str, shape: Sequence[int], low: int | None, high: int | None) -> str:
    bounds = [None if n is None else b.constant(np.uint8(n)) for n in (low, high)]
    return b.op("Clip", b.input(name, "uint8", shape), *bounds)


def test_bounds_of_clip_that_are_computed_move_both_ends() -> None:
    b = GraphBuilder("g")
    x, bound = _byte(b, "x", (4,), 30, 40), _byte(b, "h", (), 20, 100)
    assert _bounds(b, b.op("Clip", x, None, bound)) == (20, 40)
    b = GraphBuilder("g")
    x, bound = _byte(b, "x", (4,), 30, 40), _byte(b, "h", (), 35, 100)
    assert _bounds(b, b.op("Clip", x, bound)) == (35, 100)


@pytest.mark.parametrize("factor", [11400714819323198, 2**60, -(2**60)])
def test_integer_products_wrap_around(factor: int) -> None:
    b = GraphBuilder("g")
    wide = b.op("Cast", b.input("x", "uint32", (4,)), to=7)
    assert _bounds(b, b.op("Mul", wide, b.constant(np.int64(factor)))) == (-math.inf, math.inf)


@pytest.mark.parametrize(("number", "known"), [(50000, False), (40000, True)])
def test_products_of_32_bits_wrap_around(number: int, known: bool) -> None:
    b = GraphBuilder("g")
    w = b.op("Where", b.input("p", "bool", (4,)), *(b.constant(np.int32(n)) for n in (number, 1)))
    assert _bounds(b, b.op("Mul", w, w)) == ((1, number**2) if known else (-math.inf, math.inf))


def test_integers_that_floats_do_not_hold_lie_between_their_bounds() -> None:
    for number in (-(2**63) + 1, 2**63 - 301, 2**53 + 1):
        b = GraphBuilder("g")
        low, high = _bounds(b, b.constant(np.int64(number)))
        assert low < number < high
    b = GraphBuilder("g")
    assert _bounds(b, b.op("Cast", b.input("x", "uint32", (4,)), to=1)) == (0, 2**32)


def test_zeros_times_what_may_be_infinite_are_no_zeros() -> None:
    for op in ("Identity", "Sigmoid"):  # of NaN a bounded function is NaN
        b = GraphBuilder("g")
        x = b.op(op, b.input("x", "float32", (3,)))
        assert _bounds(b, b.op("Mul", x, b.constant(np.float32(0)))) == (-math.inf, math.inf)
    b = GraphBuilder("g")
    mask = b.op("Cast", b.input("m", "bool", (3,)), to=1)
    assert _bounds(b, b.op("Mul", mask, b.constant(np.float32(-10000)))) == (-10000, 0)


def test_products_of_bounds_are_rounded_as_products_are() -> None:
    b = GraphBuilder("g")
    x = b.op("Where", b.input("p", "bool", (4,)), *(b.constant(np.float16(n)) for n in (0.1, 300)))
    tenth = np.float16(0.1)
    assert _bounds(b, b.op("Mul", x, x)) == (float(tenth * tenth), math.inf)


@pytest.mark.parametrize(("step", "known"), [(1.0, True), (0.1, False)])
def test_floats_counted_by_fractions_may_end_beyond_the_limit(step: float, known: bool) -> None:
    b = GraphBuilder("g")
    last = b.op("Cast", b.op("Squeeze", b.op("Shape", b.input("x", "float32", ("n",)))), to=1)
    y = b.op("Range", b.constant(np.float32(0)), last, b.constant(np.float32(step)))
    assert (_bounds(b, y)[0] == 0) is known


def test_functions_in_half_precision_miss_their_values_by_a_rounding() -> None:
    b = GraphBuilder("g")
    y = b.op("Tanh", b.op("Sigmoid", b.input("x", "float16", (3,))))
    (value,) = np.asarray(run(b.finish({"y": y}), {"x": np.full(3, 20, np.float16)})["y"])[:1]
    assert _bounds(b, y)[1] >= float(value)


def test_bounds_of_what_was_asked_become_tighter_as_more_is_known() -> None:
    b = GraphBuilder("g")
    x, y = (b.input(name, "float32", (4,)) for name in "xy")
    total = b.op("Add", x, y)
    graph = b.finish({"t": total, "a": b.op("Sigmoid", x), "b": b.op("Sigmoid", y)})
    encoding = encode(graph)
    egraph, handles = encoding.egraph, encoding.handles
    assert egraph.interval_of(handles["t"]) == (-math.inf, math.inf)
    assert egraph.interval_of(handles["a"]) == (0, 1)
    egraph.union(handles["x"], handles["a"], "a test")  # of which bounds are known
    assert egraph.interval_of(handles["t"]) == (-math.inf, math.inf)
    egraph.union(handles["b"], handles["y"], "a test")  # of which nobody asked for them
    least, greatest = egraph.interval_of(handles["t"])
    assert least > -1e-5
    assert greatest < 2 + 1e-5


@pytest.mark.parametrize("name", ["mobilenetv3", "resnet50_qdq"])
def test_bounds_that_are_kept_are_those_that_would_be_found(name: str, real_model: Callable[[str], Path]) -> None:
    egraph = encode(load(real_model(name))).egraph
    for cls in [*egraph.classes()]:
        egraph.interval_of(cls)
    saturate(egraph, select_rules(Exactness.LSB))
    fresh = ElementBounds(egraph)
    for cls in egraph.classes():
        least, greatest = fresh.of(cls)
        low, high = egraph.interval_of(cls)
        assert math.isnan(least) or (least <= low and high <= greatest), cls


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "AveragePool", "GlobalAveragePool"])
def test_sums_of_squares_are_not_negative(op: str) -> None:
    b = GraphBuilder("g")
    x = b.input("x", "float32", (1, 2, 3, 4))
    attributes: dict[str, Any] = {"kernel_shape": (2, 2)} if op == "AveragePool" else {}
    assert _bounds(b, b.op(op, b.op("Mul", x, x), **attributes)) == (0.0, math.inf)
    assert _bounds(b, b.op(op, x, **attributes)) == (-math.inf, math.inf)


def test_squares_of_integers_wrap_around() -> None:
    b = GraphBuilder("g")
    x = b.input("x", "int32", (3,))
    assert _bounds(b, b.op("Mul", x, x)) == (-math.inf, math.inf)


def test_a_number_added_to_what_is_not_negative_bounds_the_sum() -> None:
    b = GraphBuilder("g")
    x = b.op("Relu", b.input("x", "float32", (3,)))
    assert 0.99 < _bounds(b, b.op("Add", x, b.constant(np.float32(1))))[0] <= 1
    assert _bounds(b, b.op("Sub", x, x)) == (-math.inf, math.inf)
    assert _bounds(b, b.op("Div", x, b.constant(np.float32(2))))[0] == pytest.approx(0, abs=1e-40)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_bounds_of_half_precision_are_its_extremes(dtype: Any) -> None:
    random = np.random.default_rng(0)
    special = np.array([np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0], dtype)
    for number in range(200):
        array = (random.standard_normal(random.integers(1, 6)) * 10.0 ** random.integers(-8, 5)).astype(dtype)
        array = (array, np.abs(array), -np.abs(array), array[::2])[number % 4]
        if number % 3 == 0:
            array[random.integers(len(array))] = random.choice(special)
        wide = array.astype(np.float32)
        np.testing.assert_array_equal(of_array(array), (wide.min(), wide.max()))
