"""Graphs in memory as ONNX Runtime sessions that read weights where they lie, or as runs of the interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

from eqsat.backends.onnxruntime import Session
from eqsat.errors import EqsatError, ModelError
from eqsat.ir.constants import FileRange
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run as interpret
from eqsat.ir.types import DType, is_array, type_of_array
from eqsat.verification.halves import in_single
from eqsat.verification.unsigned import in_unsigned

Run = Callable[[Mapping[str, Any]], dict[str, Any]]
"""From inputs to outputs, both by name. Raises `EqsatError`."""

LENT_BYTES = 1 << 16
"""Constants of more bytes than this are not written into the model: it refers to them."""


def session_of(
    graph: Graph,
    level: str = "disable",
    *,
    prepack: bool = False,
    threads: int | None = None,
    round_halves: bool = True,
) -> Session:
    """``graph`` loaded, without optimisation unless ``level`` says so. Half precision is rounded after every operator
    (`eqsat.verification.halves`) unless ``round_halves`` is false; products of bytes are exact (`eqsat.verification.unsigned`).
    Raises `ModelError` when ONNX Runtime cannot run it."""
    computed = in_unsigned(in_single(graph) if round_halves else graph)
    folder = _folder_of_weights(computed)
    try:
        return _session(computed, folder, level, prepack, threads)
    except ModelError:
        if folder is None:
            raise
    return _session(computed, None, level, prepack, threads)  # ONNX Runtime before 1.21 does not look into the folder


def _session(graph: Graph, folder: Path | None, level: str, prepack: bool, threads: int | None) -> Session:
    model, weights = detached(graph, folder)
    return Session(model, level, weights=weights, folder=folder, prepack=prepack, threads=threads, arena=False)


def in_session_of(graph: Graph) -> Run:
    """What runs ``graph`` in ONNX Runtime. Raises `ModelError` when that does not load it."""
    return session_of(graph).run


def in_interpreter_of(graph: Graph) -> Run:
    """What runs ``graph`` in the reference interpreter."""
    return partial(run_in_interpreter, graph)


def run_in_interpreter(graph: Graph, feeds: Mapping[str, Any], fetch: Sequence[str] | None = None) -> dict[str, Any]:
    """What the reference interpreter computes. Raises `EqsatError` for whatever goes wrong."""
    try:
        return interpret(graph, feeds, fetch)
    except EqsatError:
        raise
    except Exception as error:  # numpy's, for inputs that do not fit
        raise ModelError(f"the reference interpreter: {type(error).__name__}: {error}") from None


def detached(graph: Graph, folder: Path | None = None) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """``graph`` as a model whose large constants are references: to where they lie in files in ``folder``, of which the runtime maps
    what it reads, or else to the arrays returned with it, which it copies."""
    from eqsat.backends.onnx_file import to_model

    used = {value for node in graph.nodes for value in node.inputs} | set(graph.outputs)
    places: dict[str, FileRange | None] = {}
    for name, constant in graph.constants.items():
        place = _below(folder, constant.source)
        lendable = constant.dtype.bits >= 8 and constant.dtype is not DType.STRING
        if name in used and constant.bytes > LENT_BYTES and (place or lendable):
            places[name] = place
    large = {name: graph.constants[name] for name in places}
    rest = replace(
        graph,
        nodes=tuple(replace(node, name="") for node in graph.nodes),  # pieces repeat nodes; names have to be unique
        inputs=(*graph.inputs, *large),
        types=MappingProxyType({**graph.types, **{name: c.type for name, c in large.items()}}),
        constants=MappingProxyType({k: c for k, c in graph.constants.items() if k in used and k not in large}),
    )
    model = to_model(rest)
    kept = [i for i in model.graph.input if i.name not in large]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    for name, constant in large.items():
        stub = model.graph.initializer.add(
            name=name,
            data_type=int(constant.dtype),
            dims=constant.shape,
            data_location=onnx.TensorProto.EXTERNAL,
        )
        place = places[name] or FileRange(Path("lent"), 0, constant.bytes)
        for key, value in (("location", str(place.path)), ("offset", str(place.offset)), ("length", str(place.length))):
            stub.external_data.add(key=key, value=value)
    return model, {name: constant.numpy() for name, constant in large.items() if places[name] is None}


def _folder_of_weights(graph: Graph) -> Path | None:
    """The folder of the files from which most bytes of constants are; ``None`` if they are in memory."""
    total: Counter[Path] = Counter()
    for constant in graph.constants.values():
        if constant.source is not None and constant.bytes > LENT_BYTES:
            total[_resolved(constant.source.path).parent] += constant.bytes
    return max(total, key=lambda folder: total[folder], default=None)


def _below(folder: Path | None, source: FileRange | None) -> FileRange | None:
    """``source`` with its path from ``folder``; ``None`` if it is elsewhere."""
    if folder is None or source is None or _resolved(source.path).parent != folder:
        return None
    return replace(source, path=Path(_resolved(source.path).name))


@lru_cache(64)
def _resolved(path: Path) -> Path:
    return path.resolve()


def with_dtypes(graph: Graph, values: Mapping[str, Any]) -> Graph:
    """``graph`` with the types of ``values`` where it does not know the dtype: a file needs one for every input."""
    unknown = {
        name: type_of_array(value)
        for name, value in values.items()
        if is_array(value) and getattr(graph.type_of(name), "dtype", None) is DType.UNDEFINED
    }
    return replace(graph, types=MappingProxyType({**graph.types, **unknown})) if unknown else graph
