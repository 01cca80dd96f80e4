"""Element types, dimensions and tensor types.

A dimension is an ``int`` when known and a ``str`` when symbolic: an extent in normal form (`eqsat.ir.extents`). Two dimensions
are provably equal only if they are the same ``int`` or the same ``str``. A shape is a tuple of dimensions, or ``None`` when even
the rank is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, TypeGuard

import ml_dtypes  # pyright: ignore[reportUnusedImport]  # noqa: F401  # makes its types known to numpy
import numpy as np

from eqsat.errors import ModelError
from eqsat.ir.extents import is_nameless
from eqsat.ir.normal_form import Dim

Shape = tuple[Dim, ...]


class DType(IntEnum):
    """Element type of a tensor. The values are the codes of ``onnx.TensorProto.DataType``."""

    UNDEFINED = 0
    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    STRING = 8
    BOOL = 9
    FLOAT16 = 10
    DOUBLE = 11
    UINT32 = 12
    UINT64 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15
    BFLOAT16 = 16
    FLOAT8E4M3FN = 17
    FLOAT8E4M3FNUZ = 18
    FLOAT8E5M2 = 19
    FLOAT8E5M2FNUZ = 20
    UINT4 = 21
    INT4 = 22
    FLOAT4E2M1 = 23
    FLOAT8E8M0 = 24
    UINT2 = 25
    INT2 = 26

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy element type (``ml_dtypes`` for the types numpy lacks; ``object`` for strings).

        Raises `ModelError` where the type is not known.
        """
        if self is DType.UNDEFINED:
            raise ModelError("the element type is not known")
        return _NUMPY[self]

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @property
    def is_integer(self) -> bool:
        return self in _INTEGERS

    @property
    def is_signed(self) -> bool:
        return self.is_float or self in (DType.INT2, DType.INT4, DType.INT8, DType.INT16, DType.INT32, DType.INT64)

    @property
    def bits(self) -> int:
        """Bits of one element at rest: sub-byte types are packed."""
        return _BITS.get(self, self.numpy.itemsize * 8)

    @staticmethod
    def of(value: DType | str | type | np.dtype[Any]) -> DType:
        """The element type of a numpy dtype, or of its name.

        >>> DType.of("float32")
        <DType.FLOAT: 1>
        """
        if isinstance(value, DType):
            return value
        dtype = np.dtype(value)
        if dtype.kind in "OUSTV" and dtype not in _DTYPE:
            return DType.STRING
        return _DTYPE[dtype]


HALVES = (DType.FLOAT16, DType.BFLOAT16)
"""Half precision: 16 bits of one kind or the other."""

_NAMES = {
    DType.FLOAT: "float32",
    DType.DOUBLE: "float64",
    DType.STRING: "object",
    DType.FLOAT8E4M3FN: "float8_e4m3fn",
    DType.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    DType.FLOAT8E5M2: "float8_e5m2",
    DType.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    DType.FLOAT4E2M1: "float4_e2m1fn",
    DType.FLOAT8E8M0: "float8_e8m0fnu",
}
"""What numpy calls the types of which ONNX has another name."""

