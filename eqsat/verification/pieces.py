"""Parts of a graph as graphs of their own, and graphs in memory as ONNX Runtime sessions that borrow their weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx

from eqsat.backends.onnxruntime import Session
from eqsat.ir.graph import Graph, Node
from eqsat.ir.types import DType, Type

LENT_BYTES = 1 << 16
"""Constants of more bytes than this are lent to the runtime instead of being written into the model."""


def subgraph(
    graph: Graph,
    nodes: Sequence[Node],
    inputs: Iterable[str],
    outputs: Iterable[str],
    types: Mapping[str, Type] | None = None,
) -> Graph:
    """The graph of ``nodes``, which read ``inputs`` and constants of ``graph``. ``types`` replaces types of values."""
    taken = tuple(dict.fromkeys(inputs))
    used = {value for node in nodes for value in node.inputs} | set(outputs)
    constants = {k: c for k, c in graph.constants.items() if k in used and k not in taken}
    merged = {**graph.types, **(types or {})}
    defined = {*taken, *(value for node in nodes for value in node.outputs)}
    return replace(
        graph,
        nodes=tuple(nodes),
        inputs=taken,
        outputs=tuple(dict.fromkeys(outputs)),
        types=MappingProxyType({k: t for k, t in merged.items() if k in defined}),
        constants=MappingProxyType(constants),
    )


def session_of(graph: Graph, *, prepack: bool = False, threads: int | None = None) -> Session:
    """``graph`` loaded as it is, without optimisation. Raises `ModelError` when ONNX Runtime cannot run it."""
    model, weights = detached(graph)
    return Session(model, "disable", weights=weights, prepack=prepack, threads=threads, arena=False)


def detached(graph: Graph) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """``graph`` as a model whose large constants are references to the arrays returned with it."""
    from eqsat.backends.onnx_file import to_model

    used = {value for node in graph.nodes for value in node.inputs} | set(graph.outputs)
    large = {
        name: constant
        for name, constant in graph.constants.items()
        if name in used
        and constant.bytes > LENT_BYTES
        and constant.dtype.bits >= 8
        and constant.dtype is not DType.STRING
    }
    rest = replace(
        graph,
        nodes=tuple(replace(node, name="") for node in graph.nodes),  # pieces repeat nodes; names have to be unique
        inputs=(*graph.inputs, *large),
        types=MappingProxyType({**graph.types, **{name: c.type for name, c in large.items()}}),
        constants=MappingProxyType({k: c for k, c in graph.constants.items() if k in used and k not in large}),
    )
    model = to_model(rest)
    kept = [i for i in model.graph.input if i.name not in large]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    for name, constant in large.items():
        stub = model.graph.initializer.add(
            name=name,
            data_type=int(constant.dtype),
            dims=constant.shape,
            data_location=onnx.TensorProto.EXTERNAL,
        )
        for key, value in (("location", "lent"), ("offset", "0"), ("length", str(constant.bytes))):
            stub.external_data.add(key=key, value=value)
    return model, {name: constant.numpy() for name, constant in large.items()}
