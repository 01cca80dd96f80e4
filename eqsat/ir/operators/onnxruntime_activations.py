"""Activations of ONNX Runtime: Gelu, FastGelu, QuickGelu, BiasGelu."""

from collections.abc import Sequence
from typing import Any

from eqsat.errors import ShapeError
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Expand, Kind
from eqsat.ir.operators.activation import GELU, gated
from eqsat.ir.traits import Traits

QUICK_GELU_ALPHA = 1.702


def _with_bias(b: Any, inputs: Sequence[str | None]) -> str:
    """The first input plus the second, a vector along the last axis, if there is one."""
    if len(inputs) < 2 or not inputs[1]:
        return inputs[0] or ""
    found = b.type_of(inputs[1])
    if found.rank != 1:
        raise ShapeError(f"the bias of an activation must be a vector, got {found}")
    return b.op("Add", inputs[0], inputs[1])


def _gelu(name: str, approximate: str) -> Expand:
    def expand(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
        only_attributes(name, attributes)
        return [b.op("Gelu", _with_bias(b, inputs), approximate=approximate)]

    return expand


def _quick_gelu(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    only_attributes("QuickGelu", attributes, "alpha")
    return [gated(b, inputs[0], attributes.get("alpha", QUICK_GELU_ALPHA))]


_GELU = Traits(structure=GELU.structure, bounds=GELU.bounds)

for _key, _expand, _traits in (
    ("Gelu", _gelu("Gelu", "none"), _GELU),
    ("BiasGelu", _gelu("BiasGelu", "none"), _GELU),
    ("FastGelu", _gelu("FastGelu", "tanh"), _GELU),
    ("QuickGelu", _quick_gelu, Traits(structure="gelu")),
):
    define_composite(f"com.microsoft::{_key}", _expand, Kind.ELEMENTWISE, traits=_traits)
