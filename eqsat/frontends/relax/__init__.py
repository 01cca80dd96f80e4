"""Modules of TVM Relax -> Graph, where Apache TVM is installed (docs/tvm.md)."""

from eqsat.frontends.relax.reader import OPAQUE_DOMAIN, Reading, from_module

__all__ = ["OPAQUE_DOMAIN", "Reading", "from_module"]
