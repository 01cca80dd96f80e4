"""Patterns over expressions, in the words of TVM's dataflow pattern language. `eqsat.dpl.matching` finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from eqsat.dpl.expr import Expr
from eqsat.dpl.names import operator_key
from eqsat.errors import RuleError
from eqsat.ir.types import DType


class Pattern:
    """Base of all patterns. One pattern object stands for one value, however often it occurs in a larger pattern."""

    def __call__(self, *args: Pattern | None, varg_default_wildcard: bool = False) -> CallPattern:
        """The operator that this pattern describes, applied to operands: ``is_op("add")(x, y)``; ``None`` beside others is one
        that is absent, ``(None)`` takes any operands."""
        return CallPattern(self, None if varg_default_wildcard or args == (None,) else args)

    def __or__(self, other: Pattern) -> Pattern:
        return OrPattern(self, other)

    def __and__(self, other: Pattern) -> Pattern:
        return AndPattern(self, other)

    def __invert__(self) -> Pattern:
        return NotPattern(self)

    def __add__(self, other: Pattern) -> Pattern:
        return is_op("Add")(self, other)

    def __sub__(self, other: Pattern) -> Pattern:
        return is_op("Sub")(self, other)

    def __mul__(self, other: Pattern) -> Pattern:
        return is_op("Mul")(self, other)

    def __truediv__(self, other: Pattern) -> Pattern:
        return is_op("Div")(self, other)

    def __getitem__(self, index: int | None) -> Pattern:
        return TupleGetItemPattern(self, index)

    def has_dtype(self, dtype: str) -> Pattern:
        return TestPattern(self, lambda e: e.dtype == dtype)

    def has_shape(self, shape: Sequence[Any]) -> Pattern:
        return TestPattern(self, lambda e: e.shape == tuple(shape))

    def has_type(self, shape: Sequence[Any], dtype: str | None = None) -> Pattern:
        """A tensor of this shape, and of this element type unless it is ``None``."""
        found = self.has_shape(shape)
        return found if dtype is None else found.has_dtype(dtype)

    def has_attr(self, attributes: Mapping[str, Any]) -> Pattern:
        """A call (or, on an operator pattern, the operator of a call) with these attributes; ``kind`` is that of the
        operator's `eqsat.ir.operator.Kind`, such as ``"elementwise"``."""
        return AttrPattern(self, dict(attributes))

    def optional(self, wrap: Callable[[Pattern], Pattern]) -> Pattern:
        """This pattern with ``wrap`` around it, or without."""
        return OrPattern(wrap(self), self)

    def dominates(self, parent: Pattern, path: Pattern, *, side_inputs: bool = False) -> Pattern:
        """This pattern as the child: see `dominates`."""
        return DominatorPattern(parent, path, self, side_inputs)

    # ---- constraints between patterns, in a `PatternContext`

    def used_by(self, other: Pattern | PatternSequence, index: int | None = None) -> PatternSequence:
        """The value is an operand (number ``index``) of the other."""
        return PatternSequence([self]).used_by(other, index)

    def only_used_by(self, other: Pattern | PatternSequence, index: int | None = None) -> PatternSequence:
        """As `used_by`, and nothing else reads the value."""
        return PatternSequence([self]).only_used_by(other, index)

    __xor__ = used_by
    __rshift__ = only_used_by

    def fork_to(self, *others: Pattern | PatternSequence) -> None:
        """The value is an operand of each of the others."""
        for other in others:
            self.used_by(other)

    def same_shape_as(self, other: Pattern) -> None:
        """Both values provably have one shape."""
        from eqsat.dpl.context import PatternContext

        PatternContext.current().add_same_shape(self, other)

    def match(self, expr: Expr, users: Mapping[Expr, Sequence[Expr]] | None = None) -> bool:
        """Whether the pattern matches an expression."""
        from eqsat.dpl.matching import Matcher

        return Matcher([expr], users).first(self, expr) is not None


class PatternSequence:
    """Patterns one after the other, as ``a >> b ^ c`` makes them."""

    def __init__(self, patterns: Iterable[Pattern], links: Iterable[tuple[bool, int | None]] = ()) -> None:
        self.patterns, self.links = list(patterns), list(links)

    def used_by(self, other: Pattern | PatternSequence, index: int | None = None) -> PatternSequence:
        return self._joined(other, index, only=False)

    def only_used_by(self, other: Pattern | PatternSequence, index: int | None = None) -> PatternSequence:
        return self._joined(other, index, only=True)

    __xor__ = used_by
    __rshift__ = only_used_by

    def _joined(self, other: Pattern | PatternSequence, index: int | None, only: bool) -> PatternSequence:
        from eqsat.dpl.context import PatternContext

        tail = other if isinstance(other, PatternSequence) else PatternSequence([other])
        PatternContext.current().add_use(self.patterns[-1], tail.patterns[0], index, only)
        return PatternSequence([*self.patterns, *tail.patterns], [*self.links, (only, index), *tail.links])

    def dup(self) -> PatternSequence:
        """The same sequence of new patterns, with the same constraints between them."""
        from copy import copy

        patterns = [copy(p) for p in self.patterns]
        sequence = PatternSequence([patterns[0]])
        for pattern, (only, index) in zip(patterns[1:], self.links, strict=True):
            sequence = sequence._joined(pattern, index, only)
        return sequence


