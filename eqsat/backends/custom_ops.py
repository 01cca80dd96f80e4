"""Operators that a shared library brings to ONNX Runtime: images and texts of onnxruntime-extensions, or those of one's own."""

import os
from pathlib import Path

from eqsat.errors import OptionError

_LIBRARIES: dict[str, None] = {}


def load_custom_ops(library: str | Path) -> None:
    """Makes the operators of a shared library known to ONNX Runtime wherever eqsat runs models in it, from now on:
    ``onnxruntime_extensions.get_library_path()``, say. Raises `OptionError` for what is no such library."""
    import onnxruntime as ort

    path = os.path.abspath(library)
    try:
        ort.SessionOptions().register_custom_ops_library(path)
    except Exception as error:  # the runtime's exceptions have no common base
        said = str(error).strip().splitlines()[0]
        raise OptionError(f"{library}: ONNX Runtime takes no operators from it: {said}") from None
    _LIBRARIES[path] = None


def custom_ops() -> tuple[str, ...]:
    """Paths of the libraries that were loaded."""
    return tuple(_LIBRARIES)
