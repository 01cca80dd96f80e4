"""TVM Relax, where Apache TVM is installed: programs as modules, built and run; modules optimised (docs/tvm.md)."""

from eqsat.frontends.relax import Reading, from_module
from eqsat.relax.execution import Executable, fused
from eqsat.relax.module import Lowered, kernel_count, to_module
from eqsat.relax.optimization import optimize, optimizing_pass

__all__ = [
    "Executable",
    "Lowered",
    "Reading",
    "from_module",
    "fused",
    "kernel_count",
    "optimize",
    "optimizing_pass",
    "to_module",
]
