"""Rules that are an equation and nothing else: the text is the rule.

    equation("remove_added_zero", "x + 0 == x", same_type("x"), source=IEEE)
    equation("compose_transposes", "Transpose(Transpose(x, perm=p), perm=q) == Transpose(x, perm=compose(p, q))", source=SPEC)
    equation("recognise_mish", "x * Tanh(Softplus(x)) == Mish(x)", "x.dtype is float32", reverse="spell_out_mish", source=SPEC)

Both sides are written as Python expressions. On the left, a pattern:

- ``x`` is any value; ``*b`` an optional input, which may be absent; the same name twice is the same value twice.
- ``0``, ``-1`` or ``1/2`` is a constant all elements of which are that number; ``about(sqrt(1/2))`` that number rounded to its
  type.
- ``+ - * / @ **`` and ``<`` are operators; others are called by name, those of another domain by ``com.microsoft.Gelu(x)``.
- ``perm=p`` gives an attribute a name, ``axis=-1`` asks for a value; ``**a`` takes all other attributes and calls the node ``a``.
  An attribute that is not mentioned has its default. ``Split(x, outputs=2)[0]`` is the first of two outputs.
- ``(t := Relu(x))`` calls a node ``t``.

On the right, the term that is equal: a number takes the element type of the result, ``number(a, x.dtype)`` another; attributes and the arguments of functions
(lower case) are Python expressions over what the left side has named, so ``perm=compose(p, q)`` computes an attribute.

A condition is a `Condition`, or text of the same kind: ``"x.low >= 0"``. Its text is its name in reports.
"""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import CodeType
from typing import Any, NoReturn, TypeGuard

import numpy as np

from eqsat.conditions import about, number
from eqsat.errors import RuleError
from eqsat.exactness import Exactness
from eqsat.ir.graph import NO_ATTRIBUTES, Attributes
from eqsat.ir.operator import default_attribute, defined_operators, operator
from eqsat.ir.types import DType
from eqsat.rewrite import (
    PROJECTION,
    Apply,
    AttributeOf,
    Condition,
    Hint,
    Match,
    Ref,
    RightSide,
    Rule,
    Sample,
    Term,
    Variable,
    family_of,
    literal,
    present,
    register,
)

_BINARY = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div", ast.MatMult: "MatMul", ast.Pow: "Pow"}
_COMPARED = {ast.Lt: "Less", ast.LtE: "LessOrEqual", ast.Gt: "Greater", ast.GtE: "GreaterOrEqual"}

Functions = Mapping[str, Any]
"""What attributes and conditions may be computed with, by name."""

_NUMBERS: Functions = {"pi": math.pi, "sqrt": math.sqrt, "inf": math.inf}
_SOME_BOUND = {"low": {"low": -1e300}, "high": {"high": 1e300}}
_BUILTINS: Functions = {f.__name__: f for f in (abs, all, any, bool, float, int, len, list, max, min, range, set, sorted, sum, tuple)}
_TYPES: Functions = {d.numpy.name: d for d in DType if d not in (DType.UNDEFINED, DType.STRING)}


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
    legalizes: str = "",
    outside: str = "",
    functions: Functions | None = None,
) -> Rule:
    """Registers the rule that ``text`` states, from left to right; with ``reverse`` the one from right to left, too.

    ``where``: conditions for both, ``forward`` and ``backward`` for one of them. ``functions``: what the text calls in lower case. The other options are those of
    `eqsat.rewrite.Rule`; the reverse spells out the operator of the right side where a target has no kernel for it. Raises
    `RuleError` for what cannot be read: where in the text, and what to write.
    """
    known = {**_TYPES, **_NUMBERS, "number": literal, **(functions or {})}
    reader = _Reader(name, text, known)
    left, right = reader.sides()
    stated = {"exactness": exactness, "family": family, "source": source, "quanta": quanta, "sample": sample}
    made = reader.rule(left, right, (*where, *forward), {**stated, "legalizes": legalizes, "outside": outside})
    if reverse:
        back = _Reader(reverse, text, known)
        register(back.rule(right, left, (*where, *backward), {**stated, "legalizes": back.operator_key(right), "outside": outside}))
    return register(made)


class Equations:
    """`equation` with what the equations of a module (``__name__``) have in common; each call may say otherwise."""

    def __init__(self, module: str, **common: Any) -> None:
        self._common = {"family": family_of(module), **common}

    def __call__(self, name: str, text: str, *where: Condition | str, **options: Any) -> Rule:
        return equation(name, text, *where, **{**self._common, **options})


