"""What an ONNX file says besides its graph, kept so that the result is written like its source."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph
from eqsat.ir.operator import OPSET

IR_VERSION = 10
"""IR version of files that have no source: the first with functions, metadata and 4-bit integers."""


NO_LIMIT = sys.maxsize


@dataclass(frozen=True)
class Envelope:
    """Everything of a ``ModelProto`` that is not its graph. Messages are kept as their bytes.

    ``opset`` is the version of the default domain, ``imports`` the versions of all others, ``operators`` what the graph and
    its bodies use of the default one. ``inputs`` and ``outputs`` map names to ``ValueInfoProto``. ``defaults`` are initializers
    that the caller may override. ``known`` holds small values that inference found to be constant. ``most_opset`` and
    ``most_ir_version`` are the newest that the file of the result may have, ``provider`` the execution provider of ONNX Runtime
    that is to have kernels at its opset. ``path``: of the file that was read, if it was one.
    """

    opset: int = OPSET
    imports: Mapping[str, int] = field(default_factory=dict[str, int])
    operators: frozenset[str] = frozenset()
    ir_version: int = IR_VERSION
    most_opset: int = OPSET
    most_ir_version: int = NO_LIMIT
    provider: str = "cpu"
    producer: tuple[str, str] = ("", "")
    domain: str = ""
    model_version: int = 0
    doc: str = ""
    graph_doc: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    graph_metadata: tuple[tuple[str, str], ...] = ()
    inputs: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    outputs: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    quantization: tuple[bytes, ...] = ()
    functions: tuple[bytes, ...] = ()
    defaults: Mapping[str, Constant] = field(default_factory=dict[str, Constant])
    dims: Mapping[str, int | str] = field(default_factory=dict[str, int | str])
    known: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    path: Path | None = None


def envelope_of(graph: Graph, opset: int = OPSET) -> Envelope:
    """The envelope of a graph; of one that comes from no file an empty one, of this opset."""
    return graph.envelope if isinstance(graph.envelope, Envelope) else Envelope(opset)


def with_defaults(graph: Graph, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """``feeds``, and for inputs that are not among them the values that they have by default."""
    return {**{n: c.numpy() for n, c in envelope_of(graph).defaults.items() if n in graph.inputs}, **feeds}
