"""Operators of ``ai.onnx.ml`` that are built of others, as pipelines of scikit-learn have them: Scaler, LinearRegressor and
ArrayFeatureExtractor."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import ShapeError
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Kind
from eqsat.ir.types import DType

_SCALED_AXES = 2
"""With more, ONNX Runtime counts features along the second axis, but lets them run through all the others."""


def _scaler(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    """``(x - offset) * scale``, one of each or one for every feature, in double precision for doubles, else in single."""
    only_attributes("Scaler", attributes, "offset", "scale")
    x = b.type_of(inputs[0])
    offset, scale = (np.asarray(attributes.get(name, ()), np.float32) for name in ("offset", "scale"))
    if x.shape is None or not 0 < len(x.shape) <= _SCALED_AXES:
        raise ShapeError(f"Scaler takes a vector or rows of features, got {x}")
    if not offset.size == scale.size or offset.size not in (1, x.shape[-1]):
        raise ShapeError(f"Scaler: {offset.size} offsets and {scale.size} scales for {x}")
    dtype = DType.DOUBLE if x.dtype is DType.DOUBLE else DType.FLOAT
    floats = inputs[0] if x.dtype is dtype else b.op("Cast", inputs[0], to=int(dtype))
    centred = b.op("Sub", floats, b.constant(offset, dtype))
    scaled = b.op("Mul", centred, b.constant(scale, dtype))
    return [scaled if dtype is DType.FLOAT else b.op("Cast", scaled, to=int(DType.FLOAT))]


def _linear_regressor(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    """Rows of features times one vector of coefficients for each target, plus the intercepts."""
    only_attributes("LinearRegressor", attributes, "coefficients", "intercepts", "targets", post_transform="NONE")
    x, targets = b.type_of(inputs[0]), int(attributes.get("targets", 1))  # pyright: ignore[reportArgumentType]
    coefficients, intercepts = (np.asarray(attributes.get(n, ()), np.float32) for n in ("coefficients", "intercepts"))
    if x.dtype is not DType.FLOAT or x.rank != 2 or x.shape[1] != coefficients.size // targets:
        raise ShapeError(f"LinearRegressor: {coefficients.size} coefficients of {targets} targets for {x}")
    if intercepts.size not in (0, targets) or coefficients.size % targets:
        raise ShapeError(f"LinearRegressor: {intercepts.size} intercepts of {targets} targets")
    weights = b.constant(coefficients.reshape(targets, -1), DType.FLOAT)
    bias = [b.constant(intercepts, DType.FLOAT)] if intercepts.size else []
    return [b.op("Gemm", inputs[0], weights, *bias, transB=1)]


def _array_feature_extractor(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    """Features by their numbers; those of a vector as a row."""
    only_attributes("ArrayFeatureExtractor", attributes)
    x, indices = (b.type_of(v) for v in inputs)
    if not x.shape:
        raise ShapeError(f"ArrayFeatureExtractor takes a vector or rows of features, got {x}")
    numbers = inputs[1] if indices.rank == 1 else b.op("Reshape", inputs[1], b.constant([-1], "int64"))
    found = b.op("Gather", inputs[0], numbers, axis=-1)
    return [found if len(x.shape) > 1 else b.op("Unsqueeze", found, b.constant([0], "int64"))]


define_composite("ai.onnx.ml::Scaler", _scaler, Kind.ELEMENTWISE)
define_composite("ai.onnx.ml::LinearRegressor", _linear_regressor, Kind.ANCHOR)
define_composite("ai.onnx.ml::ArrayFeatureExtractor", _array_feature_extractor, Kind.INJECTIVE)
