"""The conformance cases that come with the ONNX package, as test data for whole-model transformations.

Run as a program: loads each case's model, transforms it, runs both in ONNX Runtime and reports where they differ.

    python -m benchmarks.onnx_backend_cases [--kinds node,simple] [--match TEXT] [--transform opset13]
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")

_NEWEST_OPSET, _NEWEST_IR_VERSION = 28, 14  # of ONNX Runtime 1.32

Transform = Callable[[onnx.ModelProto], onnx.ModelProto]


@dataclass(frozen=True)
class Case:
    """One data set of one case. Inputs are in the order of the model's inputs, expected outputs in that of its outputs."""

    name: str
    model: onnx.ModelProto
    inputs: list[Any]
    expected: list[Any]
    rtol: float
    atol: float


def cases(kinds: Sequence[str] = KINDS, match: str = "") -> Iterator[Case]:
    """The cases of the given kinds whose name matches the regular expression ``match``."""
    from onnx.backend.test.loader import load_model_tests

    for kind in kinds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the node cases compute their expectations when imported
            tests = load_model_tests(kind=kind)
        for test in sorted(tests, key=lambda t: t.name):
            if not re.search(match, test.name):
                continue
            if test.model is not None:
                for inputs, expected in test.data_sets or ():
                    yield Case(
                        test.name, loadable(test.model), _arrays(inputs), _arrays(expected), test.rtol, test.atol
                    )
            elif test.model_dir is not None:
                model = onnx.load(Path(test.model_dir) / "model.onnx")
                for folder in sorted(Path(test.model_dir).glob("test_data_set_*")):
                    inputs = _read_all(folder, "input", model.graph.input)
                    expected = _read_all(folder, "output", model.graph.output)
                    yield Case(test.name, model, inputs, expected, test.rtol, test.atol)


