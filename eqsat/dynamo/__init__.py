"""``torch.compile(model, backend="eqsat")``: graphs that Dynamo captures, optimised and run in ONNX Runtime (docs/torch.md)."""

from eqsat.dynamo.backend import FallbackWarning, eqsat

__all__ = ["FallbackWarning", "eqsat"]