_NUMPY = {d: np.dtype(_NAMES.get(d, d.name.lower())) for d in DType if d is not DType.UNDEFINED}
_DTYPE = {dtype: code for code, dtype in _NUMPY.items() if code is not DType.STRING}
_BITS = {DType.UINT4: 4, DType.INT4: 4, DType.FLOAT4E2M1: 4, DType.UINT2: 2, DType.INT2: 2, DType.STRING: 64}
_FLOATS = frozenset(d for d in _NUMPY if d.name.startswith(("FLOAT", "DOUBLE", "BFLOAT")))
_INTEGERS = frozenset(d for d in _NUMPY if d.name.startswith(("INT", "UINT")))


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape of a tensor; ``shape`` is ``None`` when the rank is unknown.

    >>> str(TensorType(DType.FLOAT, (1, "seq", 768)))
    'float32[1, seq, 768]'
    """

    dtype: DType
    shape: Shape | None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every extent is known."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @property
    def size(self) -> int | None:
        """Number of elements, if known."""
        if self.shape is None:
            return None
        total = 1
        for d in self.shape:
            if not isinstance(d, int):
                return None
            total *= d
        return total

    @property
    def bytes(self) -> int | None:
        """Bytes of the tensor at rest, if known."""
        size = self.size
        return None if size is None or self.dtype is DType.UNDEFINED else (size * self.dtype.bits + 7) // 8

    def __str__(self) -> str:
        name = "undefined" if self.dtype is DType.UNDEFINED else self.dtype.name.lower()
        if self.dtype in _NUMPY and self.dtype is not DType.STRING:
            name = self.dtype.numpy.name
        return name if self.shape is None else f"{name}[{', '.join(map(str, self.shape))}]"


class NoTensor:
    """What is known of a value that is no tensor where that of tensors is asked for: nothing."""

    __slots__ = ()
    dtype: ClassVar = DType.UNDEFINED
    shape: ClassVar[Shape | None] = None
    rank: ClassVar[int | None] = None
    size: ClassVar[int | None] = None
    bytes: ClassVar[int | None] = None
    is_static: ClassVar = False


@dataclass(frozen=True, slots=True)
class OpaqueType(NoTensor):
    """Type of a value that is no tensor (sequence, optional, map), kept as the bytes of its ``TypeProto``."""

    proto: bytes

    def __str__(self) -> str:
        return "opaque"


Type = TensorType | OpaqueType
UNKNOWN = TensorType(DType.UNDEFINED, None)


def tensor_type(dtype: DType | str | type | np.dtype[Any], shape: Shape | list[Dim] | None) -> TensorType:
    """Shorthand: ``tensor_type("float32", (1, 3))``."""
    return TensorType(DType.of(dtype), None if shape is None else tuple(shape))


def is_array(value: object) -> TypeGuard[np.ndarray]:
    """Whether a value is an array, not a sequence or an absent one."""
    return isinstance(value, np.ndarray)


def is_sequence(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether a value is several: a list or a tuple."""
    return isinstance(value, list | tuple)


def type_of_array(array: np.ndarray) -> TensorType:
    return TensorType(DType.of(array.dtype), tuple(int(d) for d in array.shape))


def may_differ(a: Type, b: Type) -> bool:
    """Whether two values may have different extents for some values of the model's symbols: a symbol may be 1.

    Extents that inference could not name do not tell.
    """
    if a.shape is None or b.shape is None:
        return False
    return len(a.shape) != len(b.shape) or any(
        x != y and not is_nameless(x) and not is_nameless(y) for x, y in zip(a.shape, b.shape, strict=True)
    )


def compatible(a: Type, b: Type) -> bool:
    """Whether two types can describe the same value: no known part of one contradicts a known part of the other."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return a == b or UNKNOWN in (a, b)
    if DType.UNDEFINED not in (a.dtype, b.dtype) and a.dtype is not b.dtype:
        return False
    if a.shape is None or b.shape is None:
        return True
    if len(a.shape) != len(b.shape):
        return False
    return all(x == y or isinstance(x, str) or isinstance(y, str) for x, y in zip(a.shape, b.shape, strict=True))


def meet(a: Type, b: Type) -> Type:
    """The most precise type implied by two compatible types of one value. Known extents win over symbols."""
    if a == b or not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return a if a != UNKNOWN else b
    dtype = a.dtype if a.dtype is not DType.UNDEFINED else b.dtype
    if a.shape is None or b.shape is None:
        return TensorType(dtype, a.shape if b.shape is None else b.shape)
    return TensorType(
        dtype,
        tuple(y if isinstance(x, str) and isinstance(y, int) else x for x, y in zip(a.shape, b.shape, strict=True)),
    )
