"""TVM Relax, where Apache TVM is installed (``eqsat[tvm]``): programs as modules of Relax, built and run (docs/tvm.md)."""

from eqsat.relax.execution import Executable, fused
from eqsat.relax.module import Lowered, kernel_count, to_module

__all__ = ["Executable", "Lowered", "fused", "kernel_count", "to_module"]
