"""Graphs in memory as ONNX Runtime sessions that read weights where they lie, or as runs of the interpreter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from eqsat.backends.calling import load_graph
from eqsat.backends.onnxruntime import Session
from eqsat.errors import EqsatError, ModelError
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run as interpret
from eqsat.ir.types import DType, is_array, type_of_array
from eqsat.verification.halves import in_single
from eqsat.verification.unsigned import in_unsigned

Run = Callable[[Mapping[str, Any]], dict[str, Any]]
"""From inputs to outputs, both by name. Raises `EqsatError`."""

LENT_BYTES = 1 << 16
"""Constants of so many bytes are not written into the model: it refers to them."""


def session_of(graph: Graph, level: str = "disable", *, prepack: bool = False, round_halves: bool = True) -> Session:
    """``graph`` loaded, without optimisation unless ``level`` says so. Half precision is rounded after every operator
    (`eqsat.verification.halves`) unless ``round_halves`` is false; products of bytes are exact (`eqsat.verification.unsigned`).
    Raises `ModelError` when ONNX Runtime cannot run it."""
    computed = in_unsigned(in_single(graph) if round_halves else graph)
    used = computed.reads()
    plain = replace(
        computed,
        nodes=tuple(replace(node, name="") for node in computed.nodes),  # pieces repeat nodes; names have to be unique
        constants={k: c for k, c in computed.constants.items() if k in used},
    )
    return load_graph(plain, level, prepack=prepack, arena=False, least_bytes=LENT_BYTES)


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


def with_dtypes(graph: Graph, values: Mapping[str, Any]) -> Graph:
    """``graph`` with the types of ``values`` where it does not know the dtype: a file needs one for every input."""
    unknown = {
        name: type_of_array(value)
        for name, value in values.items()
        if is_array(value) and getattr(graph.type_of(name), "dtype", None) is DType.UNDEFINED
    }
    return graph.with_nodes(graph.nodes, unknown)
