"""The registry of rules, and the decorators that put them there; rules that range over operators are stated once, for every
operator of which a fact is true, those defined later included."""

import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eqsat.errors import OptionError, RuleError, nearest
from eqsat.exactness import Exactness
from eqsat.ir.operator import Operator, operator, operators_with
from eqsat.rewrite.match import Condition
from eqsat.rewrite.rules import AnyRule, Finder, GroupRule, RightSide, Rule, Sample
from eqsat.rewrite.terms import PROJECTION, Apply, Variable, terms_of

Fact = Callable[[Operator], object]
Statement = Callable[[str], object]


@dataclass(frozen=True)
class _Family:
    fact: Fact
    state: Statement
    stated: set[str] = field(default_factory=set[str])

    def complete(self) -> None:
        names = operators_with(self.fact, domains=True)
        self.stated.intersection_update(names)
        for name in names:
            if name not in self.stated:
                self.stated.add(name)
                self.state(name)


_FAMILIES: list[_Family] = []


def for_each_operator(fact: Fact) -> Callable[[Statement], Statement]:
    """Calls the decorated function, which states rules, with the key of each operator of which ``fact`` is true.

    An operator that is defined later gets its rules when the registry is next asked for rules.
    """

    def declare(state: Statement) -> Statement:
        family = _Family(fact, state)
        _FAMILIES.append(family)
        family.complete()
        return state

    return declare


def complete_families() -> None:
    """States the rules of operators that have been defined since."""
    for family in _FAMILIES:
        family.complete()


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
        return register(Rule(name, pattern, build, conditions=tuple(where), **facts | stated))

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
        made = GroupRule(name, build, conditions=tuple(where), sample=sample, find=find, forms=forms, **stated)
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
        dropped = "; python -OO drops docstrings, and so does PYTHONOPTIMIZE=2" if sys.flags.optimize > 1 else ""
        raise RuleError(
            f"rule {name!r}: its docstring must state the equation between double backquotes: ``left == right``{dropped}"
        )
    stated = " ".join(equation.group(1).split())
    return name, {"family": family or family_of(function.__module__), "equation": stated, "doc": doc}


def _check_pattern(pattern: Apply, name: str) -> None:
    for term in terms_of(pattern):
        if not isinstance(term, Apply | Variable):
            raise RuleError(
                f"rule {name!r}: a pattern holds no {term!r}; name a variable, state its value in a condition"
            )
        if isinstance(term, Variable) or term.op == PROJECTION:
            continue
        if operator(term.op) is None:
            raise RuleError(f"rule {name!r}: the pattern names {term.op!r}, which is no operator")
        if term.attributes:
            raise RuleError(f"rule {name!r}: name the node and test its attributes in a condition; a pattern cannot")


def register(made: R) -> R:
    """Adds a rule to the registry. Raises `RuleError` for a second rule of that name, and for one that options cannot name."""
    if not made.name.isidentifier():
        raise RuleError(f"rule {made.name!r}: a name is a word of letters, digits and underscores")
    if made.name in _REGISTRY:
        raise RuleError(f"rule {made.name!r} is registered twice")
    _REGISTRY[made.name] = made
    return made


def registered_rules() -> tuple[AnyRule, ...]:
    """Every registered rule, by name. Importing `eqsat.rules` registers the shipped ones.

    The order in which rules apply decides which of two equal proofs is found, and so must not hang on which module imports which.
    """
    complete_families()
    return tuple(_REGISTRY[name] for name in sorted(_REGISTRY))


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
    """Rules of class ``numerics`` or stronger that introduce operators of the default domain or of ``domains`` only, which may
    be single operators, or are among ``also``.

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
                (not r.domain or not {r.domain, r.domain.partition("::")[0]}.isdisjoint(domains))
                and (not r.legalizes or r.legalizes in unsupported)
                and (not r.outside or r.outside not in domains)
            )
        )
    )