class WildcardPattern(Pattern):
    """Any value, or one that the pattern matches to which it is redirected; as the operator of a call, any operator."""

    target: Pattern | None = None

    def redirect_to(self, pattern: Pattern) -> None:
        """From now on the wildcard is that pattern, of which it may be a part: so a pattern contains itself.

        A pattern that matches inside itself is bound to the outermost of its values.
        """
        self.target = pattern


class VarPattern(Pattern):
    def __init__(self, name: str = "") -> None:
        self.name = name


class ConstPattern(Pattern):
    pass


class ExprPattern(Pattern):
    def __init__(self, expr: Expr) -> None:
        self.expr = expr


class OpPattern(Pattern):
    """An operator; called, it describes a value."""

    def __init__(self, op: str) -> None:
        self.op = operator_key(op)


class CallPattern(Pattern):
    """An operator on operands, any if ``args`` is ``None``. An operand that is ``None`` must be absent."""

    def __init__(self, op: Pattern, args: tuple[Pattern | None, ...] | None) -> None:
        self.op, self.args = op, args
        from eqsat.dpl.context import PatternContext

        PatternContext.register(self)


class TuplePattern(Pattern):
    """``fields``: ``None`` for any, in any number."""

    def __init__(self, fields: Sequence[Pattern] | None, unordered: bool = False) -> None:
        self.fields, self.unordered = None if fields is None else tuple(fields), unordered

    def __getitem__(self, index: int | None) -> Pattern:
        if index is None or self.fields is None:
            return TupleGetItemPattern(self, index)
        if not -len(self.fields) <= index < len(self.fields):
            raise IndexError(f"part {index} of a tuple of {len(self.fields)}")
        return TupleGetItemPattern(self, index % len(self.fields))


class TupleGetItemPattern(Pattern):
    def __init__(self, of: Pattern, index: int | None) -> None:
        self.of, self.index = of, index


class OrPattern(Pattern):
    def __init__(self, left: Pattern, right: Pattern) -> None:
        self.left, self.right = left, right


class AndPattern(Pattern):
    def __init__(self, left: Pattern, right: Pattern) -> None:
        self.left, self.right = left, right


class NotPattern(Pattern):
    def __init__(self, of: Pattern) -> None:
        self.of = of


class TestPattern(Pattern):
    """A pattern whose value passes a test."""

    __test__ = False  # no test case, whatever its name

    def __init__(self, of: Pattern, holds: Callable[[Expr], bool]) -> None:
        self.of, self.holds = of, holds


class AttrPattern(Pattern):
    def __init__(self, of: Pattern, attributes: Mapping[str, Any]) -> None:
        self.of, self.attributes = of, attributes


class DominatorPattern(Pattern):
    def __init__(self, parent: Pattern, path: Pattern, child: Pattern, side_inputs: bool = False) -> None:
        self.parent, self.path, self.child, self.side_inputs = parent, path, child, side_inputs


def wildcard() -> WildcardPattern:
    """Matches anything."""
    return WildcardPattern()


def is_op(name: str) -> Pattern:
    """An operator, by ONNX's or TVM's name. Raises `RuleError` for a name that is neither."""
    return OpPattern(name)


def is_const() -> Pattern:
    """A constant."""
    return ConstPattern()


is_constant = is_const


def is_var(name: str = "") -> Pattern:
    """An input of the graph, of this name if one is given."""
    return VarPattern(name)


def is_expr(expr: Expr) -> Pattern:
    """This very expression, or one of the same structure."""
    return ExprPattern(expr)


def is_tuple(fields: Sequence[Pattern] | None, unordered: bool = False) -> TuplePattern:
    """A tuple (the operands of a Concat count as one) whose fields match, in this order unless ``unordered``.

    ``None``: a tuple of any fields.
    """
    return TuplePattern(fields, unordered)


def is_tuple_get_item(of: Pattern, index: int | None = None) -> Pattern:
    """Output ``index`` (any if ``None``) of an operator with several outputs, or that field of a tuple."""
    return TupleGetItemPattern(of, index)


def has_dtype(dtype: str, pattern: Pattern | None = None) -> Pattern:
    """A tensor of this element type. Raises `RuleError` if there is none of that name."""
    try:
        DType.of(dtype)
    except (TypeError, KeyError):
        raise RuleError(f"{dtype!r} is no element type") from None
    return (pattern or wildcard()).has_dtype(dtype)


def has_shape(shape: Sequence[Any], pattern: Pattern | None = None) -> Pattern:
    return (pattern or wildcard()).has_shape(shape)


def has_attr(attributes: Mapping[str, Any], pattern: Pattern | None = None) -> Pattern:
    return (pattern or wildcard()).has_attr(attributes)


def dominates(parent: Pattern, path: Pattern, child: Pattern, *, side_inputs: bool = False) -> Pattern:
    """``parent`` dominates ``child``: every path from the one leads to the other over operators that match ``path``.

    What the operators in between read beside the path must be inputs or constants of the graph; ``side_inputs`` lets it be
    anything that is computed without the parent.
    """
    return DominatorPattern(parent, path, child, side_inputs)
