"""The e-graph as the host sees it: e-nodes with handles, e-classes with types and known values, and why they were merged.

Congruence and matching belong to egglog (`eqsat.egraph.engine`); this mirror holds what egglog must not: types, attributes,
constants and the reasons of every union. A handle names an e-node for ever; `find` gives the handle that represents its
e-class now.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from eqsat.egraph.changes import Changes
from eqsat.egraph.engine import Pending
from eqsat.egraph.enode import ABSENT, CONSTANT, INPUT, LEAVES, ENode, TupleType, Union, UnsoundError, joined_types
from eqsat.egraph.known import KnownValues
from eqsat.egraph.lists import Lists
from eqsat.egraph.patterns import ABSENT_INPUT, constructor_name, is_wide
from eqsat.errors import EqsatError, RuleError
from eqsat.ir.constants import Constant, ConstantPool
from eqsat.ir.graph import NO_ATTRIBUTES, Attributes, Node
from eqsat.ir.infer import infer_types
from eqsat.ir.limits import Limits, largest
from eqsat.ir.operator import Operator, definition_of, operator, split_key
from eqsat.ir.types import Dim, Type
from eqsat.rewrite import OPAQUE, PROJECTION, Apply, Literal, Ref, Term


class EGraph:
    """E-nodes, e-classes, types and constants. Grows only; `merge` never loses a spelling."""

    def __init__(self, *, fold_inexact: bool = True, limits: Limits | None = None) -> None:
        self._limits = limits or {}
        self.nodes: list[ENode] = []
        self.unions: list[Union] = []
        self.pool = ConstantPool()
        self.pending = Pending()
        self._types: list[Type | TupleType] = []
        self._parent: list[int] = []
        self._memo: dict[tuple[object, ...], int] = {}
        self._uses: dict[int, list[int]] = {}
        self._members: dict[int, list[int]] = {}
        self._attribute_numbers: dict[Attributes, int] = {NO_ATTRIBUTES: 0}
        self._attributes: list[Attributes] = [NO_ATTRIBUTES]
        self._leaf_numbers: dict[object, int] = {}
        self._inputs: list[int] = []
        self.duplicates: set[int] = set()
        """E-nodes that an older one of the same operator, attributes and classes of inputs stands for."""
        self.changes = Changes(self)
        self.known = KnownValues(self, fold_inexact=fold_inexact)
        self._lists = Lists(self)
        absent = self._insert(ENode(ABSENT, "", NO_ATTRIBUTES, 0, (), 1, ""), TupleType(()))
        assert absent == ABSENT_INPUT

    # ---- classes

    def find(self, handle: int) -> int:
        """The handle that represents the e-class of ``handle``."""
        parent = self._parent
        while (above := parent[handle]) != handle:
            parent[handle] = parent[above]
            handle = above
        return handle

    def type_of(self, handle: int) -> Type:
        found = self._types[self.find(handle)]
        assert not isinstance(found, TupleType), "the value is a tuple: project it first"
        return found

    def full_type_of(self, handle: int) -> Type | TupleType:
        return self._types[handle if self._parent[handle] == handle else self.find(handle)]

    def value_of(self, handle: int) -> np.ndarray | None:
        """Elements of the e-class if constant and few, else ``None``."""
        return self.known.small_value(self.find(handle))

    def list_of(self, handle: int) -> np.ndarray | None:
        """Elements of the e-class if they are constant and few, or extents that are known by symbols, else ``None``."""
        cls = self.find(handle)
        value = self.known.small_value(cls)
        return self._lists.of(cls) if value is None else value

    def inputs(self) -> Sequence[int]:
        """Handles of the inputs of the program, in their order."""
        return self._inputs

    def literal_of(self, handle: int) -> np.ndarray | None:
        """Elements of the e-class, however many, if they are those of a literal constant, moved at most, else ``None``."""
        return self.known.elements(self.find(handle)) if self.is_constant(handle) else None

    def is_constant(self, handle: int) -> bool:
        return (handle if self._parent[handle] == handle else self.find(handle)) in self.known.constants

    def lessons(self, handle: int) -> int:
        return self.changes.lessons.get(self.find(handle), 0)

    def interval_of(self, handle: int) -> tuple[float, float]:
        return self.known.interval(self.find(handle))

    def largest(self, dim: Dim) -> float:
        """A number that an extent does not exceed, wherever the original program runs; infinite where none is known."""
        return largest(dim, self._limits)

    def members(self, handle: int) -> Sequence[int]:
        """Handles of the e-nodes in the e-class of ``handle``, oldest first."""
        return self._members[self.find(handle)]

    def has_operator(self, handle: int, key: str) -> bool:
        """Whether the e-class of ``handle`` has an e-node of an operator, by its key."""
        return any(self.nodes[member].key == key for member in self.members(handle))

    def uses(self, handle: int) -> Sequence[int]:
        """Handles of the e-nodes that have the e-class of ``handle`` as a child, oldest first."""
        return sorted(self.users_of(handle))

    def users_of(self, handle: int) -> Sequence[int]:
        """The same in no order, and some of them several times."""
        return self._uses.get(self.find(handle), ())

    def classes(self) -> Iterator[int]:
        """The representatives of all e-classes, oldest first."""
        return (h for h in range(len(self.nodes)) if self._parent[h] == h)

    def is_given(self, enode: int) -> bool:
        """Whether an e-node is one of the original program."""
        return not self.nodes[enode].rule

    def made_by_rules(self) -> set[str]:
        """Operators of the default domain that rules made."""
        return {node.op for node in self.nodes if node.rule and not node.domain}

    @property
    def class_count(self) -> int:
        return len(self._members)

    def ref(self, handle: int, attributes: Attributes = NO_ATTRIBUTES) -> Ref:
        return Ref(self.find(handle), self, attributes)

    def canonical_children(self, handle: int) -> tuple[int, ...]:
        return tuple(map(self.find, self.nodes[handle].children))

    # ---- adding

    def add_input(self, name: str, type: Type) -> int:
        number = self._leaf_numbers.setdefault((INPUT, name), len(self._leaf_numbers))
        handle = self._add(ENode(INPUT, "", Attributes({"name": name}), number, (), 1, ""), type)
        self._inputs.append(handle)
        return handle

    def add_constant(self, constant: Constant, rule: str = "") -> int:
        """The e-node of a constant; one for each content."""
        constant = self.pool.intern(constant)
        number = self._leaf_numbers.get(constant)
        if number is not None:
            return self._memo[CONSTANT, "", number, 1]
        number = self._leaf_numbers[constant] = len(self._leaf_numbers)
        return self._add(ENode(CONSTANT, "", Attributes({"value": constant}), number, (), 1, rule), constant.type)

    def add_node(self, node: Node, children: Sequence[int], types: Sequence[Type]) -> int:
        """The e-node of a node of the original graph. A node we do not understand is equal only to itself."""
        definition = definition_of(node)
        outputs = len(node.outputs)
        type: Type | TupleType = types[0] if outputs == 1 else TupleType(tuple(types))
        if definition is None:
            number = len(self._leaf_numbers)
            self._leaf_numbers[node, number] = number
            domain = f"{OPAQUE}{node.domain}"
            return self._add(ENode(node.op, domain, node.attributes, number, tuple(children), outputs, "", node), type)
        if definition.deterministic:
            number = self.number_of(node.attributes)
        else:  # a number of its own: rules see the operator and its attributes, congruence never joins two of them
            number = len(self._attributes)
            self._attributes.append(node.attributes)
        return self._add(ENode(node.op, node.domain, node.attributes, number, tuple(children), outputs, ""), type)

    def add_projection(self, handle: int, index: int, rule: str = "") -> int:
        type = self.full_type_of(handle)
        if not isinstance(type, TupleType):
            if index != 0:
                raise RuleError(f"output {index} of an operator with one output")
            return handle
        return self._add(
            ENode(PROJECTION, "", Attributes({"index": index}), index, (handle,), 1, rule), type.items[index]
        )

    def add_term(self, term: Term, rule: str) -> int:
        """The e-node of a right side. Raises `RuleError` when an operator of the term rejects its inputs."""
        if isinstance(term, Ref):
            return term.handle
        if isinstance(term, Literal):
            return self.add_constant(term.constant, rule)
        if not isinstance(term, Apply):
            raise RuleError(f"rule {rule!r}: the right side still contains {term!r}")
        if term.op == PROJECTION:
            index = term.attributes["index"]
            assert isinstance(index, int)
            return self.add_projection(self.add_term(term.args[0], rule), index, rule)
        children = tuple(ABSENT_INPUT if a is None else self.add_term(a, rule) for a in term.args)  # pyright: ignore[reportUnnecessaryComparison]
        domain, op = split_key(term.op)
        number = self.number_of(term.attributes)
        found = self._memo.get((op, domain, number, term.outputs, *map(self.find, children)))
        if found is not None:
            return found
        types = [None if c == ABSENT_INPUT else self.type_of(c) for c in children]
        values = [None if c == ABSENT_INPUT else self.value_of(c) for c in children]
        lists = [None if c == ABSENT_INPUT else self.list_of(c) for c in children]
        names = tuple(f"o{i}" for i in range(term.outputs))
        node = Node(op, tuple(f"i{i}" for i in range(len(children))), names, term.attributes, domain)
        try:
            result = infer_types(node, types, values, lists)
        except EqsatError as error:
            raise RuleError(f"rule {rule!r} builds a term that is not well-formed: {error}") from None
        type: Type | TupleType = result[0] if term.outputs == 1 else TupleType(result)
        return self._add(ENode(op, domain, term.attributes, number, children, term.outputs, rule), type)

    def attributes_by_number(self, number: int) -> Attributes:
        """The attributes behind the number that egglog sees."""
        return self._attributes[number]

    def number_of(self, attributes: Attributes) -> int:
        """The number by which egglog sees attributes."""
        number = self._attribute_numbers.get(attributes)
        if number is None:
            number = self._attribute_numbers[attributes] = len(self._attributes)
            self._attributes.append(attributes)
        return number

    def _add(self, node: ENode, type: Type | TupleType) -> int:
        """The handle of an e-node, the one that it has if there is one like it."""
        key = (node.op, node.domain, node.attribute_number, node.outputs, *map(self.find, node.children))
        found = self._memo.get(key)
        if found is not None:
            return found
        handle = self._memo[key] = self._insert(node, type)
        self.known.added(handle)
        return handle

    def _insert(self, node: ENode, type: Type | TupleType) -> int:
        handle = len(self.nodes)
        self.nodes.append(node)
        self._types.append(type)
        self._parent.append(handle)
        self._members[handle] = [handle]
        for child in {self.find(c) for c in node.children}:
            self._uses.setdefault(child, []).append(handle)
        self.changes.inserted(handle)
        constructor = constructor_name(node.op, node.domain, len(node.children), node.outputs)
        self.pending.nodes[constructor].append((handle, node.attribute_number, *node.children))
        return handle

    def definition(self, handle: int) -> Operator | None:
        """Definition of the operator of an e-node; ``None`` for leaves, projections and opaque nodes."""
        node = self.nodes[handle]
        nobody = node.op in LEAVES or node.op == PROJECTION or node.opaque is not None
        return None if nobody else operator(node.op, node.domain)

    # ---- merging

    def enode_of(self, op: str, domain: str, number: int, outputs: int, children: Sequence[int]) -> int | None:
        """The handle of an e-node by what it consists of, if there is one."""
        return self._memo.get((op, domain, number, outputs, *map(self.find, children)))

    def union(self, left: int, right: int, rule: str, premises: tuple[tuple[int, int], ...] = ()) -> bool:
        """Declares two values equal on the authority of ``rule``. Returns whether that was news.

        Raises `UnsoundError` if their types contradict each other.
        """
        if self.find(left) == self.find(right):
            return False
        self.unions.append(Union(left, right, rule, premises))
        self.pending.unions.append((left, right))
        self.merge(left, right, rule)
        return True

    def merge(self, left: int, right: int, reason: str) -> None:
        """Joins two e-classes: a rule's union, or congruence that egglog found."""
        keep, lose = sorted((self.find(left), self.find(right)))
        if keep == lose:
            return
        a, b = self._types[keep], self._types[lose]
        joined = joined_types(a, b)
        if joined is None:
            kept, lost = self.nodes[keep].key, self.nodes[lose].key
            raise UnsoundError(f"{reason}: joined {kept} of type {a} with {lost} of type {b}")
        self.changes.merging(keep, lose, refined=joined != a)
        self._parent[lose] = keep
        self._types[keep] = joined
        gained = self._members.pop(lose)
        self._members[keep] = sorted(self._members[keep] + gained)
        moved = self._uses.pop(lose, [])
        self._uses.setdefault(keep, []).extend(moved)
        unseen: list[tuple[int, int]] = []
        for user in moved:
            node = self.nodes[user]
            key = (node.op, node.domain, node.attribute_number, node.outputs, *map(self.find, node.children))
            twin = self._memo.setdefault(key, user)
            if twin != user:  # congruent: the older one stands for both
                self._memo[key] = min(twin, user)
                self.duplicates.add(max(twin, user))
                if is_wide(len(node.children)):
                    unseen.append((twin, user))
        self.known.merged(keep, lose, gained, moved)
        self._lists.merged(keep, lose)
        for pair in unseen:  # egglog, which finds what else is congruent, does not know these
            self.pending.unions.append(pair)
            self.merge(*pair, "congruence")
