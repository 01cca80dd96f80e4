"""What both sides of an equation are written with: operators, numbers, names, and errors that say where."""

import ast
import math
import re
from collections.abc import Mapping
from functools import cache
from types import CodeType
from typing import Any, TypeGuard

import numpy as np

from eqsat.errors import RuleError, nearest
from eqsat.ir.operator import defined_operators, operator
from eqsat.ir.schema_operator import refused_number, unknown_attribute
from eqsat.ir.types import DType
from eqsat.rewrite import literal

Functions = Mapping[str, Any]
"""What attributes and conditions may be computed with, by name."""

BUILTINS: Functions = {
    f.__name__: f
    for f in (abs, all, any, bool, float, int, isinstance, len, list, max, min, range, set, sorted, sum, tuple)
}
NUMBERS: Functions = {"pi": math.pi, "sqrt": math.sqrt, "inf": math.inf}
KNOWN: Functions = {
    **{d.numpy.name: d for d in DType if d not in (DType.UNDEFINED, DType.STRING)},
    **NUMBERS,
    "number": literal,
}
"""What every equation may call: element types, numbers, and ``number(value, type)``, a constant."""

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div", ast.MatMult: "MatMul", ast.Pow: "Pow",
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "Less", ast.LtE: "LessOrEqual", ast.Gt: "Greater", ast.GtE: "GreaterOrEqual",
}  # fmt: skip


Shorthands = Mapping[str, tuple[str, str]]
"""What a term like ``Q(x)`` stands for on the left side, and on the right one."""


class Text:
    """The text of one equation, what it may call, and what it says in short.

    One that ``is_shipped`` was tested: what it says is compiled when it is needed.
    """

    def __init__(
        self,
        rule: str,
        text: str,
        functions: Functions,
        shorthands: Shorthands | None = None,
        *,
        is_shipped: bool = False,
    ) -> None:
        self.rule, self.text = rule, " ".join(text.split())
        self.is_shipped = is_shipped
        self.functions: Functions = {**KNOWN, **functions}
        self._shorthands = shorthands or {}

    def sides(self) -> tuple[ast.expr, ast.expr]:
        """Left and right side. Raises `RuleError` for what is no equation."""
        found = self.parsed(self.text)
        if not (isinstance(found, ast.Compare) and len(found.ops) == 1 and isinstance(found.ops[0], ast.Eq)):
            raise RuleError(f"rule {self.rule!r}: {self.text!r} is no equation; write left == right")
        return found.left, found.comparators[0]

    def parsed(self, text: str) -> ast.expr:
        """The expression that a text is. Raises `RuleError` where it cannot be read."""
        try:
            return ast.parse(text, mode="eval").body
        except SyntaxError as error:
            raise RuleError(f"rule {self.rule!r}: {text!r} cannot be read: {error.msg} at {error.offset}") from None

    def in_full(self, e: ast.expr, side: int) -> ast.expr:
        """The left (0) or right (1) side with its shorthands written out; attributes given to one are added to what it means."""
        if not self._shorthands:
            return e
        meanings = {short.partition("(")[0]: (short, full[side]) for short, full in self._shorthands.items()}
        return _InFull(self, meanings).visit(self.parsed(f"({self.as_written(e)})"))

    def as_written(self, side: ast.expr) -> str:
        """The part of the text that a side is."""
        return self.text.encode()[side.col_offset : side.end_col_offset].decode()

    def application(self, e: ast.expr) -> tuple[str, list[ast.expr], list[ast.keyword]]:
        """Key of the operator that an expression applies, operands, attributes."""
        match e:
            case ast.BinOp(left, op, right) if type(op) in _BINARY:
                return _BINARY[type(op)], [left, right], []
            case ast.Compare(left, [op], [right]) if type(op) in _COMPARED:
                return _COMPARED[type(op)], [left, right], []
            case ast.UnaryOp(ast.USub(), operand):
                return "Neg", [operand], []
            case ast.Call(_, args, keywords):
                return self.operator_key(e), args, keywords
            case _:
                raise self.error(e, "neither an operator nor a name nor a number")

    def check_attributes(self, op: str, e: ast.expr, keywords: list[ast.keyword]) -> None:
        """Raises `RuleError` for an attribute that the operator does not have."""
        wrong = unknown_attribute(op, [k.arg for k in keywords if k.arg is not None])
        if wrong:
            raise self.error(e, wrong)

    def check_number(self, op: str, e: ast.expr, operands: list[ast.expr]) -> None:
        """Raises `RuleError` for operands in a number that the operator does not take."""
        refused = refused_number(op, len(operands))
        if refused and not any(isinstance(operand, ast.Starred) for operand in operands):
            raise self.error(e, refused)

    def operator_key(self, e: ast.expr) -> str:
        """The key of the operator that an expression applies."""
        if not isinstance(e, ast.Call):
            return self.application(e)[0]
        domain, _, name = ast.unparse(e.func).rpartition(".")
        key = f"{domain}::{name}" if domain else name
        if operator(key) is None:
            key = _by_lower_case().get(key.lower(), key)
        if operator(key) is None:
            near = nearest(key, [*defined_operators(), *self.functions])
            raise self.error(e, f"{key!r} is no operator; {near}".rstrip("; "))
        return key

    def is_about(self, e: ast.expr) -> TypeGuard[ast.Call]:
        """Whether an expression is a number rounded to the type of the operands."""
        return isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id == "about"

    def number(self, e: ast.expr) -> float | int | None:
        """The number that an expression without variables is; ``None`` for any other."""
        if self.is_about(e):
            if len(e.args) != 1:
                raise self.error(e, "about takes one number")
            e = e.args[0]
        found = self.value(e) if _has_no_variables(e) else None
        return found if isinstance(found, (int, float)) else None

    def value(self, e: ast.expr) -> Any:
        """The value of an expression of numbers, strings and tuples."""
        if isinstance(e, ast.Constant):
            return e.value
        try:
            return eval(self.compiled(e), {"__builtins__": {}, **self.functions})
        except Exception as error:
            raise self.error(e, f"no value: {error}") from None

    def compiled(self, e: ast.expr) -> CodeType:
        return compile(ast.fix_missing_locations(ast.Expression(e)), f"<rule {self.rule}>", "eval")

    def error(self, e: ast.expr, what: str) -> RuleError:
        """The error to raise: which rule, where in its text, what is wrong."""
        return RuleError(f"rule {self.rule!r}: in {self.text!r}, {ast.unparse(e)!r}: {what}")


