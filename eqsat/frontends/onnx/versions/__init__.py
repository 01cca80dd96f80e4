"""Between opsets: nodes brought to the form of `eqsat.ir.operator.OPSET`, and back to the form of an older opset (`steps`)."""

from eqsat.frontends.onnx.versions import attributes, forms, normalization, resampling  # pyright: ignore[reportUnusedImport]  # noqa: F401  # register their steps
