"""Which node is to run where, and the graph with that written into it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from eqsat.errors import OptionError
from eqsat.ir.graph import Attributes, Graph, Node, fresh_name
from eqsat.ir.operator import split_key
from eqsat.ir.operators.devices import DEVICE_COPY, ON_DEVICE, device_of
from eqsat.placement.machine import Machine

EVERY_OTHER = "*"
"""In a mapping of devices, stands for every node that nothing else gives a device."""


@dataclass(frozen=True)
class Annotated:
    """A graph in which nodes of different annotation never read each other directly.

    ``graph``: copies are gone, and an ``eqsat::OnDevice`` stands wherever a node is annotated otherwise than the node it reads
    (having no device counts as an annotation), and between inputs and nodes with a device. So no rule sees nodes of two
    annotations at once. ``homes``: input or output of the graph -> where it lives. ``nodes``: device of each node of
    ``graph``, empty if free.
    """

    graph: Graph
    homes: Mapping[str, str]
    nodes: tuple[str, ...]


def annotate(graph: Graph, devices: Mapping[str, str], machine: Machine) -> Annotated:
    """The graph with the devices that it names itself and those of ``devices``, which come first.

    Keys of ``devices`` are names of nodes, of values (the node that computes it; of an output also where it is left), of
    inputs (where they come from), and ``"*"``. An output whose node alone has a device is left there; other inputs and
    outputs are on the host. Raises `OptionError` for a name that the graph or a device that the machine does not have.
    """
    own = {v: machine.resolve(d, f"device of {v!r} in the model") for v, d in graph.devices.items()}
    given = {n: machine.resolve(d, f"device of {n!r}") for n, d in devices.items()}
    rest = given.pop(EVERY_OTHER, "")
    producers = graph.producers()
    names = {node.name for node in graph.nodes if node.name}
    for name in given:
        if name in graph.constants and name not in names:
            raise OptionError(f"device of {name!r}: it is a constant, and constants are wherever they are needed")
        if name not in names and name not in producers and name not in graph.inputs:
            raise OptionError(f"device of {name!r}: the model has no node, value or input of that name")
    of_values = {**own, **{n: d for n, d in given.items() if n in producers or n in graph.inputs}}
    nodes = [given.get(n.name, "") if n.name else "" for n in graph.nodes]
    nodes = [found or device_of(n, of_values) for n, found in zip(graph.nodes, nodes, strict=True)]
    by_value = {v: d for n, d in zip(graph.nodes, nodes, strict=True) for v in n.outputs if v}
    homes: dict[str, str] = {v: of_values.get(v, machine.host) for v in graph.inputs}
    for value in graph.outputs:
        home = given.get(value) or by_value.get(value) or of_values.get(value) or machine.host
        if value not in graph.inputs:
            homes[value] = home
    nodes = [found or rest for found in nodes]
    return _separated(_without_copies(graph, nodes), homes)


def _without_copies(graph: Graph, devices: list[str]) -> tuple[Graph, list[str]]:
    """The graph without its copies (``eqsat::DeviceCopy``, and an Identity with a device, as which they are saved).

    A copy that is an output stays as an Identity on the device of what it copies: where it is left is said by its home.
    """
    source: dict[str, str] = {}
    by_value: dict[str, str] = {}
    nodes: list[Node] = []
    kept: list[str] = []
    for node, device in zip(graph.nodes, devices, strict=True):
        inputs = tuple(source.get(v, v) for v in node.inputs)
        if node.key == DEVICE_COPY or (node.key == "Identity" and device_of(node, graph.devices)):
            if node.outputs[0] not in graph.outputs:
                source[node.outputs[0]] = inputs[0]
                continue
            device = by_value.get(inputs[0], "")
            node = Node("Identity", inputs, node.outputs, name=node.name)
        by_value.update((v, device) for v in node.outputs)
        nodes.append(replace(node, inputs=inputs))
        kept.append(device)
    types = {v: t for v, t in graph.types.items() if v not in source}
    return replace(graph, nodes=tuple(nodes), types=types, devices={}), kept


def _separated(placed: tuple[Graph, list[str]], homes: dict[str, str]) -> Annotated:
    """Puts ``eqsat::OnDevice`` where annotations change."""
    graph, devices = placed
    domain, op = split_key(ON_DEVICE)
    annotation: dict[str, str] = {}
    types = dict(graph.types)
    taken = graph.names()
    seen: dict[tuple[str, str], str] = {}
    nodes: list[Node] = []
    kept: list[str] = []
    for node, device in zip(graph.nodes, devices, strict=True):
        inputs: list[str] = []
        for value in node.inputs:
            if not value or value in graph.constants or annotation.get(value, "") == device:
                inputs.append(value)
                continue
            if (value, device) not in seen:
                seen[value, device] = name = fresh_name(f"{value}@{device}", taken)
                types[name] = graph.type_of(value)
                nodes.append(Node(op, (value,), (name,), Attributes({"device": device}), domain, name))
                kept.append(device)
            inputs.append(seen[value, device])
        nodes.append(replace(node, inputs=tuple(inputs)))
        kept.append(device)
        annotation.update((v, device) for v in node.outputs)
    graph = replace(graph, nodes=tuple(nodes), types=types)
    return Annotated(graph, homes, tuple(kept))
