"""Rules that are an equation and nothing else: the text is the rule.

    equation("remove_added_zero", "x + 0 == x", same_type("x"), source=IEEE)
    equation("compose_transposes", "Transpose(Transpose(x, perm=p), perm=q) == Transpose(x, perm=compose(p, q))", source=SPEC)
    equation("recognise_mish", "x * Tanh(Softplus(x)) == Mish(x)", "x.dtype is float32", reverse="spell_out_mish", source=SPEC)

Both sides are written as Python expressions. On the left, a pattern:

- ``x`` is any value; ``*b`` an optional input, which may be absent, ``None`` one that is; the same name twice is the same value
  twice.
- ``0``, ``-1`` or ``1/2`` is a constant all elements of which are that number; ``about(sqrt(1/2))`` that number rounded to its
  type.
- ``+ - * / @ **`` and ``<`` are operators; others are called by name, those of another domain by ``com.microsoft.Gelu(x)``.
- ``perm=p`` gives an attribute a name, ``axis=-1`` asks for a value; ``**a`` takes all other attributes and calls the node ``a``.
  An attribute that is not mentioned has its default. ``Split(x, outputs=2)[0]`` is the first of two outputs.
- ``(t := Relu(x))`` calls a node ``t``.

On the right, the term that is equal: a number takes the element type of the result, ``number(a, x.dtype)`` another; ``None`` is
an absent input or attribute; attributes and the arguments of functions (lower case) are Python expressions over what the left
side has named, so ``perm=compose(p, q)`` computes an attribute, ``**a`` hands on those of the node ``a`` and ``**changed(a)``
those of a mapping.

``shorthands`` abbreviate terms that the equations of a module use again and again: with ``{"Q(x)": ("QuantizeLinear(x, s, *z,
**n)", "quantized(n, x, s, z)")}`` a ``Q(Relu(x))`` is the former on the left side and the latter on the right one.

A condition is a `Condition`, or text of the same kind, with a name for reports in front: ``"x is positive: x.low > 0"``. A
condition that is not needed for the equation to be true, but for it to be of use, is marked:
``worthwhile("two axes: x.rank == 2")``.
"""

import ast
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from eqsat import rewrite
from eqsat.equations.left import LeftSide
from eqsat.equations.right import Later, conditions_of, right_side
from eqsat.equations.syntax import Functions, Shorthands, Text, domains_of
from eqsat.exactness import Exactness
from eqsat.rewrite import Condition, Finder, GroupRule, Rule, Sample, family_of, register


def equation(
    name: str,
    text: str,
    *where: Condition | str,
    exactness: Exactness = Exactness.EXACT,
    source: str,
    family: str = "user",
    reverse: str = "",
    forward: Sequence[Condition | str] = (),
    backward: Sequence[Condition | str] = (),
    quanta: int = 0,
    sample: Sample | None = None,
    drawn: str | Sequence[str] = (),
    ends: Sequence[str] = (),
    domain: str = "",
    legalizes: str = "",
    outside: str = "",
    structure: str = "",
    functions: Functions | None = None,
    shorthands: Shorthands | None = None,
    read_by: str = "",
) -> Rule:
    """Registers the rule that ``text`` states, from left to right; with ``reverse`` the one from right to left, too.

    ``where``: conditions for both, ``forward`` and ``backward`` for one of them. ``functions``: what the text calls in lower
    case. ``shorthands``: what the text says in short. ``domain``: one whose operators make it pay. ``read_by``: what must read
    the left side, which it calls ``root``: ``"Sqrt(root)"``. ``drawn``: what random instances are drawn of, where that does not
    follow from the text (`eqsat.rule_check.drawn`). The other options are those of `eqsat.rewrite.Rule`; the reverse
    spells out the operator of the right side where a target has no kernel for it. Raises `RuleError` for what cannot be read:
    where in the text, and what to write.
    """
    stated: dict[str, Any] = {
        "exactness": exactness,
        "family": family,
        "source": source,
        "quanta": quanta,
        "sample": sample,
        "drawn": _texts(drawn),
        "ends": tuple(ends),
        "domain": domain,
        "outside": outside,
        "structure": structure,
    }
    shipped = family != "user"
    there = Text(name, text, functions or {}, shorthands, is_shipped=shipped)
    left, right = there.sides()
    made = _rule(there, left, right, (*where, *forward), stated | {"legalizes": legalizes}, read_by)
    if reverse:
        back = Text(reverse, text, functions or {}, shorthands, is_shipped=shipped)
        spells_out = stated | {"legalizes": back.operator_key(right), "domain": ""}
        register(_rule(back, right, left, (*where, *backward), spells_out))
    return register(made)


