"""Rules and the registry they live in."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Protocol, TypeVar

from eqsat.errors import OptionError, RuleError, nearest
from eqsat.exactness import Exactness
from eqsat.ir.operator import operator
from eqsat.rewrite.families import complete_families
from eqsat.rewrite.match import AttributeOf, Condition, Match
from eqsat.rewrite.terms import NOT_ESTABLISHED, PROJECTION, WIDEST, Apply, Ref, Term, Unmet, Variable

Sample = Callable[[Any], Any]
T = TypeVar("T")
RightSide = Callable[[Match], Term | None]


@dataclass(frozen=True, eq=False)
class Rule:
    """An equation between a pattern and what ``build`` makes of a match.

    ``name`` is unique; ``equation`` is the first line of the docstring. ``quanta``: for class LSB, how many quanta an integer
    result may move. ``sample`` draws a random instance of the left side for the soundness test: given a sampler it returns
    an array for each variable and the attributes of each named node, see ``rules/README.md``. ``domain``: of the operators
    that the right side introduces; the rule only runs where programs may use them. ``legalizes``: the operator that the rule
    spells out; it only runs where the target has no kernel for that. ``outside``: a domain with operators that do better; the
    rule only runs where programs may not use them. ``unverified``: registered without the check by random instantiation;
    reports say so. ``attributes``: those of matched nodes that have names of their own in a match. ``structure``: what users ask
    for that the left side is; reports say why one is none.
    """

    name: str
    pattern: Apply
    build: RightSide
    conditions: tuple[Condition, ...]
    exactness: Exactness
    family: str
    source: str
    equation: str
    doc: str
    quanta: int = 0
    sample: Sample | None = None
    domain: str = ""
    legalizes: str = ""
    outside: str = ""
    unverified: bool = False
    attributes: Mapping[str, AttributeOf] = field(default_factory=dict[str, AttributeOf])
    structure: str = ""

    def __post_init__(self) -> None:
        for op in _too_wide(self.pattern):
            raise RuleError(
                f"rule {self.name!r}: {op} has over {WIDEST} inputs; write a rule over groups (`group_rule`)"
            )


def _too_wide(pattern: Term) -> Iterator[str]:
    if isinstance(pattern, Apply):
        if len(pattern.args) > WIDEST:
            yield pattern.op
        for arg in pattern.args:
            yield from _too_wide(arg)


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
class GroupRule:
    """An equation over any number of nodes at once.

    ``find`` finds matches in the e-graph, ``build`` makes the right side of one for which the conditions hold. Without ``find``,
    ``build`` yields pairs (existing value, term that equals it) itself, and there are no conditions. ``forms``: terms of which
    random instances are drawn where there is no ``sample`` (`eqsat.equations.form`). ``structure``: what users ask for that the
    matches look like; reports say why one is none. ``raises``: where the two sides have different extents the left one has no
    value, the operator refuses its operands.
    """

    name: str
    build: Callable[[Any], Any]
    exactness: Exactness
    family: str
    source: str
    equation: str
    doc: str
    conditions: tuple[Condition, ...] = ()
    sample: Sample | None = None
    domain: str = ""
    legalizes: str = ""
    outside: str = ""
    unverified: bool = False
    find: Finder | None = None
    forms: tuple[Rule, ...] = ()
    structure: str = ""
    raises: bool = False

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
        """Pairs (existing value, term that equals it), up to a node about which too little is known; ``missed`` hears why a match
        is none. Matches in ``seen`` are left out, others are added to it."""
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
        except NOT_ESTABLISHED as reason:
            missed(reason)


AnyRule = Rule | GroupRule
R = TypeVar("R", Rule, GroupRule)
_REGISTRY: dict[str, AnyRule] = {}


def rule(
    pattern: Apply, *, where: Sequence[Condition] = (), family: str = "", **facts: Any
) -> Callable[[RightSide], Rule]:
    """Registers the decorated function as the right side of a rule. ``facts``: exactness, source, and what else a `Rule` states.

    Raises `RuleError`: no equation in the docstring, a second rule of that name, an unknown operator in the pattern.
    """

    def decorate(build: RightSide) -> Rule:
        name, stated = _describe(build, family)
        _check_pattern(pattern, name)
        return register(Rule(name, pattern, build, tuple(where), **facts | stated))

    return decorate


def group_rule(
    *,
    where: Sequence[Condition] = (),
    forms: Sequence[Rule] = (),
    family: str = "",
    find: Finder | None = None,
    sample: Sample | None = None,
    **facts: Any,
) -> Callable[[Callable[[Any], Any]], GroupRule]:
    """Registers a rule over groups of nodes (N-way merging). ``facts``: exactness, source, and what else a `GroupRule` states.

    What ``find`` finds takes the place of a pattern, and the decorated function makes the right side of a match; without
    ``find`` it is a generator of merges, which asks for the conditions ``where`` itself (`GroupView.meets`). ``sample`` draws a
    random graph with such a group; without it instances of the ``forms`` are drawn.
    """

    def decorate(build: Callable[[Any], Any]) -> GroupRule:
        name, stated = _describe(build, family)
        stated = facts | stated
        made = GroupRule(name, build, conditions=tuple(where), sample=sample, find=find, forms=tuple(forms), **stated)
        return register(made)

    return decorate


def family_of(module: str) -> str:
    """The family of the rules of a module: its place among the shipped rules, ``user`` elsewhere."""
    return module.removeprefix("eqsat.rules.") if module.startswith("eqsat.rules.") else "user"


def _describe(function: Callable[..., Any], family: str) -> tuple[str, dict[str, Any]]:
    """The name of a rule, and what else its function states of it."""
    name = function.__name__
    doc = (function.__doc__ or "").strip()
    equation = re.search(r"``(.+?)``", doc, re.DOTALL)
    if equation is None or "==" not in equation.group(1):
        raise RuleError(
            f"rule {name!r}: its docstring must state the equation between double backquotes: ``left == right``"
        )
    stated = " ".join(equation.group(1).split())
    return name, {"family": family or family_of(function.__module__), "equation": stated, "doc": doc}


def _check_pattern(pattern: Term, name: str) -> None:
    if isinstance(pattern, Apply):
        if pattern.op != PROJECTION and operator(pattern.op) is None:
            raise RuleError(f"rule {name!r}: the pattern names {pattern.op!r}, which is no operator")
        if pattern.op != PROJECTION and pattern.attributes:
            raise RuleError(f"rule {name!r}: name the node and test its attributes in a condition; a pattern cannot")
        for arg in pattern.args:
            _check_pattern(arg, name)
    elif not isinstance(pattern, Variable):
        raise RuleError(
            f"rule {name!r}: a pattern holds no {pattern!r}; name a variable, state its value in a condition"
        )


def register(made: R) -> R:
    """Adds a rule to the registry. Raises `RuleError` for a second rule of that name."""
    if made.name in _REGISTRY:
        raise RuleError(f"rule {made.name!r} is registered twice")
    _REGISTRY[made.name] = made
    return made


def registered_rules() -> tuple[AnyRule, ...]:
    """Every registered rule in the order of registration. Importing `eqsat.rules` registers the shipped ones."""
    complete_families()
    return tuple(_REGISTRY.values())


def find_rule(name: str) -> AnyRule:
    """The registered rule called ``name``. Raises `OptionError` for one that does not exist, with the name most like it."""
    complete_families()
    if name not in _REGISTRY:
        known = f"{nearest(name, _REGISTRY)}`eqsat rules` lists the {len(_REGISTRY)} there are"
        raise OptionError(f"rule {name!r} does not exist; {known}")
    return _REGISTRY[name]


def unregister(name: str) -> None:
    """Forgets a rule (for tests, and for a notebook cell that is run again)."""
    _REGISTRY.pop(name, None)


def select_rules(
    numerics: Exactness,
    *,
    only: Sequence[str] | None = None,
    disabled: Sequence[str] = (),
    domains: Collection[str] = (),
    unsupported: Collection[str] = (),
    also: Collection[str] = (),
) -> tuple[AnyRule, ...]:
    """Rules of class ``numerics`` or stronger that introduce operators of the default domain or of ``domains`` only, or are
    among ``also``.

    ``unsupported``: operators to be spelled out. Raises `OptionError` for a name that no rule has.
    """
    for name in (*(only or ()), *disabled):
        find_rule(name)
    return tuple(
        r
        for r in registered_rules()
        if r.exactness <= numerics
        and r.name not in disabled
        and (only is None or r.name in only)
        and (
            r.name in also
            or (
                (not r.domain or r.domain in domains)
                and (not r.legalizes or r.legalizes in unsupported)
                and (not r.outside or r.outside not in domains)
            )
        )
    )
