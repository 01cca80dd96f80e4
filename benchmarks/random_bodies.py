"""Bodies of control flow in random models, and functions: see `benchmarks.random_models`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from benchmarks.model_parts import Refused, captured, tensor
from benchmarks.random_models import Growing
from eqsat.ir.graph import fresh_name
from eqsat.ir.schema_operator import to_type_proto
from eqsat.ir.types import type_of_array


def add_body(g: Growing) -> None:
    """Adds an If, Loop or Scan whose bodies are drawn, too. Raises `Refused`."""
    g.d.choose((_if, _loop, _scan))(g)


def add_sequence(g: Growing) -> None:
    """Adds a sequence or an optional value, and what is taken from it. Raises `Refused`."""
    d, x = g.d, g.recent()
    held, taken, more = (fresh_name(stem, g.names) for stem in ("held", "taken", "more"))
    index = g.constant(np.array(d.integer(-1, 1)))
    makers = [("SplitToSequence", [x]), ("SequenceConstruct", [x, g.recent(), x]), ("Optional", [x])]
    op, inputs = d.choose(makers)
    if op == "Optional":
        takers = [("OptionalGetElement", [held]), ("OptionalHasElement", [held])]
    else:
        takers = [("SequenceAt", [held, index]), ("SequenceLength", [held]), ("ConcatFromSequence", [held])]
    attributes: dict[str, Any] = {"axis": d.integer(0, 1)} if op == "SplitToSequence" else {}
    nodes = [helper.make_node(op, inputs, [held], name=held, **attributes)]
    if op != "Optional" and d.chance():
        nodes.append(helper.make_node("SequenceInsert", [held, x], [more], name=more))
        takers = [(taker, [more, *read[1:]]) for taker, read in takers]
    taker, read = d.choose(takers)
    joined: dict[str, Any] = {"axis": 0} if taker == "ConcatFromSequence" else {}
    g.add(*nodes, helper.make_node(taker, read, [taken], name=taken, **joined))


def _inside(g: Growing) -> Growing:
    """A body, in which fewer bodies are nested."""
    from dataclasses import replace

    theme = replace(g.theme, bodies=g.theme.bodies / 3)
    return Growing(g.d, theme, g.opset, g.names, outer=g.visible)


def _alike(g: Growing, like: np.ndarray, shape: bool = True) -> str | None:
    """The newest value of a body that is of the type of ``like``."""
    made = reversed({**g.inputs, **g.arrays}.items())
    return next((v for v, a in made if a.dtype == like.dtype and (not shape or a.shape == like.shape)), None)


def _graph(g: Growing, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.GraphProto:
    """A body with these outputs; their extents are not declared, since others may come out in another turn."""

    def typed(name: str, declared: bool) -> onnx.ValueInfoProto:
        proto = to_type_proto(type_of_array(g.visible[name]))
        if not declared:
            proto.tensor_type.ClearField("shape")
        return helper.make_value_info(name, proto)

    known = g.d.chance()
    named: list[str] = []
    for value in outputs:  # an output of a body is made in it, by one name
        if value in named or value not in g.arrays:
            (value,) = g.op("Identity", value)
        named.append(value)
    return helper.make_graph(
        g.nodes,
        fresh_name("body", g.names),
        [typed(v, known) for v in inputs],
        [typed(v, False) for v in named],
        [tensor(v, a) for v, a in g.constants.items()],
    )


def _if(g: Growing) -> None:
    d = g.d
    conditions = [v for v, a in g.visible.items() if a.dtype == np.bool_ and a.size == 1]
    condition = d.choose(conditions) if conditions and d.chance() else g.leaf(np.array(d.chance()), 0.2)
    one, other = _inside(g), _inside(g)
    one.grow(d.integer(1, 3))
    other.grow(d.integer(1, 3))
    if not one.arrays:
        raise Refused
    result = list(one.arrays)[-1]
    found = _alike(other, one.arrays[result], d.chance(0.7)) or other.constant(-one.arrays[result])
    g.op("If", condition, then_branch=_graph(one, (), (result,)), else_branch=_graph(other, (), (found,)))


def _loop(g: Growing) -> None:
    """So many turns as a number or an extent says, with a state that may grow in each."""
    d, body = g.d, _inside(g)
    state = g.recent()
    turn, going, inner = map(body.input, (np.zeros((), np.int64), np.array(True), g.visible[state]))
    body.grow(d.integer(1, 5))
    if not body.arrays:
        raise Refused
    after = _alike(body, g.visible[state]) or inner
    if g.visible[state].ndim and d.chance(0.3):
        after = body.op("Concat", after, inner, axis=d.integer(0, g.visible[state].ndim - 1))[0]
    results = [after, list(body.arrays)[-1]][: 1 + d.integer(0, 1)]
    trips = g.leaf(np.array(d.integer(0 if len(results) == 1 else 1, 3)), 0.6)
    if g.visible[state].ndim and d.chance(0.3):
        extent = g.op("Gather", *g.op("Shape", state), g.constant(np.array(0, np.int64)))[0]
        trips = g.op("Min", extent, g.constant(np.array(3, np.int64)))[0]
    again = going if d.chance(0.8) else body.op("Less", turn, body.constant(np.array(1, np.int64)))[0]
    graph = _graph(body, (turn, going, inner), (again, *results))
    g.op("Loop", trips, "" if d.chance() else g.constant(np.array(True)), state, outputs=len(results), body=graph)


def _scan(g: Growing) -> None:
    """Over one or two values, along any axis of as many elements, forwards or backwards."""
    d, body = g.d, _inside(g)
    first = g.recent()
    if not g.visible[first].size or not g.visible[first].ndim:
        raise Refused
    length = d.choose(g.visible[first].shape)
    alike = [v for v, a in g.visible.items() if length in a.shape and a.size]
    scanned = [first, *([d.choose(alike)] if d.chance(0.3) else [])]
    axes = [g.visible[v].shape.index(length) for v in scanned]
    state = g.recent()
    rows = [g.visible[v].take(0, axis) for v, axis in zip(scanned, axes, strict=True)]
    inputs = [body.input(g.visible[state]), *map(body.input, rows)]
    body.grow(d.integer(1, 5))
    if not body.arrays:
        raise Refused
    after = _alike(body, g.visible[state]) or inputs[0]
    graph = _graph(body, inputs, (after, list(body.arrays)[-1]))
    how: dict[str, Any] = {"scan_input_axes": axes} if any(axes) else {}
    if d.chance(0.4):
        how["scan_input_directions"] = [d.integer(0, 1) for _ in scanned]
    if d.chance(0.2):
        how["scan_output_directions"] = [1]
    g.op("Scan", state, *scanned, outputs=2, body=graph, num_scan_inputs=len(scanned), **how)


def with_function(model: onnx.ModelProto, first: int, last: int) -> None:
    """Makes a function of the nodes from ``first`` to ``last``, and a call in their place."""
    graph = model.graph
    inner, rest = graph.node[first:last], [*graph.node[:first], *graph.node[last:]]
    made = {o for n in inner for o in n.output}
    if any(a.HasField("g") for n in inner for a in n.attribute):
        return
    reads = list(dict.fromkeys(v for n in inner for v in n.input if v and v not in made))
    used = {v for n in rest for v in (*n.input, *captured(n))} | {o.name for o in graph.output}
    results = [o for n in inner for o in n.output if o in used]
    if not results or not reads:
        return
    opset = helper.make_opsetid("", model.opset_import[0].version)
    function = helper.make_function("drawn", "Part", reads, results, list(inner), [opset])
    call = helper.make_node("Part", reads, results, domain="drawn", name="call")
    nodes = [*graph.node[:first], call, *graph.node[last:]]
    del graph.node[:]
    graph.node.extend(nodes)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("drawn", 1))
