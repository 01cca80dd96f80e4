"""Reference interpreter: the meaning of a graph in numpy, one operator at a time."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from eqsat.errors import EqsatError, FeedError, ModelError, UndefinedError
from eqsat.ir.graph import Attributes, Graph, Node
from eqsat.ir.operator import definition_of, operator
from eqsat.ir.types import DType, TensorType


def evaluate_node(node: Node, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Outputs of one node. Absent inputs are ``None``. Raises `ModelError` for an operator without a definition; of control flow
    Loop has one, where its body is read."""
    definition = definition_of(node)
    if definition is None:
        if node.key == "Loop" and [body.graph is not None for body in node.attributes.bodies] == [True]:
            return _looped(node, inputs)
        label = f"{node.key} {node.name!r}" if node.name else node.key
        if operator(node.key) is not None:
            raise ModelError(f"{label}: its definition does not cover this node: {node.opaque}")
        raise UndefinedError(f"{label}: the reference interpreter has no definition of this operator")
    return evaluate_operator(node.key, node.attributes, inputs, len(node.outputs))


def _looped(node: Node, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Outputs of a Loop: its states at the end, and the rows that its iterations make."""
    (body,) = node.attributes.bodies
    graph = body.graph
    assert graph is not None
    own = len(inputs) - len(body.captures)
    limit, goes_on, *states = inputs[:own]
    around = {name: x for name, x in zip(body.captures, inputs[own:], strict=True) if name in graph.inputs}
    rows: list[Sequence[Any]] = []
    while (limit is None or len(rows) < limit) and (goes_on is None or goes_on):
        number, whether, *names = graph.inputs[:own]
        given = {number: np.asarray(len(rows)), whether: np.asarray(True), **dict(zip(names, states, strict=True))}
        found = run(graph, given | around)
        goes_on, *results = [found[name] for name in graph.outputs]
        states, made = results[: len(states)], results[len(states) :]
        rows.append(made)
    if not rows and len(graph.outputs) > 1 + len(states):
        raise ModelError(f"Loop {node.name!r}: no iteration makes a row, so that their extents are not known")
    return (*states, *(np.stack(each) for each in zip(*rows, strict=True)))


FAILURES = (EqsatError, ArithmeticError, ValueError, TypeError, IndexError, NotImplementedError)
"""What evaluation may raise, for operands that an operator does not take; a program need never run the node."""


def evaluate_operator(op: str, attributes: Attributes, inputs: Sequence[Any], outputs: int = 1) -> tuple[Any, ...]:
    """Outputs of an operator, named by its key, on numpy arrays."""
    definition = operator(op)
    if definition is None:
        raise UndefinedError(f"{op}: the reference interpreter has no definition of this operator")
    with np.errstate(all="ignore"):
        results = definition.evaluate(attributes, inputs)
    return tuple(results)[: max(outputs, 1)]


def check_feeds(graph: Graph, feeds: Mapping[str, np.ndarray]) -> None:
    """Raises `FeedError` unless ``feeds`` names every input of ``graph`` once, with its dtype and extents."""
    if not isinstance(feeds, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # a user's
        raise FeedError(f"inputs: expected an array by name of each input, got {type(feeds).__name__}")
    missing = [name for name in graph.inputs if name not in feeds]
    unknown = [name for name in feeds if name not in graph.inputs]
    if missing or unknown:
        raise FeedError(f"inputs: missing {missing}, unknown {unknown}; the model takes {list(graph.inputs)}")
    symbols: dict[str, tuple[int, str]] = {}
    for name in graph.inputs:
        expected = graph.type_of(name)
        if not isinstance(expected, TensorType):
            continue
        given = np.asarray(feeds[name])
        if expected.dtype is not DType.UNDEFINED and DType.of(given.dtype) is not expected.dtype:
            raise FeedError(f"input {name!r}: dtype {given.dtype}, the model takes {expected}")
        if expected.shape is None:
            continue
        if len(expected.shape) != given.ndim:
            raise FeedError(f"input {name!r}: shape {given.shape}, the model takes {expected}")
        for want, got in zip(expected.shape, given.shape, strict=True):
            if isinstance(want, int) and want != got:
                raise FeedError(f"input {name!r}: shape {given.shape}, the model takes {expected}")
            if isinstance(want, str):
                first = symbols.setdefault(want, (got, name))
                if first[0] != got:
                    raise FeedError(f"input {name!r}: {want} is {got}, but {first[0]} in input {first[1]!r}")


def run(graph: Graph, feeds: Mapping[str, np.ndarray], fetch: Iterable[str] | None = None) -> dict[str, Any]:
    """Runs ``graph`` on ``feeds`` and returns its outputs, or the values named in ``fetch``, by name."""
    check_feeds(graph, feeds)
    wanted = tuple(graph.outputs if fetch is None else fetch)
    values: dict[str, Any] = {name: np.asarray(feeds[name]) for name in graph.inputs}
    last_use = {value: i for i, node in enumerate(graph.nodes) for value in node.inputs}
    keep = set(wanted)
    for i, node in enumerate(graph.nodes):
        operands = [_operand(v, graph, values) for v in node.inputs]
        results = evaluate_node(node, operands)
        for value, result in zip(node.outputs, results, strict=False):
            if value:
                values[value] = result
        for value in node.inputs:
            if last_use[value] == i and value not in keep:
                values.pop(value, None)
    return {name: _operand(name, graph, values) for name in wanted}


def _operand(value: str, graph: Graph, values: Mapping[str, Any]) -> Any:
    if not value:
        return None
    constant = graph.constants.get(value)
    return constant.numpy() if constant is not None else values[value]