class _Reader:
    """Reads one equation; errors say which."""

    def __init__(self, name: str, text: str, functions: Functions) -> None:
        self.name, self.text, self.functions = name, " ".join(text.split()), functions
        self.attributes: dict[str, AttributeOf] = {}
        self.conditions: list[Condition] = []
        self._bound: set[str] = set()
        self._count = 0

    def sides(self) -> tuple[ast.expr, ast.expr]:
        try:
            found = ast.parse(self.text, mode="eval").body
        except SyntaxError as error:
            raise RuleError(f"rule {self.name!r}: {self.text!r} cannot be read: {error.msg} at {error.offset}") from None
        if not (isinstance(found, ast.Compare) and len(found.ops) == 1 and isinstance(found.ops[0], ast.Eq)):
            raise RuleError(f"rule {self.name!r}: {self.text!r} is no equation; write left == right")
        return found.left, found.comparators[0]

    def rule(self, left: ast.expr, right: ast.expr, where: Sequence[Condition | str], stated: dict[str, Any]) -> Rule:
        pattern = self._pattern(left)
        if not isinstance(pattern, Apply):
            self._fail(left, "the left side is no operator")
        build = self._right_side(right)
        asked = [self._condition(c) if isinstance(c, str) else c for c in where]
        mine = " == ".join(ast.get_source_segment(self.text, side) or "" for side in (left, right))
        return Rule(
            name=self.name,
            pattern=pattern,
            build=build,
            conditions=(*self.conditions, *asked),
            equation=mine,
            doc=f"``{mine}``.",
            attributes=self.attributes,
            domain=self._domain(left, right),
            **stated,
        )

    # --- the left side: a pattern

    def _pattern(self, e: ast.expr, called: str = "") -> Any:
        if isinstance(e, ast.NamedExpr):
            self._bound.add(e.target.id)
            return self._pattern(e.value, e.target.id)
        if isinstance(e, ast.Name):
            self._bound.add(e.id)
            return Variable(e.id)
        if isinstance(e, ast.Starred) and isinstance(e.value, ast.Name):
            self._bound.add(e.value.id)
            return Variable(e.value.id, optional=True)
        if isinstance(e, ast.Subscript):
            inner = self._pattern(e.value)
            return inner.output(self._value_of(e.slice))
        value = self._number(e)
        if value is not None:
            return self._constant(number, value)
        if self._is_about(e):
            return self._constant(about, self._value_of(e.args[0]))
        op, operands, keywords = self._application(e)
        outputs = [k for k in keywords if k.arg == "outputs"]
        count = self._value_of(outputs[0].value) if outputs else 1
        node = self._asked(op, [k for k in keywords if k.arg != "outputs"], called)
        return Apply(op, tuple(self._pattern(a) for a in operands), NO_ATTRIBUTES, node, count)

    def _constant(self, condition: Callable[[str, float], Condition], value: float) -> Variable:
        """A constant of one number, under a name that no equation can use."""
        name = f"constant_{len(self.conditions)}"
        found = condition(name, value)
        text = f"constant {value:g}"
        self.conditions.append(Condition(text, found.holds, (name,), (*found.hints, Hint(name, constant=True))))
        return Variable(name)

    def _asked(self, op: str, keywords: list[ast.keyword], called: str) -> str:
        """The name of the node, after what is asked of its attributes became names and conditions."""
        everything = [k.value.id for k in keywords if k.arg is None and isinstance(k.value, ast.Name)]
        node = (everything or [called or f"node_{self._count}"])[0]
        self._count += 1
        if called and called != node:
            self._fail(keywords[0].value, f"one node cannot be called {called!r} and {node!r}")
        self._bound.update(everything)
        mentioned: list[str] = []
        for k in keywords:
            if k.arg is None:
                continue
            mentioned.append(k.arg)
            attribute = AttributeOf(node, k.arg, default_attribute(op, k.arg))
            if isinstance(k.value, ast.Name) and k.value.id not in self.functions:
                self.attributes[k.value.id] = attribute
                self._bound.add(k.value.id)
            else:
                self._ask(attribute, self._value_of(k.value))
        if not everything and _has_attributes(op):
            self._ask_defaults(op, node, frozenset(mentioned))
        return node

    def _ask(self, attribute: AttributeOf, value: Any) -> None:
        wanted = _stored(value)

        def holds(m: Match) -> bool:
            return bool(_stored(attribute.of(m[attribute.node])) == wanted)

        hint = Hint(attribute.node, attribute=(attribute.name, wanted))
        self.conditions.append(Condition(f"{attribute.name} is {value}", holds, hints=(hint,)))

    def _ask_defaults(self, op: str, node: str, mentioned: frozenset[str]) -> None:
        def holds(m: Match) -> bool:
            found = m[node]
            others = (k for k in found.attributes if k not in mentioned)
            return all(_stored(found.attributes[k]) == _stored(default_attribute(op, k)(found)) for k in others)

        self.conditions.append(Condition(f"no other attributes of {op}", holds))

    # --- the right side: code that builds a term

    def _right_side(self, e: ast.expr) -> RightSide:
        code = self._compiled(self._term(e))
        environment = {"__builtins__": {}, **_BUILTINS, **self.functions, "_term": _term, "_others": _others}

        def build(m: Match) -> Term | None:
            return eval(code, environment, m)  # type: ignore[arg-type]  # a mapping from names to values

        build.__name__ = self.name
        return build

    def _term(self, e: ast.expr) -> ast.expr:
        if isinstance(e, ast.Starred):
            return self._term(e.value)
        if isinstance(e, ast.Name):
            return self._value(e)
        if isinstance(e, ast.IfExp):
            return ast.IfExp(self._value(e.test), self._term(e.body), self._term(e.orelse))
        if isinstance(e, ast.Subscript):
            return _call(ast.Attribute(self._term(e.value), "output", ast.Load()), [e.slice])
        value = self._number(e.args[0] if self._is_about(e) else e)
        if value is not None:
            return _call("number", [ast.Constant(value), ast.Attribute(ast.Name("root", ast.Load()), "dtype", ast.Load())])
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id in self.functions:
            return ast.Call(e.func, [self._value(a) for a in e.args], self._keywords(e.keywords))
        op, operands, keywords = self._application(e)
        return _call("_term", [ast.Constant(op), *map(self._term, operands)], self._keywords(keywords))

    def _keywords(self, keywords: list[ast.keyword]) -> list[ast.keyword]:
        """Attributes given one by one, and all others of a node."""
        given = [k for k in keywords if k.arg]
        names = ast.Tuple([ast.Constant(k.arg) for k in given], ast.Load())
        others = [_call("_others", [self._value(k.value), names]) for k in keywords if not k.arg]
        return [*(ast.keyword(k.arg, self._value(k.value)) for k in given), *(ast.keyword(None, o) for o in others)]

    def _value(self, e: ast.expr) -> ast.expr:
        """An expression over what is known: plain Python, but operators called by name still make terms."""
        reader = self

        class Values(ast.NodeTransformer):
            def visit_Call(self, node: ast.Call) -> ast.expr:
                plain = isinstance(node.func, ast.Attribute) or (
                    isinstance(node.func, ast.Name) and (node.func.id in reader.functions or node.func.id in _BUILTINS)
                )
                return self.generic_visit(node) if plain else reader._term(node)  # type: ignore[return-value]

            def visit_Name(self, node: ast.Name) -> ast.expr:
                reader._check(node)
                return node

            def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
                reader._bound.update(n.id for n in ast.walk(node.target) if isinstance(n, ast.Name))
                return self.generic_visit(node)  # type: ignore[return-value]

            def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.expr:
                node.generators = [self.visit_comprehension(g) for g in node.generators]
                node.elt = self.visit(node.elt)
                return node

            visit_ListComp = visit_GeneratorExp  # type: ignore[assignment]

        return Values().visit(ast.parse(ast.unparse(e), mode="eval").body)

    def _check(self, e: ast.Name) -> None:
        if e.id not in self._bound and e.id not in self.functions and e.id not in _BUILTINS and e.id != "root":
            self._fail(e, f"{e.id!r} does not occur on the left side")

    def _condition(self, text: str) -> Condition:
        try:
            parsed = ast.parse(text, mode="eval").body
        except SyntaxError as error:
            raise RuleError(f"rule {self.name!r}: condition {text!r} cannot be read: {error.msg}") from None
        code = self._compiled(self._value(parsed))
        environment = {"__builtins__": {}, **_BUILTINS, **self.functions, "_term": _term}
        hints = tuple(_hints(parsed, self.functions))
        return Condition(text, lambda m: bool(eval(code, environment, m)), hints=hints)  # type: ignore[arg-type]

    def _compiled(self, e: ast.expr) -> CodeType:
        return compile(ast.fix_missing_locations(ast.Expression(e)), f"<rule {self.name}>", "eval")

    # --- what both sides are made of

    def _application(self, e: ast.expr) -> tuple[str, list[ast.expr], list[ast.keyword]]:
        """Key of the operator, operands, attributes."""
        if isinstance(e, ast.BinOp) and type(e.op) in _BINARY:
            return _BINARY[type(e.op)], [e.left, e.right], []
        if isinstance(e, ast.Compare) and len(e.ops) == 1 and type(e.ops[0]) in _COMPARED:
            return _COMPARED[type(e.ops[0])], [e.left, e.comparators[0]], []
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
            return "Neg", [e.operand], []
        if isinstance(e, ast.Call):
            return self.operator_key(e), e.args, e.keywords
        self._fail(e, "neither an operator nor a name nor a number")

    def operator_key(self, e: ast.expr) -> str:
        """The key of the operator that a term applies."""
        if not isinstance(e, ast.Call):
            return self._application(e)[0]
        *domain, name = ast.unparse(e.func).split(".")
        key = "::".join([".".join(domain), name] if domain else [name])
        if operator(key) is None:
            key = _by_lower_case().get(key.lower(), key)
        if operator(key) is None:
            near = difflib.get_close_matches(key, [*defined_operators(), *self.functions], 1, 0.6)
            self._fail(e, f"{key!r} is no operator" + (f"; did you mean {near[0]!r}?" if near else ""))
        return key

    def _domain(self, left: ast.expr, right: ast.expr) -> str:
        """Of the operators that the right side introduces: where programs must be allowed to use them."""
        mine, theirs = (
            {ast.unparse(c.func).rpartition(".")[0] for c in ast.walk(side) if isinstance(c, ast.Call)} - {"", "eqsat"}
            for side in (left, right)
        )
        return next((d for d in sorted(theirs - mine) if d.islower() and operator_domain(d)), "")

    def _number(self, e: ast.expr) -> float | int | None:
        """The number that an expression without variables is."""
        if any(isinstance(n, ast.Name) and n.id not in _NUMBERS for n in ast.walk(e)) or isinstance(e, ast.Starred):
            return None
        found = self._value_of(e)
        return found if isinstance(found, (int, float)) else None

    def _is_about(self, e: ast.expr) -> TypeGuard[ast.Call]:
        """Whether an expression is a number rounded to the type of the operands."""
        return isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id == "about"

    def _value_of(self, e: ast.expr) -> Any:
        """The value of an expression of numbers, strings and tuples."""
        try:
            return eval(self._compiled(e), {"__builtins__": {}, **self.functions, **_NUMBERS})
        except Exception as error:
            self._fail(e, f"no number: {error}")

    def _fail(self, e: ast.expr, what: str) -> NoReturn:
        raise RuleError(f"rule {self.name!r}: in {self.text!r}, {ast.unparse(e)!r}: {what}")


