"""The left side of an equation: a pattern, names for what it matches, and what it asks of constants and attributes."""

import ast
from collections.abc import Callable
from functools import cache
from typing import Any

from eqsat.conditions import about, number
from eqsat.equations.syntax import Text, stored
from eqsat.ir.graph import NO_ATTRIBUTES
from eqsat.ir.operator import default_attribute
from eqsat.ir.schema_operator import attributes_of_schema
from eqsat.rewrite import Apply, AttributeOf, Condition, Hint, Match, Variable


class LeftSide:
    """The pattern that a left side is, the names it gives (``bound``), and the conditions that its constants are.

    With a ``reader`` the pattern is that, and the left side what it calls ``root``.
    """

    def __init__(self, text: Text, e: ast.expr, reader: ast.expr | None = None) -> None:
        self._text = text
        self._read = None if reader is None else e
        self._nodes = 0
        self._seen: set[str] = set()
        self.bound: set[str] = set()
        self.attributes: dict[str, AttributeOf] = {}
        self.conditions: list[Condition] = []
        pattern = self._pattern(e if reader is None else reader)
        if not isinstance(pattern, Apply):
            raise text.error(e, "the left side is no operator")
        self.pattern = pattern

    def _pattern(self, e: ast.expr, called: str = "") -> Any:
        match e:
            case ast.Constant(None):
                return None
            case ast.NamedExpr(ast.Name(name), inner):
                self.bound.add(name)
                return self._pattern(inner, name)
            case ast.Name("root") if self._read is not None:
                return self._pattern(self._read, "root")
            case ast.Name(name):
                self.bound.add(name)
                return Variable(name)
            case ast.Starred(ast.Name(name)):
                self.bound.add(name)
                return Variable(name, optional=True)
            case ast.Subscript(inner, index):
                several = self._pattern(inner)
                if not isinstance(several, Apply):
                    raise self._text.error(e, "only an operator has outputs to choose from")
                return several.output(self._text.value(index))
            case _:
                value = self._text.number(e)
                if value is not None:
                    return self._constant(about if self._text.is_about(e) else number, value)
                return self._application(e, called)

    def _application(self, e: ast.expr, called: str) -> Apply:
        op, operands, keywords = self._text.application(e)
        outputs = [self._text.value(k.value) for k in keywords if k.arg == "outputs"]
        given = [k for k in keywords if k.arg != "outputs"]
        self._text.check_attributes(op, e, given)
        self._text.check_number(op, e, operands)
        node = self._node(op, given, called)
        return Apply(op, tuple(self._pattern(a) for a in operands), NO_ATTRIBUTES, node, outputs[0] if outputs else 1)

    def _constant(self, condition: Callable[[str, float], Condition], value: float) -> Variable:
        """A constant of one number, under a name that no equation uses."""
        name = f"constant_{len(self.conditions)}"
        found = condition(name, value)
        hints = (*found.hints, Hint(name, constant=True))
        self.conditions.append(Condition(f"constant {value:g}", found.holds, (name,), hints))
        return Variable(name)

    def _node(self, op: str, keywords: list[ast.keyword], called: str) -> str:
        """The name of a node, after what is asked of its attributes has become names and conditions."""
        everything = [k.value.id for k in keywords if k.arg is None and isinstance(k.value, ast.Name)]
        node = (everything or [called or f"node_{self._nodes}"])[0]
        self._nodes += 1
        if called and called != node:
            raise self._text.error(keywords[0].value, f"one node cannot be called {called!r} and {node!r}")
        self.bound.update(everything)
        given = [(k.arg, k.value) for k in keywords if k.arg is not None]
        for name, value in given if node not in self._seen else ():
            attribute = AttributeOf(node, name, default_attribute(op, name))
            if isinstance(value, ast.Name) and value.id not in self._text.functions:
                self.attributes[value.id] = attribute
                self.bound.add(value.id)
            else:
                self.conditions.append(_attribute_is(attribute, self._text.value(value)))
        mentioned = frozenset(name for name, _ in given)
        if not everything and _has_others(op, mentioned):
            self.conditions.append(_others_have_defaults(op, node, mentioned))
        self._seen.add(node)
        return node


def _attribute_is(attribute: AttributeOf, value: object) -> Condition:
    wanted = stored(value)

    def holds(m: Match) -> bool:
        return bool(stored(attribute.of(m[attribute.node])) == wanted)

    return Condition(
        f"{attribute.name} is {value}", holds, hints=(Hint(attribute.node, attribute=(attribute.name, wanted)),)
    )


def _others_have_defaults(op: str, node: str, mentioned: frozenset[str]) -> Condition:
    def holds(m: Match) -> bool:
        found = m[node]
        others = (name for name in found.attributes if name not in mentioned)
        return all(stored(found.attributes[name]) == stored(default_attribute(op, name)(found)) for name in others)

    stated = {name: default for name, default in (attributes_of_schema(op) or {}).items() if default is not None}
    hints = tuple(Hint(node, attribute=(name, stored(v))) for name, v in stated.items() if name not in mentioned)
    return Condition(f"no other attributes of {op}", holds, hints=hints)


@cache
def _has_others(op: str, mentioned: frozenset[str]) -> bool:
    """Whether an operator may have attributes beside those that are mentioned."""
    known = attributes_of_schema(op)
    return known is None or bool(known.keys() - mentioned)
