"""The first layer of a language model in ONNX Runtime: EmbedLayerNormalization."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import ShapeError
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Kind
from eqsat.ir.operators.onnxruntime_norms import EPSILON
from eqsat.ir.traits import Traits
from eqsat.ir.types import TensorType

NAME = "EmbedLayerNormalization"


def _embed(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    """The norm of ``words[ids] + positions + segments[segment ids]``; how many tokens count, 0 without a mask; the sum."""
    only_attributes(NAME, attributes, "epsilon", "mask_index_type")
    ids, segment_ids, words, positions, segments, gamma, beta, *others = inputs
    if any(others) or attributes.get("mask_index_type", 0) or bool(segment_ids) != bool(segments):
        raise ShapeError(f"{NAME}: masks and stated positions are not covered by the definition")
    found = b.type_of(ids or "")
    shape = found.shape if isinstance(found, TensorType) else None
    batch, length = shape if shape is not None and len(shape) == 2 else (None, None)
    if not isinstance(batch, int) or not isinstance(length, int):
        raise ShapeError(f"{NAME} takes ids [batch, sequence] of known extents, got {found}")
    first = b.op("Slice", positions, *(b.constant([n], "int64") for n in (0, length, 0)))
    total = b.op("Add", b.op("Gather", words, ids, axis=0), first)
    if segments:
        total = b.op("Add", total, b.op("Gather", segments, segment_ids, axis=0))
    epsilon = attributes.get("epsilon", EPSILON)
    normed = b.op("LayerNormalization", total, gamma, beta, axis=-1, epsilon=epsilon)
    return [normed, b.constant(np.zeros(batch, np.int32)), total]


define_composite(f"com.microsoft::{NAME}", _embed, Kind.REDUCTION, traits=Traits(structure="layer_norm"))
