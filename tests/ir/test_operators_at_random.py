"""Every definition on random applications: values against ONNX Runtime, types against the values and against ONNX's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from eqsat.backends.onnxruntime import sums_saturate
from eqsat.errors import ShapeError
from eqsat.ir.graph import Attributes, Node
from eqsat.ir.infer import infer_types
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import OPSET, Application, defined_operators, operator, traits_of
from eqsat.ir.schema_operator import evaluate_by_reference, operator_from_schema, to_node_proto, to_type_proto
from eqsat.ir.types import UNKNOWN, DType, TensorType, Type, type_of_array
from tests.ir.operator_instances import INSTANCES, Instance

TRIALS = 12
RELATIVE = {2: 4e-3, 4: 1e-4, 8: 1e-7}
ABSOLUTE = {2: 4e-3, 4: 2e-5, 8: 1e-9}
"""Tolerances of operators that are not bit-exact, by bytes of an element. Absolute ones cover cancellation in sums."""


def _drawn(op: str) -> list[Instance]:
    return [INSTANCES[op](np.random.default_rng([seed, *op.encode()])) for seed in range(TRIALS)]


def _types(instance: Instance) -> list[Type | None]:
    return [None if x is None else type_of_array(x) for x in instance.inputs]


def _infer(instance: Instance, types: Sequence[Type | None], values: Sequence[np.ndarray | None]) -> list[TensorType]:
    names = tuple("" if x is None else f"i{i}" for i, x in enumerate(instance.inputs))
    node = Node(instance.op, names, tuple(f"o{i}" for i in range(instance.outputs)), Attributes(instance.attributes))
    found = infer_types(node, types, values)
    return [t for t in found if isinstance(t, TensorType)]


def _run(instance: Instance) -> list[np.ndarray]:
    return list(evaluate_operator(instance.op, Attributes(instance.attributes), instance.inputs, instance.outputs))


def _expected(instance: Instance) -> list[np.ndarray]:
    """What ONNX Runtime computes with its optimiser off; the ONNX reference evaluator where it has no kernel, or none here that
    is exact."""
    attributes = Attributes(instance.attributes)
    present = tuple(x is not None for x in instance.inputs)
    node = to_node_proto(instance.op, attributes, present, instance.outputs)
    feeds = {f"i{i}": x for i, x in enumerate(instance.inputs) if x is not None}
    inputs = [helper.make_value_info(k, to_type_proto(type_of_array(x))) for k, x in feeds.items()]
    outputs = [helper.make_value_info(o, onnx.TypeProto()) for o in node.output]
    graph = helper.make_graph([node], "one", inputs, outputs)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    signed = any(
        i < len(instance.inputs) and feeds[f"i{i}"].dtype == np.int8 for i, _ in traits_of(instance.op).differences
    )
    exact = not (signed and sums_saturate())
    for opset in (
        (OPSET, 26, 18) if exact else ()
    ):  # ONNX Runtime lacks kernels for the newest version of some operators
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            if "NOT_IMPLEMENTED" in str(error) or "No Op registered" in str(error):
                continue
            raise
        return [np.asarray(y) for y in session.run(None, feeds)]
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in evaluate_by_reference(instance.op, attributes, instance.inputs)][
            : instance.outputs
        ]


def _check_value(ours: np.ndarray, expected: np.ndarray, bit_exact: bool, what: str) -> None:
    assert ours.dtype == expected.dtype, what
    assert ours.shape == expected.shape, what
    if bit_exact or ours.dtype.kind in "iub":
        np.testing.assert_array_equal(ours, expected, what)
    else:
        size = ours.dtype.itemsize
        np.testing.assert_allclose(ours, expected, RELATIVE[size], ABSOLUTE[size], err_msg=what)


def test_every_operator_is_drawn() -> None:
    assert {op for op in defined_operators() if "::" not in op} - {"Constant"} == set(INSTANCES)


@pytest.mark.parametrize("op", sorted(INSTANCES))
def test_values_equal_those_of_onnx_runtime(op: str) -> None:
    definition = operator(op)
    assert definition is not None
    for seed, instance in enumerate(_drawn(op)):
        for ours, expected in zip(_run(instance), _expected(instance), strict=True):
            _check_value(ours, expected, definition.bit_exact, f"trial {seed}: {instance.attributes}")


@pytest.mark.parametrize("op", sorted(INSTANCES))
def test_types_equal_those_of_the_values(op: str) -> None:
    for instance in _drawn(op):
        types = _infer(instance, _types(instance), instance.inputs)
        assert types == [type_of_array(y) for y in _run(instance)], instance.attributes


@pytest.mark.parametrize("op", sorted(INSTANCES))
def test_types_are_as_precise_as_those_of_onnx(op: str) -> None:
    theirs = operator_from_schema(op)
    assert theirs is not None
    for instance in _drawn(op):
        app = Application(op, Attributes(instance.attributes), _types(instance), instance.inputs, instance.outputs)
        ours = _infer(instance, app.types, app.values)
        try:
            expected = theirs.infer(app)
        except ShapeError:  # wrong for an empty "same" border and for scalars; the values have the last word
            continue
        for a, b in zip(ours, expected, strict=True):
            assert isinstance(b, TensorType)
            if b.shape is not None:
                assert [y for y in b.shape if isinstance(y, int)] == [
                    x for x, y in zip(a.shape or (), b.shape, strict=True) if isinstance(y, int)
                ], instance.attributes


def test_approximate_gelu_of_doubles_has_the_numbers_of_its_definition() -> None:
    """As a function of ONNX it has 2/pi and 0.044715 in single precision, 6e-9 away from those of doubles."""
    instance = Instance("Gelu", [np.linspace(-4, 4, 9)], {"approximate": "tanh"})
    np.testing.assert_allclose(_run(instance)[0], _expected(instance)[0], 1e-11)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_statistics_of_a_layer_normalization_have_a_type_of_their_own(dtype: str) -> None:
    found = evaluate_operator("LayerNormalization", Attributes({}), [np.ones((2, 3), dtype), np.ones(3, dtype)], 3)
    assert [v.dtype.name for v in found] == [dtype, "float32", "float32"]


@pytest.mark.parametrize(("stated", "extent"), [({}, 5), ({"onesided": 1}, 5), ({"onesided": 0}, 8)])
def test_absent_attributes_have_their_defaults(stated: dict[str, int], extent: int) -> None:
    """Of a real signal half the spectrum is computed, unless asked for otherwise."""
    types = [TensorType(DType.FLOAT, (1, 64, 1)), TensorType(DType.INT64, ()), TensorType(DType.FLOAT, (8,))]
    node = Node("STFT", ("x", "step", "window"), ("y",), Attributes(stated))
    (found,) = infer_types(node, types, [None, np.array(4), None])
    assert found == TensorType(DType.FLOAT, (1, 15, extent, 2))


def _holds(found: TensorType, value: np.ndarray, extents: dict[str, int]) -> bool:
    """Whether ``value`` is of type ``found`` when the symbols stand for ``extents``; our own symbols fit anything."""
    if found.dtype.numpy != value.dtype:
        return False
    if found.shape is None:
        return True
    if len(found.shape) != value.ndim:
        return False
    meant = [d if isinstance(d, int) else extents.get(d) for d in found.shape]
    return all(m is None or m == d for m, d in zip(meant, value.shape, strict=True))


def _symbolic(instance: Instance, rng: np.random.Generator, shared: bool) -> tuple[list[Type | None], dict[str, int]]:
    """The input types with extents replaced by symbols: one for each axis, or ``shared`` one for each extent."""
    extents: dict[str, int] = {}
    types: list[Type | None] = []
    for i, x in enumerate(instance.inputs):
        if x is None:
            types.append(None)
            continue
        dims: list[int | str] = []
        for axis, d in enumerate(x.shape):
            if rng.random() < 0.5:
                dims.append(d)
                continue
            name = f"extent{d}" if shared else f"i{i}_{axis}"
            extents[name] = d
            dims.append(name)
        types.append(TensorType(type_of_array(x).dtype, tuple(dims)))
    return types, extents


@pytest.mark.parametrize("op", sorted(INSTANCES))
def test_symbolic_types_hold_for_the_values(op: str) -> None:
    for seed, instance in enumerate(_drawn(op)):
        rng = np.random.default_rng(seed)
        outputs = _run(instance)
        for shared in (False, True):
            types, extents = _symbolic(instance, rng, shared)
            for keep in (1.0, 0.5, 0.0):
                values: list[Any] = [x if rng.random() < keep else None for x in instance.inputs]
                for found, value in zip(_infer(instance, types, values), outputs, strict=True):
                    assert _holds(found, value, extents), f"{found} for {value.shape}: {types}, {instance.attributes}"


@pytest.mark.parametrize("op", sorted(INSTANCES))
def test_unknown_inputs_are_no_contradiction(op: str) -> None:
    for instance in _drawn(op):
        types: list[Type | None] = [None if x is None else UNKNOWN for x in instance.inputs]
        for found, value in zip(_infer(instance, types, [None] * len(types)), _run(instance), strict=True):
            assert found.shape is None or len(found.shape) == value.ndim


@pytest.mark.parametrize("op", sorted(INSTANCES))
def test_work_is_finite_and_not_negative(op: str) -> None:
    definition = operator(op)
    assert definition is not None
    for instance in _drawn(op):
        app = Application(op, Attributes(instance.attributes), _types(instance), instance.inputs, instance.outputs)
        assert 0 <= definition.flops(app, definition.infer(app)) < 1e7
