"""Operators that are defined by what they are built from, and putting that in their place.

A fused operator of a runtime (``com.microsoft::...``), or one of our own that no file format has (``eqsat::...``), states its
meaning once: how to build its outputs from operators of the default domain. Types and values follow from that.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.errors import ModelError, ShapeError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, Graph, Node, fresh_name
from eqsat.ir.infer import VALUE_SIZE_LIMIT, application_of
from eqsat.ir.interpret import run
from eqsat.ir.nominal import nominal_work
from eqsat.ir.operator import Application, Expand, Kind, Operator, define, definition_of
from eqsat.ir.types import DType, TensorType, Type, is_sequence, tensor_type

OWN_DOMAIN = "eqsat"
"""Domain of operators that no file format has: they are spelled out whenever a graph is written or run."""


def define_composite(key: str, expand: Expand, kind: Kind, **facts: Any) -> Operator:
    """Registers an operator that means what ``expand`` builds. ``facts``: what else an `Operator` states, such as ``traits``.

    ``expand(builder, attributes, inputs)`` gets the names of its inputs (``None`` for an absent one) in a `GraphBuilder`,
    which knows their types, and returns the names of its outputs. Types, values and ``flops`` are those of the parts unless
    given: to build the parts takes a while, which counts for an operator that rules introduce thousands of times.
    Raises `RuleError` for a second definition of one key.
    """

    def work_of_parts(app: Application, outputs: Sequence[Type]) -> float:
        graph = _build(expand, app.attributes, app.types, app.values)
        return sum(_flops(node, graph) for node in graph.nodes)

    def infer_parts(app: Application) -> tuple[Type, ...]:
        graph = _build(expand, app.attributes, app.types, app.values)
        if app.outputs > len(graph.outputs):
            raise app.fail(f"output {app.outputs - 1} is not covered by the definition")
        return tuple(graph.type_of(v) for v in graph.outputs)

    def evaluate_parts(attributes: Attributes, inputs: Sequence[Any]) -> tuple[Any, ...]:
        types = tuple(None if x is None else tensor_type(DType.of(np.asarray(x).dtype), np.shape(x)) for x in inputs)
        small = [x if x is not None and np.size(x) <= VALUE_SIZE_LIMIT else None for x in inputs]
        feeds = {f"i{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None and small[i] is None}
        found = run(_build(expand, attributes, types, small), feeds)
        return tuple(found.values())

    of_parts = {"infer": infer_parts, "evaluate": evaluate_parts, "flops": work_of_parts}
    return define(key, kind=kind, expand=expand, counts_parts="flops" not in facts, **{**of_parts, **facts})


def only_attributes(key: str, attributes: Attributes, *known: str, **unset: Any) -> None:
    """Raises `ShapeError` where an operator has an attribute whose meaning its definition does not cover. ``unset``: the values
    at which attributes mean nothing; ONNX Runtime writes them out."""
    for name, value in attributes.items():
        if name not in known and not (name in unset and value == unset[name]):
            raise ShapeError(f"{key}: attribute {name!r} ({value!r}) is not covered by the definition")


def _flops(node: Node, graph: Graph) -> float:
    definition = definition_of(node)
    if definition is None:
        return 0.0
    return nominal_work(definition, application_of(graph, node), [graph.type_of(v) for v in node.outputs])[0]


def _build(
    expand: Expand,
    attributes: Attributes,
    types: Sequence[Type | None],
    values: Sequence[np.ndarray | Constant | None],
    operands: list[str | None] | None = None,
) -> Graph:
    """What an operator is built from: inputs of known elements are constants, the others are called ``i<number>``. ``operands``
    gets the names of all."""
    b = GraphBuilder()
    inputs: list[str | None] = [] if operands is None else operands
    for i, found in enumerate(types):
        value = values[i] if i < len(values) else None
        if found is None:
            inputs.append(None)
        elif value is not None:
            inputs.append(b.constant(value))
        else:
            assert isinstance(found, TensorType)
            inputs.append(b.input(f"i{i}", found.dtype, found.shape))
    outputs = expand(b, attributes, inputs)
    if not is_sequence(outputs):
        raise ModelError(f"what builds it returned {outputs!r}; expected a list of values")
    return b.finish({f"o{i}": v for i, v in enumerate(outputs)})


def largest_within(definition: Operator, app: Application) -> int:
    """Bytes of the largest value that an operator that is built from others has while it works."""
    assert definition.expand is not None
    graph = expanded(_build(definition.expand, app.attributes, app.types, app.values))
    return max((graph.type_of(v).bytes or 0 for node in graph.nodes for v in node.outputs if v), default=0)


def built_of(
    definition: Operator,
    attributes: Attributes,
    types: Sequence[Type | None],
    values: Sequence[np.ndarray | None],
    output: str,
) -> Graph:
    """What gives one output of an operator, ``o<number>``, of operators of the default domain alone; see `_build`.

    Raises `ShapeError` for operands that its definition does not cover.
    """
    assert definition.expand is not None
    graph = expanded(_build(definition.expand, attributes, types, values))
    return replace(graph, outputs=(output,)).pruned()


def expanded(graph: Graph, keep: Callable[[Node], bool] = lambda node: False) -> Graph:
    """``graph`` with what they are built from in place of all composite operators but those that are to be kept.

    Values keep their names; new ones are named after the first output of the node they come from.
    """
    if not any(_is_composite(n) and not keep(n) for n in graph.nodes):
        return graph
    nodes: list[Node] = []
    types, constants = dict(graph.types), dict(graph.constants)
    taken = graph.names()
    for node in graph.nodes:
        spelled = _is_composite(node) and not keep(node)
        nodes.extend(_parts(node, types, constants, taken) if spelled else [node])
    return replace(graph, nodes=tuple(nodes), types=types, constants=constants)


def once(graph: Graph, may_go: Callable[[Node], bool] = lambda node: True) -> Graph:
    """``graph`` without nodes that may go and compute what one before them does; its outputs keep their names."""
    first: dict[Any, Node] = {}
    names: dict[str, str] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        node = replace(node, inputs=tuple(names.get(v, v) for v in node.inputs))
        definition = definition_of(node)
        alone = definition is None or not definition.deterministic
        key = node.outputs if alone else (node.key, node.inputs, node.attributes, tuple(map(bool, node.outputs)))
        twin = first.setdefault(key, node)
        if twin is node or not may_go(node) or not set(node.outputs).isdisjoint(graph.outputs):
            kept.append(node)
        else:
            names.update(zip(node.outputs, twin.outputs, strict=True))
    return graph.with_nodes(kept)


def _is_composite(node: Node) -> bool:
    definition = definition_of(node)
    return definition is not None and definition.expand is not None


def _parts(node: Node, types: dict[str, Type], constants: dict[str, Constant], taken: set[str]) -> Iterator[Node]:
    """What a node is built from, down to operators that are not composite."""
    definition = definition_of(node)
    assert definition is not None
    assert definition.expand is not None
    known = [constants.get(v) for v in node.inputs]
    shapes = [c.type if c is not None else types[v] if v else None for v, c in zip(node.inputs, known, strict=True)]
    small = [c if c is not None and c.size <= VALUE_SIZE_LIMIT else None for c in known]
    own: list[str | None] = []
    wanted = {f"o{i}": v for i, v in enumerate(node.outputs) if v}
    body = replace(_build(definition.expand, node.attributes, shapes, small, own), outputs=tuple(wanted)).pruned()
    names = {name: value for name, value in zip(own, node.inputs, strict=True) if name} | wanted
    stem = next(v for v in node.outputs if v)
    for value in (*body.constants, *(v for n in body.nodes for v in n.outputs if v)):
        if value not in names:
            names[value] = fresh = fresh_name(f"{stem}_{value}", taken)
            if value in body.constants:
                constants[fresh] = body.constants[value]
            else:
                types[fresh] = body.type_of(value)
    for part in body.nodes:
        outputs = tuple(names.get(v, v) for v in part.outputs)
        label = f"{node.name}/{next(v for v in outputs if v)}" if node.name else ""  # a file names no two nodes alike
        operands = tuple(names.get(v, v) for v in part.inputs)
        made = replace(part, inputs=operands, outputs=outputs, name=label)
        yield from _parts(made, types, constants, taken) if _is_composite(made) else [made]
