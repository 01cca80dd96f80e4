"""Tensors of an ONNX file as constants: mapped where they lie in a file, views where they lie in the message."""

import mmap
import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from eqsat.errors import ModelError
from eqsat.ir.constants import Constant, FileRange, decode, file_stamp
from eqsat.ir.types import DType, TensorType

_EXTERNAL = 1  # TensorProto.EXTERNAL
_CODES = {int(d) for d in DType if d is not DType.UNDEFINED}


class ExternalFiles:
    """The files next to a model that hold its weights; each is mapped once, when first referred to.

    ``folders``: where they may lie, of `read_source`; none for a model that came from memory.
    """

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self.folders = folders
        self._maps: dict[str, tuple[FileRange, mmap.mmap | bytes]] = {}

    def open(self, location: str, tensor: str) -> tuple[FileRange, mmap.mmap | bytes]:
        """The whole file, and its contents. Raises `ModelError` for a file that is missing or outside the folder."""
        found = self._maps.get(location)
        if found is not None:
            return found
        if not self.folders:
            raise ModelError(
                f"tensor {tensor!r} is in the file {location!r}, but the model has no folder; load it by its path"
            )
        path = self.folders[0] / location
        try:
            inside = any(Path(os.path.realpath(path)).is_relative_to(os.path.realpath(f)) for f in self.folders)
            if os.path.isabs(location) or not inside:
                raise ModelError(
                    f"tensor {tensor!r}: external data {location!r} lies outside {self.folders[0]}; move it next to the model"
                )
            mode = path.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # to open a pipe waits for whoever writes to it
                raise OSError("is no regular file")
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                contents = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
                stamp = file_stamp(file.fileno())
        except (OSError, ValueError) as error:  # a name with a null character is a ValueError
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ModelError(f"tensor {tensor!r}: cannot read external data {str(path)[:200]!r}: {reason}") from None
        self._maps[location] = (FileRange(path.absolute(), 0, size, stamp), contents)
        return self._maps[location]


def read_tensor(proto: Any, files: ExternalFiles) -> Constant:
    """The constant a ``TensorProto`` describes. Raises `ModelError` where its data do not fit its type."""
    dims = tuple(proto.dims)
    if proto.data_type not in _CODES:
        raise ModelError(f"tensor {proto.name!r}: unknown element type {proto.data_type}")
    if any(d < 0 for d in dims):
        raise ModelError(f"tensor {proto.name!r}: negative extent in {dims}")
    type = TensorType(DType(proto.data_type), dims)
    if proto.data_location == _EXTERNAL:
        return _external(proto, type, files)
    if type.dtype is DType.STRING:
        _expect(proto.name, type, len(proto.string_data), type.size or 0, "strings")
        return constant_of_strings(proto.string_data, dims)
    if proto.HasField("raw_data"):
        raw = proto.raw_data
        _expect(proto.name, type, len(raw), type.bytes or 0, "bytes")
        return Constant(type, decode(raw, 0, len(raw), type))
    from onnx import numpy_helper

    try:
        array = numpy_helper.to_array(proto)
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelError(f"tensor {proto.name!r}: its data do not fit {type}: {_one_line(error)}") from None
    array = np.ascontiguousarray(array).reshape(dims)
    array.flags.writeable = False
    return Constant(type, array)


def embed(proto: Any, files: ExternalFiles) -> None:
    """Puts the data of a ``TensorProto`` that lie in a file into the message."""
    if proto.data_location != _EXTERNAL:
        return
    source = read_tensor(proto, files).source
    assert source is not None
    _, contents = files.open({e.key: e.value for e in proto.external_data}["location"], proto.name)
    proto.raw_data = contents[source.offset : source.offset + source.length]
    proto.ClearField("external_data")
    proto.ClearField("data_location")


def embed_attributes(nodes: Iterable[Any], files: ExternalFiles) -> None:
    """The same for the attributes of ``nodes``."""
    for a in (a for node in nodes for a in node.attribute):
        sparse = (t for s in (a.sparse_tensor, *a.sparse_tensors) for t in (s.values, s.indices))
        for tensor in (a.t, *a.tensors, *sparse):
            embed(tensor, files)


def constant_of_strings(raw: Iterable[bytes], shape: tuple[int, ...]) -> Constant:
    texts = [s.decode("utf-8", "surrogateescape") for s in raw]
    array = np.empty(len(texts), object)
    array[:] = texts
    return Constant(TensorType(DType.STRING, shape), array.reshape(shape))


def _external(proto: Any, type: TensorType, files: ExternalFiles) -> Constant:
    entries = {e.key: e.value for e in proto.external_data}
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", 0) or type.bytes or 0)
    except ValueError:
        raise ModelError(
            f"tensor {proto.name!r}: offset or length of its external data is no integer: {entries}"
        ) from None
    if type.dtype is DType.STRING:
        raise ModelError(f"tensor {proto.name!r}: strings cannot be external data")
    location = entries.get("location", "")
    if not isinstance(location, str):  # protobuf hands out as bytes what is no UTF-8
        raise ModelError(f"tensor {proto.name!r}: the location {location!r} of its external data is no UTF-8 text")
    file, contents = files.open(location, proto.name)
    _expect(proto.name, type, length, type.bytes or 0, "bytes")
    if offset < 0 or offset + length > file.length:
        raise ModelError(
            f"tensor {proto.name!r}: needs bytes {offset} to {offset + length} of {file.path}, which has {file.length}; "
            "is the file complete?"
        )
    source = replace(file, offset=offset, length=length)
    if type.dtype.bits < 8 and length > 4096:
        return Constant(type, None, source)  # unpacked on demand: unpacked elements take several times the room
    return Constant(type, decode(contents, offset, length, type), source)


def _expect(name: str, type: TensorType, got: int, want: int, unit: str) -> None:
    if got != want:
        raise ModelError(f"tensor {name!r}: {type} takes {want} {unit}, the file has {got}; is the file damaged?")


def read_sparse(proto: Any, files: ExternalFiles) -> Constant:
    """The dense constant a ``SparseTensorProto`` describes."""
    values, indices = read_tensor(proto.values, files).numpy(), read_tensor(proto.indices, files).numpy()
    shape = tuple(proto.dims)
    dense = np.zeros(shape, values.dtype)
    try:
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
    except (IndexError, ValueError) as error:
        raise ModelError(f"sparse tensor {proto.values.name!r}: {_one_line(error)}") from None
    dense.flags.writeable = False
    return Constant(TensorType(DType.of(values.dtype), shape), dense)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
