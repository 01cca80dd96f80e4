"""Expressions: the values of a graph as callbacks read and build them.

An expression is compared by identity; `same` compares structure. Arithmetic works on expressions and numbers.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np

from eqsat.dpl.names import operator_key
from eqsat.errors import RuleError
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, Node
from eqsat.ir.infer import infer_types
from eqsat.ir.operator import split_key
from eqsat.ir.order import operands_before
from eqsat.ir.types import DType, TensorType, Type


class Expr:
    """A value. ``type`` is that of a tensor; ``None`` for a tuple (an operator with several outputs, or `Tuple`)."""

    type: Type | None = None

    @property
    def shape(self) -> tuple[Any, ...] | None:
        return None if self.type is None else self.type.shape

    @property
    def dtype(self) -> str:
        return str(self.type.dtype.numpy) if isinstance(self.type, TensorType) else ""

    @property
    def parts(self) -> tuple[Expr | None, ...]:
        """The expressions this one reads."""
        return ()

    def __add__(self, other: Any) -> Expr:
        return call("Add", self, other)

    def __radd__(self, other: Any) -> Expr:
        return call("Add", const(other, self), self)

    def __sub__(self, other: Any) -> Expr:
        return call("Sub", self, other)

    def __mul__(self, other: Any) -> Expr:
        return call("Mul", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return call("Mul", const(other, self), self)

    def __truediv__(self, other: Any) -> Expr:
        return call("Div", self, other)

    def __getitem__(self, index: int) -> Expr:
        return Item(self, index)

    def __iter__(self) -> Iterator[Expr]:
        raise TypeError("an expression is not iterable: index it")


class Var(Expr):
    """An input of the graph."""

    def __init__(self, name: str, type: Type) -> None:
        self.name, self.type = name, type

    def __repr__(self) -> str:
        return self.name


class Const(Expr):
    """A constant; ``data.numpy()`` gives the elements."""

    def __init__(self, data: Constant, name: str = "") -> None:
        self.data, self.type, self.name = data, data.type, name

    def __repr__(self) -> str:
        return str(self.data.numpy().tolist()) if self.data.size <= 4 else repr(self.data)


class Call(Expr):
    """An operator applied to expressions. ``names``: of the values it defines in the graph, where it comes from one."""

    def __init__(self, node: Node, args: tuple[Expr | None, ...], types: tuple[Type, ...]) -> None:
        self.node, self.args, self.types = node, args, types
        self.names = node.outputs
        self.type = types[0] if len(types) == 1 else None

    @property
    def op(self) -> str:
        return self.node.key

    @property
    def attrs(self) -> Attributes:
        return self.node.attributes

    @property
    def outputs(self) -> int:
        return len(self.types)

    @property
    def parts(self) -> tuple[Expr | None, ...]:
        return self.args

    def with_args(self, args: tuple[Expr | None, ...]) -> Call:
        """The same operator on other operands; the types are inferred anew where they differ."""
        if all(a is None or b is None or a.type == b.type for a, b in zip(args, self.args, strict=True)):
            types = self.types
        else:
            types = self.types if self.node.opaque else _infer(self.node, args)
        return Call(self.node, args, types)

    def __repr__(self) -> str:
        operands = (f"{a.op}(...)" if isinstance(a, Call) else repr(a) for a in self.args)
        return f"{self.op}({', '.join(operands)})"


class Item(Expr):
    """One output of an operator with several, or one field of a tuple."""

    def __init__(self, of: Expr, index: int) -> None:
        if isinstance(of, Call):
            count = of.outputs
        elif isinstance(of, Tuple):
            count = len(of.fields)
        else:
            raise RuleError(f"{of!r} is no tuple: it has no part {index}")
        if not -count <= index < count:
            raise IndexError(f"part {index} of a tuple of {count}")
        self.of, self.index = of, index % count
        self.type = of.types[self.index] if isinstance(of, Call) else of.parts[self.index].type  # type: ignore[union-attr]

    @property
    def parts(self) -> tuple[Expr | None, ...]:
        return (self.of,)

    def __repr__(self) -> str:
        return f"{self.of!r}[{self.index}]"


class Tuple(Expr):
    """Several values in the place of one: what replaces an operator with several outputs."""

    def __init__(self, fields: Sequence[Expr | None]) -> None:
        self.fields = tuple(fields)

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def parts(self) -> tuple[Expr | None, ...]:
        return self.fields

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.fields))})"


def const(value: Any, like: Expr | None = None, dtype: str | None = None) -> Expr:
    """A constant expression; a plain number takes the element type of ``like``. An expression stays what it is."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, Constant):
        return Const(value)
    if dtype is None and isinstance(value, int | float) and like is not None and isinstance(like.type, TensorType):
        return Const(_number_of(value, like.type.dtype))
    array = np.asarray(value)
    return Const(Constant.of(array, dtype or ("float32" if array.dtype == np.float64 else None)))


