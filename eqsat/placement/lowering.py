"""Placement -> Program: like any lowering, of e-classes that stand for a value on a device."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.encode import Encoding
from eqsat.egraph.enode import ENode, TupleType
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.egraph.snapshot import Snapshot
from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes, Graph
from eqsat.ir.operator import split_key
from eqsat.ir.operators.devices import DEVICE_COPY, device_of
from eqsat.ir.types import Type
from eqsat.lower.lowering import Lowering
from eqsat.lower.program import Program
from eqsat.placement.machine import Place, Placement

_COPY = "copy"
_AGAIN = "again"


def lower_placement(
    encoding: Encoding, snapshot: Snapshot, placement: Placement, exactness: Mapping[str, Exactness]
) -> Program:
    """The program of a placement, its copies included; ``graph.devices`` says where each value of it is computed."""
    view = PlacedEGraph(snapshot, placement)
    return _PlacedLowering(encoding, snapshot, view, exactness).run()


class PlacedEGraph:
    """The e-graph with one e-class for each value on each device where the program has it.

    A value on the device that computes it (the first of them) keeps its e-class and e-node. Its copies, and the same value
    computed on a further device, have e-classes and e-nodes of their own, with numbers above all of the e-graph's.
    Implements `eqsat.lower.lowering.Spellings`.
    """

    def __init__(self, snapshot: Snapshot, placement: Placement) -> None:
        self._egraph: EGraph = snapshot.egraph
        self._constants = snapshot.constants
        self.placement = placement
        self.nodes: list[ENode] = list(self._egraph.nodes)
        self.choice: dict[int, int] = {}
        self.devices: dict[int, str] = {}
        self.original: dict[int, int] = {}
        """Number of an e-class that was added -> that of the e-graph."""
        self._handles: dict[int, int] = {}
        self._children: dict[int, tuple[int, ...]] = {}
        self._classes: dict[Place, int] = {}
        self._placed(placement)

    def _placed(self, placement: Placement) -> None:
        computed: dict[Place, int] = {}
        for (cls, device), handle in placement.made.items():
            own = cls
            if cls in self.choice:
                own = self._add(replace(self.nodes[handle], rule=_AGAIN), cls, device)
                self._handles[own] = handle
            else:
                self.choice[cls], self.devices[cls] = handle, device
            self._classes[cls, device] = computed[cls, device] = own
        domain, copy = split_key(DEVICE_COPY)
        for (cls, device), maker in placement.copied.items():
            attributes = Attributes({"source": maker, "destination": device})
            own = self._add(ENode(copy, domain, attributes, 0, (cls,), 1, _COPY), cls, device)
            self._classes[cls, device] = own
            self._children[own] = (computed[cls, maker],)
        for (cls, device), own in computed.items():
            read = self._egraph.canonical_children(placement.made[cls, device])
            self._children[self.choice[own]] = tuple(self.there(c, device) for c in read)

    def _add(self, node: ENode, cls: int, device: str) -> int:
        own = len(self.nodes)
        self.nodes.append(node)
        self.original[own] = cls
        self.choice[own], self.devices[own] = own, device
        return own

    def handle_of(self, handle: int) -> int | None:
        """The e-node of the e-graph that computes the same; copies have none."""
        return self._handles.get(handle) if handle in self.original else handle

    def there(self, cls: int, device: str) -> int:
        """The e-class of a value on a device; that of a constant is the same on all."""
        cls = self.placement.source_of(cls)
        return cls if cls == ABSENT_INPUT or cls in self._constants else self._classes[cls, device]

    def output(self, name: str) -> int:
        """The e-class of an output where it is to be left."""
        return self.there(*self.placement.roots[name])

    def find(self, handle: int) -> int:
        return handle if handle in self.original else self._egraph.find(handle)

    def canonical_children(self, handle: int) -> tuple[int, ...]:
        return self._children[handle]

    def type_of(self, handle: int) -> Type:
        return self._egraph.type_of(self.original.get(handle, handle))

    def full_type_of(self, handle: int) -> Type | TupleType:
        return self._egraph.full_type_of(self.original.get(handle, handle))

    def members(self, handle: int) -> Sequence[int]:
        return self._egraph.members(self.original.get(handle, handle))


class _PlacedLowering(Lowering):
    def __init__(
        self, encoding: Encoding, snapshot: Snapshot, view: PlacedEGraph, exactness: Mapping[str, Exactness]
    ) -> None:
        super().__init__(encoding, snapshot, view.choice, exactness)
        self._egraph = self._view = view

    def run(self) -> Program:
        program = super().run()
        devices = {self.names[c]: d for c, d in self._view.devices.items() if c in self.names}
        for name, home in self._view.placement.homes.items():  # second names of one value, inputs that nobody reads
            devices.setdefault(name, home)
        for node in program.graph.nodes:  # outputs that nobody reads
            device = device_of(node, devices)
            devices.update((v, device) for v in node.outputs if v)
        graph = replace(program.graph, devices=devices)
        return replace(program, graph=graph)

    def _output_class(self, name: str) -> int:
        return self._view.output(name)

    def _rules_of(self, handle: int) -> frozenset[str]:
        own = self._view.handle_of(handle)
        return frozenset() if own is None else super()._rules_of(own)

    def _name(self, cls: int, stem: str) -> str:
        if cls in self._view.original and cls not in self.names:
            self.names[cls] = self._fresh_name(stem)
        return super()._name(cls, stem)

    def _origins(self, graph: Graph) -> dict[str, str]:
        origins = super()._origins(graph)
        for cls, of in self._view.original.items():
            original = self._original_values.get(of)
            if original is not None:
                origins.setdefault(self.names[cls], original)
        return origins
