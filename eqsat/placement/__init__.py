"""Devices: which node runs where, the copies between them, and running that.

``annotate`` writes the devices that a user gives into a graph, ``extract_placed`` chooses e-nodes and devices together and
lowers that, ``PlacedSession`` runs a placed program with a session for each stretch on one device.
"""

from eqsat.placement.annotate import Annotated, annotate
from eqsat.placement.execute import PlacedSession, segments
from eqsat.placement.extraction import extract_placed
from eqsat.placement.machine import PCIE, Link, Machine, default_machine, read_machine

__all__ = [
    "PCIE",
    "Annotated",
    "Link",
    "Machine",
    "PlacedSession",
    "annotate",
    "default_machine",
    "extract_placed",
    "read_machine",
    "segments",
]
