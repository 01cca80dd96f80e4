"""Which value is computed on which device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eqsat.ir.operator import split_key
from eqsat.ir.types import Type
from eqsat.lower.selection import Writable
from eqsat.placement.machine import Machine

Place = tuple[int, str]
"""Representative of an e-class, and a device."""


@dataclass(frozen=True)
class Placement:
    """What is computed where.

    ``made``: place -> handle of the e-node that computes the value there, operands first. ``copied``: place -> device from
    which the value is copied there. ``sources``: e-class of a mark between annotations -> e-class of the marked value.
    ``roots``: output -> place; ``homes``: input or output -> device where it lives. ``cost``, ``cost_before`` (the original
    program, each node where it is annotated, on the host if nowhere) and ``lower_bound`` count every operator as one kernel,
    and every copy.
    """

    made: Mapping[Place, int]
    copied: Mapping[Place, str]
    sources: Mapping[int, int]
    roots: Mapping[str, Place]
    homes: Mapping[str, str]
    cost: float
    cost_before: float
    lower_bound: float
    method: str

    def source_of(self, cls: int) -> int:
        """The e-class of which ``cls`` is the mark of an annotation, or ``cls`` itself."""
        while cls in self.sources:
            cls = self.sources[cls]
        return cls


def kernels_of(machine: Machine, device: str, writable: Writable) -> Writable:
    """``writable`` for one device: operators that the device has kernels for."""
    target = machine.target(device)

    def allowed(key: str, types: Sequence[Type | None]) -> bool:
        domain, _ = split_key(key)
        return (not domain or domain in target.domains) and key not in target.expanded and writable(key, types)

    return allowed
