"""Graphs with named nodes, and what a placed program does between devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.operators.devices import device_of
from eqsat.lower.program import Program

SHAPE = (5, 7)


def named(inputs: str, *lines: str, shape: tuple[int, ...] = SHAPE) -> Graph:
    """A graph of float32 inputs and lines ``value operator operand ...``; nodes are called like their values, the last is the
    output."""
    b = GraphBuilder()
    values = {name: b.input(name, "float32", shape) for name in inputs.split()}
    for line in lines:
        name, op, *operands = line.split()
        values[name] = b.op(op, *(values[o] for o in operands))
    names = [line.split()[0] for line in lines]
    graph = b.finish({name: values[name] for name in names})
    nodes = [replace(n, name=n.outputs[0]) for n in graph.nodes]
    return replace(graph, nodes=tuple(nodes), outputs=(names[-1],))


def copies(program: Program) -> list[tuple[str, str, str]]:
    """The copies of a program: value of the original, source, destination; sorted."""
    graph = program.graph
    return sorted(
        (program.origin.get(n.inputs[0], n.inputs[0]), n.attributes["source"], n.attributes["destination"])
        for n in graph.nodes
        if n.op == "DeviceCopy"
    )


def places(program: Program) -> dict[str, str]:
    """Value of the original -> device that computes it."""
    graph = program.graph
    return {
        program.origin[v]: device_of(n, graph.devices)
        for n in graph.nodes
        for v in n.outputs
        if n.op != "DeviceCopy" and v in program.origin
    }


def placed(graph: Graph, devices: dict[str, str], **options: Any) -> eqsat.Result:
    """``graph`` placed on ``cpu`` and ``cuda:0`` without rewriting or verifying."""
    return eqsat.optimize(graph, devices=devices, only_rules=[], verify=False, **options)
