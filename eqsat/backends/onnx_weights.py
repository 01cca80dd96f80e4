"""Weights next to a model: where each one lies, and writing them without reading them into memory."""

import errno
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path

import onnx

from eqsat.backends.onnx_nodes import describe_tensor, tensor_bytes
from eqsat.ir.constants import Constant, File, unchanged_files
from eqsat.ir.types import DType

PAGE_BYTES = 4096
"""Large tensors start at a multiple of this, so that they can be mapped."""

SMALL_ALIGNMENT_BYTES = 64
_CHUNK_BYTES = 1 << 28


@dataclass(frozen=True)
class Layout:
    """Offsets of constants in one data file. Equal objects lie there once."""

    offsets: Mapping[int, int]
    constants: tuple[Constant, ...]
    length: int

    def __contains__(self, constant: Constant) -> bool:
        return id(constant) in self.offsets


def lay_out(constants: Iterable[Constant], threshold_bytes: int) -> Layout:
    """Places every constant of at least ``threshold_bytes``, in the given order."""
    offsets: dict[int, int] = {}
    placed: list[Constant] = []
    end = 0
    for constant in constants:
        if constant.bytes < max(threshold_bytes, 1) or constant.dtype is DType.STRING or id(constant) in offsets:
            continue
        alignment = PAGE_BYTES if constant.bytes >= PAGE_BYTES else SMALL_ALIGNMENT_BYTES
        start = -(-end // alignment) * alignment
        offsets[id(constant)] = start
        placed.append(constant)
        end = start + constant.bytes
    return Layout(offsets, tuple(placed), end)


def external_tensor(name: str, constant: Constant, location: str, offset: int) -> onnx.TensorProto:
    """The ``TensorProto`` of a constant whose data lie at ``offset`` of the file ``location``."""
    proto = describe_tensor(name, constant)
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(constant.bytes))):
        proto.external_data.add(key=key, value=value)
    return proto


def files_of_weights(constants: Collection[Constant]) -> tuple[Path | None, Mapping[File, str]]:
    """The folder of the files, unchanged, in which most bytes of constants are, and those files by name; ``None`` if all are in
    memory."""
    paths = {file: file[0].resolve() for file in unchanged_files(constants)}
    total: Counter[Path] = Counter()
    for source in {c.source for c in constants if c.source is not None and c.source.file in paths}:
        total[paths[source.file].parent] += source.length
    folder = max(total, key=lambda folder: total[folder], default=None)
    return folder, {file: path.name for file, path in paths.items() if path.parent == folder}


def write_weights(file: BufferedWriter, layout: Layout) -> None:
    """Writes the data file.

    Ranges of files that are unchanged are copied inside the kernel; everything else is written from the mapping or array that
    holds it, which survives the replacement of its file.
    """
    unchanged = unchanged_files(layout.constants)
    file.flush()
    for constant in layout.constants:
        start, source = layout.offsets[id(constant)], constant.source
        if (
            source is not None
            and source.file in unchanged
            and _copy_range(file, start, source.path, source.offset, source.length)
        ):
            continue
        file.seek(start)
        data = tensor_bytes(constant)
        for begin in range(0, len(data), _CHUNK_BYTES):
            file.write(data[begin : begin + _CHUNK_BYTES])
        file.flush()
    file.truncate(layout.length)


def _copy_range(file: BufferedWriter, start: int, path: Path, offset: int, length: int) -> bool:
    """Copies bytes between files without reading them; ``False`` where the system cannot, before anything is lost."""
    if not hasattr(os, "copy_file_range"):
        return False
    done = 0
    with path.open("rb") as source:
        while done < length:
            try:
                count = os.copy_file_range(
                    source.fileno(), file.fileno(), min(length - done, _CHUNK_BYTES), offset + done, start + done
                )
            except OSError as error:
                if error.errno in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
                    return False
                raise
            if count == 0:
                return False
            done += count
    return True
