"""Graphs as modules of PyTorch, in operators of torch (docs/torch.md). Needs the extra ``torch``."""

try:
    import torch as _torch  # pyright: ignore[reportUnusedImport]  # noqa: F401
except ImportError as error:
    raise ImportError(f"eqsat.fx needs PyTorch: pip install 'eqsat[torch]' ({error})") from None

from eqsat.fx.execution import INDUCTOR, TUNED, Executable, compiled_for
from eqsat.fx.module import check_operators, to_module

__all__ = ["INDUCTOR", "TUNED", "Executable", "check_operators", "compiled_for", "to_module"]
