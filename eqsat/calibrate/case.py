"""What is timed: one operator on operands of stated types."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVarTuple

from eqsat.cost.timings import case_name
from eqsat.ir.graph import Attributes
from eqsat.ir.types import DType, TensorType, tensor_type

Size = TypeVarTuple("Size")


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand: what it is to the kernel, and values that make sense to it.

    ``weight``: a constant of the model, one of its own for every copy of the kernel. ``value``: a constant with these very
    elements. Otherwise an input of the model. ``limit``: integers are drawn below it.
    """

    type: TensorType
    weight: bool = False
    value: Any = None
    limit: int | None = None

    @property
    def changes(self) -> bool:
        """Whether it is an activation: other values every run."""
        return not self.weight and self.value is None


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel to time. An absent operand is ``None``. ``opset``: of the model that it is timed in."""

    key: str
    attributes: Attributes
    operands: tuple[Operand | None, ...]
    outputs: int = 1
    opset: int = 23

    @property
    def types(self) -> tuple[TensorType | None, ...]:
        return tuple(None if o is None else o.type for o in self.operands)

    @property
    def name(self) -> str:
        return case_name(self.key, self.attributes, self.types)


class Cases(Protocol):
    """Kernels to time, whatever their sizes consist of."""

    def cases(self) -> Iterator[Case]: ...


@dataclass(frozen=True, slots=True)
class Kernels(Generic[*Size]):
    """Kernels of one operator: for each of ``sizes`` its operands, and attributes.

    ``operands`` and ``attributes`` are functions of the size; attributes that never change are given as they are.
    """

    key: str
    sizes: Iterable[tuple[*Size]]
    operands: Callable[[*Size], Sequence[Operand | None]]
    attributes: Callable[[*Size], Mapping[str, Any]] | Mapping[str, Any] = field(default_factory=dict[str, Any])
    outputs: int = 1
    opset: int = 23

    def cases(self) -> Iterator[Case]:
        for size in self.sizes:
            stated = self.attributes(*size) if callable(self.attributes) else self.attributes
            yield Case(self.key, Attributes(stated), tuple(self.operands(*size)), self.outputs, self.opset)


def data(dtype: str, *shape: int, limit: int | None = None) -> Operand:
    """An activation."""
    return Operand(tensor_type(dtype, shape), limit=limit)


def weight(dtype: str, *shape: int) -> Operand:
    """Weights: constant, and read from memory again for every kernel."""
    return Operand(tensor_type(dtype, shape), weight=True)


def value(dtype: str, elements: Any) -> Operand:
    """A constant with these elements: a scale, a zero point, axes, bounds."""
    import numpy as np

    array = np.asarray(elements, DType.of(dtype).numpy)
    return Operand(tensor_type(dtype, array.shape), value=elements)


def filled(dtype: str, element: float, *shape: int) -> Operand:
    """A constant with one element all over: scales and zero points for each channel."""
    import numpy as np

    return Operand(tensor_type(dtype, shape), value=np.full(shape, element, DType.of(dtype).numpy))
