"""The choice of e-nodes and devices as one extraction problem, over pairs of e-class and device.

For an e-class and a device there are two classes of the problem: the value *made* there, with every e-node of the e-class
that the device can run, at the device's price, reading values that are there; and the value being *there*: because it was
made there, or by a copy from another device where it was made, at the price of the link. Several readers on one device share
a copy, since a class is paid once. Copies start where a value was made, so that no two of them are ever in a row.
"""

import math
from collections.abc import Mapping

from eqsat.cost.model import CostModel
from eqsat.egraph.encode import Encoding
from eqsat.egraph.enode import CONSTANT, INPUT, TupleType
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.egraph.snapshot import Snapshot, SnapshotNode
from eqsat.errors import OptionError
from eqsat.extract import Effort, ExtractionError, ExtractionProblem, ExtractionResult, WorkDone, extract
from eqsat.extract.problem import NamedProblem, evaluate_choice
from eqsat.ir.nominal import nominal_bytes
from eqsat.ir.operators.devices import ON_DEVICE
from eqsat.lower.selection import Prices, Writable
from eqsat.placement.annotate import Annotated
from eqsat.placement.machine import Machine, Place, Placement, copy_price, kernels_of


class Placing:
    """The extraction problem of one e-graph and machine: its best answer, and what certain answers cost. ``writable`` is as in
    `eqsat.lower.selection.select`."""

    def __init__(
        self,
        encoding: Encoding,
        snapshot: Snapshot,
        annotated: Annotated,
        machine: Machine,
        model: CostModel,
        writable: Writable,
    ) -> None:
        self._encoding, self._snapshot, self._egraph = encoding, snapshot, snapshot.egraph
        self._annotated, self._machine, self._model = annotated, machine, model
        self._prices = {
            d: Prices(
                self._egraph,
                model,
                machine.target(d),
                kernels_of(machine, d, writable),
                snapshot.known_at_load(machine.target(d).kept_at_load),
            )
            for d in machine.names
        }
        self._sources = self._marks()
        self._pins = self._pinned()
        self._named = NamedProblem()
        self._meaning: list[tuple[str, int, str, int | str]] = []
        """Of each e-node of the problem."""
        for cls, nodes in snapshot.classes.items():
            if cls in snapshot.constants:
                self._row(self._there(cls, ""), (), 0.0, ("constant", cls, "", 0))
            elif cls not in self._sources:
                self._add(cls, nodes)
        self._roots = {
            v: (self._source(self._egraph.find(encoding.handles[v])), annotated.homes[v])
            for v in encoding.graph.outputs
        }
        numbers = tuple(dict.fromkeys(self._there(*place) for place in self._roots.values()))
        self._problem = self._named.finished(numbers)
        self._index()

    def best(self, effort: Effort) -> Placement:
        """The cheapest choice of e-nodes and devices in the snapshot of the annotated graph, never dearer than the original.

        Raises `OptionError` if a value cannot be computed where it must be.
        """
        problem, roots = self._problem, self._roots
        original = self._placed(self._original(), self._machine.host)
        try:
            relaxed = extract(self._relaxed(roots), effort=effort.part(0.25))
            handles = {c: self._enodes[n] for c, n in relaxed.choice.items()}
            candidates = [original, *(self._placed(handles, d) for d in self._machine.names)]
            cost, best = min(((_cost(problem, c), i) for i, c in enumerate(candidates)), default=(math.inf, 0))
            result = extract(problem, effort=effort, incumbent=candidates[best] if cost < math.inf else None)
        except ExtractionError:
            raise OptionError(self._obstacle()) from None
        return self._placement(result, _cost(problem, original), relaxed.lower_bound)

    def on_one_device(self, handles: Mapping[int, int], device: str, best: Placement) -> Placement | None:
        """The e-nodes ``handles`` (e-class -> handle) on one device, as far as they may be there; ``None`` if they cannot be
        placed. The bound is that of ``best``."""
        try:
            choice, cost = evaluate_choice(self._problem, self._placed(handles, device))
        except ExtractionError:
            return None
        if cost == math.inf:
            return None
        result = ExtractionResult(choice, cost, best.lower_bound, f"all on {device}", WorkDone(), 0.0)
        return self._placement(result, best.cost_before, best.lower_bound)

    # ---- what may run where

    def _marks(self) -> dict[int, int]:
        """E-class of a mark -> e-class of what it marks."""
        found: dict[int, int] = {}
        for node, handle in zip(self._encoding.graph.nodes, self._encoding.node_handles, strict=True):
            cls = self._egraph.find(handle)
            if node.key == ON_DEVICE and cls not in self._snapshot.constants:
                found[cls] = self._egraph.find(self._encoding.handles[node.inputs[0]])
        return found

    def _pinned(self) -> dict[int, str]:
        """Device of each e-class that has one. Every value that is not constant depends on marks or inputs of one annotation
        only (`Annotated`), so what rules add to the values of annotated nodes has the annotation of what it reads."""
        pins: dict[int, str] = {}
        if not any(self._annotated.nodes):
            return pins
        for device, handle in zip(self._annotated.nodes, self._encoding.node_handles, strict=True):
            pins.setdefault(self._egraph.find(handle), device)
        open_classes = [c for c in self._snapshot.classes if c not in self._snapshot.constants and c not in pins]
        while open_classes:
            left: list[int] = []
            for cls in open_classes:
                read = (c for node in self._snapshot.classes[cls] for c in node.children if c in pins)
                first = next(read, None)
                if first is None:
                    left.append(cls)
                else:
                    pins[cls] = pins[first]
            if len(left) == len(open_classes):
                break  # inputs of the graph, and what depends on nothing else: free
            open_classes = left
        return {cls: device for cls, device in pins.items() if device}

    def _devices(self, cls: int, node: SnapshotNode) -> tuple[str, ...]:
        """Devices that may run an e-node: that of its annotation; otherwise any, but the host if it is not understood or gives
        another value whenever it runs."""
        if node.node.key == INPUT:
            return (self._annotated.homes[str(node.node.attributes["name"])],)
        if cls in self._pins:
            return (self._pins[cls],)
        definition = self._egraph.definition(node.handle)
        tied = node.node.opaque is not None or (definition is not None and not definition.deterministic)
        return (self._machine.host,) if tied else self._machine.names

    def _price(self, node: SnapshotNode, device: str) -> float:
        target = self._machine.target(device)
        if node.node.key in target.unsupported:
            return math.inf
        domain = "" if node.node.opaque is not None else node.node.domain
        if domain and domain not in target.domains and device != self._machine.host:
            return math.inf
        return self._prices[device](node.handle)

    # ---- rows

    def _row(
        self, owner: int, children: tuple[int, ...], cost: float, meaning: tuple[str, int, str, int | str]
    ) -> None:
        self._named.add(owner, children, cost)
        self._meaning.append(meaning)

    def _source(self, cls: int) -> int:
        while cls in self._sources:
            cls = self._sources[cls]
        return cls

    def _there(self, cls: int, device: str) -> int:
        cls = self._source(cls)
        if cls in self._snapshot.constants:
            return self._named.key("there", cls, "")
        tupled = isinstance(self._egraph.full_type_of(cls), TupleType)
        return self._named.key("made" if tupled else "there", cls, device)

    def _add(self, cls: int, nodes: tuple[SnapshotNode, ...]) -> None:
        key = self._named.key
        makers: dict[str, None] = {}
        for node in nodes:
            if node.node.key == CONSTANT:
                continue
            for device in self._devices(cls, node):
                price = self._price(node, device)
                if price < math.inf:
                    children = tuple(self._there(c, device) for c in node.children)
                    self._row(key("made", cls, device), children, price, ("made", cls, device, node.handle))
                    makers[device] = None
        type = self._egraph.full_type_of(cls)
        if isinstance(type, TupleType):
            return
        size = float(nominal_bytes(type))
        for device in self._machine.names:
            there = self._there(cls, device)
            for maker in makers:
                made = (key("made", cls, maker),)
                if maker == device:
                    self._row(there, made, 0.0, ("same", cls, device, ""))
                    continue
                link = self._machine.link(maker, device)
                if link is not None:
                    self._row(there, made, copy_price(self._model, link, size), ("copied", cls, device, maker))

    # ---- known placements, and a bound

    def _index(self) -> None:
        self._by_meaning = {meaning: n for n, meaning in enumerate(self._meaning)}
        self._makers: dict[tuple[int, int], list[str]] = {}
        for what, cls, device, handle in self._meaning:
            if what == "made":
                assert isinstance(handle, int)
                self._makers.setdefault((cls, handle), []).append(device)

    def _original(self) -> dict[int, int]:
        """The original program: in every e-class the first e-node that no rule made."""
        found: dict[int, int] = {}
        for cls, handle in self._makers:
            if not self._egraph.nodes[handle].rule:
                found.setdefault(cls, handle)
        return found

    def _placed(self, handles: Mapping[int, int], preferred: str) -> dict[int, int]:
        """A choice of e-nodes as a choice of the problem: everything on the ``preferred`` device, as far as it may be there."""
        owner, by_meaning = self._problem.node_class, self._by_meaning
        choice = {owner[n]: n for n, meaning in enumerate(self._meaning) if meaning[0] == "constant"}
        for cls, handle in handles.items():
            makers = self._makers.get((cls, handle))
            if makers is None:
                continue
            maker = preferred if preferred in makers else makers[0]
            known = [by_meaning["made", cls, maker, handle]]
            for device in self._machine.names:
                meaning = ("same", cls, device, "") if device == maker else ("copied", cls, device, maker)
                if meaning in by_meaning:
                    known.append(by_meaning[meaning])
            choice.update((owner[n], n) for n in known)
        return choice

    def _relaxed(self, roots: Mapping[str, Place]) -> ExtractionProblem:
        """The choice of e-nodes alone, each at the price of the device where it is cheapest, copies free.

        No placement is cheaper: of what it makes, take for each e-class the e-node that runs first. The e-classes of this
        problem are those of the e-graph; ``_enodes`` has the handle of each of its e-nodes.
        """
        egraph = self._egraph
        price: dict[tuple[int, int], float] = {}
        for (what, cls, _, handle), cost in zip(self._meaning, self._problem.node_cost, strict=True):
            if what in ("made", "constant"):
                assert isinstance(handle, int)
                price[cls, handle] = min(cost, price.get((cls, handle), math.inf))
        owner: list[int] = []
        children: list[tuple[int, ...]] = []
        self._enodes: list[int] = []
        for cls, handle in price:
            constant = cls in self._snapshot.constants
            read = () if constant else (c for c in egraph.canonical_children(handle) if c != ABSENT_INPUT)
            owner.append(cls)
            children.append(tuple(dict.fromkeys(map(self._source, read))))
            self._enodes.append(handle)
        numbers = tuple(dict.fromkeys(cls for cls, _ in roots.values()))
        return ExtractionProblem(len(egraph.nodes), owner, children, list(price.values()), numbers)

    # ---- the answer

    def _placement(self, result: ExtractionResult, before: float, relaxed_bound: float) -> Placement:
        bound = min(result.cost, max(result.lower_bound, relaxed_bound))
        made: dict[Place, int] = {}
        copied: dict[Place, str] = {}
        for number in result.choice.values():
            what, cls, device, detail = self._meaning[number]
            if what == "made":
                assert isinstance(detail, int)
                made[cls, device] = detail
            elif what == "copied":
                assert isinstance(detail, str)
                copied[cls, device] = detail
        return Placement(
            made,
            copied,
            self._sources,
            self._roots,
            self._annotated.homes,
            result.cost,
            before,
            bound,
            result.method,
        )

    def _obstacle(self) -> str:
        """Why no placement exists."""
        makers = {cls for what, cls, _, _ in self._meaning if what == "made"}
        for node, handle in zip(self._encoding.graph.nodes, self._encoding.node_handles, strict=True):
            cls = self._egraph.find(handle)
            if cls not in makers and cls not in self._snapshot.constants and cls not in self._sources:
                where = self._pins.get(cls) or "any device"
                return f"placement: {node.key} {node.name!r} has no kernel on {where}; give it another device"
        return "placement: a value is needed on a device to which no link leads; add a link to the machine"


def _cost(problem: ExtractionProblem, choice: Mapping[int, int]) -> float:
    """Cost of a choice; infinite if a device lacks an operator or a link for it."""
    try:
        return evaluate_choice(problem, choice)[1]
    except ExtractionError:
        return math.inf
