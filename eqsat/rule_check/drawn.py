"""What a rule states of its instances where that does not follow from its pattern: shapes that fit together, values, attributes.

    x: [N, K]; w: [K, 2 * C]              shapes; upper-case names are extents, mostly distinct, ``ANY`` some axes or none
    x: uint8[N, K] | float16[N, K] | None an element type; absent
    N = 8 | 16                            an extent
    s = [N, -1] | [K, N]                  elements of a constant of int64
    c = 0.5 | d.floats([2])               a number, or a value that the sampler ``d`` draws
    SYMBOLS = [N] | []                    the extents that inputs declare by a symbol, in place of any, now and then
    n.axis = -1 | 1; p = (1, 0)           an attribute of the node ``n``, or the one that the equation calls ``p``

Of several options the first is drawn mostly, in a third of the instances always, so that what the conditions ask for may come
first and what is wrong behind it. Where several texts are given, one of those behind the first is added to it now and then, and
what it says holds. What is not stated is derived, and so is what is ``...``; what a pattern does not name is passed over, so that
rules may share a text.
"""

import ast
import builtins
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, cast

import numpy as np

from eqsat.equations.syntax import KNOWN, NUMBERS
from eqsat.errors import RuleError
from eqsat.ir.types import DType
from eqsat.rewrite import AttributeOf
from eqsat.samples import Applied, Sampler, fixed

_RARELY = (0.0, 0.2, 0.5)
"""How often another option than the first is drawn, in one instance or another."""

_AT_TIMES = 0.6
"""Part of the instances that a text behind the first changes."""


class Typed:
    """``float16[N, K]``: an element type and a shape."""

    def __init__(self, dtype: DType | None, shape: tuple[int, ...] = ()) -> None:
        self.dtype, self.shape = dtype, shape

    def __getitem__(self, extents: int | tuple[int, ...]) -> "Typed":
        return Typed(self.dtype, extents if isinstance(extents, tuple) else (extents,))


_KNOWN: dict[str, Any] = {
    **{name: Typed(found) for name, found in KNOWN.items() if isinstance(found, DType)},
    **NUMBERS,
    "fixed": fixed,
    "Applied": Applied,
}
_GIVEN = ("ANY", "SYMBOLS", "d")


class Drawn:
    """One draw of what texts state. ``operands``: of variables a `Typed` shape, a value, a number of the instance's element type,
    or ``None`` where it is absent; ``attributes``: by node and name; ``symbols``: extents that are symbols."""

    def __init__(self, texts: Sequence[str], d: Sampler, named: Mapping[str, AttributeOf]) -> None:
        self._d = d
        self.operands: dict[str, Any] = {}
        self.attributes: dict[str, dict[str, Any]] = defaultdict(dict)
        self.symbols: Sequence[int] | None = None
        if not texts:
            return
        usual, *others = texts
        text = f"{usual}\n{d.choose(others)}" if others and d.chance(_AT_TIMES) else usual
        self._rarely = d.choose(_RARELY)
        extents, statements = _read(text)
        known: dict[str, Any] = _KNOWN | dict(zip(extents, d.extents(len(extents)), strict=True))
        known |= {"ANY": d.shape(0, 2), "SYMBOLS": None, "d": d, "_option": self._option}
        for name, node, is_shape, code in statements:
            with np.errstate(all="ignore"):
                found: Any = eval(code, known)
            if node:
                self.attributes[node][name] = found
            elif name in named:
                self.attributes[named[name].node][named[name].name] = found
            elif name.isupper():
                known[name] = found
            elif found is ...:
                self.operands.pop(name, None)
            elif type(found) is list:
                self.operands[name] = Typed(None, (*cast("list[int]", found),)) if is_shape else fixed(found, "int64")
            else:
                is_ready = isinstance(found, (int, float)) or not np.isscalar(found)
                self.operands[name] = found if is_ready else fixed(found).array
        self.symbols = known["SYMBOLS"]

    def _option(self, *options: Any) -> Any:
        return self._d.choose(options[1:]) if self._d.chance(self._rarely) else options[0]


class _Options(ast.NodeTransformer):
    """``a | b | c`` as a choice."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.BinOp(ast.Call(ast.Name("_option"), options), ast.BitOr(), last):
                return ast.Call(ast.Name("_option", ast.Load()), [*options, last], [])
            case ast.BinOp(first, ast.BitOr(), last):
                return ast.Call(ast.Name("_option", ast.Load()), [first, last], [])
            case _:
                return node


def check_texts(texts: Sequence[str]) -> None:
    """Raises `RuleError` for what cannot be read."""
    for text in texts:
        _read(text)


@lru_cache(1 << 10)
def _read(text: str) -> tuple[Sequence[str], Sequence[tuple[str, str, bool, CodeType]]]:
    """The extents that a text names, and its statements: name, node that it is an attribute of, whether it is a shape, what it
    is. Raises `RuleError` for what is no such text."""
    extents: dict[str, None] = {}
    statements: list[tuple[str, str, bool, CodeType]] = []
    try:
        body = ast.parse("\n".join(line.strip() for line in text.splitlines())).body
    except SyntaxError as error:
        raise RuleError(f"drawn: {text!r} cannot be read: {error.msg}") from None
    for s in body:
        match s:
            case ast.AnnAssign(target, said, None) | ast.Assign([target], said):
                name = ast.unparse(target)
            case _:
                raise RuleError(
                    f"drawn: {ast.unparse(s)!r} says nothing of a name; write x: [N, K], s = [N, -1] or n.axis = 1"
                )
        used = [n for n in ast.walk(said) if isinstance(n, ast.Name)]
        extents |= dict.fromkeys(n.id for n in used if n.id.isupper() and n.id not in _GIVEN)
        own = {n.id for n in used if isinstance(n.ctx, ast.Store)}
        unknown = [n.id for n in used if n.id not in {*extents, *own, *_KNOWN, *_GIVEN, *dir(builtins)}]
        if unknown:
            raise RuleError(
                f"drawn: {name} is {ast.unparse(said)!r}, and {unknown[0]!r} is nothing known; extents are upper-case"
            )
        said = ast.fix_missing_locations(ast.Expression(_Options().visit(said)))
        node, _, name = name.rpartition(".")
        statements.append((name, node, isinstance(s, ast.AnnAssign), compile(said, "<drawn>", "eval")))
    return list(extents), statements
