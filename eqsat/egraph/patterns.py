"""From a rule's pattern to queries over constructors, one for each choice of absent optional inputs.

Commutative operators need no queries of their own: the engine stores their e-nodes in both orders.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

from eqsat.ir.operator import operator, split_key
from eqsat.rewrite import PROJECTION, WIDEST, Apply, Rule, Term, Variable, terms_of

ABSENT_INPUT = 0
"""Handle of the e-class that stands for an absent optional input."""


@dataclass(frozen=True, slots=True)
class Query:
    """Conjunction of facts over egglog variables, and the columns that a match reports.

    A column is an e-class or, where `is_attribute_column` says so, the number of attributes. ``enodes`` are the e-nodes of the
    pattern, of which the ``root`` equals the right side: the first one, or the one that is called so. ``bindings`` maps each
    variable to its column; ``nodes`` maps each named node to (column of its class, column of its attributes). ``absent`` names
    the optional variables that this query takes as absent. ``root_column`` is that of the value that equals the right side.
    """

    facts: tuple[str, ...]
    columns: tuple[str, ...]
    bindings: tuple[tuple[str, int], ...]
    nodes: tuple[tuple[str, int, int], ...]
    absent: tuple[str, ...]
    constructors: frozenset[str]
    enodes: tuple[Spot, ...]
    root: int
    root_column: int


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a match reports one e-node of its pattern.

    ``attributes``: the column of its attributes' number; for a projection the number itself, negative less one. ``children``:
    the columns of its children, ``None`` for one that is absent. ``inner``: for each child its place among the e-nodes of the
    pattern, ``None`` for a variable.
    """

    op: str
    domain: str
    outputs: int
    attributes: int
    children: tuple[int | None, ...]
    inner: tuple[int | None, ...]


def is_attribute_column(column: str) -> bool:
    """Whether a column of a query reports attributes (by number), not an e-class."""
    return column.startswith("a")


def is_wide(inputs: int) -> bool:
    """Whether an e-node has more inputs than patterns may have: only rules over groups see it."""
    return inputs > WIDEST


@cache
def is_commutative(constructor: str) -> bool:
    """Whether the two inputs of a constructor may be exchanged."""
    op, _, arity = constructor.rpartition("_")
    definition = operator(op) if arity == "2" else None
    return definition is not None and definition.commutative


@cache
def constructor_name(op: str, domain: str, arity: int, outputs: int = 1) -> str:
    """Name of the egglog constructor of an operator with ``arity`` inputs and ``outputs`` outputs."""
    if domain:
        op = f"{domain}_{op}"
    return "".join(ch if ch.isalnum() else "_" for ch in op) + f"_{arity}" + ("" if outputs == 1 else f"_o{outputs}")


@cache
def compile_pattern(rule: Rule) -> tuple[Query, ...]:
    """All queries of a rule. Optional variables absent from a trailing position shorten the constructor's arity."""
    optional = sorted({v.name for v in terms_of(rule.pattern) if isinstance(v, Variable) and v.optional})
    constants = tuple(dict.fromkeys(name for c in rule.conditions for name in c.fact))
    queries: dict[tuple[str, ...], Query] = {}
    for chosen in itertools.product((False, True), repeat=len(optional)):
        absent = tuple(name for name, gone in zip(optional, chosen, strict=True) if gone)
        query = _Compiler(absent, constants).compile(rule.pattern)
        queries.setdefault(query.facts, query)
    return tuple(queries.values())


class _Compiler:
    def __init__(self, absent: tuple[str, ...], constants: tuple[str, ...]) -> None:
        self._absent = absent
        self._constants = constants
        self._facts: list[str] = []
        self._columns: list[str] = []
        self._bindings: dict[str, int] = {}
        self._nodes: list[tuple[str, int, int]] = []
        self._constructors: list[str] = []
        self._spots: list[tuple[str, str, int, str | int, tuple[str, ...]]] = []
        self._count = 0

    def compile(self, term: Term) -> Query:
        self._term(term)
        for name in self._constants:
            if name not in self._absent:
                self._facts.append(f"(Constant_ v_{name})")
        root = next((int(self._columns[column][1:]) for name, column, _ in self._nodes if name == "root"), 0)
        return Query(
            tuple(self._facts),
            tuple(self._columns),
            tuple(self._bindings.items()),
            tuple(self._nodes),
            self._absent,
            frozenset(self._constructors),
            tuple(self._spot(*spot) for spot in self._spots),
            root,
            self._columns.index(f"e{root}"),
        )

    def _spot(self, op: str, domain: str, outputs: int, attributes: str | int, children: tuple[str, ...]) -> Spot:
        column = self._columns.index(attributes) if isinstance(attributes, str) else -1 - attributes
        places = tuple(None if c == "(N 0)" else self._columns.index(c) for c in children)
        return Spot(op, domain, outputs, column, places, tuple(int(c[1:]) if c[0] == "e" else None for c in children))

    def _term(self, term: Term | None) -> str:
        if term is None:
            return "(N 0)"
        if isinstance(term, Variable):
            if term.name in self._absent:
                return "(N 0)"
            name = f"v_{term.name}"
            if term.name not in self._bindings:
                self._bindings[term.name] = self._class(name)
            return name
        assert isinstance(term, Apply)
        number = self._count
        self._count += 1
        name, attributes = f"e{number}", f"a{number}"
        column = self._class(name)
        self._spots.append(("", "", 0, 0, ()))  # known when its children are
        if term.op == PROJECTION:
            index = term.attributes["index"]
            assert isinstance(index, int)
            inner = self._term(term.args[0])
            self._spots[number] = (PROJECTION, "", 1, index, (inner,))
            self._constructors.append("Proj_1")
            self._facts.append(f"(= {name} (Proj_1 {index} {inner}))")
            return name
        self._columns.append(attributes)
        if term.name:
            self._nodes.append((term.name, column, len(self._columns) - 1))
        args: list[Term | None] = list(term.args)
        while args and (args[-1] is None or (isinstance(args[-1], Variable) and args[-1].name in self._absent)):
            args.pop()
        children = [self._term(a) for a in args]
        domain, op = split_key(term.op)
        self._spots[number] = (op, domain, term.outputs, attributes, tuple(children))
        constructor = constructor_name(op, domain, len(args), term.outputs)
        self._constructors.append(constructor)
        self._facts.append(f"(= {name} ({constructor} {attributes} {' '.join(children)}))")
        return name

    def _class(self, name: str) -> int:
        """Adds the column that reports the e-class bound to ``name``."""
        self._columns.append(name)
        return len(self._columns) - 1
