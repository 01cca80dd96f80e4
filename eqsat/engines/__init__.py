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

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from eqsat.errors import OptionError, choices
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import check_feeds
from eqsat.ir.operator import Kind, kind_of
from eqsat.lower.program import Kernel, Program

Run = Callable[[Mapping[str, np.ndarray]], dict[str, Any]]
"""A loaded graph: inputs by name -> outputs by name."""

Engine = Callable[[Program, str], Run]
"""Loads a program, in one of `PRECISIONS`. Raises `ModelError` when the engine cannot run it, `OptionError` for a precision that
it does not have."""

PRECISIONS = ("f32", "bf16")
"""What floats are multiplied in: as the program says, or rounded to bfloat16, which is of class lossy."""


def _numpy(program: Program, precision: str) -> Run:
    _only_f32("numpy", precision)
    return program.run


def _onnxruntime(program: Program, precision: str) -> Run:
    from eqsat.backends.calling import load_graph

    session = load_graph(program.graph, "disable", precision=precision)
    return lambda feeds: session.run(feeds, program.graph.outputs)


def _relax(program: Program, precision: str) -> Run:
    _only_f32("relax", precision)
    try:
        from eqsat.relax import Executable
    except ImportError as error:
        raise OptionError(f"engine 'relax' is not available: {error}") from None
    return Executable(program)


def _torch(program: Program, precision: str, *, inductor: bool = False) -> Run:
    try:
        from eqsat.fx import Executable
    except ImportError as error:
        raise OptionError(f"engine {'inductor' if inductor else 'torch'!r} is not available: {error}") from None
    return Executable(program.graph, inductor=inductor, precision=precision)


def _openvino(program: Program, precision: str) -> Run:
    from eqsat.backends.onnx_file import to_model
    from eqsat.backends.openvino import OpenVino

    loaded = OpenVino(to_model(program.graph, form="openvino").SerializeToString(), precision=precision)

    def run_request(feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        loaded.feed(feeds).run()
        return loaded.outputs()

    return run_request


def _only_f32(engine: str, precision: str) -> None:
    if precision != "f32":
        raise OptionError(f"engine {engine!r} has no precision {precision}: it computes what the program says")


ENGINES: dict[str, Engine] = {
    "numpy": _numpy,
    "onnxruntime": _onnxruntime,
    "relax": _relax,
    "openvino": _openvino,
    "torch": _torch,
    "inductor": partial(_torch, inductor=True),
}


def load_on(program: Program | Graph, engine: str = "numpy", precision: str = "f32") -> Run:
    """``program`` loaded on an engine, to be run many times; each node of a graph is a kernel of its own.

    ``precision``: ``bf16`` lets the engine multiply floats in bfloat16, which moves results by more than rounding (class lossy).
    Raises `OptionError` for an engine that does not exist or is not installed, or a precision that it does not have here.
    """
    if engine not in ENGINES:
        raise OptionError(f"engine {engine!r} does not exist; {choices(engine, ENGINES)}")
    check_precision(precision)
    if isinstance(program, Graph):
        program = _node_by_node(program)
    elif not isinstance(program, Program):  # pyright: ignore[reportUnnecessaryIsInstance]  # a user's
        raise OptionError(f"program is of {type(program).__name__}; expected a Graph or a Program (result.program)")
    run_loaded, graph = ENGINES[engine](program, precision), program.graph

    def run_checked(feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        check_feeds(graph, feeds)
        return run_loaded(feeds)

    return run_checked


def check_precision(name: str) -> None:
    """Raises `OptionError` for a precision that does not exist."""
    if name not in PRECISIONS:
        raise OptionError(f"precision {name!r} does not exist; {choices(name, PRECISIONS)}")


def _node_by_node(graph: Graph) -> Program:
    kernels = (
        Kernel(
            f"kernel_{i}", "view" if kind_of(n) is Kind.VIEW else n.key, (i,), tuple(filter(None, n.inputs)), n.outputs
        )
        for i, n in enumerate(graph.nodes)
    )
    return Program(graph, tuple(kernels))


def run(
    program: Program | Graph, feeds: Mapping[str, np.ndarray], engine: str = "numpy", precision: str = "f32"
) -> dict[str, Any]:
    """Outputs of ``program`` by name, computed by an engine. Raises `FeedError` for inputs that do not fit."""
    return load_on(program, engine, precision)(feeds)


__all__ = ["ENGINES", "PRECISIONS", "Engine", "Run", "check_precision", "load_on", "run"]
