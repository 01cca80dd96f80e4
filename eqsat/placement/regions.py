"""Fusion of a placed program: the part on each device by itself, for the target of that device.

Every edge between devices goes through a copy, which belongs to no part, so no kernel reaches across. Kernels compute one value
from values that cross kernels, so no kernel of one part can wait for another part that waits for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from eqsat.cost.model import CostModel
from eqsat.extract import Effort
from eqsat.fusion import fuse_with_plan, method_of
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node
from eqsat.ir.nominal import nominal_bytes
from eqsat.ir.operators.devices import DEVICE_COPY, device_of
from eqsat.ir.order import dependency_order
from eqsat.ir.parts import part_at
from eqsat.ir.types import Type
from eqsat.lower.program import Kernel, Program
from eqsat.placement.machine import Machine, copy_price


@dataclass(frozen=True)
class FusedRegions:
    """A placed program, fused. ``lower_bound`` holds for the operators and devices of this program and all kernels that were
    enumerated for them."""

    program: Program
    cost: float
    lower_bound: float


@dataclass(frozen=True)
class _Unit:
    """A kernel with its nodes and their device."""

    kernel: Kernel
    nodes: tuple[Node, ...]
    device: str


def fuse_regions(program: Program, machine: Machine, model: CostModel, *, effort: Effort) -> FusedRegions:
    """Fuses what a placed program computes on each device for the target of that device, by the target's own method."""
    graph = program.graph
    types, constants = dict(graph.types), dict(graph.constants)
    units: list[_Unit] = []
    cost = bound = 0.0
    for device in machine.names:
        part = _part(program, device, types, constants)
        if not part.graph.nodes:
            continue
        target = machine.target(device)
        share = effort.part(1 / len(machine.names))
        fused, plan = fuse_with_plan(part, target, model, method=method_of(target), effort=share)
        cost, bound = cost + plan.cost, bound + plan.lower_bound
        types.update(fused.graph.types)
        constants.update(fused.graph.constants)
        units.extend(_Unit(k, tuple(fused.graph.nodes[i] for i in k.nodes), device) for k in fused.kernels)
    for kernel in program.kernels:
        node = graph.nodes[kernel.nodes[0]]
        if node.key == DEVICE_COPY:
            price = _copy_price(node, graph, machine, model)
            cost, bound = cost + price, bound + price
            units.append(_Unit(kernel, (node,), str(node.attributes["destination"])))
    return FusedRegions(_joined(program, units, types, constants), cost, bound)


def _copy_price(node: Node, graph: Graph, machine: Machine, model: CostModel) -> float:
    link = machine.link(str(node.attributes["source"]), str(node.attributes["destination"]))
    assert link is not None, "a copy without a link"
    return copy_price(model, link, float(nominal_bytes(graph.type_of(node.inputs[0]))))


def _part(program: Program, device: str, types: Mapping[str, Type], constants: Mapping[str, Constant]) -> Program:
    """What a program computes on one device, as a program of its own: it reads what is copied there."""
    graph = program.graph
    own = [i for i, n in enumerate(graph.nodes) if n.key != DEVICE_COPY and device_of(n, graph.devices) == device]
    part = replace(
        part_at(graph, set(own)),
        types=dict(types),
        constants=dict(constants),
        devices={},
    )
    number = {old: new for new, old in enumerate(own)}
    kernels = tuple(
        replace(k, nodes=tuple(number[i] for i in k.nodes)) for k in program.kernels if k.nodes[0] in number
    )
    return Program(part, kernels, program.origin)


def _joined(
    program: Program, units: list[_Unit], types: Mapping[str, Type], constants: Mapping[str, Constant]
) -> Program:
    """One program of all units, each after those it reads, otherwise in the order of ``program``."""
    position = {v: i for i, n in enumerate(program.graph.nodes) for v in n.outputs if v}
    maker = {v: i for i, unit in enumerate(units) for n in unit.nodes for v in n.outputs if v}
    before = {i: {maker[v] for v in unit.kernel.inputs if v in maker} - {i} for i, unit in enumerate(units)}
    last = [max((position[v] for n in u.nodes for v in n.outputs if v in position), default=0) for u in units]
    nodes: list[Node] = []
    kernels: list[Kernel] = []
    devices: dict[str, str] = {}
    for i in dependency_order(before, last.__getitem__):
        unit = units[i]
        kernels.append(replace(unit.kernel, nodes=tuple(range(len(nodes), len(nodes) + len(unit.nodes)))))
        nodes.extend(unit.nodes)
        devices.update((v, unit.device) for n in unit.nodes for v in n.outputs if v)
    assert len(kernels) == len(units), "the kernels depend on each other in a circle"
    used = {v for n in nodes for v in n.inputs} | set(program.graph.outputs)
    defined = devices.keys() | set(program.graph.inputs)
    graph = replace(
        program.graph,
        nodes=tuple(nodes),
        types={v: t for v, t in types.items() if v in defined},
        constants={v: c for v, c in constants.items() if v in used},
        devices={**devices, **{v: program.graph.devices[v] for v in program.graph.inputs}},
    )
    origin = {v: o for v, o in program.origin.items() if v in defined}
    return replace(program, graph=graph, kernels=tuple(kernels), origin=origin)
