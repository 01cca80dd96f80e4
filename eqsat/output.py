"""Files that appear whole or not at all."""

import os
import secrets
import stat
from collections.abc import Callable, Mapping
from io import BufferedWriter
from pathlib import Path

from eqsat.errors import OutputError


def check_place(path: Path, *, device: bool = False) -> None:
    """Raises `OutputError` where no file can appear: what is renamed to ``/dev/null`` takes the place of the device.

    ``device``: the file is written to, not replaced.
    """
    try:
        folder, special = path.is_dir(), not device and is_device(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from None
    if folder:
        raise OutputError(f"{path}: is a folder; name a file")
    if special:
        raise OutputError(f"{path}: is no regular file; name one, or no output if nothing is to be written")
    if not os.path.isdir(path.parent):
        raise OutputError(f"{path}: the folder {path.parent} does not exist; make it first")


def is_device(path: Path) -> bool:
    """Whether what is written there goes elsewhere, as to a pipe, so that no file may take its place. Names such as
    ``/dev/stdout`` are links to open files, whatever those are."""
    folder = os.path.realpath(path.parent)
    return folder == "/dev" or folder.startswith("/proc/") or (path.exists() and not path.is_file())


def write_files(files: Mapping[Path, Callable[[BufferedWriter], object]]) -> None:
    """Writes each file under a temporary name, then renames all: whatever happens before, no file has changed. One that takes
    the place of another may be read by the same users."""
    temporary: dict[Path, Path] = {}
    try:
        for path, write in files.items():
            temporary[path] = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
            with open(temporary[path], "xb") as file:
                if path.is_file():
                    os.chmod(temporary[path], stat.S_IMODE(path.stat().st_mode))
                write(file)
        for path, name in temporary.items():
            os.replace(name, path)
    finally:
        for name in temporary.values():
            name.unlink(missing_ok=True)
