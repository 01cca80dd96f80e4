"""Joint extraction: e-nodes and kernels chosen together; ``program_of`` turns the choice of ``select_joint`` into a program."""

from eqsat.fusion.covering import NoKernelError
from eqsat.joint.program import program_of
from eqsat.joint.result import JointSelection
from eqsat.joint.search import select_joint

__all__ = ["JointSelection", "NoKernelError", "program_of", "select_joint"]
