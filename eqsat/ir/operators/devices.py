"""Operators of our own that say where a value is: all mean identity.

``eqsat::DeviceCopy(source, destination)`` moves a value between devices: a kernel that nothing fuses with.
``eqsat::OnDevice(device)`` stands, in a graph that is being placed, where readers are annotated otherwise than what they read;
it never occurs in a program.
"""

from collections.abc import Sequence
from typing import Any

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind, no_flops
from eqsat.ir.operators.elementwise import defines
from eqsat.ir.types import UNKNOWN, Type

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
