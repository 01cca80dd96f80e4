"""Bodies that share weights make the same of them, or nothing.

Each body is optimised as a program of its own. Where one puts two weights side by side and another has no use for that, a file
holds them twice: a decoder whose branches are with and without stored keys would grow by half.
"""

from collections.abc import Iterator
from dataclasses import replace

from eqsat.egraph.encode import Encoding
from eqsat.egraph.explain import Explainer
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.egraph.snapshot import Snapshot, SnapshotNode
from eqsat.ir.constants import same_constant
from eqsat.ir.graph import HANDED_BYTES, Shared
from eqsat.ir.order import reached
from eqsat.lower.materialize import Materializer


def without_shares_apart(encoding: Encoding, snapshot: Snapshot) -> Snapshot:
    """The e-graph without the spellings of rules that read large constants made of shared ones, but for those that others make,
    too. What the graph itself makes of them stays."""
    shared = encoding.graph.shared
    if shared is None:
        return snapshot
    gone = _made_apart(encoding, snapshot, shared)
    classes = dict(snapshot.classes)
    while gone:  # what reads a class without a spelling goes, too

        def stays(item: SnapshotNode, gone: set[int] = gone) -> bool:
            return not item.node.rule or gone.isdisjoint(item.children)

        kept = {cls: tuple(filter(stays, items)) for cls, items in classes.items() if cls not in snapshot.constants}
        gone = {cls for cls, items in kept.items() if classes[cls] and not items}
        classes.update(kept)
    return replace(snapshot, classes={cls: items for cls, items in classes.items() if items}, derived={})


def _made_apart(encoding: Encoding, snapshot: Snapshot, shared: Shared) -> set[int]:
    """Classes of the large constants that rules make of shared ones and that nobody else makes."""
    egraph, graph = encoding.egraph, encoding.graph
    given = {egraph.find(encoding.handles[name]) for name in graph.constants if name in encoding.handles}
    named = {egraph.find(encoding.handles[name]) for name in shared.names if name in encoding.handles}
    values = Materializer(egraph, Explainer(egraph))

    def operands(cls: int) -> Iterator[int]:
        children = egraph.canonical_children(egraph.known.computed_by(cls))
        return (c for c in children if c != ABSENT_INPUT)

    def is_apart(cls: int) -> bool:
        type = egraph.type_of(cls)
        if cls in given or (type.bytes or 0) < HANDED_BYTES or named.isdisjoint(reached([cls], operands)):
            return False
        alike = (c for c in shared.made if c.type == type)
        return not any(same_constant(values.constant(cls), c) for c in alike)

    return {cls for cls in snapshot.constants if is_apart(cls)}
