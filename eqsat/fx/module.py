"""Graph -> torch.fx.GraphModule: its nodes written one by one, its constants as buffers."""

import re
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import fx

from eqsat.errors import EqsatError, ModelError
from eqsat.fx import lookup, movement, pointwise, products, quantised, recurrent, reductions, windows  # pyright: ignore[reportUnusedImport]  # noqa: F401  # they register writers
from eqsat.fx.site import SUPPORTED, WRITERS, Scope, Site, Unwritten
from eqsat.ir.composite import expanded, once
from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import definition_of
from eqsat.ir.shape_values import shape_value
from eqsat.ir.types import TensorType, is_sequence

_ADVICE = "run the program in ONNX Runtime, or disable the rules that make it"


def check_operators(graph: Graph) -> None:
    """Raises `ModelError`, which names them, if there are operators that torch has no counterpart for."""
    missing = Counter(node.key for node in _spelled_out(graph).nodes if node.opaque or node.key not in WRITERS)
    if missing:
        listed = ", ".join(f"{key} ({count})" if count > 1 else key for key, count in sorted(missing.items()))
        raise ModelError(f"torch: no operator of torch is known for {listed}; {_ADVICE}")


def to_module(graph: Graph, name: str = "Optimized") -> fx.GraphModule:
    """A module that computes ``graph``: takes its inputs in order, returns a tuple of its outputs in order.

    ``input_names`` and ``output_names`` of the module say which they are. Constants are buffers, copies of the graph's.
    Symbolic extents are read off the inputs. Raises `ModelError` for operators and element types that torch does not have.
    """
    check_operators(graph)
    graph = once(_spelled_out(graph))  # programs repeat views for each kernel that reads them
    _check_types(graph)
    root = torch.nn.Module()
    traced = fx.Graph()
    scope = Scope(
        graph,
        root,
        fx.proxy.GraphAppendingTracer(traced),
        producers=graph.producers(),
        readers=graph.reads(),
    )
    for value in graph.inputs:
        scope.values[value] = scope.tracer.create_proxy("placeholder", _identifier(value), (), {})
    for value in (v for node in graph.nodes for v in node.inputs):
        _bind(scope, value)
    for node in graph.nodes:
        _write(scope, node)
    for value in graph.outputs:
        _bind(scope, value)
    traced.output(tuple(scope.values[value].node for value in graph.outputs))
    traced.eliminate_dead_code()
    module = fx.GraphModule(root, traced, name)
    module.delete_all_unused_submodules()
    used = {n.target for n in traced.nodes if n.op == "get_attr"}
    for buffer in [b for b, _ in module.named_buffers() if b not in used]:
        delattr(module, buffer)
    module.input_names, module.output_names = graph.inputs, graph.outputs
    return module.eval()


def _spelled_out(graph: Graph) -> Graph:
    return expanded(graph, lambda node: node.key in WRITERS)


def _check_types(graph: Graph) -> None:
    for value in (*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs if v)):
        found = graph.type_of(value)
        if not isinstance(found, TensorType) or found.dtype not in SUPPORTED or found.shape is None:
            raise ModelError(f"torch: value {value!r} is {found}, which torch has no tensors for; {_ADVICE}")


def _bind(scope: Scope, value: str) -> None:
    """A constant as a buffer, once."""
    if value in scope.graph.constants and value not in scope.values:
        scope.values[value] = scope.buffer(scope.graph.constants[value].numpy(), _identifier(value))


def _write(scope: Scope, node: Node) -> None:
    site = Site(scope, node, [scope.values[v] if v else None for v in node.inputs])
    try:
        found: Any = WRITERS[node.key](site)
    except Unwritten as reason:
        raise ModelError(f"torch: {node.key} {node.name!r} cannot be written: {reason}; {_ADVICE}") from None
    outputs = found if is_sequence(found) else (found,)
    for value, proxy in zip(node.outputs, outputs, strict=False):
        if value:
            proxy.node.name = scope.tracer.graph._graph_namespace.create_name(_identifier(value), proxy.node)
            scope.values[value] = proxy
    if any(v and v not in scope.values for v in node.outputs):
        raise ModelError(f"torch: {node.key} {node.name!r} cannot be written: an output that torch does not have")
    _follow(scope, node)


def _follow(scope: Scope, node: Node) -> None:
    """Notes what is known of a list of extents that the node computes."""
    definition = definition_of(node)
    if definition is None or len(node.outputs) != 1:
        return
    types = scope.graph.operand_types(node)
    known = [_elements(scope, v) if v else None for v in node.inputs]
    try:
        found = shape_value(definition, node.attributes, types, known)
    except EqsatError:
        return
    if found is not None:
        scope.lists[node.outputs[0]] = found


def _elements(scope: Scope, value: str) -> np.ndarray | None:
    constant = scope.graph.constants.get(value)
    if constant is not None:
        return constant.numpy() if constant.size <= 64 else None
    return scope.lists.get(value)


def _identifier(name: str) -> str:
    """A value's name as one of Python's."""
    plain = re.sub(r"\W+", "_", name).strip("_") or "value"
    return f"v_{plain}" if plain[0].isdigit() else plain
