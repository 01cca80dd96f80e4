"""Kernels of several operators: which groups are one launch, and the kernels of a fixed program.

``fuse_program`` partitions a fixed program; ``kernel_works`` says what the kernels of a program do. E-nodes and kernels are
chosen together in `eqsat.joint`.
"""

from eqsat.fusion.covering import NoKernelError
from eqsat.fusion.partition import fuse_program, fuse_with_plan, method_of
from eqsat.fusion.work import kernel_works, operator_works, price_works

__all__ = [
    "NoKernelError",
    "fuse_program",
    "fuse_with_plan",
    "kernel_works",
    "method_of",
    "operator_works",
    "price_works",
]
