"""How optimisation time and e-graph size grow with depth: one BERT layer, stacked.

    python -m benchmarks.growth --model FOLDER/bert_base_b1s128.onnx [--layers 1,2,4,8,12,16,24] [--target NAME]
        [--cost NAME] [--repeats 3]

The layer is the part of the model between the outputs of two successive encoder layers (every second LayerNormalization after
the embedding's). Prints seconds of encode + saturate + analyse + extract by depth, those of the extraction alone with the gap
that it proves, and the exponent of a power law fitted to depths of 4 and more.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import eqsat
from eqsat.ir.graph import Graph, Node


def stack_layers(graph: Graph, layers: int) -> Graph:
    """The graph with its encoder layers replaced by ``layers`` copies of the second one."""
    norms = [n.outputs[0] for n in graph.nodes if n.op == "LayerNormalization"]
    boundaries = norms[0::2]
    start, end, last = boundaries[1], boundaries[2], boundaries[-1]
    dependent = _reached(graph.nodes, {start})
    body = _needed([n for n in graph.nodes if not dependent.isdisjoint(n.outputs)], {end}, stop={start})
    inner = {v for n in body for v in n.outputs}
    after = _reached(graph.nodes, {last})
    tail = [n for n in graph.nodes if not after.isdisjoint(n.outputs) and last not in n.outputs]
    shared = {v for n in (*body, *tail) for v in n.inputs} - inner - {start, last}
    head = _needed(graph.nodes, shared | {boundaries[0]}, stop=set())
    head = [n for n in head if after.isdisjoint(n.outputs)]
    types = dict(graph.types)
    nodes: list[Node] = list(head)
    current = boundaries[0]
    for layer in range(layers):
        names = {v: f"layer{layer}_{v}" for v in inner}
        for value, name in names.items():
            types[name] = graph.type_of(value)
        names[start] = current
        for node in body:
            inputs = tuple(names.get(v, v) for v in node.inputs)
            outputs = tuple(names[v] for v in node.outputs)
            nodes.append(replace(node, inputs=inputs, outputs=outputs, name=f"layer{layer}_{node.name}"))
        current = names[end]
    nodes += [replace(n, inputs=tuple(current if v == last else v for v in n.inputs)) for n in tail]
    outputs = tuple(current if v == last else v for v in graph.outputs)
    made = replace(graph, nodes=tuple(nodes), types=types, outputs=outputs).pruned()
    made.check()
    return made


def _reached(nodes: Sequence[Node], values: set[str]) -> set[str]:
    """``values`` and everything computed from them."""
    found = set(values)
    for node in nodes:
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def _needed(nodes: Sequence[Node], values: set[str], stop: set[str]) -> list[Node]:
    """The nodes that ``values`` need, not looking behind ``stop``, in order."""
    wanted = set(values)
    kept = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs) and stop.isdisjoint(node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    return kept[::-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--layers", default="1,2,4,8,12,16,24")
    parser.add_argument("--target", default="onnxruntime-cpu")
    parser.add_argument("--cost", default="kernels")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    graph = eqsat.load(options.model)
    eqsat.optimize(stack_layers(graph, 1), verify=False, form="flat")  # imports
    depths = [int(n) for n in options.layers.split(",")]
    times: list[float] = []
    print("| layers | operators | after | e-nodes | iterations | seconds | extraction | gap |\n" + "|---" * 8 + "|")
    for layers in depths:
        stacked = stack_layers(graph, layers)
        chosen: dict[str, Any] = {"form": "flat", "target": options.target, "cost": options.cost}
        reports = [eqsat.optimize(stacked, **chosen, verify=False).report for _ in range(options.repeats)]
        report = reports[0]
        best = min(sum(r.seconds[k] for k in ("encode", "saturate", "analyse", "extract")) for r in reports)
        times.append(best)
        print(
            f"| {layers} | {sum(report.operators_before.values())} | {sum(report.operators_after.values())} | "
            f"{report.enodes} | {report.iterations} | {best:.3f} | "
            f"{min(r.seconds['extract'] for r in reports):.3f} | {100 * report.gap:.3f} % |"
        )
    deep = [(d, t) for d, t in zip(depths, times, strict=True) if d >= 4]
    exponent = np.polyfit(np.log([d for d, _ in deep]), np.log([t for _, t in deep]), 1)[0]
    print(f"seconds ~ layers ** {exponent:.2f}")


if __name__ == "__main__":
    main()
