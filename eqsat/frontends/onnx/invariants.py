"""States of a Loop that its body hands on as they are: the body reads their initial values of the graph around instead.

TensorFlow's loops carry along whatever they read, weights above all. As states these are unknown when the body is optimised, so
that what is computed of them alone, such as their parts for each gate, is computed in each iteration; ONNX Runtime copies them in
each, too.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from eqsat.frontends.onnx.subgraphs import copy_of, locals_of, rename_captures
from eqsat.ir.graph import fresh_name
from eqsat.ir.operator import DEFAULT_DOMAIN


def without_invariants(node: Any) -> list[Any]:
    """A node, or if it is a Loop that hands on states as they are, one without these, and what stands for their last values."""
    if node.op_type != "Loop" or node.domain not in DEFAULT_DOMAIN:
        return [node]
    body = next((a.g for a in node.attribute if a.name == "body"), None)
    if body is None:
        return [node]
    states = len(node.input) - 2
    held = _handed_on(body, states) if states == len(body.input) - 2 < len(body.output) else []
    if not held or not all(node.input[2 + k] for k in held):
        return [node]
    initial = {body.input[2 + k].name: node.input[2 + k] for k in held}
    last = [(node.input[2 + k], node.output[k]) for k in held if k < len(node.output) and node.output[k]]
    node = copy_of(node)
    body = next(a.g for a in node.attribute if a.name == "body")
    _drop(node.input, (2 + k for k in held))
    _drop(node.output, held)
    _drop(body.input, (2 + k for k in held))
    _drop(body.output, (1 + k for k in held))
    _copy_results(body, initial)
    rename_captures(body, initial, set(initial.values()))
    return [node, *(type(node)(op_type="Identity", input=[first], output=[name]) for first, name in last)]


def _handed_on(body: Any, states: int) -> list[int]:
    """The states that every iteration hands on as they are, by number: tensors without a default."""
    defaults = {t.name for t in body.initializer}
    own = [i.name for i in body.input[2:] if i.type.HasField("tensor_type") and i.name not in defaults]
    source = dict(zip(own, own, strict=True))
    for node in body.node:
        if node.op_type == "Identity" and node.domain in DEFAULT_DOMAIN and len(node.input) == len(node.output) == 1:
            source.setdefault(node.output[0], source.get(node.input[0], ""))
    return [k for k in range(states) if source.get(body.output[1 + k].name) == body.input[2 + k].name]


def _drop(field: Any, places: Iterable[int]) -> None:
    for place in sorted(places, reverse=True):
        del field[place]


def _copy_results(body: Any, captured: Mapping[str, str]) -> None:
    """Names of their own for results that are captured values: ONNX wants a node for each."""
    used = locals_of(body) | captured.keys() | set(captured.values())
    for output in body.output:
        if output.name in captured:
            name = fresh_name(output.name, used)
            body.node.add(op_type="Identity", input=[output.name], output=[name])
            output.name = name
