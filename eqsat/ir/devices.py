"""Devices of nodes, as values are annotated with them in a graph and in a file."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from eqsat.ir.graph import Node

METADATA_KEY = "eqsat.device"
"""Key of ``metadata_props`` of a node or input in an ONNX file (IR version 10 and later) that names its device."""


def device_of(node: Node, devices: Mapping[str, str]) -> str:
    """The device of a node; empty if it has none."""
    return next((devices[v] for v in node.outputs if v in devices), "")


def spread_to_parts(nodes: Sequence[Node], owners: Mapping[str, str], known: AbstractSet[str]) -> Mapping[str, str]:
    """``owners`` (the device or kernel of a value) with those of nodes that came about when others were brought to another form:
    a node none of whose outputs is ``known`` belongs to what the node that reads it belongs to."""
    if not owners:
        return owners
    found = dict(owners)
    reader: dict[str, str] = {}
    for node in reversed(nodes):
        owner = device_of(node, found)
        if not owner and known.isdisjoint(node.outputs):
            owner = next((reader[v] for v in node.outputs if v in reader), "")
            found.update((v, owner) for v in node.outputs if v and owner)
        for value in node.inputs:
            reader.setdefault(value, owner)
    return found
