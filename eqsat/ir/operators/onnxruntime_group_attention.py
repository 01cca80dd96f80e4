"""Attention of ONNX Runtime with heads that share keys and values, and with a cache: GroupQueryAttention."""

from collections.abc import Sequence
from typing import Any

from eqsat.errors import ShapeError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.attention import attention_flops
from eqsat.ir.traits import Traits
from eqsat.ir.types import TensorType, Type

NAME = "GroupQueryAttention"
_INPUTS = 14
_SCORES = 10
_BLOCK = 8


def _length(b: GraphBuilder, value: str | None, axis: int, rank: int) -> int:
    """Extent of the axis along which a sequence lies; 0 for an absent value."""
    if not value:
        return 0
    found = b.type_of(value)
    shape = found.shape if isinstance(found, TensorType) else None
    extent = shape[axis] if shape is not None and len(shape) == rank else None
    if not isinstance(extent, int):
        raise ShapeError(f"{NAME} takes sequences of known length with {rank} axes, got {found}")
    return extent


def _check_lengths(b: GraphBuilder, lengths: str | None, longest: str | None, total: int) -> None:
    """The definition covers sequences that are all as long as the tensors."""
    for value, expected in ((lengths, total - 1), (longest, total)):
        constant = b.constant_of(value) if value else None
        if constant is None or not bool((constant.numpy() == expected).all()):
            raise ShapeError(f"{NAME}: sequences of different or unknown lengths are not covered by the definition")


def _group_query_attention(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    """Attention of the newest queries over what is stored and as many new keys; also the two together, heads apart."""
    only_attributes(NAME, attributes, "num_heads", "kv_num_heads", "scale", "causal", "do_rotary")
    given: list[str | None] = [*inputs, *([None] * _INPUTS)][:_INPUTS]
    query, keys, values, past_keys, past_values, lengths, longest = given[:7]
    rest = [v for i, v in enumerate(given[7:], 7) if i != _SCORES]
    if any(rest) or attributes.get("do_rotary", 0) or not (keys and values) or bool(past_keys) != bool(past_values):
        raise ShapeError(f"{NAME}: packed, rotated, sunk or quantised values are not covered by the definition")
    new, before = _length(b, keys, 1, 3), _length(b, past_keys, 2, 4)
    if _length(b, query, 1, 3) != new:
        raise ShapeError(f"{NAME} takes as many queries as new keys")
    batch, _, width = b.type_of(query).shape
    if isinstance(width, int) and width // attributes["num_heads"] % _BLOCK:
        raise ShapeError(f"{NAME} takes heads whose size is a multiple of {_BLOCK}")
    if before and new != 1 and batch != 1 and isinstance(batch, int):
        raise ShapeError(f"{NAME} with stored keys takes one sequence, or one query of each")
    _check_lengths(b, lengths, longest, before + new)
    stored = (past_keys, past_values) if past_keys else ()
    operands = [query, keys, values, given[_SCORES], *stored]
    while operands[-1] is None:
        operands.pop()
    scale: Any = attributes.get("scale", 0.0)
    more = {"scale": scale} if scale else {}
    return b.op(
        "Attention", *operands, outputs=3, q_num_heads=attributes["num_heads"], kv_num_heads=attributes["kv_num_heads"],
        is_causal=attributes.get("causal", 1), **more,
    )  # fmt: skip


def _flops(app: Application, outputs: Sequence[Type]) -> float:
    return attention_flops(app, outputs, past=3)


define_composite(
    f"com.microsoft::{NAME}", _group_query_attention, Kind.ANCHOR, flops=_flops, traits=Traits(structure="attention")
)
