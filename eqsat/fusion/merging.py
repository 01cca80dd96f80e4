"""Kernels with several outputs: kernels of a covering merged where the target has one kernel that writes all their values.

A template with ``several`` says that its kernels may write several values. Each value is computed by a cone of that template,
and all these cones have the same operators in the stages that take one only; in a template without such a stage the
others are computed from the first value and from leaves (a norm that also writes its quantised result). So
a product whose columns are queries, keys and values writes each of the three with its own epilogue, and computes nothing twice.

A kernel whose template allows one output only because of what precedes its anchor (a product that reads some columns of another)
hands that over to the kernel before it where this costs no more: what is left may write several values.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from eqsat.cost.target import Target
from eqsat.fusion.cones import ConePrices, cone_of, operands_first
from eqsat.fusion.covering import repeated
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.templates import Cone, Matcher
from eqsat.ir.operator import Kind
from eqsat.ir.order import dependency_order, reached


def merge_kernels(
    graph: FusionGraph, kernels: Mapping[int, Cone], target: Target, prices: ConePrices
) -> dict[int, Cone]:
    """The kernels with pairs of them merged as long as that makes the sum of their prices smaller; it never grows.

    ``kernels``: root -> cone that computes it; the keys of the result are the first outputs.
    """
    if not any(t.several for t in target.templates):
        return dict(kernels)
    return _Merging(graph, kernels, target, prices).run()


class Exchanged:
    """``kernels`` by the first class that each writes, where some come in the place of others. ``writer``: class -> root of the
    kernel that writes it; ``readers``: class -> roots of those that read it."""

    def __init__(self, kernels: Mapping[int, Cone]) -> None:
        self.kernels: dict[int, Cone] = {}
        self.writer: dict[int, int] = {}
        self.readers: defaultdict[int, set[int]] = defaultdict(set)
        self.exchange((), kernels.values())

    def exchange(self, old: Iterable[Cone], new: Iterable[Cone]) -> None:
        """Kernels in place of others."""
        for cone in old:
            del self.kernels[cone.root]
            for c in cone.outputs:
                self.writer.pop(c, None)
            for c in cone.cut:
                self.readers[c].discard(cone.root)
        for cone in new:
            self.kernels[cone.root] = cone
            self.writer.update((c, cone.root) for c in cone.outputs)
            for c in cone.cut:
                self.readers[c].add(cone.root)


class _Merging(Exchanged):
    def __init__(self, graph: FusionGraph, kernels: Mapping[int, Cone], target: Target, prices: ConePrices) -> None:
        super().__init__(kernels)
        self._graph = graph
        self._prices = prices
        self._matcher = Matcher(graph, target)
        self._several = {t.name for t in target.templates if t.several}

    def run(self) -> dict[int, Cone]:
        for root in list(self.kernels):
            while root in self.kernels:
                found = self._first_merge(root) or self._first_handover(root)
                if found is None:
                    break
                reader, merged = found
                self.exchange((self.kernels[root], self.kernels[reader]), (merged,))
                for view in sorted(merged.inside & self.kernels.keys() - {merged.root}):
                    self._drop_unread(view)
                root = merged.root
        return self.kernels

    def _first_handover(self, root: int) -> tuple[int, Cone] | None:
        """The first reader of a kernel whose prologue that kernel can take over; leaves the prologue as a kernel of its own,
        which is returned with its merger."""
        cone = self.kernels[root]
        if cone.only_views:
            return None
        for reader in self._readers_of(cone):
            whole = self.kernels[reader]
            parts = None if whole.template in self._several else self._without_prologue(whole)
            if parts is None:
                continue
            prologue, rest = parts
            self.exchange((whole,), parts)
            views = self._readers_of(cone).get(prologue.root)
            merged = None if views is None else self._merged(cone, prologue, views)
            if (
                merged is not None
                and merged.price + rest.price <= (cone.price + whole.price) * (1 + 1e-12)
                and not self._circular(merged, root, prologue.root)
            ):
                return prologue.root, merged
            self.exchange(parts, (whole,))
        return None

    def _without_prologue(self, whole: Cone) -> tuple[Cone, Cone] | None:
        """What precedes the anchor of a kernel, and the rest, if that is a kernel of several outputs; else ``None``."""
        graph = self._graph
        operations = [graph.operations[i] for i in whole.operations]
        before = {c for o in operations if o.kind is Kind.ANCHOR for c in o.inputs if c in whole.inside}
        if len(before) != 1 or whole.also:
            return None
        (cls,) = before
        first = frozenset(operands_first(graph, whole.operations, cls))
        last = whole.operations - first
        if any(graph.operations[i].kind is Kind.ANCHOR for i in first):
            return None
        inner = {graph.owner[i] for i in first} - {cls}
        if cls in self.writer or any(c in inner for i in last for c in graph.operations[i].inputs):
            return None
        prologue, rest = (
            cone_of(self._matcher, self._prices, part, root) for part, root in ((first, cls), (last, whole.root))
        )
        if prologue is None or rest is None or prologue.only_views or rest.template not in self._several:
            return None
        return prologue, rest

    def _first_merge(self, root: int) -> tuple[int, Cone] | None:
        """The first reader of a kernel that can be merged into it with profit."""
        cone = self.kernels[root]
        if cone.only_views:
            return None
        for reader, views in self._readers_of(cone).items():
            other = self.kernels[reader]
            merged = self._merged(cone, other, views)
            if (
                merged is not None
                and merged.price < cone.price + other.price
                and not self._circular(merged, root, reader)
            ):
                return reader, merged
        return None

    def _readers_of(self, cone: Cone) -> dict[int, frozenset[int]]:
        """Kernels that read a value of ``cone``, each with the operations of the views through which it does."""
        readers: dict[int, frozenset[int]] = {}
        for c in cone.outputs:
            for reader, views in self._behind_views(c).items():
                readers[reader] = readers.get(reader, frozenset()) | views
        return readers

    def _behind_views(self, value: int) -> dict[int, frozenset[int]]:
        """Kernels that read a value, directly or through kernels that are views, each with the operations of these views."""
        found: dict[int, frozenset[int]] = {}
        for reader in sorted(self.readers[value]):
            cone = self.kernels[reader]
            if not cone.only_views:
                found[reader] = frozenset()
                continue
            for further, views in self._behind_views(reader).items():
                found[further] = found.get(further, frozenset()) | views | cone.operations
        return found

    def _circular(self, merged: Cone, root: int, reader: int) -> bool:
        """Whether a third kernel needs one of two kernels and is needed by their merger."""
        read = (self.writer[c] for c in merged.cut)
        before = reached(read, lambda kernel: (self.writer[c] for c in self.kernels[kernel].cut))
        return not before.isdisjoint((root, reader))

    def _merged(self, cone: Cone, other: Cone, views: frozenset[int]) -> Cone | None:
        """One kernel that does the work of both, and of views between them; ``None`` if the target has none."""
        graph = self._graph
        operations = cone.operations | other.operations | views
        inside = frozenset(graph.owner[i] for i in operations)
        if len(operations) != len(inside):
            return None
        gone = {c for c in cone.outputs if not self._stays(c, other.root, inside)}
        outputs = [*(c for c in cone.outputs if c not in gone), *other.outputs]
        return kernel_of(self._matcher, self._prices, operations, outputs)

    def _stays(self, value: int, reader: int, inside: frozenset[int]) -> bool:
        """Whether a value must be written when its kernel is merged with that of ``reader``."""
        if value in self._graph.roots:
            return True
        for other in self.readers[value]:
            view = self.kernels[other].only_views and other in inside
            if other != reader and not (view and not self._stays(other, reader, inside)):
                return True
        return False

    def _drop_unread(self, view: int) -> None:
        """Removes a view that no kernel reads any more, and those that only it read."""
        cone = self.kernels.get(view)
        if cone is None or not cone.only_views or self.readers[view] or view in self._graph.roots:
            return
        self.exchange((cone,), ())
        for c in cone.cut:
            self._drop_unread(c)


def kernel_of(matcher: Matcher, prices: ConePrices, operations: frozenset[int], outputs: Sequence[int]) -> Cone | None:
    """The kernel of a group of operations that writes the classes ``outputs``; ``None`` if the target has none."""
    if len(outputs) == 1:
        return cone_of(matcher, prices, operations, outputs[0])
    graph = matcher.graph
    inside = frozenset(graph.owner[i] for i in operations)
    read = frozenset(c for i in operations for c in graph.operations[i].inputs) - inside
    if len(outputs) + sum(not graph.scalar[c] for c in read) > matcher.target.argument_limit:
        return None
    cones: list[Cone] = []
    for root in outputs:
        cone = cone_of(matcher, prices, frozenset(operands_first(graph, operations, root)), root)
        if cone is None:
            return None
        cones.append(cone)
    if frozenset().union(*(c.operations for c in cones)) != operations:
        return None
    template = _common_template(matcher, cones)
    if template is None:
        return None
    first, *also = outputs
    price = prices(first, operations, read, tuple(also))
    cut = frozenset(c for c in read if graph.members[c])
    return Cone(first, operations, inside, read, cut, template=template, price=price, also=tuple(also))


def _common_template(matcher: Matcher, cones: Sequence[Cone]) -> str | None:
    """A template of which the cones are one kernel that writes their values."""
    for t, template in enumerate(matcher.target.templates):
        if not (template.several or len(cones) == 1) or not all(matcher.complete(t, c) for c in cones):
            continue
        single = [i for i, stage in enumerate(template.stages) if stage.once]
        if single:
            held = {tuple(c.occupants[t][i] for i in single) for c in cones}
            if len(held) == 1:
                return template.name
        elif all(_continues(matcher.graph, cones[0], c) for c in cones):
            return template.name
    return None


def _continues(graph: FusionGraph, first: Cone, further: Cone) -> bool:
    """Whether a cone computes its value from that of ``first`` and from leaves."""
    added = [c for i in further.operations - first.operations for c in graph.inputs_of(i)]
    within = (further.inside - first.inside) | {first.root}
    return first.inside <= further.inside and within.issuperset(added)


def kernels_before(kernels: Mapping[int, Cone]) -> dict[int, set[int]]:
    """For each kernel (by its root) those that write what it reads."""
    writer = {c: root for root, cone in kernels.items() for c in cone.outputs}
    return {root: {writer[c] for c in cone.cut} for root, cone in kernels.items()}


def are_covering(graph: FusionGraph, kernels: Mapping[int, Cone], target: Target) -> bool:
    """Whether kernels compute nothing twice that the target does not recompute, and do not wait for one another."""
    in_order = dependency_order(kernels_before(kernels))
    return len(in_order) == len(kernels) and not repeated(graph, kernels.values(), target)


def written(kernels: Iterable[Cone]) -> set[int]:
    """Classes that the kernels write."""
    return {c for cone in kernels for c in cone.outputs}
