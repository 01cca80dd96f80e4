"""Norms in ONNX Runtime: SimplifiedLayerNormalization, which it has in the default domain long before ONNX had RMSNormalization,
and of a sum, SkipLayerNormalization, SkipSimplifiedLayerNormalization, EmbedLayerNormalization.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import ShapeError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Kind
from eqsat.ir.traits import Traits
from eqsat.ir.types import TensorType

EPSILON = 1e-12
"""Default of the runtime's own norms; ONNX has 1e-5."""


def _sum(b: GraphBuilder, inputs: Sequence[str | None], bias: int) -> str:
    """``input + skip + bias``, as the kernel adds them."""
    x, skip = b.type_of(inputs[0] or ""), b.type_of(inputs[1] or "")
    ranks = [len(t.shape) if isinstance(t, TensorType) and t.shape is not None else -1 for t in (x, skip)]
    if x != skip or ranks[0] not in (2, 3):
        raise ShapeError(f"a norm of a sum takes two values of one shape with two or three axes, got {x} and {skip}")
    total = inputs[0]
    if len(inputs) > bias and inputs[bias]:
        total = b.op("Add", total, inputs[bias])
    return b.op("Add", total, inputs[1])


def _simplified(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    only_attributes("SimplifiedLayerNormalization", attributes, "axis", "epsilon", "stash_type")
    return [b.op("RMSNormalization", *inputs, **attributes)]


def _skip_layer_norm(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    only_attributes("SkipLayerNormalization", attributes, "epsilon")
    total = _sum(b, inputs, 4)
    beta = inputs[3] if len(inputs) > 3 else None
    epsilon = attributes.get("epsilon", EPSILON)
    found = b.op("LayerNormalization", total, inputs[2], beta, outputs=3, axis=-1, epsilon=epsilon)
    return [*found, total]


def _skip_simplified(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    only_attributes("SkipSimplifiedLayerNormalization", attributes, "epsilon")
    total = _sum(b, inputs, 3)
    epsilon: Any = attributes.get("epsilon", EPSILON)
    found = b.op("RMSNormalization", total, inputs[2], axis=-1, epsilon=epsilon)
    last = b.constant([-1], "int64")
    mean = b.op("ReduceMean", total, last)
    variance = b.op("ReduceMean", b.op("Mul", total, total), last)
    shifted = b.op("Add", variance, b.constant(epsilon, b.type_of(total).dtype))
    return [found, mean, b.op("Reciprocal", b.op("Sqrt", shifted)), total]


define_composite(
    "com.microsoft::SimplifiedLayerNormalization",
    _simplified,
    Kind.REDUCTION,
    traits=Traits(structure="rms_norm"),
    written_in="",
)
define_composite(
    "com.microsoft::SkipLayerNormalization", _skip_layer_norm, Kind.REDUCTION, traits=Traits(structure="layer_norm")
)
define_composite(
    "com.microsoft::SkipSimplifiedLayerNormalization",
    _skip_simplified,
    Kind.REDUCTION,
    traits=Traits(structure="rms_norm"),
)


_EMBED = "EmbedLayerNormalization"


def _embed(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    """The norm of ``words[ids] + positions + segments[segment ids]``; how many tokens count, 0 without a mask; the sum."""
    only_attributes(_EMBED, attributes, "epsilon", "mask_index_type")
    ids, segment_ids, words, positions, segments, gamma, beta, *others = inputs
    if any(others) or attributes.get("mask_index_type", 0) or bool(segment_ids) != bool(segments):
        raise ShapeError(f"{_EMBED}: masks and stated positions are not covered by the definition")
    found = b.type_of(ids or "")
    shape = found.shape if isinstance(found, TensorType) else None
    batch, length = shape if shape is not None and len(shape) == 2 else (None, None)
    if not isinstance(batch, int) or not isinstance(length, int):
        raise ShapeError(f"{_EMBED} takes ids [batch, sequence] of known extents, got {found}")
    first = b.op("Slice", positions, *(b.constant([n], "int64") for n in (0, length, 0)))
    total = b.op("Add", b.op("Gather", words, ids, axis=0), first)
    if segments:
        total = b.op("Add", total, b.op("Gather", segments, segment_ids, axis=0))
    epsilon = attributes.get("epsilon", EPSILON)
    normed = b.op("LayerNormalization", total, gamma, beta, axis=-1, epsilon=epsilon)
    return [normed, b.constant(np.zeros(batch, np.int32)), total]


define_composite(f"com.microsoft::{_EMBED}", _embed, Kind.REDUCTION, traits=Traits(structure="layer_norm"))