def operator_domain(name: str) -> bool:
    """Whether any operator that we define is of this domain."""
    return any(key.startswith(f"{name}::") for key in defined_operators())


def _call(function: str | ast.expr, args: list[ast.expr], keywords: list[ast.keyword] | None = None) -> ast.Call:
    called = ast.Name(function, ast.Load()) if isinstance(function, str) else function
    return ast.Call(called, args, keywords or [])


@cache
def _by_lower_case() -> dict[str, str]:
    return {key.lower(): key for key in reversed(defined_operators())}


@cache
def _has_attributes(op: str) -> bool:
    from eqsat.ir.schema_operator import has_attributes

    return has_attributes(op)


def _stored(value: Any) -> Any:
    """An attribute as a file stores it: floats have single precision."""
    return float(np.float32(value)) if isinstance(value, float) else value


def _term(op: str, *args: Term | None, outputs: int = 1, **attributes: Any) -> Apply:
    kept = {k: _stored(v) for k, v in attributes.items()}
    return Apply(op, present(*args), Attributes(kept) if kept else NO_ATTRIBUTES, "", outputs)


def _others(node: Ref, given: tuple[str, ...]) -> Mapping[str, Any]:
    """The attributes of a node but those that are given."""
    return {k: v for k, v in node.attributes.items() if k not in given}


