"""Terms: what patterns and right sides consist of, and references to matched values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from eqsat.errors import ModelError
from eqsat.ir.constants import Constant
from eqsat.ir.extent_arrays import dims_of
from eqsat.ir.graph import NO_ATTRIBUTES, Attributes
from eqsat.ir.types import Dim, DType, Shape, TensorType

PROJECTION = "Proj"
"""Pseudo-operator: output ``index`` of an operator with several outputs."""

OPAQUE = "opaque_"
"""Begins the domain of e-nodes that are equal only to themselves. Group rules see those with bodies: ``opaque_::Loop``."""

WIDEST = 32
"""Inputs that an operator of a pattern may have. Operators of ONNX and of its runtimes that take no lists have at most 22."""


@dataclass(frozen=True, slots=True)
class Variable:
    """Stands for any value. ``optional``: for an absent optional input, too (it is then ``None`` in the match)."""

    name: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator applied to terms. In a pattern ``name`` makes the node available in the match, attributes included."""

    op: str
    args: tuple[Term, ...]
    attributes: Attributes = NO_ATTRIBUTES
    name: str = ""
    outputs: int = 1

    def named(self, name: str) -> Apply:
        return Apply(self.op, self.args, self.attributes, name, self.outputs)

    def output(self, index: int) -> Apply:
        """Output ``index`` of an operator with several outputs."""
        return Apply(PROJECTION, (self,), Attributes({"index": index}))


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant on the right side of a rule."""

    constant: Constant


class Values(Protocol):
    """What a match may ask about the value of an e-class."""

    def full_type_of(self, handle: int) -> object: ...
    def value_of(self, handle: int) -> np.ndarray | None: ...
    def literal_of(self, handle: int) -> np.ndarray | None: ...
    def is_constant(self, handle: int) -> bool: ...
    def interval_of(self, handle: int) -> tuple[float, float]: ...
    def list_of(self, handle: int) -> np.ndarray | None: ...
    def largest(self, dim: Dim) -> float: ...
    def inputs(self) -> Sequence[int]: ...
    def is_given(self, enode: int) -> bool: ...
    def lessons(self, handle: int) -> int:
        """How often more became known of the value: its type, that it is constant."""
        ...


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that would triple the time to make one, and there are many
class Ref:
    """A matched value: an e-class with its type and what is known about its elements. Never changed once made.

    ``enode``: where a group rule looked at one e-node of the class, that e-node.
    """

    handle: int
    values: Values = field(compare=False, repr=False)
    attributes: Attributes = NO_ATTRIBUTES
    enode: int = field(default=-1, compare=False, repr=False)

    @property
    def type(self) -> TensorType:
        """Type of the value. Raises `Unmet` when it is no tensor, but, say, all outputs of an operator with several."""
        found = self.values.full_type_of(self.handle)
        if not isinstance(found, TensorType):
            raise Unmet("the value is no tensor")
        return found

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """Extents; raises `Unmet` when the rank is unknown."""
        shape = self.type.shape
        if shape is None:
            raise Unmet("the rank is unknown")
        return shape

    @property
    def static_shape(self) -> tuple[int, ...]:
        """Extents; raises `Unmet` unless all are known."""
        shape = self.shape
        if not all(isinstance(d, int) for d in shape):
            raise Unmet(f"an extent is unknown: {shape}")
        return shape  # type: ignore[return-value]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def value(self) -> np.ndarray:
        """Elements, if constant and few; raises `Unmet` otherwise."""
        value = self.values.value_of(self.handle)
        if value is None:
            raise Unmet("the elements are not known at compile time")
        return value

    @property
    def elements(self) -> np.ndarray:
        """Elements of a literal constant of any size; raises `Unmet` for any other value."""
        value = self.values.literal_of(self.handle)
        if value is None:
            raise Unmet("the value is no literal constant")
        return value

    @property
    def dims(self) -> list[Dim]:
        """Elements of a list of extents: numbers, and texts for symbolic ones; raises `Unmet` where one is not known."""
        found = dims_of(self.values.list_of(self.handle))
        if found is None:
            raise Unmet("the extents are not known")
        return found

    @property
    def is_constant(self) -> bool:
        return self.values.is_constant(self.handle)

    @property
    def is_given(self) -> bool:
        """Whether the e-node that a group rule looks at is one of the original program."""
        return self.values.is_given(self.enode)

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds on the elements; (-inf, inf) if nothing is known, NaN bounds if an element may be NaN."""
        return self.values.interval_of(self.handle)

    @property
    def low(self) -> float:
        """Lower bound on the elements."""
        return self.interval[0]

    @property
    def high(self) -> float:
        """Upper bound on the elements."""
        return self.interval[1]

    def attr(self, name: str, default: Any = None) -> Any:
        """Attribute of a named node of the pattern."""
        return self.attributes.get(name, default)


Term = Variable | Apply | Literal | Ref


class Unmet(Exception):
    """Raised while a condition or a right side is evaluated: the rule does not apply here, and why."""


def terms_of(term: Term) -> Iterator[Term]:
    """A term and all that it is made of."""
    yield term
    for arg in term.args if isinstance(term, Apply) else ():
        yield from terms_of(arg)


NOT_ESTABLISHED = (Unmet, ModelError)
"""What ends a rule at a match: a condition does not hold, or operators cannot be evaluated to see whether it does."""


def variables(names: str) -> tuple[Any, ...]:
    """Variables by name, separated by spaces; a trailing ``?`` makes one optional: ``x, b = variables("x b?")``."""
    return tuple(Variable(n.rstrip("?"), n.endswith("?")) for n in names.split())


def apply(op: str, *args: Term | None, outputs: int = 1, **attributes: Any) -> Apply:
    """A term: the operator with key ``op`` applied to ``args``. ``None`` is an absent optional input or attribute."""
    stated = {name: value for name, value in attributes.items() if value is not None}
    return Apply(op, present(*args), Attributes(stated) if stated else NO_ATTRIBUTES, "", outputs)


def present(*args: Term | None) -> tuple[Any, ...]:
    """The operands of an operator, without absent optional ones at the end."""
    kept = list(args)
    while kept and kept[-1] is None:
        kept.pop()
    return tuple(kept)


def literal(value: Any, dtype: DType | str | None = None) -> Literal:
    """A constant term. Raises `Unmet` for an element type that is not known."""
    if dtype is DType.UNDEFINED:
        raise Unmet("the element type is unknown")
    return Literal(value if isinstance(value, Constant) else Constant.of(value, dtype))
