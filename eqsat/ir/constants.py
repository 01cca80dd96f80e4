"""Constants by reference: an array in memory, or a range of bytes in a file that is mapped when first read."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eqsat.errors import ModelError
from eqsat.ir.types import DType, TensorType, type_of_array

Stamp = tuple[int, ...]
File = tuple[Path, Stamp]


@dataclass(frozen=True, slots=True)
class FileRange:
    """``length`` bytes at ``offset`` of the file at ``path``, little-endian, row-major, sub-byte elements packed. ``stamp``: what
    `file_stamp` said when the file was opened."""

    path: Path
    offset: int
    length: int
    stamp: Stamp = ()

    @property
    def file(self) -> File:
        return self.path, self.stamp


def file_stamp(file: Path | int) -> Stamp:
    """Identity of the present contents of a file, given by its path or open: device, inode, size and time of change."""
    found = os.stat(file)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def unchanged_files(constants: Iterable[Constant]) -> frozenset[File]:
    """The files in which constants are, but for those that are other ones than were opened."""
    return frozenset(f for f in {c.source.file for c in constants if c.source is not None} if _is_unchanged(f))


def rewritten_files(constants: Iterable[Constant]) -> list[Path]:
    """The files in which constants are that were written to since they were opened: a mapping shows what is in them now. One
    that took the place of another left the other as it was."""
    found: set[Path] = set()
    for path, stamp in {c.source.file for c in constants if c.source is not None and c.source.stamp}:
        with suppress(OSError):
            now = file_stamp(path)
            if now != stamp and now[:2] == stamp[:2]:
                found.add(path)
    return sorted(found)


def _is_unchanged(file: File) -> bool:
    path, stamp = file
    try:
        return file_stamp(path) == stamp
    except OSError:
        return False


class Constant:
    """An immutable tensor that is read only when its elements are asked for: from memory, from ``source``, a range of a file, or
    by computing them. What is computed is kept as long as somebody holds the array.

    Two constants are the same exactly if they are the same object: `ConstantPool` sees to it that equal contents become
    one object.
    """

    __slots__ = ("__weakref__", "_array", "_compute", "_computed", "source", "type")

    def __init__(
        self,
        type: TensorType,
        array: np.ndarray | None = None,
        source: FileRange | None = None,
        compute: Callable[[], np.ndarray] | None = None,
    ) -> None:
        self.type = type
        self.source = source
        self._array = array
        self._compute = compute
        self._computed: Callable[[], np.ndarray | None] = _nothing

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process: where it lies in a file, or its elements."""
        return Constant, (self.type, None if self.source is not None else self.numpy(), self.source)

    @staticmethod
    def of(value: Any, dtype: DType | str | None = None) -> Constant:
        """A constant that holds ``value`` (anything `numpy.asarray` takes) in memory."""
        array = np.array(value, dtype=None if dtype is None else DType.of(dtype).numpy)
        array.flags.writeable = False
        return Constant(type_of_array(array), array)

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        assert self.type.shape is not None
        return self.type.shape  # type: ignore[return-value]  # a constant's extents are known

    @property
    def size(self) -> int:
        return self.type.size or 0

    @property
    def bytes(self) -> int:
        return self.type.bytes or 0

    def numpy(self) -> np.ndarray:
        """The elements, read-only. Data in a file stays in the file: pages are read when they are touched."""
        if self._array is not None:
            return self._array
        if self._compute is not None:
            array = self._computed()
            if array is None:
                array = self._compute()
                assert type_of_array(array) == self.type, (type_of_array(array), self.type)
                array.flags.writeable = False
                self._computed = weakref.ref(array)
            return array
        assert self.source is not None
        array = _map(self.source, self.type)
        if array.nbytes <= 4096:  # a small array is asked for often, and a mapping costs more than its bytes
            array = array.copy()
            array.flags.writeable = False
            self._array = array
        return array

    @property
    def is_deferred(self) -> bool:
        """Whether its elements are computed when they are asked for."""
        return self._compute is not None

    def __repr__(self) -> str:
        return f"Constant({self.type})"


def _nothing() -> None:
    """What a reference to an array that nobody holds gives."""


def _map(source: FileRange, type: TensorType) -> np.ndarray:
    if source.length == 0:
        return decode(b"", 0, 0, type)
    try:
        with source.path.open("rb") as file:
            if source.stamp and file_stamp(file.fileno()) != source.stamp:
                raise ModelError(f"{source.path}: changed since the model was read; load the model again")
            start = source.offset - source.offset % mmap.ALLOCATIONGRANULARITY
            view = mmap.mmap(
                file.fileno(), source.offset - start + source.length, access=mmap.ACCESS_READ, offset=start
            )
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{source.path}: cannot read {source.length} bytes at offset {source.offset}: {error}; is the file complete?"
        ) from None
    return decode(view, source.offset - start, source.length, type)