def group_rule(
    *,
    find: Finder | None = None,
    where: Sequence[Condition | str] = (),
    forms: Sequence[Rule | str] = (),
    sample: Sample | None = None,
    functions: Functions | None = None,
    shorthands: Shorthands | None = None,
    **stated: Any,
) -> Callable[[Callable[[Any], Any]], GroupRule]:
    """`eqsat.rewrite.group_rule` with conditions in words on what a match binds, and forms that are texts.

    Words may call the functions that the module has defined so far, and ``functions``; ``stated``: whatever else the rule does.
    """

    def decorate(build: Callable[[Any], Any]) -> GroupRule:
        module, name = build.__module__, build.__name__
        text = Text(name, "", _own_functions(module) | dict(functions or {}), is_shipped=family_of(module) != "user")
        later = Later(lambda: [form(f, shorthands=shorthands) if isinstance(f, str) else f for f in forms])
        drawn = later if text.is_shipped else tuple(later)
        asked = conditions_of(text, None, where)
        return rewrite.group_rule(find=find, where=asked, forms=drawn, sample=sample, **stated)(build)

    return decorate


def form(
    text: str, *where: Condition | str, shorthands: Shorthands | None = None, drawn: str | Sequence[str] = ()
) -> Rule:
    """A term of which instances are drawn, as of the left side of an equation: what a group rule holds for. It is no rule."""
    there = Text("form", text, {}, shorthands)
    side = LeftSide(there, there.in_full(there.parsed(there.text), 0))
    asked = (*side.conditions, *conditions_of(there, side.bound, where))
    return Rule(
        "form",
        side.pattern,
        lambda m: None,
        conditions=asked,
        equation=text,
        attributes=side.attributes,
        drawn=_texts(drawn),
    )


def _texts(drawn: str | Sequence[str]) -> tuple[str, ...]:
    return (drawn,) if isinstance(drawn, str) else tuple(drawn)


def named(*functions: Any) -> dict[str, Any]:
    """Functions by their names, as ``functions=`` takes them."""
    return {f.__name__: f for f in functions}


def _own_functions(module: str) -> dict[str, Any]:
    """Those that a module has defined so far."""
    defined = vars(sys.modules[module]).values()
    return named(*(f for f in defined if isinstance(f, FunctionType) and f.__module__ == module))


class Equations:
    """`equation` with what the equations of a module (``__name__``) have in common; each call may say otherwise.

    They may call the functions that the module has defined so far; ``functions`` are those from elsewhere. ``where``: what each
    of the equations asks first."""

    def __init__(self, module: str, *, where: Sequence[Condition | str] = (), **common: Any) -> None:
        self._module = module
        self._where = where
        self._common: dict[str, Any] = {"family": family_of(module), **common}

    def __call__(self, name: str, text: str, *where: Condition | str, **options: Any) -> Rule:
        stated = self._common | options
        stated["functions"] = _own_functions(self._module) | dict(stated.get("functions", {}))
        return equation(name, text, *self._where, *where, **stated)

    def over_groups(
        self, *, find: Finder | None = None, sample: Sample | None = None, **options: Any
    ) -> Callable[[Callable[[Any], Any]], GroupRule]:
        """`group_rule` with the same in common, but for what each asks and how instances are drawn."""
        common = {fact: value for fact, value in self._common.items() if fact not in ("sample", "drawn", "quanta")}
        return group_rule(find=find, sample=sample, **common | options)


def spelled(op: str) -> str:
    """How equations write an operator, given by its key."""
    return op.replace("::", ".")


def stated(names: str, *where: Condition | str, functions: Functions | None = None) -> tuple[Condition, ...]:
    """Conditions, in words for example, on what a group rule calls ``names``, separated by spaces."""
    return conditions_of(Text("", "", functions or {}), names.split(), where)


def _rule(
    text: Text,
    left: ast.expr,
    right: ast.expr,
    where: Sequence[Condition | str],
    stated: dict[str, Any],
    read_by: str = "",
) -> Rule:
    side = LeftSide(text, text.in_full(left, 0), text.parsed(read_by) if read_by else None)
    twice = sorted(side.bound & text.functions.keys())
    if twice:
        raise text.error(left, f"{twice[0]!r} is a function, too: give one of the two another name")
    old, new = map(text.as_written, (left, right))
    equation = f"{old} == {new}"
    introduced = next(iter(sorted(domains_of(new) - domains_of(old))), "")
    stated = {**stated, "domain": stated["domain"] or introduced}
    return Rule(
        name=text.rule,
        pattern=side.pattern,
        build=right_side(text, side.bound, right),
        conditions=(*side.conditions, *conditions_of(text, side.bound, where)),
        equation=equation,
        doc=f"``{equation}``" + (f" where ``{read_by}`` reads it." if read_by else "."),
        attributes=side.attributes,
        **stated,
    )


__all__ = ["Equations", "equation", "form", "group_rule", "named", "spelled", "stated"]
