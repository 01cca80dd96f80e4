"""How near a rule came to firing at a place: the deepest partial match of its pattern, or the condition that failed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.ir.operator import operator
from eqsat.rewrite import PROJECTION, AnyRule, Apply, Match, Ref, Rule, Term, Unmet, Variable, terms_of

_STEPS = 20_000
"""E-nodes that one search looks at before it is content with what it has."""


class Names(Protocol):
    """What e-classes are called."""

    def describe(self, handle: int) -> str: ...

    def operators(self, handle: int) -> str: ...

    def facts(self, ref: Ref | None) -> str: ...


@dataclass(frozen=True)
class Miss:
    """One rule at one place.

    ``outcome``: ``holds`` (pattern and conditions do: the rule fired, or told nothing new), ``condition`` (the pattern
    matches, a condition fails), ``right side`` (the right side does not apply), ``pattern`` (a part of the left side is not
    there). ``matched`` of ``operators`` operators of the pattern were found. ``values``: what the variables and named nodes
    matched, so far as they did. ``held``: how many of the conditions held before one did not.
    """

    rule: str
    place: str
    outcome: str
    matched: int
    operators: int
    reason: str
    values: Mapping[str, str] = field(default_factory=dict[str, str])
    held: int = 0

    @property
    def rank(self) -> tuple[int, float, int]:
        """Nearer misses are greater."""
        order = ("pattern", "condition", "right side", "holds")
        return order.index(self.outcome), self.matched / self.operators, self.held

    def __str__(self) -> str:
        if self.outcome == "holds":
            head = "holds here"
        elif self.outcome == "pattern":
            head = f"{self.matched} of {self.operators} operators match; {self.reason}"
        else:
            head = f"the pattern matches, but: {self.reason}"
        lines = [f"{self.rule} at {self.place}: {head}"]
        return "\n".join(lines + [f"    {name} = {text}" for name, text in self.values.items()])


def conditions_held(rule: AnyRule, match: Match) -> tuple[int, str]:
    """How many conditions of a rule hold before one does not, and in words why that one does not; empty if all hold."""
    for held, condition in enumerate(rule.conditions):
        try:
            if not condition.holds(match):
                return held, f"{condition.name!r} does not hold"
        except Unmet as unmet:
            return held, f"{condition.name!r} cannot be established: {unmet}"
    return len(rule.conditions), ""


@dataclass(frozen=True)
class _State:
    """A match under way: class of each variable (``None``: absent), e-node of each operator of the pattern."""

    variables: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    nodes: tuple[tuple[Apply, int], ...] = ()


class NearestMiss:
    """Searches one saturated e-graph for the nearest miss of a rule."""

    def __init__(self, egraph: EGraph, places: Names) -> None:
        self._egraph = egraph
        self._places = places

    def at(self, rule: Rule, handle: int) -> Miss:
        """The nearest miss with the e-class of ``handle`` as the root, or as an inner operator, of the pattern."""
        cls = self._egraph.find(handle)
        best = self._rooted(rule, cls, cls)
        assert best is not None
        frontier, seen = [cls], {cls}
        for _ in range(_depth(rule.pattern) - 1):
            users = {self._egraph.find(u) for c in frontier for u in self._egraph.uses(c)} - seen
            seen |= users
            frontier = sorted(users)
            for user in frontier:
                found = self._rooted(rule, user, cls)
                if found is not None and found.rank > best.rank:
                    best = found
        return best

    def _rooted(self, rule: Rule, root: int, through: int) -> Miss | None:
        """The nearest miss at ``root`` among matches in which an operator of the pattern is ``through``."""
        search = _Search(self._egraph, self._places, through)
        best: Miss | None = None
        for state in search.matches(rule.pattern, root, _State()):
            if search.passes(state):
                found = self._judge(rule, root, state)
                if best is None or found.rank > best.rank:
                    best = found
                if best.outcome == "holds":
                    break
        if best is not None:
            return best
        if root != through and not search.matched:
            return None
        values = self._values(rule, search.state)
        return Miss(rule.name, self._name(root), "pattern", search.matched, _size(rule.pattern), search.reason, values)

    def _judge(self, rule: Rule, root: int, state: _State) -> Miss:
        """A complete match: which condition fails, if any."""
        match = self._match(rule, state, root)
        held, failed = conditions_held(rule, match)
        outcome, reason = "condition", f"condition {failed}"
        if not failed:
            outcome, reason = "right side", "the rule offers nothing here"
            try:
                if rule.build(match) is not None:
                    outcome, reason = "holds", ""
            except Unmet as unmet:
                reason = str(unmet)
        size = _size(rule.pattern)
        return Miss(rule.name, self._name(root), outcome, size, size, reason, self._values(rule, state), held)

    def _match(self, rule: Rule, state: _State, root: int) -> Match:
        egraph = self._egraph
        bindings: dict[str, Ref | None] = {
            name: None if cls is None else egraph.ref(cls) for name, cls in state.variables.items()
        }
        for term, handle in state.nodes:
            if term.name:
                bindings[term.name] = egraph.ref(handle, egraph.nodes[handle].attributes)
        return Match(bindings, egraph.ref(root), rule.attributes)

    def _values(self, rule: Rule, state: _State) -> dict[str, str]:
        refs: dict[str, Ref | None] = {
            term.name: self._egraph.ref(handle, self._egraph.nodes[handle].attributes)
            for term, handle in state.nodes
            if term.name
        }
        for term in terms_of(rule.pattern):
            if isinstance(term, Variable) and term.name in state.variables:
                cls = state.variables[term.name]
                refs[term.name] = None if cls is None else self._egraph.ref(cls)
        return {name: self._places.facts(ref) for name, ref in refs.items()}

    def _name(self, cls: int) -> str:
        return self._places.describe(cls)


class _Search:
    """All matches of a pattern at one e-class, and the deepest partial one on the way."""

    def __init__(self, egraph: EGraph, places: Names, through: int) -> None:
        self._egraph = egraph
        self._places = places
        self._through = through
        self._steps = _STEPS
        self.matched = 0
        self.reason = ""
        self.state = _State()

    def passes(self, state: _State) -> bool:
        """Whether an operator of the pattern matched the class that the user named."""
        return any(self._egraph.find(h) == self._through for _, h in state.nodes)

    def matches(self, term: Term, cls: int, state: _State, path: str = "the root") -> Iterator[_State]:
        if isinstance(term, Variable):
            found = self._variable(term, cls, state)
            if found is not None:
                yield found
            elif term.name in state.variables:
                bound = state.variables[term.name]
                other = "absent" if bound is None else self._places.describe(bound)
                self._fail(state, f"{path} must be {term.name} = {other}, and is {self._places.describe(cls)}")
            else:
                self._fail(state, f"{path} is absent")
            return
        assert isinstance(term, Apply)
        here = [h for h in self._members(cls) if self._is(term, h)]
        if not here:
            wanted = f"output {term.attributes['index']}" if term.op == PROJECTION else term.op
            place = self._places.describe(cls)
            self._fail(state, f"{path} must be {wanted}, and is {place} ({self._places.operators(cls)})")
        for handle in here:
            deeper = _State(state.variables, (*state.nodes, (term, handle)))
            yield from self._operands(term, handle, deeper)

    def _operands(self, term: Apply, handle: int, state: _State) -> Iterator[_State]:
        children = self._egraph.canonical_children(handle)
        definition = operator(term.op) if term.op != PROJECTION else None
        orders = [children]
        if definition is not None and definition.commutative and len(children) == 2 and children[0] != children[1]:
            orders.append(children[::-1])
        for order in orders:
            if len(order) > len(term.args):
                self._fail(state, f"{term.op} has {len(order)} inputs, the pattern has {len(term.args)}")
                continue
            padded = (*order, *(ABSENT_INPUT,) * (len(term.args) - len(order)))
            yield from self._each(term, 0, padded, state)

    def _each(self, term: Apply, index: int, children: tuple[int, ...], state: _State) -> Iterator[_State]:
        if index == len(term.args):
            yield state
            return
        path = f"input {index} of {term.op}"
        for found in self.matches(term.args[index], children[index], state, path):
            yield from self._each(term, index + 1, children, found)

    def _variable(self, term: Variable, cls: int, state: _State) -> _State | None:
        value = None if cls == ABSENT_INPUT else cls
        if value is None and not term.optional:
            return None
        if term.name in state.variables:
            return state if state.variables[term.name] == value else None
        return _State({**state.variables, term.name: value}, state.nodes)

    def _members(self, cls: int) -> Iterator[int]:
        seen: set[tuple[object, ...]] = set()
        for handle in self._egraph.members(cls) if cls != ABSENT_INPUT else ():
            node = self._egraph.nodes[handle]
            key = (node.key, node.attribute_number, node.outputs, self._egraph.canonical_children(handle))
            if key not in seen and self._steps > 0:
                seen.add(key)
                self._steps -= 1
                yield handle

    def _is(self, term: Apply, handle: int) -> bool:
        node = self._egraph.nodes[handle]
        if node.opaque is not None or node.key != term.op:
            return False
        return (
            node.attribute_number == term.attributes["index"] if term.op == PROJECTION else node.outputs == term.outputs
        )

    def _fail(self, state: _State, reason: str) -> None:
        matched = sum(term.op != PROJECTION for term, _ in state.nodes)
        if not self.reason or (matched > self.matched and self.passes(state)):
            self.matched, self.reason, self.state = matched, reason, state


def _size(pattern: Apply) -> int:
    return sum(isinstance(t, Apply) and t.op != PROJECTION for t in terms_of(pattern))


def _depth(term: Term) -> int:
    return 1 + max((_depth(a) for a in term.args), default=0) if isinstance(term, Apply) else 0
