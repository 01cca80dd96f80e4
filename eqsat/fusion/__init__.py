"""Kernels of several operators: which groups are one launch, and the choice of e-nodes and kernels together.

``fuse_program`` partitions a fixed program; ``select_joint`` chooses the program and its kernels at once, and ``program_of``
turns that choice into a program; ``kernel_works`` says what the kernels of a program do.
"""

from eqsat.fusion.covering import NoKernelError
from eqsat.fusion.joint import program_of, select_joint
from eqsat.fusion.partition import FUSION_METHODS, fuse_program, fuse_with_plan, method_of
from eqsat.fusion.pricing import kernel_works, operator_works, price_works
from eqsat.fusion.selection import JointSelection
from eqsat.fusion.work import group_work

__all__ = [
    "FUSION_METHODS",
    "JointSelection",
    "NoKernelError",
    "fuse_program",
    "fuse_with_plan",
    "group_work",
    "kernel_works",
    "method_of",
    "operator_works",
    "price_works",
    "program_of",
    "select_joint",
]
