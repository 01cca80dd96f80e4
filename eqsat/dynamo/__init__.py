"""``torch.compile(model, backend="eqsat")``: graphs that Dynamo captures, optimised and run in ONNX Runtime (docs/torch.md)."""

try:
    import torch as _torch  # pyright: ignore[reportUnusedImport]  # noqa: F401
except ImportError as error:
    raise ImportError(f"eqsat.dynamo needs PyTorch: pip install 'eqsat[torch]' ({error})") from None

from eqsat.dynamo.backend import FallbackWarning, eqsat

__all__ = ["FallbackWarning", "eqsat"]
