"""Running a placed program: a session for each stretch on one device, values handed from one to the next by the copies.

Sessions of ONNX Runtime on the CPU serve as devices here. Nothing but a copy moves a value: a session sees the values that its
device has and no others, so a program that lacks a copy fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eqsat.backends.onnx_file import to_model_and_weights
from eqsat.backends.onnxruntime import Session
from eqsat.errors import FeedError, ModelError
from eqsat.ir.graph import Graph, Node
from eqsat.ir.operators.devices import DEVICE_COPY, device_of
from eqsat.ir.parts import part_at


@dataclass(frozen=True)
class Segment:
    """Consecutive nodes on one device: a graph from the values it reads to those that others read."""

    device: str
    graph: Graph


@dataclass(frozen=True)
class Copy:
    """A value of ``source`` that ``destination`` has under another name from now on."""

    value: str
    name: str
    source: str
    destination: str


def segments(graph: Graph) -> tuple[Segment | Copy, ...]:
    """The steps of a placed graph in an order in which they can run.

    Each stretch goes on as long as its device has a node whose inputs are there; copies are made once their value is and no
    device can go on without. Raises `ModelError` if a node has no device or reads a value of another one.
    """
    place = {v: graph.devices.get(v, "") for v in graph.inputs}
    for node in graph.nodes:
        device = device_of(node, graph.devices)
        if not device:
            raise ModelError(f"{node.key} {node.name!r}: has no device; place the program first")
        expected = str(node.attributes["source"]) if node.key == DEVICE_COPY else device
        for value in node.inputs:
            at = place.get(value, expected)  # absent inputs and constants are everywhere
            if at != expected:
                raise ModelError(f"{node.key} {node.name!r}: reads {value!r}, which is on {at}, not on {expected}")
        place.update((v, device) for v in node.outputs if v)
    waiting: list[Node] = list(graph.nodes)
    there = {*graph.inputs, *graph.constants, ""}
    steps: list[Segment | Copy] = []
    while waiting:
        best: list[Node] = []
        for device in dict.fromkeys(device_of(n, graph.devices) for n in waiting):
            run = _runnable(waiting, there, graph, device)
            best = run if len(run) > len(best) else best
        if best:
            own = {id(n) for n in best}
            part = part_at(graph, {i for i, n in enumerate(graph.nodes) if id(n) in own})
            steps.append(Segment(device_of(best[0], graph.devices), part))
        else:
            best = [n for n in waiting if n.key == DEVICE_COPY and n.inputs[0] in there]
            steps.extend(_copy(n) for n in best)
        assert best, "the program is not in an order in which it can run"
        done = {id(n) for n in best}
        there.update(v for n in best for v in n.outputs)
        waiting = [n for n in waiting if id(n) not in done]
    return tuple(steps)


def _runnable(waiting: list[Node], there: set[str], graph: Graph, device: str) -> list[Node]:
    """The nodes that ``device`` can run one after the other without a further copy."""
    known = set(there)
    found: list[Node] = []
    for node in waiting:
        if node.key != DEVICE_COPY and device_of(node, graph.devices) == device and known.issuperset(node.inputs):
            found.append(node)
            known.update(node.outputs)
    return found


def _copy(node: Node) -> Copy:
    return Copy(node.inputs[0], node.outputs[0], str(node.attributes["source"]), str(node.attributes["destination"]))


class PlacedSession:
    """A placed graph, loaded: one session of ONNX Runtime on the CPU for each segment.

    ``copies`` counts the copies that one run makes. Raises `ModelError` if a node has no device or reads a value that is not
    on it.
    """

    def __init__(self, graph: Graph, *, threads: int = 1) -> None:
        self.steps = segments(graph)
        self.copies = sum(isinstance(step, Copy) for step in self.steps)
        self._graph = graph
        self._sessions: dict[int, Session] = {}
        for index, step in enumerate(self.steps):
            if isinstance(step, Segment):
                model, weights = to_model_and_weights(step.graph)
                self._sessions[index] = Session(model, weights=weights, threads=threads)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name. Raises `FeedError` for a missing input, `ModelError` when an operator fails."""
        graph = self._graph
        memory: dict[str, dict[str, Any]] = {}
        for name in graph.inputs:
            if name not in feeds:
                raise FeedError(f"input {name!r} is missing")
            memory.setdefault(graph.devices.get(name, ""), {})[name] = feeds[name]
        found: dict[str, Any] = {v: feeds[v] for v in graph.outputs if v in graph.inputs}
        found.update((v, graph.constants[v].numpy()) for v in graph.outputs if v in graph.constants)
        for index, step in enumerate(self.steps):
            if isinstance(step, Copy):
                made = {step.name: memory[step.source][step.value]}
                memory.setdefault(step.destination, {}).update(made)
            else:
                own = memory.setdefault(step.device, {})
                made = self._sessions[index].run({v: own[v] for v in step.graph.inputs})
                own.update(made)
            found.update((v, x) for v, x in made.items() if v in graph.outputs)
        return {v: found[v] for v in graph.outputs}
