"""A joint selection as a program: lowered, its kernels those that were chosen."""

from collections.abc import Mapping

from eqsat.egraph.encode import Encoding
from eqsat.egraph.snapshot import Snapshot
from eqsat.exactness import Exactness
from eqsat.fusion.cones import ConePrices
from eqsat.fusion.merging import written
from eqsat.fusion.partition import group_cone, program_with
from eqsat.fusion.program_graph import ProgramGraph, graph_of_program
from eqsat.fusion.slices import with_slices
from eqsat.fusion.templates import Cone
from eqsat.joint.result import JointSelection
from eqsat.lower.lowering import Lowering
from eqsat.lower.program import Program


def program_of(
    encoding: Encoding, snapshot: Snapshot, joint: JointSelection, exactness: Mapping[str, Exactness]
) -> Program:
    """The program of a joint selection with its kernels. ``exactness`` gives the class of each rule by name."""
    lowering = Lowering(encoding, snapshot, joint.choice, exactness)
    program = lowering.run()
    if joint.target.slices:
        program = with_slices(program)
    source = graph_of_program(program.graph, joint.target)
    operations = _counterparts(snapshot, joint.choice, lowering.names, source)
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
    snapshot: Snapshot, choice: Mapping[int, int], names: Mapping[int, str], source: ProgramGraph
) -> dict[int, int]:
    """Handle of a chosen e-node -> operation of ``source``, by the names that lowering gave to values."""
    graph, egraph = source.graph, snapshot.egraph
    found: dict[int, int] = {}
    for cls, handle in choice.items():
        number = source.classes.get(names.get(cls, ""))
        for index in graph.members[number] if number is not None else ():
            found[handle] = index
            if "projection" in graph.operations[index].labels:
                split = choice[egraph.canonical_children(handle)[0]]
                found[split] = graph.members[graph.operations[index].inputs[0]][0]
    return found
