"""The conformance cases of the ONNX package: our definitions, and those by schema, give their types and values, and they
survive reading and writing. (In one file, since it takes seconds to make them.)"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.onnx_backend_cases import TRANSFORMS, Case, cases, verdict
from eqsat.errors import EqsatError
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.ir.operator import operator
from eqsat.ir.types import OpaqueType, TensorType

KNOWN = {
    "test_spacetodepth_crd_mode_example": "the attribute it tests is newer than any opset that ONNX Runtime loads",
}
"""Cases that may differ, with the reason. Random operators and those that need another package are left out."""

LEFT_OUT = ("test_bernoulli", "test_image_decoder")


def _supported(graph: Graph) -> bool:
    return bool(graph.nodes) and all(not n.opaque and operator(n.op, n.domain) is not None for n in graph.nodes)


@pytest.fixture(scope="module")
def node_cases() -> list[tuple[Case, Graph]]:
    found = []
    for case in cases(kinds=["node"]):
        if case.name.startswith(LEFT_OUT):
            continue
        try:
            graph = load_onnx(case.model)
        except EqsatError:
            continue
        if _supported(graph) and len(case.inputs) == len(graph.inputs):
            found.append((case, graph))
    return found


def _feeds(case: Case, graph: Graph) -> dict[str, np.ndarray] | None:
    if any(not isinstance(x, np.ndarray | np.generic) for x in case.inputs):
        return None
    return dict(zip(graph.inputs, map(np.asarray, case.inputs), strict=True))


def _agree(ours: np.ndarray, expected: np.ndarray, case: Case) -> bool:
    if ours.shape != expected.shape:
        return False
    if expected.dtype == object:
        return [str(x) for x in ours.reshape(-1)] == [str(x) for x in expected.reshape(-1)]
    if ours.dtype != expected.dtype:
        return False
    if expected.dtype.kind in "biu":
        return bool(np.array_equal(ours, expected))
    wide = (np.asarray(a).astype(np.complex128 if a.dtype.kind == "c" else np.float64) for a in (ours, expected))
    a, b = wide
    scale = 1e-2 if expected.dtype.itemsize <= 2 else 0.0
    return bool(np.allclose(a, b, rtol=max(case.rtol, scale), atol=max(case.atol, scale), equal_nan=True))


def test_values_and_types_agree_with_the_expected_outputs(node_cases: list[tuple[Case, Graph]]) -> None:
    wrong: dict[str, str] = {}
    checked = 0
    for case, graph in node_cases:
        feeds = _feeds(case, graph)
        if feeds is None:
            continue
        try:
            outputs = run(graph, feeds)
        except (EqsatError, TypeError, ValueError, IndexError) as error:
            wrong[case.name] = f"{type(error).__name__}: {error}"[:200]
            continue
        checked += 1
        for name, expected in zip(graph.outputs, case.expected, strict=True):
            ours = outputs[name]
            if not isinstance(expected, np.ndarray | np.generic):
                continue
            if not _agree(np.asarray(ours), np.asarray(expected), case):
                wrong[case.name] = f"{name}: {np.asarray(ours).dtype}{np.asarray(ours).shape} differs"
            inferred = graph.type_of(name)
            if isinstance(inferred, OpaqueType):
                continue
            assert isinstance(inferred, TensorType)
            assert inferred.dtype.numpy == expected.dtype, case.name
            if inferred.shape is not None:
                static = [(a, b) for a, b in zip(inferred.shape, expected.shape, strict=True) if isinstance(a, int)]
                assert all(a == b for a, b in static), f"{case.name}: {inferred} is not {expected.shape}"
    assert {k: v for k, v in wrong.items() if k not in KNOWN} == {}
    assert checked > 1700


@pytest.mark.thorough
def test_round_trip() -> None:
    found = {case.name: verdict(case, TRANSFORMS["roundtrip"]) for case in cases()}
    assert sum(word == "equal" for word, _ in found.values()) > 1500
    assert not {name: v for name, v in found.items() if v[0] in ("fails", "differs", "close")}


@pytest.mark.slow
@pytest.mark.parametrize("opset", [7, 9, 10, 12, 15, 17, 20, 26])
def test_other_opsets(opset: int) -> None:
    """Written as if the model had come with another opset, each case computes the same."""
    found = {case.name: verdict(case, TRANSFORMS[f"opset{opset}"]) for case in cases()}
    broken = {name: v for name, v in found.items() if v[0] in ("fails", "differs")}
    # "Could not find an implementation": the runtime lacks the kernel at that opset
    assert not {name: v for name, v in broken.items() if "NOT_IMPLEMENTED" not in v[1]}
