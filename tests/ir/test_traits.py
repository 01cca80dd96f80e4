"""Each trait that an operator states holds of random applications of the operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import defined_operators, traits_of
from eqsat.ir.operators.by_schema import TRAITS
from eqsat.ir.schema_operator import takes_types
from eqsat.ir.traits import NO_TRAITS, Product, ProductAxes, Traits
from eqsat.ir.types import type_of_array
from tests.ir.operator_drawing import Instance, extents, i64, numbers, pick
from tests.ir.operator_instances import INSTANCES
from tests.ir.trait_laws import LAWS

TRIALS = 40

Rng = np.random.Generator


def _plain(rng: Rng) -> np.ndarray:
    return numbers(rng, extents(rng, 2, 3), special=False)


def _scatter(rng: Rng) -> Instance:
    x = _plain(rng)
    picked = rng.integers(0, x.shape[0], (1, *x.shape[1:]))
    return Instance("ScatterElements", [x, picked, rng.normal(size=picked.shape).astype(np.float32)], {})


def _scatter_nd(rng: Rng) -> Instance:
    x = _plain(rng)
    index = rng.integers(0, x.shape[0], (1, 1))
    return Instance("ScatterND", [x, index, rng.normal(size=(1, *x.shape[1:])).astype(np.float32)], {})


def _reversed(rng: Rng) -> Instance:
    x = _plain(rng)
    return Instance(
        "ReverseSequence", [x, rng.integers(1, x.shape[0] + 1, x.shape[1])], {"batch_axis": 1, "time_axis": 0}
    )


def _compressed(rng: Rng) -> Instance:
    x = _plain(rng)
    return Instance("Compress", [x, rng.integers(0, 2, x.shape[0]).astype(np.bool_)], {"axis": 0})


def _resized(rng: Rng) -> Instance:
    x = numbers(rng, (1, 2, 3, 4), special=False)
    modes = {"mode": pick(rng, "nearest", "nearest", "linear"), "coordinate_transformation_mode": "asymmetric"}
    return Instance("Resize", [x, None, None, i64(1, 2, 5, 6)], modes)


def _recurrent(rng: Rng, op: str, gates: int, states: int) -> Instance:
    time, batch, inner, hidden = extents(rng, 4, 4)
    shapes = [(time, batch, inner), (1, gates * hidden, inner), (1, gates * hidden, hidden), (1, 2 * gates * hidden)]
    operands = [numbers(rng, shape, special=False) for shape in shapes]
    initial = [numbers(rng, (1, batch, hidden), special=False) for _ in range(states)]
    return Instance(op, [*operands, None, *initial], {"hidden_size": hidden}, 2)


def _deformed(rng: Rng) -> Instance:
    shapes = (1, 2, 4, 4), (3, 2, 2, 2), (1, 8, 3, 3), (3,)
    return Instance("DeformConv", [numbers(rng, shape, special=False) for shape in shapes], {})


# Of two values, whole numbers: the reference evaluator computes with them, where ONNX says that one of them is taken.
BY_SCHEMA: dict[str, Callable[[Rng], Instance]] = {
    "CenterCropPad": lambda rng: Instance("CenterCropPad", [_plain(rng), i64(3)], {"axes": [0]}),
    "Compress": _compressed,
    "CumSum": lambda rng: Instance("CumSum", [_plain(rng), i64(0).reshape(())], {}),
    "DeformConv": _deformed,
    "EyeLike": lambda rng: Instance("EyeLike", [_plain(rng).reshape(-1, 1)], {}),
    "GRU": partial(_recurrent, op="GRU", gates=3, states=1),
    "Hardmax": lambda rng: Instance("Hardmax", [_plain(rng)], {}),
    "LSTM": partial(_recurrent, op="LSTM", gates=4, states=2),
    "LpNormalization": lambda rng: Instance("LpNormalization", [_plain(rng)], {"axis": pick(rng, 0, -1)}),
    "OneHot": lambda rng: Instance("OneHot", [i64(0, 2), i64(3).reshape(()), np.array([2, -3], np.float32)], {}),
    "RNN": partial(_recurrent, op="RNN", gates=1, states=1),
    "Resize": _resized,
    "ReverseSequence": _reversed,
    "ScatterElements": _scatter,
    "ScatterND": _scatter_nd,
    "TopK": lambda rng: Instance("TopK", [numbers(rng, (3, 4), special=False), i64([2])], {}, 2),
    "Trilu": lambda rng: Instance("Trilu", [_plain(rng), i64(1).reshape(())], {"upper": pick(rng, 0, 1)}),
}


def _by_packed_weights(rng: Rng) -> Instance:
    bits, count, columns = int(rng.choice([2, 4, 8])), int(rng.integers(1, 4)), int(rng.integers(2, 5))
    shape = (columns, count, 2 * bits)
    x = rng.normal(size=(int(rng.integers(1, 4)), 16 * count)).astype(np.float32)
    weight, zeros = (rng.integers(0, 256, s).astype(np.uint8) for s in (shape, (columns, -(-count * bits // 8))))
    scales, bias = (rng.normal(size=s).astype(np.float32) for s in (shape[:2], (columns,)))
    attributes = {"K": 16 * count, "N": columns, "bits": bits, "block_size": 16}
    return Instance(_PACKED, [x, weight, scales, pick(rng, zeros, None), None, pick(rng, bias, None)], attributes)


_PACKED = "com.microsoft::MatMulNBits"


def _integer_product(op: str, rng: Rng) -> Instance:
    spatial = (1, 1) if op.endswith("Conv") else ()
    shapes = ((2, 3, *spatial), (4, 3, *spatial)) if spatial else ((2, 3), (3, 4))
    a, b = (rng.integers(0, 255, s).astype(t) for s, t in zip(shapes, (np.uint8, np.int8), strict=True))
    za, zb, zy = (np.array(n, t) for n, t in ((7, np.uint8), (-3, np.int8), (128, np.uint8)))
    scale, sy = np.array(0.5, np.float32), np.array(400, np.float32)
    if op.endswith("ToFloat"):
        return Instance(op, [a, b, scale, scale, za, zb], {})
    return Instance(op, [a, scale, za, b, scale, zb, *((sy, zy) if spatial else (None, sy, zy))], {})


def _dynamic_product(rng: Rng) -> Instance:
    weights, zero = rng.integers(-128, 128, (3, 4)).astype(np.int8), np.array([5], np.int8)
    inputs = [rng.normal(size=(2, 3)).astype(np.float32), weights, np.array([0.5], np.float32), zero]
    return Instance("com.microsoft::DynamicQuantizeMatMul", inputs, {})


BY_PARTS: dict[str, Callable[[Rng], Instance]] = {
    "com.microsoft::Gelu": lambda rng: Instance("com.microsoft::Gelu", [_plain(rng)], {}),
    "com.microsoft::FastGelu": lambda rng: Instance("com.microsoft::FastGelu", [_plain(rng)], {}),
    "com.microsoft::BiasGelu": lambda rng: Instance("com.microsoft::BiasGelu", [*rng.normal(size=(2, 5))], {}),
    _PACKED: _by_packed_weights,
    **{
        f"com.microsoft::{op}": partial(_integer_product, f"com.microsoft::{op}")
        for op in ("MatMulIntegerToFloat", "QGemm", "QLinearConv")
    },
    "com.microsoft::DynamicQuantizeMatMul": _dynamic_product,
    "eqsat::Recenter": lambda rng: Instance("eqsat::Recenter", [numbers(rng, extents(rng, 1), np.int8)], {}),
}
"""Of the operators of other domains, those of which more is stated than that they quantise and what they are called."""

STATED = [
    (key, f.name)
    for key in (*(k for k in defined_operators() if "::" not in k or k in BY_PARTS), *TRAITS)
    for f in fields(Traits)
    if f.name != "holds" and getattr(traits_of(key), f.name) != getattr(NO_TRAITS, f.name)
]


def _tame(instance: Instance) -> Instance:
    """With ordinary numbers in place of infinities, NaN and the largest floats, on which no law of numbers holds."""
    inputs = [
        np.where(np.abs(x) < 1e4, x, np.float32(1.25)).astype(x.dtype) if x is not None and x.dtype.kind == "f" else x
        for x in instance.inputs
    ]
    return replace(instance, inputs=inputs)


def _as_floats(instance: Instance) -> Instance:
    """With floats in place of integers, where the operator takes them."""
    first = instance.inputs[0]
    if first is None or first.dtype.kind not in "iu" or instance.op == "DequantizeLinear":
        return instance
    inputs = [x.astype(np.float32) if x is not None and x.dtype == first.dtype else x for x in instance.inputs]
    types = [None if x is None else type_of_array(x) for x in inputs]
    return replace(instance, inputs=inputs) if takes_types(instance.op, types) else instance


def _applications(key: str) -> list[Instance]:
    draw = INSTANCES.get(key) or BY_PARTS.get(key) or BY_SCHEMA[key]
    return [_tame(draw(np.random.default_rng([seed, *key.encode()]))) for seed in range(TRIALS)]


def _shown(key: str, field: str, traits: Traits) -> int:
    """How many applications show that the operator has the trait. Raises `AssertionError` where one shows that it has not."""
    shown = 0
    for seed, instance in enumerate(_applications(key)):
        if traits.holds(Attributes(instance.attributes)):
            drawn = _as_floats(instance) if field in _OF_FLOATS else instance
            with np.errstate(all="ignore"):
                shown += LAWS[field](traits, drawn, np.random.default_rng(seed))
    return shown


@pytest.mark.parametrize(("key", "field"), STATED)
def test_a_stated_trait_holds(key: str, field: str) -> None:
    assert _shown(key, field, traits_of(key)), "no application of the operator shows it"


_OF_FLOATS = ("rising", "continuous", "homogeneous", "affine", "bounds", "exact", "whole", "keeps_whole", "value")


def test_what_is_not_tried_is_little() -> None:
    named = {"quantises", "structure", "product", "lengths"}
    untried = [k for k in defined_operators() if "::" in k and k not in BY_PARTS]
    stated = {
        f.name for k in untried for f in fields(Traits) if getattr(traits_of(k), f.name) != getattr(NO_TRAITS, f.name)
    }
    assert stated <= named


def test_every_field_has_a_law() -> None:
    assert {f.name for f in fields(Traits)} - {"holds"} == set(LAWS)


WRONG: dict[str, dict[str, Any]] = {
    "Floor": {"continuous": True, "homogeneous": True},
    "Tanh": {"bounds": (-0.5, 0.5), "homogeneous": True, "idempotent": True, "affine": (0,)},
    "Neg": {"rising": True, "whole": True, "bounds": (0.0, 10.0), "sources": (0,), "idempotent": True},
    "Abs": {"rising": True, "affine": (0,), "sources": (0,), "or_zero": True},
    "Add": {"operands": 1, "neutral": 1, "homogeneous": True, "truth": True, "quantises": True, "divisors": (1,)},
    "Softmax": {"operands": 1, "spatial": True},
    "LayerNormalization": {"operands": 3},
    "Slice": {"permutes": True},
    "Gather": {"counts": (0,), "permutes": True},
    "ReduceMean": {"folds": True, "repeats": "Sum", "keeps_whole": True, "exact": True},
    "ReduceL2": {"folds": True, "rising": True},
    "Relu": {"moves": True, "permutes": True},
    "MatMul": {"operands": 2, "spatial": True},
    "Conv": {"product": Product(axes=lambda attributes: ProductAxes(1, 0, 1, 1))},
    _PACKED: {"product": Product(axes=lambda attributes: ProductAxes(-1, 1, 0, -1), columns={2: 1}, packed=True)},
}
"""Traits that operators do not have."""
LIES = [(key, field) for key, wrong in WRONG.items() for field in wrong]


@pytest.mark.parametrize(("key", "field"), LIES)
def test_a_wrong_trait_is_noticed(key: str, field: str) -> None:
    wrong = replace(traits_of(key), **{"sources": (0,), field: WRONG[key][field]})  # type: ignore[arg-type]
    try:
        shown = _shown(key, field, wrong)
    except (AssertionError, IndexError, ValueError, TypeError):
        return
    assert not shown
