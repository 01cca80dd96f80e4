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
from eqsat.ir.operator import Application, Kind
from eqsat.ir.traits import Traits
from eqsat.ir.types import DType, TensorType, Type

EPSILON = 1e-12
"""Default of the runtime's own norms; ONNX has 1e-5."""


def _sum(b: GraphBuilder, inputs: Sequence[str | None], bias: int) -> str:
    """``input + skip + bias``, as the kernel adds them; ``skip`` may be the same for every sequence of a batch."""
    x, skip = b.type_of(inputs[0] or ""), b.type_of(inputs[1] or "")
    if x.rank not in (2, 3) or not (x == skip or _repeats(x, skip)):
        raise ShapeError(f"a norm of a sum takes two values of one shape with two or three axes, got {x} and {skip}")
    total = inputs[0]
    if len(inputs) > bias and inputs[bias]:
        total = b.op("Add", total, inputs[bias])
    return b.op("Add", total, inputs[1])


def _repeats(x: Type, skip: Type) -> bool:
    """Whether ``skip`` is what a whole batch of sequences ``x`` has in common."""
    if skip.dtype is not x.dtype or x.shape is None or x.rank != 3:
        return False
    return skip.shape in (x.shape[1:], (1, *x.shape[1:]))


def _outline(app: Application) -> tuple[Type, ...]:
    """Types of a norm of a sum: of the input, of the means, of the deviations, and of the sum."""
    x = app.tensor(0)
    of_rows = TensorType(x.dtype, None if x.shape is None else (*x.shape[:-1], 1))
    return x, of_rows, of_rows, x


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
    "com.microsoft::SkipLayerNormalization",
    _skip_layer_norm,
    Kind.REDUCTION,
    traits=Traits(structure="layer_norm"),
    outline=_outline,
)
define_composite(
    "com.microsoft::SkipSimplifiedLayerNormalization",
    _skip_simplified,
    Kind.REDUCTION,
    traits=Traits(structure="rms_norm"),
    outline=_outline,
)


_EMBED = "EmbedLayerNormalization"


def _embed(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    """The norm of ``words[ids] + positions + segments[segment ids]``; how many tokens count by a mask, 0 without one; the sum."""
    only_attributes(_EMBED, attributes, "epsilon", "mask_index_type")
    ids, segment_ids, words, positions, segments, gamma, beta, mask, places = [*inputs, None, None][:9]
    if attributes.get("mask_index_type", 0) or bool(segment_ids) != bool(segments):
        raise ShapeError(f"{_EMBED}: other masks, and segments without their ids, are not covered by the definition")
    found = b.type_of(ids or "")
    if found.rank != 2:
        raise ShapeError(f"{_EMBED} takes ids [batch, sequence], got {found}")
    rows = b.op("Gather", positions, places, axis=0) if places else _first_rows(b, positions, ids)
    total = b.op("Add", b.op("Gather", words, ids, axis=0), rows)
    if segments:
        total = b.op("Add", total, b.op("Gather", segments, segment_ids, axis=0))
    epsilon = attributes.get("epsilon", EPSILON)
    normed = b.op("LayerNormalization", total, gamma, beta, axis=-1, epsilon=epsilon)
    if mask:
        counted = b.op("Cast", b.op("Equal", mask, b.constant(1, b.type_of(mask).dtype)), to=int(DType.INT32))
        return [normed, b.op("ReduceSum", counted, b.constant([1], "int64"), keepdims=0), total]
    return [normed, b.op("Expand", b.constant(np.zeros(1, np.int32)), _extent(b, ids, 0)), total]


def _extent(b: Any, value: str | None, axis: int) -> str:
    """An extent of a value as a list of one, a constant where it is known."""
    extent = b.type_of(value).shape[axis]
    return b.constant([extent], "int64") if isinstance(extent, int) else b.op("Shape", value, start=axis, end=axis + 1)


def _first_rows(b: Any, table: str | None, ids: str | None) -> str:
    """A row of the table for each place of a sequence."""
    zero = b.constant([0], "int64")
    return b.op("Slice", table, zero, _extent(b, ids, 1), zero)


define_composite(f"com.microsoft::{_EMBED}", _embed, Kind.REDUCTION, traits=Traits(structure="layer_norm"))
