"""Apache TVM, which is an optional extra: the reader and `eqsat.relax` get it from here."""

from importlib import import_module
from typing import Any

try:
    tvm: Any = import_module("tvm")
    relax: Any = import_module("tvm.relax")
    from_onnx: Any = import_module("tvm.relax.frontend.onnx").from_onnx
except ImportError as error:
    raise ImportError(f"eqsat.relax needs Apache TVM: pip install 'eqsat[tvm]' ({error})") from None
