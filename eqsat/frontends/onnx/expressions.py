"""Names of extents in a file, as exporters write expressions of symbols."""

import ast
from collections.abc import Callable

from eqsat.ir.extents import add, floor_divide, maximum, minimum, multiply, product, subtract
from eqsat.ir.normal_form import symbol
from eqsat.ir.types import Dim

_WRITTEN: dict[type[ast.operator], Callable[[Dim, Dim], Dim]] = {
    ast.Add: add,
    ast.Sub: subtract,
    ast.Mult: multiply,
    ast.FloorDiv: floor_divide,
}


def from_expression(text: str, names: frozenset[str]) -> Dim:
    """What the name of an extent says: exporters write expressions over the symbols ``names`` of a model's inputs.

    Any other name is a symbol of its own, and so is an expression with one. ``batch-size`` is a name if an input has it.
    Digits are a name, too: an extent that is known is a number in the file.
    """
    if text in names and not set(text) & set("+*/( "):
        return symbol(text)
    try:
        tree = ast.parse(text, mode="eval")
        if not any(isinstance(part, ast.Name) for part in ast.walk(tree)):
            return symbol(text)
        return _expression(tree.body, names - {text})
    except (SyntaxError, ValueError, TypeError, ZeroDivisionError, RecursionError):
        return symbol(text)


def _expression(e: ast.expr, names: frozenset[str]) -> Dim:
    match e:
        case ast.Constant(int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(name) if name in names:
            return symbol(name)
        case ast.UnaryOp(ast.USub(), x):
            return subtract(0, _expression(x, names))
        case ast.BinOp(x, ast.Pow(), ast.Constant(int(power))) if 0 <= power <= 4:
            return product([_expression(x, names)] * power)
        case ast.BinOp(x, op, y) if type(op) in _WRITTEN:
            return _WRITTEN[type(op)](_expression(x, names), _expression(y, names))
        case ast.Call(ast.Name("floor"), [ast.BinOp(x, ast.Div(), y)]):
            return floor_divide(_expression(x, names), _expression(y, names))
        case ast.Call(ast.Name("Max" | "max"), [x, y]):
            return maximum(_expression(x, names), _expression(y, names))
        case ast.Call(ast.Name("Min" | "min"), [x, y]):
            return minimum(_expression(x, names), _expression(y, names))
        case _:
            raise ValueError(ast.dump(e))
