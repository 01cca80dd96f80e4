"""The right side of an equation and conditions in words: Python expressions, compiled once, over what the left side names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from inspect import signature
from typing import Any, TypeVar, overload

from eqsat.conditions import WorthwhileWords
from eqsat.equations.syntax import BUILTINS, Functions, Text, stored
from eqsat.errors import nearest
from eqsat.ir.graph import NO_ATTRIBUTES, Attributes
from eqsat.ir.operator import operator
from eqsat.rewrite import Apply, Condition, Hint, Match, Ref, RightSide, Term, literal, present

T = TypeVar("T")


def right_side(text: Text, bound: Collection[str], e: ast.expr) -> RightSide:
    """What builds the term that ``e`` describes from a match."""
    build = Compiled(lambda: _function(text, bound, _Terms(text, bound).term(text.in_full(e, 1))))
    build.__name__ = text.rule
    return build if text.is_shipped else build.now()


def conditions_of(text: Text, bound: Collection[str] | None, where: Iterable[Condition | str]) -> tuple[Condition, ...]:
    """Conditions, those in words made of what these say, of whatever they name unless it is stated what is bound."""
    return tuple(_in_words(text, bound, c) if isinstance(c, str) else c for c in where)


def _in_words(text: Text, bound: Collection[str] | None, words: str) -> Condition:
    """The condition that ``name: expression`` or an expression alone is; then the expression is its name."""
    worthwhile = isinstance(words, WorthwhileWords)
    name, _, expression = " ".join(words.split()).rpartition(": ")

    def made() -> Callable[[Match], bool]:
        e = text.parsed(expression)
        known = _named_in(text, e) if bound is None else bound
        return _predicate(_function(text, known, _Terms(text, known).value(e)))

    holds = Compiled(made)
    hints = Later(lambda: hints_of(text.parsed(expression), text.functions))
    return Condition(name or expression, holds if text.is_shipped else holds.now(), hints=hints, worthwhile=worthwhile)


def _named_in(text: Text, e: ast.expr) -> set[str]:
    """What an expression names of a match: all but what it calls, what it goes through itself, and constants that are known."""
    parts = list(ast.walk(e))
    called = [part.func for part in parts if isinstance(part, ast.Call)]
    inside = [name for part in parts if isinstance(part, ast.comprehension) for name in ast.walk(part.target)]
    own = {name.id for name in (*called, *inside) if isinstance(name, ast.Name)}
    constants = {name for name, known in text.functions.items() if not callable(known)}
    return {name.id for name in parts if isinstance(name, ast.Name)} - own - constants - {*BUILTINS}


def _predicate(evaluated: Callable[[Match], Any]) -> Callable[[Match], bool]:
    def holds(m: Match) -> bool:
        try:
            return bool(evaluated(m))
        except IndexError:  # it asks for an axis that a value does not have
            return False

    return holds


class Compiled:
    """A function of a match that is made of text when it is first called: most equations match nothing in a model."""

    def __init__(self, make: Callable[[], Callable[[Match], Any]]) -> None:
        self.__name__ = ""
        self._make = make

    @cached_property
    def _made(self) -> Callable[[Match], Any]:
        return self._make()

    def now(self) -> Compiled:
        """Itself, made. Raises `RuleError` for what cannot be read."""
        assert self._made
        return self

    def __call__(self, m: Match) -> Any:
        return self._made(m)


class Later(Sequence[T]):
    """What is found when first asked for: hints that the text of a condition gives, forms of groups. Samplers alone ask."""

    def __init__(self, find: Callable[[], Iterable[T]]) -> None:
        self._find = find

    @cached_property
    def _found(self) -> tuple[T, ...]:
        return tuple(self._find())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)


def _function(text: Text, bound: Collection[str], e: ast.expr) -> Callable[[Match], Any]:
    """An expression as a function of a match: compiled once, with what it reads of the match as parameters."""
    read = sorted({n.id for n in ast.walk(e) if isinstance(n, ast.Name)} & {*bound, "root"})
    parameters = ast.arguments([], [ast.arg(name) for name in read], None, [], [], None, [])
    function = eval(text.compiled(ast.Lambda(parameters, e)), _environment(text))

    def of_match(m: Match) -> Any:
        try:
            return function(*[m[name] for name in read])
        except AttributeError as error:
            near = nearest(error.name, dir(error.obj))
            raise text.error(e, f"a matched value has no {error.name!r}; {near}".rstrip("; ")) from None

    return of_match


def _environment(text: Text) -> dict[str, Any]:
    return {"__builtins__": {}, **BUILTINS, **text.functions, "_term": _term, "_others": _others, "_number": literal}


def _term(op: str, *args: Term | None, outputs: int = 1, **attributes: Any) -> Apply:
    kept = {k: stored(v) for k, v in attributes.items() if v is not None}
    return Apply(op, present(*args), Attributes(kept) if kept else NO_ATTRIBUTES, "", outputs)


def _others(of: Ref | Mapping[str, Any], given: tuple[str, ...]) -> Mapping[str, Any]:
    """The attributes of a node, or those that a function gives, but for those that are given one by one."""
    attributes: Mapping[str, Any] = of.attributes if isinstance(of, Ref) else of
    return {k: v for k, v in attributes.items() if k not in given}


def _call(function: str | ast.expr, args: list[ast.expr], keywords: list[ast.keyword] | None = None) -> ast.Call:
    called = ast.Name(function, ast.Load()) if isinstance(function, str) else function
    return ast.Call(called, args, keywords or [])


def _key(e: ast.Attribute) -> str:
    """The key that an operator of another domain would have."""
    return f"{ast.unparse(e.value)}::{e.attr}"


class _Terms:
    """Turns expressions into Python that builds terms."""

    def __init__(self, text: Text, bound: Collection[str]) -> None:
        self._text = text
        self._bound = {*bound, "root"}

    def term(self, e: ast.expr) -> ast.expr:
        """An expression in which ``+`` is an operator of the graph and a number a constant."""
        match e:
            case ast.Starred(inner):
                return self.term(inner)
            case ast.Name() | ast.Constant(None):
                return self.value(e)
            case ast.IfExp(test, body, orelse):
                return ast.IfExp(self.value(test), self.term(body), self.term(orelse))
            case ast.Subscript(ast.Name(), _):
                raise self._text.error(e, "only an operator has outputs to choose from")
            case ast.Subscript(inner, index):
                return _call(ast.Attribute(self.term(inner), "output", ast.Load()), [index])
            case _:
                pass
        number = self._text.number(e)
        if number is not None:
            dtype = ast.Attribute(ast.Name("root", ast.Load()), "dtype", ast.Load())
            return _call("_number", [ast.Constant(number), dtype])
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id in self._text.functions:
            return ast.Call(e.func, [self.value(a) for a in e.args], self._keywords(e.keywords))
        op, operands, keywords = self._text.application(e)
        self._text.check_attributes(op, e, [k for k in keywords if k.arg != "outputs"])
        return _call("_term", [ast.Constant(op), *map(self.term, operands)], self._keywords(keywords))

    def value(self, e: ast.expr) -> ast.expr:
        """An expression of plain Python; operators called by name still make terms."""
        return _Values(self, self._text, self._bound).visit(ast.parse(ast.unparse(e), mode="eval").body)

    def _keywords(self, keywords: list[ast.keyword]) -> list[ast.keyword]:
        """Attributes given one by one, and all others of a node."""
        given = [k for k in keywords if k.arg]
        names = ast.Tuple([ast.Constant(k.arg) for k in given], ast.Load())
        others = [_call("_others", [self.value(k.value), names]) for k in keywords if not k.arg]
        return [*(ast.keyword(k.arg, self.value(k.value)) for k in given), *(ast.keyword(None, o) for o in others)]


class _Values(ast.NodeTransformer):
    """Checks the names of a Python expression, and makes terms of the operators in it."""

    def __init__(self, terms: _Terms, text: Text, bound: set[str]) -> None:
        self._terms, self._text, self._bound = terms, text, set(bound)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        is_method = isinstance(node.func, ast.Attribute) and operator(_key(node.func)) is None
        is_plain = is_method or called in self._text.functions or called in BUILTINS or called in self._bound
        return self.generic_visit(node) if is_plain else self._terms.term(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """One of several outputs, if it is an operator's."""
        inner = node.value
        if isinstance(inner, ast.Call) and self.visit_Call(inner) is not inner:
            return self._terms.term(node)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if not (node.id in self._bound or node.id in self._text.functions or node.id in BUILTINS):
            raise self._text.error(node, f"{node.id!r} does not occur on the left side")
        return node

    def visit_GeneratorExp(self, node: ast.GeneratorExp | ast.ListComp) -> ast.AST:
        self._bound |= {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        return self.generic_visit(node)

    visit_ListComp = visit_GeneratorExp


# --- what random instances are asked for -----------------------------------------------------------------------------


def hints_of(e: ast.expr, functions: Functions) -> list[Hint]:
    """Bounds, element types, ranks and constants that an expression asks for."""
    match e:
        case ast.BoolOp(ast.And(), parts):
            return [hint for part in parts for hint in hints_of(part, functions)]
        case ast.Call(ast.Name(function), arguments) if hasattr(functions.get(function), "asks"):
            asked = functions[function].asks
            names = list(signature(functions[function]).parameters)
            parameters = [names[min(i, len(names) - 1)] for i in range(len(arguments))]  # the last may take several
            pairs = zip(arguments, parameters, strict=True)
            return [Hint(a.id, **asked[p]) for a, p in pairs if isinstance(a, ast.Name) and p in asked]
        case ast.Attribute(ast.Name(name), "is_constant"):
            return [Hint(name, constant=True)]
        case ast.Compare(ast.Attribute(ast.Name(name), asked), [op], [other]):
            try:
                value = eval(compile(ast.Expression(other), "<hint>", "eval"), {"__builtins__": {}, **functions})
            except Exception:  # it depends on other values
                return _some_bounds(e)
            found = _hint(name, asked, op, value)
            return [found] if found else _some_bounds(e)
        case _:
            return _some_bounds(e)


def _hint(name: str, asked: str, op: ast.cmpop, value: Any) -> Hint | None:
    match asked, op:
        case "low", ast.GtE() | ast.Gt():
            return Hint(name, low=value)
        case "high", ast.LtE() | ast.Lt():
            return Hint(name, high=value)
        case "dtype", ast.Is():
            return Hint(name, dtypes=frozenset((value,)))
        case "dtype", ast.In():
            return Hint(name, dtypes=frozenset(value))
        case "rank", ast.Eq():
            return Hint(name, ranks=frozenset((value,)))
        case "rank", ast.GtE():
            return Hint(name, ranks=frozenset(range(value, 5)))
        case "rank", ast.Gt():
            return Hint(name, ranks=frozenset(range(value + 1, 5)))
        case _:
            return None


def _some_bounds(e: ast.expr) -> list[Hint]:
    """Values whose bounds are compared with something must have some."""
    found: list[Hint] = []
    for part in ast.walk(e):
        match part:
            case ast.Attribute(ast.Name(name), "low"):
                found.append(Hint(name, low=-1e300))
            case ast.Attribute(ast.Name(name), "high"):
                found.append(Hint(name, high=1e300))
            case _:
                pass
    return found