def _hints(e: ast.expr, functions: Functions) -> list[Hint]:
    """What a condition in words asks for, as far as it is of a simple form: bounds, element types, constants."""
    if isinstance(e, ast.BoolOp) and isinstance(e.op, ast.And):
        return [hint for part in e.values for hint in _hints(part, functions)]
    if isinstance(e, ast.Attribute) and e.attr == "is_constant" and isinstance(e.value, ast.Name):
        return [Hint(e.value.id, constant=True)]
    asked_bounds = [(n.value, n.attr) for n in ast.walk(e) if isinstance(n, ast.Attribute)]
    guessed = [Hint(v.id, **_SOME_BOUND[which]) for v, which in asked_bounds if isinstance(v, ast.Name) and which in _SOME_BOUND]
    if not isinstance(e, ast.Compare) or len(e.ops) != 1:
        return guessed
    asked, op = e.left, e.ops[0]
    if not (isinstance(asked, ast.Attribute) and isinstance(asked.value, ast.Name)):
        return guessed
    try:
        value = eval(compile(ast.Expression(e.comparators[0]), "<hint>", "eval"), {"__builtins__": {}, **functions})
    except Exception:  # it depends on other values
        return guessed
    name = asked.value.id
    if asked.attr == "low" and isinstance(op, (ast.GtE, ast.Gt)):
        return [Hint(name, low=value)]
    if asked.attr == "high" and isinstance(op, (ast.LtE, ast.Lt)):
        return [Hint(name, high=value)]
    if asked.attr == "dtype" and isinstance(op, (ast.Is, ast.In)):
        return [Hint(name, dtypes=frozenset((value,) if isinstance(op, ast.Is) else value))]
    return []
