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
what it says holds. What is not stated is derived, and so is what is ``...``.
"""

import ast
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from eqsat.equations.syntax import KNOWN, NUMBERS
from eqsat.errors import RuleError
from eqsat.ir.types import DType
from eqsat.rewrite import AttributeOf
from eqsat.samples import Applied, Sampler, fixed

_RARELY = (0.0, 0.2, 0.5)
"""How often another option than the first is drawn, in one instance or another."""


class Typed:
    """``float16[N, K]``: an element type and a shape."""

    def __init__(self, dtype: DType | None, *shape: int) -> None:
        self.dtype, self.shape = dtype, shape

    def __getitem__(self, extents: int | tuple[int, ...]) -> "Typed":
        return Typed(self.dtype, *(extents if isinstance(extents, tuple) else (extents,)))


_NAMES: dict[str, Any] = {name: Typed(found) for name, found in KNOWN.items() if isinstance(found, DType)}
_NAMES |= {"fixed": fixed, "Applied": Applied, **NUMBERS}


class Drawn:
    """One draw of what a text states. ``operands``: shapes of variables, ``None`` for those that are absent; ``values``: what
    others hold; ``attributes``: by node and name."""

    def __init__(self, texts: Sequence[str], d: Sampler, named: Mapping[str, AttributeOf]) -> None:
        self._d = d
        usual, *others = texts
        text = f"{usual}\n{d.choose(others)}" if others and d.chance(0.6) else usual
        self._rarely = d.choose(_RARELY)
        self.operands: dict[str, Typed | None] = {}
        self.values: dict[str, Any] = {}
        self.attributes: dict[str, dict[str, Any]] = defaultdict(dict)
        extents, statements = _read(text)
        known = _NAMES | dict(zip(extents, d.extents(len(extents)), strict=True))
        known |= {"ANY": d.shape(0, 2), "SYMBOLS": None, "d": d, "_option": self._option}
        for name, node, is_shape, code in statements:
            found = eval(code, known)
            self.operands.pop(name, None)
            self.values.pop(name, None)
            if found is ...:
                continue
            if node:
                self.attributes[node][name] = found
            elif name in named:
                self.attributes[named[name].node][named[name].name] = found
            elif name.isupper():
                known[name] = found
            elif is_shape:
                self.operands[name] = Typed(None, *found) if isinstance(found, list) else found
            else:
                self.values[name] = fixed(found, "int64") if isinstance(found, list) else found

        self.symbols: Sequence[int] | None = known["SYMBOLS"]

    def _option(self, *options: Any) -> Any:
        return self._d.choose(options[1:]) if self._d.chance(self._rarely) else options[0]


class _Options(ast.NodeTransformer):
    """``a | b | c`` as a choice."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.BitOr):
            return node
        left = node.left
        chosen = isinstance(left, ast.Call) and isinstance(left.func, ast.Name) and left.func.id == "_option"
        options = left.args if chosen and isinstance(left, ast.Call) else [left]
        return ast.Call(ast.Name("_option", ast.Load()), [*options, node.right], [])


@lru_cache(1 << 10)
def _read(text: str) -> tuple[list[str], list[tuple[str, str, bool, CodeType]]]:
    """The extents that a text names, and its statements: name, node that it is an attribute of, whether it is a shape, what it
    is. Raises `RuleError` for what is no such text."""
    try:
        tree = ast.parse("\n".join(line.strip() for line in text.splitlines()))
        statements: list[tuple[str, str, bool, CodeType]] = []
        for s in tree.body:
            assert isinstance(s, (ast.AnnAssign, ast.Assign))
            target, is_shape = (s.target, True) if isinstance(s, ast.AnnAssign) else (s.targets[0], False)
            said = s.annotation if isinstance(s, ast.AnnAssign) else s.value
            code = compile(ast.fix_missing_locations(ast.Expression(_Options().visit(said))), "<drawn>", "eval")
            node, _, name = ast.unparse(target).rpartition(".")
            statements.append((name, node, is_shape, code))
    except (SyntaxError, AssertionError) as error:
        raise RuleError(f"drawn: {text!r} is no list of names and what they are: x: [N, K]; s = [N, -1]; n.axis = 1") from error
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    names = (n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id.isupper() and n.id not in ("ANY", "SYMBOLS"))
    return list(dict.fromkeys(names)), statements
