"""Rules: an equation between a pattern, or a group of nodes, and what is made of a match."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import wraps
from typing import Any, Protocol, TypeVar

from eqsat.errors import RuleError
from eqsat.exactness import Exactness
from eqsat.rewrite.match import AttributeOf, Condition, Match
from eqsat.rewrite.terms import NOT_ESTABLISHED, WIDEST, Apply, Ref, Term, Unmet, terms_of

Sample = Callable[[Any], Any]
T = TypeVar("T")
RightSide = Callable[[Match], Term | None]


@dataclass(frozen=True, eq=False)
class _Stated:
    """What every rule states.

    ``name`` is unique; ``equation`` is the first line of the docstring. ``sample`` draws a random instance of the left side for
    the soundness test, see ``rules/README.md``. ``domain``: of the operators that the right side introduces, or the key of the
    one that it introduces; the rule only runs where programs may use them. ``legalizes``: the operator that the rule spells
    out; it only runs where the target has no kernel for that. ``outside``: a domain with operators that do better; the rule
    only runs where programs may not use them. ``unverified``: registered without the check by random instantiation; reports say
    so. ``structure``: what users ask for that the left side looks like; reports say why one is none.
    """

    name: str
    _: KW_ONLY
    exactness: Exactness = Exactness.EXACT
    family: str = "user"
    source: str = ""
    equation: str = ""
    doc: str = ""
    conditions: tuple[Condition, ...] = ()
    sample: Sample | None = None
    domain: str = ""
    legalizes: str = ""
    outside: str = ""
    unverified: bool = False
    structure: str = ""


@dataclass(frozen=True, eq=False)
class Rule(_Stated):
    """An equation between a pattern and what ``build`` makes of a match.

    ``quanta``: for class LSB, how many quanta an integer result may move. ``sample``, given a sampler, returns an array for each
    variable and the attributes of each named node; ``drawn``: what is stated of instances that are drawn without one
    (`eqsat.rule_check.drawn`). ``attributes``: those of matched nodes that have names of their own. ``ends``: variables that the
    right side is made of, whatever the pattern has between them and the root: of matches with the same ends one is enough.
    """

    pattern: Apply
    build: RightSide
    quanta: int = field(default=0, kw_only=True)
    drawn: tuple[str, ...] = field(default=(), kw_only=True)
    ends: tuple[str, ...] = field(default=(), kw_only=True)
    attributes: Mapping[str, AttributeOf] = field(default_factory=dict[str, AttributeOf], kw_only=True)

    def __post_init__(self) -> None:
        for term in terms_of(self.pattern):
            if isinstance(term, Apply) and len(term.args) > WIDEST:
                raise RuleError(
                    f"rule {self.name!r}: {term.op} has over {WIDEST} inputs; write a rule over groups (`group_rule`)"
                )
        if self.pattern.outputs > 1:
            raise RuleError(
                f"rule {self.name!r}: {self.pattern.op} has several outputs, which nothing compares: name one, by `[0]` behind it"
            )


class GroupView(Protocol):
    """What a group rule sees of the e-graph."""

    def nodes(self, op: str) -> Iterator[tuple[Ref, tuple[Ref | None, ...]]]:
        """Every e-node of ``op``: its class (with the node's attributes) and its inputs, oldest first."""
        ...

    def spellings(self, ref: Ref) -> Iterator[tuple[str, tuple[Ref | None, ...]]]:
        """Every e-node in the class of ``ref``: operator, inputs."""
        ...

    def users(self, ref: Ref) -> Iterator[tuple[str, Ref, tuple[Ref | None, ...]]]:
        """Every e-node that reads ``ref``: operator, class, inputs."""
        ...

    def notes(self, subject: Hashable) -> dict[Any, Any]:
        """What rules wrote down about ``subject`` while the e-graph grew. The `Ref` of an e-node that `nodes` shows is the same
        object as long as the e-node, its class and those of its inputs are as they were."""
        ...

    def shared(self, find: Callable[[GroupView], T]) -> T:
        """What ``find`` finds, see `shared`."""
        ...

    def meets(self, conditions: Sequence[Condition], **names: Any) -> bool:
        """Whether those of ``conditions`` that the rule has hold of ``names``; the first that does not is counted by its name."""
        ...

    def missed(self, ref: Ref, reason: Unmet) -> None:
        """Says that ``ref`` looks like a structure that users ask for, but is none, and why."""
        ...


def shared(find: Callable[[GroupView], T]) -> Callable[[GroupView], T]:
    """A function whose result all rules share that ask for it while the e-graph is as it is. Nobody may change that."""

    def found(view: GroupView) -> T:
        return view.shared(find)

    return wraps(find)(found)


Merge = tuple[Ref, Term]
Finder = Callable[[GroupView], Iterable[Match]]


@dataclass(frozen=True, eq=False)
class GroupRule(_Stated):
    """An equation over any number of nodes at once.

    ``find`` finds matches in the e-graph, ``build`` makes the right side of one for which the conditions hold. Without ``find``,
    ``build`` yields pairs (existing value, term that equals it) itself, and there are no conditions. ``forms``: terms of which
    random instances are drawn where there is no ``sample`` (`eqsat.equations.form`). ``raises``: where the two sides have
    different extents the left one has no value, the operator refuses its operands.
    """

    build: Callable[[Any], Any]
    find: Finder | None = field(default=None, kw_only=True)
    forms: Sequence[Rule] = field(default=(), kw_only=True)
    raises: bool = field(default=False, kw_only=True)

    @property
    def quanta(self) -> int:
        """For class LSB, how many quanta an integer result may move."""
        return int(self.exactness is Exactness.LSB)

    def merges(
        self,
        view: GroupView,
        missed: Callable[[Exception], object] = lambda reason: None,
        seen: set[Hashable] | None = None,
    ) -> Iterator[Merge]:
        """Pairs (existing value, term that equals it), up to a node about which too little is known to search on;
        ``missed`` hears of that, and why a match is none. Matches in ``seen`` are left out, others are added to it."""
        seen = set() if seen is None else seen
        try:
            if self.find is None:
                yield from self.build(view)
                return
            for match in self.find(view):
                key = match.key()
                if key in seen:
                    continue
                if key is not None:
                    seen.add(key)
                try:
                    match.check(self.conditions)
                    term = self.build(match)
                except NOT_ESTABLISHED as reason:
                    missed(reason)
                else:
                    yield match.root, term
        except NOT_ESTABLISHED as reason:  # whatever the search had left to find
            missed(Unmet(f"the search ended: {reason}"))


AnyRule = Rule | GroupRule