def _called(e: ast.expr) -> str:
    return e.func.id if isinstance(e, ast.Call) and isinstance(e.func, ast.Name) else ""


def _has_no_variables(e: ast.expr) -> bool:
    """Whether an expression is one of numbers alone."""
    match e:
        case ast.Name(name):
            return name in NUMBERS
        case ast.Call(function, args):
            return _has_no_variables(function) and all(map(_has_no_variables, args))
        case ast.BinOp(left, _, right):
            return _has_no_variables(left) and _has_no_variables(right)
        case ast.UnaryOp(_, operand):
            return _has_no_variables(operand)
        case _:
            return isinstance(e, ast.Constant)


class _InFull(ast.NodeTransformer):
    """Puts what shorthands mean, each given as two texts, in their place."""

    def __init__(self, text: Text, meanings: Mapping[str, tuple[str, str]]) -> None:
        self._text, self._meanings = text, meanings

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if _called(node) not in self._meanings:
            return node
        short, meaning = map(self._text.parsed, self._meanings[_called(node)])
        assert isinstance(short, ast.Call)
        assert isinstance(meaning, ast.Call)
        bound = {p.id: a for p, a in zip(short.args, node.args, strict=True) if isinstance(p, ast.Name)}
        found = _Bound(bound).visit(meaning)
        found.keywords += node.keywords
        return found


class _Bound(ast.NodeTransformer):
    """Puts expressions in the place of names."""

    def __init__(self, bound: Mapping[str, ast.expr]) -> None:
        self._bound = bound

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._bound.get(node.id, node)


def domains_of(side: str) -> set[str]:
    """Domains of the operators that the text of one side names, but for our own and the default one."""
    called = set(re.findall(r"([\w.]+)\.\w+\(", side))
    return {d for d in called - {"eqsat"} if any(key.startswith(f"{d}::") for key in defined_operators())}


def stored(value: Any) -> Any:
    """An attribute as a file stores it: floats have single precision."""
    return float(np.float32(value)) if isinstance(value, float) else value


@cache
def _by_lower_case() -> dict[str, str]:
    return {key.lower(): key for key in reversed(defined_operators())}
