"""What a condition in words asks of random instances, as far as it is of a simple form."""

import ast
from inspect import signature
from typing import Any

from eqsat.equations.syntax import Functions
from eqsat.rewrite import Hint


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
