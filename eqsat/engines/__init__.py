"""Engines: what runs a program, behind one small interface.

An engine loads a graph once and hands out a function from inputs to outputs, both by name. ``numpy`` is the reference: the
meaning of every operator as we define it. ``onnxruntime`` runs the graph as it is, node by node, on the CPU.

>>> import numpy as np
>>> import eqsat
>>> b = eqsat.GraphBuilder()
>>> graph = b.finish({"y": b.op("Relu", b.input("x", "float32", (2,)))})
>>> eqsat.run(graph, {"x": np.array([-1, 2], np.float32)}, engine="onnxruntime")["y"]
array([0., 2.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from eqsat.errors import OptionError
from eqsat.ir.graph import Graph
from eqsat.lower.program import Program

Run = Callable[[Mapping[str, np.ndarray]], dict[str, Any]]
"""A loaded graph: inputs by name -> outputs by name."""

Engine = Callable[[Graph], Run]
"""Loads a graph. Raises `ModelError` when the engine cannot run it."""


def _numpy(graph: Graph) -> Run:
    from eqsat.ir.interpret import run as interpret

    return lambda feeds: interpret(graph, feeds)


def _onnxruntime(graph: Graph) -> Run:
    from eqsat.backends.onnx_file import to_model_and_weights
    from eqsat.backends.onnxruntime import Session
    from eqsat.ir.interpret import check_feeds

    model, weights = to_model_and_weights(graph)
    session = Session(model, "disable", weights=weights, prepack=True)

    def run_session(feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        check_feeds(graph, feeds)
        return session.run(feeds, graph.outputs)

    return run_session


ENGINES: dict[str, Engine] = {"numpy": _numpy, "onnxruntime": _onnxruntime}


def load_on(program: Program | Graph, engine: str = "numpy") -> Run:
    """``program`` loaded on an engine, to be run many times. Raises `OptionError` for an engine that does not exist."""
    if engine not in ENGINES:
        raise OptionError(f"engine {engine!r} does not exist; choose one of {', '.join(ENGINES)}")
    return ENGINES[engine](program.graph if isinstance(program, Program) else program)


def run(program: Program | Graph, feeds: Mapping[str, np.ndarray], engine: str = "numpy") -> dict[str, Any]:
    """Outputs of ``program`` by name, computed by an engine. Raises `FeedError` for inputs that do not fit."""
    return load_on(program, engine)(feeds)


__all__ = ["ENGINES", "Engine", "Run", "load_on", "run"]
