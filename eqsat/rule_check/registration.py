"""A user's own rules: registered like the shipped ones, after a check by random instantiation.

    import eqsat
    from eqsat.ops import Relu

    (x,) = eqsat.variables("x")

    @eqsat.rule(Relu(Relu(x)), exactness="exact")
    def rectify_once(m):
        \"\"\"``Relu(Relu(x)) == Relu(x)``.\"\"\"
        return Relu(m.x)

A wrong equation is refused with a counterexample. What cannot be instantiated is refused, too; ``check=False`` takes it as it
is, and reports then call it an unverified rule.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from eqsat import rewrite
from eqsat.errors import RuleError
from eqsat.exactness import Exactness
from eqsat.rewrite import Apply, Condition, Finder, GroupRule, RightSide, Rule, Sample

Choices = Mapping[str, Mapping[str, Sequence[Any]]]
"""Named node -> attribute -> values to choose from."""

R = TypeVar("R", Rule, GroupRule)


def rule(
    pattern: Apply,
    *,
    where: Sequence[Condition] = (),
    exactness: Exactness | str = Exactness.EXACT,
    source: str = "user",
    family: str = "user",
    quanta: int = 0,
    sample: Sample | None = None,
    domain: str = "",
    attributes: Choices | None = None,
    check: bool = True,
) -> Callable[[RightSide], Rule]:
    """Registers the decorated function as the right side of a rule, if random instances do not refute it.

    ``exactness``: the class (rules/README.md), also by name: ``exact``, ``rounding``, ``lsb``, ``lossy``. ``sample`` draws
    instances of the left side; without it they are drawn from the form of the pattern, the
    attributes of a node named ``n`` from ``attributes={"n": {"axis": [0, -1]}}`` where given, else from usual ones.
    ``check=False`` skips the check, and reports call the rule unverified.

    Raises `RuleError`: no equation in the docstring, a second rule of that name, an unknown operator in the pattern,
    something that is no condition, an instance on which the two sides differ, or no instance on which the rule fires.
    """

    if not isinstance(pattern, Apply):  # pyright: ignore[reportUnnecessaryIsInstance]  # a function, say: no parentheses
        raise RuleError(
            "@eqsat.rule takes the left side of the rule, an operator applied to variables: @eqsat.rule(Relu(x))"
        )
    _check_conditions(where)

    facts: dict[str, Any] = {"source": source, "family": family, "sample": sample, "domain": domain, "quanta": quanta}
    decorate = rewrite.rule(pattern, where=where, exactness=Exactness.parse(exactness, "exactness"), **facts)
    return lambda build: _checked(decorate(build), attributes or {}, check)


def equation(
    name: str,
    text: str,
    *where: Condition | str,
    exactness: Exactness | str = Exactness.EXACT,
    source: str = "user",
    check: bool = True,
    **options: Any,
) -> Rule:
    """Registers the rule that ``text`` states, ``"x * Tanh(Softplus(x)) == Mish(x)"``, if random instances do not refute it.

    ``where`` are conditions, ``options`` those of `eqsat.equations.equation`, whose module says how equations are written.
    ``check=False`` skips the check, and reports call the rule unverified. Raises `RuleError` for a text that cannot be read,
    and as `rule` does.
    """
    from eqsat.equations import equation as state

    before = {r.name for r in rewrite.registered_rules()}
    made = state(name, text, *where, exactness=Exactness.parse(exactness, "exactness"), source=source, **options)
    new = [r for r in rewrite.registered_rules() if r.name not in before and isinstance(r, Rule)]  # the reverse, too
    try:
        return [_checked(r, {}, check) for r in sorted(new, key=lambda r: r is made)][-1]
    except BaseException:
        for r in new:
            rewrite.unregister(r.name)
        raise


def group_rule(
    *,
    find: Finder | None = None,
    where: Sequence[Condition] = (),
    exactness: Exactness | str = Exactness.EXACT,
    source: str = "user",
    family: str = "user",
    sample: Sample | None = None,
    domain: str = "",
    check: bool = True,
) -> Callable[[Callable[[Any], Any]], GroupRule]:
    """Registers the decorated function as a rule over groups of nodes, if random graphs do not refute it.

    It makes the right side of a match that ``find`` finds and for which the conditions hold; without ``find`` it is a generator
    of pairs (value, term that equals it). ``sample`` draws a graph with such a group; without it the graphs of the shipped
    rules' samples are tried. Raises as
    `rule` does.
    """

    _check_conditions(where)

    facts: dict[str, Any] = {"source": source, "family": family, "sample": sample, "domain": domain}
    decorate = rewrite.group_rule(find=find, where=where, exactness=Exactness.parse(exactness, "exactness"), **facts)
    return lambda build: _checked(decorate(build), {}, check)


def _check_conditions(where: Sequence[Condition]) -> None:
    for given in (where,) if isinstance(where, str) else where:
        if not isinstance(given, Condition):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RuleError(
                f"where: {given!r} is no condition; one is a function of the match with a name, @condition('a matrix') "
                "(eqsat.conditions), or words, stated('x', 'a matrix: x.rank == 2') (eqsat.equations)"
            )


def _checked(made: R, choices: Choices, check: bool) -> R:
    """The rule once it has passed its check; it is not registered otherwise."""
    if not check:
        rewrite.unregister(made.name)
        return rewrite.register(replace(made, unverified=True))
    from eqsat.rule_check.check import check_rule  # brings the shipped rules along

    try:
        check_rule(made, choices)
    except BaseException:
        rewrite.unregister(made.name)
        raise
    return made
