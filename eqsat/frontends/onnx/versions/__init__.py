"""Between opsets: nodes brought to the form of `eqsat.ir.operator.OPSET`, and back to the form of an older opset."""

from eqsat.frontends.onnx.versions import attributes, forms, normalization, resampling  # pyright: ignore[reportUnusedImport]  # noqa: F401  # register their steps
from eqsat.frontends.onnx.versions.steps import (
    OLDEST,
    Refusal,
    Values,
    downgrade,
    first_version,
    has_function,
    means_the_same,
    since_version,
    steps_of,
    upgrade,
)

__all__ = [
    "OLDEST",
    "Refusal",
    "Values",
    "downgrade",
    "first_version",
    "has_function",
    "means_the_same",
    "since_version",
    "steps_of",
    "upgrade",
]
