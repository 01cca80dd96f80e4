"""Operators of our own that say where a value is: all mean identity.

``eqsat::DeviceCopy(source, destination)`` moves a value between devices: a kernel that nothing fuses with.
``eqsat::OnDevice(device)`` stands, in a graph that is being placed, where readers are annotated otherwise than what they read;
it never occurs in a program.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from eqsat.ir.graph import Attributes, Node
from eqsat.ir.operator import Application, Kind, no_flops
from eqsat.ir.operators.elementwise import defines
from eqsat.ir.types import UNKNOWN, Type

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


DEVICE_COPY = "eqsat::DeviceCopy"
ON_DEVICE = "eqsat::OnDevice"


def _infer(app: Application) -> tuple[Type, ...]:
    return (app.types[0] or UNKNOWN,)


def _expand(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> list[str]:
    return [b.op("Identity", inputs[0])]


def _same(attributes: Attributes, x: Any) -> Any:
    return x


for _key in (DEVICE_COPY, ON_DEVICE):
    defines(_key, infer=_infer, kind=Kind.OPAQUE, flops=no_flops, bit_exact=True, expand=_expand)(_same)
