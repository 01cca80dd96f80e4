"""Small ONNX models, and ONNX Runtime as the judge of what they compute."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from eqsat.backends.onnx_file import to_model
from eqsat.frontends.onnx.model import load_onnx

Arrays = Mapping[str, np.ndarray]


def node(op: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def info(name: str, array: np.ndarray, shape: Sequence[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape if shape is None else shape
    )


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Arrays,
    initializers: Arrays | None = None,
    *,
    opset: int = 17,
    outputs: Sequence[str | onnx.ValueInfoProto] = ("y",),
    shapes: Mapping[str, Sequence[Any]] | None = None,
    ir_version: int = 8,
    **graph_parts: Any,
) -> onnx.ModelProto:
    """A model whose outputs have no declared type unless given as ``ValueInfoProto``."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [info(k, v, (shapes or {}).get(k)) for k, v in inputs.items()],
        [onnx.ValueInfoProto(name=o) if isinstance(o, str) else o for o in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (initializers or {}).items()],
        **graph_parts,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def run(source: onnx.ModelProto | str, feeds: Arrays) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data = source if isinstance(source, str) else source.SerializeToString()
    return list(onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, dict(feeds)))


def assert_same(before: Sequence[Any], after: Sequence[Any]) -> None:
    assert len(before) == len(after)
    for a, b in zip(before, after, strict=True):
        if isinstance(a, list):
            assert_same(a, b)
        else:
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert (a == b).all() if a.dtype == object else a.tobytes() == b.tobytes()


def assert_round_trip(source: onnx.ModelProto, feeds: Arrays) -> onnx.ModelProto:
    """Reads and writes ``source`` and asserts equal bits at an unchanged opset; returns what was written."""
    before = run(source, feeds)
    for output, result in zip(source.graph.output, before, strict=True):
        if isinstance(result, np.ndarray) and not output.HasField("type"):  # the checker wants them declared
            output.CopyFrom(info(output.name, result))
    graph = load_onnx(source)
    graph.check()
    written = to_model(graph)
    assert_same(before, run(written, feeds))
    assert written.opset_import[0].version == next(i.version for i in source.opset_import if not i.domain)
    if passes_checker(source):
        onnx.checker.check_model(written)
    return written


def passes_checker(source: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(source)
    except onnx.checker.ValidationError:  # it refuses operators that the runtime runs, deprecated ones for example
        return False
    return True


def noise(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
