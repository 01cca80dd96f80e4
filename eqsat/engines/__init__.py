"""Engines: what runs a program, behind one small interface.

An engine loads a graph once and hands out a function from inputs to outputs, both by name. ``numpy`` is the reference: the
meaning of every operator as we define it. ``onnxruntime`` runs the graph as it is, node by node, on the CPU. ``relax``, with
the extra ``eqsat[tvm]``, makes each kernel of a program one loop function of TVM Relax and builds them for the CPU. ``torch``
and ``inductor``, with the extra ``eqsat[torch]``, run it as a module of PyTorch, operator by operator or compiled by Inductor.
``openvino``, with the extra ``eqsat[openvino]``, hands the graph to OpenVINO, which fuses what it likes; it reads programs
optimised with ``consumer="openvino"``.

>>> import numpy as np
>>> import eqsat
>>> b = eqsat.GraphBuilder()
>>> graph = b.finish({"y": b.op("Relu", b.input("x", "float32", (2,)))})
>>> eqsat.run(graph, {"x": np.array([-1, 2], np.float32)}, engine="onnxruntime")["y"]
array([0., 2.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from eqsat.errors import OptionError
from eqsat.ir.graph import Graph
from eqsat.ir.operator import Kind, kind_of
from eqsat.lower.program import Kernel, Program

Run = Callable[[Mapping[str, np.ndarray]], dict[str, Any]]
"""A loaded graph: inputs by name -> outputs by name."""

Engine = Callable[[Program], Run]
"""Loads a program. Raises `ModelError` when the engine cannot run it."""


def _numpy(program: Program) -> Run:
    return program.run


def _onnxruntime(program: Program) -> Run:
    from eqsat.backends.calling import load_graph
    from eqsat.ir.interpret import check_feeds

    graph = program.graph
    session = load_graph(graph, "disable")

    def run_session(feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        check_feeds(graph, feeds)
        return session.run(feeds, graph.outputs)

    return run_session


def _relax(program: Program) -> Run:
    try:
        from eqsat.relax import Executable
    except ImportError as error:
        raise OptionError(f"engine 'relax' is not available: {error}") from None
    return Executable(program)


def _torch(program: Program, *, inductor: bool = False) -> Run:
    try:
        from eqsat.fx import Executable
    except ImportError as error:
        raise OptionError(f"engine {'inductor' if inductor else 'torch'!r} is not available: {error}") from None
    return Executable(program.graph, inductor=inductor)


def _openvino(program: Program) -> Run:
    from eqsat.backends.onnx_file import to_model
    from eqsat.backends.openvino import OpenVino
    from eqsat.ir.interpret import check_feeds

    graph = program.graph
    loaded = OpenVino(to_model(graph, form="openvino").SerializeToString())

    def run_request(feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        check_feeds(graph, feeds)
        loaded.feed(feeds).run()
        return loaded.outputs()

    return run_request


ENGINES: dict[str, Engine] = {
    "numpy": _numpy,
    "onnxruntime": _onnxruntime,
    "relax": _relax,
    "openvino": _openvino,
    "torch": _torch,
    "inductor": partial(_torch, inductor=True),
}


def load_on(program: Program | Graph, engine: str = "numpy") -> Run:
    """``program`` loaded on an engine, to be run many times; each node of a graph is a kernel of its own.

    Raises `OptionError` for an engine that does not exist or is not installed.
    """
    if engine not in ENGINES:
        raise OptionError(f"engine {engine!r} does not exist; choose one of {', '.join(ENGINES)}")
    return ENGINES[engine](program if isinstance(program, Program) else _node_by_node(program))


def _node_by_node(graph: Graph) -> Program:
    kernels = (
        Kernel(
            f"kernel_{i}", "view" if kind_of(n) is Kind.VIEW else n.key, (i,), tuple(filter(None, n.inputs)), n.outputs
        )
        for i, n in enumerate(graph.nodes)
    )
    return Program(graph, tuple(kernels))


def run(program: Program | Graph, feeds: Mapping[str, np.ndarray], engine: str = "numpy") -> dict[str, Any]:
    """Outputs of ``program`` by name, computed by an engine. Raises `FeedError` for inputs that do not fit."""
    return load_on(program, engine)(feeds)


__all__ = ["ENGINES", "Engine", "Run", "load_on", "run"]
