"""Which node of a lowered program computes which chosen e-node."""

from __future__ import annotations

from collections.abc import Mapping

from eqsat.egraph.egraph import INPUT
from eqsat.egraph.encode import Encoding
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.egraph.snapshot import Snapshot
from eqsat.fusion.program_graph import ProgramGraph
from eqsat.lower.program import Program
from eqsat.rewrite import PROJECTION


def counterparts(
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
