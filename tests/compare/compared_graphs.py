"""Graphs to compare cost models on, and prices computed from the formulas, without the code under test."""

from __future__ import annotations

import numpy as np

from eqsat.cost.target import Target, load_target
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import Application, Kind, operator
from eqsat.ir.types import TensorType
from eqsat.lower.program import Kernel, Program

VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")


def two_branches() -> Graph:
    """A product, an activation and a residual, read as two outputs of different sizes."""
    rng = np.random.default_rng(5)
    b = GraphBuilder("two_branches")
    x = b.input("x", "float32", (8, 16))
    w = b.constant(rng.normal(size=(16, 16)).astype(np.float32))
    h = b.op("Add", b.op("MatMul", x, w), b.constant(rng.normal(size=(16,)).astype(np.float32)))
    y = b.op("Add", b.op("Relu", h), x)
    z = b.op("ReduceMean", b.op("Mul", y, b.constant(np.float32(0.5))), b.constant(np.array([-1])), keepdims=0)
    t = b.op("Transpose", b.op("Transpose", y, perm=[1, 0]), perm=[1, 0])
    return b.finish({"y": b.op("Sigmoid", t), "z": z})


def wide_then_narrow(branches: int = 6) -> Graph:
    """Large values written one after the other before each is reduced: an order with a far lower peak exists."""
    b = GraphBuilder("wide_then_narrow")
    x = b.input("x", "float32", (4, 1))
    wide = [b.op("Expand", b.op("Exp", b.op("Mul", x, b.constant(np.float32(i + 1)))), b.constant(np.array([4, 256])))
            for i in range(branches)]  # fmt: skip
    grown = [b.op("Sin", v) for v in wide]
    sums = [b.op("ReduceMax", v, b.constant(np.array([1])), keepdims=1) for v in grown]
    return b.finish({"y": b.op("Concat", *sums, axis=1)})


def price_by_hand(program: Program, target_name: str, model: str) -> float:
    """Price of a program from the formulas in docs/compare.md and the types of its values."""
    target = load_target(target_name)
    prepared = _prepared(program.graph, target)
    return sum(_kernel_price(program, k, target, model, prepared) for k in program.kernels)


def _prepared(graph: Graph, target: Target) -> set[str]:
    """Values that depend on constants only: they are computed when a program loads, unless the target keeps the operator."""
    found = set(graph.constants)
    for node in graph.nodes:
        if node.inputs and node.key not in target.kept_at_load and found.issuperset(v for v in node.inputs if v):
            found.update(node.outputs)
    return found


def _kernel_price(program: Program, kernel: Kernel, target: Target, model: str, prepared: set[str]) -> float:
    graph = program.graph
    nodes = [graph.nodes[i] for i in kernel.nodes]
    inside = {v for n in nodes for v in n.outputs}
    shapes = prepared if target.templates else set()  # which the code of a view holds
    read = [
        v
        for n in nodes
        for k, v in enumerate(n.inputs)
        if v and v not in inside and not (k and n.op in VIEWS and v in shapes)
    ]
    if target.templates:
        read = list(dict.fromkeys(read))
    written = {v for n in nodes for v in n.outputs if v and not set(n.outputs).isdisjoint(kernel.outputs)}
    moved = sum(_size(graph, v) for v in read) + sum(_size(graph, v) for v in written)
    loaded = [n.outputs[0] in prepared for n in nodes]
    flops = [0.0 if early else _flops(graph, n) for n, early in zip(nodes, loaded, strict=True)]
    view = all(n.op in VIEWS or early for n, early in zip(nodes, loaded, strict=True))
    if model == "kernels":
        return 0.001 * len(nodes) if view else 1 + 0.001 * (len(nodes) - 1)
    if model == "flops":
        return sum(flops)
    if view:
        return 0.0
    if model == "bytes":
        return moved
    kinds = (Kind.VIEW, Kind.ELEMENTWISE, Kind.INJECTIVE, Kind.REDUCTION, Kind.ANCHOR, Kind.OPAQUE)
    main = max(range(len(nodes)), key=lambda i: (kinds.index(Kind.VIEW if loaded[i] else _kind(nodes[i])), flops[i]))
    first = graph.type_of(nodes[main].inputs[0])
    assert isinstance(first, TensorType)
    rate = target.peak_ops.get(first.dtype.numpy.name, target.peak_ops["default"])
    seconds = max(moved / target.bandwidth_bytes_per_s, sum(flops) / rate)
    return seconds + target.launch_s if model == "roofline-launch" else seconds


def _size(graph: Graph, value: str) -> int:
    found = graph.type_of(value)
    assert isinstance(found, TensorType)
    assert found.shape is not None
    extents = [32 if isinstance(d, str) else d for d in found.shape]
    return int(np.prod(extents, dtype=np.int64)) * found.dtype.numpy.itemsize


def _kind(node: Node) -> Kind:
    found = operator(node.op, node.domain)
    assert found is not None
    return found.kind


def _flops(graph: Graph, node: Node) -> float:
    found = operator(node.op, node.domain)
    assert found is not None
    values = [graph.constants[v].numpy() if v in graph.constants else None for v in node.inputs]
    types = [graph.type_of(v) if v else None for v in node.inputs]
    app = Application(node.key, node.attributes, types, values, len(node.outputs))
    return found.flops(app, [graph.type_of(v) for v in node.outputs])