def _number_of(value: float, dtype: DType) -> Constant:
    """A number as an element of a type. Raises `RuleError` for one that the type does not have: it would be another number."""
    try:
        found = Constant.of(value, dtype)
    except (OverflowError, ValueError):
        found = None
    if found is None or (not dtype.is_float and found.numpy() != value):
        raise RuleError(f"{value} is no {dtype.name.lower()}; cast the operand, or say const({value}, dtype=...)")
    return found


def call(op: str, *args: Any, outputs: int = 1, **attributes: Any) -> Call:
    """An operator applied to expressions and numbers; the name is ONNX's or one of TVM's (`eqsat.dpl.names`).

    Raises `ShapeError` if the operator rejects its operands.
    """
    domain, name = split_key(operator_key(op))
    like = next((a for a in args if isinstance(a, Expr)), None)
    operands = tuple(None if a is None else const(a, like) for a in args)
    return apply(Node(name, ("",) * len(operands), ("",) * outputs, Attributes(attributes), domain), operands)


def apply(node: Node, args: tuple[Expr | None, ...]) -> Call:
    """The operator of a node on other operands, for values without a name. Raises `ShapeError` if it rejects them."""
    bare = Node(node.op, ("",) * len(args), ("",) * len(node.outputs), node.attributes, node.domain, "", node.opaque)
    return Call(bare, args, _infer(bare, args))


def _infer(node: Node, args: Sequence[Expr | None]) -> tuple[Type, ...]:
    types = [None if a is None else a.type for a in args]
    values = [a.data.numpy() if isinstance(a, Const) and a.data.size <= 1024 else None for a in args]
    return infer_types(node, types, values)


def same(left: Expr | None, right: Expr | None) -> bool:
    """Whether two expressions have the same structure: operators, attributes, inputs, constant contents."""
    pending, seen = [(left, right)], set[tuple[int, int]]()
    while pending:
        a, b = pending.pop()
        if a is b or (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        if type(a) is not type(b) or a is None or b is None or len(a.parts) != len(b.parts):
            return False
        if isinstance(a, Var):
            return False
        if not _same_head(a, b):
            return False
        pending.extend(zip(a.parts, b.parts, strict=True))
    return True


def _same_head(a: Expr, b: Expr) -> bool:
    """Whether two expressions of one class agree in all but what they read."""
    if isinstance(a, Const) and isinstance(b, Const):
        return a.type == b.type and np.array_equal(a.data.numpy(), b.data.numpy())
    if isinstance(a, Call) and isinstance(b, Call):
        return (a.op, a.attrs, a.outputs, a.node.opaque) == (b.op, b.attrs, b.outputs, b.node.opaque)
    return not (isinstance(a, Item) and isinstance(b, Item)) or a.index == b.index


def topological(roots: Sequence[Expr | None], stop: Container[Expr] = ()) -> list[Expr]:
    """Every expression that ``roots`` depend on, operands first; nothing is looked for behind those in ``stop``."""

    def operands(expr: Expr) -> list[Expr]:
        return [] if expr in stop else [p for p in expr.parts if p is not None]

    return operands_before([r for r in roots if r is not None], operands)
