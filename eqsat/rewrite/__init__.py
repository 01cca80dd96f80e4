"""Rewrite rules as data: patterns, conditions, rules, and the registry they live in.

A rule is an equation. Its left side is a *pattern*, a term over operators and variables; the decorated function gets the
`Match` and returns the right side, a term over the matched references. What must hold for the equation to be true is a list
of named `Condition`s: a rule whose conditions cannot be established does not fire, and the first one that failed says why.

rules/README.md has examples. This package knows the IR only; `eqsat.egraph` compiles and runs rules.
"""

from eqsat.rewrite.match import AttributeOf, Condition, Hint, Match, unmet
from eqsat.rewrite.registry import (
    family_of,
    find_rule,
    for_each_operator,
    group_rule,
    register,
    registered_rules,
    rule,
    select_rules,
    unregister,
)
from eqsat.rewrite.rules import AnyRule, Finder, GroupRule, GroupView, Merge, RightSide, Rule, Sample, shared
from eqsat.rewrite.terms import (
    NOT_ESTABLISHED,
    OPAQUE,
    PROJECTION,
    WIDEST,
    Apply,
    Literal,
    Ref,
    Term,
    Unmet,
    Values,
    Variable,
    apply,
    literal,
    present,
    terms_of,
    variables,
)

__all__ = [
    "NOT_ESTABLISHED",
    "OPAQUE",
    "PROJECTION",
    "WIDEST",
    "AnyRule",
    "Apply",
    "AttributeOf",
    "Condition",
    "Finder",
    "GroupRule",
    "GroupView",
    "Hint",
    "Literal",
    "Match",
    "Merge",
    "Ref",
    "RightSide",
    "Rule",
    "Sample",
    "Term",
    "Unmet",
    "Values",
    "Variable",
    "apply",
    "family_of",
    "find_rule",
    "for_each_operator",
    "group_rule",
    "literal",
    "present",
    "register",
    "registered_rules",
    "rule",
    "select_rules",
    "shared",
    "terms_of",
    "unmet",
    "unregister",
    "variables",
]
