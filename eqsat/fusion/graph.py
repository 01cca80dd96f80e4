"""What fusion sees of an e-graph or a program: operators with labels and work, between e-classes with sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eqsat.cost.model import Work, work_of
from eqsat.ir.nominal import number_of
from eqsat.ir.operator import Application, Kind, traits_of
from eqsat.ir.traits import Rows
from eqsat.ir.types import DType, TensorType, Type

_PARTS = frozenset(("multiple", "projection"))


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator as fusion sees it.

    ``labels`` are what a stage of a template can ask for: the name of the operator; ``view``, ``elementwise``,
    ``broadcast`` (elementwise, but no input has the size of the output), ``injective``, ``anchor``, ``opaque``;
    ``bias`` (the sum of a value and a vector along its last axis), ``reduction`` (one loop over the reduced axes),
    ``row`` (a reduction over trailing axes), ``window`` (any other reduction); ``unwritable`` (the file to be written cannot
    hold it: no kernel), ``multiple`` (several outputs) and ``projection`` (one of them). ``inputs`` are distinct e-classes.
    ``row_elements``: elements that a ``row`` operator reduces together, 0 otherwise. ``source``: handle or index of a node.
    ``work``: what it does as a kernel of its own, for cost models that know single operators.
    """

    name: str
    labels: frozenset[str]
    kind: Kind
    inputs: tuple[int, ...]
    flops: float
    dtype: str
    source: int
    row_elements: int = 0
    row_bytes: float = 0.0
    work: Work | None = None

    @property
    def is_view(self) -> bool:
        """Whether it launches nothing on any target."""
        return self.kind is Kind.VIEW

    @property
    def is_plain_view(self) -> bool:
        """Whether it is a view, and no part of an operator with several outputs."""
        return self.is_view and not self.has_parts

    def fits(self, accepts: frozenset[str]) -> bool:
        """Whether stages that ``accepts`` these labels can hold it: views go anywhere."""
        return self.is_view or not accepts.isdisjoint(self.labels)

    @property
    def has_parts(self) -> bool:
        """Whether it is an operator with several outputs, or one of them."""
        return not self.labels.isdisjoint(_PARTS)


@dataclass
class FusionGraph:
    """E-classes 0, 1, ... with their operations; a program is the case of one operation for each class.

    ``members[c]`` are indices into ``operations``; a class without members is a leaf (an input or a constant of the
    program), always in memory. ``elements`` and ``bytes`` are those of the value of a class; symbolic extents count as 32.
    ``roots`` must end up in memory. ``scalar[c]``: a constant of one element, which kernels hold in their code. ``collapsed``:
    operations of which several inputs became one class, so that positions among the inputs mean nothing.
    """

    operations: list[Operation] = field(default_factory=list[Operation])
    owner: list[int] = field(default_factory=list[int])
    members: list[list[int]] = field(default_factory=list[list[int]])
    elements: list[float] = field(default_factory=list[float])
    bytes: list[float] = field(default_factory=list[float])
    scalar: list[bool] = field(default_factory=list[bool])
    roots: tuple[int, ...] = ()
    collapsed: set[int] = field(default_factory=set[int])

    def add_class(self, types: Sequence[Type], *, scalar: bool = False) -> int:
        """A new e-class whose value has these types (several for the outputs of one operator)."""
        self.members.append([])
        self.elements.append(sum(_elements(t) for t in types))
        self.bytes.append(sum(_bytes(t) for t in types))
        self.scalar.append(scalar)
        return len(self.members) - 1

    def add_class_of(self, other: FusionGraph, cls: int) -> int:
        """A new e-class whose value is that of a class of another graph."""
        self.members.append([])
        self.elements.append(other.elements[cls])
        self.bytes.append(other.bytes[cls])
        self.scalar.append(other.scalar[cls])
        return len(self.members) - 1

    def add(self, cls: int, operation: Operation) -> int:
        """Adds an operation to a class and returns its index."""
        index = len(self.operations)
        self.operations.append(operation)
        self.owner.append(cls)
        self.members[cls].append(index)
        return index

    def inputs_of(self, index: int) -> list[int]:
        """Classes that the operation reads and that are no leaves."""
        return [c for c in self.operations[index].inputs if self.members[c]]

    def operands(self, index: int) -> list[int]:
        """The operations that compute what one reads."""
        return [i for c in self.operations[index].inputs for i in self.members[c]]

    def views_of(self, cls: int) -> list[int]:
        """The operations that give a class as a view, inside kernels, too."""
        return [i for i in self.members[cls] if self.operations[i].is_plain_view]

    def nodes(self, usable: Sequence[bool]) -> tuple[list[int], list[int], list[tuple[int, ...]]]:
        """The choice of operations as an extraction problem: for each node its operation, -1 for a leaf, its class, and those
        that it reads. ``usable[i]``: whether operation ``i`` may be chosen."""
        operations = [i for members in self.members for i in members if usable[i]]
        leaves = [c for c, members in enumerate(self.members) if not members]
        owner = [self.owner[i] for i in operations] + leaves
        children = [self.operations[i].inputs for i in operations] + [()] * len(leaves)
        return operations + [-1] * len(leaves), owner, children

    def users(self) -> list[list[int]]:
        """For each class the operations that read it, class by class."""
        found: list[list[int]] = [[] for _ in self.members]
        for members in self.members:
            for i in members:
                for c in self.operations[i].inputs:
                    found[c].append(i)
        return found

    def restricted(self, choice: Mapping[int, int]) -> FusionGraph:
        """The same classes with only the chosen operation in each class, and none in the others that are not leaves.

        ``choice``: class -> operation, for all classes that the roots need.
        """
        members = [[choice[c]] if c in choice else [] for c in range(len(self.members))]
        return FusionGraph(self.operations, self.owner, members, self.elements, self.bytes, self.scalar, self.roots)