def loadable(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` at an opset and IR version that ONNX Runtime loads.

    Whether it still means the same, the expected outputs tell.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.ir_version = min(model.ir_version, _NEWEST_IR_VERSION)
    for entry in changed.opset_import:
        if not entry.domain:
            entry.version = min(entry.version, _NEWEST_OPSET)
    return changed


def _arrays(values: Any) -> list[Any]:
    return [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in values]


def _read_all(folder: Path, stem: str, infos: Any) -> list[Any]:
    return [
        _read(folder / f"{stem}_{i}.pb", info.type)
        for i, info in enumerate(infos)
        if (folder / f"{stem}_{i}.pb").exists()
    ]


def _read(path: Path, type: onnx.TypeProto) -> Any:
    data = path.read_bytes()
    kind: str | None = type.WhichOneof("value")
    if kind == "sequence_type":
        return list(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def run_in_runtime(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of ``model`` in ONNX Runtime, without its own rewriting. Raises what ONNX Runtime raises."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()] + [i.name for i in session.get_overridable_initializers()]
    order = [i.name for i in model.graph.input if i.name in names]
    feeds = dict(zip(order, map(_feed, inputs), strict=False))
    if any(isinstance(f, onnxruntime.OrtValue) for f in feeds.values()):
        values = {
            k: f if isinstance(f, onnxruntime.OrtValue) else onnxruntime.OrtValue.ortvalue_from_numpy(f)
            for k, f in feeds.items()
        }
        return [v.numpy() for v in session.run_with_ort_values(None, values)]
    return list(session.run(None, feeds))


def _feed(value: Any) -> Any:
    if isinstance(value, list) or value is None:
        return value
    array = np.asarray(value)
    if array.dtype.kind == "V":  # an element type numpy lacks
        import onnxruntime

        code = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(f"u{array.itemsize}"), code)
    return array


def same_bits(a: Any, b: Any) -> bool:
    """Whether two results (arrays, or lists of them) are equal to the bit."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same_bits(x, y) for x, y in zip(a, b, strict=True))
    if a is None or b is None:
        return a is b
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    return bool((x == y).all()) if x.dtype == object else x.tobytes() == y.tobytes()


def close(a: Any, b: Any, rtol: float, atol: float) -> bool:
    """Whether two results agree within the tolerance of the case."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(close(x, y, rtol, atol) for x, y in zip(a, b, strict=True))
    if a is None or b is None:
        return a is b
    x, y = np.asarray(a), np.asarray(b)
    if x.shape != y.shape:
        return False
    if x.dtype.kind in "fc" and y.dtype.kind in "fc":
        return bool(np.allclose(x, y, rtol=rtol, atol=atol, equal_nan=True))
    if x.dtype.kind == "V" or y.dtype.kind == "V":
        return x.tobytes() == y.tobytes()
    return bool((x == y).all())


def round_trip(model: onnx.ModelProto) -> onnx.ModelProto:
    """Reads and writes the model."""
    from eqsat.backends.onnx_file import to_model
    from eqsat.frontends.onnx.model import load_onnx

    return to_model(load_onnx(model))


def at_opset(opset: int) -> Transform:
    """Reads the model and writes it as if it had come with ``opset``; models with opaque nodes stay at their own."""

    def transform(model: onnx.ModelProto) -> onnx.ModelProto:
        from eqsat.backends.onnx_file import to_model
        from eqsat.frontends.onnx.model import load_onnx

        graph = load_onnx(model)
        if any(node.opaque for node in graph.nodes):
            return to_model(graph)
        return to_model(replace(graph, envelope=replace(graph.envelope, opset=opset)))

    return transform


def optimized(model: onnx.ModelProto) -> onnx.ModelProto:
    """Reads, optimises with every rule of the default numerics, and writes the model, without verification."""
    import eqsat
    from eqsat.backends.onnx_file import to_model

    return to_model(eqsat.optimize(model, verify=False, form="flat").program.graph)


TRANSFORMS: dict[str, Transform] = {
    "roundtrip": round_trip,
    "optimize": optimized,
    **{f"opset{opset}": at_opset(opset) for opset in range(7, _NEWEST_OPSET + 1)},
}


def verdict(case: Case, transform: Transform) -> tuple[str, str]:
    """What became of a case: a word to count by, and details.

    ``unsupported``: ONNX Runtime does not run the original; ``wrong there``: it runs it, but not as the case expects;
    ``equal``, ``close``, ``differs``, ``fails``: the transformed model against the original.
    """
    try:
        before = run_in_runtime(case.model, case.inputs)
    except Exception as error:  # whatever the runtime refuses is no case for us
        return "unsupported", _one_line(error)
    if not close(before, case.expected, max(case.rtol, 1e-3), max(case.atol, 1e-4)):
        return "wrong there", ""
    try:
        result = transform(case.model)
        after = run_in_runtime(result, case.inputs)
    except Exception as error:
        return "fails", f"{type(error).__name__}: {_one_line(error)}"
    if same_bits(before, after):
        return "equal", ""
    return ("close" if close(before, after, case.rtol, case.atol) else "differs"), ""


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases; the exit status is 1 if any transformed model fails or differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated: node, simple, pytorch-...")
    parser.add_argument("--match", default="", help="regular expression on the name of the case")
    parser.add_argument(
        "--transform", default="roundtrip", help="roundtrip, optimize, opset7 to opset28, or module:function"
    )
    parser.add_argument("--verbose", action="store_true", help="list the unsupported cases too")
    parser.add_argument("--trace", action="store_true", help="print each case as it starts")
    options = parser.parse_args(arguments)
    transform = TRANSFORMS.get(options.transform)
    if transform is None:
        module, _, function = options.transform.partition(":")
        transform = getattr(importlib.import_module(module), function)
    counts: Counter[str] = Counter()
    for case in cases(options.kinds.split(","), options.match):
        if options.trace:
            print(case.name, flush=True)
        found, detail = verdict(case, transform)
        counts[found] += 1
        if found in ("fails", "differs", "close") or options.verbose:
            print(f"{found}: {case.name} {detail}", flush=True)
    print(", ".join(f"{count} {found}" for found, count in counts.most_common()))
    return 1 if counts["fails"] or counts["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
