"""A joint selection as a program: lowered, its kernels those that were chosen."""

from collections.abc import Mapping

from eqsat.egraph.encode import Encoding
from eqsat.egraph.enode import INPUT
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.egraph.snapshot import Snapshot
from eqsat.exactness import Exactness
from eqsat.fusion.cones import ConePrices
from eqsat.fusion.merging import written
from eqsat.fusion.partition import group_cone, program_with
from eqsat.fusion.program_graph import ProgramGraph, graph_of_program
from eqsat.fusion.slices import with_slices
from eqsat.fusion.templates import Cone
from eqsat.joint.result import JointSelection
from eqsat.lower.lowering import lower
from eqsat.lower.program import Program
from eqsat.rewrite import PROJECTION


def program_of(
    encoding: Encoding, snapshot: Snapshot, joint: JointSelection, exactness: Mapping[str, Exactness]
) -> Program:
    """The program of a joint selection with its kernels. ``exactness`` gives the class of each rule by name."""
    program = lower(encoding, snapshot, joint.selection, exactness)
    if joint.target.slices:
        program = with_slices(program)
    source = graph_of_program(program.graph, joint.target)
    operations = _counterparts(encoding, snapshot, joint.choice, program, source)
    prices = ConePrices(source.graph, joint.model, joint.target)
    kernels: dict[int, Cone] = {}
    for group in joint.groups:
        members = frozenset(operations[h] for h in group.handles if h in operations)
        root, *also = (source.graph.owner[operations[joint.choice[c]]] for c in (group.root, *group.also))
        cone = group_cone(source.graph, members, root, prices, tuple(also))
        cone.template = group.template
        kernels[root] = cone
    made = {i for cone in kernels.values() for i in cone.operations}
    outputs = written(kernels.values())
    for index, operation in enumerate(source.graph.operations):  # second names of outputs, projections
        cls = source.graph.owner[index]
        if (
            index not in made
            and cls not in outputs
            and (operation.is_view and (operation.source < 0 or cls in source.graph.roots))
        ):
            kernels[cls] = group_cone(source.graph, frozenset((index,)), cls, prices)
    return program_with(program, source, kernels)


def _counterparts(
    encoding: Encoding, snapshot: Snapshot, choice: Mapping[int, int], program: Program, source: ProgramGraph
) -> dict[int, int]:
    """Handle of a chosen e-node -> operation of ``source``, by walking both from the outputs.

    A second name of an output (an Identity that lowering added) has no e-node.
    """
    egraph = snapshot.egraph
    producers = program.graph.producers()
    found: dict[int, int] = {}
    stack = [(value, egraph.find(encoding.handles[value])) for value in encoding.graph.outputs]
    while stack:
        value, cls = stack.pop()
        handle = choice.get(cls)
        node = producers.get(value)
        if handle is None or node is None:
            continue
        enode = egraph.nodes[handle]
        if node.op == "Identity" and (enode.op != "Identity" or enode.domain):
            stack.append((node.inputs[0], cls))
            continue
        if handle in found or (enode.op == INPUT and not enode.domain):
            continue
        index = source.graph.members[source.classes[value]][0]
        found[handle] = index
        children = egraph.canonical_children(handle)
        if enode.op == PROJECTION:
            split = choice[children[0]]
            children = egraph.canonical_children(split)
            if node.op != "Slice":
                found.setdefault(split, source.graph.members[source.graph.operations[index].inputs[0]][0])
        for read, child in zip(node.inputs, children, strict=False):
            if read and child != ABSENT_INPUT:
                stack.append((read, child))
    return found