def operation_of(app: Application, outputs: Sequence[Type], inputs: Sequence[int], source: int) -> Operation:
    """The operation for an operator applied to inputs of known types."""
    work = work_of(app, outputs)
    labels = {work.operators[0]}
    row_elements, row_bytes = 0, 0.0
    if len(outputs) > 1:
        labels.add("multiple")
    elif work.kind is Kind.ELEMENTWISE:
        size = _elements(outputs[0])
        same = any(_elements(t) == size for t in app.types if t is not None)
        labels.add("elementwise" if same else "broadcast")
        if "Add" in labels and _adds_vector(app.types, outputs[0]):
            labels.add("bias")
    elif work.kind is Kind.REDUCTION:
        row_elements = _row_elements(work.operators[0], app)
        if row_elements:
            labels.add("row")
            first = app.types[0]
            row_bytes = row_elements * (first.dtype.bits / 8 if isinstance(first, TensorType) else 4)
        if traits_of(work.operators[0]).folds:
            labels.add("reduction")
        elif not row_elements:
            labels.add("window")
    else:
        labels.add(work.kind.value)
    distinct = tuple(dict.fromkeys(inputs))
    name = work.operators[0]
    return Operation(
        name, frozenset(labels), work.kind, distinct, work.flops, work.dtype, source, row_elements, row_bytes, work
    )


def _adds_vector(types: Sequence[Type | None], result: Type) -> bool:
    """Whether one of two operands has the shape of the sum, and the other is a vector along its last axis."""
    shapes = [None if t is None else t.shape for t in types]
    return bool(result.shape) and len(result.shape) > 1 and {result.shape, result.shape[-1:]} == set(shapes)


def projection(of: int, source: int) -> Operation:
    """Output of an operator with several: part of the buffers that the operator wrote."""
    return Operation("Projection", frozenset(("projection",)), Kind.VIEW, (of,), 0.0, "default", source)


def part_of(of: int, source: int) -> Operation:
    """Output of a Split where it is a slice of the Split's input."""
    return Operation("Slice", frozenset(("Slice", "injective")), Kind.INJECTIVE, (of,), 0.0, "default", source)


def _row_elements(key: str, app: Application) -> int:
    """Elements of a row if the operator reduces over trailing axes only, else 0."""
    traits = traits_of(key)
    first = app.types[0] if app.types else None
    if first is None or not first.shape:
        return 0
    rank = len(first.shape)
    if traits.rows is not None:
        axis = app.attr("axis", -1)
        axis += rank if axis < 0 else 0
        if traits.rows is Rows.ALONG and axis != rank - 1:
            return 0
        axes = set(range(axis, rank))
    elif traits.reduces:
        value = app.value(1)
        if value is None:
            return 0
        axes = {int(a) % rank for a in value.reshape(-1)} or set(range(rank))
    else:
        return 0
    if axes != set(range(rank - len(axes), rank)):
        return 0
    total = 1
    for d in first.shape[rank - len(axes) :]:
        total *= number_of(d)
    return total


def _elements(type: Type | None) -> float:
    if type is None or type.shape is None:
        return 0.0
    total = 1.0
    for d in type.shape:
        total *= number_of(d)
    return total


def _bytes(type: Type) -> float:
    return 0.0 if type.dtype is DType.UNDEFINED else _elements(type) * type.dtype.bits / 8
