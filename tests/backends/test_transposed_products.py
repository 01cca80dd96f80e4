"""Products of transposed operands in half precision: ONNX Runtime ends the process on some, at its highest level."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnx_form import in_form
from eqsat.backends.transposed_products import crashing_products
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

_LOADS = "import onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"


def _keys_as_they_lie(cast: bool = False) -> Graph:
    """Queries of four axes by keys of three, beside a product by weights: as decoders with one batch."""
    b = GraphBuilder()
    keys, queries, x = (
        b.input(n, "float16", s) for n, s in (("k", (16, 4, 8)), ("q", (1, 4, 16, 8)), ("x", (1, 16, 8)))
    )
    moved = b.op("Transpose", keys, perm=(1, 2, 0))
    weight = b.constant(np.linspace(-1, 1, 64).reshape(8, 8).astype(np.float16))
    if cast:
        moved, queries = b.op("Cast", moved, to=1), b.op("Cast", queries, to=1)
    return b.finish({"scores": b.op("MatMul", queries, moved), "y": b.op("MatMul", x, weight)})


def _rows_first(perm: tuple[int, ...] = (1, 0, 2), by: tuple[int, ...] = (8, 8)) -> Graph:
    """Sequence before batch, and weights of the type of the rows."""
    b = GraphBuilder()
    x = b.input(
        "x", "float16", ("s", "n", 8) if perm == (1, 0, 2) else (8, "s", "n") if perm == (1, 2, 0) else ("s", 8, "n")
    )
    weight = b.constant(np.linspace(-1, 1, 64).reshape(by).astype(np.float16))
    return b.finish({"y": b.op("MatMul", b.op("Transpose", x, perm=perm), weight)})


GRAPHS = {
    "keys": _keys_as_they_lie(),
    "keys, cast": _keys_as_they_lie(cast=True),
    "rows first": _rows_first(),
    "features first": _rows_first((1, 2, 0)),
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("form", ["flat", "onnxruntime"])
def test_results_load_at_the_highest_level(graph: Graph, form: str, tmp_path: Path) -> None:
    result = eqsat.optimize(graph, form=form)
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    assert not crashing_products(in_form(result.program.graph, form))
    result.save(tmp_path / "result.onnx")
    loaded = subprocess.run([sys.executable, "-c", _LOADS, str(tmp_path / "result.onnx")], capture_output=True)
    assert loaded.returncode == 0


@pytest.mark.parametrize("graph", [*GRAPHS.values(), _rows_first((1, 0, 2), (1, 8, 8)), _rows_first((0, 2, 1), (8, 8))])
def test_what_is_kept_out_are_products_that_the_runtime_ends_on(graph: Graph, tmp_path: Path) -> None:
    as_it_is = to_model(graph, form="tensorrt")  # a form in which nothing is mended for ONNX Runtime
    (tmp_path / "model.onnx").write_bytes(as_it_is.SerializeToString())
    loaded = subprocess.run([sys.executable, "-c", _LOADS, str(tmp_path / "model.onnx")], capture_output=True)
    if loaded.returncode >= 0 and crashing_products(graph):
        pytest.skip("this processor or release does not crash")
    assert (loaded.returncode < 0) == bool(crashing_products(graph))
