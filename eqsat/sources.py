"""What a model may be given as: a file, a message, an object of PyTorch, or a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eqsat.ir.graph import Graph


def load(
    source: Any, dims: Mapping[str, int] | None = None, *, example_inputs: Any = None, dynamic_shapes: Any = None
) -> Graph:
    """A graph from a path, an ``onnx.ModelProto``, an ``onnx_ir.Model``, a `Graph` or an object of PyTorch (docs/torch.md)."""
    if isinstance(source, Graph):
        return source
    from eqsat.frontends.onnx.model import load_onnx

    return load_onnx(readable(source, example_inputs, dynamic_shapes), dims=dims)


def readable(source: Any, example_inputs: Any = None, dynamic_shapes: Any = None) -> Any:
    """``source``, or if it is an object of PyTorch the ONNX model it exports to."""
    from eqsat.frontends.torch_export import as_onnx, is_torch

    return as_onnx(source, example_inputs, dynamic_shapes) if is_torch(source) else source
