"""A graph loaded into ONNX Runtime and called like a function: inputs in order or by name, as arrays or as tensors of PyTorch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eqsat.backends.onnx_file import to_model_and_weights
from eqsat.backends.onnx_weights import files_of_weights
from eqsat.backends.onnxruntime import Session
from eqsat.errors import FeedError, ModelError
from eqsat.frontends.onnx.envelope import with_defaults
from eqsat.frontends.torch_export import is_torch
from eqsat.ir.constants import File
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import check_feeds
from eqsat.ir.types import TensorType


def load_graph(graph: Graph, level: str, *, prepack: bool = True, least_bytes: int = 1024, **settings: Any) -> Session:
    """``graph`` loaded, as it is or rewritten by ONNX Runtime up to ``level``; ``settings``: further ones of `Session`. The model
    refers to constants of ``least_bytes``, and maps those in files. Raises `ModelError` when ONNX Runtime cannot run it."""

    def load(folder: Path | None, names: Mapping[File, str]) -> Session:
        model, weights = to_model_and_weights(graph, least_bytes, names)
        message = model.SerializeToString()
        del model  # several times as large, where it is not of weights
        return Session(message, level, folder=folder, weights=weights, prepack=prepack, **settings)

    folder, names = files_of_weights([c for c in graph.constants.values() if c.bytes >= least_bytes])
    try:
        return load(folder, names)
    except ModelError:
        if folder is None:
            raise
    return load(None, {})  # ONNX Runtime before 1.21 looks for the files elsewhere


def _is_tensor(graph: Graph, value: str) -> bool:
    """Whether a value is no sequence, say, which is handed over as it is; what is no input is an error that is told later."""
    return value not in graph.inputs or isinstance(graph.type_of(value), TensorType)


def call(session: Session, graph: Graph, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of ``graph`` by name, as tensors if an input is one. Raises `FeedError` for inputs that do not fit."""
    if len(inputs) > len(graph.inputs):
        raise FeedError(f"inputs: got {len(inputs)}, the model takes {list(graph.inputs)}")
    given = dict(zip(graph.inputs, inputs, strict=False))
    twice = given.keys() & named.keys()
    if twice:
        raise FeedError(f"inputs: {sorted(twice)} are given by position and by name")
    given = dict[str, Any](with_defaults(graph, {**given, **named}))
    if not any(map(is_torch, given.values())):
        feeds = {name: np.asarray(value) if _is_tensor(graph, name) else value for name, value in given.items()}
        check_feeds(graph, feeds)
        return session.run(feeds, graph.outputs)
    from eqsat.backends.torch_tensors import to_array, to_tensor

    feeds = {name: to_array(value) if is_torch(value) else np.asarray(value) for name, value in given.items()}
    check_feeds(graph, feeds)
    return {name: to_tensor(value) for name, value in session.run(feeds, graph.outputs).items()}