def decode(data: mmap.mmap | bytes | bytearray, offset: int, length: int, type: TensorType) -> np.ndarray:
    """The elements of a tensor of this type that lie in ``length`` bytes from ``offset`` on."""
    shape = tuple(d for d in type.shape or () if isinstance(d, int))
    if length == 0:
        array = np.zeros(shape, type.dtype.numpy)
        array.flags.writeable = False
        return array
    if type.dtype.bits < 8:
        return unpack(np.frombuffer(data, np.uint8, length, offset), type.dtype, shape)
    return np.frombuffer(data, type.dtype.numpy, type.size or 0, offset).reshape(shape)


def unpack(packed: np.ndarray, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Sub-byte elements, packed low bits first, as an array with one element a byte."""
    per_byte = 8 // dtype.bits
    mask = (1 << dtype.bits) - 1
    parts = np.stack([(packed >> (dtype.bits * i)) & mask for i in range(per_byte)], axis=-1).reshape(-1)
    count = int(np.prod(shape, dtype=np.int64))
    raw = parts[:count].astype(np.uint8)
    if dtype in (DType.INT4, DType.INT2):
        sign = 1 << (dtype.bits - 1)
        return ((raw.astype(np.int8) ^ sign) - sign).astype(dtype.numpy).reshape(shape)
    if dtype in (DType.UINT4, DType.UINT2):
        return raw.astype(dtype.numpy).reshape(shape)
    return raw.view(dtype.numpy).reshape(shape)


def pack(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Bytes with the elements of an array of a sub-byte type, low bits first; see `unpack`."""
    per_byte = 8 // dtype.bits
    padded = np.zeros(-(-array.size // per_byte) * per_byte, np.uint8)
    padded[: array.size] = array.reshape(-1).view(np.uint8) & ((1 << dtype.bits) - 1)
    rows = padded.reshape(-1, per_byte)
    packed = np.zeros(len(rows), np.uint8)
    for i in range(per_byte):
        packed |= rows[:, i] << (dtype.bits * i)
    return packed


_SAMPLED_WHOLE = 512
"""Of larger contents a byte sample finds candidates."""


@dataclass
class ConstantPool:
    """Makes constants of equal type and content one object.

    Contents are never hashed whole: constants of one type and byte sample are compared byte by byte, so a model whose
    weights all differ costs a few pages a tensor.
    """

    _by_sample: dict[tuple[object, ...], list[Constant]] = field(default_factory=dict[Any, Any])
    _by_range: dict[tuple[FileRange, TensorType], Constant] = field(default_factory=dict[Any, Any])
    _pooled: set[Constant] = field(default_factory=set[Constant])

    def intern(self, constant: Constant) -> Constant:
        """The pooled constant with the same type and bits as ``constant``; ``constant`` itself if it is the first."""
        if constant in self._pooled or constant.is_deferred:  # to compare it would be to compute it
            return constant
        if constant.source is not None:
            found = self._by_range.get((constant.source, constant.type))
            if found is not None:
                return found
        array = constant.numpy()
        key = (constant.type, _sample(array))
        candidates = self._by_sample.setdefault(key, [])
        whole = array.dtype != object and array.nbytes <= _SAMPLED_WHOLE
        result = next((c for c in candidates if whole or c is constant or same_bits(c.numpy(), array)), None)
        if result is None:
            candidates.append(constant)
            self._pooled.add(constant)
            result = constant
        if constant.source is not None:
            self._by_range[constant.source, constant.type] = result
        return result


def _sample(array: np.ndarray) -> object:
    if array.dtype == object:
        return tuple(map(str, array.reshape(-1)[:16]))
    flat = array.reshape(-1)
    if flat.nbytes <= _SAMPLED_WHOLE:
        return flat.tobytes()
    step = max(1, flat.size // 4)
    return b"".join(flat[start : start + 16].tobytes() for start in range(0, flat.size, step))


def same_constant(a: Constant, b: Constant) -> bool:
    """Whether two constants are of one type and equal, bit by bit."""
    return a is b or (a.type == b.type and same_bits(a.numpy(), b.numpy()))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays of one dtype and shape hold the same bits (so NaNs are equal and -0.0 is not 0.0)."""
    if a.dtype == object:
        return bool(np.array_equal(a, b))
    if a.size == 0:
        return True
    left, right = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return bool(np.array_equal(left, right))
